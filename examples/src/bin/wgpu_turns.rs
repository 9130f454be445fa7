//! wgpu and onebuf write one buffer in turn, a thousand times, with no copy and no wait on the CPU in between; then the CPU
//! reads it where it lies. `ONEBUF_VALIDATION=1` runs it under the Khronos validation layer.

use anyhow::{Context, Result, ensure};
use onebuf::wgpu::WgpuDevice;
use onebuf::{Arg, HostAccess, args};

/// Turns of each side.
const TURNS: u32 = 1000;

/// Each side multiplies and adds, with numbers of its own: only the right order gives the right result.
const STEP: &str = "
    override FACTOR: u32;
    override SUM: u32;
    @group(0) @binding(0) var<storage, read_write> words: array<u32>;
    @compute @workgroup_size(64)
    fn step(@builtin(global_invocation_id) at: vec3u) {
        if at.x < arrayLength(&words) { words[at.x] = words[at.x] * FACTOR + SUM + at.x; }
    }";

const WORDS: usize = 10_000;

fn main() -> Result<()> {
    let (device, queue) = pollster::block_on(open())?;
    let shared = WgpuDevice::adopt(&device, &queue)?;
    println!("device    {}", shared.device().info().name);

    let buffer = shared.device().buffer::<u32>(WORDS).host(HostAccess::ReadWrite).init_with(|i| i as u32)?;
    println!("placement {}", buffer.placement());
    // SAFETY: what uses the view is submitted through `shared.submit`, which is told of the buffer.
    let view = unsafe { shared.view(&buffer)? };

    let ours = shared.device().kernel(STEP)?.set("FACTOR", 3u32).set("SUM", 7u32).build()?;
    let theirs = Theirs::new(&device, &view);
    let stream = shared.device().stream()?;
    let groups = ours.groups_for([WORDS as u32, 1, 1]);
    let start = std::time::Instant::now();
    for _ in 0..TURNS {
        stream.launch(&ours, groups, args![&buffer])?;
        shared.submit([theirs.record(&device, groups)], &[(Arg::buffer(&buffer), true)])?;
    }
    let words = buffer.read()?;
    println!("turns     {TURNS} of each in {:?}", start.elapsed());
    for (i, &word) in words.iter().enumerate() {
        let i = i as u32;
        let turn =
            |word: u32, factor: u32, sum: u32| word.wrapping_mul(factor).wrapping_add(sum).wrapping_add(i);
        let expected = (0..TURNS).fold(i, |word, _| turn(turn(word, 3, 7), 5, 11));
        ensure!(word == expected, "word {i} is {word}, and should be {expected}");
    }
    println!("result    right in all {WORDS} words; bytes copied: {}", shared.device().copied_bytes());
    Ok(())
}

async fn open() -> Result<(wgpu::Device, wgpu::Queue)> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    if std::env::var_os("ONEBUF_VALIDATION").is_some() {
        descriptor.flags = wgpu::InstanceFlags::VALIDATION;
    }
    let instance = wgpu::Instance::new(descriptor);
    let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    adapter.request_device(&wgpu::DeviceDescriptor::default()).await.context("wgpu's device")
}

/// wgpu's side.
struct Theirs {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
}

impl Theirs {
    fn new(device: &wgpu::Device, view: &wgpu::Buffer) -> Theirs {
        let source = wgpu::ShaderSource::Wgsl(STEP.into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let constants = [("FACTOR", 5.0), ("SUM", 11.0)];
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("step"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
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

    fn record(&self, device: &wgpu::Device, [x, y, z]: [u32; 3]) -> wgpu::CommandBuffer {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        pass.dispatch_workgroups(x, y, z);
        drop(pass);
        encoder.finish()
    }
}
