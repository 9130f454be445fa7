//! The CPU's turn: waiting, refusing, copying where there is no other way.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use onebuf::core::profile::{Heap, MemoryKind};
use onebuf::{DeviceKind, DeviceUse, Error, HostAccess, HostPath, Result, Semantic, UnifiedLevel, args};

use crate::fake::{Options, kind, mix};
use crate::{discrete, uma};

fn busy<T>(outcome: Result<T>) -> String {
    match outcome {
        Err(Error::Busy(message)) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not busy"),
    }
}

#[test]
fn a_read_waits_for_the_writer_alone() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::Read).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let stream = device.stream().unwrap();
    let other = device.stream().unwrap();
    let wrote = stream.fill(&a, 7).unwrap();
    other.fill(&b, 1).unwrap();
    assert_eq!(a.read().unwrap()[..], [7; 64]);
    assert_eq!(*fake.core.waited_for.lock(), [wrote]);
    // A reader on the device does not hold up a reader on the CPU.
    stream.copy(&a, &b).unwrap();
    assert_eq!(a.try_read().unwrap()[0], 7);
    assert_eq!(device.copied_bytes(), 0);
}

#[test]
fn nothing_that_conflicts_goes_past_a_guard() {
    for (device, _) in [uma(), discrete()] {
        let a = device
            .buffer::<u32>(64)
            .host(HostAccess::ReadWrite)
            .device_use(DeviceUse::Heavy)
            .label("a")
            .init(&[1; 64])
            .unwrap();
        let b = device.buffer::<u32>(64).build().unwrap();
        let stream = device.stream().unwrap();
        let read = a.read().unwrap();
        let again = a.read().unwrap();
        stream.copy(&a, &b).unwrap();
        assert!(busy(stream.fill(&a, 2)).starts_with("buffer `a`: "));
        busy(stream.copy(&b, &a));
        busy(a.write());
        busy(a.copy_from_slice(&[3; 64]));
        drop(read);
        busy(stream.fill(&a, 2));
        assert_eq!(again[..], [1; 64]);
        drop(again);
        let mut write = a.write().unwrap();
        busy(stream.copy(&a, &b));
        busy(a.read());
        busy(a.try_write());
        busy(a.read_to_vec());
        write.fill(5);
        write.finish().unwrap();
        stream.copy(&a, &b).unwrap();
        assert_eq!(b.read_to_vec().unwrap(), [5; 64]);
    }
}

#[test]
fn a_guard_keeps_the_buffer_alive() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).init(&[9; 64]).unwrap();
    let guard = a.read().unwrap();
    drop(a);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 1);
    // It goes where it is needed.
    let sum = std::thread::spawn(move || guard.iter().sum::<u32>()).join().unwrap();
    assert_eq!(sum, 9 * 64);
    device.trim();
    assert_eq!(fake.core.live_memories.load(Relaxed), 0);
}

#[test]
fn trying_never_waits() {
    let (device, fake) = uma();
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).label("a").build().unwrap();
    let stream = device.stream().unwrap();
    stream.fill(&a, 7).unwrap();
    let waits = fake.core.waits.load(Relaxed);
    assert!(busy(a.try_read()).contains("buffer `a`"));
    busy(a.try_write());
    assert_eq!((fake.core.waits.load(Relaxed), fake.core.pending()), (waits, 1));
    assert!(matches!(a.read_timeout(Duration::ZERO), Err(Error::Timeout { .. })));
    // None of the three left a claim behind.
    stream.fill(&a, 8).unwrap();
    fake.core.run();
    assert_eq!(a.try_read().unwrap()[0], 8);
    a.try_write().unwrap()[0] = 9;
    assert_eq!(a.read_timeout(Duration::ZERO).unwrap()[..2], [9, 8]);
}

#[test]
fn staged_reads_and_writes_copy_what_they_must() {
    let (device, fake) = discrete();
    let a =
        device.buffer::<u32>(64).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy).build().unwrap();
    let stream = device.stream().unwrap();
    assert!(a.placement().staged && a.placement().path == HostPath::DeviceOnly);
    stream.fill(&a, 3).unwrap();
    assert_eq!(a.read().unwrap()[..], [3; 64]);
    assert_eq!(device.copied_bytes(), 256);
    a.slice(8..12).unwrap().write().unwrap()[1] = 4; // 16 bytes there, 16 back
    assert_eq!(device.copied_bytes(), 256 + 32);
    let pending = fake.core.pending();
    a.slice(..2).unwrap().overwrite().unwrap().copy_from_slice(&[1, 2]); // 8 bytes back, nobody waits
    assert_eq!(device.copied_bytes(), 256 + 32 + 8);
    assert_eq!(fake.core.pending(), pending + 1);
    let mut expected = [3; 64];
    (expected[0], expected[1], expected[9]) = (1, 2, 4);
    assert_eq!(a.read().unwrap()[..], expected);
    // The device sees what the CPU wrote.
    let square = device.kernel("rw").unwrap().build().unwrap();
    stream.launch(&square, [1; 3], args![&a]).unwrap();
    let expected = expected.map(|word| mix([1; 3], &[], &[word], 0));
    assert_eq!(a.read().unwrap()[..], expected);
}

#[test]
fn a_staged_overwrite_waits_on_the_device() {
    let (device, fake) = discrete();
    let a =
        device.buffer::<u32>(64).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy).build().unwrap();
    let b = device.buffer::<u32>(64).host(HostAccess::Read).device_use(DeviceUse::Heavy).build().unwrap();
    let stream = device.stream().unwrap();
    stream.fill(&a, 1).unwrap();
    stream.copy(&a, &b).unwrap();
    let waits = fake.core.waits.load(Relaxed);
    a.overwrite().unwrap().fill(2);
    assert_eq!(fake.core.waits.load(Relaxed), waits);
    assert_eq!(a.read().unwrap()[0], 2);
    assert_eq!(b.read().unwrap()[0], 1, "the copy had to come first");
}

#[test]
fn a_staged_try_read_starts_a_copy_and_finds_it_later() {
    let (device, fake) = discrete();
    let a =
        device.buffer::<u32>(64).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy).build().unwrap();
    let stream = device.stream().unwrap();
    stream.fill(&a, 7).unwrap();
    let submissions = || fake.core.submissions.load(Relaxed);
    let before = submissions();
    busy(a.try_read()); // the copy goes behind the fill
    assert_eq!((submissions(), fake.core.pending()), (before + 1, 2));
    busy(a.try_read());
    assert_eq!(submissions(), before + 1, "one copy is enough");
    fake.core.run();
    assert_eq!(a.try_read().unwrap()[..], [7; 64]);
    // A copy of what was there before a write is of no use.
    busy(a.try_read());
    stream.fill(&a, 8).unwrap();
    fake.core.run();
    busy(a.try_read());
    fake.core.run();
    assert_eq!(a.try_read().unwrap()[0], 8);
    // Nor is one of another range, and a host write ends it, too.
    busy(a.slice(..4).unwrap().try_read());
    fake.core.run();
    busy(a.try_read());
    a.copy_from_slice(&[9; 64]).unwrap();
    fake.core.run();
    busy(a.try_read());
    fake.core.run();
    assert_eq!(a.try_read().unwrap()[0], 9);
    // What a try began, a read that waits takes over.
    stream.fill(&a, 10).unwrap();
    busy(a.try_read());
    let before = submissions();
    assert_eq!(a.read().unwrap()[0], 10);
    assert_eq!(submissions(), before);
    busy(a.try_write());
    fake.core.run();
    a.try_write().unwrap()[1] = 11;
    assert_eq!(a.read().unwrap()[..3], [10, 11, 10]);
}

#[test]
fn a_write_through_a_copy_that_a_try_began_stays_behind_readers() {
    for seed in 0..20 {
        let (device, fake) = Options { seed, ..Options::discrete() }.open();
        let build = || device.buffer::<u32>(4).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy);
        let (a, b) = (build().init(&[1; 4]).unwrap(), build().build().unwrap());
        busy(a.try_read());
        fake.core.run();
        device.stream().unwrap().copy(&a, &b).unwrap();
        a.write().unwrap().fill(2); // finds the copy, and the read of `a` may not have run
        assert_eq!(a.read().unwrap()[0], 2);
        assert_eq!(b.read().unwrap()[0], 1);
    }
}

#[test]
fn guards_want_what_the_buffer_was_built_for() {
    let (device, _) = uma();
    let unsupported = |outcome: Result<()>| match outcome {
        Err(Error::Unsupported { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let none = device.buffer::<u32>(4).init(&[1, 2, 3, 4]).unwrap();
    assert!(unsupported(none.read().map(drop)).contains("HostAccess::Read"));
    assert!(unsupported(none.write().map(drop)).contains("copy_from_slice"));
    let write = device.buffer::<u32>(4).host(HostAccess::Write).build().unwrap();
    unsupported(write.read().map(drop));
    unsupported(write.try_read().map(drop));
    write.overwrite().unwrap().fill(3);
    let read = device.buffer::<u32>(4).host(HostAccess::Read).build().unwrap();
    unsupported(read.overwrite().map(drop));
    unsupported(read.try_write().map(drop));
    // Copies work on all.
    none.copy_from_slice(&[5, 6, 7, 8]).unwrap();
    let mut target = [0; 4];
    none.copy_to_slice(&mut target).unwrap();
    assert_eq!(target, [5, 6, 7, 8]);
    assert_eq!(write.read_to_vec().unwrap(), [3; 4]);
    assert!(matches!(none.copy_to_slice(&mut [0; 3]), Err(Error::InvalidArgument(_))));
    assert!(matches!(none.copy_from_slice(&[0; 5]), Err(Error::InvalidArgument(_))));
    assert_eq!(device.copied_bytes(), 0);
}

#[test]
fn a_bus_window_is_written_in_place_and_read_through_a_copy() {
    let heap = |device_local, size_bytes| Heap { size_bytes, budget_bytes: None, device_local };
    let bar = MemoryKind { host_cached: false, ..kind("bar", true, true, 0) };
    let (device, _) = Options {
        kind: DeviceKind::Discrete,
        heaps: vec![heap(true, 8 << 30), heap(false, 8 << 30)],
        memory: vec![bar, kind("host", false, true, 1)],
        ..Options::uma()
    }
    .open();
    let a = device.buffer::<u32>(64).host(HostAccess::Write).build().unwrap();
    assert_eq!(a.placement().path, HostPath::ResizableBar);
    a.write().unwrap().fill(4);
    a.copy_from_slice(&[5; 64]).unwrap();
    assert_eq!(device.copied_bytes(), 0);
    assert_eq!(a.read_to_vec().unwrap(), [5; 64]);
    assert_eq!(device.copied_bytes(), 256);
    let insists = device.buffer::<u32>(64).host_in_place(HostAccess::ReadWrite).build().unwrap();
    insists.write().unwrap().fill(6);
    assert_eq!(insists.read().unwrap()[..], [6; 64]);
    assert_eq!(device.copied_bytes(), 256);
}

#[test]
fn a_failed_hand_over_is_told() {
    for (device, fake) in [uma(), discrete()] {
        let a = device
            .buffer::<u32>(64)
            .host(HostAccess::ReadWrite)
            .device_use(DeviceUse::Heavy)
            .init(&[1; 64])
            .unwrap();
        let stream = device.stream().unwrap();
        let mut guard = a.overwrite().unwrap();
        guard.fill(2);
        fake.core.fail_flush.store(true, Relaxed);
        assert!(matches!(guard.finish(), Err(Error::Driver { call: "flush", .. })));
        // Where nobody looked, the next use tells, once.
        let guard = a.overwrite().unwrap();
        fake.core.fail_flush.store(true, Relaxed);
        drop(guard);
        assert!(matches!(stream.fill(&a, 3), Err(Error::Driver { call: "flush", .. })));
        stream.fill(&a, 3).unwrap();
        let guard = a.overwrite().unwrap();
        fake.core.fail_flush.store(true, Relaxed);
        drop(guard);
        assert!(matches!(a.read(), Err(Error::Driver { call: "flush", .. })));
        a.read().unwrap();
        stream.fill(&a, 4).unwrap();
        assert_eq!(a.read().unwrap()[..], [4; 64]);
    }
}

#[test]
fn a_staged_write_that_the_driver_refuses_leaves_no_claim() {
    let (device, fake) = discrete();
    let a = device
        .buffer::<u32>(64)
        .host(HostAccess::ReadWrite)
        .device_use(DeviceUse::Heavy)
        .init(&[1; 64])
        .unwrap();
    fake.core.fail_submit.store(true, Relaxed);
    assert!(matches!(a.read(), Err(Error::Driver { .. })));
    let guard = a.overwrite().unwrap();
    fake.core.fail_submit.store(true, Relaxed);
    assert!(matches!(guard.finish(), Err(Error::Driver { .. })));
    assert_eq!(a.read().unwrap()[..], [1; 64]);
}

#[test]
fn empty_buffers_read_as_nothing() {
    for (device, fake) in [uma(), discrete()] {
        let empty =
            device.buffer::<u32>(0).host(HostAccess::ReadWrite).device_use(DeviceUse::Heavy).build().unwrap();
        assert!(empty.is_empty() && empty.size_bytes() == 0);
        assert!(empty.read().unwrap().is_empty());
        assert!(empty.write().unwrap().is_empty());
        assert!(empty.overwrite().unwrap().is_empty());
        assert!(empty.read_to_vec().unwrap().is_empty());
        empty.copy_from_slice(&[]).unwrap();
        let full = device
            .buffer::<u32>(4)
            .host(HostAccess::ReadWrite)
            .device_use(DeviceUse::Heavy)
            .init(&[1; 4])
            .unwrap();
        assert!(full.slice(2..2).unwrap().read().unwrap().is_empty());
        let kernel = device.kernel("rw").unwrap().build().unwrap();
        let refused = device.stream().unwrap().launch(&kernel, [1; 3], args![&empty]);
        assert!(matches!(refused, Err(Error::BindingMismatch { .. })), "{refused:?}");
        assert!(fake.core.pending() <= 2);
        device.wait_idle().unwrap();
    }
}

#[test]
fn slices_are_checked() {
    let (device, _) = uma();
    let a = device.buffer::<u32>(10).host(HostAccess::ReadWrite).init_with(|i| i as u32).unwrap();
    assert_eq!(a.slice(2..=4).unwrap().read().unwrap()[..], [2, 3, 4]);
    let tail = a.slice(6..).unwrap();
    assert_eq!((tail.len(), tail.offset_bytes(), tail.size_bytes()), (4, 24, 16));
    assert_eq!(tail.slice(1..3).unwrap().read_to_vec().unwrap(), [7, 8]);
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = a.slice(4..2);
    for bad in
        [a.slice(..11), a.slice(11..), a.slice(..=10), a.slice(0..=usize::MAX), backwards, tail.slice(..5)]
    {
        assert!(matches!(bad, Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn casts_are_checked() {
    let (device, _) = uma();
    let bytes = device.buffer::<u8>(12).host(HostAccess::ReadWrite).init_with(|i| i as u8).unwrap();
    let words = bytes.cast::<u32>().unwrap();
    assert!(words.len() == 3 && words.same_memory(&bytes));
    assert_eq!(words.read().unwrap()[0].to_ne_bytes(), [0, 1, 2, 3]);
    busy(words.read().and_then(|_guard| bytes.write()));
    assert!(matches!(bytes.cast::<u64>(), Err(Error::InvalidArgument(_))));
    assert!(matches!(bytes.cast::<()>(), Err(Error::InvalidArgument(_))));
}

#[test]
fn where_pages_move_for_one_at_a_time_a_guard_stops_the_device() {
    let moving = MemoryKind { migrating: true, ..kind("managed", true, true, 0) };
    let exclusive = |unified| {
        let options =
            Options { kind: DeviceKind::Discrete, unified, memory: vec![moving.clone()], ..Options::uma() };
        options.open()
    };
    let (device, fake) = exclusive(UnifiedLevel::Exclusive);
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let stream = device.stream().unwrap();
    stream.fill(&b, 1).unwrap();
    busy(a.try_read());
    assert_eq!(fake.core.pending(), 1);
    let guard = a.read().unwrap();
    assert_eq!(fake.core.pending(), 0, "all work was waited for, not only that on the buffer");
    let more = a.read().unwrap();
    busy(stream.fill(&b, 2));
    drop(guard);
    busy(stream.fill(&b, 2));
    drop(more);
    stream.fill(&b, 2).unwrap();
    // Nor does a copy for the CPU run.
    let vram = kind("vram", true, false, 0);
    let host = kind("host", false, true, 0);
    let (device, _) = Options {
        kind: DeviceKind::Discrete,
        unified: UnifiedLevel::Exclusive,
        memory: vec![moving.clone(), vram, host],
        ..Options::uma()
    }
    .open();
    let a = device.buffer::<u32>(4).host(HostAccess::ReadWrite).require(Semantic::Unified).build().unwrap();
    let b = device.buffer::<u32>(4).build().unwrap();
    assert_eq!(b.placement().path, HostPath::DeviceOnly);
    let guard = a.read().unwrap();
    assert!(busy(b.read_to_vec()).contains("nothing may run"));
    drop(guard);
    b.read_to_vec().unwrap();
    // One level up nobody minds.
    let (device, fake) = exclusive(UnifiedLevel::Managed);
    let a = device.buffer::<u32>(64).host(HostAccess::ReadWrite).build().unwrap();
    let b = device.buffer::<u32>(64).build().unwrap();
    let stream = device.stream().unwrap();
    stream.fill(&b, 1).unwrap();
    let _guard = a.read().unwrap();
    stream.fill(&b, 2).unwrap();
    assert_eq!(fake.core.pending(), 2);
}
