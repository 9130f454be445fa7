//! Line 6: a buffer of 1 MiB made and dropped, with its memory from the pool.
//!
//! The clock is that of the calling thread. Beside it stands what a program without a pool does: a buffer, memory for it, and both gone again; on CUDA, what one with the driver's pool does.

use onebuf::{Buffer, HostAccess};

use crate::error::{Result, check};
use crate::lines::{Setup, Tick, by_hand};
use crate::measure::{Contender, Contest, WGPU, cpu_timed};
use crate::report::{Goal, Line, Title};

const BYTES: usize = 1 << 20;
const LIVES: usize = 200;

/// Line 6.
pub(crate) fn pool(setup: &Setup<'_>, tick: Tick<'_>) -> Result<Vec<Line>> {
    let title = Title { line: 6, name: "pooled alloc and free, 1 MiB".into(), unit: "us" };
    let most = if setup.cuda.is_some() { 0.7 } else { 0.5 };
    let goal = Goal { most: Some(most), ..Goal::default() };
    let mut contest =
        Contest { ours: ours(setup)?, raw: raw(setup)?, peer: peer(setup)?, peer_name: WGPU, fours: 1 };
    Ok(vec![setup.measure(title, goal, &mut contest, tick)?])
}

fn ours<'a>(setup: &Setup<'a>) -> Result<Contender<'a>> {
    let device = setup.device;
    let build = move || device.buffer::<u8>(BYTES).host(HostAccess::ReadWrite).build();
    // Two buffers at once are two memories: what comes from the pool is nobody else's.
    let (a, b): (Buffer<u8>, Buffer<u8>) = (build()?, build()?);
    a.overwrite()?.fill(1);
    b.overwrite()?.fill(2);
    check("onebuf", (a.read()?[BYTES - 1], b.read()?[BYTES - 1]), (1, 2))?;
    drop((a, b));
    Ok(Box::new(move || {
        let hits = device.memory().pool.hits;
        let (time, ()) = cpu_timed(|| {
            for _ in 0..LIVES {
                std::hint::black_box(build()?);
            }
            Ok(())
        })?;
        check("onebuf, in hits of the pool,", device.memory().pool.hits - hits, LIVES as u64)?;
        Ok(time / LIVES as f64)
    }))
}

fn raw<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    if let Some(cuda) = &setup.cuda {
        return by_hand::pool(cuda, BYTES as u64, LIVES).map(Some);
    }
    let Some(raw) = &setup.raw else { return Ok(None) };
    Ok(Some(Box::new(move || {
        let (time, ()) = cpu_timed(|| {
            for _ in 0..LIVES / 10 {
                setup.raw_life(raw, BYTES as u64)?;
            }
            Ok(())
        })?;
        Ok(time / (LIVES / 10) as f64)
    })))
}

#[cfg(feature = "wgpu")]
fn peer<'a>(setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    let Some(peer) = &setup.peer else { return Ok(None) };
    Ok(Some(Box::new(move || {
        let (time, ()) = cpu_timed(|| {
            for _ in 0..LIVES / 10 {
                std::hint::black_box(peer.buffer(BYTES as u64));
            }
            Ok(())
        })?;
        peer.wait(peer.queue.submit([]))?;
        Ok(time / (LIVES / 10) as f64)
    })))
}

#[cfg(not(feature = "wgpu"))]
fn peer<'a>(_setup: &'a Setup<'_>) -> Result<Option<Contender<'a>>> {
    Ok(None)
}
