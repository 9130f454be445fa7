//! Lines 1 and 4: a tiny kernel, launched and waited for, and its result read.

use onebuf::{HostAccess, args};

use crate::error::{Result, check};
use crate::lines::{STEP, Setup, Tick, by_hand};
use crate::measure::{Contender, Contest, WGPU, median, timed};
use crate::report::{Goal, Line, Title};

/// Launches in a sample, the first of which does not count.
pub(crate) const LAUNCHES: u32 = 24;
/// The word at first: nothing that a kernel that does not run would leave right.
pub(crate) const POISON: u32 = 0x9e37_79b9;

/// The chain of values that the kernel must leave.
pub(crate) struct Chain {
    pub(crate) word: u32,
    k: u32,
}

impl Chain {
    pub(crate) fn new() -> Chain {
        Chain { word: POISON, k: 0 }
    }

    /// The next step's immediate.
    pub(crate) fn next(&mut self) -> u32 {
        self.k = self.k.wrapping_add(1);
        self.word = self.word.wrapping_mul(3).wrapping_add(self.k);
        self.k
    }
}

/// The middle of a sample's times, without the first.
pub(crate) fn middle(times: &[f64]) -> f64 {
    median(times.get(1..).unwrap_or_default()).unwrap_or(f64::NAN)
}

/// Line 1.
pub(crate) fn tiny(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = |name: &str| Title { line: 1, name: name.to_owned(), unit: "us" };
    let limit = if setup.is_software() { 1.10 } else { 1.05 };
    let goal = Goal { raw: Some(limit), faster: Some(setup.faster(2.0, 1.4, 1.1)), ..Goal::default() };
    let mut contest = Contest {
        ours: ours(setup, false)?,
        raw: raw(setup, false)?,
        peer: peer(setup, false)?,
        peer_name: WGPU,
        fours: 1,
    };
    let recorded = setup.measure(title("tiny kernel, launch and wait"), goal, &mut contest, tick)?;
    let goal = Goal { raw: Some(limit), ..Goal::default() };
    let mut contest = Contest {
        ours: ours_replayed(setup)?,
        raw: raw_replayed(setup)?,
        peer: None,
        peer_name: WGPU,
        fours: 1,
    };
    let replayed = setup.measure(title("the same, recorded once"), goal, &mut contest, tick)?;
    Ok(vec![recorded, replayed])
}

/// Line 4.
pub(crate) fn result(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = Title { line: 4, name: "a 4-byte result to the CPU".into(), unit: "us" };
    let goal = Goal { raw: Some(1.10), faster: Some(setup.faster(3.0, 2.0, 1.1)), ..Goal::default() };
    let mut contest = Contest {
        ours: ours(setup, true)?,
        raw: raw(setup, true)?,
        peer: peer(setup, true)?,
        peer_name: WGPU,
        fours: 1,
    };
    Ok(vec![setup.measure(title, goal, &mut contest, tick)?])
}

/// onebuf; `read` reads the word after each launch, which waits by itself.
fn ours<'a>(setup: &Setup<'a>, read: bool) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(STEP)?.build()?;
    let cell = device.buffer::<u32>(1).host(HostAccess::ReadWrite).init(&[POISON])?;
    let stream = device.stream()?;
    let mut chain = Chain::new();
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let k = chain.next();
            let (time, word) = timed(|| {
                let ticket = stream.launch(&kernel, [1, 1, 1], args![&cell, k])?;
                if read {
                    return Ok(Some(cell.read()?[0]));
                }
                device.wait(ticket)?;
                Ok(None)
            })?;
            if let Some(word) = word {
                check("onebuf", word, chain.word)?;
            }
            times.push(time);
        }
        check("onebuf", cell.read()?[0], chain.word)?;
        Ok(middle(&times))
    }))
}

fn raw<'a>(setup: &'a Setup<'_>, read: bool) -> Result<Option<Contender<'a>>> {
    if let Some(cuda) = &setup.cuda {
        return by_hand::tiny(cuda).map(Some);
    }
    let Some(raw) = &setup.raw else { return Ok(None) };
    let kernel = raw.kernel(STEP)?;
    let cell = setup.raw_buffer(raw, 4)?;
    cell.set_word(0, POISON);
    let set = raw.bind(&kernel, &[cell])?;
    let commands = raw.commands()?;
    let mut chain = Chain::new();
    Ok(Some(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let k = chain.next();
            let (time, word) = timed(|| {
                raw.begin(commands, true)?;
                // What the launch before this one wrote is seen: that the CPU waited for it is not enough.
                raw.barrier(commands);
                raw.use_kernel(commands, &kernel);
                raw.use_set(commands, &kernel, set);
                raw.immediate(commands, &kernel, k.to_ne_bytes());
                raw.dispatch(commands, [1, 1, 1]);
                raw.host_barrier(commands);
                raw.end(commands)?;
                raw.submit(commands)?;
                raw.wait()?;
                Ok(read.then(|| cell.word(0)))
            })?;
            if let Some(word) = word {
                check("hand-written Vulkan", word, chain.word)?;
            }
            times.push(time);
        }
        check("hand-written Vulkan", cell.word(0), chain.word)?;
        Ok(middle(&times))
    })))
}

#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>, read: bool) -> Result<Option<Contender<'a>>> {
    let Some(peer) = &setup.peer else { return Ok(None) };
    let kernel = peer.kernel(STEP);
    let (cell, staging) = (peer.buffer(4), peer.staging(4));
    peer.queue.write_buffer(&cell, 0, &POISON.to_ne_bytes());
    let group = peer.bind(&kernel, &[&cell]);
    let mut chain = Chain::new();
    Ok(Some(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let k = chain.next();
            let (time, word) = timed(|| {
                let mut encoder = peer.encoder();
                peer.launch(&mut encoder, &kernel, &group, Some(k.to_ne_bytes()), [1, 1, 1]);
                if read {
                    encoder.copy_buffer_to_buffer(&cell, 0, &staging, 0, 4);
                }
                let submission = peer.submit(encoder);
                if read {
                    let word: u32 = peer.map(&staging, submission, bytemuck::pod_read_unaligned)?;
                    return Ok(Some(word));
                }
                peer.wait(submission)?;
                Ok(None)
            })?;
            if let Some(word) = word {
                check("wgpu", word, chain.word)?;
            }
            times.push(time);
        }
        check("wgpu", peer.words(&cell, &staging)?, vec![chain.word])?;
        Ok(middle(&times))
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>, _read: bool) -> Result<Option<Contender<'a>>> {
    Ok(None)
}

/// What the chain gives for one and the same step over and over.
pub(crate) const REPLAYED: u32 = 5;

fn ours_replayed<'a>(setup: &Setup<'a>) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(STEP)?.build()?;
    let cell = device.buffer::<u32>(1).host(HostAccess::ReadWrite).init(&[POISON])?;
    let stream = device.stream()?;
    let mut graph = device.graph();
    graph.launch(&kernel, [1, 1, 1], args![&cell, REPLAYED])?;
    let graph = graph.build()?;
    let mut word = POISON;
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let (time, ()) = timed(|| {
                let ticket = stream.replay(&graph)?;
                Ok(device.wait(ticket)?)
            })?;
            word = word.wrapping_mul(3).wrapping_add(REPLAYED);
            times.push(time);
        }
        check("onebuf", cell.read()?[0], word)?;
        Ok(middle(&times))
    }))
}

fn raw_replayed<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    if let Some(cuda) = &setup.cuda {
        return by_hand::replayed(cuda).map(Some);
    }
    let Some(raw) = &setup.raw else { return Ok(None) };
    let kernel = raw.kernel(STEP)?;
    let cell = setup.raw_buffer(raw, 4)?;
    cell.set_word(0, POISON);
    let set = raw.bind(&kernel, &[cell])?;
    let commands = raw.commands()?;
    raw.begin(commands, false)?;
    // The replay before this one is seen.
    raw.barrier(commands);
    raw.use_kernel(commands, &kernel);
    raw.use_set(commands, &kernel, set);
    raw.immediate(commands, &kernel, REPLAYED.to_ne_bytes());
    raw.dispatch(commands, [1, 1, 1]);
    raw.host_barrier(commands);
    raw.end(commands)?;
    let mut word = POISON;
    Ok(Some(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let (time, ()) = timed(|| {
                raw.submit(commands)?;
                raw.wait()
            })?;
            word = word.wrapping_mul(3).wrapping_add(REPLAYED);
            times.push(time);
        }
        check("hand-written Vulkan", cell.word(0), word)?;
        Ok(middle(&times))
    })))
}
