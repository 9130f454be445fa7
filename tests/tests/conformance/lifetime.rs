//! Everything may be dropped in every order, with work pending: nothing waits, nothing is used after it is gone, and
//! all of it comes back.

use std::time::Duration;

use onebuf::{Buffer, Device, Graph, HostAccess, Kernel, Stream, args};
use onebuf_tests::{Subject, kernels, lab, resources, seeds};

/// One of everything, with work that uses it.
struct All {
    device: Option<Device>,
    buffers: Vec<Buffer<u32>>,
    kernel: Option<Kernel>,
    streams: Vec<Stream>,
    graph: Option<Graph>,
    events: Vec<onebuf::Event>,
    guard: Option<onebuf::ReadGuard<u32>>,
}

impl All {
    fn new(device: Device, rounds: u32) -> All {
        let kernel = device.kernel(kernels::SLOW).unwrap().build().unwrap();
        let make = || device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
        let buffers = vec![make(), make(), make()];
        let streams =
            vec![device.stream().unwrap(), device.stream().unwrap(), device.default_stream().unwrap()];
        let mut builder = device.graph();
        builder.launch(&kernel, [1, 1, 1], args![buffers[0], rounds]).unwrap();
        builder.copy(&buffers[0], &buffers[1]).unwrap();
        let graph = builder.build().unwrap();
        let guard = buffers[2].read().unwrap();
        let mut events = Vec::new();
        for stream in &streams {
            stream.replay(&graph).unwrap();
            events.extend(stream.event());
            // Gathered behind the work in flight.
            for _ in 0..3 {
                stream.launch(&kernel, [1, 1, 1], args![buffers[1], 10u32]).unwrap();
            }
        }
        let (device, kernel, graph, guard) = (Some(device), Some(kernel), Some(graph), Some(guard));
        All { device, buffers, kernel, streams, graph, events, guard }
    }

    fn drop_part(&mut self, part: usize) {
        match part {
            0 => drop(self.device.take()),
            1 => self.buffers.clear(),
            2 => drop(self.kernel.take()),
            3 => self.streams.clear(),
            4 => drop(self.graph.take()),
            5 => self.events.clear(),
            _ => drop(self.guard.take()),
        }
    }
}

fn reopened(subject: &Subject) -> Device {
    lab::registry().open(&subject.device.info().id.to_string()).unwrap()
}

#[test]
fn everything_is_dropped_in_every_order_with_work_pending() {
    lab::on_real_devices(|subject| {
        let rounds = subject.rounds_for(Duration::from_millis(3));
        seeds::each(60, |rng| {
            let mut all = All::new(reopened(subject), rounds);
            let mut order: Vec<usize> = (0..7).collect();
            rng.shuffle(&mut order);
            for part in order {
                all.drop_part(part);
            }
        });
    });
}

#[test]
fn the_device_may_go_first() {
    lab::on_real_devices(|subject| {
        let device = reopened(subject);
        let buffer = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
        let kernel = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
        let stream = device.stream().unwrap();
        drop(device);
        for _ in 0..10 {
            stream.launch(&kernel, [1, 1, 1], args![buffer]).unwrap();
        }
        drop((kernel, stream));
        assert_eq!(*buffer.read().unwrap(), [10; 64]);
        let more = buffer.device().buffer::<u32>(3).zeroed().build().unwrap();
        assert_eq!(more.read_to_vec().unwrap(), [0; 3]);
    });
}

#[test]
fn a_stream_dropped_with_gathered_work_finishes_it() {
    lab::on_every_device(|subject| {
        let (slow, step) = (subject.kernel(kernels::SLOW), subject.kernel(kernels::STEP));
        let rounds = subject.rounds_for(Duration::from_millis(20));
        let word = subject.buffer(&[1u32]);
        let stream = subject.stream();
        stream.launch(&slow, [1, 1, 1], args![word, rounds]).unwrap();
        for k in 0..100u32 {
            stream.launch(&step, [1, 1, 1], args![word, k]).unwrap();
        }
        let last = stream.last();
        drop((stream, slow, step));
        let expected = (0..100).fold(kernels::slow(1, rounds), kernels::step);
        assert_eq!(word.read().unwrap()[0], expected);
        assert!(subject.device.is_done(last).unwrap());
        subject.device.wait(last).unwrap();
    });
}

#[test]
fn buffers_dropped_under_queued_work_go_when_it_is_done() {
    lab::on_every_device(|subject| {
        let (slow, mix) = (subject.kernel(kernels::SLOW), subject.kernel(kernels::MIX));
        let rounds = subject.rounds_for(Duration::from_millis(20));
        let stream = subject.stream();
        let sum = subject.zeros::<u32>(1);
        let mut expected = 0u32;
        for round in 0..10u32 {
            let temporary = subject.buffer(&[round]);
            stream.launch(&slow, [1, 1, 1], args![temporary, rounds / 8]).unwrap();
            stream.launch(&mix, [1, 1, 1], args![temporary, sum, round]).unwrap();
            expected = kernels::mix(expected, kernels::slow(round, rounds / 8), round);
        }
        subject.device.trim();
        assert_eq!(sum.read().unwrap()[0], expected);
    });
}

#[test]
fn dropping_never_waits_for_the_device() {
    lab::on_real_devices(|subject| {
        subject.at_work(Duration::from_millis(40), |slow| {
            let device = reopened(subject);
            let kernel = device.kernel(kernels::SLOW).unwrap().build().unwrap();
            let word = device.buffer::<u32>(1).zeroed().build().unwrap();
            let stream = device.stream().unwrap();
            for _ in 0..slow.launches {
                stream.launch(&kernel, [1, 1, 1], args![word, slow.rounds]).unwrap();
            }
            let last = stream.last();
            drop((kernel, word, stream));
            // It is still at work when all is dropped, so nothing has waited.
            !device.is_done(last).unwrap()
        });
    });
}

#[test]
fn clones_are_handles_to_one_thing() {
    lab::on_every_device(|subject| {
        let buffer = subject.buffer(&[1u32; 64]);
        let clone = buffer.clone();
        assert!(buffer.same_memory(&clone) && !buffer.same_memory(&subject.zeros::<u32>(64)));
        let (kernel, stream) = (subject.kernel(kernels::INCREMENT), subject.stream());
        let (kernel_clone, stream_clone) = (kernel.clone(), stream.clone());
        assert_eq!(stream.id(), stream_clone.id());
        drop((kernel, stream, buffer));
        stream_clone.launch(&kernel_clone, [1, 1, 1], args![clone]).unwrap();
        assert_eq!(*clone.read().unwrap(), [2; 64]);
        let default = subject.device.default_stream().unwrap();
        assert_eq!(default.id(), subject.device.default_stream().unwrap().id());
        assert_ne!(default.id(), stream_clone.id());
    });
}

#[test]
fn thousands_of_short_lives_leave_nothing() {
    lab::on_real_devices(|subject| {
        let live = || {
            for i in 0..1000u32 {
                let stream = subject.stream();
                let data = subject.zeros::<u32>(1 + i as usize % 500);
                stream.fill(&data, i).unwrap();
                let event = stream.event();
                if i % 16 == 0 {
                    assert!(data.read().unwrap().iter().all(|&word| word == i));
                }
                drop(event);
            }
            subject.device.wait_idle().unwrap();
            subject.device.trim();
            assert!(lab::eventually(|| resources::threads_named("onebuf-stream") == 0));
        };
        resources::settles(4, 48 << 20, live);
    });
}
