//! What a process holds: descriptors, threads, memory.

use std::fs;
use std::time::{Duration, Instant};

/// Open file descriptors.
pub fn descriptors() -> usize {
    // The listing itself holds one.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Threads.
pub fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Threads whose name begins so.
pub fn threads_named(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name)))
        .count()
}

/// Physical memory in use, in bytes.
pub fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Physical memory in use, in bytes.
    pub resident_bytes: u64,
}

impl Holdings {
    /// What this process holds now.
    pub fn now() -> Holdings {
        Holdings { descriptors: descriptors(), threads: threads(), resident_bytes: resident_bytes() }
    }
}

/// Runs `cycles` until a run leaves no more descriptors and threads than it found, and less than `more_bytes` more memory;
/// at most `runs` times. What a driver makes once and keeps shows in the first runs, a leak in all of them.
///
/// # Panics
/// Where every run left more than it found.
#[track_caller]
pub fn settles(runs: usize, more_bytes: u64, mut cycles: impl FnMut()) {
    let mut seen = vec![Holdings::now()];
    for _ in 0..runs {
        let before = Holdings::now();
        cycles();
        // A driver's threads and descriptors may take a moment to go.
        let start = Instant::now();
        let settled = loop {
            let after = Holdings::now();
            let settled = after.descriptors <= before.descriptors && after.threads <= before.threads;
            if settled || start.elapsed() > Duration::from_secs(2) {
                break settled;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let after = Holdings::now();
        seen.push(after);
        if settled && after.resident_bytes.saturating_sub(before.resident_bytes) < more_bytes {
            return;
        }
    }
    panic!("every run left more than it found: {seen:?}");
}

/// Memory mappings.
pub fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}
