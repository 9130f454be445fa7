//! Memory that the program already has.

use std::sync::atomic::Ordering::Relaxed;

use onebuf::{Error, HostPath, Limits, PageVec, Semantic, args};

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
