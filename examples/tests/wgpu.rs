//! wgpu and onebuf on one device, each way round, with every message of the validation layer counted.
#![cfg(feature = "wgpu")]
#![allow(clippy::print_stderr)] // A test that had nothing to run on says so.

use std::sync::Mutex;

use onebuf::wgpu::WgpuDevice;
use onebuf::{Arg, Error, HostAccess, args};

/// What the validation layer said, as wgpu passes it on.
struct Messages(Mutex<Vec<String>>);

static MESSAGES: Messages = Messages(Mutex::new(Vec::new()));

impl log::Log for Messages {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if self.enabled(record.metadata()) && (text.contains("VUID") || text.contains("SYNC-HAZARD")) {
            self.0.lock().unwrap().push(text);
        }
    }

    fn flush(&self) {}
}

const STEP: &str = "
    override FACTOR: u32;
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    @compute @workgroup_size(64)
    fn step(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&words) { words[at.x] = words[at.x] * FACTOR + at.x; }
    }";

const WORDS: usize = 1000;

/// One pass of `STEP` in wgpu's hands.
fn record(device: &wgpu::Device, buffer: &wgpu::Buffer, factor: u32) -> wgpu::CommandBuffer {
    let source = wgpu::ShaderSource::Wgsl(STEP.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let constants = [("FACTOR", f64::from(factor))];
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("step"),
        compilation_options: wgpu::PipelineCompilationOptions { constants: &constants, ..Default::default() },
        cache: None,
    });
    let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &bindings, &[]);
    pass.dispatch_workgroups(WORDS.div_ceil(64) as u32, 1, 1);
    drop(pass);
    encoder.finish()
}

fn expected(turns: &[u32]) -> Vec<u32> {
    let word = |i: u32| turns.iter().fold(i, |word, factor| word.wrapping_mul(*factor).wrapping_add(i));
    (0..WORDS as u32).map(word).collect()
}

async fn devices() -> Vec<(wgpu::Device, wgpu::Queue)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    descriptor.flags = wgpu::InstanceFlags::VALIDATION;
    let instance = wgpu::Instance::new(descriptor);
    let mut devices = Vec::new();
    for adapter in instance.enumerate_adapters(wgpu::Backends::VULKAN).await {
        eprintln!("on {}", adapter.get_info().name);
        devices.push(adapter.request_device(&wgpu::DeviceDescriptor::default()).await.unwrap());
    }
    devices
}

/// One test, since the messages of the layer are the whole process's.
#[test]
fn both_sides_use_one_buffer_in_turn() {
    log::set_logger(&MESSAGES).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let required =
        std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "vulkan"));
    let devices = pollster::block_on(devices());
    assert!(!devices.is_empty() || !required, "wgpu has no Vulkan device");
    for (device, queue) in &devices {
        let shared = WgpuDevice::adopt(device, queue).unwrap();
        a_view_of_our_buffer(&shared, device);
        a_buffer_over_theirs(&shared, device, queue);
        graphs_and_events_go_through_wgpu(&shared);
        wrong_ones_are_refused(&shared, device);
    }
    drop(devices);
    assert_eq!(*MESSAGES.0.lock().unwrap(), Vec::<String>::new());
}

fn a_view_of_our_buffer(shared: &WgpuDevice, device: &wgpu::Device) {
    let buffer =
        shared.device().buffer::<u32>(WORDS).host(HostAccess::ReadWrite).init_with(|i| i as u32).unwrap();
    // SAFETY: what uses the view is submitted through `shared.submit`, which is told of the buffer.
    let view = unsafe { shared.view(&buffer) }.unwrap();
    let kernel = shared.device().kernel(STEP).unwrap().set("FACTOR", 3u32).build().unwrap();
    let streams = [shared.device().stream().unwrap(), shared.device().stream().unwrap()];
    let mut turns = Vec::new();
    for turn in 0..40 {
        streams[turn % 2].launch(&kernel, [16, 1, 1], args![&buffer]).unwrap();
        shared.submit([record(device, &view, 5)], &[(Arg::buffer(&buffer), true)]).unwrap();
        turns.extend([3, 5]);
        if turn % 13 == 5 {
            // The CPU takes a turn as well: it sees the work of both, and both see its.
            let mut words = buffer.write().unwrap();
            assert_eq!(*words, expected(&turns));
            words.iter_mut().zip(0..).for_each(|(word, i)| *word = word.wrapping_mul(7).wrapping_add(i));
            turns.push(7);
        }
    }
    let guard = buffer.read().unwrap();
    assert_eq!(*guard, expected(&turns));
    let refused = shared.submit([record(device, &view, 5)], &[(Arg::buffer(&buffer), true)]);
    assert!(matches!(refused, Err(Error::Busy(_))));
    drop(guard);
    // The view keeps the memory; the buffer may go first.
    drop(buffer);
    drop(view);
}

fn a_buffer_over_theirs(shared: &WgpuDevice, device: &wgpu::Device, queue: &wgpu::Queue) {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let size = WORDS as u64 * 4;
    let theirs =
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
    // SAFETY: it is this device's, is never mapped, and what uses it is submitted through `shared.submit`.
    let ours = unsafe { shared.buffer::<u32>(theirs.clone(), WORDS) }.unwrap();
    // wgpu has not zeroed it when onebuf writes; it must not do so later.
    let start: Vec<u32> = (0..WORDS as u32).collect();
    ours.copy_from_slice(&start).unwrap();
    let kernel = shared.device().kernel(STEP).unwrap().set("FACTOR", 3u32).build().unwrap();
    shared.device().default_stream().unwrap().launch(&kernel, [16, 1, 1], args![&ours]).unwrap();
    shared.submit([record(device, &theirs, 5)], &[(Arg::buffer(&ours), true)]).unwrap();
    assert_eq!(ours.read_to_vec().unwrap(), expected(&[3, 5]));
    queue.write_buffer(&theirs, 0, bytemuck::cast_slice(&start));
    shared.submit([], &[(Arg::buffer(&ours), true)]).unwrap();
    assert_eq!(ours.read_to_vec().unwrap(), start);
}

fn graphs_and_events_go_through_wgpu(shared: &WgpuDevice) {
    let device = shared.device();
    let buffer = device.buffer::<u32>(WORDS).host(HostAccess::ReadWrite).init_with(|i| i as u32).unwrap();
    let kernel = device.kernel(STEP).unwrap().set("FACTOR", 3u32).build().unwrap();
    let mut graph = device.graph();
    graph.launch(&kernel, [16, 1, 1], args![&buffer]).unwrap();
    graph.launch(&kernel, [16, 1, 1], args![&buffer]).unwrap();
    let graph = graph.build().unwrap();
    let stream = device.stream().unwrap();
    for _ in 0..10 {
        stream.replay(&graph).unwrap();
    }
    assert_eq!(*buffer.read().unwrap(), expected(&[3; 20]));
    if let (Ok(first), Ok(second)) = (stream.event(), stream.event()) {
        second.wait().unwrap();
        second.elapsed_since(&first).unwrap();
    }
}

fn wrong_ones_are_refused(shared: &WgpuDevice, device: &wgpu::Device) {
    let usage = wgpu::BufferUsages::COPY_DST;
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage,
        mapped_at_creation: false,
    });
    // SAFETY: it is this device's, and is refused.
    let refused = unsafe { shared.buffer::<u32>(buffer, 16) }.unwrap_err().to_string();
    assert!(refused.contains("STORAGE"), "{refused}");
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage,
        mapped_at_creation: false,
    });
    // SAFETY: as above.
    let refused = unsafe { shared.buffer::<u32>(buffer, 17) }.unwrap_err().to_string();
    assert!(refused.contains("64"), "{refused}");
}
