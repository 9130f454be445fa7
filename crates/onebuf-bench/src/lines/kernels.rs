//! Line 16: the same WGSL through onebuf's SPIR-V and through wgpu's, both with accesses out of range made safe.
//!
//! The work is large enough that what surrounds it does not count. Both sides' results are checked against the CPU's.

use onebuf::{Arg, Buffer, DeviceUse, HostAccess};

use crate::error::{Error, Result};
use crate::lines::{Setup, Tick};
use crate::measure::{Contender, Contest, WGPU, timed};
use crate::report::{Goal, Line, Title};

/// A kernel, its input and what it must give.
struct Work {
    name: &'static str,
    wgsl: &'static str,
    inputs: Vec<Vec<u32>>,
    /// What the output holds before each run.
    before: Vec<u32>,
    /// What it holds after.
    after: Vec<u32>,
    /// Floats are compared with this relative error, words exactly.
    tolerance: Option<f32>,
    immediate: Option<[u8; 4]>,
    groups: [u32; 3],
}

/// Line 16.
pub(crate) fn kernels(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let scale = if setup.is_software() { 1 } else { 16 };
    let mut lines = Vec::new();
    for work in [saxpy(scale), transpose(scale), matmul(scale), reduce(scale), histogram(scale)] {
        let title = Title { line: 16, name: work.name.into(), unit: "us" };
        // Where both sides' machine code is the same, what is left is the machine's noise.
        let goal = Goal { faster: Some(1.0), noise: 0.02, ..Goal::default() };
        let mut contest = Contest {
            ours: ours(setup, &work)?,
            raw: None,
            peer: peer(setup, &work)?,
            peer_name: WGPU,
            fours: 1,
        };
        lines.push(setup.measure(title, goal, &mut contest, tick)?);
    }
    Ok(lines)
}

/// Words without a pattern, the same each time.
fn noise(count: usize, seed: u32) -> impl Iterator<Item = u32> {
    let mut state = seed | 1;
    (0..count).map(move |_| {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    })
}

/// Floats between 0.5 and 1.5.
fn floats(count: usize, seed: u32) -> Vec<f32> {
    noise(count, seed).map(|word| 0.5 + (word >> 8) as f32 / (1 << 24) as f32).collect()
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

fn saxpy(scale: usize) -> Work {
    let count = (4 << 20) * scale;
    let (x, y, a) = (floats(count, 1), floats(count, 2), 1.25f32);
    let after: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a * x + y).collect();
    Work {
        name: "saxpy, 4 Mi floats",
        wgsl: include_str!("../../shaders/saxpy.wgsl"),
        inputs: vec![bits(&x)],
        before: bits(&y),
        after: bits(&after),
        tolerance: Some(1e-6),
        immediate: Some(a.to_ne_bytes()),
        groups: [1024, 1, 1],
    }
}

fn transpose(scale: usize) -> Work {
    let side = 1024 * scale.isqrt();
    let source: Vec<u32> = bits(&floats(side * side, 3));
    let after = (0..side * side).map(|i| source[i % side * side + i / side]).collect();
    Work {
        name: "transpose, 1024 x 1024",
        wgsl: include_str!("../../shaders/transpose.wgsl"),
        inputs: vec![source],
        before: vec![0xdead_beef; side * side],
        after,
        tolerance: None,
        immediate: Some((side as u32).to_ne_bytes()),
        groups: [side as u32 / 16, side as u32 / 16, 1],
    }
}

fn matmul(scale: usize) -> Work {
    let side = 192 * scale.isqrt();
    let (a, b) = (floats(side * side, 4), floats(side * side, 5));
    let mut c = vec![0f32; side * side];
    for row in 0..side {
        for k in 0..side {
            let left = a[row * side + k];
            let (line, right) = (&mut c[row * side..][..side], &b[k * side..][..side]);
            line.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * right);
        }
    }
    Work {
        name: "tiled matmul, 192 x 192",
        wgsl: include_str!("../../shaders/matmul.wgsl"),
        inputs: vec![bits(&a), bits(&b)],
        before: vec![f32::NAN.to_bits(); side * side],
        after: bits(&c),
        tolerance: Some(1e-4),
        immediate: Some((side as u32).to_ne_bytes()),
        groups: [side as u32 / 16, side as u32 / 16, 1],
    }
}

fn reduce(scale: usize) -> Work {
    let words: Vec<u32> = noise((4 << 20) * scale, 6).collect();
    let sum = words.iter().fold(7u32, |sum, word| sum.wrapping_add(*word));
    Work {
        name: "reduction, 4 Mi words",
        wgsl: include_str!("../../shaders/reduce.wgsl"),
        inputs: vec![words],
        before: vec![7],
        after: vec![sum],
        tolerance: None,
        immediate: None,
        groups: [64, 1, 1],
    }
}

fn histogram(scale: usize) -> Work {
    let words: Vec<u32> = noise((256 << 10) * scale, 7).collect();
    let before: Vec<u32> = (0..256).map(|bin| bin + 100).collect();
    let mut after = before.clone();
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        after[usize::from(byte)] += 1;
    }
    Work {
        name: "histogram, 1 Mi bytes",
        wgsl: include_str!("../../shaders/histogram.wgsl"),
        inputs: vec![words],
        before,
        after,
        tolerance: None,
        immediate: None,
        groups: [16, 1, 1],
    }
}

impl Work {
    fn check(&self, who: &'static str, found: &[u32]) -> Result<()> {
        let fits = |found: u32, expected: u32| match self.tolerance {
            None => found == expected,
            Some(tolerance) => {
                let (found, expected) = (f32::from_bits(found), f32::from_bits(expected));
                (found - expected).abs() <= tolerance * expected.abs()
            }
        };
        let wrong = found.iter().zip(&self.after).position(|(&found, &expected)| !fits(found, expected));
        if wrong.is_none() && found.len() == self.after.len() {
            return Ok(());
        }
        let index = wrong.unwrap_or_default();
        let what = format!(
            "{}, word {index}: {:?} and not {:?}",
            self.name,
            found.get(index),
            self.after.get(index)
        );
        Err(Error::Wrong { who, what })
    }
}

fn ours<'a>(setup: &Setup<'a>, work: &'a Work) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(work.wgsl)?.build()?;
    // In the device's own memory, as wgpu's are.
    let buffer = |words: &[u32]| {
        device.buffer(words.len()).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy).init(words)
    };
    let mut buffers: Vec<Buffer<u32>> =
        work.inputs.iter().map(|words| buffer(words)).collect::<Result<_, _>>()?;
    buffers.push(buffer(&work.before)?);
    let stream = device.stream()?;
    Ok(Box::new(move || {
        let Some(output) = buffers.last() else { return Ok(f64::NAN) };
        output.copy_from_slice(&work.before)?;
        // Where that goes through a copy of the device's, it is no part of what is measured.
        device.wait_idle()?;
        // The element's type is the kernel's business here: words stand for floats too.
        let bytes: Vec<Buffer<u8>> = buffers.iter().map(Buffer::cast).collect::<Result<_, _>>()?;
        let mut args: Vec<Arg<'_>> = bytes.iter().map(Arg::buffer).collect();
        args.extend(work.immediate.as_ref().map(|bytes| Arg::immediates(bytes)));
        let (time, ()) = timed(|| {
            let ticket = stream.launch(&kernel, work.groups, &args)?;
            Ok(device.wait(ticket)?)
        })?;
        work.check("onebuf", &output.read()?)?;
        Ok(time)
    }))
}

#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>, work: &'a Work) -> Result<Option<Contender<'a>>> {
    let Some(peer) = &setup.peer else { return Ok(None) };
    let kernel = peer.kernel(work.wgsl);
    let buffer = |words: &[u32]| {
        let buffer = peer.buffer(4 * words.len() as u64);
        peer.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        buffer
    };
    let inputs: Vec<_> = work.inputs.iter().map(|words| buffer(words)).collect();
    let output = buffer(&work.before);
    let staging = peer.staging(output.size());
    let all: Vec<&wgpu::Buffer> = inputs.iter().chain([&output]).collect();
    let group = peer.bind(&kernel, &all);
    Ok(Some(Box::new(move || {
        peer.queue.write_buffer(&output, 0, bytemuck::cast_slice(&work.before));
        peer.wait(peer.queue.submit([]))?;
        let (time, ()) = timed(|| {
            let mut encoder = peer.encoder();
            peer.launch(&mut encoder, &kernel, &group, work.immediate, work.groups);
            peer.wait(peer.submit(encoder))
        })?;
        work.check("wgpu", &peer.words(&output, &staging)?)?;
        Ok(time)
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>, _work: &'a Work) -> Result<Option<Contender<'a>>> {
    Ok(None)
}
