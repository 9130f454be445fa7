//! The same kernels as SPIR-V on a Vulkan device: as little Vulkan as that needs.

use std::ffi::CStr;

use anyhow::{Context as _, Result, ensure};
use ash::vk;
use onebuf_core::kernel::{BindingKind, Features};
use onebuf_wgsl::SpirvOptions;

use crate::case::{Case, Outcome};

/// Memory for the buffers of one case.
const ARENA_BYTES: u64 = 64 << 20;
/// No device asks for more.
const ALIGNMENT_BYTES: u64 = 256;

/// A device with one queue, and one mapped buffer from which every case gets its bindings.
pub struct Runner {
    // Kept so that the library stays loaded.
    _entry: ash::Entry,
    instance: ash::Instance,
    device: ash::Device,
    queue: vk::Queue,
    pool: vk::CommandPool,
    fence: vk::Fence,
    arena: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
    name: String,
    features: Features,
}

impl Runner {
    /// Opens the first device.
    ///
    /// # Errors
    /// Where there is no Vulkan driver.
    pub fn open() -> Result<Runner> {
        // SAFETY: loading the system's Vulkan loader runs its initializers, which have no preconditions.
        let entry = unsafe { ash::Entry::load() }.context("no Vulkan loader")?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let instance_info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: every structure outlives the call.
        let instance =
            unsafe { entry.create_instance(&instance_info, None) }.context("no Vulkan instance")?;
        // SAFETY: the instance is live for all calls of this block, and each structure outlives its call.
        unsafe {
            let physical = *instance.enumerate_physical_devices()?.first().context("no Vulkan device")?;
            let properties = instance.get_physical_device_properties(physical);
            let name = CStr::from_ptr(properties.device_name.as_ptr()).to_string_lossy().into_owned();
            let mut atomic_float = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
            let mut vulkan11 = vk::PhysicalDeviceVulkan11Features::default();
            let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
            let extensions = instance.enumerate_device_extension_properties(physical)?;
            let has_atomic_float = extensions.iter().any(|extension| {
                extension.extension_name_as_c_str() == Ok(ash::ext::shader_atomic_float::NAME)
            });
            let mut supported =
                vk::PhysicalDeviceFeatures2::default().push_next(&mut vulkan11).push_next(&mut vulkan12);
            if has_atomic_float {
                supported = supported.push_next(&mut atomic_float);
            }
            instance.get_physical_device_features2(physical, &mut supported);
            let mut core = supported.features;
            // The checks are the translation's own: with those of the driver, a missing one would not show.
            core.robust_buffer_access = 0;
            let features = Features {
                f16: vulkan12.shader_float16 != 0 && vulkan11.uniform_and_storage_buffer16_bit_access != 0,
                f64: core.shader_float64 != 0,
                i16: core.shader_int16 != 0 && vulkan11.uniform_and_storage_buffer16_bit_access != 0,
                i64: core.shader_int64 != 0,
                i64_atomics: vulkan12.shader_buffer_int64_atomics != 0,
                f32_atomics: has_atomic_float && atomic_float.shader_buffer_float32_atomic_add != 0,
                subgroups: true,
            };
            // Enable all that is there, in a chain of its own.
            vulkan11.p_next = std::ptr::null_mut();
            vulkan12.p_next = std::ptr::null_mut();
            atomic_float.p_next = std::ptr::null_mut();
            let mut enabled = vk::PhysicalDeviceFeatures2::default()
                .features(core)
                .push_next(&mut vulkan11)
                .push_next(&mut vulkan12);
            let mut names = Vec::new();
            if has_atomic_float {
                enabled = enabled.push_next(&mut atomic_float);
                names.push(ash::ext::shader_atomic_float::NAME.as_ptr());
            }
            let priorities = [1.0];
            let queues =
                [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&priorities)];
            let device_info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names)
                .push_next(&mut enabled);
            let device = instance.create_device(physical, &device_info, None)?;
            let queue = device.get_device_queue(0, 0);
            let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None)?;
            let fence = device.create_fence(&vk::FenceCreateInfo::default(), None)?;
            let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::UNIFORM_BUFFER;
            let arena = device
                .create_buffer(&vk::BufferCreateInfo::default().size(ARENA_BYTES).usage(usage), None)?;
            let needs = device.get_buffer_memory_requirements(arena);
            let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let types = instance.get_physical_device_memory_properties(physical);
            let memory_type = types
                .memory_types_as_slice()
                .iter()
                .enumerate()
                .position(|(index, ty)| {
                    needs.memory_type_bits >> index & 1 == 1 && ty.property_flags.contains(wanted)
                })
                .context("no coherent host-visible memory")?;
            let memory_info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(memory_type as u32);
            let memory = device.allocate_memory(&memory_info, None)?;
            device.bind_buffer_memory(arena, memory, 0)?;
            let mapped = device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?.cast();
            Ok(Runner {
                _entry: entry,
                instance,
                device,
                queue,
                pool,
                fence,
                arena,
                memory,
                mapped,
                name,
                features,
            })
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the device has.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Runs every case.
    ///
    /// # Errors
    /// What the compiler or the driver says.
    pub fn run(&mut self, cases: &[&Case]) -> Result<Vec<Outcome>> {
        // One dispatch a submission: with fifty different pipelines in one, lavapipe (Mesa 22.3) reads a stale address of a
        // uniform buffer and dies of it.
        cases.iter().map(|case| self.run_one(case)).collect()
    }

    fn run_one(&mut self, case: &Case) -> Result<Outcome> {
        let mut places = Vec::new();
        let mut end = 0u64;
        for buffer in &case.buffers {
            let at = end.next_multiple_of(ALIGNMENT_BYTES);
            end = at + buffer.len() as u64;
            ensure!(end <= ARENA_BYTES, "the buffers of a case are larger than the arena");
            // SAFETY: the range lies in the mapping, which no submitted work uses now.
            unsafe { self.mapped.add(at as usize).copy_from_nonoverlapping(buffer.as_ptr(), buffer.len()) };
            places.push(at);
        }
        let made = self.prepare(case, &places).with_context(|| case.name.clone())?;
        self.submit(case, &made)?;
        let read = |(buffer, at): (&Vec<u8>, &u64)| {
            let mut bytes = vec![0u8; buffer.len()];
            // SAFETY: the range lies in the mapping, and the work that wrote it has been waited for.
            unsafe { self.mapped.add(*at as usize).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            bytes
        };
        let outcome = case.buffers.iter().zip(&places).map(read).collect();
        self.destroy(made);
        Ok(outcome)
    }

    fn prepare(&self, case: &Case, places: &[u64]) -> Result<Made> {
        let spirv = case.kernel.to_spirv(&SpirvOptions::default())?;
        let interface = case.kernel.interface();
        let kind = |kind| match kind {
            BindingKind::Storage => vk::DescriptorType::STORAGE_BUFFER,
            BindingKind::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
        };
        ensure!(interface.bindings.iter().all(|binding| binding.slot.group == 0), "bind groups other than 0");
        // SAFETY: the device is live, every handle comes from it, and each structure outlives its call.
        unsafe {
            let device = &self.device;
            let module_info = vk::ShaderModuleCreateInfo::default().code(&spirv.words);
            let module = device.create_shader_module(&module_info, None)?;
            let bindings: Vec<_> = interface
                .bindings
                .iter()
                .map(|binding| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(binding.slot.binding)
                        .descriptor_type(kind(binding.kind))
                        .descriptor_count(1)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                })
                .collect();
            let set_layout_info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let set_layout = device.create_descriptor_set_layout(&set_layout_info, None)?;
            let set_layouts = [set_layout];
            let push_size = interface.immediate_bytes.next_multiple_of(4);
            let ranges =
                [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push_size)];
            let mut layout_info = vk::PipelineLayoutCreateInfo::default().set_layouts(&set_layouts);
            if push_size > 0 {
                layout_info = layout_info.push_constant_ranges(&ranges);
            }
            let layout = device.create_pipeline_layout(&layout_info, None)?;
            let entry = std::ffi::CString::new(spirv.entry)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&entry);
            let pipeline_info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
            let pipeline = *device
                .create_compute_pipelines(vk::PipelineCache::null(), &[pipeline_info], None)
                .map_err(|(_, error)| error)?
                .first()
                .context("no pipeline")?;
            let sizes = [
                vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: 16 },
                vk::DescriptorPoolSize { ty: vk::DescriptorType::UNIFORM_BUFFER, descriptor_count: 16 },
            ];
            let pool_info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let pool = device.create_descriptor_pool(&pool_info, None)?;
            let set_info =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&set_layouts);
            let set = *device.allocate_descriptor_sets(&set_info)?.first().context("no descriptor set")?;
            for ((binding, at), bytes) in interface.bindings.iter().zip(places).zip(&case.buffers) {
                let info =
                    [vk::DescriptorBufferInfo { buffer: self.arena, offset: *at, range: bytes.len() as u64 }];
                let write = vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding.slot.binding)
                    .descriptor_type(kind(binding.kind))
                    .buffer_info(&info);
                device.update_descriptor_sets(&[write], &[]);
            }
            Ok(Made { module, set_layout, layout, pipeline, pool, set })
        }
    }

    fn submit(&mut self, case: &Case, made: &Made) -> Result<()> {
        // SAFETY: the device is live, every handle comes from it, and the work is waited for before anything of it ends.
        unsafe {
            let device = &self.device;
            device.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty())?;
            let info =
                vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
            let commands = *device.allocate_command_buffers(&info)?.first().context("no command buffer")?;
            device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())?;
            let compute = vk::PipelineBindPoint::COMPUTE;
            device.cmd_bind_pipeline(commands, compute, made.pipeline);
            device.cmd_bind_descriptor_sets(commands, compute, made.layout, 0, &[made.set], &[]);
            let size = case.kernel.interface().immediate_bytes.next_multiple_of(4) as usize;
            if size > 0 {
                let mut immediates = case.immediates.clone();
                immediates.resize(size, 0);
                device.cmd_push_constants(
                    commands,
                    made.layout,
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    &immediates,
                );
            }
            device.cmd_dispatch(commands, case.grid[0], case.grid[1], case.grid[2]);
            device.end_command_buffer(commands)?;
            let buffers = [commands];
            let submits = [vk::SubmitInfo::default().command_buffers(&buffers)];
            device.queue_submit(self.queue, &submits, self.fence)?;
            device.wait_for_fences(&[self.fence], true, 120_000_000_000)?;
            device.reset_fences(&[self.fence])?;
            device.free_command_buffers(self.pool, &buffers);
        }
        Ok(())
    }

    fn destroy(&self, made: Made) {
        // SAFETY: the work that used them has been waited for, and each is destroyed once.
        unsafe {
            self.device.destroy_pipeline(made.pipeline, None);
            self.device.destroy_pipeline_layout(made.layout, None);
            self.device.destroy_descriptor_pool(made.pool, None);
            self.device.destroy_descriptor_set_layout(made.set_layout, None);
            self.device.destroy_shader_module(made.module, None);
        }
    }
}

struct Made {
    module: vk::ShaderModule,
    set_layout: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
    pool: vk::DescriptorPool,
    set: vk::DescriptorSet,
}

impl Drop for Runner {
    fn drop(&mut self) {
        // SAFETY: no work is in flight, since every submission is waited for, and each handle is destroyed once.
        unsafe {
            self.device.destroy_buffer(self.arena, None);
            self.device.free_memory(self.memory, None);
            self.device.destroy_fence(self.fence, None);
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}
