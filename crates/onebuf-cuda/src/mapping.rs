//! Memory in granules of its own (`cuMemCreate`), mapped at an address of its own: what can leave the process as a file
//! descriptor, and what came in as one.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use onebuf_core::{Error, HandleKind, Result};

use crate::context::Context;
use crate::driver;
use crate::pool::on_device;

/// A descriptor, as the kind of a handle.
pub(crate) const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// An allocation with its address. What is there yet is undone in reverse when it is dropped.
pub(crate) struct Mapping {
    handle: sys::CUmemGenericAllocationHandle,
    /// 0 until the span is reserved.
    address: u64,
    mapped: bool,
    bytes: usize,
    context: Arc<Context>,
}

impl Mapping {
    /// New memory of at least `bytes`, in whole granules. The context is current.
    pub(crate) fn create(
        context: &Arc<Context>,
        bytes: u64,
    ) -> std::result::Result<Mapping, (&'static str, CUresult)> {
        let properties = properties(context);
        let granule = granule(&properties)?;
        let bytes = (bytes as usize).next_multiple_of(granule);
        let mut handle = 0;
        // SAFETY: the properties are whole, and the pointer is to a live handle; the flags must be 0.
        let code = unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) };
        succeeded("cuMemCreate", code)?;
        Mapping { handle, address: 0, mapped: false, bytes, context: context.clone() }.map(granule)
    }

    /// The memory behind a descriptor, which has `bytes` by its exporter's word. The context is current.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the descriptor is no memory of this device, or the size is not its own.
    pub(crate) fn import(context: &Arc<Context>, fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping> {
        let refused = |call: &'static str, code: CUresult| match driver::error(call, code) {
            Error::Driver { call, code } => Error::InvalidArgument(format!(
                "the descriptor is not CUDA memory of {bytes} bytes: {call} answered {code}"
            )),
            other => other,
        };
        let granule = granule(&properties(context)).map_err(|(call, code)| driver::error(call, code))?;
        if !bytes.is_multiple_of(granule as u64) {
            return Err(Error::InvalidArgument(format!(
                "exported CUDA memory comes in granules of {granule} bytes, and {bytes} is no multiple"
            )));
        }
        let mut handle = 0;
        // For this kind of handle the pointer is the descriptor's number. The driver does not take the descriptor over.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the descriptor is open, and the pointer is to a live handle.
        let code = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, os_handle, POSIX_FD) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(refused("cuMemImportFromShareableHandle", code));
        }
        let mapping =
            Mapping { handle, address: 0, mapped: false, bytes: bytes as usize, context: context.clone() };
        mapping.check_place()?;
        mapping.map(granule).map_err(|(call, code)| refused(call, code))
    }

    /// Refuses memory that lies on another device.
    fn check_place(&self) -> Result<()> {
        let mut found = properties(&self.context);
        // SAFETY: the handle is live, and the pointer is to live properties.
        let code = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&mut found, self.handle) };
        driver::check("cuMemGetAllocationPropertiesFromHandle", code)?;
        let here = on_device(self.context.device);
        if (found.location.type_, found.location.id) != (here.type_, here.id) {
            return Err(Error::InvalidArgument(format!(
                "the memory lies on CUDA device {}, and is imported on device {}",
                found.location.id, here.id
            )));
        }
        Ok(())
    }

    /// Gives the memory an address that this device may read and write.
    fn map(mut self, granule: usize) -> std::result::Result<Mapping, (&'static str, CUresult)> {
        let access = sys::CUmemAccessDesc {
            location: on_device(self.context.device),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the span is exactly the memory's, so nothing else is in it; the handle is live; flags and offset must be
        // 0. A failure leaves what was done to `drop`.
        unsafe {
            let code = sys::cuMemAddressReserve(&mut self.address, self.bytes, granule, 0, 0);
            succeeded("cuMemAddressReserve", code)?;
            succeeded("cuMemMap", sys::cuMemMap(self.address, self.bytes, 0, self.handle, 0))?;
            self.mapped = true;
            succeeded("cuMemSetAccess", sys::cuMemSetAccess(self.address, self.bytes, &access, 1))?;
        }
        Ok(self)
    }

    /// The address that kernels use.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes: whole granules.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Sizes of such memory are multiples of this many bytes. The context is current.
    pub(crate) fn granule_bytes(&self) -> u64 {
        granule(&properties(&self.context)).map_or(1, |bytes| bytes as u64)
    }

    /// A descriptor by which another process, or another API, opens the memory. The context is current.
    pub(crate) fn export(&self, handle: HandleKind) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let into = (&raw mut fd).cast::<c_void>();
        let (call, code) = match handle {
            // SAFETY: the handle was made to be exported so, and the pointer is to a live descriptor number.
            HandleKind::OpaqueFd => ("cuMemExportToShareableHandle", unsafe {
                sys::cuMemExportToShareableHandle(into, self.handle, POSIX_FD, 0)
            }),
            // SAFETY: the range is the whole mapping, in whole pages, and the pointer is as above.
            HandleKind::DmaBuf => ("cuMemGetHandleForAddressRange", unsafe {
                let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
                sys::cuMemGetHandleForAddressRange(into, self.address, self.bytes, kind, 0)
            }),
            HandleKind::CudaIpc | HandleKind::CudaPool | HandleKind::Memfd => {
                return Err(Error::unsupported(
                    format!("export as {}", handle.name()),
                    "memory of cuMemCreate leaves the process as a descriptor of the driver's; export it as opaque-fd, or \
                     build the buffer by `.ways([..])` for the way that is wanted",
                ));
            }
        };
        if code == CUresult::CUDA_ERROR_OPERATING_SYSTEM {
            return Err(Error::Os {
                what: call.into(),
                reason: "the system gave no descriptor; raise the limit on open files (ulimit -n)".into(),
            });
        }
        driver::check(call, code)?;
        if fd < 0 {
            return Err(Error::Driver { call, code: format!("the descriptor {fd}") });
        }
        // SAFETY: the driver made the descriptor for us; nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: no work uses the memory any more: what is undone was done, and once. Other holders of the memory, here
        // or in other processes, keep it.
        unsafe {
            if self.mapped {
                let _ = sys::cuMemUnmap(self.address, self.bytes);
            }
            if self.address != 0 {
                let _ = sys::cuMemAddressFree(self.address, self.bytes);
            }
            let _ = sys::cuMemRelease(self.handle);
        }
    }
}

fn succeeded(call: &'static str, code: CUresult) -> std::result::Result<(), (&'static str, CUresult)> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err((call, code)) }
}

/// Memory of the context's device that can be exported as a descriptor.
fn properties(context: &Context) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX_FD,
        location: on_device(context.device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granule(properties: &sys::CUmemAllocationProp) -> std::result::Result<usize, (&'static str, CUresult)> {
    let mut bytes = 0;
    let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the properties are whole, and the pointer is to a live integer.
    let code = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, properties, least) };
    succeeded("cuMemGetAllocationGranularity", code)?;
    Ok(bytes.max(1))
}

/// Refuses descriptors that cannot be CUDA memory, before the driver sees them: what it exports is a device's node or an
/// anonymous inode, never a file, a pipe or a socket.
pub(crate) fn check_fd(fd: BorrowedFd<'_>) -> Result<()> {
    use rustix::fs::FileType;
    let stat =
        rustix::fs::fstat(fd).map_err(|error| Error::os("fstat of an imported descriptor", &error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice | FileType::Unknown => Ok(()),
        FileType::RegularFile => Err(Error::InvalidArgument(
            "the descriptor is a file, or a memfd, and no CUDA memory; map it and import the pages".into(),
        )),
        other => Err(Error::InvalidArgument(format!("a descriptor of kind {other:?} is no memory"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_that_are_no_memory_stop_here() {
        let (pipe, _) = std::io::pipe().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        for fd in [pipe.as_fd(), file.as_fd(), socket.as_fd()] {
            assert!(matches!(check_fd(fd), Err(Error::InvalidArgument(_))));
        }
        // A character device may be NVIDIA's: which it is, only the driver knows.
        check_fd(std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap();
    }
}
