//! Generated cases that can be had again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::lab;

/// The variable that names one seed to run alone.
pub const SEED_VARIABLE: &str = "ONEBUF_TEST_SEED";

/// Runs `case` for `count` seeds, the same each time. The seed of a failure is printed.
pub fn each(count: u64, case: impl FnMut(&mut Rng)) {
    each_within(count, Duration::MAX, case);
}

/// [`each`], until `limit` has passed. Returns how many seeds were run.
pub fn each_within(count: u64, limit: Duration, mut case: impl FnMut(&mut Rng)) -> u64 {
    let (start, mut done) = (Instant::now(), 0);
    let only = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        if start.elapsed() > limit {
            break;
        }
        done += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&mut Rng::with_seed(seed))));
        if let Err(panic) = outcome {
            lab::say(&format!("failed for {SEED_VARIABLE}={seed}"));
            resume_unwind(panic);
        }
    }
    done
}
