//! The one place of this crate with unsafe code: files mapped into memory.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use onebuf_core::{Error, Result};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A file's bytes, mapped to read and to write, shared with all who map it. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address range that this value owns; nothing here reads or writes it except through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file. The caller has checked that it has them and cannot lose them.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping> {
        let full = || Error::OutOfMemory { asked_bytes: bytes, free_bytes: None, never_fits: false };
        let len = usize::try_from(bytes).map_err(|_| full())?;
        // SAFETY: the kernel picks the address, so nothing of this process is replaced.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)
        };
        let start = mapped.map_err(|error| match error {
            Errno::NOMEM => full(),
            other => Error::os("mmap of a share", &other.into()),
        })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(full)?;
        Ok(Mapping { start, bytes: len })
    }

    /// Where it begins.
    pub fn pointer(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped here, and what borrowed from it is gone.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}
