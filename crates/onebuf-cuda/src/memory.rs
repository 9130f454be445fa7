//! Bytes on a device: one buffer each, by each of CUDA's ways to allocate, and memory that came from outside.

use std::any::Any;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUresult, CUstream};
use onebuf_core::backend::{Allocation, CUDA_EXPORTER, Export, Memory, PageAccess, Part};
use onebuf_core::error::human_bytes;
use onebuf_core::{Error, HandleKind, Result};
use parking_lot::Mutex;

use crate::driver::{self, Version};
use crate::external::ExternalMemory;
use crate::foreign::Place;
use crate::handle;
use crate::host::HostMemory;
use crate::mapping::{self, Mapping};
use crate::object::Object;
use crate::pool::on_device;
use crate::profile::Kind;
use crate::shared::Shared;
use crate::tokens::{self, Held};

/// Ranges of unified memory from this size on are moved to the CPU ahead of a guard.
const PREFETCH_TO_HOST_BYTES: u64 = 1 << 20;

/// A buffer.
pub(crate) struct CudaMemory {
    /// The address that kernels use.
    pub(crate) pointer: u64,
    size_bytes: u64,
    /// The address that the CPU uses.
    host: Option<NonNull<u8>>,
    /// The CPU's pages may not be written.
    pub(crate) read_only: bool,
    backing: Backing,
    shared: Arc<Shared>,
}

/// Who owns the bytes.
enum Backing {
    /// Of the device's pool.
    Pool,
    /// Granules of their own: exportable, or imported.
    Mapping { mapping: Mapping, kind: usize, imported: bool },
    /// Vulkan's, on the same GPU.
    External(ExternalMemory),
    /// Named by a token: exportable, or imported.
    Named { held: Held, kind: usize, imported: bool },
    /// Unified: pages that move.
    Managed(Whereabouts),
    /// Page-locked memory of the driver's, at this address of the CPU.
    Pinned { base: NonNull<u8>, write_combined: bool },
    /// The program's pages from this address on, locked.
    Registered { base: NonNull<u8> },
    /// Another library's, which the value keeps alive.
    Foreign { place: Place, _keep: Box<dyn Any + Send + Sync> },
}

/// Who touched unified memory last.
#[derive(Default)]
struct Whereabouts {
    /// The range that the CPU touched since it was moved to the device, from and to, in bytes.
    on_host: Mutex<Option<(u64, u64)>>,
    /// Quick answer to whether `on_host` has a range.
    has_host_range: AtomicBool,
    /// The device used it since it was moved to the CPU.
    on_device: AtomicBool,
}

// SAFETY: the pointer is to memory that lives as long as this value, and nothing here reads or writes through it; those who
// do keep the rules of `onebuf_core::backend::Memory`. The driver's calls are thread-safe.
unsafe impl Send for CudaMemory {}
// SAFETY: as above.
unsafe impl Sync for CudaMemory {}

impl CudaMemory {
    /// Memory of one kind.
    pub(crate) fn allocate(shared: &Arc<Shared>, request: &Allocation) -> Result<CudaMemory> {
        let kind = shared.kinds.get(request.kind).copied();
        let kind = kind.ok_or_else(|| {
            Error::InvalidArgument(format!("the device has no memory kind {}", request.kind))
        })?;
        if request.exportable && kind.way().is_none() {
            return Err(Error::unsupported(
                format!("exportable memory of kind {}", kind.name()),
                "CUDA exports what was allocated for it alone; build the buffer with `.share(Share::Process)`",
            ));
        }
        let _entered = shared.enter()?;
        tokens::collect();
        let size = request.size_bytes;
        let first = CudaMemory::allocate_kind(shared, request, kind);
        if !matches!(first, Err(Error::OutOfMemory { .. })) {
            return first;
        }
        // What finished work still holds, and what the pool keeps, may be enough.
        shared.collect();
        shared.pool.trim();
        CudaMemory::allocate_kind(shared, request, kind).map_err(|error| match error {
            Error::OutOfMemory { .. } => {
                let heap = if matches!(kind, Kind::Pinned | Kind::PinnedWc) {
                    let host = HostMemory::read();
                    (Some(host.available_bytes), host.total_bytes)
                } else {
                    (shared.free_bytes(), shared.physical.total_bytes)
                };
                Error::OutOfMemory { asked_bytes: size, free_bytes: heap.0, never_fits: size > heap.1 }
            }
            other => other,
        })
    }

    fn allocate_kind(shared: &Arc<Shared>, request: &Allocation, kind: Kind) -> Result<CudaMemory> {
        let size = request.size_bytes;
        let failed = |(call, code): (&'static str, CUresult)| {
            shared.note(driver::allocation_error(call, code, size, None))
        };
        match kind {
            Kind::Device => {
                let pointer = shared.pool.allocate(size).map_err(failed)?;
                Ok(CudaMemory::new(shared, pointer, size, None, Backing::Pool))
            }
            Kind::DeviceIpc | Kind::DevicePool => {
                let way = kind.way().unwrap_or(HandleKind::CudaPool);
                let object = Object::create(shared, way, size).map_err(|(call, code)| match code {
                    CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_NOT_PERMITTED => {
                        advertised_only(call, code)
                    }
                    // What a pool that can be exported is refused with, where descriptors cannot be had.
                    CUresult::CUDA_ERROR_INVALID_VALUE if call == "cuMemPoolCreate" => {
                        advertised_only(call, code)
                    }
                    _ => failed((call, code)).or_no_descriptor_left("exportable memory"),
                })?;
                let pointer = object.pointer;
                // The whole of it, since a peer has the whole.
                shared.pool.zero(pointer, object.bytes).map_err(|error| shared.note(error))?;
                let backing = Backing::Named { held: Held::new(object), kind: request.kind, imported: false };
                Ok(CudaMemory::new(shared, pointer, size, None, backing))
            }
            Kind::DeviceVmm => {
                let mapping = Mapping::create(&shared.context, size).map_err(|(call, code)| match code {
                    CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_NOT_PERMITTED => {
                        advertised_only(call, code)
                    }
                    _ => failed((call, code)).or_no_descriptor_left("exportable memory"),
                })?;
                // The whole of it, since a peer maps the whole.
                shared.pool.zero(mapping.address(), mapping.bytes()).map_err(|error| shared.note(error))?;
                let pointer = mapping.address();
                let backing = Backing::Mapping { mapping, kind: request.kind, imported: false };
                Ok(CudaMemory::new(shared, pointer, size, None, backing))
            }
            Kind::Managed => CudaMemory::allocate_managed(shared, request),
            Kind::Pinned | Kind::PinnedWc => CudaMemory::allocate_pinned(shared, request, kind),
        }
    }

    fn allocate_managed(shared: &Arc<Shared>, request: &Allocation) -> Result<CudaMemory> {
        let size = request.size_bytes;
        // The driver would give more than the device has, and the first kernel that uses it may hang the GPU.
        if let Some(free) = shared.free_bytes().filter(|&free| size > free) {
            let never_fits = size > shared.physical.total_bytes;
            return Err(Error::OutOfMemory { asked_bytes: size, free_bytes: Some(free), never_fits });
        }
        let mut pointer = 0;
        let attach = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: the context is current, and the pointer is to a live integer.
        let code = unsafe { sys::cuMemAllocManaged(&mut pointer, size as usize, attach) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(shared.note(driver::allocation_error("cuMemAllocManaged", code, size, None)));
        }
        let host = NonNull::new(pointer as usize as *mut u8).filter(|_| request.mapped);
        Ok(CudaMemory::new(shared, pointer, size, host, Backing::Managed(Whereabouts::default())))
    }

    fn allocate_pinned(shared: &Arc<Shared>, request: &Allocation, kind: Kind) -> Result<CudaMemory> {
        let size = request.size_bytes;
        let mut flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        if kind == Kind::PinnedWc {
            flags |= sys::CU_MEMHOSTALLOC_WRITECOMBINED;
        }
        let mut host = std::ptr::null_mut();
        // SAFETY: the context is current, and the pointer is to a live pointer.
        let code = unsafe { sys::cuMemHostAlloc(&mut host, size as usize, flags) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(shared.note(driver::allocation_error("cuMemHostAlloc", code, size, None)));
        }
        let Some(base) = NonNull::new(host.cast::<u8>()) else {
            return Err(Error::Driver { call: "cuMemHostAlloc", code: "a null pointer".into() });
        };
        match device_pointer(host) {
            Ok(pointer) => {
                let backing = Backing::Pinned { base, write_combined: kind == Kind::PinnedWc };
                Ok(CudaMemory::new(shared, pointer, size, request.mapped.then_some(base), backing))
            }
            Err(error) => {
                // SAFETY: allocated just now, and nobody else knows it.
                let _ = unsafe { sys::cuMemFreeHost(host) };
                Err(shared.note(error))
            }
        }
    }

    /// The program's pages.
    pub(crate) fn import_host(
        shared: &Arc<Shared>,
        host: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<CudaMemory> {
        let attributes = &shared.physical.attributes;
        if !attributes.host_register {
            return Err(Error::unsupported(
                "import of host memory",
                "the device locks no pages of the program (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED is 0)",
            ));
        }
        let _entered = shared.enter()?;
        let raw = host.as_ptr().cast::<c_void>();
        let read_only = access == PageAccess::Read;
        let mut flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        if read_only && attributes.read_only_host_register {
            // Without this flag the driver refuses pages that may not be written.
            flags |= sys::CU_MEMHOSTREGISTER_READ_ONLY;
        }
        // SAFETY: the bytes are valid until the memory is dropped, as the caller of `Device::import_host` promises.
        let code = unsafe { sys::cuMemHostRegister_v2(raw, size_bytes as usize, flags) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(shared.note(refused_pages(code, size_bytes)));
        }
        match device_pointer(raw) {
            Ok(pointer) => {
                let backing = Backing::Registered { base: host };
                let mut memory = CudaMemory::new(shared, pointer, size_bytes, Some(host), backing);
                memory.read_only = read_only;
                Ok(memory)
            }
            Err(error) => {
                // SAFETY: registered just now, and nothing uses the pages through it.
                let _ = unsafe { sys::cuMemHostUnregister(raw) };
                Err(shared.note(error))
            }
        }
    }

    /// What another process or device object exported.
    pub(crate) fn import(shared: &Arc<Shared>, export: Export) -> Result<CudaMemory> {
        let bad = |what: String| Err(Error::InvalidArgument(what));
        let what = format!("import of {}", export.handle.name());
        if export.handle != HandleKind::OpaqueFd && !export.handle.has_token() {
            let reason = "CUDA imports the opaque-fd, the cuda-ipc and the cuda-pool of CUDA memory alone";
            return Err(Error::unsupported(what, reason));
        }
        let Some(kind) = shared.kinds.iter().position(|kind| kind.way() == Some(export.handle)) else {
            return Err(Error::unsupported(what, "the device has no memory that leaves a process so"));
        };
        if export.size_bytes == 0 || export.size_bytes > export.allocation_bytes {
            return bad(format!(
                "a buffer of {} bytes in an allocation of {}",
                export.size_bytes, export.allocation_bytes
            ));
        }
        if export.allocation_bytes > shared.physical.total_bytes {
            return bad(format!(
                "an allocation of {} on a device of {}",
                human_bytes(export.allocation_bytes),
                human_bytes(shared.physical.total_bytes)
            ));
        }
        if export.driver != CUDA_EXPORTER || export.device != shared.physical.info.uuid {
            return bad(
                "the memory was exported by another driver or device; an opaque fd means nothing here".into(),
            );
        }
        if export.handle.has_token() {
            let _entered = shared.enter()?;
            tokens::collect();
            let size_bytes = export.size_bytes;
            let held = Held::open(shared, export).map_err(|error| shared.note(error))?;
            let pointer = held.pointer();
            let backing = Backing::Named { held, kind, imported: true };
            return Ok(CudaMemory::new(shared, pointer, size_bytes, None, backing));
        }
        mapping::check_fd(export.fd.as_fd())?;
        let _entered = shared.enter()?;
        let mapping = Mapping::import(&shared.context, export.fd.as_fd(), export.allocation_bytes)
            .map_err(|error| shared.note(error))?;
        let pointer = mapping.address();
        let backing = Backing::Mapping { mapping, kind, imported: true };
        Ok(CudaMemory::new(shared, pointer, export.size_bytes, None, backing))
    }

    /// What Vulkan exported on the same GPU, in this process, and the kind that it is here: the device's own memory.
    pub(crate) fn import_vulkans(shared: &Arc<Shared>, export: Export) -> Result<(CudaMemory, usize)> {
        let what = "import of Vulkan's memory";
        let kind = shared.kinds.iter().position(|kind| kind.way() == Some(HandleKind::OpaqueFd));
        let kind = kind.ok_or_else(|| {
            Error::unsupported(what, "the device has no virtual memory management with file descriptors")
        })?;
        if !export.device_local {
            // CUDA maps it as it maps memory of its own, and reads what the CPU wrote stale (seen on an H200).
            let reason = "it is memory of the CPU that Vulkan exported, which CUDA reads stale; build the buffer with \
                          `.ways([HandleKind::Memfd])`, or for heavy use by the device";
            return Err(Error::unsupported(what, reason));
        }
        let _entered = shared.enter()?;
        let size_bytes = export.size_bytes;
        let memory = ExternalMemory::import(&shared.context, export).map_err(|error| shared.note(error))?;
        let pointer = memory.address();
        Ok((CudaMemory::new(shared, pointer, size_bytes, None, Backing::External(memory)), kind))
    }

    /// Memory that another library owns.
    pub(crate) fn foreign(
        shared: &Arc<Shared>,
        pointer: u64,
        size_bytes: u64,
        host: Option<NonNull<u8>>,
        place: Place,
        keep: Box<dyn Any + Send + Sync>,
    ) -> CudaMemory {
        CudaMemory::new(shared, pointer, size_bytes, host, Backing::Foreign { place, _keep: keep })
    }

    /// What the memory is to other libraries.
    pub(crate) fn place(&self) -> Place {
        match &self.backing {
            Backing::Pool | Backing::Mapping { .. } | Backing::Named { .. } | Backing::External(_) => {
                Place::Device
            }
            Backing::Managed(_) => Place::Managed,
            Backing::Pinned { .. } | Backing::Registered { .. } => Place::Host,
            Backing::Foreign { place, .. } => *place,
        }
    }

    fn new(
        shared: &Arc<Shared>,
        pointer: u64,
        size_bytes: u64,
        host: Option<NonNull<u8>>,
        backing: Backing,
    ) -> CudaMemory {
        let memory =
            CudaMemory { pointer, size_bytes, host, read_only: false, backing, shared: shared.clone() };
        shared.usage.add(size_bytes, memory.block_bytes());
        memory
    }

    /// Bytes that were taken from the driver for this buffer alone; `None` for a part of the pool.
    fn block_bytes(&self) -> Option<u64> {
        match &self.backing {
            Backing::Pool | Backing::Foreign { .. } => None,
            Backing::Mapping { mapping, .. } => Some(mapping.bytes()),
            Backing::External(memory) => Some(memory.bytes()),
            Backing::Named { held, .. } => Some(held.bytes()),
            Backing::Managed(_) | Backing::Pinned { .. } | Backing::Registered { .. } => {
                Some(self.size_bytes)
            }
        }
    }

    /// Moves what the CPU touched of unified memory to the device, as work of `stream`, and notes that the device uses it.
    /// Nothing for other memory. The context is current.
    pub(crate) fn before_device(&self, stream: CUstream) {
        let Backing::Managed(whereabouts) = &self.backing else { return };
        whereabouts.on_device.store(true, Ordering::Relaxed);
        if !whereabouts.has_host_range.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some((start, end)) = whereabouts.on_host.lock().take()
            && can_prefetch(&self.shared)
        {
            self.prefetch(start, end, on_device(self.shared.context.device), stream);
        }
    }

    /// A hint: where it is refused, pages move at their first access.
    fn prefetch(&self, start: u64, end: u64, to: sys::CUmemLocation, stream: CUstream) {
        let bytes = (end - start) as usize;
        // SAFETY: the range is within live unified memory, and the stream is live.
        let code = unsafe { sys::cuMemPrefetchAsync_v2(self.pointer + start, bytes, to, 0, stream) };
        if code != CUresult::CUDA_SUCCESS {
            tracing::debug!(code = driver::name(code), "unified memory was not moved ahead of its use");
        }
    }

    /// True for memory whose pages move.
    pub(crate) fn is_unified(&self) -> bool {
        matches!(self.backing, Backing::Managed(_))
    }

    fn export_named(&self, held: &Held, kind: usize, handle: HandleKind) -> Result<Export> {
        let way = self.shared.kinds.get(kind).and_then(|kind| kind.way());
        if way != Some(handle) {
            let has = way.map_or("nothing", HandleKind::name);
            return Err(Error::unsupported(
                format!("export as {}", handle.name()),
                format!(
                    "the memory was allocated to leave as {has}; build the buffer for another way by `.ways([..])`"
                ),
            ));
        }
        let _entered = self.shared.enter()?;
        let (token, fd, pool) = held
            .export(&self.shared, handle)
            .map_err(|error| self.shared.note(error).or_no_descriptor_left("an export"))?;
        let sizes = (held.bytes(), self.size_bytes);
        Ok(Export { token: Some(token), pool, ..handle::export(&self.shared, fd, handle, kind, sizes) })
    }

    fn check_range(&self, offset_bytes: u64, size_bytes: u64) -> Result<u64> {
        let end = offset_bytes.checked_add(size_bytes).filter(|&end| end <= self.size_bytes);
        end.ok_or_else(|| {
            let size = self.size_bytes;
            Error::InvalidArgument(format!("{size_bytes} bytes from {offset_bytes} of a buffer of {size}"))
        })
    }

    /// Notes that the CPU touches a range of unified memory.
    fn touch(&self, whereabouts: &Whereabouts, start: u64, end: u64) {
        if start == end {
            return;
        }
        let mut range = whereabouts.on_host.lock();
        *range = Some(range.map_or((start, end), |(a, b)| (a.min(start), b.max(end))));
        whereabouts.has_host_range.store(true, Ordering::Release);
    }
}

impl Memory for CudaMemory {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.host
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn flush(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        let end = self.check_range(offset_bytes, size_bytes)?;
        if let Backing::Managed(whereabouts) = &self.backing {
            self.touch(whereabouts, offset_bytes, end);
        }
        if let Backing::Pinned { write_combined: true, .. } = &self.backing {
            // Writes that wait in the CPU's combining buffers go out before the launch that follows.
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        Ok(())
    }

    fn invalidate(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        let end = self.check_range(offset_bytes, size_bytes)?;
        let Backing::Managed(whereabouts) = &self.backing else { return Ok(()) };
        if size_bytes >= PREFETCH_TO_HOST_BYTES
            && can_prefetch(&self.shared)
            && whereabouts.on_device.swap(false, Ordering::Relaxed)
        {
            let _entered = self.shared.enter()?;
            let cpu = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 };
            self.prefetch(offset_bytes, end, cpu, self.shared.pool.stream);
            // SAFETY: the stream is live.
            let code = unsafe { sys::cuStreamSynchronize(self.shared.pool.stream) };
            driver::check("cuStreamSynchronize", code).map_err(|error| self.shared.note(error))?;
        }
        self.touch(whereabouts, offset_bytes, end);
        Ok(())
    }

    fn export(&self, handle: HandleKind) -> Result<Export> {
        let what = || format!("export as {}", handle.name());
        if let Backing::Named { held, kind, imported: false } = &self.backing {
            return self.export_named(held, *kind, handle);
        }
        let Backing::Mapping { mapping, kind, imported: false } = &self.backing else {
            let reason = match &self.backing {
                Backing::Mapping { .. } | Backing::Named { .. } | Backing::External(_) => {
                    "the buffer was imported; pass its exporter's descriptor on"
                }
                Backing::Pool => {
                    "memory of a pool cannot leave the process; build the buffer with `.share(Share::Process)`"
                }
                Backing::Managed(_) => {
                    "unified memory cannot leave the process; build the buffer with `.share(Share::Process)`"
                }
                Backing::Pinned { .. } => {
                    "page-locked memory cannot leave the process; build the buffer with `.share(Share::Process)`, or \
                     import a memfd's pages in each process"
                }
                Backing::Foreign { .. } => "the memory is another library's; share what that library exports",
                Backing::Registered { .. } => {
                    "the pages are the program's: share the file that they are mapped from"
                }
            };
            return Err(Error::unsupported(what(), reason));
        };
        if handle == HandleKind::DmaBuf && !self.shared.physical.attributes.dma_buf {
            return Err(Error::unsupported(what(), "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0"));
        }
        let _entered = self.shared.enter()?;
        let fd = mapping
            .export(handle)
            .map_err(|error| self.shared.note(error).or_no_descriptor_left("an export"))?;
        let sizes = (mapping.bytes(), self.size_bytes);
        let granule_bytes = mapping.granule_bytes();
        Ok(Export { granule_bytes, ..handle::export(&self.shared, fd, handle, *kind, sizes) })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.shared.usage.remove(self.size_bytes, self.block_bytes());
        let Ok(_entered) = self.shared.context.enter() else { return };
        // SAFETY: queued work keeps the memory it uses alive, so none uses this any more; each is freed by the counterpart
        // of what made it, once, with the address that it gave.
        let code = unsafe {
            match &self.backing {
                Backing::Pool => {
                    self.shared.pool.free(self.pointer);
                    return;
                }
                Backing::Mapping { .. }
                | Backing::Named { .. }
                | Backing::External(_)
                | Backing::Foreign { .. } => return,
                Backing::Managed(_) => sys::cuMemFree_v2(self.pointer),
                Backing::Pinned { base, .. } => sys::cuMemFreeHost(base.as_ptr().cast()),
                Backing::Registered { base } => sys::cuMemHostUnregister(base.as_ptr().cast()),
            }
        };
        if code != CUresult::CUDA_SUCCESS {
            tracing::debug!(code = driver::name(code), "memory could not be freed");
        }
    }
}

/// Whether memory was exported by Vulkan on the same GPU, which has the same UUID there.
pub(crate) fn is_vulkans(shared: &Shared, export: &Export) -> bool {
    let here = export.device.is_some() && export.device == shared.physical.info.uuid;
    export.handle == HandleKind::OpaqueFd && export.driver != CUDA_EXPORTER && here
}

/// The backend's own type behind memory of its own.
pub(crate) fn downcast(memory: &Arc<dyn Memory>) -> Option<&CudaMemory> {
    memory.as_any().downcast_ref()
}

/// The backend's memory behind a part.
pub(crate) fn of<'a>(part: &Part<'a>) -> Result<&'a CudaMemory> {
    downcast(part.memory)
        .ok_or_else(|| Error::InvalidArgument("the buffer is not memory of the CUDA backend".into()))
}

/// Memory that the device says it can export, and does not.
fn advertised_only(call: &'static str, code: CUresult) -> Error {
    let wsl = if driver::is_wsl() { "; WSL2 is known for this" } else { "" };
    let reason = format!("{call} answered {}, though the device advertises it{wsl}", driver::name(code));
    Error::unsupported("exportable memory", reason)
}

/// Whether unified memory can be moved ahead of its use: only where CPU and device may hold it at the same time, and by a
/// function of CUDA 12.2.
fn can_prefetch(shared: &Shared) -> bool {
    shared.options.prefetch
        && shared.physical.attributes.concurrent_managed
        && shared.physical.driver.version >= Version { major: 12, minor: 2 }
}

/// The device's address of page-locked memory. The context is current.
fn device_pointer(host: *mut c_void) -> Result<u64> {
    let mut pointer = 0;
    // SAFETY: the memory is page-locked and mapped; the pointer is to a live integer; the flags must be 0.
    let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pointer, host, 0) };
    driver::check("cuMemHostGetDevicePointer", code)?;
    Ok(pointer)
}

/// Why the driver locked no pages.
fn refused_pages(code: CUresult, size_bytes: u64) -> Error {
    let what = format!("import of {size_bytes} bytes of host memory");
    let reason = match code {
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
            "some of its pages are locked already: another import lies on them, or shares its first or last page. Drop \
             that import, import both parts as one, or align them to pages of 4096 bytes"
        }
        CUresult::CUDA_ERROR_INVALID_VALUE => {
            "the driver takes no such pages: they are not mapped, or of a kind that cannot be locked"
        }
        CUresult::CUDA_ERROR_OPERATING_SYSTEM | CUresult::CUDA_ERROR_NOT_PERMITTED => {
            "the system let none of them be locked; raise the limit on locked memory (ulimit -l)"
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            return driver::allocation_error("cuMemHostRegister", code, size_bytes, None);
        }
        _ => return driver::error("cuMemHostRegister", code),
    };
    Error::unsupported(what, format!("{reason} (cuMemHostRegister answered {})", driver::name(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_pages_are_explained() {
        let overlap = refused_pages(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 100).to_string();
        assert!(overlap.contains("another import") && overlap.contains("4096"), "{overlap}");
        let limit = refused_pages(CUresult::CUDA_ERROR_OPERATING_SYSTEM, 100).to_string();
        assert!(limit.contains("ulimit -l"), "{limit}");
        assert_eq!(
            refused_pages(CUresult::CUDA_ERROR_OUT_OF_MEMORY, 100),
            Error::OutOfMemory { asked_bytes: 100, free_bytes: None, never_fits: false }
        );
        assert!(matches!(refused_pages(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, 100), Error::DeviceLost(_)));
    }
}
