//! Memory of real devices, one file a device. Each says where its table comes from.

use onebuf_core::profile::{Heap, MemoryKind};
use onebuf_core::{DeviceKind, DeviceProfile, HandleKind, UnifiedLevel};

pub(crate) mod amd_apu_split;
pub(crate) mod amd_apu_window;
pub(crate) mod amd_bar_256;
pub(crate) mod amd_resizable_bar;
pub(crate) mod cuda_grace_hopper;
pub(crate) mod cuda_h200;
pub(crate) mod cuda_jetson_orin;
pub(crate) mod cuda_wsl2;
pub(crate) mod intel_coherent;
pub(crate) mod intel_non_coherent;
pub(crate) mod lavapipe_22_3;
pub(crate) mod lavapipe_25_0;
pub(crate) mod mali_g78;
pub(crate) mod nvidia_h200;
pub(crate) mod radv_apu;
pub(crate) mod raspberry_pi_4;
pub(crate) mod swiftshader;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// A device with its name.
pub(crate) type Named = (&'static str, DeviceProfile);

/// Every table.
pub(crate) fn all() -> Vec<Named> {
    vec![
        ("intel_coherent", intel_coherent::profile()),
        ("intel_non_coherent", intel_non_coherent::profile()),
        ("amd_apu_window", amd_apu_window::profile()),
        ("amd_apu_split", amd_apu_split::profile()),
        ("radv_apu", radv_apu::profile()),
        ("amd_bar_256", amd_bar_256::profile()),
        ("amd_resizable_bar", amd_resizable_bar::profile()),
        ("raspberry_pi_4", raspberry_pi_4::profile()),
        ("mali_g78", mali_g78::profile()),
        ("nvidia_h200", nvidia_h200::profile()),
        ("lavapipe_22_3", lavapipe_22_3::profile()),
        ("lavapipe_25_0", lavapipe_25_0::profile()),
        ("swiftshader", swiftshader::profile()),
        ("cuda_h200", cuda_h200::profile()),
        ("cuda_jetson_orin", cuda_jetson_orin::profile()),
        ("cuda_grace_hopper", cuda_grace_hopper::profile()),
        ("cuda_wsl2", cuda_wsl2::profile()),
    ]
}

/// A heap: size, budget, `local` or `host`.
fn heap(size_bytes: u64, budget_bytes: impl Into<Option<u64>>, place: &str) -> Heap {
    Heap { size_bytes, budget_bytes: budget_bytes.into(), device_local: word(place, "local") }
}

/// A kind of memory. `flags` are words: local, visible, coherent, cached, migrating, and fd, dmabuf, pool, ipc for exports.
fn kind(name: &str, heap: usize, flags: &str) -> MemoryKind {
    let exports = [
        ("fd", HandleKind::OpaqueFd),
        ("dmabuf", HandleKind::DmaBuf),
        ("pool", HandleKind::CudaPool),
        ("ipc", HandleKind::CudaIpc),
    ];
    for flag in flags.split_whitespace() {
        let known = ["local", "visible", "coherent", "cached", "migrating", "fd", "dmabuf", "pool", "ipc"];
        assert!(known.contains(&flag), "{name}: unknown flag {flag}");
    }
    MemoryKind {
        name: name.into(),
        heap,
        device_local: word(flags, "local"),
        host_visible: word(flags, "visible"),
        host_coherent: word(flags, "coherent"),
        host_cached: word(flags, "cached"),
        migrating: word(flags, "migrating"),
        export: exports.iter().filter(|(name, _)| word(flags, name)).map(|(_, handle)| *handle).collect(),
    }
}

fn word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|w| w == word)
}

/// A Vulkan device.
fn vulkan(
    device: &str,
    kind: DeviceKind,
    heaps: Vec<Heap>,
    memory: Vec<MemoryKind>,
    max_allocation_bytes: u64,
) -> DeviceProfile {
    DeviceProfile {
        device: device.into(),
        kind,
        unified: UnifiedLevel::None,
        heaps,
        memory,
        max_allocation_bytes,
        max_buffer_bytes: max_allocation_bytes,
    }
}
