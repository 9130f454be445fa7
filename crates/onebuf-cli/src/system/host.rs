//! The machine, for the head of a report.

use onebuf::core::report::Host;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::container;

/// The machine that this process runs on.
pub(crate) fn host() -> Host {
    let what = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what);
    let os = System::long_os_version().unwrap_or_else(|| std::env::consts::OS.to_owned());
    let kernel = System::kernel_version().unwrap_or_default();
    let signs: Vec<String> = container::signs().into_iter().map(|sign| sign.name.to_owned()).collect();
    Host {
        os: format!("{}, kernel {kernel}, {}", os.trim(), std::env::consts::ARCH),
        cpu: system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: system.total_memory(),
        container: (!signs.is_empty()).then(|| signs.join(", ")),
        onebuf: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
