//! The kinds of memory that CUDA offers, described for the choice of a placement.

use onebuf_core::{DeviceKind, DeviceProfile, HandleKind, UnifiedLevel, profile::Heap, profile::MemoryKind};

use crate::adapter::Attributes;
use crate::host::HostMemory;

/// One of CUDA's ways to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAllocFromPoolAsync`, or `cuMemAlloc` where there are no pools.
    Device,
    /// `cuMemCreate`: granules of its own, exportable.
    DeviceVmm,
    /// A pool of its own for each buffer: exportable to CUDA alone.
    DevicePool,
    /// `cuMemAlloc`, in granules of its own: exportable by legacy IPC.
    DeviceIpc,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`: cached by the CPU.
    Pinned,
    /// `cuMemHostAlloc`, write-combined: for a CPU that writes in order and never reads.
    PinnedWc,
}

impl Kind {
    /// The name in placements and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::DeviceVmm => "device-vmm",
            Kind::DevicePool => "device-pool",
            Kind::DeviceIpc => "device-ipc",
            Kind::Managed => "managed",
            Kind::Pinned => "pinned",
            Kind::PinnedWc => "pinned-wc",
        }
    }

    /// The first way by which it leaves the process.
    pub(crate) fn way(self) -> Option<HandleKind> {
        match self {
            Kind::DeviceVmm => Some(HandleKind::OpaqueFd),
            Kind::DevicePool => Some(HandleKind::CudaPool),
            Kind::DeviceIpc => Some(HandleKind::CudaIpc),
            Kind::Device | Kind::Managed | Kind::Pinned | Kind::PinnedWc => None,
        }
    }
}

/// The kinds of memory that a device has, in the order of its profile. Among kinds that cost the same, the first is taken.
pub(crate) fn kinds(attributes: &Attributes) -> Vec<Kind> {
    let host = attributes.can_map_host_memory;
    let all = [
        (true, Kind::Device),
        (exports(attributes), Kind::DeviceVmm),
        (exports_pools(attributes), Kind::DevicePool),
        // Integrated devices have no legacy IPC.
        (!attributes.integrated, Kind::DeviceIpc),
        (attributes.managed, Kind::Managed),
        (host, Kind::Pinned),
        // Where CPU and device share one memory there is no bus that write-combining would spare.
        (host && !attributes.integrated, Kind::PinnedWc),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind).collect()
}

fn exports(attributes: &Attributes) -> bool {
    attributes.virtual_memory && attributes.posix_fd
}

/// Whether a pool can be exported as a descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, which is bit 0).
pub(crate) fn exports_pools(attributes: &Attributes) -> bool {
    attributes.memory_pools && attributes.pool_handle_types & 1 != 0
}

/// How far unified memory goes.
pub(crate) fn unified_level(attributes: &Attributes) -> UnifiedLevel {
    match attributes {
        Attributes { managed: false, .. } => UnifiedLevel::None,
        Attributes { concurrent_managed: false, .. } => UnifiedLevel::Exclusive,
        Attributes { pageable: false, .. } => UnifiedLevel::Managed,
        Attributes { host_page_tables: false, .. } => UnifiedLevel::SystemSoftware,
        _ => UnifiedLevel::SystemHardware,
    }
}

/// What the numbers of a profile come from.
pub(crate) struct Sizes {
    pub(crate) device_bytes: u64,
    /// What the process may still take of the device's memory.
    pub(crate) device_free_bytes: Option<u64>,
    pub(crate) host: HostMemory,
    pub(crate) max_buffer_bytes: u64,
}

/// Describes a device's memory.
pub(crate) fn profile(device: String, attributes: &Attributes, sizes: &Sizes) -> DeviceProfile {
    let own =
        Heap { size_bytes: sizes.device_bytes, budget_bytes: sizes.device_free_bytes, device_local: true };
    let host = Heap {
        size_bytes: sizes.host.total_bytes,
        budget_bytes: Some(sizes.host.available_bytes),
        device_local: false,
    };
    let integrated = attributes.integrated;
    let memory = kinds(attributes).into_iter().map(|kind| describe(kind, attributes)).collect();
    DeviceProfile {
        device,
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        unified: unified_level(attributes),
        heaps: if integrated { vec![own] } else { vec![own, host] },
        memory,
        max_allocation_bytes: sizes.max_buffer_bytes,
        max_buffer_bytes: sizes.max_buffer_bytes,
    }
}

fn describe(kind: Kind, attributes: &Attributes) -> MemoryKind {
    let base = MemoryKind { name: kind.name().into(), device_local: true, ..MemoryKind::default() };
    match kind {
        Kind::Device => base,
        Kind::DeviceVmm => {
            let dma_buf = attributes.dma_buf.then_some(HandleKind::DmaBuf);
            MemoryKind { export: [HandleKind::OpaqueFd].into_iter().chain(dma_buf).collect(), ..base }
        }
        Kind::DevicePool => MemoryKind { export: vec![HandleKind::CudaPool], ..base },
        Kind::DeviceIpc => MemoryKind { export: vec![HandleKind::CudaIpc], ..base },
        // In the device's heap: what does not fit there would move back and forth at every launch, and more managed
        // memory than the device has free can hang it.
        Kind::Managed => {
            MemoryKind { host_visible: true, host_coherent: true, host_cached: true, migrating: true, ..base }
        }
        Kind::Pinned | Kind::PinnedWc => MemoryKind {
            heap: if attributes.integrated { 0 } else { 1 },
            device_local: attributes.integrated,
            host_visible: true,
            host_coherent: true,
            host_cached: kind == Kind::Pinned && caches_pinned(attributes),
            ..base
        },
    }
}

/// Integrated devices before compute capability 7.2 are not coherent with the CPU's caches, so their page-locked memory
/// is uncached (CUDA for Tegra).
fn caches_pinned(attributes: &Attributes) -> bool {
    !attributes.integrated || attributes.capability >= (7, 2)
}

#[cfg(test)]
mod tests {
    use onebuf_core::placement::rank;
    use onebuf_core::{DeviceUse, Error, HostAccess, HostPath, Intent, Semantic, Share, Strength};

    use super::*;
    use crate::adapter::tests::h200;

    const GIB: u64 = 1 << 30;

    fn describe_device(attributes: &Attributes) -> DeviceProfile {
        let sizes = Sizes {
            device_bytes: 139 * GIB,
            device_free_bytes: Some(138 * GIB),
            host: HostMemory { total_bytes: 200 * GIB, available_bytes: 190 * GIB },
            max_buffer_bytes: 200 * GIB,
        };
        profile("cuda:0 (test)".into(), attributes, &sizes)
    }

    /// Names of the kinds for an intent, the best first; `+` marks one that is staged.
    fn ranked(profile: &DeviceProfile, intent: Intent) -> Vec<String> {
        let ranking = rank(profile, &intent).unwrap();
        let name = |kind: usize| profile.memory[kind].name.clone();
        ranking
            .candidates
            .iter()
            .map(|c| if c.staging.is_some() { name(c.kind) + "+" } else { name(c.kind) })
            .collect()
    }

    fn intent(host: HostAccess, device_use: DeviceUse) -> Intent {
        Intent { size_bytes: 1 << 20, host, device_use, ..Intent::default() }
    }

    #[test]
    fn an_h200_places_as_measured() {
        let profile = describe_device(&h200());
        assert_eq!(profile.unified, UnifiedLevel::Managed);
        let names: Vec<&str> = profile.memory.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(
            names,
            ["device", "device-vmm", "device-pool", "device-ipc", "managed", "pinned", "pinned-wc"]
        );
        let paths: Vec<HostPath> = (0..7).map(|kind| profile.host_path(kind)).collect();
        use HostPath::{DeviceOnly, HostMemory, Unified};
        assert_eq!(paths, [DeviceOnly, DeviceOnly, DeviceOnly, DeviceOnly, Unified, HostMemory, HostMemory]);

        let first = |host, device_use| ranked(&profile, intent(host, device_use)).remove(0);
        assert_eq!(first(HostAccess::None, DeviceUse::Heavy), "device");
        assert_eq!(first(HostAccess::None, DeviceUse::Streaming), "device");
        for host in [HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite] {
            assert_eq!(first(host, DeviceUse::Streaming), "pinned", "{host:?}");
            assert_eq!(first(host, DeviceUse::Heavy), "managed", "{host:?}");
        }
        // Write-combined memory is never ahead of cached memory for a CPU that reads.
        let order = ranked(&profile, intent(HostAccess::ReadWrite, DeviceUse::Streaming));
        let place = |name: &str| order.iter().position(|kind| kind == name).unwrap();
        assert!(place("pinned") < place("managed") && place("managed") < place("pinned-wc"), "{order:?}");
    }

    #[test]
    fn shared_buffers_get_granules_of_their_own() {
        let profile = describe_device(&h200());
        let shared = Intent { share: vec![Share::Process], ..intent(HostAccess::Read, DeviceUse::Streaming) };
        assert_eq!(ranked(&profile, shared.clone()), ["device-vmm+", "device-pool+"]);
        // The legacy handle by request alone.
        let legacy = Intent { ways: [HandleKind::CudaIpc].into_iter().collect(), ..shared.clone() };
        assert_eq!(ranked(&profile, legacy), ["device-ipc+"]);
        let api = Intent { share: vec![Share::Api], ..intent(HostAccess::None, DeviceUse::Streaming) };
        assert_eq!(ranked(&profile, api), ["device-vmm"]);
        let pools = describe_device(&Attributes { posix_fd: false, ..h200() });
        assert_eq!(ranked(&pools, shared.clone()), ["device-pool+"]);
        let none = describe_device(&Attributes { posix_fd: false, pool_handle_types: 8, ..h200() });
        assert!(matches!(rank(&none, &shared), Err(Error::NoPlacement { .. })));
    }

    #[test]
    fn unified_levels_follow_the_attributes() {
        let level = |change: fn(&mut Attributes)| {
            let mut attributes = h200();
            change(&mut attributes);
            unified_level(&attributes)
        };
        assert_eq!(level(|a| a.managed = false), UnifiedLevel::None);
        assert_eq!(level(|a| a.concurrent_managed = false), UnifiedLevel::Exclusive);
        assert_eq!(level(|_| ()), UnifiedLevel::Managed);
        assert_eq!(level(|a| a.pageable = true), UnifiedLevel::SystemSoftware);
        assert_eq!(level(|a| (a.pageable, a.host_page_tables) = (true, true)), UnifiedLevel::SystemHardware);
    }

    #[test]
    fn unified_is_what_is_asked_for_and_capped_by_the_device() {
        let profile = describe_device(&h200());
        let unified = |size_bytes| Intent {
            size_bytes,
            semantic: Some((Semantic::Unified, Strength::Require)),
            ..intent(HostAccess::ReadWrite, DeviceUse::Streaming)
        };
        assert_eq!(ranked(&profile, unified(1 << 20)), ["managed"]);
        // More than the device has free, while the CPU would have it.
        assert!(rank(&profile, &unified(139 * GIB)).is_err());
        let exclusive = describe_device(&Attributes { concurrent_managed: false, ..h200() });
        assert_eq!(ranked(&exclusive, unified(1 << 20)), ["managed"]);
        let order = ranked(&exclusive, intent(HostAccess::ReadWrite, DeviceUse::Heavy));
        assert_ne!(order[0], "managed", "nothing may run while the CPU touches it");
        let none = describe_device(&Attributes { managed: false, ..h200() });
        assert!(matches!(rank(&none, &unified(1 << 20)), Err(Error::NoPlacement { .. })));
    }

    #[test]
    fn an_integrated_device_shares_one_memory() {
        let jetson = Attributes {
            integrated: true,
            capability: (8, 7),
            concurrent_managed: false,
            posix_fd: false,
            pool_handle_types: 0,
            ..h200()
        };
        let profile = describe_device(&jetson);
        assert_eq!(profile.heaps.len(), 1);
        let names: Vec<&str> = profile.memory.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["device", "managed", "pinned"]);
        assert_eq!(profile.host_path(2), HostPath::Uma);
        for device_use in [DeviceUse::Streaming, DeviceUse::Heavy] {
            assert_eq!(ranked(&profile, intent(HostAccess::ReadWrite, device_use))[0], "pinned");
        }
        assert!(profile.memory[2].host_cached);
        let older = describe_device(&Attributes { capability: (6, 2), ..jetson });
        assert!(!older.memory[2].host_cached, "not coherent with the CPU's caches");
    }
}
