//! Memory: from the pool, from the driver, from the next best kind, back again.

use std::sync::atomic::Ordering::Relaxed;

use onebuf::core::profile::{Heap, MemoryKind};
use onebuf::{DeviceUse, Error, HandleKind, HostAccess, HostPath, Semantic, Share, args};

use crate::fake::{Options, kind};
use crate::{discrete, uma};

#[test]
fn freed_memory_is_used_again() {
    let (device, fake) = uma();
    let allocations = || fake.core.allocations.load(Relaxed);
    for _ in 0..10 {
        drop(device.buffer::<u8>(1 << 20).build().unwrap());
    }
    assert_eq!(allocations(), 1);
    // About the same size, the same users.
    drop(device.buffer::<u8>((1 << 20) - 100).build().unwrap());
    drop(device.buffer::<f32>(1 << 18).label("x").build().unwrap());
    assert_eq!(allocations(), 1);
    // Other users, another size.
    drop(device.buffer::<u8>(1 << 20).host(HostAccess::Read).build().unwrap());
    drop(device.buffer::<u8>(1 << 20).device_use(DeviceUse::Heavy).build().unwrap());
    drop(device.buffer::<u8>(1 << 20).prefer(Semantic::Uma).build().unwrap());
    drop(device.buffer::<u8>(1 << 19).build().unwrap());
    assert_eq!(allocations(), 5);
    let memory = device.memory();
    assert_eq!((memory.live_bytes, memory.buffers), (0, 0));
    assert_eq!((memory.pool.free_buffers, memory.pool.free_bytes), (5, (4 << 20) + (1 << 19)));
    assert_eq!((memory.pool.hits, memory.pool.misses), (11, 5));
    assert_eq!(memory.peak_bytes, 1 << 20);
    assert_eq!(memory.fragmentation(), 0.0);
    assert_eq!(device.trim(), (4 << 20) + (1 << 19));
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
    assert_eq!(device.memory().pool.free_bytes, 0);
}

#[test]
fn size_classes_waste_at_most_an_eighth() {
    let (device, _) = uma();
    for size in (1..60).map(|i| i * 977 + 256).chain([1 << 20, (1 << 20) + 4, 12_345_678]) {
        let buffer = device.buffer::<u8>(size).build().unwrap();
        let held = device.memory().live_bytes;
        assert!(held >= size as u64 && held <= size as u64 * 9 / 8 + 8, "{held} for {size}");
        drop(buffer);
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of megabytes")]
fn the_pool_is_bounded() {
    let (device, fake) = uma();
    let limit = device.memory().pool.limit_bytes;
    assert_eq!(limit, 128 << 20); // an eighth of the heap
    let buffers: Vec<_> = (0..40).map(|_| device.buffer::<u8>(8 << 20).build().unwrap()).collect();
    drop(buffers);
    assert!(device.memory().pool.free_bytes <= limit);
    // What is larger than half of it does not come in at all.
    device.trim();
    drop(device.buffer::<u8>(65 << 20).build().unwrap());
    assert_eq!(device.memory().pool.free_bytes, 0);
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
}

#[test]
fn reused_memory_waits_for_its_old_work_on_the_device() {
    let (device, fake) = uma();
    let stream = device.stream().unwrap();
    let old = device.buffer::<u32>(1024).build().unwrap();
    let wrote = stream.fill(&old, 1).unwrap();
    drop(old);
    let waits = fake.core.waits.load(Relaxed);
    let new = device.buffer::<u32>(1024).build().unwrap();
    assert_eq!(device.memory().pool.hits, 1);
    let target = device.buffer::<u32>(1024).build().unwrap();
    device.stream().unwrap().copy(&new, &target).unwrap();
    assert_eq!(fake.core.last_submission().after, [wrote]);
    assert_eq!(fake.core.waits.load(Relaxed), waits);
}

#[test]
fn the_cpu_gets_memory_that_nobody_works_on() {
    let (device, fake) = uma();
    let stream = device.stream().unwrap();
    for host in [HostAccess::Write, HostAccess::None] {
        let old = device.buffer::<u32>(1024).host(host).build().unwrap();
        stream.fill(&old, 1).unwrap();
        drop(old);
        let waits = fake.core.waits.load(Relaxed);
        let new = device.buffer::<u32>(1024).host(host).init(&[2; 1024]).unwrap();
        assert_eq!(fake.core.waits.load(Relaxed), waits, "a new buffer does not wait for an old one's work");
        assert_eq!(device.memory().pool.hits, 0);
        assert_eq!(new.read_to_vec().unwrap(), [2; 1024]);
        drop(new);
        device.trim();
    }
    // When the work is done the memory comes back.
    let old = device.buffer::<u32>(1024).host(HostAccess::Write).build().unwrap();
    stream.fill(&old, 1).unwrap();
    drop(old);
    fake.core.run();
    device.buffer::<u32>(1024).host(HostAccess::Write).build().unwrap().try_write().unwrap().fill(1);
    assert_eq!(device.memory().pool.hits, 1);
}

fn small(bytes: &[u64]) -> Options {
    let heaps = bytes.iter().map(|&size_bytes| Heap { size_bytes, budget_bytes: None, device_local: true });
    let names = ["first", "second", "third"];
    Options {
        heaps: heaps.collect(),
        memory: (0..bytes.len()).map(|i| kind(names[i], true, true, i)).collect(),
        ..Options::uma()
    }
}

#[test]
fn a_full_kind_of_memory_gives_way_to_the_next() {
    let (device, _) = small(&[4 << 20, 4 << 20]).open();
    let first = device.buffer::<u8>(3 << 20).host(HostAccess::Read).build().unwrap();
    assert_eq!(first.placement().kind, "first");
    let second = device.buffer::<u8>(3 << 20).host(HostAccess::Read).build().unwrap();
    let placement = second.placement();
    assert_eq!(placement.kind, "second");
    let lost = placement.lost.iter().find(|lost| lost.kind == "first").unwrap();
    assert!(lost.reason.contains("the driver had no memory of it"), "{}", lost.reason);
    let third = device.buffer::<u8>(2 << 20).host(HostAccess::Read).build();
    assert!(matches!(third, Err(Error::OutOfMemory { never_fits: false, .. })), "{third:?}");
    let never = device.buffer::<u8>(5 << 20).host(HostAccess::Read).build();
    assert!(matches!(never, Err(Error::OutOfMemory { never_fits: true, .. })), "{never:?}");
    let memory = device.memory();
    assert_eq!((memory.live_bytes, memory.buffers), (6 << 20, 2));
}

#[test]
fn the_pool_gives_way_before_memory_runs_out() {
    let (device, fake) = small(&[8 << 20]).open();
    for size in [100_000, 200_000, 300_000] {
        drop(device.buffer::<u8>(size).build().unwrap());
    }
    assert!(device.memory().pool.free_bytes > 0);
    let all = device.buffer::<u8>(8 << 20).build().unwrap();
    assert_eq!(device.memory().pool.free_bytes, 0);
    drop(all);
    // A class that does not fit any more gives way to the very size.
    let _most = device.buffer::<u8>((8 << 20) - 260_000).build().unwrap();
    let rest = device.buffer::<u8>(250_000).build().unwrap();
    drop(rest);
    assert_eq!(device.memory().pool.free_bytes, 0, "memory short of its class does not come back as one");
    assert_eq!(fake.core.live_memories.load(Relaxed), 1);
}

#[test]
fn memory_that_the_device_still_works_on_is_better_than_none() {
    let (device, fake) = small(&[1 << 16]).open();
    let stream = device.stream().unwrap();
    let old = device.buffer::<u8>(4096).host(HostAccess::Write).build().unwrap();
    let _rest = device.buffer::<u8>((1 << 16) - 4096).build().unwrap();
    stream.fill(&old, 0x0101_0101).unwrap();
    drop(old);
    let new = device.buffer::<u8>(4096).host(HostAccess::Write).init(&[2; 4096]).unwrap();
    assert_eq!(new.read_to_vec().unwrap(), [2; 4096]);
    assert_eq!((device.memory().pool.hits, fake.core.pending()), (1, 0));
}

#[test]
fn sizes_are_checked_in_64_bits() {
    let (device, _) = uma();
    let limit = |outcome: onebuf::Result<()>| match outcome {
        Err(Error::LimitExceeded { what, required, available }) => (what, required, available),
        other => panic!("{other:?}"),
    };
    let (what, required, available) = limit(device.buffer::<u8>((1 << 30) + 1).build().map(drop));
    assert_eq!((what.as_str(), required, available), ("buffer size in bytes", (1 << 30) + 1, 1 << 30));
    limit(device.buffer::<u64>(usize::MAX).build().map(drop));
    limit(device.buffer::<u64>(usize::MAX / 8).build().map(drop));
    limit(device.buffer::<u8>(usize::MAX).build().map(drop));
    limit(device.buffer::<u8>(usize::MAX).host(HostAccess::Write).init_with(|_| 0).map(drop));
    let refused = device.buffer::<()>(10).build();
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    assert!(matches!(device.buffer::<u8>(3).init(&[1, 2]), Err(Error::InvalidArgument(_))));
    assert_eq!(device.memory().buffers, 0);
}

#[test]
fn bytes_past_the_end_are_zero() {
    for (device, _) in [uma(), discrete()] {
        let copy = device.kernel("r w").unwrap().build().unwrap();
        let stream = device.stream().unwrap();
        // Dirty memory for the pool, that an old buffer's work is still on its way to.
        let dirty = device.buffer::<u8>(7).build().unwrap();
        stream.fill(&dirty, u32::MAX).unwrap();
        drop(dirty);
        let odd = device.buffer::<u8>(7).build().unwrap();
        odd.copy_from_slice(&[0xff; 7]).unwrap();
        let by_init = device.buffer::<u8>(7).init(&[0xff; 7]).unwrap();
        for buffer in [&odd, &by_init] {
            let words = device.buffer::<u32>(2).build().unwrap();
            stream.launch(&copy, [1; 3], args![buffer, &words]).unwrap();
            let read = words.read_to_vec().unwrap();
            let expected = [u32::MAX, u32::from_ne_bytes([0xff, 0xff, 0xff, 0])];
            assert_eq!(read, expected.map(|word| crate::fake::mix([1; 3], &[], &[word], 1)));
        }
        // Sizes do not change by it.
        assert_eq!((odd.len(), odd.size_bytes()), (7, 7));
    }
}

#[test]
fn zeroed_is_zeroed() {
    for (device, _) in [uma(), discrete()] {
        let stream = device.stream().unwrap();
        for host in [HostAccess::None, HostAccess::Read] {
            let dirty = device.buffer::<u32>(1000).host(host).build().unwrap();
            stream.fill(&dirty, 0x55).unwrap();
            drop(dirty);
            let clean = device.buffer::<u32>(1000).host(host).zeroed().build().unwrap();
            assert_eq!(clean.read_to_vec().unwrap(), [0; 1000]);
        }
    }
}

#[test]
fn shared_memory_is_never_pooled() {
    let exportable = MemoryKind { export: vec![HandleKind::OpaqueFd], ..kind("shared", true, true, 0) };
    let (device, fake) = Options { memory: vec![exportable], ..Options::uma() }.open();
    let shared = device.buffer::<u32>(64).share(Share::Process).zeroed().build().unwrap();
    assert!(shared.placement().exportable);
    assert_eq!(shared.read_to_vec().unwrap(), [0; 64]);
    drop(shared);
    assert_eq!(device.memory().pool.free_bytes, 0);
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
}

#[test]
fn placements_say_what_was_asked_and_got() {
    let (device, _) = discrete();
    let a = device.buffer::<f32>(1000).prefer(Semantic::Uma).build().unwrap();
    let placement = a.placement();
    assert_eq!(placement.asked.size_bytes, 4000);
    assert_eq!(placement.fell_back_from, Some(Semantic::Uma));
    assert_eq!(placement.path, HostPath::DeviceOnly);
    drop(a);
    // Memory from the pool tells of the new buffer.
    let b = device.buffer::<u8>(3999).prefer(Semantic::Uma).build().unwrap();
    assert_eq!(device.memory().pool.hits, 1);
    assert_eq!(b.placement().asked.size_bytes, 3999);
    let required = device.buffer::<u8>(4).require(Semantic::Uma).build();
    let Err(Error::NoPlacement { rejected, .. }) = required else { panic!("{required:?}") };
    assert_eq!(rejected.len(), 2);
    let in_place = device.buffer::<u8>(4).host_in_place(HostAccess::Read).build().unwrap();
    assert_eq!(in_place.placement().path, HostPath::HostMemory);
}

#[test]
fn size_classes_stay_within_the_limits() {
    for mut options in [Options::uma(), Options::discrete()] {
        options.limits.max_buffer_bytes = 1_000_000;
        options.limits.max_allocation_bytes = 1_000_000;
        let (device, _) = options.open(); // the fake device minds
        let largest = device.buffer::<u8>(1_000_000).device_use(DeviceUse::Heavy).host(HostAccess::ReadWrite);
        let largest = largest.init_with(|i| i as u8).unwrap();
        assert_eq!(largest.read().unwrap()[999_999], 999_999usize as u8);
        drop(largest);
        assert_eq!(device.memory().live_bytes, 0);
    }
}
