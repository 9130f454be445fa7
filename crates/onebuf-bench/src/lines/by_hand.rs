//! The lines in CUDA by hand, each the same steps as onebuf takes.

use crate::error::{Error, Result, check};
use crate::lines::launch::{Chain, LAUNCHES, POISON, REPLAYED, middle};
use crate::lines::record::{self, SPREAD};
use crate::lines::{STEP, graph, transfer};
use crate::measure::{Contender, cpu_timed, median, timed};
use crate::raw_cuda::{CudaBuffer, CudaKernel, RawCuda};

const WHO: &str = "CUDA by hand";

/// A word in page-locked memory, and the kernel that steps it.
fn cell(raw: &RawCuda) -> Result<(CudaKernel, CudaBuffer)> {
    let (kernel, cell) = (raw.kernel(STEP)?, raw.pinned(4)?);
    cell.set_word(POISON);
    Ok((kernel, cell))
}

/// Lines 1 and 4. The read of mapped memory is one load, so both do it.
pub(crate) fn tiny(raw: &RawCuda) -> Result<Contender<'_>> {
    let (kernel, cell) = cell(raw)?;
    let mut chain = Chain::new();
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let k = chain.next();
            let (time, word) = timed(|| {
                raw.launch(&kernel, &cell, k, 1)?;
                raw.wait()?;
                Ok(cell.word())
            })?;
            check(WHO, word, chain.word)?;
            times.push(time);
        }
        Ok(middle(&times))
    }))
}

/// Line 1, recorded once.
pub(crate) fn replayed(raw: &RawCuda) -> Result<Contender<'_>> {
    let (kernel, cell) = cell(raw)?;
    let graph = raw.graph(&kernel, &[(cell, REPLAYED, None)])?;
    let mut word = POISON;
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..LAUNCHES {
            let (time, ()) = timed(|| {
                raw.replay(graph)?;
                raw.wait()
            })?;
            word = word.wrapping_mul(3).wrapping_add(REPLAYED);
            times.push(time);
        }
        check(WHO, cell.word(), word)?;
        Ok(middle(&times))
    }))
}

fn cells(raw: &RawCuda) -> Result<Vec<CudaBuffer>> {
    record::poison()
        .into_iter()
        .map(|word| {
            let cell = raw.pinned(4)?;
            cell.set_word(word);
            Ok(cell)
        })
        .collect()
}

fn check_cells(cells: &[CudaBuffer], words: [u32; SPREAD]) -> Result<()> {
    cells.iter().zip(words).try_for_each(|(cell, word)| check(WHO, cell.word(), word))
}

/// Line 2. A stream keeps its order, so nothing is needed for it.
pub(crate) fn record(raw: &RawCuda) -> Result<Contender<'_>> {
    let (kernel, cells) = (raw.kernel(STEP)?, cells(raw)?);
    let (mut base, mut words) = (0u32, record::poison());
    Ok(Box::new(move || {
        base = base.wrapping_add(7);
        let (time, ()) = cpu_timed(|| {
            for k in 0..record::LAUNCHES {
                raw.launch(&kernel, &cells[k as usize % SPREAD], base.wrapping_add(k), 1)?;
            }
            Ok(())
        })?;
        raw.wait()?;
        record::follow(&mut words, base);
        check_cells(&cells, words)?;
        Ok(time / f64::from(record::LAUNCHES))
    }))
}

/// Line 3: what a replay costs the CPU, or where `to_its_end`, what each node takes on the wall.
pub(crate) fn graph(raw: &RawCuda, nodes: u32, to_its_end: bool) -> Result<Contender<'_>> {
    let (kernel, cells) = (raw.kernel(STEP)?, cells(raw)?);
    let described: Vec<_> =
        (0..nodes as usize).map(|k| (cells[k % SPREAD], k as u32, k.checked_sub(SPREAD))).collect();
    let graph = raw.graph(&kernel, &described)?;
    let mut words = record::poison();
    Ok(Box::new(move || {
        let mut times = Vec::new();
        for _ in 0..graph::replays(nodes) {
            let time = if to_its_end {
                let (time, ()) = timed(|| {
                    raw.replay(graph)?;
                    raw.wait()
                })?;
                time / f64::from(nodes)
            } else {
                cpu_timed(|| raw.replay(graph))?.0
            };
            raw.wait()?;
            graph::follow(&mut words, nodes);
            times.push(time);
        }
        check_cells(&cells, words)?;
        Ok(median(&times).unwrap_or(f64::NAN))
    }))
}

/// Line 5: there and back, by the copy engines, between page-locked memory and the device's.
pub(crate) fn copies(raw: &RawCuda) -> Result<Contender<'_>> {
    let bytes = 4 * transfer::WORDS as u64;
    let kernel = raw.kernel(transfer::INCREMENT)?;
    let (mut host, device) = (raw.pinned(bytes)?, raw.own(bytes)?);
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        transfer::make(host.words(), round);
        let (there, ()) = timed(|| {
            raw.copy(&host, &device)?;
            raw.wait()
        })?;
        raw.launch(&kernel, &device, 0, transfer::GROUPS[0])?;
        raw.wait()?;
        host.words().fill(POISON);
        let (back, ()) = timed(|| {
            raw.copy(&device, &host)?;
            raw.wait()
        })?;
        transfer::look(WHO, host.words(), round)?;
        Ok(there + back)
    }))
}

/// Line 5: a kernel on data that the CPU has just made in page-locked memory, and a copy brings.
pub(crate) fn copied_in(raw: &RawCuda) -> Result<Contender<'_>> {
    let bytes = 4 * transfer::WORDS as u64;
    let kernel = raw.kernel(transfer::INCREMENT)?;
    let (mut host, device) = (raw.pinned(bytes)?, raw.own(bytes)?);
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        transfer::make(host.words(), round);
        let (time, ()) = timed(|| {
            raw.copy(&host, &device)?;
            raw.launch(&kernel, &device, 0, transfer::GROUPS[0])?;
            raw.wait()
        })?;
        raw.copy(&device, &host)?;
        raw.wait()?;
        transfer::look(WHO, host.words(), round)?;
        Ok(time)
    }))
}

/// Line 5: a kernel on managed memory that the CPU has just written, whose pages come as it touches them.
pub(crate) fn paged_in(raw: &RawCuda) -> Result<Contender<'_>> {
    let kernel = raw.kernel(transfer::INCREMENT)?;
    let mut managed = raw.managed(4 * transfer::WORDS as u64)?;
    let mut round = 0;
    Ok(Box::new(move || {
        round += 1;
        transfer::make(managed.words(), round);
        let (time, ()) = timed(|| {
            raw.launch(&kernel, &managed, 0, transfer::GROUPS[0])?;
            raw.wait()
        })?;
        transfer::look(WHO, managed.words(), round)?;
        Ok(time)
    }))
}

/// Line 6, by the driver's own pool.
pub(crate) fn pool(raw: &RawCuda, bytes: u64, lives: usize) -> Result<Contender<'_>> {
    raw.keep_pool()?;
    raw.allocate_and_free(bytes)?;
    raw.wait()?;
    Ok(Box::new(move || {
        let (time, ()) = cpu_timed(|| (0..lives).try_for_each(|_| raw.allocate_and_free(bytes)))?;
        raw.wait()?;
        if time.is_finite() { Ok(time / lives as f64) } else { Err(Error::Raw("no time".into())) }
    }))
}
