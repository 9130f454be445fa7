//! Memory that leaves the process by a [`Token`]: memory of `cuMemAlloc` through legacy IPC, and memory of a pool of its own.
//!
//! Each is an allocation of its own, in whole granules, so that nothing of a neighbour goes with it. A legacy handle names
//! the whole allocation behind an address, and `cuMemAlloc` puts small ones beside each other in one; a pool's descriptor opens
//! the pool, so there is one for each shared buffer, and the buffer is all that the pool has.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemoryPool, CUresult, CUstream};
use onebuf_core::{Error, HandleKind, Result, Token};

use crate::context::Context;
use crate::driver;
use crate::mapping::POSIX_FD;
use crate::pool::on_device;
use crate::shared::Shared;

/// Sizes are multiples of this many bytes: the driver's large pages.
pub(crate) const GRANULE_BYTES: u64 = 2 << 20;

/// What a pool takes from the device at once (driver 580). Where it takes more, the buffer grows to that.
const POOL_CHUNK_BYTES: u64 = 32 << 20;

/// An allocation of this process, or one of another that it opened. It is freed, or closed, with the value.
pub(crate) struct Object {
    pub(crate) pointer: u64,
    pub(crate) bytes: u64,
    way: HandleKind,
    /// It is another process's.
    opened: bool,
    /// The pool that it is all of.
    pool: Option<CUmemoryPool>,
    context: Arc<Context>,
}

// SAFETY: addresses and pools are handles, and the driver's calls are thread-safe.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

type Answer<T> = std::result::Result<T, (&'static str, CUresult)>;

impl Object {
    /// New memory of at least `bytes`, of unspecified contents. The context is current.
    pub(crate) fn create(shared: &Shared, way: HandleKind, bytes: u64) -> Answer<Object> {
        let context = shared.context.clone();
        let mut object = Object { pointer: 0, bytes, way, opened: false, pool: None, context };
        if way == HandleKind::CudaIpc {
            object.bytes = bytes.next_multiple_of(GRANULE_BYTES);
            // SAFETY: the context is current, and the pointer is to a live integer.
            let code = unsafe { sys::cuMemAlloc_v2(&mut object.pointer, object.bytes as usize) };
            return succeeded("cuMemAlloc", code).map(|()| object);
        }
        object.bytes = bytes.next_multiple_of(POOL_CHUNK_BYTES);
        object.allocate_pool(shared.pool.stream)?;
        Ok(object)
    }

    /// Makes a pool, and memory in it that is all of it. The context is current.
    fn allocate_pool(&mut self, stream: CUstream) -> Answer<()> {
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: POSIX_FD,
            location: on_device(self.context.device),
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let (mut pool, mut held) = (std::ptr::null_mut(), 0u64);
        // SAFETY: the properties are whole, and the pointers are to live values, of 64 bits as the attribute is. The stream is
        // live, and the memory is there for every stream when it is done. A failure leaves what was made to `drop`.
        unsafe {
            succeeded("cuMemPoolCreate", sys::cuMemPoolCreate(&mut pool, &properties))?;
            self.pool = Some(pool);
            for _ in 0..2 {
                let code = sys::cuMemAllocFromPoolAsync(&mut self.pointer, self.bytes as usize, pool, stream);
                succeeded("cuMemAllocFromPoolAsync", code)?;
                succeeded("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
                let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
                let code = sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut held).cast::<c_void>());
                succeeded("cuMemPoolGetAttribute", code)?;
                if held <= self.bytes {
                    break;
                }
                // Who has the pool could reach the rest too, and it is not zero.
                succeeded("cuMemFree", sys::cuMemFree_v2(self.pointer))?;
                (self.pointer, self.bytes) = (0, held);
            }
            if self.pointer == 0 {
                return Err(("cuMemAllocFromPoolAsync", CUresult::CUDA_ERROR_NOT_SUPPORTED));
            }
        }
        Ok(())
    }

    /// What another process exported, which has at least `bytes`. The context is current.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it is no such memory, or has less, or lies on another device.
    pub(crate) fn open(
        context: &Arc<Context>,
        way: HandleKind,
        token: Token,
        pool: Option<BorrowedFd<'_>>,
        bytes: u64,
    ) -> Result<Object> {
        let context = context.clone();
        let mut object = Object { pointer: 0, bytes, way, opened: true, pool: None, context };
        match pool {
            None => {
                let handle = sys::CUipcMemHandle { reserved: token.0.map(|byte| byte as _) };
                let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
                // SAFETY: the context is current, and the pointer is to a live integer. The driver looks the bytes up.
                let code = unsafe { sys::cuIpcOpenMemHandle_v2(&mut object.pointer, handle, flags) };
                succeeded("cuIpcOpenMemHandle", code).map_err(|answer| refused(way, answer))?;
            }
            Some(fd) => object.open_pool(fd, token).map_err(|answer| refused(way, answer))?,
        }
        object.check_extent(bytes)?;
        Ok(object)
    }

    fn open_pool(&mut self, fd: BorrowedFd<'_>, token: Token) -> Answer<()> {
        let mut pool = std::ptr::null_mut();
        // For this kind of handle the pointer is the descriptor's number. The driver does not take the descriptor over.
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        let mut data = sys::CUmemPoolPtrExportData { reserved: token.0 };
        let mut location = on_device(self.context.device);
        let mut access = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let wanted = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the descriptor is open, and each pointer is to a live value. The driver looks the bytes up. A failure
        // leaves the pool to `drop`.
        unsafe {
            let code = sys::cuMemPoolImportFromShareableHandle(&mut pool, os_handle, POSIX_FD, 0);
            succeeded("cuMemPoolImportFromShareableHandle", code)?;
            self.pool = Some(pool);
            succeeded("cuMemPoolGetAccess", sys::cuMemPoolGetAccess(&mut access, pool, &mut location))?;
            if access != wanted {
                let everything = sys::CUmemAccessDesc { location, flags: wanted };
                succeeded("cuMemPoolSetAccess", sys::cuMemPoolSetAccess(pool, &everything, 1))?;
            }
            let code = sys::cuMemPoolImportPointer(&mut self.pointer, pool, &mut data);
            succeeded("cuMemPoolImportPointer", code)
        }
    }

    /// Refuses memory that begins elsewhere, has less than is said, or lies on another device.
    fn check_extent(&self, bytes: u64) -> Result<()> {
        let (mut base, mut size, mut ordinal) = (0, 0usize, -1 as c_int);
        // SAFETY: the address is of live memory, and each pointer is to a live value of the type that is written.
        unsafe {
            let code = sys::cuMemGetAddressRange_v2(&mut base, &mut size, self.pointer);
            driver::check("cuMemGetAddressRange", code)?;
            let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            let value = (&raw mut ordinal).cast::<c_void>();
            driver::check(
                "cuPointerGetAttribute",
                sys::cuPointerGetAttribute(value, attribute, self.pointer),
            )?;
        }
        let bad = |what: String| Err(Error::InvalidArgument(what));
        if ordinal != self.context.device {
            return bad(format!(
                "the memory lies on CUDA device {ordinal}, and is imported on device {}",
                self.context.device
            ));
        }
        if base != self.pointer || (size as u64) < bytes {
            return bad(format!(
                "the memory is said to have {bytes} bytes, and has {}",
                size as u64 - (self.pointer.saturating_sub(base)).min(size as u64)
            ));
        }
        Ok(())
    }

    /// What names the memory to other processes. The context is current.
    pub(crate) fn token(&self) -> Result<Token> {
        if self.way == HandleKind::CudaIpc {
            let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
            // SAFETY: the address is of live memory of `cuMemAlloc`, and the pointer is to a live handle.
            driver::check("cuIpcGetMemHandle", unsafe { sys::cuIpcGetMemHandle(&mut handle, self.pointer) })?;
            return Ok(Token(handle.reserved.map(|byte| byte as u8)));
        }
        let mut data = sys::CUmemPoolPtrExportData { reserved: [0; 64] };
        // SAFETY: the address is of live memory of a pool that can be exported, and the pointer is to a live value.
        let code = unsafe { sys::cuMemPoolExportPointer(&mut data, self.pointer) };
        driver::check("cuMemPoolExportPointer", code)?;
        Ok(Token(data.reserved))
    }

    /// A descriptor of the pool, where the memory is in one. The context is current.
    pub(crate) fn export_pool(&self) -> Result<Option<OwnedFd>> {
        let Some(pool) = self.pool else { return Ok(None) };
        let call = "cuMemPoolExportToShareableHandle";
        let mut fd: c_int = -1;
        let into = (&raw mut fd).cast::<c_void>();
        // SAFETY: the pool is live and was made to be exported so; the pointer is to a live descriptor number.
        driver::check(call, unsafe { sys::cuMemPoolExportToShareableHandle(into, pool, POSIX_FD, 0) })?;
        if fd < 0 {
            return Err(Error::Driver { call, code: format!("the descriptor {fd}") });
        }
        // SAFETY: the driver made the descriptor for us; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| Error::os("FD_CLOEXEC on a pool's descriptor", &error.into()))?;
        Ok(Some(fd))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: no work uses the memory any more, and what other processes had of it they let go (the table of tokens sees
        // to it). Each is undone by the counterpart of what made it, once; a pool goes after its memory.
        unsafe {
            let code = match (self.pointer, self.way, self.opened) {
                (0, ..) => CUresult::CUDA_SUCCESS,
                (pointer, HandleKind::CudaIpc, true) => sys::cuIpcCloseMemHandle(pointer),
                (pointer, ..) => sys::cuMemFree_v2(pointer),
            };
            if code != CUresult::CUDA_SUCCESS {
                tracing::debug!(code = driver::name(code), "shared memory could not be freed");
            }
            if let Some(pool) = self.pool {
                let _ = sys::cuMemPoolDestroy(pool);
            }
        }
    }
}

fn succeeded(call: &'static str, code: CUresult) -> Answer<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err((call, code)) }
}

/// Why a driver did not open what another process is said to have exported.
fn refused(way: HandleKind, (call, code): (&'static str, CUresult)) -> Error {
    let rule = match way {
        HandleKind::CudaIpc => {
            "a legacy handle opens while its maker lives, in other processes of the maker's PID namespace (for \
             containers `--pid`, and `--ipc` too); across namespaces share by opaque-fd"
        }
        _ => "a pool's memory opens while its maker has it, where both use the same driver",
    };
    match driver::error(call, code) {
        Error::Driver { call, code } => Error::InvalidArgument(format!(
            "{call} answered {code}: what was shared by {} names no memory that this process can open. {rule}",
            way.name()
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_where_a_handle_opens() {
        let legacy = refused(HandleKind::CudaIpc, ("cuIpcOpenMemHandle", CUresult::CUDA_ERROR_INVALID_VALUE));
        let text = legacy.to_string();
        assert!(matches!(legacy, Error::InvalidArgument(_)));
        assert!(text.contains("PID namespace") && text.contains("opaque-fd"), "{text}");
        let lost = refused(HandleKind::CudaPool, ("x", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(matches!(lost, Error::DeviceLost(_)));
    }
}
