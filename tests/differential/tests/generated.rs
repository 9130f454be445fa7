//! Random programs: the printed CUDA C++ and the SPIR-V must agree to the bit.
//!
//! `ONEBUF_DIFFERENTIAL` is the number of programs (2,000 without it), `ONEBUF_SEED` the seed of the first.

use std::{
    collections::BTreeMap,
    env,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Result;
use onebuf_differential::{
    case::{Case, Outcome},
    generate,
    host::{self, Sanitize},
    layout::{self, Layout},
    required,
    vulkan::Runner,
};

/// Programs that g++ takes in one piece.
const BATCH: usize = 50;

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Where two outcomes differ, in bytes that are data.
fn difference(case: &Case, host: &Outcome, vulkan: &Outcome) -> Option<String> {
    let layout = Layout::of(&case.source);
    for ((binding, host), vulkan) in case.kernel.interface().bindings.iter().zip(host).zip(vulkan) {
        let data = layout.data_bytes(&binding.name, host.len());
        for at in (0..host.len()).filter(|&at| data[at]) {
            if host[at] != vulkan[at] && !layout::both_zero(host, vulkan, at) {
                return Some(format!(
                    "{}: byte {at}: CPU {:#04x}, Vulkan {:#04x}",
                    binding.name, host[at], vulkan[at]
                ));
            }
        }
    }
    None
}

#[test]
fn random_programs_agree() {
    let count = number("ONEBUF_DIFFERENTIAL", 2_000);
    let first = number("ONEBUF_SEED", 1);
    let mut runner = match Runner::open() {
        Ok(runner) => runner,
        Err(error) => {
            assert!(!required("vulkan"), "ONEBUF_REQUIRE names vulkan: {error:#}");
            println!("not run: {error:#}");
            return;
        }
    };
    let cases: Vec<Case> = (first..first + count)
        .map(|seed| generate::case(seed).unwrap_or_else(|error| panic!("{error:#}")))
        .collect();
    let batches: Vec<Vec<&Case>> = cases.chunks(BATCH).map(|batch| batch.iter().collect()).collect();
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(2, |cores| cores.get());
    let hosts: BTreeMap<usize, Result<Vec<Outcome>>> = thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(batch) = batches.get(index) else { return done };
                // The address sanitizer makes code four times as long to compile: it watches every eighth batch.
                let sanitize = if index % 8 == 0 { Sanitize::All } else { Sanitize::Arithmetic };
                done.push((index, host::run(batch, sanitize)));
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut failures = Vec::new();
    for (index, outcomes) in hosts {
        let batch = &batches[index];
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                failures.push(format!("batch {index}: {error:#}"));
                continue;
            }
        };
        let vulkan = runner.run(batch).unwrap();
        for ((case, host), vulkan) in batch.iter().zip(&outcomes).zip(&vulkan) {
            if let Some(difference) = difference(case, host, vulkan) {
                failures.push(format!("{}: {difference}", case.name));
            }
        }
    }
    println!("{count} programs from seed {first} on {}: {} failures", runner.name(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Programs do something: their results depend on their inputs, and differ from one another.
#[test]
fn random_programs_are_not_trivial() {
    let cases: Vec<Case> = (1..41).map(|seed| generate::case(seed).unwrap()).collect();
    let outcomes = host::run(&cases.iter().collect::<Vec<_>>(), Sanitize::Off).unwrap();
    let mut digests = Vec::new();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        let out = case.kernel.interface().position("out").unwrap();
        digests.push(u32::from_le_bytes(outcome[out][..4].try_into().unwrap()));
    }
    digests.sort_unstable();
    digests.dedup();
    assert!(digests.len() > 35, "{digests:?}");
}
