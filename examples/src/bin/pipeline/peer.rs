//! The same pipeline on plain wgpu, as its documentation has it: `write_buffer` in, a mappable buffer out.

use std::time::Instant;

use anyhow::{Context, Result};
use image::ImageDecoder;
use onebuf::DeviceInfo;
use onebuf_examples::{cpu, shaders};
use wgpu::util::DeviceExt;

use crate::{Options, Outcome, RADIUS, SHIFT, open};

/// What wgpu gave, and on which device.
pub(crate) struct Peer {
    pub(crate) outcome: Outcome,
    pub(crate) device: String,
}

struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

pub(crate) fn run(info: &DeviceInfo, options: &Options, (width, height): (u32, u32)) -> Result<Peer> {
    let (gpu, name) = Gpu::open(info)?;
    let pixels = u64::from(width) * u64::from(height);
    let weights = cpu::blur_weights(RADIUS);
    let init = wgpu::util::BufferInitDescriptor {
        label: None,
        contents: bytemuck::cast_slice(&weights),
        usage: wgpu::BufferUsages::STORAGE,
    };
    let weights = gpu.device.create_buffer_init(&init);
    let rgb_bytes = (pixels * 3).next_multiple_of(4);
    let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let [rgb, image, half_blurred, blurred, edged, bins] =
        [rgb_bytes, pixels * 4, pixels * 4, pixels * 4, pixels * 4, 1024]
            .map(|size| gpu.buffer(size, storage));
    let readable = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    let outputs = [(&blurred, pixels * 4), (&edged, pixels * 4), (&bins, 1024)]
        .map(|(buffer, size)| (buffer, gpu.buffer(size, readable), size));

    let size: Vec<u8> = [width, height].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let radius = [("RADIUS", f64::from(RADIUS))];
    let shift = [("SHIFT", f64::from(SHIFT))];
    let tiles = [width.div_ceil(16), height.div_ceil(16)];
    let passes = [
        Pass::new(
            &gpu,
            shaders::EXPAND,
            "expand",
            &[],
            &[&rgb, &image],
            &[],
            [pixels.div_ceil(256) as u32, 1],
        ),
        Pass::new(&gpu, shaders::HISTOGRAM, "histogram", &[], &[&image, &bins], &[], [16, 1]),
        Pass::new(
            &gpu,
            shaders::BLUR,
            "horizontal",
            &radius,
            &[&image, &half_blurred, &weights],
            &size,
            tiles,
        ),
        Pass::new(
            &gpu,
            shaders::BLUR,
            "vertical",
            &radius,
            &[&half_blurred, &blurred, &weights],
            &size,
            tiles,
        ),
        Pass::new(&gpu, shaders::EDGES, "edges", &shift, &[&blurred, &edged], &size, tiles),
    ];

    let decoder = open(&options.input)?;
    let mut decoded = vec![0; rgb_bytes as usize];
    let bytes = decoder.total_bytes() as usize;
    decoder.read_image(&mut decoded[..bytes])?;

    let mut times = Vec::new();
    let mut results = [const { Vec::new() }; 3];
    for _ in 0..=options.rounds {
        let start = Instant::now();
        gpu.queue.write_buffer(&rgb, 0, &decoded);
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&bins, 0, None);
        for pass in &passes {
            pass.record(&mut encoder);
        }
        for (buffer, copy, size) in &outputs {
            encoder.copy_buffer_to_buffer(buffer, 0, copy, 0, *size);
        }
        gpu.queue.submit([encoder.finish()]);
        for (_, copy, _) in &outputs {
            copy.map_async(wgpu::MapMode::Read, .., |_| {});
        }
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).context("wgpu's wait")?;
        let views = [0, 1, 2].map(|i| outputs[i].1.get_mapped_range(..));
        times.push(start.elapsed());
        for (result, view) in results.iter_mut().zip(views) {
            *result = bytemuck::pod_collect_to_vec(&view.context("a mapped buffer without a range")?);
        }
        outputs.iter().for_each(|(_, copy, _)| copy.unmap());
    }
    times.remove(0); // The first round warms up.
    let [blurred, edges, histogram] = results;
    // Into the staging buffer, from there to the device, and from the device to buffers that can be mapped.
    let copied_bytes = 2 * rgb_bytes + outputs.iter().map(|(_, _, size)| size).sum::<u64>();
    Ok(Peer { outcome: Outcome { blurred, edges, histogram, copied_bytes, times }, device: name })
}

impl Gpu {
    /// The adapter with the device's name, or else the one that wgpu prefers.
    fn open(info: &DeviceInfo) -> Result<(Gpu, String)> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let adapter = adapters.into_iter().find(|adapter| adapter.get_info().name == info.name);
        let adapter = adapter.with_context(|| format!("wgpu does not list {}", info.name))?;
        let name = adapter.get_info().name;
        let request = wgpu::DeviceDescriptor {
            required_features: wgpu::Features::IMMEDIATES,
            required_limits: wgpu::Limits { max_immediate_size: 16, ..wgpu::Limits::default() },
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) =
            pollster::block_on(adapter.request_device(&request)).context("wgpu's device")?;
        Ok((Gpu { device, queue }, name))
    }

    fn buffer(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }
}

/// A kernel with its arguments.
struct Pass {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    immediates: Vec<u8>,
    groups: [u32; 2],
}

impl Pass {
    fn new(
        gpu: &Gpu,
        source: &str,
        entry: &str,
        constants: &[(&str, f64)],
        buffers: &[&wgpu::Buffer],
        immediates: &[u8],
        groups: [u32; 2],
    ) -> Pass {
        let device = &gpu.device;
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(entry),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: None,
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions { constants, ..Default::default() },
            cache: None,
        });
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, buffer)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        Pass { pipeline, bindings, immediates: immediates.to_vec(), groups }
    }

    fn record(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bindings, &[]);
        if !self.immediates.is_empty() {
            pass.set_immediates(0, &self.immediates);
        }
        pass.dispatch_workgroups(self.groups[0], self.groups[1], 1);
    }
}
