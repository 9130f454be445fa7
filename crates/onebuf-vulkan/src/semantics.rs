//! What the driver and the system say of each semantic, with the evidence.

use ash::vk;
use onebuf_core::report::{Answer, Evidence, Fact, SemanticFacts};
use onebuf_core::{CostClass, DeviceProfile, HandleKind, HostPath, Semantic, UnifiedLevel};
use rustix::process::{Resource, getrlimit};

use crate::adapter::Physical;

/// The facts of every semantic, in the order of [`Semantic::ALL`].
pub(crate) fn facts(physical: &Physical, profile: &DeviceProfile) -> Vec<SemanticFacts> {
    Semantic::ALL.into_iter().map(|semantic| fact(semantic, physical, profile)).collect()
}

fn fact(semantic: Semantic, physical: &Physical, profile: &DeviceProfile) -> SemanticFacts {
    let mut facts = SemanticFacts {
        semantic,
        level: None,
        advertised: Fact::new(Answer::No, Vec::new()),
        permitted: Fact::new(Answer::Yes, Vec::new()),
        class: None,
        summary: String::new(),
    };
    match semantic {
        Semantic::Unified => {
            facts.level = Some(UnifiedLevel::None.name());
            facts.deny(
                "Vulkan",
                "no memory whose pages move",
                "Vulkan has no unified memory; use uma or host-mapped",
            );
        }
        Semantic::Uma => uma(&mut facts, physical, profile),
        Semantic::HostMapped => host_mapped(&mut facts, physical, profile),
        Semantic::HostImport => host_import(&mut facts, physical),
        Semantic::Workgroup => workgroup(&mut facts, physical),
        Semantic::Process => process(&mut facts, physical),
        Semantic::Api => api(&mut facts, physical),
        Semantic::Framework => {
            facts.advertise("DLPack", "as memory of the CPU, where the CPU uses a buffer in place");
            facts.say(
                Answer::Partial,
                "no library takes Vulkan's memory by a name of its own; a guard of any buffer becomes a tensor of the CPU",
            );
        }
        Semantic::Peer => {
            facts.deny(
                "device groups",
                "not used",
                "one GPU cannot use another's memory here; copy through the CPU",
            );
        }
        Semantic::System => {
            facts.deny("Vulkan", "no access to malloc's memory", "import pages with host-import instead");
        }
        Semantic::HostAtomics => facts.deny(
            "Vulkan memory model",
            "host accesses are not in the device's atomic order",
            "CPU and GPU atomics on one word are not defined; hand a buffer over with tickets",
        ),
    }
    facts
}

/// Building blocks of an answer.
trait Say {
    fn say(&mut self, answer: Answer, summary: impl Into<String>);
    fn advertise(&mut self, source: impl Into<String>, value: impl ToString);
    fn permit(&mut self, source: impl Into<String>, value: impl ToString);
    fn deny(&mut self, source: &str, value: &str, summary: &str);
}

impl Say for SemanticFacts {
    fn say(&mut self, answer: Answer, summary: impl Into<String>) {
        self.advertised.value = answer;
        self.summary = summary.into();
    }

    fn advertise(&mut self, source: impl Into<String>, value: impl ToString) {
        self.advertised.evidence.push(Evidence::new(source, value));
    }

    fn permit(&mut self, source: impl Into<String>, value: impl ToString) {
        self.permitted.evidence.push(Evidence::new(source, value));
    }

    fn deny(&mut self, source: &str, value: &str, summary: &str) {
        self.advertise(source, value);
        self.say(Answer::No, summary);
    }
}

/// The kinds of memory with one of these paths.
fn kinds(profile: &DeviceProfile, paths: &[HostPath]) -> Vec<usize> {
    (0..profile.memory.len()).filter(|&kind| paths.contains(&profile.host_path(kind))).collect()
}

fn advertise_kinds(facts: &mut SemanticFacts, physical: &Physical, kinds: &[usize]) {
    for &kind in kinds {
        let Some(&index) = physical.types.get(kind) else { continue };
        let memory = physical.memory.memory_types[index as usize];
        facts.advertise(format!("memoryTypes[{index}].propertyFlags"), flag_names(memory.property_flags));
        let heap = memory.heap_index as usize;
        let size = physical.memory.memory_heaps[heap].size;
        facts.advertise(format!("memoryHeaps[{heap}].size"), onebuf_core::error::human_bytes(size));
    }
}

fn flag_names(flags: vk::MemoryPropertyFlags) -> String {
    let names = [
        (vk::MemoryPropertyFlags::DEVICE_LOCAL, "DEVICE_LOCAL"),
        (vk::MemoryPropertyFlags::HOST_VISIBLE, "HOST_VISIBLE"),
        (vk::MemoryPropertyFlags::HOST_COHERENT, "HOST_COHERENT"),
        (vk::MemoryPropertyFlags::HOST_CACHED, "HOST_CACHED"),
    ];
    let set: Vec<&str> =
        names.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| name).collect();
    set.join(" | ")
}

/// The worst class that CPU accesses to these kinds have, and the best of the kinds decides.
fn best_class(profile: &DeviceProfile, kinds: &[usize]) -> Option<CostClass> {
    let classes: Vec<CostClass> = kinds.iter().filter_map(|&kind| profile.host_cost(kind)).collect();
    classes.iter().copied().find(|class| *class == CostClass::Cached).or_else(|| classes.first().copied())
}

fn uma(facts: &mut SemanticFacts, physical: &Physical, profile: &DeviceProfile) {
    facts.advertise("deviceType", profile.kind);
    let shared = kinds(profile, &[HostPath::Uma]);
    let bar = kinds(profile, &[HostPath::ResizableBar, HostPath::BarWindow]);
    if !shared.is_empty() {
        advertise_kinds(facts, physical, &shared);
        facts.class = best_class(profile, &shared);
        facts.say(Answer::Yes, "CPU and device use one physical memory, mapped for good; nothing is copied");
    } else if let Some(&kind) = bar.first() {
        advertise_kinds(facts, physical, &bar);
        facts.class = best_class(profile, &bar);
        let name = profile.host_path(kind).name();
        facts.say(
            Answer::Partial,
            format!("the device's own memory through a {name}: write it in order, never read it"),
        );
    } else {
        facts.say(Answer::No, "no memory is close to the device and visible to the CPU");
    }
}

fn host_mapped(facts: &mut SemanticFacts, physical: &Physical, profile: &DeviceProfile) {
    let host = kinds(profile, &[HostPath::HostMemory]);
    if host.is_empty() {
        facts.deny("memoryTypes", "each is DEVICE_LOCAL", "all memory is the device's own; use uma");
        return;
    }
    advertise_kinds(facts, physical, &host);
    let over_bus = !profile.kind.shares_host_memory();
    facts.class = if over_bus { Some(CostClass::OverBus) } else { best_class(profile, &host) };
    let cached = host.iter().any(|&kind| profile.memory[kind].host_cached);
    let reads =
        if cached { "CPU reads are cached" } else { "CPU reads are not cached: read through one memcpy" };
    let bus = if over_bus {
        "the device reads the CPU's memory over the bus"
    } else {
        "the device reads the CPU's memory"
    };
    facts.say(Answer::Yes, format!("{bus}; {reads}"));
}

fn host_import(facts: &mut SemanticFacts, physical: &Physical) {
    let listed = physical.extensions.iter().any(|e| e == "VK_EXT_external_memory_host");
    facts.advertise("VK_EXT_external_memory_host", if listed { "listed" } else { "not listed" });
    if !physical.has.host_import {
        if listed {
            facts.advertise("externalMemoryFeatures of HOST_ALLOCATION buffers", "not IMPORTABLE");
        }
        facts.say(
            Answer::No,
            "the driver cannot use memory that the program already has; copy it into a buffer",
        );
        return;
    }
    let alignment = physical.info.limits.host_import_alignment_bytes;
    facts.advertise("externalMemoryFeatures of HOST_ALLOCATION buffers", "IMPORTABLE");
    facts.advertise("minImportedHostPointerAlignment", alignment);
    permit_limit(facts, "RLIMIT_MEMLOCK", Resource::Memlock);
    facts.class =
        Some(if physical.info.kind.shares_host_memory() { CostClass::Cached } else { CostClass::OverBus });
    facts.say(
        Answer::Yes,
        format!("pages of the program, pointer and size in multiples of {alignment} bytes"),
    );
}

fn workgroup(facts: &mut SemanticFacts, physical: &Physical) {
    let limits = &physical.info.limits;
    let [smallest, largest] = limits.subgroup_size;
    facts.advertise("maxComputeSharedMemorySize", limits.max_workgroup_bytes);
    facts.advertise("maxComputeWorkGroupInvocations", limits.max_workgroup_invocations);
    facts.advertise(
        "subgroupSize",
        if smallest == largest { smallest.to_string() } else { format!("{smallest} to {largest}") },
    );
    facts.class = Some(CostClass::Cached);
    let bytes = onebuf_core::error::human_bytes(limits.max_workgroup_bytes);
    facts.say(Answer::Yes, format!("{bytes} for up to {} invocations", limits.max_workgroup_invocations));
}

fn process(facts: &mut SemanticFacts, physical: &Physical) {
    let both = |kind: &HandleKind| physical.export.contains(kind) && physical.import.contains(kind);
    for (kind, source) in [
        (HandleKind::OpaqueFd, "externalMemoryFeatures of OPAQUE_FD buffers"),
        (HandleKind::DmaBuf, "externalMemoryFeatures of DMA_BUF buffers"),
    ] {
        let words = [
            (physical.export.contains(&kind), "EXPORTABLE"),
            (physical.import.contains(&kind), "IMPORTABLE"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|(yes, _)| *yes).map(|(_, word)| word).collect();
        facts.advertise(source, if words.is_empty() { "none".to_owned() } else { words.join(" | ") });
    }
    permit_limit(facts, "RLIMIT_NOFILE", Resource::Nofile);
    let ways: Vec<&str> =
        [HandleKind::OpaqueFd, HandleKind::DmaBuf].iter().filter(|k| both(k)).map(|k| k.name()).collect();
    if ways.is_empty() {
        facts.say(Answer::No, "the driver exports and imports no buffer memory");
    } else {
        let profile_class =
            if physical.info.kind.shares_host_memory() { CostClass::Cached } else { CostClass::OverBus };
        facts.class = (physical.info.kind.shares_host_memory()).then_some(profile_class);
        facts.say(Answer::Yes, format!("memory passes to another process as {}", ways.join(" or ")));
    }
}

fn api(facts: &mut SemanticFacts, physical: &Physical) {
    match physical.info.uuid {
        Some(uuid) => facts.advertise("deviceUUID", uuid),
        None => facts.advertise("deviceUUID", "none: a software driver's names no hardware"),
    }
    facts
        .advertise("wgpu", if cfg!(feature = "wgpu") { "built in" } else { "not built in (feature `wgpu`)" });
    facts.advertise(
        "OPAQUE_FD",
        if physical.export.contains(&HandleKind::OpaqueFd) { "EXPORTABLE" } else { "none" },
    );
    let passes = |kinds: &[HandleKind]| kinds.contains(&HandleKind::OpaqueFd);
    let own_way = passes(&physical.export) && passes(&physical.import);
    if own_way || physical.info.limits.host_import_alignment_bytes > 0 {
        let cuda = if physical.info.uuid.is_some() { "CUDA on the same UUID and to " } else { "" };
        let wgpu = if cfg!(feature = "wgpu") { ", and to and from wgpu" } else { "" };
        facts.say(
            Answer::Yes,
            format!("buffers pass to {cuda}another opening of the device (`Buffer::on`){wgpu}"),
        );
    } else if cfg!(feature = "wgpu") {
        facts.say(Answer::Partial, "buffers pass to and from wgpu on this device alone");
    } else {
        facts.say(Answer::No, "the driver exports no memory and imports none of the CPU");
    }
}

fn permit_limit(facts: &mut SemanticFacts, name: &str, resource: Resource) {
    let limit = getrlimit(resource).current;
    facts.permit(name, limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string()));
    if limit == Some(0) {
        facts.permitted.value = Answer::No;
    }
}
