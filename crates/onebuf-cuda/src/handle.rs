//! Memory that a CUDA program exported without onebuf: cuda-python, CuPy, PyTorch, C.

use std::os::fd::OwnedFd;

use onebuf_core::backend::{CUDA_EXPORTER, Export};
use onebuf_core::{Error, HandleKind, Result, Token};

use crate::device::CudaDevice;
use crate::object::GRANULE_BYTES;
use crate::profile::Kind;
use crate::shared::Shared;

/// What such a program gives away.
#[derive(Debug)]
pub enum Handle {
    /// A legacy handle (`cuIpcGetMemHandle`, `cudaIpcGetMemHandle`). It names the whole allocation behind an address, of a
    /// caching allocator a block with much else in it: the other program says where in it its memory begins.
    Ipc([u8; 64]),
    /// A descriptor of memory of `cuMemCreate` (`cuMemExportToShareableHandle`).
    Fd(OwnedFd),
    /// Memory of a pool (`cuMemPoolExportPointer`), and the pool (`cuMemPoolExportToShareableHandle`).
    Pool {
        /// The pool.
        fd: OwnedFd,
        /// The memory in it.
        pointer: [u8; 64],
    },
}

impl CudaDevice {
    /// What [`Device::import`](onebuf_core::backend::Device::import) takes for memory of `bytes` bytes: for a descriptor of
    /// `cuMemCreate` exactly its size, else at most what there is.
    ///
    /// There is no lease: nothing tells the other program when this one lets go.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has no such memory; [`Error::Os`] where no descriptor is left.
    pub fn describe(&self, handle: Handle, bytes: u64) -> Result<Export> {
        let (kind, way) = match &handle {
            Handle::Ipc(_) => (Kind::DeviceIpc, HandleKind::CudaIpc),
            Handle::Fd(_) => (Kind::DeviceVmm, HandleKind::OpaqueFd),
            Handle::Pool { .. } => (Kind::DevicePool, HandleKind::CudaPool),
        };
        let Some(kind) = self.shared.kinds.iter().position(|one| *one == kind) else {
            return Err(Error::unsupported(
                format!("import of {}", way.name()),
                "the device has no memory that leaves a process so",
            ));
        };
        let (fd, token, pool) = match handle {
            Handle::Ipc(bytes) => (nobodys_lease()?, Some(Token(bytes)), None),
            Handle::Fd(fd) => (fd, None, None),
            Handle::Pool { fd, pointer } => (nobodys_lease()?, Some(Token(pointer)), Some(fd)),
        };
        Ok(Export { token, pool, ..export(&self.shared, fd, way, kind, (bytes, bytes)) })
    }
}

/// An export of this device's memory: a descriptor, and the sizes in bytes of allocation and buffer.
pub(crate) fn export(
    shared: &Shared,
    fd: OwnedFd,
    handle: HandleKind,
    kind: usize,
    (allocation_bytes, size_bytes): (u64, u64),
) -> Export {
    Export {
        fd,
        token: None,
        pool: None,
        handle,
        allocation_bytes,
        size_bytes,
        kind,
        granule_bytes: GRANULE_BYTES,
        dedicated: false,
        device_local: true,
        device: shared.physical.info.uuid,
        driver: CUDA_EXPORTER,
    }
}

/// A descriptor in the place of a lease: a file of its own, which never hangs up.
fn nobodys_lease() -> Result<OwnedFd> {
    rustix::fs::memfd_create("no lease", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| Error::os("memfd_create", &error.into()))
}
