//! Many threads on one device, each with buffers of its own and all with some in common.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use onebuf::{
    Buffer, Device, Error, Event, Graph, HostAccess, Kernel, PageVec, ReadGuard, Registry, Stream,
    WriteGuard, args,
};
use onebuf_tests::{kernels, lab};

const THREADS: u32 = 16;

#[test]
fn what_is_shared_between_threads_may_be() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Device>();
    send_and_sync::<Registry>();
    send_and_sync::<Buffer<u32>>();
    send_and_sync::<Kernel>();
    send_and_sync::<Stream>();
    send_and_sync::<Graph>();
    send_and_sync::<Event>();
    send_and_sync::<ReadGuard<f32>>();
    send_and_sync::<WriteGuard<f32>>();
    send_and_sync::<PageVec<u8>>();
    send_and_sync::<Error>();
}

#[test]
fn sixteen_threads_with_buffers_of_their_own() {
    lab::on_concurrent_devices(|subject| {
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for id in 0..THREADS {
                let (start, device) = (&start, &subject.device);
                scope.spawn(move || {
                    start.wait();
                    // Everything is made here, so that making races too.
                    let stream = if id % 2 == 0 { device.stream() } else { device.default_stream() }.unwrap();
                    let mix = device.kernel(kernels::MIX).unwrap().build().unwrap();
                    for round in 0..12u32 {
                        let len = 1 + (id * 37 + round * 211) as usize % 3000;
                        let host = [HostAccess::ReadWrite, HostAccess::None][round as usize % 2];
                        let source =
                            device.buffer::<u32>(len).host(host).init_with(|i| i as u32 ^ id).unwrap();
                        let sum =
                            device.buffer::<u32>(len).host(HostAccess::ReadWrite).zeroed().build().unwrap();
                        let groups = mix.groups_for([len as u32, 1, 1]);
                        for k in 0..4u32 {
                            stream.launch(&mix, groups, args![source, sum, k]).unwrap();
                        }
                        for (i, &word) in sum.read().unwrap().iter().enumerate() {
                            let from = i as u32 ^ id;
                            let expected = (0..4).fold(0, |sum, k| kernels::mix(sum, from, k));
                            assert_eq!(word, expected, "thread {id}, round {round}, element {i}");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn sixteen_threads_with_a_buffer_in_common() {
    lab::on_concurrent_devices(|subject| {
        let counts = subject.zeros::<u32>(64);
        let increment = subject.kernel(kernels::INCREMENT);
        let launched = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for id in 0..THREADS {
                let (counts, increment, launched, subject) = (&counts, &increment, &launched, &subject);
                scope.spawn(move || {
                    let stream = subject.stream();
                    for round in 0..25u32 {
                        // A kernel that adds without atomics: only order keeps the sums right.
                        loop {
                            match stream.launch(increment, [1, 1, 1], args![counts]) {
                                Ok(_) => break,
                                Err(Error::Busy(_)) => std::thread::yield_now(),
                                Err(other) => panic!("{other}"),
                            }
                        }
                        launched.fetch_add(1, Ordering::Relaxed);
                        if (round + id) % 8 == 0 {
                            match counts.try_read() {
                                Ok(seen) => assert!(seen.iter().all(|&word| word == seen[0])),
                                Err(Error::Busy(_)) => {}
                                Err(other) => panic!("{other}"),
                            }
                        }
                    }
                });
            }
        });
        let launched = launched.load(Ordering::Relaxed);
        assert_eq!(launched, THREADS * 25);
        assert_eq!(*counts.read().unwrap(), [launched; 64]);
    });
}

#[test]
fn sixteen_threads_on_one_stream_and_one_graph() {
    lab::on_concurrent_devices(|subject| {
        let counts = subject.zeros::<u32>(64);
        let increment = subject.kernel(kernels::INCREMENT);
        let mut builder = subject.device.graph();
        for _ in 0..3 {
            builder.launch(&increment, [1, 1, 1], args![counts]).unwrap();
        }
        let graph = builder.build().unwrap();
        let stream = subject.stream();
        std::thread::scope(|scope| {
            for id in 0..THREADS {
                let (graph, stream, counts, increment) = (&graph, &stream, &counts, &increment);
                scope.spawn(move || {
                    for round in 0..20 {
                        if (id + round) % 2 == 0 {
                            stream.replay(graph).unwrap();
                        } else {
                            stream.launch(increment, [1, 1, 1], args![counts]).unwrap();
                        }
                        if round % 7 == 0 {
                            stream.wait().unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(*counts.read().unwrap(), [THREADS * 10 * 4; 64]);
    });
}

#[test]
fn threads_cross_their_buffers_without_a_deadlock() {
    lab::on_concurrent_devices(|subject| {
        let mix = subject.kernel(kernels::MIX);
        let buffers: Vec<Buffer<u32>> = (0..4).map(|_| subject.zeros(64)).collect();
        std::thread::scope(|scope| {
            for id in 0..8usize {
                let (mix, buffers, subject) = (&mix, &buffers, &subject);
                scope.spawn(move || {
                    let stream = subject.stream();
                    for round in 0..100 {
                        // Every pair, in both orders.
                        let (a, b) = ((id + round) % 4, (id + round + 1 + round % 3) % 4);
                        stream.launch(mix, [1, 1, 1], args![buffers[a], buffers[b], 1u32]).unwrap();
                    }
                    stream.wait().unwrap();
                });
            }
        });
        for buffer in &buffers {
            let seen = buffer.read().unwrap();
            assert!(seen.iter().all(|&word| word == seen[0]));
        }
    });
}

#[test]
fn threads_make_and_drop_while_others_work() {
    lab::on_concurrent_devices(|subject| {
        std::thread::scope(|scope| {
            for id in 0..8u32 {
                let subject = &subject;
                scope.spawn(move || {
                    for round in 0..15u32 {
                        let stream = subject.stream();
                        let kernel = subject.kernel(kernels::STEP);
                        let data = subject.zeros::<u32>(100 + (id * round) as usize);
                        for k in 0..3u32 {
                            stream.launch(&kernel, [2, 1, 1], args![data, k]).unwrap();
                        }
                        if (id + round) % 3 == 0 {
                            assert_eq!(
                                data.read().unwrap()[99],
                                [0, 1, 2].into_iter().fold(0, kernels::step)
                            );
                        }
                        if round % 5 == 4 {
                            subject.device.trim();
                        }
                    }
                });
            }
        });
    });
}
