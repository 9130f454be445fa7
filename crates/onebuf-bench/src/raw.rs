//! Vulkan by hand, as a careful engineer writes it for one program: the same steps as onebuf takes, and no more.
//!
//! One queue, one timeline semaphore, persistently mapped memory of the same type that onebuf chose, SPIR-V of the same
//! WGSL, a barrier where work depends on work, and one to the host where the CPU reads. Nothing is checked, counted or
//! kept alive for anybody: handles live until [`Raw`] goes.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use onebuf_vulkan::{Handles, VulkanDevice};
use onebuf_wgsl::{Module, SpirvOptions};

use crate::error::{Error, Result};

/// The other program on onebuf's own device: a device has its threads and its caches, and two of them would be compared
/// along with what is measured.
pub(crate) struct Raw {
    device: ash::Device,
    family: u32,
    timeline: vk::Semaphore,
    value: Cell<u64>,
    garbage: RefCell<Garbage>,
    /// Keeps the device alive.
    backend: Arc<dyn onebuf::core::backend::Device>,
}

/// What is destroyed at the end.
#[derive(Default)]
struct Garbage {
    buffers: Vec<(vk::Buffer, vk::DeviceMemory)>,
    set_layouts: Vec<vk::DescriptorSetLayout>,
    layouts: Vec<vk::PipelineLayout>,
    pipelines: Vec<vk::Pipeline>,
    descriptor_pools: Vec<vk::DescriptorPool>,
    command_pools: Vec<vk::CommandPool>,
}

/// A buffer in memory of its own, mapped for good.
#[derive(Clone, Copy)]
pub(crate) struct RawBuffer {
    raw: vk::Buffer,
    pointer: NonNull<u8>,
    bytes: u64,
}

/// A pipeline of one bind group.
pub(crate) struct RawKernel {
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
    pipeline: vk::Pipeline,
    bindings: Vec<u32>,
}

/// A command buffer with a pool of its own.
#[derive(Clone, Copy)]
pub(crate) struct Commands {
    pool: vk::CommandPool,
    raw: vk::CommandBuffer,
}

/// Turns a driver's answer into an error.
fn failed(call: &'static str) -> impl Fn(vk::Result) -> Error {
    move |code| Error::Raw(format!("{call} answered {code:?}"))
}

const COMPUTE: vk::PipelineBindPoint = vk::PipelineBindPoint::COMPUTE;
const STAGE: vk::ShaderStageFlags = vk::ShaderStageFlags::COMPUTE;
/// What onebuf's range for immediate data covers at most: both sides push constants of one layout.
const IMMEDIATE_BYTES: u32 = 4;

impl Raw {
    /// `None` where the device is not of the Vulkan backend.
    pub(crate) fn beside(device: &onebuf::Device) -> Result<Option<Raw>> {
        // SAFETY: the backend's device is only looked at, for its handles.
        let backend = unsafe { device.raw() }.clone();
        let Some(vulkan) = backend.as_any().downcast_ref::<VulkanDevice>() else { return Ok(None) };
        let Handles { device, queue_family, .. } = vulkan.handles();
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: onebuf turns timeline semaphores on; the semaphore is destroyed with `self`.
        let timeline =
            unsafe { device.create_semaphore(&info, None) }.map_err(failed("vkCreateSemaphore"))?;
        let garbage = RefCell::default();
        Ok(Some(Raw { device, family: queue_family, timeline, value: Cell::new(0), garbage, backend }))
    }

    /// A buffer of zeros in memory of type `index`, which must be visible to the CPU and coherent.
    pub(crate) fn buffer(&self, bytes: u64, index: u32) -> Result<RawBuffer> {
        let (buffer, memory) = self.create_buffer(bytes, index)?;
        self.garbage.borrow_mut().buffers.push((buffer, memory));
        // SAFETY: the type is host-visible, and the memory is not mapped.
        let pointer =
            unsafe { self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
                .map_err(failed("vkMapMemory"))?;
        let pointer =
            NonNull::new(pointer.cast::<u8>()).ok_or_else(|| Error::Raw("a null mapping".into()))?;
        // SAFETY: the mapping covers the buffer, and nobody else has it.
        unsafe { pointer.write_bytes(0, bytes as usize) };
        Ok(RawBuffer { raw: buffer, pointer, bytes })
    }

    fn create_buffer(&self, bytes: u64, index: u32) -> Result<(vk::Buffer, vk::DeviceMemory)> {
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: plain creation; buffers and memory are destroyed with `self`, or by `allocate_and_free`.
        unsafe {
            let buffer = self.device.create_buffer(&info, None).map_err(failed("vkCreateBuffer"))?;
            let size = self.device.get_buffer_memory_requirements(buffer).size;
            let info = vk::MemoryAllocateInfo::default().allocation_size(size).memory_type_index(index);
            let memory = match self.device.allocate_memory(&info, None) {
                Ok(memory) => memory,
                Err(code) => {
                    self.device.destroy_buffer(buffer, None);
                    return Err(failed("vkAllocateMemory")(code));
                }
            };
            self.device.bind_buffer_memory(buffer, memory, 0).map_err(failed("vkBindBufferMemory"))?;
            Ok((buffer, memory))
        }
    }

    /// What a program without a pool does for a buffer's life.
    pub(crate) fn allocate_and_free(&self, bytes: u64, index: u32) -> Result<()> {
        let (buffer, memory) = self.create_buffer(bytes, index)?;
        // SAFETY: nothing uses either.
        unsafe {
            self.device.destroy_buffer(buffer, None);
            self.device.free_memory(memory, None);
        }
        Ok(())
    }

    /// The pipeline of a WGSL source with one entry point and one bind group, from the SPIR-V that onebuf makes of it.
    pub(crate) fn kernel(&self, wgsl: &str) -> Result<RawKernel> {
        let bad = |error: onebuf_wgsl::Error| Error::Raw(error.to_string());
        let kernel = Module::parse(wgsl).and_then(|module| module.specialize(None, &[])).map_err(bad)?;
        let spirv = kernel.to_spirv(&SpirvOptions::default()).map_err(bad)?;
        let bindings: Vec<u32> = kernel.interface().bindings.iter().map(|b| b.slot.binding).collect();
        let entry = CString::new(spirv.entry).map_err(|error| Error::Raw(error.to_string()))?;
        let described: Vec<_> = bindings
            .iter()
            .map(|&binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(STAGE)
            })
            .collect();
        let mut garbage = self.garbage.borrow_mut();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&described);
        // SAFETY: plain creation, destroyed with `self`, as all below.
        let set_layout = unsafe { self.device.create_descriptor_set_layout(&info, None) }
            .map_err(failed("vkCreateDescriptorSetLayout"))?;
        garbage.set_layouts.push(set_layout);
        let ranges = [vk::PushConstantRange { stage_flags: STAGE, offset: 0, size: IMMEDIATE_BYTES }];
        let layouts = [set_layout];
        let info =
            vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts).push_constant_ranges(&ranges);
        // SAFETY: the set layout is live.
        let layout = unsafe { self.device.create_pipeline_layout(&info, None) }
            .map_err(failed("vkCreatePipelineLayout"))?;
        garbage.layouts.push(layout);
        let info = vk::ShaderModuleCreateInfo::default().code(&spirv.words);
        // SAFETY: naga wrote the words.
        let module = unsafe { self.device.create_shader_module(&info, None) }
            .map_err(failed("vkCreateShaderModule"))?;
        let stage = vk::PipelineShaderStageCreateInfo::default().stage(STAGE).module(module).name(&entry);
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
        // SAFETY: the layout has the module's bindings; a module may go once its pipeline is made.
        let pipelines = unsafe {
            let pipelines = self.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            self.device.destroy_shader_module(module, None);
            pipelines.map_err(|(_, code)| failed("vkCreateComputePipelines")(code))?
        };
        garbage.pipelines.extend(&pipelines);
        let pipeline = pipelines.first().copied().ok_or_else(|| Error::Raw("no pipeline".into()))?;
        Ok(RawKernel { layout, set_layout, pipeline, bindings })
    }

    /// A descriptor set that points at these buffers, in the order of the bindings.
    pub(crate) fn bind(&self, kernel: &RawKernel, buffers: &[RawBuffer]) -> Result<vk::DescriptorSet> {
        let sizes = [vk::DescriptorPoolSize {
            ty: vk::DescriptorType::STORAGE_BUFFER,
            descriptor_count: buffers.len() as u32,
        }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        // SAFETY: plain creation, destroyed with `self`.
        let pool = unsafe { self.device.create_descriptor_pool(&info, None) }
            .map_err(failed("vkCreateDescriptorPool"))?;
        self.garbage.borrow_mut().descriptor_pools.push(pool);
        let layouts = [kernel.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: pool and layout are live, and the pool has room for the set.
        let sets = unsafe { self.device.allocate_descriptor_sets(&info) }
            .map_err(failed("vkAllocateDescriptorSets"))?;
        let set = sets.first().copied().ok_or_else(|| Error::Raw("no descriptor set".into()))?;
        for (buffer, &binding) in buffers.iter().zip(&kernel.bindings) {
            let infos = [vk::DescriptorBufferInfo { buffer: buffer.raw, offset: 0, range: buffer.bytes }];
            let write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&infos);
            // SAFETY: set and buffer are live, and no work uses the set yet.
            unsafe { self.device.update_descriptor_sets(&[write], &[]) };
        }
        Ok(set)
    }

    /// A command buffer.
    pub(crate) fn commands(&self) -> Result<Commands> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        // SAFETY: the family is the device's; the pool is destroyed with `self`.
        let pool =
            unsafe { self.device.create_command_pool(&info, None) }.map_err(failed("vkCreateCommandPool"))?;
        self.garbage.borrow_mut().command_pools.push(pool);
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is live.
        let raw = unsafe { self.device.allocate_command_buffers(&info) }
            .map_err(failed("vkAllocateCommandBuffers"))?;
        let raw = raw.first().copied().ok_or_else(|| Error::Raw("no command buffer".into()))?;
        Ok(Commands { pool, raw })
    }

    /// Starts recording over. The work of the last recording must be done.
    pub(crate) fn begin(&self, commands: Commands, once: bool) -> Result<()> {
        let flags = if once {
            vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT
        } else {
            vk::CommandBufferUsageFlags::SIMULTANEOUS_USE
        };
        // SAFETY: the commands are not pending: callers wait before they begin again.
        unsafe {
            self.device
                .reset_command_pool(commands.pool, vk::CommandPoolResetFlags::empty())
                .map_err(failed("vkResetCommandPool"))?;
            self.device
                .begin_command_buffer(commands.raw, &vk::CommandBufferBeginInfo::default().flags(flags))
                .map_err(failed("vkBeginCommandBuffer"))
        }
    }

    /// Binds a pipeline.
    pub(crate) fn use_kernel(&self, commands: Commands, kernel: &RawKernel) {
        // SAFETY: the commands record, and the pipeline is live.
        unsafe { self.device.cmd_bind_pipeline(commands.raw, COMPUTE, kernel.pipeline) };
    }

    /// Binds a descriptor set.
    pub(crate) fn use_set(&self, commands: Commands, kernel: &RawKernel, set: vk::DescriptorSet) {
        // SAFETY: the commands record, and the set is of the layout.
        unsafe {
            self.device.cmd_bind_descriptor_sets(commands.raw, COMPUTE, kernel.layout, 0, &[set], &[]);
        }
    }

    /// Sets the immediate data.
    pub(crate) fn immediate(&self, commands: Commands, kernel: &RawKernel, value: [u8; 4]) {
        // SAFETY: the commands record, and the layout's range has four bytes.
        unsafe { self.device.cmd_push_constants(commands.raw, kernel.layout, STAGE, 0, &value) };
    }

    /// Runs the bound kernel.
    pub(crate) fn dispatch(&self, commands: Commands, [x, y, z]: [u32; 3]) {
        // SAFETY: the commands record, with pipeline and set bound.
        unsafe { self.device.cmd_dispatch(commands.raw, x, y, z) };
    }

    /// Later dispatches see what earlier ones wrote.
    pub(crate) fn barrier(&self, commands: Commands) {
        let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
        let access = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
        self.memory_barrier(commands, compute, access);
    }

    /// The CPU sees what dispatches wrote.
    pub(crate) fn host_barrier(&self, commands: Commands) {
        self.memory_barrier(commands, vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
    }

    fn memory_barrier(&self, commands: Commands, stage: vk::PipelineStageFlags, access: vk::AccessFlags) {
        let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
        let memory = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(access)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the commands record, outside a render pass.
        unsafe { self.device.cmd_pipeline_barrier(commands.raw, compute, stage, none, &memory, &[], &[]) };
    }

    /// Ends recording.
    pub(crate) fn end(&self, commands: Commands) -> Result<()> {
        // SAFETY: the commands record.
        unsafe { self.device.end_command_buffer(commands.raw) }.map_err(failed("vkEndCommandBuffer"))
    }

    /// Submits. [`Raw::wait`] waits for it.
    pub(crate) fn submit(&self, commands: Commands) -> Result<()> {
        let value = self.value.get() + 1;
        let (commands, signals, values) = ([commands.raw], [self.timeline], [value]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = [vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&signals)
            .push_next(&mut timeline)];
        let vulkan = self.backend.as_any().downcast_ref::<VulkanDevice>();
        let vulkan = vulkan.ok_or_else(|| Error::Raw("the device is not Vulkan's".into()))?;
        let submitted = vulkan.with_queue(|queue| {
            // SAFETY: the queue is ours alone for the call; what the commands use lives as long as `self`.
            unsafe { self.device.queue_submit(queue, &info, vk::Fence::null()) }
        })?;
        submitted.map_err(failed("vkQueueSubmit"))?;
        self.value.set(value);
        Ok(())
    }

    /// Waits for all that was submitted.
    pub(crate) fn wait(&self) -> Result<()> {
        let (semaphores, values) = ([self.timeline], [self.value.get()]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is live.
        unsafe { self.device.wait_semaphores(&info, u64::MAX) }.map_err(failed("vkWaitSemaphores"))
    }
}

impl RawBuffer {
    /// The word at an index.
    pub(crate) fn word(&self, index: usize) -> u32 {
        assert!((index as u64) < self.bytes / 4, "word {index} of a buffer of {} bytes", self.bytes);
        // SAFETY: it is within the mapping; the read is volatile, since the device writes it between reads.
        unsafe { self.pointer.cast::<u32>().add(index).read_volatile() }
    }

    /// Writes a word.
    pub(crate) fn set_word(&self, index: usize, word: u32) {
        assert!((index as u64) < self.bytes / 4, "word {index} of a buffer of {} bytes", self.bytes);
        // SAFETY: it is within the mapping, and no work is pending when the program writes.
        unsafe { self.pointer.cast::<u32>().add(index).write_volatile(word) };
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.wait();
        let garbage = self.garbage.get_mut();
        // SAFETY: the work is done, everything below was made from it, and is destroyed once.
        unsafe {
            for &(buffer, memory) in &garbage.buffers {
                self.device.destroy_buffer(buffer, None);
                self.device.free_memory(memory, None);
            }
            for &pool in &garbage.command_pools {
                self.device.destroy_command_pool(pool, None);
            }
            for &pool in &garbage.descriptor_pools {
                self.device.destroy_descriptor_pool(pool, None);
            }
            for &pipeline in &garbage.pipelines {
                self.device.destroy_pipeline(pipeline, None);
            }
            for &layout in &garbage.layouts {
                self.device.destroy_pipeline_layout(layout, None);
            }
            for &layout in &garbage.set_layouts {
                self.device.destroy_descriptor_set_layout(layout, None);
            }
            self.device.destroy_semaphore(self.timeline, None);
        }
    }
}
