//! Line 5: 64 MiB from the CPU to the device and back.
//!
//! The clock runs while the data is on its way: from the moment when the CPU has it ready until the device may start,
//! and from the moment when the device is done until the CPU may look. Making the data, the kernel, and looking at each
//! word happen without it. onebuf's data is made in the buffer and looked at in the buffer; wgpu's is copied from and to
//! memory of the program, by way of its staging.

use onebuf::{Buffer, HostAccess, args};

use crate::error::{Error, Result, check};
use crate::lines::{Setup, Tick};
use crate::measure::{Contender, Contest, WGPU, timed};
use crate::report::{Goal, Line, Title};

const INCREMENT: &str = include_str!("../../shaders/increment.wgsl");
const WORDS: usize = 16 << 20;
const GROUPS: [u32; 3] = [2048, 1, 1];

/// Line 5.
pub(crate) fn transfer(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = Title { line: 5, name: "64 MiB to the device and back".into(), unit: "us" };
    let goal = if setup.is_software() {
        Goal { most: Some(100.0), faster: Some(50.0), ..Goal::default() }
    } else {
        Goal { faster: Some(1.0), ..Goal::default() }
    };
    let mut contest =
        Contest { ours: ours(setup)?, raw: None, peer: peer(setup)?, peer_name: WGPU, fours: 1 };
    Ok(vec![setup.measure(title, goal, &mut contest, tick)?])
}

/// The word at an index in a round: never zero, and another one each round.
fn word(index: usize, round: u32) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(round)
}

fn make(words: &mut [u32], round: u32) {
    for (index, slot) in words.iter_mut().enumerate() {
        *slot = word(index, round);
    }
}

/// An error unless each word is one more than it was made.
fn look(who: &'static str, words: &[u32], round: u32) -> Result<()> {
    check(who, words.len(), WORDS)?;
    let wrong = words.iter().enumerate().find(|&(index, &found)| found != word(index, round).wrapping_add(1));
    let Some((index, found)) = wrong else { return Ok(()) };
    Err(Error::Wrong { who, what: format!("word {index} is {found:#x}") })
}

fn ours<'a>(setup: &Setup<'a>) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(INCREMENT)?.build()?;
    let words: Buffer<u32> = device.buffer(WORDS).host(HostAccess::ReadWrite).zeroed().build()?;
    let stream = device.stream()?;
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        let copied = device.copied_bytes();
        let (open, mut guard) = timed(|| Ok(words.overwrite()?))?;
        make(&mut guard, round);
        let (close, ()) = timed(|| Ok(guard.finish()?))?;
        let ticket = stream.launch(&kernel, GROUPS, args![&words])?;
        device.wait(ticket)?;
        let (read, guard) = timed(|| Ok(words.read()?))?;
        look("onebuf", &guard, round)?;
        let (end, ()) = timed(|| {
            drop(guard);
            Ok(())
        })?;
        if !words.placement().staged {
            check("onebuf, in bytes copied,", device.copied_bytes() - copied, 0)?;
        }
        Ok(open + close + read + end)
    }))
}

#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    let Some(peer) = &setup.peer else { return Ok(None) };
    let kernel = peer.kernel(INCREMENT);
    let bytes = 4 * WORDS as u64;
    let (buffer, staging) = (peer.buffer(bytes), peer.staging(bytes));
    let group = peer.bind(&kernel, &[&buffer]);
    let mut words = vec![0u32; WORDS];
    let mut round = 0;
    Ok(Some(Box::new(move || {
        round += 1;
        make(&mut words, round);
        let (there, ()) = timed(|| {
            peer.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&words));
            peer.wait(peer.queue.submit([]))
        })?;
        let mut encoder = peer.encoder();
        peer.launch(&mut encoder, &kernel, &group, None, GROUPS);
        peer.wait(peer.submit(encoder))?;
        let start = std::time::Instant::now();
        let mut encoder = peer.encoder();
        encoder.copy_buffer_to_buffer(&buffer, 0, &staging, 0, bytes);
        let submission = peer.submit(encoder);
        let (back, looked) = peer.map(&staging, submission, |bytes| {
            // The mapped bytes are usable from here on.
            let back = start.elapsed().as_secs_f64() * 1e6;
            (back, look("wgpu", bytemuck::cast_slice(bytes), round))
        })?;
        looked?;
        Ok(there + back)
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    Ok(None)
}
