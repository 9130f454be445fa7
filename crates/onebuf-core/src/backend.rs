//! The contract that a backend keeps: [`Backend`], [`Device`], [`Memory`], [`Kernel`], [`Stream`], [`Graph`], [`Event`].
//!
//! All traits are object safe, since a program picks its device at run time; a virtual call costs nothing beside a
//! launch. A backend never checks what was checked before it: sizes, limits, arguments and hazards are decided once,
//! in the `onebuf` crate, by the pure functions of this crate. What a backend adds is the driver. So the functions that
//! hand a driver what nobody looks at again are `unsafe`: [`Device::compile`], [`Device::create_graph`],
//! [`Stream::submit`], [`Stream::replay`], [`Graph::update`].
//!
//! # What is sound to submit
//!
//! Whoever submits work, or makes it a node of a graph, sees to it that
//!
//! - memory and kernels are of the same device, and parts lie within their memory;
//! - a launch fits its kernel: [`crate::args::check`] passes, and each of its `groups` is at least 1;
//! - the two parts of a copy have one size and no byte in common; a fill's offset and size are multiples of 4;
//! - what the work writes may be written ([`Memory::is_read_only`]);
//! - `after` has every ticket of work that conflicts with it, and no reference of the CPU to the bytes is used meanwhile.
//!
//! # Division of work
//!
//! | decided by the caller | decided by the backend |
//! |---|---|
//! | placement ([`crate::placement::rank`]) | how memory of a kind is allocated and sub-allocated |
//! | arguments ([`crate::args::check`]) | how bindings reach the driver |
//! | which tickets work must follow ([`crate::hazard::Hazards`]) | barrier, semaphore or event that makes it so |
//! | when the CPU may touch memory | flush and invalidation of the ranges it is told |
//!
//! # Rules for tickets
//!
//! - A stream's work starts in the order it was submitted. Ticket values of a stream grow.
//! - `after` lists tickets of this device's streams, the stream's own among them. Work must see the effects of each.
//!   Work that is *not* listed may overlap, also within the stream.
//! - A ticket of a stream that is gone counts as done once its work has completed.
//! - When [`Device::wait`] returns, the effects of the work are visible to the CPU, after [`Memory::invalidate`] where
//!   memory is not coherent.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Adapter, DeviceInfo, DeviceUuid};
use crate::error::{Error, Result};
use crate::hazard::{StreamId, Ticket};
use crate::kernel::{KernelInterface, Override};
use crate::profile::{DeviceProfile, HandleKind};
use crate::report::SemanticFacts;
use crate::token::Token;

/// A family of devices behind one driver API.
pub trait Backend: Send + Sync {
    /// The name in device ids: lower-case letters.
    fn name(&self) -> &'static str;

    /// Every device the driver shows, in its order, those that cannot be used with the reason.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] where the driver itself is missing or refuses.
    fn adapters(&self) -> Result<Vec<Adapter>>;

    /// Opens the device with this ordinal.
    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>>;
}

/// An open device.
pub trait Device: Any + Send + Sync {
    /// Who it is.
    fn info(&self) -> &DeviceInfo;

    /// Its memory as it stands now, budgets included.
    fn profile(&self) -> DeviceProfile;

    /// What the driver and the system say of every semantic, in the order of [`crate::Semantic::ALL`].
    fn semantics(&self) -> Vec<SemanticFacts>;

    /// Memory of one kind. Contents are unspecified, but zero where the memory is exportable.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] lets the caller try the next kind.
    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>>;

    /// The `size_bytes` bytes at `pointer`, used by the device in place.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device cannot, or refuses these pages.
    ///
    /// # Safety
    /// The bytes stay valid and mapped until the returned memory is dropped, and nothing accesses them while work of
    /// the device does, except through the same hazards. Pointer and size are multiples of
    /// [`crate::Limits::host_import_alignment_bytes`]. With [`PageAccess::ReadWrite`] the pages may be written.
    #[allow(unsafe_code)] // A declaration, as all below: the obligation is the caller's, and this crate has no unsafe block.
    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<Arc<dyn Memory>>;

    /// Memory that another process, or another API, exported.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the description does not fit the object or the device.
    fn import(&self, export: Export) -> Result<Arc<dyn Memory>> {
        let what = format!("import of {}", export.handle.name());
        Err(Error::unsupported(what, "this backend cannot import memory"))
    }

    /// Memory of another device of this process: what [`Device::import`] takes, and what another API exported on the same
    /// hardware, whose word for it is believed. With it comes the kind of this device's memory that it is, an index into
    /// [`DeviceProfile::memory`].
    ///
    /// # Errors
    /// Those of [`Device::import`].
    fn import_across(&self, export: Export) -> Result<(Arc<dyn Memory>, usize)> {
        let kind = export.kind;
        Ok((self.import(export)?, kind))
    }

    /// A new timeline, which other devices of the same hardware can open. It begins at 0.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver exports none.
    fn create_timeline(&self) -> Result<Arc<dyn Timeline>> {
        Err(Error::unsupported("a timeline for several devices", "this backend has none to export"))
    }

    /// A timeline that another device exported.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver opens none.
    fn import_timeline(&self, fd: OwnedFd) -> Result<Arc<dyn Timeline>> {
        drop(fd);
        Err(Error::unsupported("a timeline of another device", "this backend opens none"))
    }

    /// Queues that `timeline` gets a value once every ticket of `after` is reached. Each value is larger than the one
    /// before, and the calls for one timeline come one after the other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the timeline is another device's.
    fn signal(&self, timeline: &Arc<dyn Timeline>, value: u64, after: &[Ticket]) -> Result<()> {
        let _ = (timeline, value, after);
        Err(Error::unsupported("a signal to another device", "this backend has no timelines"))
    }

    /// A ticket that is reached once `timeline` has a value. Its signal has been queued before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the timeline is another device's.
    fn follow(&self, timeline: &Arc<dyn Timeline>, value: u64) -> Result<Ticket> {
        let _ = (timeline, value);
        Err(Error::unsupported("work behind another device's", "this backend has no timelines"))
    }

    /// A kernel, compiled.
    ///
    /// # Safety
    /// Sources other than WGSL are valid for the driver, and their interface describes them truly. They, and any kernel
    /// with [`Bounds::Unchecked`], stay within what is bound to them.
    #[allow(unsafe_code)]
    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn Kernel>>;

    /// A new stream.
    fn create_stream(&self) -> Result<Arc<dyn Stream>>;

    /// A graph of these nodes. `after` of a node names earlier nodes whose effects it must see.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a node comes after one that is not earlier.
    ///
    /// # Safety
    /// Each node's work is sound, as [the module](self) says.
    #[allow(unsafe_code)]
    unsafe fn create_graph(&self, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>>;

    /// Whether a ticket is reached. Work that was gathered and not yet handed to the driver is handed over first.
    fn is_done(&self, ticket: Ticket) -> Result<bool>;

    /// Waits until every ticket is reached.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the time limit passes first; [`Error::DeviceLost`].
    fn wait(&self, tickets: &[Ticket], limit: Option<Duration>) -> Result<()>;

    /// Lets go of what finished work still holds, and gives memory that is kept for later back to the driver.
    fn trim(&self) {}

    /// Memory in use.
    fn memory_stats(&self) -> MemoryStats;

    /// For backend-specific extensions, such as wgpu interop.
    fn as_any(&self) -> &dyn Any;
}

/// A request for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Index into [`DeviceProfile::memory`].
    pub kind: usize,
    /// Size in bytes, at least 1.
    pub size_bytes: u64,
    /// Must be exportable: an allocation of its own, zeroed.
    pub exportable: bool,
    /// The CPU will map it.
    pub mapped: bool,
}

/// Bytes on a device.
///
/// Dropping it while work uses it is allowed: a backend keeps what its queued work needs.
pub trait Memory: Any + Send + Sync {
    /// Size in bytes, at least what was asked.
    fn size_bytes(&self) -> u64;

    /// Where the CPU sees it, for as long as the memory lives. `None` where the CPU does not.
    fn host_pointer(&self) -> Option<NonNull<u8>>;

    /// True where the bytes may only be read, by whomever: pages that were imported so.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Makes CPU writes to a range visible to work that is submitted later. Widens the range to whole atoms.
    fn flush(&self, offset_bytes: u64, size_bytes: u64) -> Result<()>;

    /// Makes completed device writes to a range visible to the CPU. Widens the range to whole atoms.
    fn invalidate(&self, offset_bytes: u64, size_bytes: u64) -> Result<()>;

    /// A handle by which another process or API can open the same bytes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the memory was not allocated to be exported.
    fn export(&self, handle: HandleKind) -> Result<Export> {
        Err(Error::unsupported(
            format!("export as {}", handle.name()),
            "the buffer was not made to be shared; build it with `.share(Share::Process)`",
        ))
    }

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// What may be done to the program's own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// CPU and device read them.
    Read,
    /// CPU and device read and write them.
    ReadWrite,
}

/// An exported memory object: the descriptor and what an importer must check it against.
#[derive(Debug)]
pub struct Export {
    /// The object. Where there is a token it is the lease: an end of a pipe, and the memory's maker keeps the memory while
    /// somebody has it.
    pub fd: OwnedFd,
    /// What names the memory to the driver, where the way has one ([`HandleKind::has_token`]).
    pub token: Option<Token>,
    /// The pool that the memory is in ([`HandleKind::CudaPool`]).
    pub pool: Option<OwnedFd>,
    /// What sort of descriptor it is.
    pub handle: HandleKind,
    /// Size in bytes of the whole allocation.
    pub allocation_bytes: u64,
    /// Size in bytes of the buffer in it.
    pub size_bytes: u64,
    /// Index into [`DeviceProfile::memory`] of the exporting device.
    pub kind: usize,
    /// The allocation is a multiple of this many bytes.
    pub granule_bytes: u64,
    /// The allocation was made for one buffer (Vulkan's dedicated allocations): its importer must say so too.
    pub dedicated: bool,
    /// It is the device's own memory, and not the CPU's behind the bus.
    pub device_local: bool,
    /// The device that it lies on, where it has an identity.
    pub device: Option<DeviceUuid>,
    /// The driver's identity: an opaque fd means nothing to another one.
    pub driver: [u8; 16],
}

/// [`Export::driver`] of memory that onebuf's CUDA backend exports: descriptors of the driver's virtual memory management.
/// For Vulkan's it is the driver's UUID.
pub const CUDA_EXPORTER: [u8; 16] = *b"onebuf cuda vmm1";

/// A count that one device raises and another waits for, both by queued work.
pub trait Timeline: Any + Send + Sync {
    /// A descriptor by which another device opens it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it was imported; [`Error::Os`] where no descriptor is left.
    fn export(&self) -> Result<OwnedFd>;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A kernel to compile. The sources are alternatives; a backend takes the first it understands.
#[derive(Clone, Copy, Debug)]
pub struct KernelRequest<'a> {
    /// One or more sources.
    pub sources: &'a [KernelSource<'a>],
    /// The entry point; `None` where the source has only one.
    pub entry: Option<&'a str>,
    /// Values of overrides.
    pub overrides: &'a [Override],
    /// What happens to accesses out of range.
    pub bounds: Bounds,
}

/// A kernel's source.
#[derive(Clone, Copy, Debug)]
pub enum KernelSource<'a> {
    /// WGSL, for every backend.
    Wgsl(&'a str),
    /// SPIR-V words, for Vulkan, with the interface that WGSL would have given. Overrides are not applied.
    SpirV(&'a [u32], &'a KernelInterface),
    /// CUDA C++, for CUDA, with the interface that WGSL would have given. Overrides are not applied, and nothing checks
    /// accesses. [`KernelInterface::entry`] is an `extern "C" __global__` function, and its parameters are:
    ///
    /// 1. for each of [`KernelInterface::bindings`], in order, a pointer to the first byte that is bound;
    /// 2. where [`KernelInterface::immediate_bytes`] is not 0, the immediates, by value: one struct, or one scalar.
    ///
    /// Workgroup memory past what the function declares itself, up to [`KernelInterface::workgroup_bytes`], is given as
    /// dynamic shared memory (`extern __shared__`). An array's length is no parameter: pass it in the immediates.
    CudaC(&'a str, &'a KernelInterface),
    /// PTX text, for CUDA, with an entry whose parameters are those of [`KernelSource::CudaC`].
    Ptx(&'a str, &'a KernelInterface),
}

impl KernelSource<'_> {
    /// The language's name, for messages.
    pub fn language(&self) -> &'static str {
        match self {
            KernelSource::Wgsl(_) => "WGSL",
            KernelSource::SpirV(..) => "SPIR-V",
            KernelSource::CudaC(..) => "CUDA C++",
            KernelSource::Ptx(..) => "PTX",
        }
    }
}

impl KernelRequest<'_> {
    /// The error of a backend that understands none of the sources; `takes` are the languages that it does.
    pub fn no_source_for(&self, backend: &str, takes: &str) -> Error {
        let given: Vec<&str> = self.sources.iter().map(KernelSource::language).collect();
        let given = if given.is_empty() { "no source".to_owned() } else { given.join(", ") };
        Error::InvalidKernel {
            message: format!("the kernel has {given}; the {backend} backend takes {takes}"),
            line: None,
        }
    }
}

/// What happens to accesses out of range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bounds {
    /// Reads give zero or some element of the same buffer; writes are dropped or land in the same buffer.
    #[default]
    Checked,
    /// Nothing is checked. Such a kernel can read and write anything the device can; asking for it is `unsafe`.
    Unchecked,
}

/// A compiled kernel.
pub trait Kernel: Any + Send + Sync {
    /// What it takes.
    fn interface(&self) -> &KernelInterface;

    /// Whether the driver's compilation was spared by a cache on disk; `None` where nobody can tell.
    fn was_cached(&self) -> Option<bool> {
        None
    }

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A part of a memory object, borrowed.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The memory.
    pub memory: &'a Arc<dyn Memory>,
    /// Where the part begins, in bytes.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub size_bytes: u64,
}

/// A launch, checked.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Arc<dyn Kernel>,
    /// The resources, in the order of [`KernelInterface::bindings`].
    pub bindings: &'a [Part<'a>],
    /// The immediate data.
    pub immediates: &'a [u8],
    /// Workgroups along x, y, z; each at least 1. A backend splits what the driver cannot take at once.
    pub groups: [u32; 3],
}

/// A piece of work.
#[derive(Clone, Copy)]
pub enum Work<'a> {
    /// Run a kernel.
    Launch(Launch<'a>),
    /// Copy bytes; both parts have the same size, and do not overlap.
    Copy {
        /// From here.
        from: Part<'a>,
        /// To here.
        to: Part<'a>,
    },
    /// Fill with a 32-bit word; offset and size are multiples of 4 bytes.
    Fill {
        /// What is filled.
        to: Part<'a>,
        /// The word.
        word: u32,
    },
}

/// An ordered queue of work.
///
/// Dropping a stream hands its gathered work to the driver and does not wait for it.
pub trait Stream: Any + Send + Sync {
    /// Its identity.
    fn id(&self) -> StreamId;

    /// Queues work behind `after`. On an error none of it runs. The work may be gathered and handed to the driver a little
    /// later, but always without a further call.
    ///
    /// # Safety
    /// The work is sound, as [the module](self) says.
    #[allow(unsafe_code)]
    unsafe fn submit(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket>;

    /// Queues a whole graph behind `after`, which lists its last replay where that may still run.
    ///
    /// # Safety
    /// `after` has every ticket of work that conflicts with the graph's, as [the module](self) says.
    #[allow(unsafe_code)]
    unsafe fn replay(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket>;

    /// Marks this point of the stream, behind all work it was given, with the device's clock.
    fn event(&self) -> Result<Arc<dyn Event>>;

    /// Hands gathered work to the driver.
    fn flush(&self) -> Result<()>;

    /// The ticket of the last work it was given.
    fn last(&self) -> Ticket;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A node of a graph.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    /// What it does.
    pub work: Work<'a>,
    /// Earlier nodes whose effects it must see, by position.
    pub after: &'a [u32],
}

/// Work recorded once and replayed.
pub trait Graph: Any + Send + Sync {
    /// Number of nodes.
    fn len(&self) -> usize;

    /// True without nodes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the work of a node for later replays. Its place in the order stays.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such node.
    ///
    /// # Safety
    /// The work is sound, as [the module](self) says, in the node's place in the order.
    #[allow(unsafe_code)]
    unsafe fn update(&self, node: usize, work: Work<'_>) -> Result<()>;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A point in a stream with a time.
pub trait Event: Any + Send + Sync {
    /// The ticket that is reached with it.
    fn ticket(&self) -> Ticket;

    /// Nanoseconds of the device's clock from `start` to this event. Both must be reached, and of one device.
    fn elapsed_ns(&self, start: &dyn Event) -> Result<u64>;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// Memory of one device that this process holds through one open device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryStats {
    /// Bytes in live buffers.
    pub live_bytes: u64,
    /// Most bytes that were ever in live buffers at once.
    pub peak_bytes: u64,
    /// Live buffers.
    pub buffers: u64,
    /// Blocks taken from the driver.
    pub blocks: u64,
    /// Bytes taken from the driver.
    pub block_bytes: u64,
    /// The driver's budget for the process over the device's own heaps, in bytes, where it says.
    pub budget_bytes: Option<u64>,
}

impl MemoryStats {
    /// The part of the blocks that no buffer uses, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        if self.block_bytes == 0 {
            return 0.0;
        }
        1.0 - self.live_bytes.min(self.block_bytes) as f64 / self.block_bytes as f64
    }
}
