//! Files mapped into memory, and counters in them: unsafe code, of which this crate has no other but one call in `peer`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

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
    /// Maps the first `bytes` of a file at a multiple of `alignment_bytes`, a power of two. The caller has checked that the
    /// file has them and cannot lose them.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u64, alignment_bytes: u64) -> Result<Mapping> {
        let full = || Error::OutOfMemory { asked_bytes: bytes, free_bytes: None, never_fits: false };
        let failed = |error: Errno| match error {
            Errno::NOMEM => full(),
            other => Error::os("mmap of a share", &other.into()),
        };
        let page = rustix::param::page_size();
        let len = usize::try_from(bytes).ok().and_then(|len| len.checked_next_multiple_of(page));
        let alignment = usize::try_from(alignment_bytes).ok().filter(|n| n.is_power_of_two());
        let (Some(len), Some(alignment)) = (len, alignment) else { return Err(full()) };
        // Address space in which an aligned range of this length must lie; it is this value's from here on.
        let slack = if alignment > page { alignment } else { 0 };
        let span = len.checked_add(slack).ok_or_else(full)?;
        // SAFETY: the kernel picks the address, so nothing of this process is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let start = NonNull::new(start.map_err(failed)?.cast::<u8>()).ok_or_else(full)?;
        let reserved = Mapping { start, bytes: span };
        let skip = start.as_ptr().addr().next_multiple_of(alignment.max(page)) - start.as_ptr().addr();
        // SAFETY: what is skipped is at most the slack, so the range lies within the reserved one, which nobody uses: it is
        // replaced by the file's pages. What is left of the reserved range on both sides is given back.
        unsafe {
            let begin = reserved.start.add(skip);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(begin.as_ptr().cast(), len, access, flags, fd, 0).map_err(failed)?;
            std::mem::forget(reserved);
            let end = begin.add(len);
            for (part, bytes) in [(start, skip), (end, slack - skip)] {
                if bytes > 0 {
                    let _ = rustix::mm::munmap(part.as_ptr().cast::<c_void>(), bytes);
                }
            }
            Ok(Mapping { start: begin, bytes: len })
        }
    }

    /// Where it begins.
    pub fn pointer(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
    /// The 64-bit counter at a byte that is a multiple of 8.
    pub(crate) fn counter(&self, at: usize) -> Option<&AtomicU64> {
        let place = self.place::<AtomicU64>(at)?;
        // SAFETY: it lies within the mapping and is aligned; the file cannot shrink; an integer of any value is one, and
        // whoever else has the page cannot make this process do more than read a wrong number.
        Some(unsafe { place.as_ref() })
    }

    /// The 32-bit word at a byte that is a multiple of 4: what a futex waits for.
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU32> {
        let place = self.place::<AtomicU32>(at)?;
        // SAFETY: as in `counter`.
        Some(unsafe { place.as_ref() })
    }

    fn place<T>(&self, at: usize) -> Option<NonNull<T>> {
        let inside = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        if !inside || !at.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the offset is within the mapping.
        Some(unsafe { self.start.add(at) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped here, and what borrowed from it is gone.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::{Memfd, memfd::map_export};

    #[test]
    fn two_mappings_are_one_memory() {
        let memfd = Memfd::create(4096, 4096).unwrap();
        let (one, two) = (memfd.map().unwrap(), memfd.map().unwrap());
        assert_ne!(one.pointer(), two.pointer());
        one.counter(16).unwrap().store(42, Ordering::Relaxed);
        assert_eq!(two.counter(16).unwrap().load(Ordering::Relaxed), 42);
        drop(one);
        assert_eq!(two.word(16).unwrap().load(Ordering::Relaxed), 42);
        for at in [1, 4, 4090, 4096, usize::MAX - 7] {
            assert!(two.counter(at).is_none(), "{at}");
        }
    }

    #[test]
    fn mappings_begin_where_devices_want_them() {
        for granule in [4096u64, 1 << 16, 1 << 21] {
            let memfd = Memfd::create(10, granule).unwrap();
            let export = memfd.export(10).unwrap();
            for mapping in [memfd.map().unwrap(), map_export(&export, granule).unwrap()] {
                assert_eq!((mapping.pointer().addr().get() as u64 % granule, mapping.bytes()), (0, granule));
            }
        }
        let export = Memfd::create(10, 4096).unwrap().export(10).unwrap();
        assert!(map_export(&export, 3000).is_err() && map_export(&export, 1 << 63).is_err());
    }
}
