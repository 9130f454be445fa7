//! Sixteen threads on one device.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};

use onebuf::{
    Device, DeviceUse, Error, Event, Graph, HostAccess, Kernel, PageVec, ReadGuard, Stream, WriteGuard, args,
};

use crate::fake::mix;
use crate::{discrete, uma};

#[test]
fn everything_goes_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Device>();
    check::<onebuf::Buffer<f32>>();
    check::<Kernel>();
    check::<Stream>();
    check::<Event>();
    check::<Graph>();
    check::<ReadGuard<u32>>();
    check::<WriteGuard<u32>>();
    check::<PageVec<u32>>();
    check::<onebuf::Registry>();
    check::<onebuf::Error>();
}

/// Each thread works through buffers of its own, and adds to one that all share, on its own stream.
#[test]
fn sixteen_threads() {
    let rounds = if cfg!(miri) { 3 } else { 200 };
    for (device, fake) in [uma(), discrete()] {
        let kernel = device.kernel("r rw imm4").unwrap().build().unwrap();
        let source = device.buffer::<u32>(64).init(&[1; 64]).unwrap();
        let start = Arc::new(Barrier::new(16));
        std::thread::scope(|scope| {
            for thread in 0..16u32 {
                let (device, kernel, source, start) = (&device, &kernel, &source, start.clone());
                scope.spawn(move || {
                    let stream = device.stream().unwrap();
                    let mut model = 0;
                    start.wait();
                    let mut mine = device
                        .buffer::<u32>(64)
                        .device_use(DeviceUse::Heavy)
                        .host(HostAccess::ReadWrite)
                        .zeroed()
                        .build()
                        .unwrap();
                    for round in 0..rounds {
                        stream.launch(kernel, [1; 3], args![source, &mine, thread]).unwrap();
                        model = mix([1; 3], &thread.to_ne_bytes(), &[1, model], 1);
                        if round % 7 == thread % 7 {
                            assert_eq!(mine.read().unwrap()[..], [model; 64]);
                            let copy = device
                                .buffer::<u32>(64)
                                .device_use(DeviceUse::Heavy)
                                .host(HostAccess::ReadWrite)
                                .build()
                                .unwrap();
                            stream.copy(&mine, &copy).unwrap();
                            mine = copy; // The old memory goes to whoever asks next, with work on it.
                        }
                        if round % 11 == 0 {
                            model = round;
                            mine.overwrite().unwrap().fill(model);
                        }
                    }
                    assert_eq!(mine.read_to_vec().unwrap(), [model; 64]);
                });
            }
        });
        drop(source);
        device.wait_idle().unwrap();
        assert_eq!(fake.core.pending(), 0);
        device.trim();
        assert_eq!(fake.core.live_memories.load(Relaxed), 0);
    }
}

/// All threads use the same two buffers in both orders; guards come and go. Whoever is refused tries again.
#[test]
fn contended_buffers_do_not_deadlock() {
    let rounds = if cfg!(miri) { 3 } else { 200 };
    let (device, _) = uma();
    let kernel = device.kernel("r rw").unwrap().build().unwrap();
    let a = device
        .buffer::<u32>(16)
        .device_use(DeviceUse::Heavy)
        .host(HostAccess::ReadWrite)
        .zeroed()
        .build()
        .unwrap();
    let b = device
        .buffer::<u32>(16)
        .device_use(DeviceUse::Heavy)
        .host(HostAccess::ReadWrite)
        .zeroed()
        .build()
        .unwrap();
    let refused = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (device, kernel, a, b, refused) = (&device, &kernel, &a, &b, &refused);
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                for _ in 0..rounds {
                    let (from, to) = if thread % 2 == 0 { (a, b) } else { (b, a) };
                    match stream.launch(kernel, [1; 3], args![from, to]) {
                        Ok(_) => {}
                        Err(Error::Busy(_)) => drop(refused.fetch_add(1, Relaxed)),
                        Err(other) => panic!("{other}"),
                    }
                    match if thread % 4 == 0 { from.write().map(drop) } else { to.read().map(drop) } {
                        Ok(()) | Err(Error::Busy(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    a.write().unwrap();
    b.write().unwrap();
}

/// The streams that a device makes when they are first asked for: one each, whoever asks first.
#[test]
fn a_device_has_one_default_stream() {
    for _ in 0..5 {
        let (device, fake) = discrete();
        fake.core.slow_streams.store(true, Relaxed);
        let a = device.buffer::<u32>(4).init(&[1; 4]).unwrap();
        let start = Barrier::new(8);
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        assert_eq!(a.read_to_vec().unwrap(), [1; 4]);
                        device.default_stream().unwrap().id()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}
