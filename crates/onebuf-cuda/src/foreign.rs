//! Addresses that go to other libraries of CUDA, and addresses that come from them.

use std::any::Any;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUresult};
use onebuf_core::backend::Memory;
use onebuf_core::{Error, Result, Ticket};

use crate::device::CudaDevice;
use crate::driver;
use crate::memory::{CudaMemory, downcast};

/// What memory of CUDA is to other libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The device's own.
    Device,
    /// Managed: pages that move.
    Managed,
    /// The CPU's, page-locked.
    Host,
}

impl CudaDevice {
    /// The address by which kernels, of whatever library, use memory of this device, and what it is; `None` for memory of
    /// another backend.
    pub fn locate(&self, memory: &Arc<dyn Memory>) -> Option<(u64, Place)> {
        downcast(memory).map(|memory| (memory.pointer, memory.place()))
    }

    /// Makes a stream of another library wait, on the device, for work of this one. Work that it is given from now on comes
    /// behind. `stream` is a `CUstream`, or a default stream by its number: `CU_STREAM_LEGACY` (1), `CU_STREAM_PER_THREAD` (2).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the driver knows no such stream, as far as it can tell; [`Error::DeviceLost`].
    ///
    /// # Safety
    /// The stream is live, and of a context of this process. That of a default stream is the device's primary one.
    pub unsafe fn make_wait(&self, stream: NonZeroUsize, work: &[Ticket]) -> Result<()> {
        let shared = &self.shared;
        let _entered = shared.enter()?;
        let stream: sys::CUstream = std::ptr::with_exposed_provenance_mut(stream.get());
        for ticket in work {
            // A stream that is gone has no work left.
            let Some(ours) = shared.stream(ticket.stream) else { continue };
            let Some(event) = ours.event_for(ticket.value)? else { continue };
            // SAFETY: the caller's promise; the event is live, and the wait is for the mark as it stands.
            let code = unsafe { sys::cuStreamWaitEvent(stream, event.raw, 0) };
            match code {
                CUresult::CUDA_SUCCESS => {}
                CUresult::CUDA_ERROR_INVALID_HANDLE | CUresult::CUDA_ERROR_INVALID_VALUE => {
                    return Err(Error::InvalidArgument(format!(
                        "the consumer's stream {stream:p} is none of CUDA's (cuStreamWaitEvent answered {})",
                        driver::name(code)
                    )));
                }
                other => return Err(shared.note(driver::error("cuStreamWaitEvent", other))),
            }
        }
        Ok(())
    }

    /// Memory that another library of CUDA owns, used in place. `keep` is dropped when no work uses it any more.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the address is none that CUDA knows, or another device's.
    ///
    /// # Safety
    /// The `size_bytes` bytes at `address` are valid for kernels of this device, and with a `place` that the CPU sees for
    /// the CPU, until `keep` is dropped. Nobody else touches them while work here does, but through an order that both
    /// sides keep.
    pub unsafe fn adopt(
        &self,
        address: u64,
        size_bytes: u64,
        place: Place,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<dyn Memory>> {
        let shared = &self.shared;
        let _entered = shared.enter()?;
        if size_bytes == 0 || address == 0 || address.checked_add(size_bytes).is_none() {
            return Err(Error::InvalidArgument(format!("{size_bytes} bytes at address {address:#x}")));
        }
        let mut ordinal = -1i32;
        // SAFETY: the context is current, and the pointer is to a live integer, as this attribute is one.
        let code = unsafe {
            let value = (&raw mut ordinal).cast::<c_void>();
            sys::cuPointerGetAttribute(value, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
        };
        if code != CUresult::CUDA_SUCCESS {
            return Err(match driver::error("cuPointerGetAttribute", code) {
                lost @ Error::DeviceLost(_) => shared.note(lost),
                _ => Error::InvalidArgument(format!(
                    "address {address:#x} is no memory of CUDA (cuPointerGetAttribute answered {})",
                    driver::name(code)
                )),
            });
        }
        if place == Place::Device && ordinal != shared.context.device {
            return Err(Error::InvalidArgument(format!(
                "the memory at {address:#x} lies on CUDA device {ordinal}, and this is {}",
                shared.physical.info.id
            )));
        }
        let host = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address as usize));
        let host = host.filter(|_| place != Place::Device);
        Ok(Arc::new(CudaMemory::foreign(shared, address, size_bytes, host, place, keep)))
    }
}
