//! The self-tests are tested: a device that does nothing, or does a little of it wrong, must not pass.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onebuf::core::backend::{
    self, Allocation, Backend, Event, Graph, KernelRequest, KernelSource, Launch, Memory, MemoryStats, Node,
    PageAccess, Part, Work,
};
use onebuf::core::profile::{Heap, MemoryKind};
use onebuf::{
    DeviceInfo, DeviceKind, DeviceProfile, Error, Features, KernelInterface, Limits, Result, StreamId,
    Ticket, UnifiedLevel,
};
use onebuf_sim::{Options, Simulated};
use onebuf_vulkan::{Vulkan, VulkanOptions};
use onebuf_wgsl::Module;

use super::*;

/// How a device treats the kernel of the tests in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// It does what the kernel says.
    Right,
    /// It does nothing.
    Idle,
    /// It leaves out the last word.
    Short,
    /// It writes one word too many.
    Long,
}

/// A device in this process's memory. It knows one kernel, and treats it after its habit.
struct Habitual {
    info: DeviceInfo,
    habit: Habit,
}

fn device(habit: Habit) -> Device {
    let limits = Limits {
        max_buffer_bytes: 1 << 30,
        max_allocation_bytes: 1 << 30,
        max_storage_binding_bytes: 1 << 30,
        max_uniform_binding_bytes: 1 << 16,
        storage_offset_alignment_bytes: 64,
        uniform_offset_alignment_bytes: 64,
        non_coherent_atom_bytes: 64,
        host_import_alignment_bytes: 4096,
        max_groups: [65_535; 3],
        max_workgroup_size: [256; 3],
        max_workgroup_invocations: 256,
        max_workgroup_bytes: 16 << 10,
        max_immediate_bytes: 128,
        max_bind_groups: 4,
        max_storage_bindings: 8,
        max_uniform_bindings: 8,
        subgroup_size: [32; 2],
    };
    let info = DeviceInfo {
        id: onebuf::DeviceId::new("habit", 0),
        name: format!("{habit:?}"),
        kind: DeviceKind::Integrated,
        uuid: None,
        driver: "none".into(),
        api: "none".into(),
        memory_bytes: 1 << 30,
        limits,
        features: Features::default(),
    };
    Device::from_backend(Arc::new(Habitual { info, habit }), "a test")
}

impl backend::Device for Habitual {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> DeviceProfile {
        let memory = MemoryKind {
            name: "type 0".into(),
            device_local: true,
            host_visible: true,
            host_coherent: true,
            host_cached: true,
            ..MemoryKind::default()
        };
        DeviceProfile {
            device: self.info.name.clone(),
            kind: self.info.kind,
            unified: UnifiedLevel::None,
            heaps: vec![Heap { size_bytes: 1 << 30, budget_bytes: None, device_local: true }],
            memory: vec![memory],
            max_allocation_bytes: 1 << 30,
            max_buffer_bytes: 1 << 30,
        }
    }

    fn semantics(&self) -> Vec<SemanticFacts> {
        Vec::new()
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>> {
        // At a multiple of 256 bytes, as drivers place it.
        let mut own = vec![0u32; request.size_bytes.div_ceil(4) as usize + 64];
        let address = own.as_mut_ptr().expose_provenance().next_multiple_of(256);
        Ok(Arc::new(Bytes { address, size_bytes: request.size_bytes, _own: own }))
    }

    #[allow(unsafe_code)]
    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        _: PageAccess,
    ) -> Result<Arc<dyn Memory>> {
        let address = pointer.as_ptr().expose_provenance();
        Ok(Arc::new(Bytes { address, size_bytes, _own: Vec::new() }))
    }

    #[allow(unsafe_code)]
    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn backend::Kernel>> {
        let [KernelSource::Wgsl(source)] = request.sources else {
            return Err(Error::unsupported("this source", "WGSL alone"));
        };
        let specialized = Module::parse(source)
            .and_then(|module| module.specialize(request.entry, request.overrides))
            .map_err(|error| Error::InvalidKernel { message: error.to_string(), line: None })?;
        Ok(Arc::new(Known(specialized.interface().clone())))
    }

    fn create_stream(&self) -> Result<Arc<dyn backend::Stream>> {
        Ok(Arc::new(AtOnce { id: StreamId::next(), last: AtomicU64::new(0), habit: self.habit }))
    }

    #[allow(unsafe_code)]
    unsafe fn create_graph(&self, _: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
        Err(Error::unsupported("a graph", "no test has one"))
    }

    fn is_done(&self, _: Ticket) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _: &[Ticket], _: Option<Duration>) -> Result<()> {
        Ok(())
    }

    fn memory_stats(&self) -> MemoryStats {
        MemoryStats::default()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Memory of its own, or imported.
struct Bytes {
    address: usize,
    size_bytes: u64,
    _own: Vec<u32>,
}

impl Memory for Bytes {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.address))
    }

    fn flush(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn invalidate(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A kernel of which only the interface is known.
struct Known(KernelInterface);

impl backend::Kernel for Known {
    fn interface(&self) -> &KernelInterface {
        &self.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A stream whose work is done when it has been given.
struct AtOnce {
    id: StreamId,
    last: AtomicU64,
    habit: Habit,
}

impl AtOnce {
    /// What `transform.wgsl` does, but for the habit.
    #[allow(unsafe_code)]
    fn transform(&self, part: &Part<'_>, count: usize, salt: u32) {
        let words = match self.habit {
            Habit::Idle => 0,
            Habit::Right => count,
            Habit::Short => count - 1,
            Habit::Long => count + 1,
        };
        let Some(pointer) = part.memory.host_pointer() else { return };
        let room = (part.memory.size_bytes() - part.offset_bytes) as usize / 4;
        // SAFETY: the words lie in the memory, which is aligned, and nobody else looks at it while work is submitted.
        let words = unsafe {
            let first = pointer.add(part.offset_bytes as usize).cast::<u32>();
            std::slice::from_raw_parts_mut(first.as_ptr(), words.min(room))
        };
        for (i, word) in words.iter_mut().enumerate() {
            *word = word.wrapping_mul(2_654_435_761).wrapping_add(i as u32 ^ salt);
        }
    }
}

impl backend::Stream for AtOnce {
    fn id(&self) -> StreamId {
        self.id
    }

    #[allow(unsafe_code)]
    unsafe fn submit(&self, work: Work<'_>, _: &[Ticket]) -> Result<Ticket> {
        if let Work::Launch(Launch { bindings: [part], immediates, .. }) = work
            && let Ok([count, salt]) = bytemuck::try_pod_read_unaligned::<[u32; 2]>(immediates)
        {
            self.transform(part, count as usize, salt);
        }
        Ok(Ticket { stream: self.id, value: self.last.fetch_add(1, Ordering::Relaxed) + 1 })
    }

    #[allow(unsafe_code)]
    unsafe fn replay(&self, _: &Arc<dyn Graph>, _: &[Ticket]) -> Result<Ticket> {
        Err(Error::unsupported("a graph", "no test has one"))
    }

    fn event(&self) -> Result<Arc<dyn Event>> {
        Err(Error::unsupported("an event", "no test has one"))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn last(&self) -> Ticket {
        Ticket { stream: self.id, value: self.last.load(Ordering::Relaxed) }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn failure(result: TestResult) -> String {
    match result {
        Err(Problem::Failed(why)) => why,
        other => panic!("{other:?} from a device that is wrong"),
    }
}

#[test]
fn a_right_device_passes_in_place() {
    let device = device(Habit::Right);
    for semantic in [Semantic::Uma, Semantic::HostImport] {
        let detail = test_of(semantic, &device).unwrap();
        assert!(detail.contains("nothing copied"), "{detail}");
    }
}

#[test]
fn a_wrong_device_fails_in_place() {
    for habit in [Habit::Idle, Habit::Short, Habit::Long] {
        let device = device(habit);
        for semantic in [Semantic::Uma, Semantic::HostImport] {
            let why = failure(test_of(semantic, &device));
            assert!(why.contains("after the device changed it: word"), "{habit:?} {semantic}: {why}");
        }
    }
}

#[test]
fn a_right_device_passes_as_tensors() {
    let detail = test_of(Semantic::Framework, &device(Habit::Right)).unwrap();
    assert!(detail.contains("kDLCPU") && detail.contains("another program's tensor came in"), "{detail}");
    for habit in [Habit::Idle, Habit::Short] {
        let why = failure(test_of(Semantic::Framework, &device(habit)));
        assert!(why.contains("what the device wrote, in the tensor: word"), "{habit:?}: {why}");
    }
}

#[test]
fn a_device_that_does_nothing_fails_every_test() {
    let device = device(Habit::Idle);
    for semantic in [Semantic::Workgroup, Semantic::Process, Semantic::Framework] {
        failure(test_of(semantic, &device));
    }
    // What nobody can test is skipped, and no pass.
    assert!(matches!(test_of(Semantic::Peer, &device), Err(Problem::Skipped(_))));
}

/// Devices that are right and unlike those at hand: nothing may fail on them, and nothing be past their limits.
#[test]
fn devices_of_other_kinds_pass() {
    let vulkan = match Vulkan::new(VulkanOptions::from_env()).and_then(|vulkan| {
        vulkan.open(0)?;
        Ok(vulkan)
    }) {
        Ok(vulkan) => Arc::new(vulkan),
        Err(error) => {
            let required = std::env::var("ONEBUF_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "vulkan"), "{error}");
            return crate::output::note(format_args!("not run: {error}"));
        }
    };
    let imports = vulkan.adapters().unwrap()[0].info.limits.host_import_alignment_bytes > 0;
    for (name, options, semantics) in [
        ("atom of 64", Options::non_coherent(64), vec![Semantic::Uma]),
        ("atom of 256", Options::non_coherent(256), vec![Semantic::Uma]),
        ("discrete", Options::discrete(), vec![Semantic::HostMapped]),
        ("discrete, atom of 128", Options::discrete_non_coherent(128), vec![Semantic::HostMapped]),
        ("resizable BAR", Options::resizable_bar(), vec![Semantic::Uma, Semantic::HostMapped]),
        ("uncached", Options::uncached(), vec![Semantic::Uma]),
        ("exclusive", Options::exclusive_unified(), vec![Semantic::Unified]),
        (
            "managed",
            Options { unified: Some(UnifiedLevel::Managed), ..Options::exclusive_unified() },
            vec![Semantic::Unified],
        ),
        ("tight", Options::tight(), vec![Semantic::Uma, Semantic::Workgroup]),
    ] {
        let simulated = Simulated::new(vulkan.clone(), options);
        let device = Device::from_backend(simulated.open(0).unwrap(), "a test");
        let mut semantics = semantics;
        semantics.push(Semantic::Framework);
        if imports {
            semantics.push(Semantic::HostImport);
        }
        for semantic in semantics {
            let result = test_of(semantic, &device);
            assert!(result.is_ok(), "{name}: {semantic}: {result:?}");
            // One with reads that crawl, and one that is small.
            if ["resizable BAR", "tight"].contains(&name) {
                let cost = crate::report::measure::bandwidths(&device, semantic);
                assert!(cost.is_ok(), "{name}: {semantic}: {cost:?}");
            }
        }
        drop(device);
        assert_eq!(simulated.control().violations(), Vec::<String>::new(), "{name}");
    }
}
