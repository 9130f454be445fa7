//! Bytes on a device: one buffer each, over a part of a block, an allocation of its own, or memory that came from outside.

use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ash::vk;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};
use gpu_allocator::{AllocationError, MemoryLocation};
use onebuf_core::backend::{self, CUDA_EXPORTER, Export, Memory, PageAccess};
use onebuf_core::{Error, HandleKind, Result};

use crate::adapter::{Physical, USAGE};
use crate::descriptor;
use crate::error::out_of_memory;
use crate::shared::Shared;

/// Buffers begin at multiples of this in memory, so that their bytes fit what NumPy, JAX and SIMD loads expect.
const ALIGNMENT_BYTES: u64 = 256;

/// A buffer and the memory under it.
pub(crate) struct VulkanMemory {
    pub(crate) buffer: vk::Buffer,
    pub(crate) id: u64,
    pub(crate) size_bytes: u64,
    backing: Backing,
    host: Option<HostView>,
    /// The caller's pages may not be written.
    read_only: bool,
    pub(crate) shared: Arc<Shared>,
}

/// Who owns the memory under a buffer.
enum Backing {
    /// A part of one of the allocator's blocks. `None` only while it is being freed.
    Block(Option<Allocation>),
    /// An allocation of its own: exportable, imported, or the caller's pages.
    Own(OwnMemory),
    /// Somebody else's buffer; the value keeps it alive.
    #[cfg(feature = "wgpu")]
    Foreign { _keep: Box<dyn Send + Sync> },
}

/// An allocation that holds one buffer.
struct OwnMemory {
    memory: vk::DeviceMemory,
    allocation_bytes: u64,
    /// Index of the memory kind.
    kind: usize,
    exportable: bool,
}

/// How the CPU sees the bytes.
struct HostView {
    pointer: NonNull<u8>,
    coherent: bool,
    /// Where the buffer begins in its `VkDeviceMemory`, and how long that is: flushes are in its coordinates.
    memory_offset: u64,
    memory_bytes: u64,
}

// SAFETY: the pointer is to memory that lives as long as this value, and nothing here reads or writes through it;
// those who do keep the rules of `onebuf_core::backend::Memory`.
unsafe impl Send for HostView {}
// SAFETY: as above.
unsafe impl Sync for HostView {}

impl VulkanMemory {
    /// Memory of one kind, sub-allocated unless it must be exportable.
    pub(crate) fn allocate(shared: &Arc<Shared>, request: &backend::Allocation) -> Result<VulkanMemory> {
        shared.check_alive()?;
        if request.exportable {
            VulkanMemory::allocate_exportable(shared, request)
        } else {
            VulkanMemory::allocate_block(shared, request)
        }
    }

    fn allocate_block(shared: &Arc<Shared>, request: &backend::Allocation) -> Result<VulkanMemory> {
        let index = memory_type(shared, request.kind)?;
        let info = vk::BufferCreateInfo::default().size(request.size_bytes).usage(USAGE);
        let pending = PendingBuffer::create(shared, &info)?;
        let mut requirements = pending.requirements(index)?;
        let flags = shared.physical.memory.memory_types[index as usize].property_flags;
        let coherent = flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT);
        let mut alignment = ALIGNMENT_BYTES;
        if !coherent {
            // Two buffers never share an atom: the flush of one would carry stale bytes of the other.
            alignment = alignment.max(shared.physical.info.limits.non_coherent_atom_bytes);
        }
        requirements.alignment = requirements.alignment.max(alignment);
        requirements.size = requirements.size.next_multiple_of(alignment);
        let allocation = shared.allocator.lock().allocate(&AllocationCreateDesc {
            name: "buffer",
            requirements,
            location: MemoryLocation::Unknown, // The one type left in the requirements decides.
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        });
        let full =
            || Error::OutOfMemory { asked_bytes: request.size_bytes, free_bytes: None, never_fits: false };
        let allocation = allocation.map_err(|error| match error {
            // A mapping fails where there is memory and no address space.
            AllocationError::OutOfMemory | AllocationError::FailedToMap(_) => full(),
            other => Error::Driver { call: "vkAllocateMemory", code: other.to_string() },
        })?;
        if allocation.mapped_ptr().is_some_and(|pointer| !is_mapping(pointer)) {
            let _ = shared.allocator.lock().free(allocation);
            return Err(full());
        }
        // SAFETY: the memory is the allocator's, large and aligned enough, and of a type the buffer allows.
        let memory = unsafe { allocation.memory() };
        let host = allocation.mapped_ptr().filter(|_| request.mapped).map(|pointer| HostView {
            pointer: pointer.cast(),
            coherent,
            memory_offset: allocation.offset(),
            // The end of the block is not known here; atoms fit in the part, since it is a multiple of them.
            memory_bytes: allocation.offset() + allocation.size(),
        });
        // SAFETY: as above; the buffer is not bound yet.
        let bound = unsafe { shared.raw.bind_buffer_memory(pending.buffer, memory, allocation.offset()) };
        if let Err(code) = bound {
            let _ = shared.allocator.lock().free(allocation);
            return Err(shared.fail("vkBindBufferMemory")(code));
        }
        Ok(pending.finish(request.size_bytes, Backing::Block(Some(allocation)), host))
    }

    /// An allocation of its own, which a peer imports whole: it holds nothing but this buffer, and starts as zeros, so
    /// that nothing of a neighbour or of an earlier owner leaves the process.
    fn allocate_exportable(shared: &Arc<Shared>, request: &backend::Allocation) -> Result<VulkanMemory> {
        let handles = handle_flags(&shared.physical.export);
        if handles.is_empty() {
            return Err(Error::unsupported("exportable memory", "the driver exports no buffer memory"));
        }
        let index = memory_type(shared, request.kind)?;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handles);
        let info =
            vk::BufferCreateInfo::default().size(request.size_bytes).usage(USAGE).push_next(&mut external);
        let pending = PendingBuffer::create(shared, &info)?;
        let requirements = pending.requirements(index)?;
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(handles);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(pending.buffer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(requirements.size)
            .memory_type_index(index)
            .push_next(&mut export)
            .push_next(&mut dedicated);
        let memory = pending
            .allocate_own(index, &info)
            .map_err(|error| error.or_no_descriptor_left("exportable memory"))?;
        let own =
            OwnMemory { memory, allocation_bytes: requirements.size, kind: request.kind, exportable: true };
        let memory = pending.bind_mapped(index, own, request.size_bytes, request.mapped)?;
        memory.zero()?;
        Ok(memory)
    }

    /// The caller's pages.
    pub(crate) fn import_host(
        shared: &Arc<Shared>,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<VulkanMemory> {
        shared.check_alive()?;
        let Some(host) = &shared.memory_host else {
            return Err(Error::unsupported(
                "import of host memory",
                "the driver imports none (VK_EXT_external_memory_host)",
            ));
        };
        let handle = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let info = vk::BufferCreateInfo::default().size(size_bytes).usage(USAGE).push_next(&mut external);
        let pending = PendingBuffer::create(shared, &info)?;
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: the pointer is valid for the size, and aligned, as the caller of `Device::import_host` promises. ash has
        // no wrapper for this function, so it is called through the table.
        let code = unsafe {
            (host.fp().get_memory_host_pointer_properties_ext)(
                shared.raw.handle(),
                handle,
                pointer.as_ptr().cast(),
                &mut properties,
            )
        };
        code.result().map_err(refused)?;
        let allowed = pending.memory_type_bits() & properties.memory_type_bits;
        let index = import_type(shared, allowed)
            .ok_or_else(|| Error::unsupported("import of host memory", "no memory type takes these pages"))?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(handle)
            .host_pointer(pointer.as_ptr().cast());
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size_bytes)
            .memory_type_index(index)
            .push_next(&mut import);
        // SAFETY: as above.
        let memory = unsafe { shared.raw.allocate_memory(&info, None) }.map_err(|code| match code {
            vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_DEVICE_LOST => {
                out_of_memory("vkAllocateMemory (import)", size_bytes)(code)
            }
            // No memory is allocated, so whatever else a driver answers is about these pages.
            other => refused(other),
        })?;
        let kind = shared.physical.types.iter().position(|&t| t == index).unwrap_or(0);
        let own = OwnMemory { memory, allocation_bytes: size_bytes, kind, exportable: false };
        let coherent = is_coherent(shared, index);
        let view = HostView { pointer, coherent, memory_offset: 0, memory_bytes: size_bytes };
        let mut memory = pending.bind(own, size_bytes, Some(view))?;
        memory.read_only = access == PageAccess::Read;
        Ok(memory)
    }

    /// A buffer of somebody else's, which `keep` keeps alive.
    #[cfg(feature = "wgpu")]
    pub(crate) fn foreign(
        shared: &Arc<Shared>,
        buffer: vk::Buffer,
        size_bytes: u64,
        keep: Box<dyn Send + Sync>,
    ) -> VulkanMemory {
        let (id, shared) = (shared.next_memory(), shared.clone());
        let backing = Backing::Foreign { _keep: keep };
        VulkanMemory { buffer, id, size_bytes, backing, host: None, read_only: false, shared }
    }

    /// What another process or API exported.
    pub(crate) fn import(shared: &Arc<Shared>, export: Export, origin: Origin) -> Result<VulkanMemory> {
        shared.check_alive()?;
        let bad = |what: String| Err(Error::InvalidArgument(what));
        if !shared.physical.import.contains(&export.handle) {
            let what = format!("import of {}", export.handle.name());
            return Err(Error::unsupported(what, "the driver imports no buffer memory of that kind"));
        }
        if export.size_bytes == 0 || export.size_bytes > export.allocation_bytes {
            return bad(format!(
                "a buffer of {} bytes in an allocation of {}",
                export.size_bytes, export.allocation_bytes
            ));
        }
        let of_cuda = origin == Origin::ThisProcess && is_cudas(&export);
        if export.handle == HandleKind::OpaqueFd
            && (!of_cuda && export.driver != shared.physical.driver_uuid
                || export.device != shared.physical.info.uuid)
        {
            return bad(
                "the memory was exported by another driver or device; an opaque fd means nothing here".into(),
            );
        }
        let index = memory_type(shared, export.kind)?;
        let handle = handle_flags(&[export.handle]);
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle);
        let info =
            vk::BufferCreateInfo::default().size(export.size_bytes).usage(USAGE).push_next(&mut external);
        let pending = PendingBuffer::create(shared, &info)?;
        let requirements = pending.requirements(index)?;
        // Vulkan's exports are dedicated, and a dedicated allocation has exactly the size that the buffer needs. CUDA's are whole
        // granules.
        let fits = if of_cuda {
            requirements.size <= export.allocation_bytes
        } else {
            requirements.size == export.allocation_bytes
        };
        if !fits {
            return bad(format!(
                "a buffer of {} bytes needs an allocation of {}, the exported one is said to have {}",
                export.size_bytes, requirements.size, export.allocation_bytes
            ));
        }
        let identity = descriptor::check(&export, shared.exported_file(export.handle))?;
        let is_dedicated = export.dedicated || !of_cuda;
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(pending.buffer);
        let fd = export.fd.into_raw_fd();
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(handle).fd(fd);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(export.allocation_bytes)
            .memory_type_index(index)
            .push_next(&mut import);
        let info = if is_dedicated { info.push_next(&mut dedicated) } else { info };
        let memory = match pending.allocate_own(index, &info) {
            Ok(memory) => memory,
            Err(error) => {
                descriptor::close_after_failed_import(fd, identity);
                return Err(error);
            }
        };
        let own = OwnMemory {
            memory,
            allocation_bytes: export.allocation_bytes,
            kind: export.kind,
            exportable: false,
        };
        pending.bind_mapped(index, own, export.size_bytes, true)
    }

    /// Zeroes the whole buffer, and waits for it.
    fn zero(&self) -> Result<()> {
        if let Some(host) = &self.host {
            // SAFETY: the memory is new, mapped for its whole size, and nobody else knows it.
            // All of it, for a peer maps the whole allocation.
            unsafe { host.pointer.write_bytes(0, host.memory_bytes as usize) };
            return self.flush(0, self.size_bytes);
        }
        crate::stream::run_once(&self.shared, |cmd| {
            // SAFETY: the command buffer records, and the buffer lives until the work is done.
            unsafe { self.shared.raw.cmd_fill_buffer(cmd, self.buffer, 0, vk::WHOLE_SIZE, 0) };
        })
    }

    /// A range in the coordinates of the memory object, widened to atoms and clipped to the object.
    fn atoms(&self, offset_bytes: u64, size_bytes: u64) -> Result<Option<vk::MappedMemoryRange<'static>>> {
        let end = offset_bytes.checked_add(size_bytes).filter(|&end| end <= self.size_bytes);
        let Some(end) = end else {
            let size = self.size_bytes;
            return Err(Error::InvalidArgument(format!(
                "{size_bytes} bytes from {offset_bytes} of a buffer of {size}"
            )));
        };
        let Some(host) = self.host.as_ref().filter(|host| !host.coherent && size_bytes > 0) else {
            return Ok(None);
        };
        let memory = match &self.backing {
            // SAFETY: the allocation is live; its memory object is only named here.
            Backing::Block(Some(allocation)) => unsafe { allocation.memory() },
            Backing::Own(own) => own.memory,
            _ => return Ok(None),
        };
        let atom = self.shared.physical.info.limits.non_coherent_atom_bytes.max(1);
        let start = (host.memory_offset + offset_bytes) / atom * atom;
        let end = (host.memory_offset + end).next_multiple_of(atom).min(host.memory_bytes);
        Ok(Some(vk::MappedMemoryRange::default().memory(memory).offset(start).size(end - start)))
    }
}

impl Memory for VulkanMemory {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn host_pointer(&self) -> Option<NonNull<u8>> {
        self.host.as_ref().map(|host| host.pointer)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn flush(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        let Some(range) = self.atoms(offset_bytes, size_bytes)? else { return Ok(()) };
        // SAFETY: the range is of a live, mapped memory object, in whole atoms or up to its end.
        unsafe { self.shared.raw.flush_mapped_memory_ranges(&[range]) }
            .map_err(self.shared.fail("vkFlushMappedMemoryRanges"))
    }

    fn invalidate(&self, offset_bytes: u64, size_bytes: u64) -> Result<()> {
        let Some(range) = self.atoms(offset_bytes, size_bytes)? else { return Ok(()) };
        // SAFETY: as for flush.
        unsafe { self.shared.raw.invalidate_mapped_memory_ranges(&[range]) }
            .map_err(self.shared.fail("vkInvalidateMappedMemoryRanges"))
    }

    fn export(&self, handle: HandleKind) -> Result<Export> {
        let Backing::Own(OwnMemory { memory, allocation_bytes, kind, exportable: true }) = self.backing
        else {
            return Err(Error::unsupported(
                format!("export as {}", handle.name()),
                "the buffer was not made to be shared; build it with `.share(Share::Process)`",
            ));
        };
        let (Some(functions), true) = (&self.shared.memory_fd, self.shared.physical.export.contains(&handle))
        else {
            return Err(Error::unsupported(
                format!("export as {}", handle.name()),
                "the driver does not export that kind",
            ));
        };
        let info = vk::MemoryGetFdInfoKHR::default().memory(memory).handle_type(handle_flags(&[handle]));
        let none_left = || Error::Os {
            what: "vkGetMemoryFdKHR".into(),
            reason: "no file descriptor is left; raise the limit on open files (ulimit -n)".into(),
        };
        // SAFETY: the memory was allocated to be exported with this handle type.
        let fd = unsafe { functions.get_memory_fd(&info) }.map_err(|code| match code {
            // SwiftShader gives the second where it cannot duplicate its descriptor.
            vk::Result::ERROR_TOO_MANY_OBJECTS | vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => none_left(),
            other => self.shared.fail("vkGetMemoryFdKHR")(other).or_no_descriptor_left("vkGetMemoryFdKHR"),
        })?;
        if fd < 0 {
            // lavapipe passes on what `dup` says, and calls it a success.
            return Err(none_left());
        }
        // SAFETY: the driver made the descriptor for us; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Drivers leave it open to every program that this process starts.
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::os("FD_CLOEXEC on an exported descriptor", &error.into()))?;
        let driver = self.shared.physical.driver_uuid;
        let device = self.shared.physical.info.uuid;
        Ok(Export {
            fd,
            token: None,
            pool: None,
            handle,
            allocation_bytes,
            size_bytes: self.size_bytes,
            kind,
            granule_bytes: 1,
            dedicated: true,
            device_local: self.shared.physical.is_device_local(kind),
            device,
            driver,
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VulkanMemory {
    fn drop(&mut self) {
        let shared = &self.shared;
        #[cfg(feature = "wgpu")]
        if let Backing::Foreign { .. } = self.backing {
            return;
        }
        // SAFETY: queued work keeps the memory it uses alive, so none uses this buffer any more. The buffer goes before
        // the memory under it; a mapped memory object may be freed as it is.
        unsafe { shared.raw.destroy_buffer(self.buffer, None) };
        match &mut self.backing {
            Backing::Block(allocation) => {
                if let Some(allocation) = allocation.take()
                    && let Err(error) = shared.allocator.lock().free(allocation)
                {
                    tracing::error!(%error, "memory could not be freed");
                }
            }
            Backing::Own(own) => {
                // SAFETY: as above.
                unsafe { shared.raw.free_memory(own.memory, None) };
                shared.usage.dedicated.fetch_sub(1, Ordering::Relaxed);
                shared.usage.dedicated_bytes.fetch_sub(own.allocation_bytes, Ordering::Relaxed);
            }
            #[cfg(feature = "wgpu")]
            Backing::Foreign { .. } => {}
        }
        shared.usage.remove(self.size_bytes);
    }
}

/// Leaves of a device's memory types those that its buffers may lie in, which takes a logical device to ask. The answer
/// is the same for all buffers of one usage and one set of handle types (Vulkan 1.3, 12.7, "Resource Memory Association").
pub(crate) fn narrow_types(raw: &ash::Device, physical: &mut Physical) {
    let allowed = |handles: vk::ExternalMemoryHandleTypeFlags| {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(handles);
        let mut info = vk::BufferCreateInfo::default().size(ALIGNMENT_BYTES).usage(USAGE);
        if !handles.is_empty() {
            info = info.push_next(&mut external);
        }
        // SAFETY: a small buffer that is never bound; the handle types are ones that the device exports.
        let buffer = unsafe { raw.create_buffer(&info, None) }.ok()?;
        // SAFETY: the buffer is live.
        let bits = unsafe { raw.get_buffer_memory_requirements(buffer) }.memory_type_bits;
        // SAFETY: nobody uses the buffer.
        unsafe { raw.destroy_buffer(buffer, None) };
        Some(bits)
    };
    // Where the device cannot even answer that, a later allocation says why.
    let plain = allowed(vk::ExternalMemoryHandleTypeFlags::empty()).unwrap_or(u32::MAX);
    physical.types.retain(|index| plain & (1 << index) != 0);
    let handles = handle_flags(&physical.export);
    if !handles.is_empty() {
        physical.export_types = allowed(handles).unwrap_or(u32::MAX);
    }
}

/// A buffer that has no memory yet; it is destroyed unless it gets some.
struct PendingBuffer<'a> {
    shared: &'a Arc<Shared>,
    buffer: vk::Buffer,
}

impl<'a> PendingBuffer<'a> {
    fn create(shared: &'a Arc<Shared>, info: &vk::BufferCreateInfo<'_>) -> Result<PendingBuffer<'a>> {
        // SAFETY: the size is at least 1 and within the device's limit, which the caller has checked.
        let buffer = unsafe { shared.raw.create_buffer(info, None) }
            .map_err(out_of_memory("vkCreateBuffer", info.size))?;
        Ok(PendingBuffer { shared, buffer })
    }

    fn memory_type_bits(&self) -> u32 {
        // SAFETY: the buffer is live.
        unsafe { self.shared.raw.get_buffer_memory_requirements(self.buffer) }.memory_type_bits
    }

    /// The requirements, narrowed to one memory type.
    fn requirements(&self, index: u32) -> Result<vk::MemoryRequirements> {
        // SAFETY: the buffer is live.
        let mut requirements = unsafe { self.shared.raw.get_buffer_memory_requirements(self.buffer) };
        requirements.memory_type_bits &= 1 << index;
        if requirements.memory_type_bits == 0 {
            return Err(Error::unsupported(
                format!("a buffer in memory type {index}"),
                "the driver does not allow it",
            ));
        }
        Ok(requirements)
    }

    /// Memory of one type for this buffer alone.
    fn allocate_own(&self, index: u32, info: &vk::MemoryAllocateInfo<'_>) -> Result<vk::DeviceMemory> {
        debug_assert_eq!(info.memory_type_index, index);
        // SAFETY: the caller built `info` for this buffer and a type that it allows.
        unsafe { self.shared.raw.allocate_memory(info, None) }
            .map_err(out_of_memory("vkAllocateMemory", info.allocation_size))
    }

    /// Binds, and maps where the type is host-visible and `map` asks for it.
    fn bind_mapped(self, index: u32, own: OwnMemory, size_bytes: u64, map: bool) -> Result<VulkanMemory> {
        let shared = self.shared;
        let flags = shared.physical.memory.memory_types[index as usize].property_flags;
        if !map || !flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE) {
            return self.bind(own, size_bytes, None);
        }
        // SAFETY: the memory is host-visible and not mapped.
        let mapped =
            unsafe { shared.raw.map_memory(own.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
        let full = || Error::OutOfMemory { asked_bytes: size_bytes, free_bytes: None, never_fits: false };
        let pointer = match mapped {
            Ok(pointer) => {
                NonNull::new(pointer).filter(|p| is_mapping(*p)).map(NonNull::cast).ok_or_else(full)
            }
            Err(vk::Result::ERROR_MEMORY_MAP_FAILED) => Err(full()),
            Err(code) => Err(shared.fail("vkMapMemory")(code)),
        };
        match pointer {
            Ok(pointer) => {
                let coherent = flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT);
                let memory_bytes = own.allocation_bytes;
                self.bind(
                    own,
                    size_bytes,
                    Some(HostView { pointer, coherent, memory_offset: 0, memory_bytes }),
                )
            }
            Err(error) => {
                // SAFETY: nothing uses the memory yet.
                unsafe { shared.raw.free_memory(own.memory, None) };
                Err(error)
            }
        }
    }

    fn bind(self, own: OwnMemory, size_bytes: u64, view: Option<HostView>) -> Result<VulkanMemory> {
        let shared = self.shared;
        // SAFETY: the memory is of a type the buffer allows, at least as long as it needs, and bound to nothing else.
        if let Err(code) = unsafe { shared.raw.bind_buffer_memory(self.buffer, own.memory, 0) } {
            // SAFETY: the bind failed, so nothing uses the memory.
            unsafe { shared.raw.free_memory(own.memory, None) };
            return Err(shared.fail("vkBindBufferMemory")(code));
        }
        shared.usage.dedicated.fetch_add(1, Ordering::Relaxed);
        shared.usage.dedicated_bytes.fetch_add(own.allocation_bytes, Ordering::Relaxed);
        Ok(self.finish(size_bytes, Backing::Own(own), view))
    }

    fn finish(self, size_bytes: u64, backing: Backing, host: Option<HostView>) -> VulkanMemory {
        let shared = self.shared.clone();
        let buffer = self.buffer;
        std::mem::forget(self);
        shared.usage.add(size_bytes);
        let id = shared.next_memory();
        VulkanMemory { buffer, id, size_bytes, backing, host, read_only: false, shared }
    }
}

impl Drop for PendingBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer was made here, was bound to nothing that is in use, and nobody else has it.
        unsafe { self.shared.raw.destroy_buffer(self.buffer, None) };
    }
}

/// Whether a driver's pointer can be a mapping: they begin at multiples of `minMemoryMapAlignment`, which is at least
/// 64. lavapipe of Mesa 25.0 hands out what a failed `mmap` returns, -1, and calls it a success.
fn is_mapping(pointer: NonNull<c_void>) -> bool {
    pointer.addr().get().is_multiple_of(64)
}

/// The memory type behind a kind of the profile.
fn memory_type(shared: &Shared, kind: usize) -> Result<u32> {
    let known = shared.physical.types.get(kind).copied();
    known.ok_or_else(|| Error::InvalidArgument(format!("the device has no memory kind {kind}")))
}

/// Where imported memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Maybe from another process, whose word is not taken for what another API made.
    Anywhere,
    /// From another device of this process.
    ThisProcess,
}

/// Whether memory was exported by CUDA.
fn is_cudas(export: &Export) -> bool {
    export.driver == CUDA_EXPORTER && export.device.is_some()
}

/// The kind that an exported object is here. CUDA's descriptors are of the device's own memory, which the CPU does not see.
pub(crate) fn kind_of(shared: &Shared, export: &Export) -> Result<usize> {
    if !is_cudas(export) {
        return Ok(export.kind);
    }
    let flags = |index: u32| shared.physical.memory.memory_types[index as usize].property_flags;
    let (local, visible) = (vk::MemoryPropertyFlags::DEVICE_LOCAL, vk::MemoryPropertyFlags::HOST_VISIBLE);
    let own = |index: &u32| flags(*index).contains(local) && !flags(*index).intersects(visible);
    shared.physical.types.iter().position(own).ok_or_else(|| {
        Error::unsupported("import of CUDA's memory", "the device has no memory that the CPU does not see")
    })
}

fn is_coherent(shared: &Shared, index: u32) -> bool {
    shared.physical.memory.memory_types[index as usize]
        .property_flags
        .contains(vk::MemoryPropertyFlags::HOST_COHERENT)
}

/// Of the types that take the caller's pages a coherent one, cached if there is any: flushes are for memory that the
/// driver has mapped, which pages of the program never are.
fn import_type(shared: &Shared, allowed: u32) -> Option<u32> {
    let flags = |index: u32| shared.physical.memory.memory_types[index as usize].property_flags;
    let types = shared.physical.types.iter().copied().filter(|index| allowed & (1 << index) != 0);
    let coherent = types.filter(|&index| flags(index).contains(vk::MemoryPropertyFlags::HOST_COHERENT));
    coherent.min_by_key(|&index| !flags(index).contains(vk::MemoryPropertyFlags::HOST_CACHED))
}

fn handle_flags(kinds: &[HandleKind]) -> vk::ExternalMemoryHandleTypeFlags {
    kinds.iter().fold(vk::ExternalMemoryHandleTypeFlags::empty(), |flags, kind| {
        flags
            | match kind {
                HandleKind::OpaqueFd => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
                HandleKind::DmaBuf => vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT,
                // Not Vulkan's: a memfd is imported as the pages that it is mapped to.
                HandleKind::CudaIpc | HandleKind::CudaPool | HandleKind::Memfd => {
                    vk::ExternalMemoryHandleTypeFlags::empty()
                }
            }
    })
}

fn refused(code: vk::Result) -> Error {
    Error::unsupported(
        "import of host memory",
        format!("the driver refused these pages ({code:?}); some take only anonymous private memory"),
    )
}
