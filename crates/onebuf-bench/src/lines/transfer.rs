//! Line 5: 64 MiB from the CPU to the device and back.
//!
//! The clock runs while the data is on its way: from the moment when the CPU has it ready until the device may start,
//! and from the moment when the device is done until the CPU may look. Making the data, the kernel, and looking at each
//! word happen without it. onebuf's data is made in the buffer and looked at in the buffer; wgpu's is copied from and to
//! memory of the program, by way of its staging.

use onebuf::{Buffer, DeviceUse, HostAccess, Semantic, args};

use crate::error::{Error, Result, check};
use crate::lines::{Setup, Tick, by_hand};
use crate::measure::{Contender, Contest, WGPU, timed};
use crate::raw_cuda::RawCuda;
use crate::report::{Goal, Line, Title};

pub(crate) const INCREMENT: &str = include_str!("../../shaders/increment.wgsl");
pub(crate) const WORDS: usize = 16 << 20;
pub(crate) const GROUPS: [u32; 3] = [2048, 1, 1];

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
    let mut lines = vec![setup.measure(title, goal, &mut contest, tick)?];
    if let Some(cuda) = &setup.cuda {
        lines.extend(on_cuda(setup, cuda, tick)?);
    }
    Ok(lines)
}

/// Where data is copied, because the device uses it often, and where pages move.
fn on_cuda(setup: &Setup<'_>, cuda: &RawCuda, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = |name: &str| Title { line: 5, name: name.into(), unit: "us" };
    // By hand it is the link itself.
    let goal = Goal { raw: Some(1.03), ..Goal::default() };
    let mut contest = Contest {
        ours: copies(setup)?,
        raw: Some(by_hand::copies(cuda)?),
        peer: None,
        peer_name: WGPU,
        fours: 1,
    };
    let copied = setup.measure(title("64 MiB copied, there and back"), goal, &mut contest, tick)?;
    let goal = Goal { raw: Some(1.11), faster: Some(6.0), ..Goal::default() };
    let mut contest = Contest {
        ours: unified(setup)?,
        raw: Some(by_hand::copied_in(cuda)?),
        peer: Some(by_hand::paged_in(cuda)?),
        peer_name: "paging by hand",
        fours: 1,
    };
    let unified = setup.measure(title("64 MiB unified, kernel and wait"), goal, &mut contest, tick)?;
    Ok(vec![copied, unified])
}

/// Between a page-locked buffer and the device's.
fn copies<'a>(setup: &Setup<'a>) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(INCREMENT)?.build()?;
    let host =
        device.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).require(Semantic::HostMapped).build()?;
    let own = device.buffer::<u32>(WORDS).device_use(DeviceUse::Heavy).build()?;
    let stream = device.stream()?;
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        make(&mut host.overwrite()?, round);
        let (there, ()) = timed(|| {
            let ticket = stream.copy(&host, &own)?;
            Ok(device.wait(ticket)?)
        })?;
        let ticket = stream.launch(&kernel, GROUPS, args![&own])?;
        device.wait(ticket)?;
        host.overwrite()?.fill(0);
        let (back, ()) = timed(|| {
            let ticket = stream.copy(&own, &host)?;
            Ok(device.wait(ticket)?)
        })?;
        look("onebuf", &host.read()?, round)?;
        Ok(there + back)
    }))
}

/// A kernel on unified memory that the CPU has just written.
fn unified<'a>(setup: &Setup<'a>) -> Result<Contender<'a>> {
    let device = setup.device;
    let kernel = device.kernel(INCREMENT)?.build()?;
    let words = device.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).require(Semantic::Unified).build()?;
    let stream = device.stream()?;
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        make(&mut words.overwrite()?, round);
        let (time, ()) = timed(|| {
            let ticket = stream.launch(&kernel, GROUPS, args![&words])?;
            Ok(device.wait(ticket)?)
        })?;
        look("onebuf", &words.read()?, round)?;
        Ok(time)
    }))
}

/// The word at an index in a round: never zero, and another one each round.
fn word(index: usize, round: u32) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(round)
}

pub(crate) fn make(words: &mut [u32], round: u32) {
    for (index, slot) in words.iter_mut().enumerate() {
        *slot = word(index, round);
    }
}

/// An error unless each word is one more than it was made.
pub(crate) fn look(who: &'static str, words: &[u32], round: u32) -> Result<()> {
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
