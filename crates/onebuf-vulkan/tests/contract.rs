//! The backend alone, against the contract, on every Vulkan device present, under the validation layer.

#![allow(clippy::print_stderr)] // A test that had nothing to run on says so.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use onebuf_core::backend::{
    Allocation, Backend, Bounds, Device, Graph, Kernel, KernelRequest, KernelSource, Launch, Memory, Node,
    PageAccess, Part, Stream, Work,
};
use onebuf_core::{
    DeviceProfile, Error, HandleKind, HostAccess, Intent, Override, Result, Ticket, placement,
};
use onebuf_vulkan::{Vulkan, VulkanOptions};

const SAXPY: &str = "
    @group(0) @binding(0) var<storage> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    var<immediate> a: f32;
    @compute @workgroup_size(64)
    fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < arrayLength(&y) { y[id.x] = a * x[id.x] + y[id.x]; }
    }";

/// Runs `test` on every usable device, and fails on any message of the validation layer.
fn on_every_device(test: impl Fn(&dyn Device)) {
    let vulkan =
        match Vulkan::new(VulkanOptions { validation: std::env::var_os("ONEBUF_NO_VALIDATION").is_none() }) {
            Ok(vulkan) => vulkan,
            Err(error) if required() => panic!("{error}"),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "not run: no Vulkan here: {error}");
                return;
            }
        };
    let mut tested = 0;
    for adapter in vulkan.adapters().unwrap() {
        if adapter.rejected.is_some() {
            continue;
        }
        eprintln!("on {}: {} ({})", adapter.info.id, adapter.info.name, adapter.info.driver);
        let device = vulkan.open(adapter.info.id.ordinal).unwrap();
        test(&*device);
        tested += 1;
    }
    assert!(tested > 0 || !required(), "no usable device");
    assert_eq!(vulkan.validation_messages(), Vec::<String>::new());
}

fn required() -> bool {
    std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "vulkan"))
}

fn mapped_kind(profile: &DeviceProfile) -> usize {
    let intent = Intent { size_bytes: 4096, host: HostAccess::ReadWrite, ..Intent::default() };
    let ranking = placement::rank(profile, &intent).unwrap();
    ranking.candidates.iter().find(|candidate| candidate.staging.is_none()).unwrap().kind
}

fn mapped(device: &dyn Device, bytes: u64) -> Arc<dyn Memory> {
    let kind = mapped_kind(&device.profile());
    device.allocate(&Allocation { kind, size_bytes: bytes, exportable: false, mapped: true }).unwrap()
}

/// The memory's bytes. The tests take one view at a time.
#[allow(clippy::mut_from_ref)]
fn slice<T: bytemuck::AnyBitPattern>(memory: &Arc<dyn Memory>) -> &mut [T] {
    let pointer = memory.host_pointer().unwrap().cast::<T>();
    let length = memory.size_bytes() as usize / size_of::<T>();
    // SAFETY: the memory is mapped for its size, and the tests touch it only while no work does.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), length) }
}

fn whole(memory: &Arc<dyn Memory>) -> Part<'_> {
    Part { memory, offset_bytes: 0, size_bytes: memory.size_bytes() }
}

fn kernel(device: &dyn Device, source: &str, overrides: &[Override]) -> Arc<dyn Kernel> {
    let sources = [KernelSource::Wgsl(source)];
    let request = KernelRequest { sources: &sources, entry: None, overrides, bounds: Bounds::Checked };
    // SAFETY: WGSL, checked.
    unsafe { device.compile(&request) }.unwrap()
}

/// The contract's unsafe functions. What the tests hand over is sound: parts lie within their memory, launches fit their
/// kernels, and tickets or waits keep conflicting work and the CPU apart.
trait Sound {
    fn run(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket>;
    fn run_graph(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket>;
}

impl Sound for dyn Stream {
    fn run(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        // SAFETY: see the trait.
        unsafe { self.submit(work, after) }
    }

    fn run_graph(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        // SAFETY: see the trait.
        unsafe { self.replay(graph, after) }
    }
}

/// A graph of sound nodes.
fn build_graph(device: &dyn Device, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
    // SAFETY: see `Sound`.
    unsafe { device.create_graph(nodes) }
}

/// Sound work in the place of a node's.
fn update(graph: &Arc<dyn Graph>, node: usize, work: Work<'_>) -> Result<()> {
    // SAFETY: see `Sound`.
    unsafe { graph.update(node, work) }
}

fn wait(device: &dyn Device, ticket: Ticket) {
    device.wait(&[ticket], Some(Duration::from_secs(20))).unwrap();
}

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
fn gathered_work_runs_without_a_further_call() {
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
        // Nothing asks the stream for anything: its thread must hand the rest over. The memory is coherent where it is
        // watched here; elsewhere the sleep alone decides nothing, and the wait below does.
        let done = || stream.last() == last && slice::<u32>(&y)[1 << 19] == 100;
        let start = std::time::Instant::now();
        while !done() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
            y.invalidate(0, 1 << 22).unwrap();
        }
        assert!(done(), "the work was left lying");
        wait(device, last);
    });
}

#[test]
fn each_launch_sees_its_own_uniforms() {
    on_every_device(|device| {
        let source = "
            struct Params { add: u32, at: u32 }
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @group(0) @binding(1) var<uniform> params: Params;
            @compute @workgroup_size(64)
            fn put(@builtin(local_invocation_index) i: u32) { out[params.at * 64u + i] = params.add + i; }";
        let kernel = kernel(device, source, &[]);
        let out = mapped(device, 200 * 256);
        let uniforms: Vec<_> = (0..200u32)
            .map(|i| {
                let params = mapped(device, 16);
                slice::<u32>(&params)[..2].copy_from_slice(&[i * 1000 + 7, i]);
                params.flush(0, 16).unwrap();
                params
            })
            .collect();
        let stream = device.create_stream().unwrap();
        for params in &uniforms {
            let bindings = [whole(&out), Part { memory: params, offset_bytes: 0, size_bytes: 8 }];
            let launch = Launch { kernel: &kernel, bindings: &bindings, immediates: &[], groups: [1, 1, 1] };
            // Nothing is waited for: the launches write apart, and no barrier lies between them.
            stream.run(Work::Launch(launch), &[]).unwrap();
        }
        wait(device, stream.last());
        out.invalidate(0, 200 * 256).unwrap();
        for (i, &word) in slice::<u32>(&out).iter().enumerate() {
            assert_eq!(word as usize, i / 64 * 1000 + 7 + i % 64, "launch {}, word {}", i / 64, i % 64);
        }
    });
}

#[test]
fn many_kernels_with_uniforms_of_their_own_run_in_one_batch() {
    on_every_device(|device| {
        let source = "
            override SCALE: u32;
            struct Params { add: u32, at: u32 }
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @group(0) @binding(1) var<uniform> params: Params;
            @compute @workgroup_size(64)
            fn put(@builtin(local_invocation_index) i: u32) { out[params.at * 64u + i] = params.add + i * SCALE; }";
        const KERNELS: u32 = 100;
        let out = mapped(device, u64::from(KERNELS) * 256);
        slice::<u32>(&out).fill(0xdead_beef);
        let launches: Vec<_> = (0..KERNELS)
            .map(|i| {
                let scale = Override { name: "SCALE".into(), value: f64::from(i + 1) };
                let params = mapped(device, 16);
                slice::<u32>(&params)[..2].copy_from_slice(&[i * 1000 + 7, i]);
                params.flush(0, 16).unwrap();
                (kernel(device, source, &[scale]), params)
            })
            .collect();
        // Behind long work the launches gather, and go as one submission.
        let (large, stream) = (mapped(device, 1 << 24), device.create_stream().unwrap());
        for round in 0..3 {
            stream.run(Work::Fill { to: whole(&large), word: round }, &[stream.last()]).unwrap();
            for (kernel, params) in &launches {
                let bindings = [whole(&out), Part { memory: params, offset_bytes: 0, size_bytes: 8 }];
                let launch = Launch { kernel, bindings: &bindings, immediates: &[], groups: [1, 1, 1] };
                stream.run(Work::Launch(launch), &[]).unwrap();
            }
        }
        wait(device, stream.last());
        out.invalidate(0, out.size_bytes()).unwrap();
        for (i, &word) in slice::<u32>(&out).iter().enumerate() {
            let (launch, i) = (i as u32 / 64, i as u32 % 64);
            assert_eq!(word, launch * 1000 + 7 + i * (launch + 1), "launch {launch}, word {i}");
        }
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
        for k in 0..200u32 {
            let bindings = [whole(&y)];
            let immediates = k.to_ne_bytes();
            let launch =
                Launch { kernel: &step, bindings: &bindings, immediates: &immediates, groups: [16, 1, 1] };
            let stream = &streams[(k as usize * 7) % 3];
            last = Some(stream.run(Work::Launch(launch), last.as_slice()).unwrap());
            expected = expected.wrapping_mul(3).wrapping_add(k);
        }
        wait(device, last.unwrap());
        y.invalidate(0, 4096).unwrap();
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
            let stream = device.create_stream().unwrap();
            let launch = Launch { kernel: &kernel, bindings: &bindings, immediates: &immediates, groups };
            wait(device, stream.run(Work::Launch(launch), &[]).unwrap());
            counts.invalidate(0, 16).unwrap();
            let [x, y, z] = groups;
            let mut sum = 0u32;
            for gz in 0..z {
                for gy in 0..2 * y {
                    for gx in 0..x {
                        sum = sum.wrapping_add(gx + gy + gz + 7);
                    }
                }
            }
            assert_eq!(slice::<u32>(&counts)[..3], [x * y * z * 2, sum, 0], "grid {groups:?}");
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
        let kernel = kernel(device, SAXPY, &[]);
        let (to_y, one, ten) = ([whole(&x), whole(&y)], 1f32.to_ne_bytes(), 10f32.to_ne_bytes());
        let launch = Launch { kernel: &kernel, bindings: &to_y, immediates: &one, groups: [16, 1, 1] };
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
        z.invalidate(0, 4096).unwrap();
        assert!(slice::<f32>(&z).iter().all(|&z| z == 100.0));
        update(&graph, 1, Work::Launch(Launch { immediates: &ten, ..launch })).unwrap();
        assert!(matches!(update(&graph, 3, copy), Err(Error::InvalidArgument(_))));
        wait(device, stream.run_graph(&graph, &[]).unwrap());
        z.invalidate(0, 4096).unwrap();
        assert!(slice::<f32>(&z).iter().all(|&z| z == 111.0));
        let wrong = [Node { work: copy, after: &[0] }];
        assert!(matches!(build_graph(device, &wrong), Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn events_time_the_device() {
    on_every_device(|device| {
        let memory = mapped(device, 1 << 24);
        let stream = device.create_stream().unwrap();
        let Ok(start) = stream.event() else { return };
        for word in 0..20 {
            stream.run(Work::Fill { to: whole(&memory), word }, &[stream.last()]).unwrap();
        }
        let end = stream.event().unwrap();
        let wall = std::time::Instant::now();
        wait(device, end.ticket());
        let elapsed = end.elapsed_ns(&*start).unwrap();
        assert!(elapsed > 1000, "320 MiB were filled in {elapsed} ns");
        assert!(elapsed < 60_000_000_000 + wall.elapsed().as_nanos() as u64);
        assert!(matches!(start.elapsed_ns(&*end), Err(Error::InvalidArgument(_))) || elapsed == 0);
    });
}

#[test]
fn pages_of_the_program_are_used_in_place() {
    on_every_device(|device| {
        let alignment = device.info().limits.host_import_alignment_bytes as usize;
        if alignment == 0 {
            return eprintln!("no import of host memory on {}", device.info().id);
        }
        let layout = std::alloc::Layout::from_size_align(4 * alignment, alignment).unwrap();
        // SAFETY: the layout is not empty.
        let pages = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        // SAFETY: the pages are valid until they are freed below, after the memory is gone.
        let memory =
            unsafe { device.import_host(pages, layout.size() as u64, PageAccess::ReadWrite) }.unwrap();
        assert_eq!(memory.host_pointer(), Some(pages));
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&memory), word: 0x0102_0304 }, &[]).unwrap());
        memory.invalidate(0, memory.size_bytes()).unwrap();
        assert!(slice::<u32>(&memory).iter().all(|&word| word == 0x0102_0304));
        drop((memory, stream));
        // SAFETY: allocated with this layout, and nothing uses the pages any more.
        unsafe { std::alloc::dealloc(pages.as_ptr(), layout) };
    });
}

#[test]
fn exported_memory_starts_as_zeros_and_is_the_same_memory() {
    on_every_device(|device| {
        let kind = mapped_kind(&device.profile());
        let request = Allocation { kind, size_bytes: 10_000, exportable: true, mapped: true };
        let memory = match device.allocate(&request) {
            Err(Error::Unsupported { reason, .. }) => {
                return eprintln!("no export on {}: {reason}", device.info().id);
            }
            other => other.unwrap(),
        };
        assert!(slice::<u8>(&memory).iter().all(|&byte| byte == 0));
        let export = memory.export(HandleKind::OpaqueFd).unwrap();
        let other = device.import(export).unwrap();
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&other), word: 0x5a5a_5a5a }, &[]).unwrap());
        memory.invalidate(0, 10_000).unwrap();
        assert!(slice::<u8>(&memory).iter().all(|&byte| byte == 0x5a));
        let private = mapped(device, 64);
        assert!(matches!(private.export(HandleKind::OpaqueFd), Err(Error::Unsupported { .. })));
    });
}

/// Which file a descriptor is: device and inode.
fn file_of(file: &std::fs::File) -> (u64, u64) {
    let data = file.metadata().unwrap();
    (data.dev(), data.ino())
}

/// How many descriptors of this process are that file. Other tests open and close their own beside this.
fn descriptors_of(object: (u64, u64)) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = entries.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    files.filter(|data| (data.dev(), data.ino()) == object).count()
}

#[test]
fn descriptors_that_are_no_memory_are_refused() {
    on_every_device(|device| {
        let kind = mapped_kind(&device.profile());
        let request = Allocation { kind, size_bytes: 4096, exportable: true, mapped: true };
        let Ok(memory) = device.allocate(&request) else { return };
        let object = file_of(&memory.export(HandleKind::OpaqueFd).unwrap().fd.into());
        let before = descriptors_of(object);
        for wrong in 0..4 {
            let mut export = memory.export(HandleKind::OpaqueFd).unwrap();
            match wrong {
                0 => export.fd = std::io::pipe().unwrap().0.into(),
                1 => export.fd = std::fs::File::open("/proc/self/exe").unwrap().into(),
                2 => export.allocation_bytes = 1 << 40,
                _ => export.driver = [7; 16],
            }
            let result = device.import(export);
            // A file that is long enough can only be refused by the driver.
            assert!(result.is_err(), "case {wrong} was taken");
        }
        assert!(descriptors_of(object) <= before, "descriptors leaked");
    });
}

#[test]
fn memory_returns_to_where_it_was() {
    on_every_device(|device| {
        let before = device.memory_stats();
        let kind = mapped_kind(&device.profile());
        let stream = device.create_stream().unwrap();
        for i in 0..1000u64 {
            let request = Allocation { kind, size_bytes: 1 + i * 37, exportable: false, mapped: true };
            let memory = device.allocate(&request).unwrap();
            let to = Part { memory: &memory, offset_bytes: 0, size_bytes: (1 + i * 37) / 4 * 4 };
            if to.size_bytes > 0 {
                stream.run(Work::Fill { to, word: i as u32 }, &[]).unwrap();
            }
        }
        wait(device, stream.last());
        drop(stream);
        let start = std::time::Instant::now();
        while device.memory_stats().buffers != before.buffers && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = device.memory_stats();
        assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers));
        assert!(after.peak_bytes > 0);
    });
}
