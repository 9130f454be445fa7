//! What the driver and the system say of each semantic, with the evidence.

use cudarc::driver::sys::{self, CUdevice_P2PAttribute as PeerAttribute, CUresult};
use onebuf_core::error::human_bytes;
use onebuf_core::report::{Answer, Evidence, Fact, SemanticFacts};
use onebuf_core::{CostClass, Semantic, UnifiedLevel};
use rustix::process::{Resource, getrlimit};

use crate::adapter::{Attributes, Physical};
use crate::host::{HostMemory, device_node};
use crate::shared::Shared;
use crate::{driver, profile};

/// What one device knows of another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    ordinal: u32,
    can_access: bool,
    native_atomics: bool,
}

/// The facts of every semantic, in the order of [`Semantic::ALL`].
pub(crate) fn of_device(shared: &Shared) -> Vec<SemanticFacts> {
    let physical = &shared.physical;
    facts(physical, &peers(physical), HostMemory::read())
}

fn facts(physical: &Physical, peers: &[Peer], host: HostMemory) -> Vec<SemanticFacts> {
    Semantic::ALL.into_iter().map(|semantic| fact(semantic, physical, peers, host)).collect()
}

fn fact(semantic: Semantic, physical: &Physical, peers: &[Peer], host: HostMemory) -> SemanticFacts {
    let attributes = &physical.attributes;
    let mut facts = SemanticFacts {
        semantic,
        level: None,
        advertised: Fact::new(Answer::No, Vec::new()),
        permitted: Fact::new(Answer::Yes, Vec::new()),
        class: None,
        summary: String::new(),
    };
    match semantic {
        Semantic::Unified => unified(&mut facts, attributes),
        Semantic::Uma => uma(&mut facts, attributes),
        Semantic::HostMapped => host_mapped(&mut facts, attributes, host),
        Semantic::HostImport => host_import(&mut facts, attributes),
        Semantic::Workgroup => workgroup(&mut facts, physical),
        Semantic::Process => process(&mut facts, physical),
        Semantic::Api => api(&mut facts, physical),
        Semantic::Framework => {
            facts.advertise("CUcontext", "primary: the one of CUDA's runtime, torch, CuPy and JAX");
            facts.advertise(
                "DLPack",
                "kDLCUDA, kDLCUDAHost, kDLCUDAManaged, and kDLCPU where the CPU sees it",
            );
            facts.say(
                Answer::Yes,
                "buffers and tensors of CUDA libraries in this process are one memory, through DLPack",
            );
        }
        Semantic::Peer => {
            if physical.is_slice {
                facts.advertise("MIG", "a slice of a GPU, which has no peers");
            }
            peer(&mut facts, peers);
        }
        Semantic::System => system(&mut facts, attributes),
        Semantic::HostAtomics => host_atomics(&mut facts, attributes),
    }
    device_nodes(&mut facts, semantic);
    facts
}

/// Building blocks of an answer.
trait Say {
    fn say(&mut self, answer: Answer, summary: impl Into<String>);
    fn advertise(&mut self, source: impl Into<String>, value: impl ToString);
    fn attribute(&mut self, name: &str, value: impl Into<u64>);
    fn permit(&mut self, source: impl Into<String>, value: impl ToString);
}

impl Say for SemanticFacts {
    fn say(&mut self, answer: Answer, summary: impl Into<String>) {
        self.advertised.value = answer;
        self.summary = summary.into();
    }

    fn advertise(&mut self, source: impl Into<String>, value: impl ToString) {
        self.advertised.evidence.push(Evidence::new(source, value));
    }

    /// A device attribute, by the end of its name.
    fn attribute(&mut self, name: &str, value: impl Into<u64>) {
        self.advertise(format!("CU_DEVICE_ATTRIBUTE_{name}"), value.into());
    }

    fn permit(&mut self, source: impl Into<String>, value: impl ToString) {
        self.permitted.evidence.push(Evidence::new(source, value));
    }
}

fn unified(facts: &mut SemanticFacts, attributes: &Attributes) {
    let level = profile::unified_level(attributes);
    facts.level = Some(level.name());
    facts.attribute("MANAGED_MEMORY", attributes.managed);
    facts.attribute("CONCURRENT_MANAGED_ACCESS", attributes.concurrent_managed);
    facts.attribute("PAGEABLE_MEMORY_ACCESS", attributes.pageable);
    facts.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", attributes.host_page_tables);
    facts.attribute("DIRECT_MANAGED_MEM_ACCESS_FROM_HOST", attributes.direct_managed_from_host);
    facts.class = (level != UnifiedLevel::None).then_some(CostClass::Migrating);
    match level {
        UnifiedLevel::None => facts.say(Answer::No, "no unified memory; use host-mapped"),
        UnifiedLevel::Exclusive => facts.say(
            Answer::Partial,
            "one pointer, but the CPU may touch unified memory only while no kernel runs; guards wait for the device",
        ),
        UnifiedLevel::Managed => facts.say(
            Answer::Yes,
            "one pointer for CPU and GPU; pages move at the first access, or ahead of it in one go",
        ),
        UnifiedLevel::SystemSoftware => {
            facts.say(Answer::Yes, "one pointer, for memory of malloc too, through page faults (HMM)");
        }
        UnifiedLevel::SystemHardware => {
            facts.say(Answer::Yes, "one pointer, for memory of malloc too, through shared page tables (ATS)");
        }
    }
}

fn uma(facts: &mut SemanticFacts, attributes: &Attributes) {
    facts.attribute("INTEGRATED", attributes.integrated);
    if attributes.integrated {
        facts.class = Some(CostClass::Cached);
        facts.say(Answer::Yes, "CPU and device use one physical memory; page-locked memory is not copied");
    } else {
        facts.say(Answer::No, "the device has memory of its own, which CUDA does not show to the CPU");
    }
}

fn host_mapped(facts: &mut SemanticFacts, attributes: &Attributes, host: HostMemory) {
    facts.attribute("CAN_MAP_HOST_MEMORY", attributes.can_map_host_memory);
    facts.attribute("UNIFIED_ADDRESSING", attributes.unified_addressing);
    facts.attribute("INTEGRATED", attributes.integrated);
    facts.permit("MemAvailable", human_bytes(host.available_bytes));
    if !attributes.can_map_host_memory {
        facts.say(Answer::No, "the device maps no memory of the CPU; use unified, or copies");
    } else if attributes.integrated {
        facts.class = Some(CostClass::Cached);
        facts.say(Answer::No, "the device's memory is the CPU's own; this is uma");
    } else {
        facts.class = Some(CostClass::OverBus);
        facts.say(Answer::Yes, "the device reads page-locked memory over the bus; CPU reads are cached");
    }
}

fn host_import(facts: &mut SemanticFacts, attributes: &Attributes) {
    facts.attribute("HOST_REGISTER_SUPPORTED", attributes.host_register);
    facts.attribute("READ_ONLY_HOST_REGISTER_SUPPORTED", attributes.read_only_host_register);
    facts.attribute("CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", attributes.host_pointer_for_registered);
    // The driver's locks do not count against the limit, and a limit of 0 refuses them nevertheless in some containers.
    permit_limit(facts, "RLIMIT_MEMLOCK", Resource::Memlock, false);
    if !attributes.host_register {
        facts.say(Answer::No, "the driver locks no pages of the program; copy them into a buffer");
        return;
    }
    facts.class = Some(if attributes.integrated { CostClass::Cached } else { CostClass::OverBus });
    facts.say(
        Answer::Yes,
        "memory of the program, pointer and size in multiples of 4 bytes; whole pages are locked, each by one import",
    );
}

fn workgroup(facts: &mut SemanticFacts, physical: &Physical) {
    let attributes = &physical.attributes;
    let limits = &physical.info.limits;
    facts.attribute("MAX_SHARED_MEMORY_PER_BLOCK", attributes.shared_bytes);
    facts.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", attributes.shared_optin_bytes);
    facts.attribute("MAX_THREADS_PER_BLOCK", attributes.max_threads);
    facts.attribute("WARP_SIZE", attributes.warp);
    facts.attribute("MULTIPROCESSOR_COUNT", attributes.multiprocessors);
    facts.class = Some(CostClass::Cached);
    let (bytes, default) =
        (human_bytes(limits.max_workgroup_bytes), human_bytes(u64::from(attributes.shared_bytes)));
    facts.say(
        Answer::Yes,
        format!(
            "{bytes} for up to {} invocations; past {default} onebuf opts in",
            limits.max_workgroup_invocations
        ),
    );
}

fn process(facts: &mut SemanticFacts, physical: &Physical) {
    let attributes = &physical.attributes;
    facts.attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", attributes.virtual_memory);
    facts.attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", attributes.posix_fd);
    facts.attribute("HANDLE_TYPE_FABRIC_SUPPORTED", attributes.fabric);
    facts.attribute("DMA_BUF_SUPPORTED", attributes.dma_buf);
    facts.attribute("MEMPOOL_SUPPORTED_HANDLE_TYPES", attributes.pool_handle_types);
    facts.attribute("IPC_EVENT_SUPPORTED", attributes.ipc_event);
    permit_limit(facts, "RLIMIT_NOFILE", Resource::Nofile, true);
    if driver::is_wsl() {
        facts.permit("WSL2", "descriptors are advertised there, and making them fails");
        facts.permitted.value = Answer::Partial;
    }
    let opaque = attributes.virtual_memory && attributes.posix_fd;
    let ways: Vec<&str> = [
        (opaque, "opaque-fd"),
        (opaque && attributes.dma_buf, "dma-buf (to other drivers)"),
        (profile::exports_pools(attributes), "cuda-pool"),
        (!attributes.integrated, "cuda-ipc (by request)"),
    ]
    .into_iter()
    .filter_map(|(has, way)| has.then_some(way))
    .collect();
    if ways.is_empty() {
        facts.say(Answer::No, "the device exports no memory");
        return;
    }
    let ways = ways.join(", ");
    // Legacy IPC alone is taken by request alone.
    let unasked = opaque || profile::exports_pools(attributes);
    let answer = if unasked { Answer::Yes } else { Answer::Partial };
    facts.say(answer, format!("memory in granules of its own passes to another process as {ways}"));
}

fn api(facts: &mut SemanticFacts, physical: &Physical) {
    let attributes = &physical.attributes;
    match physical.info.uuid {
        Some(uuid) => facts.advertise("cuDeviceGetUuid_v2", uuid),
        None => facts.advertise("cuDeviceGetUuid_v2", "none"),
    }
    facts.attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", attributes.posix_fd);
    facts.attribute("TIMELINE_SEMAPHORE_INTEROP_SUPPORTED", attributes.timeline_semaphores);
    if attributes.posix_fd {
        facts.say(
            Answer::Yes,
            "Vulkan on the same UUID opens its memory, and it opens Vulkan's (`Buffer::on`)",
        );
    } else {
        facts.say(Answer::No, "the device exports no memory as a file descriptor");
    }
}

fn peer(facts: &mut SemanticFacts, peers: &[Peer]) {
    if peers.is_empty() {
        facts.advertise("cuDeviceGetCount", 1);
        facts.say(Answer::No, "there is no other CUDA device");
        return;
    }
    for peer in peers {
        let value = match (peer.can_access, peer.native_atomics) {
            (true, true) => "accessible, native atomics (NVLink)",
            (true, false) => "accessible",
            (false, _) => "not accessible",
        };
        facts.advertise(format!("cuDeviceCanAccessPeer cuda:{}", peer.ordinal), value);
    }
    let reachable = peers.iter().filter(|peer| peer.can_access).count();
    let answer = match reachable {
        0 => Answer::No,
        all if all == peers.len() => Answer::Yes,
        _ => Answer::Partial,
    };
    facts.say(
        answer,
        format!(
            "{reachable} of {} other devices can be reached; onebuf reports this and uses copies",
            peers.len()
        ),
    );
}

fn system(facts: &mut SemanticFacts, attributes: &Attributes) {
    facts.attribute("PAGEABLE_MEMORY_ACCESS", attributes.pageable);
    facts.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", attributes.host_page_tables);
    match (attributes.pageable, attributes.host_page_tables) {
        (false, _) => facts.say(
            Answer::No,
            "the device cannot use malloc's memory as it is (neither HMM nor ATS); import it with host-import",
        ),
        (true, false) => {
            facts.class = Some(CostClass::Migrating);
            facts.say(Answer::Yes, "any pointer, through page faults (HMM)");
        }
        (true, true) => {
            facts.class = Some(CostClass::Cached);
            facts.say(Answer::Yes, "any pointer, through shared page tables (ATS)");
        }
    }
}

fn host_atomics(facts: &mut SemanticFacts, attributes: &Attributes) {
    facts.attribute("HOST_NATIVE_ATOMIC_SUPPORTED", attributes.host_native_atomic);
    facts.attribute("CONCURRENT_MANAGED_ACCESS", attributes.concurrent_managed);
    if attributes.host_native_atomic {
        facts.say(Answer::Yes, "CPU and GPU atomics on one word are one order");
    } else {
        facts.say(Answer::No, "the link between CPU and GPU has no atomics; hand a buffer over with tickets");
    }
}

/// What opening the driver's nodes gives: they are what a container most often lacks.
fn device_nodes(facts: &mut SemanticFacts, semantic: Semantic) {
    let nodes: &[&str] = match semantic {
        Semantic::Unified | Semantic::System => &["/dev/nvidia-uvm"],
        Semantic::Process => &["/dev/nvidiactl"],
        _ => &[],
    };
    for node in nodes {
        let Some(answer) = device_node(node) else { continue };
        if answer != "opens" {
            facts.permitted.value = Answer::No;
        }
        facts.permit(*node, answer);
    }
}

fn permit_limit(facts: &mut SemanticFacts, name: &str, resource: Resource, decides: bool) {
    let limit = getrlimit(resource).current;
    facts.permit(name, limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string()));
    if decides && limit == Some(0) {
        facts.permitted.value = Answer::No;
    }
}

fn peers(physical: &Physical) -> Vec<Peer> {
    let mut count = 0;
    // SAFETY: the driver is started, and the pointer is to a live integer.
    if unsafe { sys::cuDeviceGetCount(&mut count) } != CUresult::CUDA_SUCCESS {
        return Vec::new();
    }
    let others = (0..count.max(0) as u32).filter(|&ordinal| ordinal != physical.ordinal);
    others.filter_map(|ordinal| peer_of(physical, ordinal)).collect()
}

fn peer_of(physical: &Physical, ordinal: u32) -> Option<Peer> {
    let (mut other, mut can_access, mut native) = (0, 0, 0);
    let atomics = PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: the driver is started, the ordinal is below the count, and each pointer is to a live integer.
    unsafe {
        let found = sys::cuDeviceGet(&mut other, ordinal as i32) == CUresult::CUDA_SUCCESS
            && sys::cuDeviceCanAccessPeer(&mut can_access, physical.raw, other) == CUresult::CUDA_SUCCESS;
        if !found {
            return None;
        }
        let known = sys::cuDeviceGetP2PAttribute(&mut native, atomics, physical.raw, other);
        let native_atomics = known == CUresult::CUDA_SUCCESS && native != 0;
        Some(Peer { ordinal, can_access: can_access != 0, native_atomics })
    }
}

#[cfg(test)]
mod tests {
    use onebuf_core::{DeviceId, DeviceInfo, DeviceKind, DeviceUuid, Features};

    use super::*;
    use crate::adapter::{limits, tests::h200};
    use crate::driver::{Driver, Version};

    fn device(attributes: Attributes) -> Physical {
        let total_bytes = 139 << 30;
        Physical {
            raw: 0,
            ordinal: 0,
            info: DeviceInfo {
                id: DeviceId::new("cuda", 0),
                name: "test".into(),
                kind: DeviceKind::Discrete,
                uuid: Some(DeviceUuid([7; 16])),
                driver: "NVIDIA 580".into(),
                api: "CUDA 13.0".into(),
                memory_bytes: total_bytes,
                limits: limits(&attributes, total_bytes, 1 << 38),
                features: Features::ALL,
            },
            rejected: None,
            attributes,
            driver: Driver { version: Version { major: 13, minor: 0 }, release: None },
            is_slice: false,
            total_bytes,
        }
    }

    fn answers(attributes: Attributes, peers: &[Peer]) -> Vec<(Semantic, Answer)> {
        let host = HostMemory { total_bytes: 1 << 38, available_bytes: 1 << 37 };
        let facts = facts(&device(attributes), peers, host);
        assert!(facts.iter().all(|fact| !fact.summary.is_empty() && !fact.advertised.evidence.is_empty()));
        facts.into_iter().map(|fact| (fact.semantic, fact.advertised.value)).collect()
    }

    #[test]
    fn an_h200_answers_every_semantic_with_evidence() {
        use Answer::{No, Yes};
        use Semantic::*;
        let expected = [
            (Unified, Yes),
            (Uma, No),
            (HostMapped, Yes),
            (HostImport, Yes),
            (Workgroup, Yes),
            (Process, Yes),
            (Api, Yes),
            (Framework, Yes),
            (Peer, No),
            (System, No),
            (HostAtomics, No),
        ];
        assert_eq!(answers(h200(), &[]), expected);
    }

    #[test]
    fn attributes_change_the_answers() {
        let answer = |attributes: Attributes, semantic: Semantic| {
            answers(attributes, &[])
                .into_iter()
                .find(|(s, _)| *s == semantic)
                .map(|(_, answer)| answer)
                .unwrap()
        };
        let exclusive = Attributes { concurrent_managed: false, ..h200() };
        assert_eq!(answer(exclusive, Semantic::Unified), Answer::Partial);
        let hmm = Attributes { pageable: true, ..h200() };
        assert_eq!(answer(hmm, Semantic::System), Answer::Yes);
        let grace = Attributes { host_native_atomic: true, ..h200() };
        assert_eq!(answer(grace, Semantic::HostAtomics), Answer::Yes);
        let legacy = Attributes { posix_fd: false, pool_handle_types: 8, ..h200() };
        assert_eq!(answer(legacy.clone(), Semantic::Process), Answer::Partial);
        let closed = Attributes { integrated: true, ..legacy };
        assert_eq!(answer(closed, Semantic::Process), Answer::No);
        let jetson = Attributes { integrated: true, ..h200() };
        assert_eq!(answer(jetson.clone(), Semantic::Uma), Answer::Yes);
        assert_eq!(answer(jetson, Semantic::HostMapped), Answer::No);
    }

    #[test]
    fn peers_are_counted() {
        let peer = |ordinal, can_access| super::Peer { ordinal, can_access, native_atomics: can_access };
        let answer = |peers: &[super::Peer]| {
            answers(h200(), peers).into_iter().find(|(s, _)| *s == Semantic::Peer).map(|(_, answer)| answer)
        };
        assert_eq!(answer(&[peer(1, true), peer(2, true)]), Some(Answer::Yes));
        assert_eq!(answer(&[peer(1, true), peer(2, false)]), Some(Answer::Partial));
        assert_eq!(answer(&[peer(1, false)]), Some(Answer::No));
    }
}
