//! How much: a buffer past 4 GiB, a thousand lives of everything with nothing left, and what is past the device.

use std::time::{Duration, Instant};

use crate::support::{
    self, Sound, build_graph, compile, kernel, kind, mapped, of_kind, on_device, on_every_device, slice,
    wait, whole,
};
use onebuf_core::backend::{Allocation, Bounds, Device, KernelSource, Launch, Node, Part, Work};
use onebuf_core::{Error, KernelInterface};

/// Fills a part with a hash of each word's place in the whole, or counts the words that are not that.
const PLACES: &str = "
    struct Params { base: u32, check: u32 }
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    @group(0) @binding(1) var<storage, read_write> wrong: array<atomic<u32>, 2>;
    var<immediate> params: Params;
    @compute @workgroup_size(256)
    fn places(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
        let count = arrayLength(&words);
        for (var i = id.x; i < count; i += groups.x * 256u) {
            let place = params.base + i;
            let word = (place ^ (place >> 15u)) * 0x2c1b3c6du;
            if params.check == 0u { words[i] = word; }
            else if words[i] != word { atomicAdd(&wrong[0], 1u); }
            else if (i & 0xffffu) == 0u { atomicAdd(&wrong[1], 1u); } // Few: each crosses the bus.
        }
    }";

#[test]
fn eight_gib_are_filled_and_checked_in_chunks() {
    on_every_device(|device| {
        const SIZE: u64 = 8 << 30;
        let free = device.memory_stats().budget_bytes.unwrap_or(0);
        if free < SIZE + (1 << 30) {
            return eprintln!("not run on {}: {} MiB are free", device.info().id, free >> 20);
        }
        let memory = on_device(device, SIZE);
        let wrong = mapped(device, 8);
        slice::<u32>(&wrong).fill(0);
        let places = kernel(device, PLACES, &[]);
        let stream = device.create_stream().unwrap();
        // Chunks of 1.5 GiB: neither they nor the whole are a power of two apart from each other.
        const CHUNK: u64 = 3 << 29;
        let start = Instant::now();
        for check in [0u32, 1] {
            for offset in (0..SIZE).step_by(CHUNK as usize) {
                let size_bytes = CHUNK.min(SIZE - offset);
                let words = Part { memory: &memory, offset_bytes: offset, size_bytes };
                let bindings = [words, whole(&wrong)];
                // The place fits 32 bits: 8 GiB have 2^31 words.
                let immediates = [(offset / 4) as u32, check].map(u32::to_ne_bytes).concat();
                let groups = [4096, 1, 1];
                let launch = Launch { kernel: &places, bindings: &bindings, immediates: &immediates, groups };
                stream.run(Work::Launch(launch), &[stream.last()]).unwrap();
            }
        }
        // A word past 4 GiB is another word than the one 4 GiB before it, for fills and copies too.
        let far = Part { memory: &memory, offset_bytes: (5 << 30) + 4, size_bytes: 4 };
        stream.run(Work::Fill { to: far, word: 0xdead }, &[stream.last()]).unwrap();
        let copies = mapped(device, 8);
        for (place, offset) in [(0, (5u64 << 30) + 4), (4, (1 << 30) + 4)] {
            let from = Part { memory: &memory, offset_bytes: offset, size_bytes: 4 };
            let to = Part { memory: &copies, offset_bytes: place, size_bytes: 4 };
            stream.run(Work::Copy { from, to }, &[stream.last()]).unwrap();
        }
        wait(device, stream.last());
        eprintln!("8 GiB written and read in {:?}", start.elapsed());
        let checked: u32 = (0..SIZE)
            .step_by(CHUNK as usize)
            .map(|o| (CHUNK.min(SIZE - o) / 4).div_ceil(1 << 16) as u32)
            .sum();
        assert_eq!(slice::<u32>(&wrong), [0, checked]);
        let place = ((1u32 << 30) + 4) / 4;
        let near = (place ^ (place >> 15)).wrapping_mul(0x2c1b_3c6d);
        assert_eq!(slice::<u32>(&copies), [0xdead, near]);
    });
}

/// Bytes that the kernel counts as pinned or locked for this process, and its resident size.
fn locked_and_resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let sum = field("VmPin:").unwrap_or(0) + field("VmLck:").unwrap_or(0);
    (sum * 1024, field("VmRSS:").unwrap_or(0) * 1024)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_lives_of_everything_leave_nothing() {
    on_every_device(|device| {
        let unique = kernel(device, support::SAXPY, &[]);
        let kinds = device.profile().memory.len();
        let life = |i: u64| {
            let stream = device.create_stream().unwrap();
            let event = stream.event().unwrap();
            for kind in 0..kinds {
                let exportable = device.profile().memory[kind].name == "device-vmm";
                let size_bytes = 4096 + (i % 7) * 65_536;
                let memory = device
                    .allocate(&Allocation { kind, size_bytes, exportable, mapped: !exportable })
                    .unwrap();
                stream.run(Work::Fill { to: whole(&memory), word: i as u32 }, &[]).unwrap();
                if exportable && i.is_multiple_of(4) {
                    drop(memory.export(onebuf_core::HandleKind::OpaqueFd).unwrap());
                }
            }
            let (x, y) = (on_device(device, 4096), on_device(device, 4096));
            let (bindings, immediates) = ([whole(&x), whole(&y)], 1f32.to_ne_bytes());
            let launch =
                Launch { kernel: &unique, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
            let graph = build_graph(device, &[Node { work: Work::Launch(launch), after: &[] }]).unwrap();
            stream.run_graph(&graph, &[event.ticket()]).unwrap();
            let last = stream.last();
            drop((stream, graph, event, x, y));
            device.wait(&[last], Some(Duration::from_secs(20))).unwrap();
        };
        let rest = || {
            let start = Instant::now();
            while device.memory_stats().buffers > 0 && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
            device.trim();
            device.memory_stats()
        };
        // What is made once and kept is made before the count.
        (0..100).for_each(&life);
        let (before, files, (locked, resident)) = (rest(), descriptors(), locked_and_resident());
        (0..1000).for_each(&life);
        let (after, files_after, (locked_after, resident_after)) =
            (rest(), descriptors(), locked_and_resident());
        let lost = before.budget_bytes.unwrap().saturating_sub(after.budget_bytes.unwrap());
        eprintln!(
            "after 1000 lives on {}: {} KiB of device memory less, {} KiB more pinned, {} KiB more resident, {} descriptors more",
            device.info().id,
            lost >> 10,
            locked_after.saturating_sub(locked) >> 10,
            resident_after.saturating_sub(resident) >> 10,
            files_after as i64 - files as i64,
        );
        assert_eq!((after.buffers, after.live_bytes), (before.buffers, before.live_bytes));
        assert!(after.blocks <= before.blocks, "{} blocks, {} before", after.blocks, before.blocks);
        assert!(after.block_bytes <= before.block_bytes + (64 << 20), "{after:?}, {before:?} before");
        assert!(files_after <= files, "{files_after} descriptors, {files} before");
        assert!(locked_after <= locked + (4 << 20), "{locked_after} bytes locked, {locked} before");
        // A thousand lives of 400 KiB in each of five kinds would be 2 GiB. Others use the device as well.
        assert!(lost < 64 << 20, "{lost} bytes of device memory are gone");
        assert!(resident_after < resident + (64 << 20), "{resident_after} bytes resident, {resident} before");
    });
}

#[test]
fn more_than_there_is_is_refused_and_the_device_goes_on() {
    on_every_device(|device| {
        let limits = &device.info().limits;
        let too_much = limits.max_workgroup_bytes + 4;
        let interface = |workgroup_bytes| KernelInterface {
            entry: "big".into(),
            workgroup_size: [64, 1, 1],
            bindings: Vec::new(),
            immediate_bytes: 0,
            workgroup_bytes,
            features: Default::default(),
        };
        // Dynamic workgroup memory of a native kernel, and what it declares itself.
        let source =
            "extern \"C\" __global__ void big() { extern __shared__ int all[]; all[threadIdx.x] = 1; }";
        let interface_of_dynamic = interface(too_much);
        let dynamic = KernelSource::CudaC(source, &interface_of_dynamic);
        let declared = format!(
            "extern \"C\" __global__ void big(int* x) {{ __shared__ int all[{}]; all[threadIdx.x] = 1; x[0] = all[63]; }}",
            too_much / 4
        );
        let interface_of_declared = interface(too_much);
        let declared = KernelSource::CudaC(&declared, &interface_of_declared);
        for source in [dynamic, declared] {
            let error = compile(device, source, &[], Bounds::Checked).err().unwrap();
            assert!(matches!(error, Error::LimitExceeded { .. } | Error::InvalidKernel { .. }), "{error}");
        }
        for name in ["device", "device-vmm", "managed"] {
            let Some(kind) = kind(device, name) else { continue };
            let size_bytes = device.info().memory_bytes + (1 << 30);
            let asked = Allocation { kind, size_bytes, exportable: false, mapped: false };
            let error = device.allocate(&asked).err().unwrap();
            assert!(matches!(error, Error::OutOfMemory { never_fits: true, .. }), "{name}: {error}");
        }
        let y = of_kind(device, kind(device, "pinned").unwrap(), 64);
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&y), word: 3 }, &[]).unwrap());
        assert!(slice::<u32>(&y).iter().all(|&word| word == 3));
    });
}

#[test]
fn a_stream_outlives_the_handle_of_its_device() {
    on_every_device(|device| {
        let cuda = onebuf_cuda::Cuda::new(onebuf_cuda::CudaOptions::default()).unwrap();
        let open = || onebuf_core::backend::Backend::open(&cuda, device.info().id.ordinal).unwrap();
        let gone = open();
        let (memory, stream) = (mapped(&*gone, 4096), gone.create_stream().unwrap());
        let add = kernel(
            &*gone,
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(64) fn add(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] += 1u; }",
            &[],
        );
        slice::<u32>(&memory).fill(0);
        drop(gone);
        // The stream, the memory and the kernel hold what they need of the device.
        let mut last = stream.last();
        for _ in 0..100 {
            let bindings = [whole(&memory)];
            let launch = Launch { kernel: &add, bindings: &bindings, immediates: &[], groups: [16, 1, 1] };
            last = stream.run(Work::Launch(launch), &[last]).unwrap();
        }
        let event = stream.event().unwrap();
        stream.flush().unwrap();
        let start = Instant::now();
        while event.elapsed_ns(&*event).is_err() && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert!(slice::<u32>(&memory).iter().all(|&word| word == 100));
        drop((add, memory));
        drop((event, stream));
        // Another opening has nothing of it.
        assert_eq!(open().memory_stats().buffers, 0);
    });
}

#[test]
fn the_smallest_work_there_is() {
    on_every_device(|device: &dyn Device| {
        let stream = device.create_stream().unwrap();
        // No binding, no immediate, one invocation; one word; an empty list.
        let nothing = kernel(device, "@compute @workgroup_size(1) fn nothing() {}", &[]);
        let launch = Launch { kernel: &nothing, bindings: &[], immediates: &[], groups: [1, 1, 1] };
        let word = mapped(device, 4);
        stream.run(Work::Launch(launch), &[]).unwrap();
        stream.run(Work::Fill { to: whole(&word), word: 9 }, &[]).unwrap();
        let graph = build_graph(device, &[]).unwrap();
        assert!(graph.is_empty());
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        assert_eq!(slice::<u32>(&word), [9]);
    });
}
