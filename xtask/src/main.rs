//! The project's chores. `cargo xtask --help` lists them.
//!
//! - [`setup`] finds what is missing on this machine and installs that alone.
//! - [`drivers`] brings several Vulkan drivers beside the build, without touching the system's own.
//! - [`mod@test`] runs every test, and those that open a device once on each driver.
//! - [`demo`] shows the main job on a photograph.
//! - [`bundle`] packs tests, command and examples for a machine without Rust.
//! - [`licences`] compares each dependency's licence with the allow list of `deny.toml`.

mod apt;
mod bundle;
mod demo;
mod drivers;
mod licences;
mod nvrtc;
mod probe;
mod process;
mod setup;
mod test;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The chores of the onebuf project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what is missing: the Vulkan loader, and a driver only where none is found
    Setup {
        /// Also what the tests use: the validation layer, the driver matrix, g++, NVRTC
        #[arg(long)]
        all: bool,
    },
    /// Build, report what this machine shares, and run the image pipeline on a photograph
    Demo(demo::Options),
    /// Run every test, on every device and driver
    Test(test::Options),
    /// Pack tests, command and examples into .bundle/, to run on a machine without Rust
    Bundle(bundle::Options),
    /// Compare the licence of each dependency with deny.toml
    Licences,
    /// List the Vulkan devices that the environment selects, as JSON
    #[command(hide = true)]
    Probe,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Setup { all } => setup::chore(all),
        Chore::Demo(options) => demo::chore(&options),
        Chore::Test(options) => test::chore(&options),
        Chore::Bundle(options) => bundle::chore(&options),
        Chore::Licences => licences::chore(),
        Chore::Probe => probe::print_here(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not through `main`'s own return, which adds a backtrace that helps nobody here.
            #[expect(clippy::print_stderr, reason = "the error is for the person at the terminal")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
