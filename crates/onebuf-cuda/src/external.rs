//! What Vulkan on the same GPU shares with CUDA: memory that it exported, and timeline semaphores.

use std::any::Any;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use onebuf_core::backend::{Export, Timeline};
use onebuf_core::{Error, Result, Ticket};

use crate::context::Context;
use crate::driver;
use crate::mapping;
use crate::shared::Shared;
use crate::stream::CudaStream;

/// Memory that Vulkan allocated, with an address here.
pub(crate) struct ExternalMemory {
    raw: sys::CUexternalMemory,
    address: u64,
    bytes: u64,
    context: Arc<Context>,
}

// SAFETY: a handle and an address, and the driver's calls are thread-safe.
unsafe impl Send for ExternalMemory {}
// SAFETY: as above.
unsafe impl Sync for ExternalMemory {}

impl ExternalMemory {
    /// Opens it. The context is current. The size must be the allocation's, and `dedicated` as it was made: the driver believes both.
    pub(crate) fn import(context: &Arc<Context>, export: Export) -> Result<ExternalMemory> {
        use std::os::fd::AsFd as _;
        mapping::check_fd(export.fd.as_fd())?;
        let bytes = export.allocation_bytes;
        let description = sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: sys::CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 { fd: export.fd.as_raw_fd() },
            size: bytes,
            flags: if export.dedicated { sys::CUDA_EXTERNAL_MEMORY_DEDICATED } else { 0 },
            reserved: [0; 16],
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the description is whole, its descriptor open, and the pointer is to a live handle.
        let code = unsafe { sys::cuImportExternalMemory(&mut raw, &description) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(match driver::error("cuImportExternalMemory", code) {
                lost @ Error::DeviceLost(_) => lost,
                _ => Error::InvalidArgument(format!(
                    "CUDA does not open this memory of Vulkan's (cuImportExternalMemory answered {})",
                    driver::name(code)
                )),
            });
        }
        // The driver owns it from here on.
        let _ = export.fd.into_raw_fd();
        let mut memory = ExternalMemory { raw, address: 0, bytes, context: context.clone() };
        let description =
            sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset: 0, size: bytes, flags: 0, reserved: [0; 16] };
        // SAFETY: the memory is live, the range is all of it, and the pointer is to a live integer.
        let code =
            unsafe { sys::cuExternalMemoryGetMappedBuffer(&mut memory.address, memory.raw, &description) };
        driver::check("cuExternalMemoryGetMappedBuffer", code)?;
        Ok(memory)
    }

    /// The address that kernels use.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes of the whole.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for ExternalMemory {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: no work uses the memory any more. The mapping goes before what it maps; Vulkan keeps its own hold.
        unsafe {
            if self.address != 0 {
                let _ = sys::cuMemFree_v2(self.address);
            }
            let _ = sys::cuDestroyExternalMemory(self.raw);
        }
    }
}

/// A timeline semaphore of Vulkan's.
pub(crate) struct CudaTimeline {
    raw: sys::CUexternalSemaphore,
    /// Where it is waited for and signalled. Before `shared`, which it holds.
    stream: CudaStream,
    shared: Arc<Shared>,
}

// SAFETY: a semaphore is a handle, and the driver's calls are thread-safe.
unsafe impl Send for CudaTimeline {}
// SAFETY: as above.
unsafe impl Sync for CudaTimeline {}

impl CudaTimeline {
    pub(crate) fn import(shared: &Arc<Shared>, fd: OwnedFd) -> Result<CudaTimeline> {
        let stream = CudaStream::create(shared)?;
        let _entered = shared.enter()?;
        let description = sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            type_:
                sys::CUexternalSemaphoreHandleType::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD,
            handle: sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 { fd: fd.as_raw_fd() },
            flags: 0,
            reserved: [0; 16],
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the description is whole, its descriptor open, and the pointer is to a live handle.
        let code = unsafe { sys::cuImportExternalSemaphore(&mut raw, &description) };
        if code == CUresult::CUDA_ERROR_NOT_SUPPORTED {
            return Err(Error::unsupported(
                "a timeline of Vulkan's",
                "the device opens none (CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED)",
            ));
        }
        shared.check("cuImportExternalSemaphore", code)?;
        // The driver owns it from here on.
        let _ = fd.into_raw_fd();
        Ok(CudaTimeline { raw, stream, shared: shared.clone() })
    }

    /// Queues that it gets a value once every ticket of `after` is reached.
    pub(crate) fn signal(&self, value: u64, after: &[Ticket]) -> Result<()> {
        // SAFETY: a struct of integers and pointers, of which zeros are valid.
        let mut params: sys::CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS = unsafe { std::mem::zeroed() };
        params.params.fence.value = value;
        let signal = |stream| {
            // SAFETY: one semaphore with its parameters; both and the stream are live.
            let code = unsafe { sys::cuSignalExternalSemaphoresAsync(&self.raw, &params, 1, stream) };
            driver::check("cuSignalExternalSemaphoresAsync", code)
        };
        self.stream.pass(after, signal).map(drop)
    }

    /// A ticket that is reached once it has a value.
    pub(crate) fn follow(&self, value: u64) -> Result<Ticket> {
        // SAFETY: as for `signal`.
        let mut params: sys::CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS = unsafe { std::mem::zeroed() };
        params.params.fence.value = value;
        let wait = |stream| {
            // SAFETY: as for `signal`.
            let code = unsafe { sys::cuWaitExternalSemaphoresAsync(&self.raw, &params, 1, stream) };
            driver::check("cuWaitExternalSemaphoresAsync", code)
        };
        self.stream.pass(&[], wait)
    }
}

impl Timeline for CudaTimeline {
    fn export(&self) -> Result<OwnedFd> {
        Err(Error::unsupported("export of a timeline", "it is Vulkan's; its maker exports it"))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaTimeline {
    fn drop(&mut self) {
        // No signal or wait may be queued when it goes.
        self.stream.finish();
        let Ok(_entered) = self.shared.context.enter() else { return };
        // SAFETY: as just seen to.
        let _ = unsafe { sys::cuDestroyExternalSemaphore(self.raw) };
    }
}

/// The backend's own type of a timeline of this device.
pub(crate) fn own<'a>(shared: &Arc<Shared>, timeline: &'a Arc<dyn Timeline>) -> Result<&'a CudaTimeline> {
    let own: Option<&CudaTimeline> = timeline.as_any().downcast_ref();
    own.filter(|own| Arc::ptr_eq(&own.shared, shared))
        .ok_or_else(|| Error::InvalidArgument("the timeline is another device's".into()))
}
