//! Memory that the program already has.

use std::sync::atomic::Ordering::Relaxed;

use onebuf::{Arg, Error, HostAccess, HostPath, Limits, PageVec, Result, Semantic, args};

use crate::fake::{Options, limits, mix};
use crate::uma;

#[test]
fn pages_are_used_in_place() {
    let (device, fake) = uma();
    let mut pages = device.page_vec::<u32>(1000).unwrap();
    assert_eq!((pages.len(), pages.capacity_bytes()), (1000, 4096));
    assert_eq!(pages[..], [0; 1000]);
    pages.fill(5);
    let address = pages.as_ptr();
    let buffer = device.adopt(pages).unwrap();
    let placement = buffer.placement();
    assert_eq!((placement.path, placement.semantic), (HostPath::HostMemory, Some(Semantic::HostImport)));
    let kernel = device.kernel("rw").unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    stream.launch(&kernel, [1; 3], args![&buffer]).unwrap();
    let read = buffer.read().unwrap();
    assert_eq!(read.as_ptr(), address);
    assert_eq!(read[..], [mix([1; 3], &[], &[5], 0); 1000]);
    drop(read);
    buffer.write().unwrap()[0] = 1;
    assert_eq!(device.copied_bytes(), 0);
    // The pages outlive the work on them: the last handle waits.
    stream.fill(&buffer, 6).unwrap();
    assert_eq!(fake.core.pending(), 1);
    drop(buffer);
    assert_eq!(fake.core.pending(), 0);
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
    assert_eq!(device.memory().live_bytes, 0);
}

#[test]
fn pages_survive_their_device_in_a_backends_hands() {
    let (device, fake) = uma();
    let buffer = device.adopt(PageVec::from_slice(&[1u8; 10]).unwrap()).unwrap();
    assert_eq!(buffer.read().unwrap()[..], [1; 10]);
    // SAFETY: it is only kept.
    let held = unsafe { buffer.raw() }.clone();
    drop(buffer);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 1, "kept until nobody holds it");
    drop(held);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
}

#[test]
fn empty_and_odd_sizes() {
    let (device, _) = uma();
    let empty = device.adopt(PageVec::<u32>::zeroed(0).unwrap()).unwrap();
    assert!(empty.read().unwrap().is_empty());
    let odd = device.adopt(PageVec::from_slice(&[0xffu8; 7]).unwrap()).unwrap();
    let out = device.buffer::<u32>(2).build().unwrap();
    let copy = device.kernel("r w").unwrap().build().unwrap();
    device.stream().unwrap().launch(&copy, [1; 3], args![&odd, &out]).unwrap();
    let tail = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
    assert_eq!(out.read_to_vec().unwrap()[1], mix([1; 3], &[], &[tail], 1));
    for len in [usize::MAX, usize::MAX / 4] {
        assert!(matches!(PageVec::<u32>::zeroed(len), Err(Error::LimitExceeded { .. })));
    }
    assert!(matches!(PageVec::<u32>::aligned(1, 3), Err(Error::InvalidArgument(_))));
    assert!(device.adopt(PageVec::<()>::zeroed(3).unwrap()).is_err());
}

#[test]
fn refused_pages_come_back() {
    let strict = Limits { host_import_alignment_bytes: 1 << 16, ..limits() };
    let (device, _) = Options { limits: strict, ..Options::uma() }.open();
    let pages = PageVec::<u32>::aligned(100, 4096).unwrap();
    let Err(refused) = device.adopt(pages) else { panic!("4096 is not 65536") };
    assert!(
        refused.to_string().contains("Device::page_vec") || refused.to_string().contains("round up to 65536")
    );
    assert_eq!(refused.pages.len(), 100);
    let pages = device.page_vec::<u32>(100).unwrap();
    assert_eq!(pages.capacity_bytes(), 1 << 16);
    device.adopt(pages).unwrap();
    let none = Limits { host_import_alignment_bytes: 0, ..limits() };
    let (device, _) = Options { limits: none, ..Options::uma() }.open();
    let refused = device.adopt(device.page_vec::<u32>(100).unwrap()).map_err(Error::from);
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
}

#[test]
fn pages_to_be_read_are_never_written() {
    let (device, _) = uma();
    let pages = ReadOnly::new();
    // SAFETY: the pages outlive the buffers, and nobody writes them.
    let refused = unsafe { device.import_host::<u32>(pages.words().cast_mut()) }.unwrap_err().to_string();
    assert!(refused.contains("may not write") && refused.contains("import_host_read_only"), "{refused}");
    // SAFETY: as above.
    let buffer = unsafe { device.import_host_read_only::<u32>(pages.words()) }.unwrap();
    assert_eq!(buffer.placement().asked.host, HostAccess::Read);
    assert_eq!(buffer.read().unwrap()[..], [0; 1024]);
    // Everything that would write them, by the CPU or the device, now or when it is replayed.
    let says = |result: Result<()>| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("read only") || message.contains("only be read"), "{message}");
    };
    let other = device.buffer::<u32>(1024).host(HostAccess::ReadWrite).init(&[5; 1024]).unwrap();
    let stream = device.stream().unwrap();
    let (copies, mixes) = (device.kernel("r w").unwrap(), device.kernel("rw").unwrap());
    let (copies, mixes) = (copies.build().unwrap(), mixes.build().unwrap());
    says(buffer.write().map(drop));
    says(buffer.try_write().map(drop));
    says(buffer.copy_from_slice(&[1; 1024]));
    says(buffer.cast::<u8>().unwrap().slice(4..8).unwrap().write().map(drop));
    says(stream.fill(&buffer, 1).map(drop));
    says(stream.copy(&other, &buffer).map(drop));
    says(stream.launch(&copies, [1; 3], args![&other, &buffer]).map(drop));
    says(stream.launch(&mixes, [1; 3], args![&buffer]).map(drop));
    let mut graph = device.graph();
    says(graph.fill(&buffer, 1).map(drop));
    says(graph.copy(&other, &buffer).map(drop));
    says(graph.launch(&copies, [1; 3], args![&other, &buffer]).map(drop));
    let node = graph.launch(&copies, [1; 3], args![&buffer, &other]).unwrap();
    let mut graph = graph.build().unwrap();
    says(graph.update(node, args![&other, &buffer]));
    // SAFETY: it is refused before the closure runs.
    says(
        unsafe { device.order_external(&[(Arg::buffer(&buffer), true)], |_| panic!("not reached")) }
            .map(drop),
    );
    // They are read as any others.
    stream.replay(&graph).unwrap();
    assert_eq!(other.read().unwrap()[7], mix([1; 3], &[], &[0], 1));
    stream.copy(&buffer, &other).unwrap();
    assert_eq!(other.read().unwrap()[..], [0; 1024]);
}

/// A page of zeros that the program may not write.
struct ReadOnly(*mut std::ffi::c_void);

impl ReadOnly {
    fn new() -> ReadOnly {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new mapping.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE) };
        ReadOnly(page.unwrap())
    }

    fn words(&self) -> *const [u32] {
        std::ptr::slice_from_raw_parts(self.0.cast(), 1024)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and no buffer is left.
        unsafe { rustix::mm::munmap(self.0, 4096) }.unwrap();
    }
}

#[test]
fn borrowed_memory_follows_the_rules() {
    let (device, fake) = uma();
    let mut pages = PageVec::<u32>::zeroed(2048).unwrap();
    let all: *mut [u32] = &mut *pages;
    let part = |range: std::ops::Range<usize>| {
        // SAFETY: the range lies in the pages.
        std::ptr::slice_from_raw_parts_mut(unsafe { all.cast::<u32>().add(range.start) }, range.len())
    };
    // SAFETY: refused for its alignment or size, or dropped before the pages.
    let import = |slice| unsafe { device.import_host::<u32>(slice) };
    let text = |slice| import(slice).unwrap_err().to_string();
    assert!(text(part(1..1025)).contains("multiple of 4096"));
    assert!(text(part(0..1000)).contains("round up to 4096"));
    assert!(text(part(0..0)).contains("round up to 4096"));
    assert!(text(std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 1024)).contains("null"));
    let buffer = import(part(0..1024)).unwrap();
    device.stream().unwrap().fill(&buffer, 3).unwrap();
    drop(buffer);
    assert_eq!(fake.core.pending(), 0);
    assert_eq!(pages[..1024], [3; 1024]);
    assert_eq!(pages[1024..], [0; 1024]);
}
