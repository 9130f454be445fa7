//! `api`: wgpu and onebuf write one buffer in turn, on wgpu's device, and the CPU reads it where it lies.

use onebuf::wgpu::WgpuDevice;
use onebuf::{Arg, Device, HostAccess, args};

use super::{Problem, TestResult, compare};

/// Turns of each side.
const TURNS: usize = 50;

const WORDS: usize = 4099;

/// Only the right order of turns gives the right words.
const SOURCE: &str = "
    override FACTOR: u32;
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    @compute @workgroup_size(64)
    fn turn(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&words) { words[at.x] = words[at.x] * FACTOR + at.x; }
    }";

#[allow(unsafe_code)] // A view of a buffer for wgpu, which is used as it asks.
pub(super) fn test(device: &Device) -> TestResult {
    let (raw, queue) = open(&device.info().name)?;
    let shared = WgpuDevice::adopt(&raw, &queue)?;
    let buffer =
        shared.device().buffer::<u32>(WORDS).host(HostAccess::ReadWrite).init_with(|i| i as u32 ^ 0x5a5a)?;
    // SAFETY: what uses the view is submitted through `shared.submit`, which is told of the buffer.
    let view = unsafe { shared.view(&buffer)? };
    let ours = shared.device().kernel(SOURCE)?.set("FACTOR", 3u32).build()?;
    let theirs = Theirs::new(&raw, &view);
    let stream = shared.device().stream()?;
    for _ in 0..TURNS {
        stream.launch(&ours, [WORDS.div_ceil(64) as u32, 1, 1], args![&buffer])?;
        shared.submit([theirs.record(&raw)], &[(Arg::buffer(&buffer), true)])?;
    }
    let turn = |word: u32, factor: u32, i: u32| word.wrapping_mul(factor).wrapping_add(i);
    let word = |i: u32| (0..TURNS).fold(i ^ 0x5a5a, |word, _| turn(turn(word, 3, i), 5, i));
    let expected: Vec<u32> = (0..WORDS as u32).map(word).collect();
    compare(&buffer.read()?, &expected, "words written by onebuf and wgpu in turn")?;
    let copied = shared.device().copied_bytes();
    Ok(format!("wgpu and onebuf wrote {WORDS} words in turn, {TURNS} times each; bytes copied: {copied}"))
}

/// wgpu's device of this name.
fn open(name: &str) -> Result<(wgpu::Device, wgpu::Queue), Problem> {
    let skip = |why: String| Problem::Skipped(why);
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let adapter = adapters.into_iter().find(|adapter| adapter.get_info().name == name);
    let adapter = adapter.ok_or_else(|| skip(format!("wgpu does not list {name}")))?;
    let device = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()));
    device.map_err(|error| skip(format!("wgpu does not open {name}: {error}")))
}

/// wgpu's side.
struct Theirs {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
}

impl Theirs {
    fn new(device: &wgpu::Device, view: &wgpu::Buffer) -> Theirs {
        let source = wgpu::ShaderSource::Wgsl(SOURCE.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("turn"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &[("FACTOR", 5.0)],
                ..Default::default()
            },
            cache: None,
        });
        let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: view.as_entire_binding() }],
        });
        Theirs { pipeline, bindings }
    }

    fn record(&self, device: &wgpu::Device) -> wgpu::CommandBuffer {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        pass.dispatch_workgroups(WORDS.div_ceil(64) as u32, 1, 1);
        drop(pass);
        encoder.finish()
    }
}
