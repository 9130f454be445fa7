//! Line 3: what replaying a graph costs the CPU, whatever its size.
//!
//! The clock is that of the calling thread, and runs while the graph is handed to the driver; that it is done is waited
//! for without it. The nodes go round over ten buffers, as in line 2.

use onebuf::{Buffer, HostAccess, args};

use crate::error::{Result, check};
use crate::lines::{STEP, Setup, Tick, by_hand};
use crate::measure::{Contender, Contest, WGPU, cpu_timed, median, timed};
use crate::report::{Goal, Line, Title};

const SPREAD: usize = 10;

/// Line 3.
pub(crate) fn replay(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (nodes, name) in [(10, "a graph of 10 nodes, replayed"), (1000, "a graph of 1,000 nodes, replayed")] {
        let title = Title { line: 3, name: name.into(), unit: "us" };
        let most = setup.is_software().then_some(10.0);
        let raw_ratio = (!setup.is_software()).then_some(1.05);
        let goal = Goal { most, raw: raw_ratio, ..Goal::default() };
        let mut contest = Contest {
            ours: ours(setup, nodes, false)?,
            raw: raw(setup, nodes)?,
            peer: peer(setup, nodes)?,
            peer_name: WGPU,
            fours: 1,
        };
        lines.push(setup.measure(title, goal, &mut contest, tick)?);
    }
    if let Some(cuda) = &setup.cuda {
        let title = Title { line: 3, name: "each of 1,000 nodes, to the end".into(), unit: "us" };
        let goal = Goal { most: Some(0.8), raw: Some(1.05), ..Goal::default() };
        let mut contest = Contest {
            ours: ours(setup, 1000, true)?,
            raw: Some(by_hand::graph(cuda, 1000, true)?),
            peer: None,
            peer_name: WGPU,
            fours: 1,
        };
        lines.push(setup.measure(title, goal, &mut contest, tick)?);
    }
    Ok(lines)
}

fn poison() -> [u32; SPREAD] {
    std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 + 1))
}

/// Replays in a sample.
pub(crate) fn replays(nodes: u32) -> usize {
    if nodes < 100 { 15 } else { 3 }
}

/// What a replay leaves in the words.
pub(crate) fn follow(words: &mut [u32; SPREAD], nodes: u32) {
    for k in 0..nodes {
        let word = &mut words[k as usize % SPREAD];
        *word = word.wrapping_mul(3).wrapping_add(k);
    }
}

/// What a replay costs the CPU, or where `to_its_end`, what each node takes on the wall.
fn ours<'a>(setup: &Setup<'a>, nodes: u32, to_its_end: bool) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(STEP)?.build()?;
    let cells: Vec<Buffer<u32>> = poison()
        .into_iter()
        .map(|word| device.buffer(1).host(HostAccess::ReadWrite).init(&[word]))
        .collect::<Result<_, _>>()?;
    let stream = device.stream()?;
    let mut graph = device.graph();
    for k in 0..nodes {
        graph.launch(&kernel, [1, 1, 1], args![&cells[k as usize % SPREAD], k])?;
    }
    let graph = graph.build()?;
    let mut words = poison();
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..replays(nodes) {
            let time = if to_its_end {
                let (time, ()) = timed(|| {
                    let ticket = stream.replay(&graph)?;
                    Ok(device.wait(ticket)?)
                })?;
                time / f64::from(nodes)
            } else {
                let (time, ticket) = cpu_timed(|| Ok(stream.replay(&graph)?))?;
                device.wait(ticket)?;
                time
            };
            follow(&mut words, nodes);
            times.push(time);
        }
        for (cell, word) in cells.iter().zip(words) {
            check("onebuf", cell.read()?[0], word)?;
        }
        Ok(median(&times).unwrap_or(f64::NAN))
    }))
}

fn raw<'a>(setup: &'a Setup<'_>, nodes: u32) -> Result<Option<Contender<'a>>> {
    if let Some(cuda) = &setup.cuda {
        return by_hand::graph(cuda, nodes, false).map(Some);
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
    raw.begin(commands, false)?;
    raw.use_kernel(commands, &kernel);
    for k in 0..nodes {
        let turn = k as usize % SPREAD;
        if turn == 0 {
            raw.barrier(commands);
        }
        raw.use_set(commands, &kernel, cells[turn].1);
        raw.immediate(commands, &kernel, k.to_ne_bytes());
        raw.dispatch(commands, [1, 1, 1]);
    }
    raw.host_barrier(commands);
    raw.end(commands)?;
    let mut words = poison();
    Ok(Some(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..replays(nodes) {
            let (time, ()) = cpu_timed(|| raw.submit(commands))?;
            raw.wait()?;
            follow(&mut words, nodes);
            times.push(time);
        }
        for ((cell, _), word) in cells.iter().zip(words) {
            check("hand-written Vulkan", cell.word(0), word)?;
        }
        Ok(median(&times).unwrap_or(f64::NAN))
    })))
}

/// wgpu has no replay: its users encode anew.
#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>, nodes: u32) -> Result<Option<Contender<'a>>> {
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
    let mut words = poison();
    Ok(Some(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..replays(nodes) {
            let (time, submission) = cpu_timed(|| {
                let mut encoder = peer.encoder();
                let launches = (0..nodes).map(|k| (&cells[k as usize % SPREAD].1, Some(k.to_ne_bytes())));
                peer.launch_all(&mut encoder, &kernel, [1, 1, 1], launches);
                Ok(peer.submit(encoder))
            })?;
            peer.wait(submission)?;
            follow(&mut words, nodes);
            times.push(time);
        }
        for ((cell, _), word) in cells.iter().zip(words) {
            check("wgpu", peer.words(cell, &staging)?, vec![word])?;
        }
        Ok(median(&times).unwrap_or(f64::NAN))
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>, _nodes: u32) -> Result<Option<Contender<'a>>> {
    Ok(None)
}
