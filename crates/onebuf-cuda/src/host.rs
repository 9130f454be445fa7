//! The CPU's side: how much memory there is to lock, and what the system lets the process do.

use std::fs;

/// Memory of the CPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostMemory {
    pub(crate) total_bytes: u64,
    /// What the process may still take.
    pub(crate) available_bytes: u64,
}

impl HostMemory {
    /// As it is now: the machine's, or the container's where that has less. Zero where the system does not say.
    pub(crate) fn read() -> HostMemory {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let files = HostMemory::parse(
            &read("/proc/meminfo"),
            &read("/sys/fs/cgroup/memory.max"),
            &read("/sys/fs/cgroup/memory.current"),
        );
        if files.total_bytes > 0 { files } else { HostMemory::ask() }
    }

    /// What the system call says, which takes no descriptor: a process that has none left still has memory. It knows
    /// free memory alone, and not what could be freed, so the whole counts as available.
    fn ask() -> HostMemory {
        let info = rustix::system::sysinfo();
        #[allow(clippy::useless_conversion)] // The width is the target's.
        let total_bytes = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
        HostMemory { total_bytes, available_bytes: total_bytes }
    }

    fn parse(meminfo: &str, limit: &str, used: &str) -> HostMemory {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        let total = field("MemTotal").unwrap_or(0);
        let available = field("MemAvailable").unwrap_or(total);
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let Some(limit) = number(limit).filter(|&limit| limit < total) else {
            return HostMemory { total_bytes: total, available_bytes: available };
        };
        let left = limit.saturating_sub(number(used).unwrap_or(0));
        HostMemory { total_bytes: limit, available_bytes: available.min(left) }
    }
}

/// Who may open a device node: `opens`, or the system's answer. `None` where it is not there.
pub(crate) fn device_node(path: &str) -> Option<String> {
    if !fs::exists(path).unwrap_or(true) {
        return None;
    }
    Some(match rustix::fs::access(path, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK) {
        Ok(()) => "opens".to_owned(),
        Err(error) => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24670000 kB\nMemFree:         1000 kB\nMemAvailable:   20000000 kB\n";

    #[test]
    fn the_smaller_of_machine_and_container_counts() {
        let machine = HostMemory { total_bytes: 24_670_000 << 10, available_bytes: 20_000_000 << 10 };
        assert_eq!(HostMemory::parse(MEMINFO, "max\n", "123\n"), machine);
        assert_eq!(HostMemory::parse(MEMINFO, "", ""), machine);
        assert_eq!(HostMemory::parse(MEMINFO, &u64::MAX.to_string(), "0"), machine);
        let container = HostMemory::parse(MEMINFO, "1073741824\n", "73741824\n");
        assert_eq!(container, HostMemory { total_bytes: 1 << 30, available_bytes: 1_000_000_000 });
        assert_eq!(HostMemory::parse("", "", ""), HostMemory::default());
    }

    #[test]
    fn the_system_call_and_the_files_agree() {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let (files, call) = (HostMemory::parse(&meminfo, "", ""), HostMemory::ask());
        assert_eq!(call.total_bytes >> 20, files.total_bytes >> 20);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = HostMemory::read();
        assert!(memory.total_bytes > 0 && memory.available_bytes <= memory.total_bytes, "{memory:?}");
        assert_eq!(device_node("/dev/null").as_deref(), Some("opens"));
        assert_eq!(device_node("/dev/no-such-node"), None);
    }
}
