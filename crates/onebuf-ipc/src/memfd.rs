//! The memfd route: memory of the CPU as a sealed anonymous file that each holder maps, and each device imports.

use std::os::fd::{AsFd, OwnedFd};

use onebuf_core::backend::Export;
use onebuf_core::{Error, HandleKind, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::map::Mapping;

/// An anonymous file of zeros in memory, whose size is sealed.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    bytes: u64,
    granule_bytes: u64,
}

impl Memfd {
    /// A file of at least `bytes`, in whole granules; `granule_bytes` is what devices want imported memory to be a multiple
    /// of (a power of two), and at least a page. Its pages are taken now, so that using them later cannot fail.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Os`] where no descriptor is left, or the system has no memfd.
    pub fn create(bytes: u64, granule_bytes: u64) -> Result<Memfd> {
        let granule_bytes = granule_bytes.max(rustix::param::page_size() as u64).next_power_of_two();
        let full = |never_fits| Error::OutOfMemory { asked_bytes: bytes, free_bytes: None, never_fits };
        let whole =
            bytes.max(1).checked_next_multiple_of(granule_bytes).filter(|&n| i64::try_from(n).is_ok());
        let whole = whole.ok_or_else(|| full(true))?;
        let os = |what: &'static str| move |error: Errno| Error::os(what, &error.into());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("onebuf", flags).map_err(os("memfd_create"))?;
        rustix::fs::ftruncate(&fd, whole).map_err(os("ftruncate of a memfd"))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, whole).map_err(|error| match error {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG => full(false),
            other => os("fallocate of a memfd")(other),
        })?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(os("F_ADD_SEALS"))?;
        Ok(Memfd { fd, bytes: whole, granule_bytes })
    }

    /// Size in bytes, in whole granules.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its pages in this process.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the address space is full.
    pub fn map(&self) -> Result<Mapping> {
        Mapping::new(self.fd.as_fd(), self.bytes, self.granule_bytes)
    }

    /// What others open it by. The buffer in it has `size_bytes`, and begins at byte 0.
    ///
    /// # Errors
    /// [`Error::Os`] where no descriptor is left.
    pub fn export(&self, size_bytes: u64) -> Result<Export> {
        let fd = self.fd.try_clone().map_err(|error| Error::os("dup of a memfd", &error))?;
        Ok(Export {
            fd,
            token: None,
            pool: None,
            handle: HandleKind::Memfd,
            allocation_bytes: self.bytes,
            size_bytes,
            kind: 0,
            granule_bytes: self.granule_bytes,
            dedicated: false,
            device_local: false,
            device: None,
            driver: [0; 16],
        })
    }
}

/// Pages of a share that came by the memfd route, in this process, at a multiple of `alignment_bytes`, a power of two.
///
/// # Errors
/// [`Error::InvalidArgument`] where it is no memfd of that size whose size is sealed; [`Error::OutOfMemory`].
pub fn map_export(export: &Export, alignment_bytes: u64) -> Result<Mapping> {
    let (fd, bytes) = (export.fd.as_fd(), export.allocation_bytes);
    crate::fd::check(fd, HandleKind::Memfd, bytes)?;
    Mapping::new(fd, bytes, alignment_bytes)
}
