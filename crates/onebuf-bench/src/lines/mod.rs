//! The benchmarks, by the numbers of the lines that they belong to.

mod by_hand;
mod graph;
mod kernels;
mod launch;
mod open;
mod pool;
mod record;
mod transfer;

use onebuf::{Device, DeviceKind, HostAccess};

use crate::error::Result;
use crate::maker::StartSecond;
use crate::measure::{self, Contest};
#[cfg(feature = "wgpu")]
use crate::peer::Peer;
use crate::raw::{Raw, RawBuffer};
use crate::raw_cuda::RawCuda;
use crate::report::{Goal, Line, Title};

/// The lines there are.
pub const LINES: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 16];

/// The kernel of most lines.
const STEP: &str = include_str!("../../shaders/step.wgsl");

/// Called once a round.
pub(crate) type Tick<'a> = &'a mut dyn FnMut();

/// Everything opened: the device, and the others beside it.
pub(crate) struct Setup<'a> {
    pub(crate) device: &'a Device,
    /// Where the device is a Vulkan device.
    pub(crate) raw: Option<Raw>,
    /// Where it is a CUDA device.
    pub(crate) cuda: Option<RawCuda>,
    #[cfg(feature = "wgpu")]
    pub(crate) peer: Option<Peer>,
    /// The memory type of onebuf's buffers that the CPU reads and writes.
    memory_type: u32,
    pub(crate) rounds: usize,
    /// How a second process is started.
    pub(crate) second: Option<StartSecond>,
}

impl Setup<'_> {
    pub(crate) fn new(device: &Device, rounds: usize, second: Option<StartSecond>) -> Result<Setup<'_>> {
        let probe = device.buffer::<u32>(1).host(HostAccess::ReadWrite).build()?;
        let kind = &probe.placement().kind;
        let memory_type = kind.strip_prefix("type ").and_then(|number| number.parse().ok()).unwrap_or(0);
        Ok(Setup {
            device,
            raw: Raw::beside(device)?,
            cuda: RawCuda::beside(device)?,
            #[cfg(feature = "wgpu")]
            // wgpu hides devices that onebuf opens; the other figures stand without it.
            peer: Peer::open(device.info()).ok(),
            memory_type,
            rounds,
            second,
        })
    }

    /// A buffer of the hand-written side.
    pub(crate) fn raw_buffer(&self, raw: &Raw, bytes: u64) -> Result<RawBuffer> {
        raw.buffer(bytes, self.memory_type)
    }

    /// The life of a buffer of the hand-written side.
    pub(crate) fn raw_life(&self, raw: &Raw, bytes: u64) -> Result<()> {
        raw.allocate_and_free(bytes, self.memory_type)
    }

    /// True where kernels run on the CPU, so that less work is enough to be measured.
    pub(crate) fn is_software(&self) -> bool {
        self.device.info().kind == DeviceKind::Software
    }

    /// How much faster than wgpu onebuf must be: Mesa's driver before version 23 leaves more to win than later ones,
    /// and a GPU's own latency leaves less.
    pub(crate) fn faster(&self, old_mesa: f64, software: f64, gpu: f64) -> f64 {
        let driver = &self.device.info().driver;
        let mesa = driver.split("Mesa ").nth(1).and_then(|rest| rest.split('.').next());
        let mesa: Option<u32> = mesa.and_then(|major| major.parse().ok());
        match mesa {
            _ if !self.is_software() => gpu,
            Some(major) if major < 23 => old_mesa,
            _ => software,
        }
    }

    /// Runs a contest and judges it.
    fn measure(&self, title: Title, goal: Goal, contest: &mut Contest<'_>, tick: Tick<'_>) -> Result<Line> {
        let outcome = measure::run(contest, self.rounds, tick)?;
        Ok(goal.judge(title, contest.peer_name, &outcome, self.rounds))
    }
}

/// Runs one line.
pub(crate) fn run(setup: &Setup<'_>, line: u32, tick: Tick<'_>) -> Result<Vec<Line>> {
    match line {
        1 => launch::tiny(setup, tick),
        2 => record::record(setup, tick),
        3 => graph::replay(setup, tick),
        4 => launch::result(setup, tick),
        5 => transfer::transfer(setup, tick),
        6 => pool::pool(setup, tick),
        7 => open::open(setup, tick),
        16 => kernels::kernels(setup, tick),
        _ => Ok(Vec::new()),
    }
}
