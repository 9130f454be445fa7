//! The device's own memory, from a stream-ordered pool of the driver, or by `cuMemAlloc` where there are no pools.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemPool_attribute as PoolAttribute, CUmemoryPool, CUresult, CUstream};
use onebuf_core::Result;

use crate::adapter::Physical;
use crate::context::Context;
use crate::driver;

/// The driver keeps this much freed memory at most, and an eighth of the device's: without a threshold it would give all of
/// it back at every synchronization, and the next allocation would pay for it.
const MOST_KEPT_BYTES: u64 = 1 << 30;

/// Where memory of the kind `device` comes from, with a stream for work of our own: fills of new memory, prefetches.
pub(crate) struct Pool {
    pub(crate) stream: CUstream,
    pool: Option<CUmemoryPool>,
    context: Arc<Context>,
}

// SAFETY: streams and pools are handles, and the driver's calls are thread-safe.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of the device. The context is current.
    pub(crate) fn create(context: &Arc<Context>, physical: &Physical) -> Result<Pool> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and the pointer is to a live handle.
        driver::check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        // Made whole at once, so that an error below frees the stream.
        let mut pool = Pool { stream, pool: None, context: context.clone() };
        if physical.attributes.memory_pools {
            pool.pool = Some(create_pool(physical)?);
            pool.keep((physical.total_bytes / 8).min(MOST_KEPT_BYTES))?;
        }
        Ok(pool)
    }

    /// Tells the driver how much freed memory to keep.
    fn keep(&self, mut bytes: u64) -> Result<()> {
        let Some(pool) = self.pool else { return Ok(()) };
        let threshold = PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = (&raw mut bytes).cast::<c_void>();
        // SAFETY: the pool is live, and this attribute is a 64-bit integer.
        driver::check("cuMemPoolSetAttribute", unsafe { sys::cuMemPoolSetAttribute(pool, threshold, value) })
    }

    /// Memory that every stream may use at once. The context is current.
    pub(crate) fn allocate(&self, bytes: u64) -> std::result::Result<u64, (&'static str, CUresult)> {
        let mut pointer = 0;
        let Some(pool) = self.pool else {
            // SAFETY: the context is current, and the pointer is to a live integer.
            let code = unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes as usize) };
            return if code == CUresult::CUDA_SUCCESS { Ok(pointer) } else { Err(("cuMemAlloc", code)) };
        };
        // SAFETY: pool and stream are live, and the pointer is to a live integer.
        let code = unsafe { sys::cuMemAllocFromPoolAsync(&mut pointer, bytes as usize, pool, self.stream) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(("cuMemAllocFromPoolAsync", code));
        }
        // The allocation is work of this stream, and other streams know nothing of it: they may use the memory when it is
        // done. The stream is idle else, so this does not wait.
        // SAFETY: the stream is live.
        let code = unsafe { sys::cuStreamSynchronize(self.stream) };
        if code != CUresult::CUDA_SUCCESS {
            self.free(pointer);
            return Err(("cuStreamSynchronize", code));
        }
        Ok(pointer)
    }

    /// Gives memory back that no work uses. The context is current.
    pub(crate) fn free(&self, pointer: u64) {
        // SAFETY: the memory came from `allocate` by the same way and nothing uses it any more.
        let code = unsafe {
            match self.pool {
                Some(_) => sys::cuMemFreeAsync(pointer, self.stream),
                None => sys::cuMemFree_v2(pointer),
            }
        };
        if code != CUresult::CUDA_SUCCESS {
            tracing::debug!(code = driver::name(code), "device memory could not be freed");
        }
    }

    /// Gives the freed memory that the pool keeps back to the device. The context is current.
    pub(crate) fn trim(&self) {
        let Some(pool) = self.pool else { return };
        // SAFETY: stream and pool are live. Frees count once their stream has reached them.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuMemPoolTrimTo(pool, 0);
        }
    }

    /// Bytes that the pool holds, and those of them that are in buffers.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let Some(pool) = self.pool else { return (0, 0) };
        let read = |attribute: PoolAttribute| {
            let mut value = 0u64;
            // SAFETY: the pool is live, and both attributes that are asked for are 64-bit integers.
            let code =
                unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast::<c_void>()) };
            if code == CUresult::CUDA_SUCCESS { value } else { 0 }
        };
        let held = read(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        (held, read(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT).min(held))
    }

    /// Fills memory with zeros, and waits for it. The context is current.
    pub(crate) fn zero(&self, pointer: u64, bytes: u64) -> Result<()> {
        // SAFETY: the range is of live device memory that nothing else uses yet; the stream is live.
        unsafe {
            let code = sys::cuMemsetD8Async(pointer, 0, bytes as usize, self.stream);
            driver::check("cuMemsetD8Async", code)?;
            driver::check("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream))
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: buffers hold the device, so none of the pool is left; a stream's last frees are done before it goes.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            if let Some(pool) = self.pool {
                let _ = sys::cuMemPoolDestroy(pool);
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

fn create_pool(physical: &Physical) -> Result<CUmemoryPool> {
    let properties = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: on_device(physical.raw),
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let mut pool = std::ptr::null_mut();
    // SAFETY: the properties are whole, and the pointer is to a live handle.
    driver::check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
    Ok(pool)
}

/// A device as a place of memory.
pub(crate) fn on_device(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}
