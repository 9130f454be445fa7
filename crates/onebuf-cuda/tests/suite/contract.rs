//! The backend alone, against the contract.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    self, SAXPY, Sound, build_graph, kernel, mapped, on_every_device, read, slice, update, wait, whole,
};
use onebuf_core::backend::{Launch, Memory, Node, Part, Work};
use onebuf_core::{Error, Ticket};

#[test]
fn a_kernel_computes_in_place() {
    on_every_device(|device| {
        let (x, y) = (mapped(device, 4000), mapped(device, 4000));
        slice::<f32>(&x).iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
        slice::<f32>(&y).fill(0.5);
        x.flush(0, 4000).unwrap();
        y.flush(0, 4000).unwrap();
        let kernel = kernel(device, SAXPY, &[]);
        let stream = device.create_stream().unwrap();
        let mut last = stream.last();
        for _ in 0..3 {
            let (bindings, immediates) = ([whole(&x), whole(&y)], 2f32.to_ne_bytes());
            let launch =
                Launch { kernel: &kernel, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
            last = stream.run(Work::Launch(launch), &[last]).unwrap();
        }
        wait(device, last);
        y.invalidate(0, 4000).unwrap();
        for (i, &y) in slice::<f32>(&y).iter().enumerate() {
            assert_eq!(y, 0.5 + 6.0 * i as f32, "element {i}");
        }
    });
}

#[test]
fn work_runs_without_a_further_call() {
    on_every_device(|device| {
        let y = mapped(device, 1 << 22);
        let kernel = kernel(
            device,
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(64) fn add(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] += 1u; }",
            &[],
        );
        slice::<u32>(&y).fill(0);
        let stream = device.create_stream().unwrap();
        let mut last = stream.last();
        for _ in 0..100 {
            let bindings = [whole(&y)];
            let launch =
                Launch { kernel: &kernel, bindings: &bindings, immediates: &[], groups: [1 << 14, 1, 1] };
            last = stream.run(Work::Launch(launch), &[last]).unwrap();
        }
        // The memory is page-locked and coherent, so the CPU may look at one word while work runs.
        let word = slice::<u32>(&y).as_ptr().wrapping_add(1 << 19);
        // SAFETY: within the mapped memory, aligned; the device writes whole words.
        let done = || unsafe { std::ptr::read_volatile(word) } == 100;
        let start = Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(done(), "the work was left lying");
        wait(device, last);
    });
}

#[test]
fn streams_follow_each_other_through_tickets() {
    on_every_device(|device| {
        let y = mapped(device, 4096);
        let step = kernel(
            device,
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             var<immediate> k: u32;
             @compute @workgroup_size(64) fn step(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = y[id.x] * 3u + k; }",
            &[],
        );
        slice::<u32>(&y).fill(1);
        let streams = [
            device.create_stream().unwrap(),
            device.create_stream().unwrap(),
            device.create_stream().unwrap(),
        ];
        let mut last: Option<Ticket> = None;
        let mut expected = 1u32;
        for k in 0..2000u32 {
            let bindings = [whole(&y)];
            let immediates = k.to_ne_bytes();
            let launch =
                Launch { kernel: &step, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
            let stream = &streams[(k as usize * 7) % 3];
            last = Some(stream.run(Work::Launch(launch), last.as_slice()).unwrap());
            expected = expected.wrapping_mul(3).wrapping_add(k);
        }
        wait(device, last.unwrap());
        assert!(slice::<u32>(&y).iter().all(|&y| y == expected));
    });
}

#[test]
fn grids_past_the_limit_are_split() {
    on_every_device(|device| {
        let source = "
            struct Counts { groups: atomic<u32>, sum: atomic<u32>, wrong: atomic<u32> }
            struct Params { expected: vec3<u32>, add: u32 }
            @group(0) @binding(0) var<storage, read_write> counts: Counts;
            var<immediate> params: Params;
            @compute @workgroup_size(1, 2, 1)
            fn count(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
                     @builtin(global_invocation_id) id: vec3<u32>) {
                if any(groups != params.expected) || any(group >= groups) || id.y / 2u != group.y || id.x != group.x {
                    atomicAdd(&counts.wrong, 1u);
                }
                atomicAdd(&counts.groups, 1u);
                atomicAdd(&counts.sum, id.x + id.y + id.z + params.add);
            }";
        let kernel = kernel(device, source, &[]);
        let counts = mapped(device, 16);
        for groups in [[70_000u32, 1, 1], [3, 65_537, 1], [1, 2, 131_073], [5, 1, 1]] {
            slice::<u32>(&counts).fill(0);
            counts.flush(0, 16).unwrap();
            let immediates: Vec<u8> = groups.iter().chain(&[7]).flat_map(|word| word.to_ne_bytes()).collect();
            let bindings = [whole(&counts)];
            let launch = Launch { kernel: &kernel, bindings: &bindings, immediates: &immediates, groups };
            let [x, y, z] = groups;
            let mut sum = 0u32;
            for gz in 0..z {
                for gy in 0..2 * y {
                    for gx in 0..x {
                        sum = sum.wrapping_add(gx + gy + gz + 7);
                    }
                }
            }
            let expected = [x * y * z * 2, sum, 0];
            let stream = device.create_stream().unwrap();
            wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
            counts.invalidate(0, 16).unwrap();
            assert_eq!(slice::<u32>(&counts)[..3], expected, "grid {groups:?}");
            // The same in a graph, where a split grid is several nodes.
            slice::<u32>(&counts).fill(0);
            let graph = build_graph(device, &[Node { work: Work::Launch(launch), after: &[] }]).unwrap();
            wait(device, stream.run_graph(&graph, &[]).unwrap());
            assert_eq!(slice::<u32>(&counts)[..3], expected, "grid {groups:?} in a graph");
        }
    });
}

#[test]
fn graphs_replay_and_take_new_arguments() {
    on_every_device(|device| {
        let (x, y, z) = (mapped(device, 4096), mapped(device, 4096), mapped(device, 4096));
        slice::<f32>(&x).fill(1.0);
        slice::<f32>(&y).fill(0.0);
        slice::<f32>(&z).fill(0.0);
        let saxpy = kernel(device, SAXPY, &[]);
        let (to_y, one, ten) = ([whole(&x), whole(&y)], 1f32.to_ne_bytes(), 10f32.to_ne_bytes());
        let launch = Launch { kernel: &saxpy, bindings: &to_y, immediates: &one, groups: [16, 1, 1] };
        let copy = Work::Copy { from: whole(&y), to: whole(&z) };
        let nodes = [
            Node { work: Work::Launch(launch), after: &[] },
            Node { work: Work::Launch(launch), after: &[0] },
            Node { work: copy, after: &[1] },
        ];
        let graph = build_graph(device, &nodes).unwrap();
        let stream = device.create_stream().unwrap();
        for _ in 0..50 {
            stream.run_graph(&graph, &[]).unwrap();
        }
        wait(device, stream.last());
        assert!(slice::<f32>(&z).iter().all(|&z| z == 100.0));
        update(&graph, 1, Work::Launch(Launch { immediates: &ten, ..launch })).unwrap();
        assert!(matches!(update(&graph, 3, copy), Err(Error::InvalidArgument(_))));
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        assert!(slice::<f32>(&z).iter().all(|&z| z == 111.0));
        // Another buffer, another kernel, and another kind of work.
        let w = mapped(device, 4096);
        slice::<f32>(&w).fill(0.0);
        update(&graph, 2, Work::Copy { from: whole(&y), to: whole(&w) }).unwrap();
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        assert!(slice::<f32>(&w).iter().all(|&w| w == 122.0));
        let double = kernel(
            device,
            "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
             @compute @workgroup_size(64) fn double(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] *= 2.0; }",
            &[],
        );
        let on_y = [whole(&y)];
        let doubled = Launch { kernel: &double, bindings: &on_y, immediates: &[], groups: [16, 1, 1] };
        update(&graph, 1, Work::Launch(doubled)).unwrap();
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        assert!(slice::<f32>(&w).iter().all(|&w| w == 246.0));
        update(&graph, 0, Work::Fill { to: whole(&y), word: 3f32.to_bits() }).unwrap();
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        assert!(slice::<f32>(&w).iter().all(|&w| w == 6.0));
        let wrong = [Node { work: copy, after: &[0] }];
        assert!(matches!(build_graph(device, &wrong), Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn a_graph_keeps_what_it_uses() {
    on_every_device(|device| {
        let y = mapped(device, 4096);
        let stream = device.create_stream().unwrap();
        let graph = {
            let a = mapped(device, 4096);
            slice::<u32>(&a).fill(7);
            let copy = Work::Copy { from: whole(&a), to: whole(&y) };
            build_graph(device, &[Node { work: copy, after: &[] }]).unwrap()
        };
        for _ in 0..100 {
            stream.run_graph(&graph, &[]).unwrap();
        }
        drop(graph);
        wait(device, stream.last());
        assert!(slice::<u32>(&y).iter().all(|&y| y == 7));
    });
}

#[test]
fn events_time_the_device() {
    on_every_device(|device| {
        let memory = support::on_device(device, 1 << 26);
        let stream = device.create_stream().unwrap();
        let start = stream.event().unwrap();
        for word in 0..20 {
            stream.run(Work::Fill { to: whole(&memory), word }, &[stream.last()]).unwrap();
        }
        let end = stream.event().unwrap();
        let wall = Instant::now();
        wait(device, end.ticket());
        let elapsed = end.elapsed_ns(&*start).unwrap();
        assert!(elapsed > 1000, "1.25 GiB were filled in {elapsed} ns");
        assert!(elapsed < 60_000_000_000 + wall.elapsed().as_nanos() as u64);
        assert!(matches!(start.elapsed_ns(&*end), Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn a_wait_has_a_limit() {
    on_every_device(|device| {
        let memory = support::on_device(device, 1 << 26);
        let stream = device.create_stream().unwrap();
        // Enough that the last one is not done when the wait begins.
        let mut tickets = Vec::new();
        for word in 0..400 {
            tickets.push(stream.run(Work::Fill { to: whole(&memory), word }, &[]).unwrap());
        }
        let last = *tickets.last().unwrap();
        let first = device.wait(&[last], Some(Duration::ZERO));
        assert!(matches!(first, Err(Error::Timeout { .. })), "{first:?}");
        assert!(!device.is_done(last).unwrap());
        // An early ticket is not late because of what came after it.
        device.wait(&tickets[..1], None).unwrap();
        assert!(device.is_done(tickets[0]).unwrap());
        device.wait(&[last], Some(Duration::from_secs(20))).unwrap();
        assert!(tickets.iter().all(|&ticket| device.is_done(ticket).unwrap()));
    });
}

#[test]
fn memory_returns_to_where_it_was() {
    on_every_device(|device| {
        let before = device.memory_stats();
        let stream = device.create_stream().unwrap();
        for kind in 0..device.profile().memory.len() {
            for i in 0..250u64 {
                let size_bytes = 4 + i * 37;
                let memory = support::of_kind(device, kind, size_bytes);
                let to = Part { memory: &memory, offset_bytes: 0, size_bytes: size_bytes / 4 * 4 };
                stream.run(Work::Fill { to, word: i as u32 }, &[]).unwrap();
            }
        }
        wait(device, stream.last());
        drop(stream);
        let start = Instant::now();
        while device.memory_stats().buffers != before.buffers && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = device.memory_stats();
        assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers));
        assert!(after.peak_bytes > 0);
    });
}

#[test]
fn a_dropped_stream_keeps_what_its_work_uses() {
    on_every_device(|device| {
        let target = mapped(device, 1 << 20);
        slice::<u32>(&target).fill(0);
        for round in 1..20u32 {
            let stream = device.create_stream().unwrap();
            let source = support::on_device(device, 1 << 20);
            let fill = stream.run(Work::Fill { to: whole(&source), word: round }, &[]).unwrap();
            for _ in 0..20 {
                let copy = Work::Copy { from: whole(&source), to: whole(&target) };
                stream.run(copy, &[fill]).unwrap();
            }
            let last = stream.last();
            drop((source, stream));
            // Memory that is taken now must not be the source that is still read.
            let other = support::on_device(device, 1 << 20);
            let clearing = device.create_stream().unwrap();
            wait(device, clearing.run(Work::Fill { to: whole(&other), word: 0 }, &[]).unwrap());
            wait(device, last);
            assert!(slice::<u32>(&target).iter().all(|&word| word == round), "round {round}");
        }
    });
}

#[test]
fn sixteen_threads_launch_on_one_device() {
    on_every_device(|device| {
        let add = kernel(
            device,
            "@group(0) @binding(0) var<storage, read_write> y: array<atomic<u32>>;
             @compute @workgroup_size(64) fn add(@builtin(global_invocation_id) id: vec3<u32>) { atomicAdd(&y[id.x], 1u); }",
            &[],
        );
        let total = support::on_device(device, 4096);
        let zeroing = device.create_stream().unwrap();
        wait(device, zeroing.run(Work::Fill { to: whole(&total), word: 0 }, &[]).unwrap());
        let streams: Vec<_> = (0..4).map(|_| device.create_stream().unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (streams, add, total) = (&streams, &add, &total);
                scope.spawn(move || {
                    for i in 0..200 {
                        let bindings = [whole(total)];
                        let launch =
                            Launch { kernel: add, bindings: &bindings, immediates: &[], groups: [16, 1, 1] };
                        let stream = &streams[(thread + i) % 4];
                        let ticket = stream.run(Work::Launch(launch), &[]).unwrap();
                        if i % 50 == 0 {
                            device.wait(&[ticket], None).unwrap();
                        }
                    }
                });
            }
        });
        let last: Vec<Ticket> = streams.iter().map(|stream| stream.last()).collect();
        device.wait(&last, Some(Duration::from_secs(20))).unwrap();
        assert!(read::<u32>(device, &total).iter().all(|&count| count == 3200));
    });
}

#[test]
fn zero_is_no_trap() {
    on_every_device(|device| {
        let stream = device.create_stream().unwrap();
        // A ticket before all work is reached, and so is one of a stream that is gone.
        assert!(device.is_done(stream.last()).unwrap());
        let gone: Arc<dyn Memory> = mapped(device, 4);
        let ticket = stream.run(Work::Fill { to: whole(&gone), word: 1 }, &[]).unwrap();
        drop(stream);
        wait(device, ticket);
        assert!(device.is_done(ticket).unwrap());
        device.wait(&[], None).unwrap();
    });
}
