//! A device in memory that is as unkind as the contract allows: work runs only when somebody waits for it, in any
//! order that the tickets leave open. Whatever it gets right by luck, it gets wrong with another seed.
//!
//! A kernel is a list of bindings, `r w rw u` (`u` is a uniform), with `immN` for N bytes of immediates: each word it
//! writes is a mix of all that it may read. [`mix`] is the same as a function, for models.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onebuf::core::backend::{
    Allocation, Backend, Device, Event, Graph, Kernel, KernelRequest, KernelSource, Memory, MemoryStats,
    Node, PageAccess, Part, Stream, Work,
};
use onebuf::core::profile::{Heap, MemoryKind};
use onebuf::core::report::SemanticFacts;
use onebuf::{
    Access, Adapter, Binding, BindingKind, DeviceId, DeviceInfo, DeviceKind, DeviceProfile, DeviceUuid,
    Error, Features, KernelInterface, Limits, Registry, Result, Scalar, Slot, StreamId, Ticket, UnifiedLevel,
};
use parking_lot::Mutex;

/// How a fake device is made.
#[derive(Clone)]
pub(crate) struct Options {
    pub kind: DeviceKind,
    pub unified: UnifiedLevel,
    pub heaps: Vec<Heap>,
    pub memory: Vec<MemoryKind>,
    pub limits: Limits,
    pub uuid: Option<DeviceUuid>,
    pub rejected: Option<String>,
    pub seed: u64,
}

pub(crate) fn kind(name: &str, device_local: bool, host_visible: bool, heap: usize) -> MemoryKind {
    MemoryKind {
        name: name.into(),
        heap,
        device_local,
        host_visible,
        host_coherent: host_visible,
        host_cached: host_visible,
        ..MemoryKind::default()
    }
}

impl Options {
    /// One memory for CPU and device.
    pub(crate) fn uma() -> Options {
        Options {
            kind: DeviceKind::Integrated,
            unified: UnifiedLevel::None,
            heaps: vec![Heap { size_bytes: 1 << 30, budget_bytes: None, device_local: true }],
            memory: vec![kind("shared", true, true, 0)],
            limits: limits(),
            uuid: None,
            rejected: None,
            seed: 1,
        }
    }

    /// A card whose memory the CPU cannot see, and page-locked host memory.
    pub(crate) fn discrete() -> Options {
        let heap = |device_local| Heap { size_bytes: 1 << 30, budget_bytes: None, device_local };
        Options {
            kind: DeviceKind::Discrete,
            heaps: vec![heap(true), heap(false)],
            memory: vec![kind("vram", true, false, 0), kind("host", false, true, 1)],
            ..Options::uma()
        }
    }

    pub(crate) fn open(self) -> (onebuf::Device, Arc<FakeDevice>) {
        let backend = Arc::new(FakeBackend::new("fake", vec![self]));
        let device = Registry::with(vec![backend.clone()]).open("fake:0").unwrap();
        let fake = backend.opened.lock().pop().unwrap();
        (device, fake)
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        max_buffer_bytes: 1 << 30,
        max_allocation_bytes: 1 << 30,
        max_storage_binding_bytes: 1 << 28,
        max_uniform_binding_bytes: 1 << 16,
        storage_offset_alignment_bytes: 16,
        uniform_offset_alignment_bytes: 64,
        non_coherent_atom_bytes: 64,
        host_import_alignment_bytes: 4096,
        max_groups: [65_535; 3],
        max_workgroup_size: [256, 256, 64],
        max_workgroup_invocations: 256,
        max_workgroup_bytes: 32 << 10,
        max_immediate_bytes: 128,
        max_bind_groups: 4,
        max_storage_bindings: 8,
        max_uniform_bindings: 4,
        subgroup_size: [8, 8],
    }
}

pub(crate) struct FakeBackend {
    name: &'static str,
    devices: Vec<Options>,
    pub opened: Mutex<Vec<Arc<FakeDevice>>>,
}

impl FakeBackend {
    pub(crate) fn new(name: &'static str, devices: Vec<Options>) -> FakeBackend {
        FakeBackend { name, devices, opened: Mutex::default() }
    }

    fn info(&self, ordinal: u32) -> DeviceInfo {
        let options = &self.devices[ordinal as usize];
        DeviceInfo {
            id: DeviceId::new(self.name, ordinal),
            name: format!("Fake {ordinal}"),
            kind: options.kind,
            uuid: options.uuid,
            driver: "fake 1".into(),
            api: "1".into(),
            memory_bytes: options.heaps.iter().map(|h| h.size_bytes).sum(),
            limits: options.limits.clone(),
            features: Features::default(),
        }
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn adapters(&self) -> Result<Vec<Adapter>> {
        let adapter =
            |i: usize| Adapter { info: self.info(i as u32), rejected: self.devices[i].rejected.clone() };
        Ok((0..self.devices.len()).map(adapter).collect())
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        let options = self.devices[ordinal as usize].clone();
        let profile = DeviceProfile {
            device: format!("{}:{ordinal}", self.name),
            kind: options.kind,
            unified: options.unified,
            heaps: options.heaps.clone(),
            memory: options.memory.clone(),
            max_allocation_bytes: options.limits.max_allocation_bytes,
            max_buffer_bytes: options.limits.max_buffer_bytes,
        };
        let device = Arc::new(FakeDevice {
            info: self.info(ordinal),
            profile,
            core: Arc::new(Core::new(options.seed, options.heaps.iter().map(|h| h.size_bytes).collect())),
        });
        self.opened.lock().push(device.clone());
        Ok(device)
    }
}

pub(crate) struct FakeDevice {
    info: DeviceInfo,
    profile: DeviceProfile,
    pub core: Arc<Core>,
}

/// What the objects of a fake device share, and the handle for tests.
pub(crate) struct Core {
    queue: Mutex<Queue>,
    /// Bytes in use of each heap, and in all.
    used: Mutex<Vec<u64>>,
    heaps: Vec<u64>,
    pub live_memories: AtomicU64,
    pub allocations: AtomicU64,
    pub submissions: AtomicU64,
    pub waits: AtomicU64,
    /// What the last wait was for.
    pub waited_for: Mutex<Vec<Ticket>>,
    /// Streams take a moment to make, so that threads meet there.
    pub slow_streams: AtomicBool,
    /// The next flush fails.
    pub fail_flush: AtomicBool,
    /// The next submission fails.
    pub fail_submit: AtomicBool,
}

struct Queue {
    random: u64,
    /// By stream: the last value given out.
    last: HashMap<StreamId, u64>,
    pending: Vec<Pending>,
    /// Every submission, in order.
    log: Vec<Submission>,
}

/// A submission, as the test sees it.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub after: Vec<Ticket>,
}

struct Pending {
    ticket: Ticket,
    after: Vec<Ticket>,
    work: Vec<OwnedWork>,
}

#[derive(Clone)]
struct OwnedPart {
    memory: Arc<dyn Memory>,
    offset: usize,
    size: usize,
}

#[derive(Clone)]
enum OwnedWork {
    Launch { interface: KernelInterface, bindings: Vec<OwnedPart>, immediates: Vec<u8>, groups: [u32; 3] },
    Copy { from: OwnedPart, to: OwnedPart },
    Fill { to: OwnedPart, word: u32 },
    Nothing,
}

impl Core {
    fn new(seed: u64, heaps: Vec<u64>) -> Core {
        Core {
            queue: Mutex::new(Queue {
                random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
                last: HashMap::new(),
                pending: Vec::new(),
                log: Vec::new(),
            }),
            used: Mutex::new(vec![0; heaps.len()]),
            heaps,
            live_memories: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            submissions: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            waited_for: Mutex::default(),
            slow_streams: AtomicBool::new(false),
            fail_flush: AtomicBool::new(false),
            fail_submit: AtomicBool::new(false),
        }
    }

    pub(crate) fn last_submission(&self) -> Submission {
        self.queue.lock().log.last().unwrap().clone()
    }

    pub(crate) fn pending(&self) -> usize {
        self.queue.lock().pending.len()
    }

    /// Runs everything.
    pub(crate) fn run(&self) {
        let mut queue = self.queue.lock();
        while queue.step() {}
    }

    fn submit(&self, stream: StreamId, work: Vec<OwnedWork>, after: &[Ticket]) -> Result<Ticket> {
        if self.fail_submit.swap(false, Ordering::Relaxed) {
            return Err(Error::Driver { call: "submit", code: "told to fail".into() });
        }
        self.submissions.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        let value = queue.last.entry(stream).or_default();
        *value += 1;
        let ticket = Ticket { stream, value: *value };
        queue.log.push(Submission { after: after.to_vec() });
        queue.pending.push(Pending { ticket, after: after.to_vec(), work });
        Ok(ticket)
    }
}

impl Queue {
    fn reached(&self, ticket: Ticket) -> bool {
        self.pending.iter().all(|p| p.ticket.stream != ticket.stream || p.ticket.value > ticket.value)
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Runs one piece of work that may run; false when there is none.
    fn step(&mut self) -> bool {
        let ready: Vec<usize> = (0..self.pending.len())
            .filter(|&i| self.pending[i].after.iter().all(|&t| self.reached(t)))
            .collect();
        if ready.is_empty() {
            assert!(self.pending.is_empty(), "work that waits for itself");
            return false;
        }
        let chosen = ready[(self.next() % ready.len() as u64) as usize];
        for work in self.pending.remove(chosen).work {
            run(&work);
        }
        true
    }
}

/// What a kernel makes of the words it reads.
pub(crate) fn mix(groups: [u32; 3], immediates: &[u8], read: &[u32], binding: u32) -> u32 {
    let mut hash = 0x811c_9dc5_u32 ^ binding;
    let words =
        groups.iter().copied().chain(immediates.iter().map(|&b| u32::from(b))).chain(read.iter().copied());
    for word in words {
        hash = (hash ^ word).wrapping_mul(0x0100_0193).rotate_left(5);
    }
    hash
}

/// The part's bytes. No reference is made to them: a guard of the CPU may hold one while work reads.
fn pointer(part: &OwnedPart) -> *mut u8 {
    let memory: &FakeMemory = part.memory.as_any().downcast_ref().unwrap();
    assert!(part.offset + part.size <= memory.size, "a part that is not in its memory");
    // SAFETY: the offset lies in the memory.
    unsafe { memory.pointer.as_ptr().add(part.offset) }
}

fn load(part: &OwnedPart, index: usize) -> u32 {
    assert!(4 * index + 4 <= part.size);
    // SAFETY: the word lies in the part. The hazards under test keep the CPU's writes away meanwhile, and work runs under
    // the queue's lock.
    unsafe { pointer(part).cast::<u32>().add(index).read_unaligned() }
}

fn store(part: &OwnedPart, index: usize, word: u32) {
    assert!(4 * index + 4 <= part.size);
    // SAFETY: as in `load`, for the CPU's reads, too.
    unsafe { pointer(part).cast::<u32>().add(index).write_unaligned(word) }
}

fn run(work: &OwnedWork) {
    match work {
        OwnedWork::Launch { interface, bindings, immediates, groups } => {
            let words = bindings.iter().map(|part| part.size / 4).min().unwrap_or(0);
            for index in 0..words {
                let uses = || interface.bindings.iter().zip(bindings);
                let read: Vec<u32> =
                    uses().filter(|(b, _)| b.access.reads()).map(|(_, part)| load(part, index)).collect();
                for (position, (_, part)) in uses().enumerate().filter(|(_, (b, _))| b.access.writes()) {
                    store(part, index, mix(*groups, immediates, &read, position as u32));
                }
            }
        }
        OwnedWork::Copy { from, to } => {
            let (from_pointer, to_pointer) = (pointer(from), pointer(to));
            // SAFETY: both parts lie in their memories; as in `load` and `store`.
            unsafe { std::ptr::copy(from_pointer, to_pointer, from.size) }
        }
        OwnedWork::Fill { to, word } => (0..to.size / 4).for_each(|index| store(to, index, *word)),
        OwnedWork::Nothing => {}
    }
}

fn own_part(part: &Part<'_>) -> OwnedPart {
    OwnedPart {
        memory: part.memory.clone(),
        offset: part.offset_bytes as usize,
        size: part.size_bytes as usize,
    }
}

fn own(work: &Work<'_>) -> OwnedWork {
    match work {
        Work::Launch(launch) => {
            assert!(!launch.groups.contains(&0));
            assert_eq!(launch.bindings.len(), launch.kernel.interface().bindings.len());
            OwnedWork::Launch {
                interface: launch.kernel.interface().clone(),
                bindings: launch.bindings.iter().map(own_part).collect(),
                immediates: launch.immediates.to_vec(),
                groups: launch.groups,
            }
        }
        Work::Copy { from, to } => {
            assert_eq!(from.size_bytes, to.size_bytes);
            OwnedWork::Copy { from: own_part(from), to: own_part(to) }
        }
        Work::Fill { to, word } => {
            assert!(to.offset_bytes % 4 == 0 && to.size_bytes % 4 == 0);
            OwnedWork::Fill { to: own_part(to), word: *word }
        }
    }
}

struct FakeMemory {
    pointer: NonNull<u8>,
    size: usize,
    heap: Option<usize>,
    visible: bool,
    read_only: bool,
    core: Arc<Core>,
}

// SAFETY: the pointer is to memory that this value owns, or that the importer keeps; see `bytes` for who uses it.
unsafe impl Send for FakeMemory {}
// SAFETY: as above.
unsafe impl Sync for FakeMemory {}

fn layout(size: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(size, 64).unwrap()
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.core.live_memories.fetch_sub(1, Ordering::Relaxed);
        if let Some(heap) = self.heap {
            self.core.used.lock()[heap] -= self.size as u64;
            // SAFETY: allocated in `FakeDevice::allocate` with this layout.
            unsafe { std::alloc::dealloc(self.pointer.as_ptr(), layout(self.size)) }
        }
    }
}

impl Memory for FakeMemory {
    fn size_bytes(&self) -> u64 {
        self.size as u64
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.visible.then_some(self.pointer)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn flush(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        assert!(offset_bytes + size_bytes <= self.size as u64);
        if self.core.fail_flush.swap(false, Ordering::Relaxed) {
            return Err(Error::Driver { call: "flush", code: "told to fail".into() });
        }
        Ok(())
    }

    fn invalidate(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        assert!(offset_bytes + size_bytes <= self.size as u64);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeKernel {
    interface: KernelInterface,
}

impl Kernel for FakeKernel {
    fn interface(&self) -> &KernelInterface {
        &self.interface
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeStream {
    id: StreamId,
    core: Arc<Core>,
}

impl Stream for FakeStream {
    fn id(&self) -> StreamId {
        self.id
    }

    unsafe fn submit(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        self.core.submit(self.id, vec![own(&work)], after)
    }

    unsafe fn replay(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        let graph: &FakeGraph = graph.as_any().downcast_ref().unwrap();
        let work = graph.shuffled(self.core.queue.lock().next());
        let mut last = graph.last.lock();
        let mut after = after.to_vec();
        after.extend(*last);
        let ticket = self.core.submit(self.id, work, &after)?;
        *last = Some(ticket);
        Ok(ticket)
    }

    fn event(&self) -> Result<Arc<dyn Event>> {
        let before = Ticket { stream: self.id, value: self.last().value };
        let ticket = self.core.submit(self.id, vec![OwnedWork::Nothing], &[before])?;
        Ok(Arc::new(FakeEvent { ticket }))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn last(&self) -> Ticket {
        let value = self.core.queue.lock().last.get(&self.id).copied().unwrap_or(0);
        Ticket { stream: self.id, value }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeEvent {
    ticket: Ticket,
}

impl Event for FakeEvent {
    fn ticket(&self) -> Ticket {
        self.ticket
    }

    fn elapsed_ns(&self, start: &dyn Event) -> Result<u64> {
        Ok(1000 * (self.ticket.value - start.ticket().value))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeGraph {
    nodes: Mutex<Vec<(OwnedWork, Vec<u32>)>>,
    last: Mutex<Option<Ticket>>,
}

impl FakeGraph {
    /// The nodes in one of the orders that their edges allow.
    fn shuffled(&self, mut random: u64) -> Vec<OwnedWork> {
        let nodes = self.nodes.lock();
        let mut done = vec![false; nodes.len()];
        let mut order = Vec::new();
        while order.len() < nodes.len() {
            let ready: Vec<usize> = (0..nodes.len())
                .filter(|&i| !done[i] && nodes[i].1.iter().all(|&before| done[before as usize]))
                .collect();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chosen = ready[(random >> 33) as usize % ready.len()];
            done[chosen] = true;
            order.push(nodes[chosen].0.clone());
        }
        order
    }
}

impl Graph for FakeGraph {
    fn len(&self) -> usize {
        self.nodes.lock().len()
    }

    unsafe fn update(&self, node: usize, work: Work<'_>) -> Result<()> {
        self.nodes.lock()[node].0 = own(&work);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn interface(source: &str) -> Result<KernelInterface> {
    let mut interface = KernelInterface {
        entry: "main".into(),
        workgroup_size: [64, 1, 1],
        bindings: Vec::new(),
        immediate_bytes: 0,
        workgroup_bytes: 0,
        features: Features::default(),
    };
    for token in source.split_whitespace() {
        let number = |text: &str| {
            text.parse().map_err(|_| Error::InvalidKernel { message: format!("`{token}`"), line: Some(1) })
        };
        let (access, kind) = match token {
            "r" => (Access::Read, BindingKind::Storage),
            "w" => (Access::Write, BindingKind::Storage),
            "rw" => (Access::ReadWrite, BindingKind::Storage),
            "u" => (Access::Read, BindingKind::Uniform),
            "f16" => {
                interface.features.f16 = true;
                continue;
            }
            _ => {
                if let Some(bytes) = token.strip_prefix("imm") {
                    interface.immediate_bytes = number(bytes)?;
                } else if let Some(size) = token.strip_prefix("wg") {
                    interface.workgroup_size[0] = number(size)?;
                } else if let Some(bytes) = token.strip_prefix("shared") {
                    interface.workgroup_bytes = u64::from(number(bytes)?);
                } else {
                    return Err(Error::InvalidKernel {
                        message: format!("no such token `{token}`"),
                        line: Some(1),
                    });
                }
                continue;
            }
        };
        let binding = interface.bindings.len() as u32;
        interface.bindings.push(Binding {
            slot: Slot { group: 0, binding },
            name: format!("b{binding}"),
            ty: "array<u32>".into(),
            kind,
            access,
            min_bytes: 4,
            stride_bytes: Some(4),
            scalar: Some(Scalar::U32),
        });
    }
    Ok(interface)
}

impl Drop for FakeDevice {
    /// A driver finishes what it was given.
    fn drop(&mut self) {
        self.core.run();
    }
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> DeviceProfile {
        self.profile.clone()
    }

    fn semantics(&self) -> Vec<SemanticFacts> {
        Vec::new()
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>> {
        let kind = &self.profile.memory[request.kind];
        assert!(request.size_bytes > 0 && request.size_bytes <= self.profile.max_buffer_bytes);
        let mut used = self.core.used.lock();
        let free_bytes = self.core.heaps[kind.heap] - used[kind.heap];
        if request.size_bytes > free_bytes {
            return Err(Error::OutOfMemory {
                asked_bytes: request.size_bytes,
                free_bytes: Some(free_bytes),
                never_fits: false,
            });
        }
        used[kind.heap] += request.size_bytes;
        let size = request.size_bytes as usize;
        // SAFETY: the size is not 0.
        let pointer = NonNull::new(unsafe { std::alloc::alloc(layout(size)) }).unwrap();
        // SAFETY: just allocated with this size. Unspecified contents show as this.
        unsafe { pointer.write_bytes(if request.exportable { 0 } else { 0xa5 }, size) };
        self.core.live_memories.fetch_add(1, Ordering::Relaxed);
        self.core.allocations.fetch_add(1, Ordering::Relaxed);
        let visible = kind.host_visible && request.mapped;
        Ok(Arc::new(FakeMemory {
            pointer,
            size,
            heap: Some(kind.heap),
            visible,
            read_only: false,
            core: self.core.clone(),
        }))
    }

    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<Arc<dyn Memory>> {
        self.core.live_memories.fetch_add(1, Ordering::Relaxed);
        let (size, core, read_only) = (size_bytes as usize, self.core.clone(), access == PageAccess::Read);
        Ok(Arc::new(FakeMemory { pointer, size, heap: None, visible: true, read_only, core }))
    }

    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn Kernel>> {
        match request.sources.first() {
            Some(KernelSource::Wgsl(source)) => {
                let mut interface = interface(source)?;
                for set in request.overrides {
                    interface.entry.push_str(&format!(" {}={}", set.name, set.value));
                }
                Ok(Arc::new(FakeKernel { interface }))
            }
            Some(
                KernelSource::SpirV(_, interface)
                | KernelSource::CudaC(_, interface)
                | KernelSource::Ptx(_, interface),
            ) => Ok(Arc::new(FakeKernel { interface: (*interface).clone() })),
            None => panic!("no source"),
        }
    }

    fn create_stream(&self) -> Result<Arc<dyn Stream>> {
        if self.core.slow_streams.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Arc::new(FakeStream { id: StreamId::next(), core: self.core.clone() }))
    }

    unsafe fn create_graph(&self, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
        let nodes = nodes.iter().enumerate().map(|(position, node)| {
            assert!(node.after.iter().all(|&before| (before as usize) < position));
            (own(&node.work), node.after.to_vec())
        });
        Ok(Arc::new(FakeGraph { nodes: Mutex::new(nodes.collect()), last: Mutex::default() }))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        Ok(self.core.queue.lock().reached(ticket))
    }

    fn wait(&self, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
        self.core.waits.fetch_add(1, Ordering::Relaxed);
        *self.core.waited_for.lock() = tickets.to_vec();
        let mut queue = self.core.queue.lock();
        if limit == Some(Duration::ZERO) && !tickets.iter().all(|&t| queue.reached(t)) {
            return Err(Error::Timeout { what: "work".into(), after_ms: 0 });
        }
        while !tickets.iter().all(|&t| queue.reached(t)) {
            queue.step();
        }
        Ok(())
    }

    fn memory_stats(&self) -> MemoryStats {
        let used: u64 = self.core.used.lock().iter().sum();
        MemoryStats { blocks: 1, block_bytes: used, ..MemoryStats::default() }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
