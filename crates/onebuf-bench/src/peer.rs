//! wgpu, as its users write it: an encoder, a pass and a submission for each piece of work, staging buffers to read.

use onebuf::DeviceInfo;

use crate::error::{Error, Result};

/// A device of its own, beside onebuf's.
pub(crate) struct Peer {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

/// A pipeline with one bind group.
pub(crate) struct PeerKernel {
    pipeline: wgpu::ComputePipeline,
}

impl Peer {
    /// Opens the device that `info` describes. wgpu does not number devices as onebuf does, so the name tells.
    ///
    /// # Errors
    /// [`Error::Peer`] where wgpu does not see the device (it hides some), or the device has no immediate data.
    pub(crate) fn open(info: &DeviceInfo) -> Result<Peer> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        descriptor.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(descriptor);
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let adapter = adapters.into_iter().find(|adapter| adapter.get_info().name == info.name);
        let adapter = adapter.ok_or_else(|| Error::Peer(format!("it does not show {}", info.name)))?;
        let descriptor = wgpu::DeviceDescriptor {
            required_features: wgpu::Features::IMMEDIATES,
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| Error::Peer(error.to_string()))?;
        Ok(Peer { device, queue })
    }

    /// A buffer that kernels use.
    pub(crate) fn buffer(&self, bytes: u64) -> wgpu::Buffer {
        use wgpu::BufferUsages as U;
        self.create(bytes, U::STORAGE | U::COPY_SRC | U::COPY_DST)
    }

    /// A buffer that results are copied to and read from.
    pub(crate) fn staging(&self, bytes: u64) -> wgpu::Buffer {
        self.create(bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    fn create(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    /// The pipeline of a WGSL source with one entry point.
    pub(crate) fn kernel(&self, wgsl: &str) -> PeerKernel {
        let source = wgpu::ShaderSource::Wgsl(wgsl.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        PeerKernel { pipeline }
    }

    /// A bind group of these buffers, bound at 0, 1, ...
    pub(crate) fn bind(&self, kernel: &PeerKernel, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, buffer)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }

    /// A new encoder.
    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&Default::default())
    }

    /// One launch, in a pass of its own.
    pub(crate) fn launch(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        kernel: &PeerKernel,
        group: &wgpu::BindGroup,
        immediate: Option<[u8; 4]>,
        groups: [u32; 3],
    ) {
        self.launch_all(encoder, kernel, groups, std::iter::once((group, immediate)));
    }

    /// Launches in one pass. wgpu finds the barriers between them.
    pub(crate) fn launch_all<'a>(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        kernel: &PeerKernel,
        [x, y, z]: [u32; 3],
        launches: impl Iterator<Item = (&'a wgpu::BindGroup, Option<[u8; 4]>)>,
    ) {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&kernel.pipeline);
        for (group, immediate) in launches {
            pass.set_bind_group(0, group, &[]);
            if let Some(immediate) = immediate {
                pass.set_immediates(0, &immediate);
            }
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// Submits.
    pub(crate) fn submit(&self, encoder: wgpu::CommandEncoder) -> wgpu::SubmissionIndex {
        self.queue.submit([encoder.finish()])
    }

    /// Waits for a submission.
    pub(crate) fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<()> {
        let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
        self.device.poll(wait).map(drop).map_err(|error| Error::Peer(error.to_string()))
    }

    /// Maps a staging buffer behind a submission, and gives its bytes to `read`.
    pub(crate) fn map<R>(
        &self,
        staging: &wgpu::Buffer,
        submission: wgpu::SubmissionIndex,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let (sender, mapped) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver waits below; where it does not any more, nobody needs the answer.
            let _ = sender.send(result);
        });
        self.wait(submission)?;
        let mapped = mapped.try_recv().map_err(|_| Error::Peer("a buffer was not mapped in time".into()))?;
        mapped.map_err(|error| Error::Peer(error.to_string()))?;
        let view = staging.get_mapped_range(..).map_err(|error| Error::Peer(error.to_string()))?;
        let result = read(&view);
        drop(view);
        staging.unmap();
        Ok(result)
    }

    /// The words of a buffer, copied by way of `staging`.
    pub(crate) fn words(&self, buffer: &wgpu::Buffer, staging: &wgpu::Buffer) -> Result<Vec<u32>> {
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, 0, staging, 0, staging.size());
        let submission = self.submit(encoder);
        self.map(staging, submission, bytemuck::pod_collect_to_vec)
    }
}
