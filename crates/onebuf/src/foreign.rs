//! Memory of CUDA programs that have no onebuf.

use bytemuck::Pod;
use onebuf_core::{Error, Result};
use onebuf_cuda::{CudaDevice, Handle};

use crate::buffer::Buffer;
use crate::device::Device;

impl Device {
    /// A buffer of `len` elements in memory that a CUDA program without onebuf exported, in the order of CUDA's calls: a
    /// legacy handle, a descriptor of `cuMemCreate`, memory of a pool. The memory has `bytes` bytes by that program's word: for
    /// a descriptor exactly the size of its `cuMemCreate`, else at most what there is, which is checked. The buffer begins
    /// at the memory's first byte; [`Buffer::slice`] gets at what begins later.
    ///
    /// The other way round, [`Buffer::export`] gives such programs what they open: [`Export::token`](crate::Export::token) is
    /// the handle, [`Export::fd`](crate::Export::fd) the descriptor, or the lease to be held meanwhile.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the driver opens it not, it is smaller, or another device's; [`Error::Unsupported`] on
    /// devices that are not CUDA's.
    ///
    /// # Safety
    /// As for [`Device::import_buffer`]. The other program keeps the memory until this buffer, and all work on it, is gone:
    /// there is no lease that would tell it. Memory of a pool is not open in this process by another import of it.
    pub unsafe fn import_cuda<T: Pod>(&self, handle: Handle, bytes: u64, len: usize) -> Result<Buffer<T>> {
        let shared = &self.shared;
        let Some(cuda) = shared.raw.as_any().downcast_ref::<CudaDevice>() else {
            return Err(Error::unsupported(
                format!("memory of a CUDA program on {}", shared.info.id),
                "open the same GPU as a CUDA device",
            ));
        };
        let export = cuda.describe(handle, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.import_buffer(export, len) }
    }
}
