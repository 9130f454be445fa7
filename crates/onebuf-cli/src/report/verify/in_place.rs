//! `unified`, `uma`, `host-mapped`, `host-import`: CPU and device work on the same bytes in turn.
//!
//! A model of the memory is kept on the side. After each turn all of the memory is compared with it, so that a write
//! that is lost, late or astray shows, whoever made it.

use onebuf::{Buffer, Device, Error, HostAccess, HostPath, Kernel, Semantic, Stream, args};

use super::{Problem, TestResult, WORK_LIMIT, compare};

/// 4 MiB, unless the device allows less.
const WORDS: usize = 1 << 20;
const ROUNDS: u32 = 8;

const TRANSFORM: &str = include_str!("transform.wgsl");

/// The memory of a buffer that was asked for by its semantic.
pub(super) fn mapped(device: &Device, semantic: Semantic) -> TestResult {
    let words = words(device);
    let built = device.buffer::<u32>(words).require(semantic).host_in_place(HostAccess::ReadWrite).build();
    let (buffer, bar) = match built {
        // A BAR is advertised as a part of `uma`: the device's own memory, which the CPU writes in place.
        Err(Error::NoPlacement { .. }) if semantic == Semantic::Uma => (bar(device, words)?, true),
        other => (other?, false),
    };
    let path = buffer.placement().path.name();
    let memory = buffer.placement().kind.clone();
    let mut turns = Turns::new(device, buffer, !bar)?;
    turns.play()?;
    Ok(format!("{}, in {path} memory ({memory})", turns.summary()))
}

/// The device's own memory through the bus, written and never read by the CPU.
fn bar(device: &Device, words: usize) -> Result<Buffer<u32>, Problem> {
    let buffer = device.buffer::<u32>(words).host_in_place(HostAccess::Write).build()?;
    match buffer.placement().path {
        HostPath::ResizableBar | HostPath::BarWindow => Ok(buffer),
        other => Err(Problem::Skipped(format!("no room in the BAR; the buffer went to {}", other.name()))),
    }
}

/// Pages of this program in the middle of an allocation, with canaries on both sides.
#[allow(unsafe_code)]
pub(super) fn imported(device: &Device) -> TestResult {
    let alignment = device.info().limits.host_import_alignment_bytes.max(4);
    let border = usize::try_from(alignment / 4)
        .map_err(|_| Problem::Skipped(format!("it wants an alignment of {alignment} bytes")))?;
    let words = words(device).next_multiple_of(border);
    let mut pages = device.page_vec::<u32>(border + words + border)?;
    pages.fill(CANARY);
    let middle: *mut [u32] = &mut pages[border..border + words];
    // SAFETY: `pages` outlives the buffer, every handle to which is dropped with `turns` below (on an error, too, since it
    // is declared later), and nothing looks at the pages until then.
    let buffer = unsafe { device.import_host(middle)? };
    let mut turns = Turns::new(device, buffer, true)?;
    turns.play()?;
    let summary = turns.summary();
    let model = turns.end();
    compare(&pages[border..border + words], &model, "the program's own pages")?;
    let canaries = pages[..border].iter().chain(&pages[border + words..]);
    if canaries.copied().any(|word| word != CANARY) {
        return Err(Problem::Failed("memory beside the imported pages was overwritten".into()));
    }

    // The same with pages that the buffer owns.
    let buffer = device.adopt(pages).map_err(|refused| refused.error)?;
    let mut turns = Turns::new(device, buffer, true)?;
    turns.play()?;
    Ok(format!(
        "{summary}, in the program's own pages and in adopted ones; canaries intact, multiples of {alignment} bytes"
    ))
}

const CANARY: u32 = 0xC0FF_EE11;

fn words(device: &Device) -> usize {
    let limits = &device.info().limits;
    let most = limits.max_storage_binding_bytes.min(limits.max_buffer_bytes).min(limits.max_allocation_bytes);
    usize::try_from(most / 4).unwrap_or(WORDS).clamp(1, WORDS)
}

/// Turns of CPU and device on one buffer.
pub(super) struct Turns<'a> {
    device: &'a Device,
    stream: Stream,
    kernel: Kernel,
    buffer: Buffer<u32>,
    /// What the buffer must hold.
    model: Vec<u32>,
    /// Whether the CPU reads in place; else it reads a copy that the device makes.
    reads: bool,
    random: fastrand::Rng,
    copied_before: u64,
}

impl<'a> Turns<'a> {
    pub(super) fn new(device: &'a Device, buffer: Buffer<u32>, reads: bool) -> Result<Turns<'a>, Problem> {
        let kernel = device.kernel(TRANSFORM)?.build()?;
        let model = vec![0; buffer.len()];
        let (stream, copied_before) = (device.stream()?, device.copied_bytes());
        Ok(Turns {
            device,
            stream,
            kernel,
            buffer,
            model,
            reads,
            random: fastrand::Rng::new(),
            copied_before,
        })
    }

    pub(super) fn play(&mut self) -> Result<(), Problem> {
        let everything = 0..self.model.len();
        self.host_writes(everything)?;
        self.check("what the CPU wrote, before the device came")?;
        for round in 0..ROUNDS {
            self.device_changes(round)?;
            self.check("after the device changed it")?;
            let range = self.random_range(1);
            self.host_writes(range)?;
            self.device_changes(round + ROUNDS)?;
            self.check("after the CPU and then the device changed it")?;
        }
        let copied = self.device.copied_bytes() - self.copied_before;
        if self.reads && copied > 0 {
            return Err(Problem::Failed(format!("{copied} bytes were copied, and none should be")));
        }
        Ok(())
    }

    pub(super) fn summary(&self) -> String {
        let bytes = onebuf::core::error::human_bytes(self.buffer.size_bytes());
        let copied = if self.reads { "nothing copied" } else { "read back through a copy" };
        format!("{ROUNDS} rounds of CPU and device on {bytes}, {copied}")
    }

    /// Lets go of the buffer, and gives what it must hold.
    pub(super) fn end(self) -> Vec<u32> {
        self.model
    }

    /// The CPU writes random words in place.
    fn host_writes(&mut self, range: std::ops::Range<usize>) -> Result<(), Problem> {
        let salt = self.random.u32(..);
        let target = &mut self.model[range.clone()];
        for (i, word) in target.iter_mut().enumerate() {
            *word = salt.wrapping_mul(i as u32 | 1) ^ 0x5A5A_0000;
        }
        let mut guard = self.buffer.slice(range)?.overwrite()?;
        guard.copy_from_slice(target);
        guard.finish()?;
        Ok(())
    }

    /// The device changes a range, which begins where it may begin.
    fn device_changes(&mut self, round: u32) -> Result<(), Problem> {
        let limits = &self.device.info().limits;
        let words = |bytes: u64| usize::try_from(bytes / 4).unwrap_or(usize::MAX).max(1);
        let range = self.random_range(words(limits.storage_offset_alignment_bytes));
        let range =
            range.start..range.end.min(range.start.saturating_add(words(limits.max_storage_binding_bytes)));
        let salt = self.random.u32(..) ^ round;
        let target = &mut self.model[range.clone()];
        for (i, word) in target.iter_mut().enumerate() {
            *word = word.wrapping_mul(2_654_435_761).wrapping_add(i as u32 ^ salt);
        }
        let params = [range.len() as u32, salt];
        let groups = [params[0].div_ceil(64).min(1024), 1, 1];
        self.stream.launch(&self.kernel, groups, args![self.buffer.slice(range)?, params])?;
        self.stream.wait_timeout(WORK_LIMIT)?;
        Ok(())
    }

    /// All of the memory is what it must be.
    fn check(&self, when: &str) -> Result<(), Problem> {
        if self.reads {
            compare(&self.buffer.read()?, &self.model, when)
        } else {
            compare(&self.buffer.read_to_vec()?, &self.model, when)
        }
    }

    fn random_range(&mut self, alignment: usize) -> std::ops::Range<usize> {
        let len = self.model.len();
        let start = self.random.usize(0..len) / alignment * alignment;
        start..self.random.usize(start + 1..=len)
    }
}
