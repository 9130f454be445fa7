//! The benchmarks of onebuf: each against the same steps written by hand in Vulkan or CUDA, and against wgpu, in one process and
//! in turns. `onebuf bench` runs them.
//!
//! | module | what is in it |
//! |---|---|
//! | `measure` | the method: rounds, turns, medians of ratios, the control |
//! | `lines` | the benchmarks |
//! | `raw`, `raw_cuda`, `raw_open` | hand-written Vulkan, hand-written CUDA |
//! | `maker` | the second process of line 7 |
//! | `peer` | wgpu, behind the feature `wgpu` |
//! | `report` | figures, goals, JSON and table |
//!
//! - Every contender's results are checked, and what it writes is poisoned first.
//! - Times are for people; ratios are what goals speak of. A ratio is only as good as its line's control.

mod error;
mod lines;
mod maker;
mod measure;
#[cfg(feature = "wgpu")]
mod peer;
mod raw;
mod raw_cuda;
mod raw_open;
mod report;

use onebuf::Device;

pub use error::{Error, Result};
pub use lines::LINES;
pub use maker::{StartSecond, make};
pub use report::{Line, Measured, PeerTime, Report};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of lines; all of [`LINES`] where it is empty.
    pub lines: Vec<u32>,
    /// Rounds that count, at least one.
    pub rounds: usize,
    /// How a second process is started, for line 7.
    pub second: Option<StartSecond>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { lines: Vec::new(), rounds: 12, second: None }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The line that runs.
    pub line: u32,
    /// Lines that are done.
    pub done: usize,
    /// Lines in all.
    pub of: usize,
}

/// Runs the lines of a plan on a device. `progress` is called about once a round.
///
/// # Errors
/// [`Error::NoSuchLine`]; [`Error::Wrong`] where a contender computed something else than it should; what onebuf, the
/// driver or wgpu said where they failed.
pub fn run(device: &Device, plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Report> {
    let asked: Vec<u32> = if plan.lines.is_empty() { LINES.to_vec() } else { plan.lines.clone() };
    if let Some(&asked) = asked.iter().find(|line| !LINES.contains(line)) {
        let lines: Vec<String> = LINES.iter().map(u32::to_string).collect();
        return Err(Error::NoSuchLine { asked, lines: lines.join(", ") });
    }
    let setup = lines::Setup::new(device, plan.rounds.max(1), plan.second)?;
    let mut measured = Vec::new();
    for (done, &line) in asked.iter().enumerate() {
        measured
            .extend(lines::run(&setup, line, &mut || progress(Progress { line, done, of: asked.len() }))?);
    }
    Ok(Report { schema: "onebuf.bench/1", device: Measured::new(device.info()), lines: measured })
}
