//! Memory of another process, opened by the CUDA driver API by hand: the least that a program does which trusts what it was
//! sent.

use std::ffi::c_void;
use std::os::fd::AsRawFd;

use cudarc::driver::sys::{self, CUdeviceptr, CUmemoryPool, CUresult};
use onebuf::{Export, HandleKind};

use crate::error::{Error, Result};

const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const GRANULE_BYTES: usize = 2 << 20;

/// Open memory, and what it takes to close it.
pub(crate) struct Opened {
    pointer: CUdeviceptr,
    how: How,
}

enum How {
    Legacy,
    Mapped { handle: sys::CUmemGenericAllocationHandle, bytes: usize },
    Pool(CUmemoryPool),
}

fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Raw(format!("{call} answered {code:?}")))
}

impl Opened {
    /// Opens what another process exported on `device`, whose context is current on this thread.
    pub(crate) fn new(device: sys::CUdevice, export: &Export) -> Result<Opened> {
        let mut pointer = 0;
        let token = export.token.map_or([0; 64], |token| token.0);
        let location =
            sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        // SAFETY: the descriptors are open, the token is of live memory, each pointer is to a live value, and the span is
        // exactly the memory's.
        unsafe {
            match export.handle {
                HandleKind::CudaIpc => {
                    let handle = sys::CUipcMemHandle { reserved: token.map(|byte| byte as _) };
                    check("cuIpcOpenMemHandle", sys::cuIpcOpenMemHandle_v2(&mut pointer, handle, 1))?;
                    Ok(Opened { pointer, how: How::Legacy })
                }
                HandleKind::CudaPool => {
                    let fd = export.pool.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                    let mut pool = std::ptr::null_mut();
                    let fd = fd as usize as *mut c_void;
                    let code = sys::cuMemPoolImportFromShareableHandle(&mut pool, fd, POSIX_FD, 0);
                    check("cuMemPoolImportFromShareableHandle", code)?;
                    let mut data = sys::CUmemPoolPtrExportData { reserved: token };
                    let code = sys::cuMemPoolImportPointer(&mut pointer, pool, &mut data);
                    check("cuMemPoolImportPointer", code)?;
                    Ok(Opened { pointer, how: How::Pool(pool) })
                }
                _ => {
                    let (mut handle, bytes) = (0, export.allocation_bytes as usize);
                    let fd = export.fd.as_raw_fd() as usize as *mut c_void;
                    let access = sys::CUmemAccessDesc {
                        location,
                        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                    };
                    let code = sys::cuMemImportFromShareableHandle(&mut handle, fd, POSIX_FD);
                    check("cuMemImportFromShareableHandle", code)?;
                    let code = sys::cuMemAddressReserve(&mut pointer, bytes, GRANULE_BYTES, 0, 0);
                    check("cuMemAddressReserve", code)?;
                    check("cuMemMap", sys::cuMemMap(pointer, bytes, 0, handle, 0))?;
                    check("cuMemSetAccess", sys::cuMemSetAccess(pointer, bytes, &access, 1))?;
                    Ok(Opened { pointer, how: How::Mapped { handle, bytes } })
                }
            }
        }
    }

    /// One word of it.
    pub(crate) fn word(&self, index: usize) -> Result<u32> {
        let mut word = 0u32;
        // SAFETY: the word lies in the memory, and the pointer is to a live one.
        let code = unsafe {
            sys::cuMemcpyDtoH_v2((&raw mut word).cast(), self.pointer + 4 * index as u64, size_of::<u32>())
        };
        check("cuMemcpyDtoH", code)?;
        Ok(word)
    }

    pub(crate) fn close(self) -> Result<()> {
        // SAFETY: nothing uses the memory, and each is undone by the counterpart of what opened it.
        unsafe {
            match self.how {
                How::Legacy => check("cuIpcCloseMemHandle", sys::cuIpcCloseMemHandle(self.pointer)),
                How::Pool(pool) => {
                    check("cuMemFree", sys::cuMemFree_v2(self.pointer))?;
                    check("cuMemPoolDestroy", sys::cuMemPoolDestroy(pool))
                }
                How::Mapped { handle, bytes } => {
                    check("cuMemUnmap", sys::cuMemUnmap(self.pointer, bytes))?;
                    check("cuMemAddressFree", sys::cuMemAddressFree(self.pointer, bytes))?;
                    check("cuMemRelease", sys::cuMemRelease(handle))
                }
            }
        }
    }
}
