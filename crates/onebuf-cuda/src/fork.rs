//! A forked child of a process that used CUDA: the driver's state does not survive a fork, and its calls in the child
//! fail, or never return.
//!
//! One page that the kernel gives to children as zeros tells: reading it costs nothing beside a launch, while asking for
//! the process's id is a system call.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use onebuf_core::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::BACKEND;

/// Bytes asked for; the kernel gives a whole page.
const PAGE_BYTES: usize = 4096;

/// The process that started CUDA.
struct Owner {
    /// 1 there, and 0 in its children. `None` where the kernel has no such pages (before Linux 4.14).
    page: Option<&'static AtomicU32>,
    process: u32,
}

static OWNER: OnceLock<Owner> = OnceLock::new();

/// Remembers this process as the one that uses CUDA. The first call counts.
pub(crate) fn remember() {
    OWNER.get_or_init(|| Owner { page: wiped_on_fork(), process: std::process::id() });
}

/// True in a child that was forked after [`remember`].
pub(crate) fn is_forked() -> bool {
    match OWNER.get() {
        Some(Owner { page: Some(page), .. }) => page.load(Ordering::Relaxed) == 0,
        Some(Owner { page: None, process }) => std::process::id() != *process,
        None => false,
    }
}

/// An error in such a child.
pub(crate) fn check() -> Result<()> {
    if is_forked() { Err(error()) } else { Ok(()) }
}

fn error() -> Error {
    Error::BackendUnavailable {
        backend: BACKEND,
        reason: "this process was forked from one that used CUDA, and the driver does not work in such a child; start it \
                 with exec instead (in Python: multiprocessing.set_start_method(\"spawn\"))"
            .into(),
    }
}

fn wiped_on_fork() -> Option<&'static AtomicU32> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was mapped just now and nobody else knows it; the advice changes only what children see.
    if unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.is_err() {
        unmap(page);
        return None;
    }
    // SAFETY: the page is mapped for good, aligned to more than a word, zero, and only ever used as this atomic.
    let word: &'static AtomicU32 = unsafe { &*page.cast::<AtomicU32>() };
    word.store(1, Ordering::Relaxed);
    Some(word)
}

fn unmap(page: *mut c_void) {
    // SAFETY: the page was mapped by the caller with this size, and nobody uses it.
    let _ = unsafe { munmap(page, PAGE_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows() {
        remember();
        assert!(!is_forked());
        check().unwrap();
        let page = OWNER.get().unwrap().page;
        assert!(page.is_some(), "this kernel has pages that are wiped on fork");
        let text = error().to_string();
        assert!(text.contains("spawn"), "{text}");
    }
}
