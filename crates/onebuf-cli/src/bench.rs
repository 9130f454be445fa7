//! `onebuf bench`: onebuf beside hand-written Vulkan or CUDA, and beside wgpu.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use onebuf::Device;
use onebuf_bench::{LINES, Plan};

use crate::child;
use crate::error::{Error, Result};
use crate::output;

/// Measure a device: onebuf beside hand-written Vulkan or CUDA and, where built with the feature `wgpu`, beside wgpu.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Lines:
   1  a tiny kernel, launched and waited for
   2  1,000 launches, what each costs to record
   3  a graph, what a replay costs the CPU
   4  a 4-byte result, read by the CPU
   5  64 MiB to the device and back
   6  a buffer of 1 MiB made and dropped
   7  memory of another process: opened, opened again, used by a kernel
  16  the same WGSL through onebuf's SPIR-V and wgpu's

A ratio below 1 says that onebuf is faster. A line's control is onebuf beside itself: where it is not about 1, the
machine was too busy for the line's ratios to mean much. wgpu has a device and threads of its own, which the control
does not see: run the command several times before you believe a ratio to wgpu.")]
pub(crate) struct Options {
    /// The lines to run; all where none is named
    #[arg(value_name = "LINE")]
    lines: Vec<u32>,
    /// The device, by id, UUID, kind or backend
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Rounds that count
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(line) = options.lines.iter().find(|line| !LINES.contains(line)) {
        let lines: Vec<String> = LINES.iter().map(u32::to_string).collect();
        return Err(Error::usage(format!("there is no line {line}; the lines are {}", lines.join(", "))));
    }
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::open_default()?,
    };
    let plan =
        Plan { lines: options.lines.clone(), rounds: usize::from(options.rounds), second: Some(second) };
    let bar = output::progress(LINES.len() as u64);
    let report = onebuf_bench::run(&device, &plan, |progress| {
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("line {}", progress.line));
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| match error {
        onebuf_bench::Error::Onebuf(error) => Error::Onebuf(error),
        other => Error::Failed(other.to_string()),
    })?;
    if options.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

/// The device for which the second process makes memory.
#[derive(Debug, clap::Args)]
pub(crate) struct MakerOf {
    device: String,
}

/// Starts the second process of line 7.
fn second(device: &str, socket: OwnedFd) -> std::io::Result<Child> {
    child::spawn(&["__child", "maker", device], Some(socket))
        .map_err(|error| std::io::Error::other(error.to_string()))
}

/// The second process of line 7.
pub(crate) fn maker_here(maker: &MakerOf) -> Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| Error::io("the inherited socket", error))?;
    onebuf_bench::make(&maker.device, socket).map_err(|error| Error::Failed(error.to_string()))
}
