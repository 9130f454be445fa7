//! Line 2: what a launch costs to record, when a thousand are recorded in a row, and with how many buffers alive.
//!
//! The launches go round over [`SPREAD`] buffers, so each binds another one than the last, and each depends on the
//! tenth before it: a barrier every ten launches is all that the order needs. The clock is that of the calling thread,
//! and runs from the first launch until the driver has them all; that they are done is waited for without it.

use onebuf::{Buffer, Device, HostAccess, Kernel, Stream, args};

use crate::error::{Result, check};
use crate::lines::{STEP, Setup, Tick, by_hand};
use crate::measure::{Contender, Contest, WGPU, cpu_timed};
use crate::report::{Goal, Line, Title};

pub(crate) const LAUNCHES: u32 = 1000;
pub(crate) const SPREAD: usize = 10;
const MANY: usize = 10_000;

/// Line 2.
pub(crate) fn record(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = |name: String| Title { line: 2, name, unit: "us" };
    let most = setup.is_software().then_some(0.6);
    let raw_ratio = if setup.cuda.is_some() { 1.15 } else { 1.05 };
    let goal = Goal { most, raw: Some(raw_ratio), ..Goal::default() };
    let mut contest = Contest {
        ours: ours(setup, SPREAD)?,
        raw: raw(setup)?,
        peer: peer(setup)?,
        peer_name: WGPU,
        fours: 1,
    };
    let each = setup.measure(title("1,000 launches, each".into()), goal, &mut contest, tick)?;
    // The peer is onebuf itself, with few buffers alive.
    let goal = Goal { faster: Some(1.0), noise: 0.05, ..Goal::default() };
    let mut contest = Contest {
        ours: ours(setup, MANY)?,
        raw: None,
        peer: Some(ours(setup, SPREAD)?),
        peer_name: "onebuf with 10 live buffers",
        fours: 1,
    };
    let flat = setup.measure(title("with 10,000 live buffers".into()), goal, &mut contest, tick)?;
    Ok(vec![each, flat])
}

/// Steps on each of the buffers in turn.
fn launch_all(stream: &Stream, kernel: &Kernel, cells: &[Buffer<u32>], base: u32) -> Result<()> {
    for k in 0..LAUNCHES {
        stream.launch(kernel, [1, 1, 1], args![&cells[k as usize % SPREAD], base.wrapping_add(k)])?;
    }
    Ok(())
}

/// What the steps leave in the words.
pub(crate) fn follow(words: &mut [u32; SPREAD], base: u32) {
    for k in 0..LAUNCHES {
        let word = &mut words[k as usize % SPREAD];
        *word = word.wrapping_mul(3).wrapping_add(base.wrapping_add(k));
    }
}

pub(crate) fn poison() -> [u32; SPREAD] {
    std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 + 1))
}

/// `live` buffers in all, the first of which are used.
fn buffers(device: &Device, live: usize) -> Result<Vec<Buffer<u32>>, onebuf::Error> {
    let used = poison().into_iter().map(|word| device.buffer(1).host(HostAccess::ReadWrite).init(&[word]));
    let idle = (SPREAD..live).map(|_| device.buffer::<u32>(1).host(HostAccess::ReadWrite).build());
    used.chain(idle).collect()
}

pub(crate) fn ours<'a>(setup: &Setup<'a>, live: usize) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(STEP)?.build()?;
    let cells = buffers(device, live)?;
    let stream = device.stream()?;
    let (mut base, mut words) = (0u32, poison());
    Ok(Box::new(move || {
        base = base.wrapping_add(7);
        let (time, ()) = cpu_timed(|| {
            launch_all(&stream, &kernel, &cells, base)?;
            Ok(stream.flush()?)
        })?;
        stream.wait()?;
        follow(&mut words, base);
        for (cell, word) in cells.iter().zip(words) {
            check("onebuf", cell.read()?[0], word)?;
        }
        Ok(time / f64::from(LAUNCHES))
    }))
}

pub(crate) fn raw<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    if let Some(cuda) = &setup.cuda {
        return by_hand::record(cuda).map(Some);
    }
    let Some(raw) = &setup.raw else { return Ok(None) };
    let kernel = raw.kernel(STEP)?;
    let mut cells = Vec::new();
    for word in poison() {
        let cell = setup.raw_buffer(raw, 4)?;
        cell.set_word(0, word);
        cells.push((cell, raw.bind(&kernel, &[cell])?));
    }
    let commands = raw.commands()?;
    let (mut base, mut words) = (0u32, poison());
    Ok(Some(Box::new(move || {
        base = base.wrapping_add(7);
        let (time, ()) = cpu_timed(|| {
            raw.begin(commands, true)?;
            raw.use_kernel(commands, &kernel);
            for k in 0..LAUNCHES {
                let turn = k as usize % SPREAD;
                if turn == 0 {
                    raw.barrier(commands);
                }
                raw.use_set(commands, &kernel, cells[turn].1);
                raw.immediate(commands, &kernel, base.wrapping_add(k).to_ne_bytes());
                raw.dispatch(commands, [1, 1, 1]);
            }
            raw.host_barrier(commands);
            raw.end(commands)?;
            raw.submit(commands)
        })?;
        raw.wait()?;
        follow(&mut words, base);
        for ((cell, _), word) in cells.iter().zip(words) {
            check("hand-written Vulkan", cell.word(0), word)?;
        }
        Ok(time / f64::from(LAUNCHES))
    })))
}

#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    let Some(peer) = &setup.peer else { return Ok(None) };
    let kernel = peer.kernel(STEP);
    let staging = peer.staging(4);
    let cells: Vec<_> = poison()
        .into_iter()
        .map(|word| {
            let cell = peer.buffer(4);
            peer.queue.write_buffer(&cell, 0, &word.to_ne_bytes());
            let group = peer.bind(&kernel, &[&cell]);
            (cell, group)
        })
        .collect();
    let (mut base, mut words) = (0u32, poison());
    Ok(Some(Box::new(move || {
        base = base.wrapping_add(7);
        let (time, submission) = cpu_timed(|| {
            let mut encoder = peer.encoder();
            let launches = (0..LAUNCHES)
                .map(|k| (&cells[k as usize % SPREAD].1, Some(base.wrapping_add(k).to_ne_bytes())));
            peer.launch_all(&mut encoder, &kernel, [1, 1, 1], launches);
            Ok(peer.submit(encoder))
        })?;
        peer.wait(submission)?;
        follow(&mut words, base);
        for ((cell, _), word) in cells.iter().zip(words) {
            check("wgpu", peer.words(cell, &staging)?, vec![word])?;
        }
        Ok(time / f64::from(LAUNCHES))
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    Ok(None)
}
