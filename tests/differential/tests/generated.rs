//! Random programs: the printed CUDA C++ and the SPIR-V must agree to the bit.
//!
//! `ONEBUF_DIFFERENTIAL` is the number of programs (2,000 without it), `ONEBUF_SEED` the seed of the first.

use std::{
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

/// Runs the programs of some seeds both ways, and says what is wrong.
fn compare(runner: &mut Runner, seeds: &[u64], sanitize: Sanitize) -> Result<Vec<String>> {
    let cases = seeds.iter().map(|&seed| generate::case(seed)).collect::<Result<Vec<Case>>>()?;
    let cases: Vec<&Case> = cases.iter().collect();
    let host = host::run(&cases, sanitize)?;
    let vulkan = runner.run(&cases)?;
    let differences = cases.iter().zip(&host).zip(&vulkan).filter_map(|((case, host), vulkan)| {
        difference(case, host, vulkan).map(|difference| format!("{}: {difference}", case.name))
    });
    Ok(differences.collect())
}

#[test]
fn random_programs_agree() {
    let count = number("ONEBUF_DIFFERENTIAL", 2_000);
    let first = number("ONEBUF_SEED", 1);
    let device = match Runner::open() {
        Ok(runner) => runner.name().to_owned(),
        Err(error) => {
            assert!(!required("vulkan"), "ONEBUF_REQUIRE names vulkan: {error:#}");
            println!("not run: {error:#}");
            return;
        }
    };
    let seeds: Vec<u64> = (first..first + count).collect();
    let batches: Vec<&[u64]> = seeds.chunks(BATCH).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut runner = Runner::open().unwrap_or_else(|error| panic!("{error:#}"));
        let mut failures = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(batch) = batches.get(index) else { return failures };
            // The address sanitizer makes code four times as long to compile: it watches every eighth batch.
            let sanitize = if index.is_multiple_of(8) { Sanitize::All } else { Sanitize::Arithmetic };
            match compare(&mut runner, batch, sanitize) {
                Ok(found) => failures.extend(found),
                Err(error) => {
                    failures.push(format!("seeds {} to {}: {error:#}", batch[0], batch[batch.len() - 1]))
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(2, |cores| cores.get());
    let failures: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("{count} programs from seed {first} on {device}: {} failures", failures.len());
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
