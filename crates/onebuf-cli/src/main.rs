//! The command `onebuf`: which devices there are, what each can share and how fast, what is wrong with this machine, and
//! kernels on NumPy files.
//!
//! Results go to stdout, everything else to stderr. The exit code is 0 on success, 1 on failure and 2 on wrong use.
//!
//! | module | what is in it |
//! |---|---|
//! | `devices` | `onebuf devices` |
//! | `report` | `onebuf report`: the facts, the self-tests, the measurements, the table and the page |
//! | `doctor` | `onebuf doctor`: loader, drivers, devices, nodes, limits, libraries |
//! | `run` | `onebuf run`: array files, bindings, launches |
//! | `bench` | `onebuf bench`: the figures of `onebuf-bench`, as a table or JSON |
//! | `translate`, `source` | `onebuf translate`, and WGSL files |
//! | `ipc` | `onebuf serve`, `onebuf ipc`: the broker of shared buffers, and questions to it |
//! | `child` | work that may hang or die, in a second process of this command |
//! | `system` | the machine, its containers |
//! | `output`, `error`, `log` | stdout, stderr, exit codes, what the library logs |

#![deny(unsafe_code)]

mod bench;
mod child;
mod devices;
mod doctor;
mod error;
mod ipc;
mod log;
mod output;
mod report;
mod run;
mod source;
mod system;
mod translate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;

/// GPU compute on shared memory: devices, what they share, kernels on NumPy files
#[derive(Debug, Parser)]
#[command(name = "onebuf", version, arg_required_else_help = true)]
#[command(after_help = "\
Environment:
  ONEBUF_DEVICE      the default device: an id (vulkan:0), a UUID, a kind (software) or a backend (vulkan)
  ONEBUF_VALIDATION  1 loads the Khronos validation layer
  ONEBUF_CACHE_DIR   where compiled kernels are kept; `off` keeps none
  ONEBUF_NVRTC       path of NVRTC's library, for `translate --check`
  ONEBUF_LOG         error (default), warn, info, debug or trace: what is logged to stderr

Exit codes: 0 success, 1 failure, 2 wrong use. `onebuf COMMAND --help` tells more.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices, one line each
    Devices(devices::Options),
    /// What each device can share: advertised, permitted, verified, cost
    Report(report::Options),
    /// What is wrong with this machine, and how to mend it
    Doctor(doctor::Options),
    /// Run a kernel on NumPy files, in memory that CPU and device share
    Run(run::Options),
    /// Write a kernel as SPIR-V or CUDA C++
    Translate(translate::Options),
    /// Measure a device beside hand-written Vulkan and wgpu
    Bench(bench::Options),
    /// Keep shared buffers under names, for the processes of this machine
    Serve(ipc::ServeOptions),
    /// Ask a broker what is shared, and who holds it
    #[command(subcommand)]
    Ipc(ipc::Command),
    #[command(name = "__child", hide = true, subcommand)]
    Child(Child),
}

/// What a second process of this command does.
#[derive(Debug, Subcommand)]
enum Child {
    /// One self-test
    Verify(report::TestOf),
    /// The second process of the self-test of `process`
    Peer(report::PeerOf),
    /// The second process of a benchmark
    Maker(bench::MakerOf),
    /// One measurement
    Measure(report::TestOf),
    /// The devices, for the doctor
    Devices,
    /// A library, for the doctor
    Library(doctor::LibraryOf),
    /// NVRTC, for the doctor
    Nvrtc,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let validation = log::start();
    match dispatch(cli.command, &validation) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command, validation: &log::Validation) -> Result<()> {
    match command {
        Command::Devices(options) => devices::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Translate(options) => translate::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Serve(options) => ipc::serve(&options),
        Command::Ipc(command) => ipc::run(&command),
        Command::Child(child) => {
            child::follow_parent();
            match child {
                Child::Verify(test) => report::verify_here(&test, validation),
                Child::Peer(peer) => report::peer_here(&peer),
                Child::Maker(maker) => bench::maker_here(&maker),
                Child::Measure(test) => report::measure_here(&test),
                Child::Devices => doctor::devices_here(),
                Child::Library(library) => doctor::library_here(&library),
                Child::Nvrtc => doctor::nvrtc_here(),
            }
        }
    }
}
