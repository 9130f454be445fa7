//! Random programs: the printed CUDA C++ and the SPIR-V must agree to the bit.
//!
//! | variable | meaning |
//! |---|---|
//! | `ONEBUF_DIFFERENTIAL` | how many programs, 2,000 without it |
//! | `ONEBUF_SEED` | the seed of the first, 1 without it |
//! | `ONEBUF_RECORD` | a file that says what has run: what it names is not run again |
//!
//! Each batch runs in a process of its own: what kills a compiler or a driver is found by halving, and named.

use std::{
    env,
    ops::Range,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use onebuf_differential::{
    case::Case,
    compare::compare,
    device::Runner,
    generate,
    host::{self, Sanitize},
    record::Record,
};

/// Programs that g++ takes in one piece.
const BATCH: u64 = 100;

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs these programs in a process of their own, and says what is wrong with which.
fn run_apart(seeds: Range<u64>) -> Vec<String> {
    let program = env::current_exe().expect("the path of this program");
    let child = Command::new(program)
        .args(["--exact", "random_programs_agree", "--nocapture"])
        .env("ONEBUF_BATCH", format!("{} {}", seeds.start, seeds.end))
        // Most of the time goes into lavapipe's compiler: narrow vectors and no optimization make it three times as fast
        // (Mesa 25.0, whose code for memory is much larger than that of 22.3). No program comes twice: keep none of them.
        .env("LP_NATIVE_VECTOR_WIDTH", "128")
        .env("GALLIVM_PERF", "nopt")
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .env("ONEBUF_CACHE_DIR", "off")
        .output()
        .expect("a process for a batch");
    let text = String::from_utf8_lossy(&child.stdout);
    if child.status.success() {
        return text.lines().filter_map(|line| line.strip_prefix("DIFFERENT ")).map(str::to_owned).collect();
    }
    if seeds.end - seeds.start > 1 {
        let middle = seeds.start + (seeds.end - seeds.start) / 2;
        let mut failures = run_apart(seeds.start..middle);
        failures.extend(run_apart(middle..seeds.end));
        if failures.is_empty() {
            failures.push(format!("seeds {} to {}: fail only together", seeds.start, seeds.end - 1));
        }
        return failures;
    }
    let log = format!("{text}\n{}", String::from_utf8_lossy(&child.stderr));
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(60)..].join("\n");
    vec![format!("seed {}: {}\n{tail}", seeds.start, child.status)]
}

/// What the test below does in such a process.
fn a_batch(batch: &str) {
    let (first, end) = batch.split_once(' ').expect("two numbers");
    let (first, end): (u64, u64) = (first.parse().unwrap(), end.parse().unwrap());
    // The address sanitizer makes code four times as long to compile: it watches every eighth batch.
    let sanitize = if (first / BATCH).is_multiple_of(8) { Sanitize::All } else { Sanitize::Arithmetic };
    let runner = Runner::open().unwrap_or_else(|error| panic!("{error:#}")).expect("the device of the run");
    let differences = compare(&runner, first..end, sanitize).unwrap_or_else(|error| panic!("{error:#}"));
    for difference in differences {
        println!("\nDIFFERENT {difference}");
    }
}

#[test]
fn random_programs_agree() {
    if let Ok(batch) = env::var("ONEBUF_BATCH") {
        return a_batch(&batch);
    }
    let count = number("ONEBUF_DIFFERENTIAL", 2_000);
    let first = number("ONEBUF_SEED", 1);
    let Some(runner) = Runner::open().unwrap_or_else(|error| panic!("{error:#}")) else { return };
    let device = runner.name().to_owned();
    drop(runner);
    let seeds = first..first + count;
    let record = match env::var_os("ONEBUF_RECORD") {
        Some(path) => Record::open(path.as_ref()).expect("a record that can be written"),
        None => Record::new(),
    };
    let batches: Vec<Range<u64>> = (seeds.start..seeds.end)
        .step_by(BATCH as usize)
        .map(|start| start..seeds.end.min(start + BATCH))
        .filter(|batch| !record.has(batch))
        .collect();
    let record = Mutex::new(record);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let failures = run_apart(batch.clone());
            let mut record = record.lock().unwrap();
            for failure in &failures {
                println!("{failure}");
            }
            record.add(batch, &device, failures).expect("a record that can be written");
            let (ran, failures) = (record.count(&seeds), record.failures.len());
            println!("{ran} of {count} programs, {failures} failures");
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    let record = record.into_inner().unwrap();
    let failures = &record.failures;
    println!("{} programs from seed {first} on {device}: {} failures", record.count(&seeds), failures.len());
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
