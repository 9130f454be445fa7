//! Pages that may not be written, in a process of their own: a write that the backend lets through would fault, and end the
//! context of every test beside it.

#![allow(clippy::print_stderr)] // A test that had nothing to run on says so.

#[path = "suite/support.rs"]
mod support;

use std::ptr::NonNull;

use onebuf_core::Error;
use onebuf_core::backend::{Launch, PageAccess, Work};
use support::{SAXPY, Sound, kernel, mapped, on_every_device, slice, wait, whole};

#[test]
fn read_only_pages_are_read_and_not_written() {
    on_every_device(|device| {
        if device.info().limits.host_import_alignment_bytes == 0 {
            return;
        }
        let page = first_page();
        // SAFETY: the mapping stays until the end of the process.
        let memory = match unsafe { device.import_host(page, 4096, PageAccess::Read) } {
            Ok(memory) => memory,
            Err(error) => return eprintln!("read-only pages are not taken on {}: {error}", device.info().id),
        };
        assert!(memory.is_read_only());
        let target = mapped(device, 4096);
        let stream = device.create_stream().unwrap();
        let copy = Work::Copy { from: whole(&memory), to: whole(&target) };
        wait(device, stream.run(copy, &[]).unwrap());
        assert_eq!(slice::<u8>(&target), slice::<u8>(&memory));
        let write = stream.run(Work::Fill { to: whole(&memory), word: 1 }, &[]);
        assert!(matches!(write, Err(Error::InvalidArgument(_))));
        let saxpy = kernel(device, SAXPY, &[]);
        let (bindings, immediates) = ([whole(&target), whole(&memory)], 1f32.to_ne_bytes());
        let launch =
            Launch { kernel: &saxpy, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
        let write = stream.run(Work::Launch(launch), &[]);
        assert!(matches!(write, Err(Error::BindingMismatch { .. })));
    });
}

/// The first page of this program, which may not be written.
fn first_page() -> NonNull<u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: a new mapping of a file that does not change while the test runs.
    let page = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
    NonNull::new(page.unwrap().cast()).unwrap()
}
