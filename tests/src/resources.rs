//! What a process holds: descriptors, threads, memory.

use std::fs;

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
