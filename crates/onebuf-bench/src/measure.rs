//! The method: contenders take turns, and what counts is the median of the ratios within a round.
//!
//! A machine drifts: its clock, its other users. Two times taken minutes apart compare the minutes. Within one round
//! each contender is sampled several times, in turns, so both sides of a ratio saw the same machine; the first contender
//! runs twice, as itself and as a control, whose ratio must read about 1. Each contender runs behind each other one
//! equally often, since it finds the caches and the driver's threads as the one before left them.
//!
//! A control does not vouch for everything. wgpu has a device of its own, with threads that the system places once for
//! the life of a process: a software driver's times differ by a factor of two with it, and controls read 1 all the while.
//! A ratio to wgpu therefore wants several processes.

use std::time::Instant;

use crate::error::Result;

/// A contender: each call does its work a few times and gives the time that one took, in the line's unit.
pub(crate) type Contender<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// Those who run a line.
pub(crate) struct Contest<'a> {
    pub(crate) ours: Contender<'a>,
    pub(crate) raw: Option<Contender<'a>>,
    pub(crate) peer: Option<Contender<'a>>,
    /// Who the peer is.
    pub(crate) peer_name: &'static str,
    /// Samples that each contender gives in a round, in fours.
    pub(crate) fours: usize,
}

/// What came out. Times are medians over the rounds, ratios are medians of the rounds' ratios.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) ours: f64,
    pub(crate) raw: Option<f64>,
    pub(crate) peer: Option<f64>,
    pub(crate) ratio_raw: Option<f64>,
    pub(crate) ratio_peer: Option<f64>,
    pub(crate) control: f64,
}

/// The peer of most lines.
pub(crate) const WGPU: &str = "wgpu";

const OURS: usize = 0;
const RAW: usize = 1;
const PEER: usize = 2;
const CONTROL: usize = 3;

/// Williams' design for four: in each row of four each one runs once, and over the rows each follows each other once.
const ORDER: [usize; 16] = [0, 1, 3, 2, 1, 2, 0, 3, 2, 3, 1, 0, 3, 0, 2, 1];

/// Runs the rounds, after two that do not count.
pub(crate) fn run(contest: &mut Contest<'_>, rounds: usize, mut tick: impl FnMut()) -> Result<Outcome> {
    const WARM_UP: usize = 2;
    let mut medians: [Vec<f64>; 4] = Default::default();
    for round in 0..WARM_UP + rounds {
        let mut taken: [Vec<f64>; 4] = Default::default();
        for who in ORDER.into_iter().cycle().take(16 * contest.fours.max(1)) {
            let contender = match who {
                RAW => contest.raw.as_mut(),
                PEER => contest.peer.as_mut(),
                _ => Some(&mut contest.ours),
            };
            if let Some(contender) = contender {
                taken[who].push(contender()?);
            }
        }
        if round >= WARM_UP {
            for (all, taken) in medians.iter_mut().zip(&taken) {
                all.extend(median(taken));
            }
        }
        tick();
    }
    let ratio = |top: usize, bottom: usize| {
        let ratios: Vec<f64> =
            medians[top].iter().zip(&medians[bottom]).map(|(top, bottom)| top / bottom).collect();
        median(&ratios)
    };
    Ok(Outcome {
        ours: median(&medians[OURS]).unwrap_or(f64::NAN),
        raw: median(&medians[RAW]),
        peer: median(&medians[PEER]),
        ratio_raw: ratio(OURS, RAW),
        ratio_peer: ratio(OURS, PEER),
        control: ratio(OURS, CONTROL).unwrap_or(f64::NAN),
    })
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Times one piece of work, in microseconds.
pub(crate) fn timed<R>(work: impl FnOnce() -> Result<R>) -> Result<(f64, R)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed().as_secs_f64() * 1e6, result))
}

/// Times what the calling thread itself does, in microseconds: what a call costs the CPU. Other threads, of the driver or
/// of somebody else, may run in between; on a machine with few cores they would be most of the time on the wall.
pub(crate) fn cpu_timed<R>(work: impl FnOnce() -> Result<R>) -> Result<(f64, R)> {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
    };
    let start = now();
    let result = work()?;
    Ok((now() - start, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine slows down by a factor of two each round; the ratio does not see it.
        let clock = std::cell::Cell::new(1.0);
        let contender = |speed: f64| -> Contender<'_> { Box::new(|| Ok(clock.get())).scaled(speed) };
        let mut contest = Contest {
            ours: contender(1.0),
            raw: Some(contender(2.0)),
            peer: None,
            peer_name: WGPU,
            fours: 1,
        };
        let outcome = run(&mut contest, 10, || clock.set(clock.get() * 2.0)).unwrap();
        assert_eq!(outcome.ratio_raw, Some(0.5));
        assert_eq!(outcome.control, 1.0);
        assert_eq!(outcome.ratio_peer, None);
    }

    trait Scaled<'a> {
        fn scaled(self, factor: f64) -> Contender<'a>;
    }

    impl<'a, F: Fn() -> Result<f64> + 'a> Scaled<'a> for Box<F> {
        fn scaled(self, factor: f64) -> Contender<'a> {
            Box::new(move || self().map(|time| time * factor))
        }
    }
}
