//! Bandwidths of the memory behind a semantic, in a second process.
//!
//! The CPU's part is one thread's `memcpy` between the memory and 256 KiB that stay in its caches, so that one side
//! alone is measured; every byte that it reads is checked afterwards. The device's part is a kernel that adds up all words,
//! timed by the device's clock where it has one, and its sum is checked. Figures are medians.

use std::time::{Duration, Instant};

use onebuf::core::report::Cost;
use onebuf::{Buffer, Device, Error, HostAccess, HostPath, Kernel, Result, Semantic, Share, Stream, args};

use super::TestOf;
use crate::child;

/// How long the measurements of one semantic may take.
const LIMIT: Duration = Duration::from_secs(60);
const WORK_LIMIT: Duration = Duration::from_secs(10);

/// The most bytes that are read or written at once.
const MOST_BYTES: u64 = 64 << 20;
const LEAST_BYTES: usize = 1 << 20;
/// A round that takes longer is made smaller.
const LONG: Duration = Duration::from_millis(150);
const ROUNDS: usize = 7;

/// Measures a semantic of a device in a second process.
pub(super) fn measure(device: &str, semantic: Semantic) -> Result<Cost, String> {
    let args = ["__child", "measure", semantic.name(), device];
    let ended = child::run(&args, LIMIT).map_err(|error| error.to_string())?;
    ended.value().unwrap_or_else(|| Err(ended.why()))
}

/// In the second process: measures and reports.
pub(crate) fn here(test: &TestOf) -> crate::error::Result<()> {
    let device = onebuf::Registry::system().open(&test.device)?;
    let cost = bandwidths(&device, test.semantic).map_err(|error| error.to_string());
    child::report(&cost)
}

/// What can be measured of a semantic.
pub(super) fn bandwidths(device: &Device, semantic: Semantic) -> Result<Cost> {
    let bytes = size(device);
    let words = bytes / 4;
    let buffer = match semantic {
        Semantic::Unified | Semantic::Uma | Semantic::HostMapped => {
            let asked = device.buffer::<u32>(words).require(semantic);
            match asked.host_in_place(HostAccess::ReadWrite).build() {
                // A BAR: see the self-test.
                Err(Error::NoPlacement { .. }) if semantic == Semantic::Uma => {
                    device.buffer::<u32>(words).host_in_place(HostAccess::Write).build()?
                }
                other => other?,
            }
        }
        Semantic::HostImport => device.adopt(device.page_vec::<u32>(words)?)?,
        Semantic::Process => {
            device.buffer::<u32>(words).host(HostAccess::ReadWrite).share(Share::Process).build()?
        }
        // Nothing of theirs is memory that one side reads.
        _ => return Ok(Cost::default()),
    };
    let placement = buffer.placement();
    if semantic == Semantic::Uma
        && !matches!(placement.path, HostPath::Uma | HostPath::ResizableBar | HostPath::BarWindow)
    {
        return Err(Error::unsupported("a buffer in the BAR", "there is no room in it"));
    }
    let in_place = !placement.staged;
    let mut cost = Cost::default();
    let pattern = pattern();
    if in_place {
        cost.host_write_gbps = Some(host_write(&buffer, &pattern)?);
        cost.host_read_gbps = Some(host_read(&buffer, &pattern)?);
    } else {
        for part in (0..words).step_by(pattern.len()) {
            let part = part..(part + pattern.len()).min(words);
            let len = part.len();
            buffer.slice(part)?.copy_from_slice(&pattern[..len])?;
        }
    }
    cost.device_read_gbps = Some(device_read(device, &buffer, &pattern)?);
    Ok(cost)
}

/// Bytes to measure with: an eighth of what there is, at most 64 MiB, in whole vectors.
fn size(device: &Device) -> usize {
    let limits = &device.info().limits;
    let budget = device.memory().budget_bytes.unwrap_or(u64::MAX).min(device.info().memory_bytes) / 8;
    let most = limits.max_storage_binding_bytes.min(limits.max_buffer_bytes).min(limits.max_allocation_bytes);
    let bytes = MOST_BYTES.min(budget.max(LEAST_BYTES as u64)).min(most);
    (usize::try_from(bytes).unwrap_or(LEAST_BYTES) / 16 * 16).max(16)
}

/// What the memory holds, over and over: 256 KiB.
fn pattern() -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..64 << 10).map(|_| random.u32(..)).collect()
}

fn host_write(buffer: &Buffer<u32>, pattern: &[u32]) -> Result<f64> {
    let mut guard = buffer.overwrite()?;
    // Every page once, so that no first touch is measured.
    write(&mut guard, pattern);
    let gbps = median(guard.len(), |len| {
        let start = Instant::now();
        write(&mut guard[..len], pattern);
        Ok(start.elapsed())
    })?;
    guard.finish()?;
    Ok(gbps)
}

fn write(target: &mut [u32], pattern: &[u32]) {
    for chunk in target.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

fn host_read(buffer: &Buffer<u32>, pattern: &[u32]) -> Result<f64> {
    // A write guard can be read through as well, which a BAR's buffer, built for writing, needs.
    let guard = buffer.write()?;
    let mut seen = vec![0u32; pattern.len()];
    let mut wrong = false;
    let gbps = median(guard.len(), |len| {
        let mut time = Duration::ZERO;
        for chunk in guard[..len].chunks(pattern.len()) {
            let start = Instant::now();
            seen[..chunk.len()].copy_from_slice(chunk);
            time += start.elapsed();
            wrong |= seen[..chunk.len()] != pattern[..chunk.len()];
        }
        Ok(time)
    })?;
    if wrong {
        return Err(Error::Driver { call: "CPU read", code: "other words than were written".into() });
    }
    Ok(gbps)
}

const SUM: &str = include_str!("sum.wgsl");

/// Invocations that add up: enough to keep every unit of a large GPU busy, few beside the words that they read.
const INVOCATIONS: usize = 1 << 17;

fn device_read(device: &Device, buffer: &Buffer<u32>, pattern: &[u32]) -> Result<f64> {
    let kernel = device.kernel(SUM)?.build()?;
    let most = usize::try_from(device.info().limits.max_storage_binding_bytes / 4).unwrap_or(INVOCATIONS);
    let most = most.min(INVOCATIONS);
    let sums = device.buffer::<u32>(most).host(HostAccess::Read).zeroed().build()?;
    let stream = device.stream()?;
    median(buffer.len(), |len| {
        // Each reads 16 vectors or more.
        let invocations = (len / 64).clamp(64, most) / 64 * 64;
        let time = timed(&stream, &kernel, buffer, &sums, len, invocations)?;
        let seen = sums.read()?[..invocations].iter().copied().fold(0, u32::wrapping_add);
        let all = pattern.iter().copied().fold(0, u32::wrapping_add);
        let rest = pattern[..len % pattern.len()].iter().copied().fold(0, u32::wrapping_add);
        let expected = all.wrapping_mul((len / pattern.len()) as u32).wrapping_add(rest);
        if seen != expected {
            let code = format!("the sum {seen:#010x}, {expected:#010x} expected");
            return Err(Error::Driver { call: "a kernel that reads", code });
        }
        Ok(time)
    })
}

/// One run of the kernel, by the device's clock, or by ours where it has none.
fn timed(
    stream: &Stream,
    kernel: &Kernel,
    buffer: &Buffer<u32>,
    sums: &Buffer<u32>,
    len: usize,
    invocations: usize,
) -> Result<Duration> {
    let start = Instant::now();
    let before = stream.event();
    let count = (len / 4) as u32;
    let groups = [(invocations / 64) as u32, 1, 1];
    stream.launch(kernel, groups, args![buffer.slice(..len)?, sums, count])?;
    let after = stream.event();
    stream.wait_timeout(WORK_LIMIT)?;
    let by_host = start.elapsed();
    match (before, after) {
        (Ok(before), Ok(after)) => {
            let by_device = after.elapsed_since(&before)?;
            Ok(if by_device.is_zero() { by_host } else { by_device })
        }
        _ => Ok(by_host),
    }
}

/// Median bandwidth, in 10^9 bytes a second, of `round` over `len` words, or fewer where that takes long.
fn median(len: usize, mut round: impl FnMut(usize) -> Result<Duration>) -> Result<f64> {
    const LEAST: usize = LEAST_BYTES / 4;
    let mut used = LEAST.min(len);
    round(used)?; // The first one warms up: drivers compile at the first launch.
    let mut time = round(used)?;
    while used < len && time < LONG / 4 {
        used = (used * 4).min(len);
        time = round(used)?;
    }
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        times.push(round(used)?);
    }
    times.sort_unstable();
    let median = times[ROUNDS / 2].as_secs_f64().max(1e-9);
    Ok((used * 4) as f64 / median / 1e9)
}
