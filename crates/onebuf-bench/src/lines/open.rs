//! Line 7: memory of another process, 64 MiB of it, opened; opened again while it is open; and a kernel on it.
//!
//! A second process makes and holds the memory. Opening is timed until the buffer is there; a word of it is looked at, and
//! it is closed, without the clock. The hand-written side opens the same memory in turns, through the driver's calls alone.

use onebuf::{Buffer, DeviceUse, HandleKind, HostAccess, SharedBuffer, args};

use crate::error::{Error, Result, check};
use crate::lines::transfer::{GROUPS, INCREMENT};
use crate::lines::{Setup, Tick};
use crate::maker::{Maker, word};
use crate::measure::{Contender, Contest, WGPU, median, timed};
use crate::raw_cuda::RawCuda;
use crate::raw_open::Opened;
use crate::report::{Goal, Line, Title};

const WORDS: usize = 16 << 20;
/// More than a GPU's cache holds.
const GPU_WORDS: usize = 128 << 20;
const OPENS: usize = 4;
const AGAIN: usize = 1000;
const WAYS: [HandleKind; 4] =
    [HandleKind::OpaqueFd, HandleKind::CudaPool, HandleKind::CudaIpc, HandleKind::Memfd];

/// Line 7.
pub(crate) fn open(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let Some(start) = setup.second else {
        return Err(Error::Second("line 7 needs one; set `Plan::second`".into()));
    };
    let maker = Maker::start(setup.device, start)?;
    let mut lines = Vec::new();
    for way in WAYS {
        let Some(share) = maker.ask(way, WORDS)? else { continue };
        let native = way != HandleKind::Memfd;
        let title = |what: &str| Title { line: 7, name: format!("{}, {what}", way.name()), unit: "us" };
        let by_hand = setup.cuda.as_ref().filter(|_| native);
        let goal = match (by_hand, setup.is_software()) {
            // By hand there is nothing to it but the driver's calls.
            (Some(_), _) => Goal { raw: Some(1.05), ..Goal::default() },
            (None, true) => Goal { most: Some(100.0), ..Goal::default() },
            // Pages of the CPU's memory are locked one by one.
            (None, false) => Goal::default(),
        };
        let mut contest = Contest {
            ours: first(setup, &share)?,
            raw: by_hand.map(|raw| opened_by_hand(raw, &share)).transpose()?,
            peer: None,
            peer_name: WGPU,
            fours: 1,
        };
        lines.push(setup.measure(title("open"), goal, &mut contest, &mut *tick)?);
        let goal = Goal { most: Some(1.0), ..Goal::default() };
        let mut contest =
            Contest { ours: again(setup, &share)?, raw: None, peer: None, peer_name: WGPU, fours: 1 };
        lines.push(setup.measure(title("open again"), goal, &mut contest, &mut *tick)?);
        drop(share);
        let words = if setup.is_software() { WORDS } else { GPU_WORDS };
        let Some(share) = maker.ask(way, words)? else { continue };
        // A software driver's memory is the CPU's, whoever made it.
        let goal = match by_hand {
            Some(_) => Goal { faster: Some(1.0), noise: 0.05, ..Goal::default() },
            None => Goal::default(),
        };
        // SAFETY: the maker does not touch it any more.
        let opened = unsafe { setup.device.open_shared::<u32>(&share)? };
        let own = setup.device.buffer::<u32>(words).device_use(DeviceUse::Heavy).build()?;
        let mut contest = Contest {
            ours: kernel(setup, opened, word(words - 1))?,
            raw: None,
            peer: Some(kernel(setup, own, 0)?),
            peer_name: "local memory",
            fours: 1,
        };
        lines.push(setup.measure(title("kernel on it"), goal, &mut contest, &mut *tick)?);
    }
    Ok(lines)
}

/// One word of a buffer, by way of the device, so that no staging is made for a whole buffer.
struct Look<'a> {
    stream: onebuf::Stream,
    cell: Buffer<u32>,
    device: &'a onebuf::Device,
}

impl<'a> Look<'a> {
    fn new(setup: &Setup<'a>) -> Result<Look<'a>> {
        let device = setup.device;
        let cell = device.buffer::<u32>(1).host(HostAccess::ReadWrite).zeroed().build()?;
        Ok(Look { stream: device.stream()?, cell, device })
    }

    fn at(&self, buffer: &Buffer<u32>, index: usize) -> Result<u32> {
        let ticket = self.stream.copy(buffer.slice(index..=index)?, &self.cell)?;
        self.device.wait(ticket)?;
        Ok(self.cell.read()?[0])
    }
}

fn indexes() -> impl FnMut() -> usize {
    let mut index = 0usize;
    move || {
        index = (index + 7_654_321) % WORDS;
        index
    }
}

fn first<'a>(setup: &Setup<'a>, share: &SharedBuffer) -> Result<Contender<'a>> {
    let (device, share, look, mut next) = (setup.device, share.clone(), Look::new(setup)?, indexes());
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..OPENS {
            let before = device.memory().buffers;
            // SAFETY: the maker does not touch it any more.
            let (time, buffer) = timed(|| Ok(unsafe { device.open_shared::<u32>(&share)? }))?;
            let index = next();
            check("onebuf", look.at(&buffer, index)?, word(index))?;
            drop(buffer);
            device.wait_idle()?;
            device.trim();
            check("onebuf, in buffers left open,", device.memory().buffers, before)?;
            times.push(time);
        }
        Ok(median(&times).unwrap_or(f64::NAN))
    }))
}

fn opened_by_hand<'a>(raw: &'a RawCuda, share: &SharedBuffer) -> Result<Contender<'a>> {
    let (export, mut next) = (share.to_export()?, indexes());
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..OPENS {
            let (time, opened) = timed(|| Opened::new(raw.device(), &export))?;
            let index = next();
            check("CUDA by hand", opened.word(index)?, word(index))?;
            opened.close()?;
            times.push(time);
        }
        Ok(median(&times).unwrap_or(f64::NAN))
    }))
}

fn again<'a>(setup: &Setup<'a>, share: &SharedBuffer) -> Result<Contender<'a>> {
    let (device, share) = (setup.device, share.clone());
    // SAFETY: the maker does not touch it any more.
    let held = unsafe { device.open_shared::<u32>(&share)? };
    check("onebuf", Look::new(setup)?.at(&held, 12_345)?, word(12_345))?;
    Ok(Box::new(move || {
        let (time, same) = timed(|| {
            let mut same = true;
            for _ in 0..AGAIN {
                // SAFETY: as above.
                let buffer = unsafe { device.open_shared::<u32>(&share)? };
                same &= buffer.same_memory(&held);
            }
            Ok(same)
        })?;
        check("onebuf", same, true)?;
        Ok(time / AGAIN as f64)
    }))
}

/// A kernel that adds one to every word of a buffer, whose last one is `last`.
fn kernel<'a>(setup: &Setup<'a>, buffer: Buffer<u32>, mut last: u32) -> Result<Contender<'a>> {
    let (device, look) = (setup.device, Look::new(setup)?);
    let kernel = device.kernel(INCREMENT)?.build()?;
    let stream = device.stream()?;
    if last == 0 {
        let ticket = stream.fill(&buffer, 0u32)?;
        device.wait(ticket)?;
    }
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..OPENS {
            let (time, ()) = timed(|| {
                let ticket = stream.launch(&kernel, GROUPS, args![&buffer])?;
                Ok(device.wait(ticket)?)
            })?;
            last = last.wrapping_add(1);
            times.push(time);
        }
        check("onebuf", look.at(&buffer, buffer.len() - 1)?, last)?;
        Ok(median(&times).unwrap_or(f64::NAN))
    }))
}
