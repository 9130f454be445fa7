//! A description of a device's memory, enough to choose a placement without the device.

use serde::{Deserialize, Serialize};

use crate::device::DeviceKind;
use crate::semantics::{Semantic, UnifiedLevel};

/// How memory can leave the process or the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandleKind {
    /// A POSIX file descriptor that only the same driver understands.
    OpaqueFd,
    /// A Linux dma-buf, which any driver may import.
    DmaBuf,
    /// A legacy CUDA IPC handle: 64 bytes that open in CUDA alone, while the process that made the memory lives.
    CudaIpc,
    /// A sealed memfd: pages of the CPU's memory that every holder maps, and every device imports.
    Memfd,
    /// A descriptor of a CUDA memory pool, and 64 bytes that name the memory in it.
    CudaPool,
}

impl HandleKind {
    /// All of them.
    pub const ALL: [HandleKind; 5] = [
        HandleKind::OpaqueFd,
        HandleKind::DmaBuf,
        HandleKind::CudaIpc,
        HandleKind::Memfd,
        HandleKind::CudaPool,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            HandleKind::OpaqueFd => "opaque-fd",
            HandleKind::DmaBuf => "dma-buf",
            HandleKind::CudaIpc => "cuda-ipc",
            HandleKind::Memfd => "memfd",
            HandleKind::CudaPool => "cuda-pool",
        }
    }

    /// Whether memory that leaves so is opened by a [`Token`](crate::Token). Its maker then has to keep it until all who
    /// hold it let go: the driver does not.
    pub fn has_token(self) -> bool {
        matches!(self, HandleKind::CudaIpc | HandleKind::CudaPool)
    }
}

/// A pool that memory is taken from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heap {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes the process may still take, where the driver says.
    pub budget_bytes: Option<u64>,
    /// True when it is the device's own memory, or the part of a shared memory that the device prefers.
    pub device_local: bool,
}

impl Heap {
    /// Bytes that the process may still take: the budget, but never more than the heap has (drivers have reported
    /// budgets of 16 EiB).
    pub fn room_bytes(&self) -> u64 {
        self.budget_bytes.map_or(self.size_bytes, |budget| budget.min(self.size_bytes))
    }
}

/// One kind of memory that a device offers: a Vulkan memory type, or one of CUDA's allocators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKind {
    /// The backend's name for it: `type 3`, `managed`.
    pub name: String,
    /// Index into [`DeviceProfile::heaps`].
    pub heap: usize,
    /// Close to the device.
    pub device_local: bool,
    /// The CPU can map it.
    pub host_visible: bool,
    /// CPU writes need no flush, and CPU reads no invalidation.
    pub host_coherent: bool,
    /// CPU reads go through the CPU's caches.
    pub host_cached: bool,
    /// Its pages move between CPU and device on demand.
    pub migrating: bool,
    /// How it can be exported; empty where it cannot.
    pub export: Vec<HandleKind>,
}

/// What the memory of a kind is to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPath {
    /// One physical memory for both.
    Uma,
    /// The device's own memory, all of it visible through the bus.
    ResizableBar,
    /// The device's own memory, a small window of it visible through the bus.
    BarWindow,
    /// The CPU's memory, which the device reads over the bus, or directly where it shares it.
    HostMemory,
    /// One pointer for both, and pages that move.
    Unified,
    /// The CPU cannot see it.
    DeviceOnly,
}

impl HostPath {
    /// The name in placements.
    pub fn name(self) -> &'static str {
        match self {
            HostPath::Uma => "uma",
            HostPath::ResizableBar => "resizable-bar",
            HostPath::BarWindow => "bar-window",
            HostPath::HostMemory => "host-mapped",
            HostPath::Unified => "unified",
            HostPath::DeviceOnly => "device-only",
        }
    }

    /// The semantic that the path is, if it is one. A BAR is none: it is the device's memory, mapped over the bus.
    pub fn semantic(self) -> Option<Semantic> {
        match self {
            HostPath::Uma => Some(Semantic::Uma),
            HostPath::HostMemory => Some(Semantic::HostMapped),
            HostPath::Unified => Some(Semantic::Unified),
            HostPath::ResizableBar | HostPath::BarWindow | HostPath::DeviceOnly => None,
        }
    }
}

/// What a use of the memory costs, as a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostClass {
    /// As fast as the memory is: through caches, without a bus.
    Cached,
    /// CPU writes are fast while they are sequential; CPU reads are 40 to 1000 times slower than cached ones.
    WriteCombined,
    /// Each access crosses a bus.
    OverBus,
    /// The first access to a page moves it.
    Migrating,
}

impl CostClass {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CostClass::Cached => "cached",
            CostClass::WriteCombined => "write-combined",
            CostClass::OverBus => "over-bus",
            CostClass::Migrating => "migrating",
        }
    }
}

/// All of a device that the choice of a placement depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// The device's id and name, for messages.
    pub device: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// How far its unified memory goes.
    pub unified: UnifiedLevel,
    /// Its heaps.
    pub heaps: Vec<Heap>,
    /// Its kinds of memory. A position in this list is what a backend is asked to allocate from.
    pub memory: Vec<MemoryKind>,
    /// Largest single allocation, in bytes.
    pub max_allocation_bytes: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
}

/// PCI's classic BAR.
const BAR_WINDOW_BYTES: u64 = 256 << 20;

impl DeviceProfile {
    /// What `memory[kind]` is to the CPU. Three different things have the same flags at type level (true UMA, a
    /// resizable BAR, a 256 MiB window); the kind of the device and the sizes of the heaps tell them apart.
    pub fn host_path(&self, kind: usize) -> HostPath {
        let Some(memory) = self.memory.get(kind) else { return HostPath::DeviceOnly };
        if memory.migrating {
            return HostPath::Unified;
        }
        if !memory.host_visible {
            return HostPath::DeviceOnly;
        }
        if !memory.device_local {
            return HostPath::HostMemory;
        }
        if self.kind.shares_host_memory() {
            return HostPath::Uma;
        }
        let size = self.heap_bytes(memory.heap);
        let local = self.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.size_bytes);
        if self.is_window(kind) || size < local.max().unwrap_or(size) / 2 {
            HostPath::BarWindow
        } else {
            HostPath::ResizableBar
        }
    }

    /// Whether `memory[kind]` lies in a device-local heap as small as PCI's classic BAR, beside larger heaps: what a
    /// card shows of its memory, or what firmware carves out for an integrated GPU. It serves the whole system.
    pub fn is_window(&self, kind: usize) -> bool {
        let Some(memory) = self.memory.get(kind) else { return false };
        let size = self.heap_bytes(memory.heap);
        memory.device_local
            && size <= BAR_WINDOW_BYTES
            && self.heaps.iter().any(|heap| heap.size_bytes > size)
    }

    /// What CPU access to `memory[kind]` costs; `None` where the CPU cannot see it.
    pub fn host_cost(&self, kind: usize) -> Option<CostClass> {
        let memory = self.memory.get(kind)?;
        match self.host_path(kind) {
            HostPath::DeviceOnly => None,
            HostPath::Unified => Some(CostClass::Migrating),
            _ if memory.host_cached => Some(CostClass::Cached),
            _ => Some(CostClass::WriteCombined),
        }
    }

    /// What the device's access to `memory[kind]` costs. Memory that is not the device's own lies behind the bus even
    /// where the CPU cannot see it: NVIDIA's driver lists such a type first.
    pub fn device_cost(&self, kind: usize) -> CostClass {
        match self.memory.get(kind) {
            Some(memory) if memory.migrating => CostClass::Migrating,
            Some(memory) if !memory.device_local && !self.kind.shares_host_memory() => CostClass::OverBus,
            _ => CostClass::Cached,
        }
    }

    /// Memory that the device may use, in bytes. Device-local heaps are summed. Where CPU and device share one memory,
    /// all heaps are: an APU's driver may split it into heaps of any flags, with nothing device-local among them.
    pub fn memory_bytes(&self) -> u64 {
        let sum = |all: bool| -> u64 {
            let heaps = self.heaps.iter().filter(|heap| all || heap.device_local);
            heaps.fold(0, |sum, heap| sum.saturating_add(heap.size_bytes))
        };
        match sum(self.kind.shares_host_memory()) {
            0 => sum(true),
            bytes => bytes,
        }
    }

    fn heap_bytes(&self, heap: usize) -> u64 {
        self.heaps.get(heap).map_or(0, |h| h.size_bytes)
    }
}
