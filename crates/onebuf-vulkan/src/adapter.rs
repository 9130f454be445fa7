//! Physical devices: what the driver says of each, read once, and why one cannot be used.

use std::ffi::CStr;

use ash::{ext, khr, vk};
use onebuf_core::profile::{Heap, MemoryKind};
use onebuf_core::{
    Adapter, DeviceId, DeviceInfo, DeviceKind, DeviceProfile, DeviceUuid, Features, HandleKind, Limits,
    Result, UnifiedLevel,
};

use crate::BACKEND;
use crate::error::driver;

/// The usage of every buffer: all that compute and transfers need, and what lets a renderer draw from it. Usage flags
/// cost nothing for buffers on any driver known.
pub(crate) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw()
        | vk::BufferUsageFlags::VERTEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDEX_BUFFER.as_raw(),
);

/// What a driver says of a physical device.
#[derive(Clone)]
pub(crate) struct Physical {
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) info: DeviceInfo,
    pub(crate) rejected: Option<String>,
    pub(crate) driver_uuid: [u8; 16],
    pub(crate) pipeline_cache_uuid: [u8; 16],
    pub(crate) queue_family: u32,
    pub(crate) queue_count: u32,
    /// Significant bits of a timestamp; 0 without timestamps.
    pub(crate) timestamp_bits: u32,
    pub(crate) timestamp_period_ns: f32,
    pub(crate) has: Has,
    /// How buffers can be exported and imported, and imported alone.
    pub(crate) export: Vec<HandleKind>,
    pub(crate) import: Vec<HandleKind>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    /// The memory type behind each kind of the profile.
    pub(crate) types: Vec<u32>,
    /// Memory types that exportable buffers may lie in, a bit each.
    pub(crate) export_types: u32,
    /// Every device extension, for the report.
    pub(crate) extensions: Vec<String>,
}

/// Extensions and features that the backend makes use of where they are.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Has {
    pub(crate) memory_fd: bool,
    pub(crate) dma_buf: bool,
    /// Timeline semaphores are exported and imported as opaque descriptors.
    pub(crate) semaphore_fd: bool,
    pub(crate) host_import: bool,
    pub(crate) memory_budget: bool,
    pub(crate) atomic_float: bool,
    pub(crate) zero_workgroup: bool,
    /// The device keeps accesses to buffers within the bound range, to the word.
    pub(crate) robust_buffers: bool,
    /// That can be turned off for a pipeline.
    pub(crate) pipeline_robustness: bool,
    pub(crate) feedback: bool,
}

impl Physical {
    /// Whether a kind of memory is the device's own.
    pub(crate) fn is_device_local(&self, kind: usize) -> bool {
        let flags =
            self.types.get(kind).map(|&index| self.memory.memory_types[index as usize].property_flags);
        flags.is_some_and(|flags| flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL))
    }

    /// Reads all about a physical device.
    pub(crate) fn read(instance: &ash::Instance, raw: vk::PhysicalDevice, ordinal: u32) -> Result<Physical> {
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut host_memory = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut maintenance4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut robustness = vk::PhysicalDeviceRobustness2PropertiesEXT::default();
        let mut subgroup_control = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        // SAFETY: `raw` is a physical device of `instance`, here and below.
        let basic = unsafe { instance.get_physical_device_properties(raw) };
        let api = basic.api_version;
        let extensions = read_extensions(instance, raw)?;
        let has_extension = |name: &CStr| extensions.iter().any(|e| e.as_bytes() == name.to_bytes());
        let import_extension = has_extension(ext::external_memory_host::NAME);
        let at_least_12 = api >= vk::API_VERSION_1_2;
        let at_least_13 = api >= vk::API_VERSION_1_3;
        if at_least_12 {
            let mut properties =
                vk::PhysicalDeviceProperties2::default().push_next(&mut vulkan11).push_next(&mut vulkan12);
            if import_extension {
                properties = properties.push_next(&mut host_memory);
            }
            if at_least_13 {
                properties = properties.push_next(&mut maintenance4).push_next(&mut subgroup_control);
            }
            if has_extension(ext::robustness2::NAME) {
                properties = properties.push_next(&mut robustness);
            }
            // SAFETY: as above; each struct of the chain is known to the device's version or extensions.
            unsafe { instance.get_physical_device_properties2(raw, &mut properties) };
        }
        let supported = SupportedFeatures::read(instance, raw, api, has_extension);
        let external = ExternalBuffers::read(instance, raw, at_least_12);
        let opaque = has_extension(khr::external_memory_fd::NAME);
        let dma_buf = opaque && has_extension(ext::external_memory_dma_buf::NAME);
        let host_import = import_extension && external.host_import;
        let has = Has {
            memory_fd: opaque,
            dma_buf,
            semaphore_fd: at_least_12
                && has_extension(khr::external_semaphore_fd::NAME)
                && shares_timelines(instance, raw),
            host_import,
            memory_budget: has_extension(ext::memory_budget::NAME),
            atomic_float: supported.atomic_float,
            zero_workgroup: supported.zero_workgroup,
            robust_buffers: supported.robust_buffers
                && robustness.robust_storage_buffer_access_size_alignment <= 4,
            pipeline_robustness: supported.pipeline_robustness,
            feedback: at_least_13,
        };
        let pick = |opaque_fd: bool, dma: bool| -> Vec<HandleKind> {
            let kinds = [(HandleKind::OpaqueFd, opaque_fd && opaque), (HandleKind::DmaBuf, dma && dma_buf)];
            kinds.into_iter().filter(|(_, yes)| *yes).map(|(kind, _)| kind).collect()
        };
        let (queue_family, queue_count, timestamp_bits) = pick_queues(instance, raw).unwrap_or((0, 0, 0));
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(raw) };
        let kind = match basic.device_type {
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Software,
            _ => DeviceKind::Other,
        };
        let limits = limits(&basic.limits, &vulkan11, &maintenance4, &subgroup_control, at_least_13, {
            if host_import { host_memory.min_imported_host_pointer_alignment } else { 0 }
        });
        let version = |v: u32| {
            format!("{}.{}.{}", vk::api_version_major(v), vk::api_version_minor(v), vk::api_version_patch(v))
        };
        let name = text(basic.device_name_as_c_str());
        let driver_name = [text(vulkan12.driver_name_as_c_str()), text(vulkan12.driver_info_as_c_str())];
        let driver_text = driver_name.iter().filter(|t| !t.is_empty()).cloned().collect::<Vec<_>>().join(" ");
        let rejected = if !at_least_12 {
            Some(format!("it offers Vulkan {}, onebuf needs 1.2; install a newer driver", version(api)))
        } else if !supported.timeline {
            Some("it has no timeline semaphores (the feature timelineSemaphore of Vulkan 1.2)".to_owned())
        } else if queue_count == 0 {
            Some("it has no queue that computes".to_owned())
        } else {
            None
        };
        let mut physical = Physical {
            raw,
            info: DeviceInfo {
                id: DeviceId::new(BACKEND, ordinal),
                name,
                kind,
                uuid: (kind != DeviceKind::Software && at_least_12)
                    .then_some(DeviceUuid(vulkan11.device_uuid)),
                driver: if driver_text.is_empty() {
                    format!("version {}", basic.driver_version)
                } else {
                    driver_text
                },
                api: format!("Vulkan {}", version(api)),
                memory_bytes: 0,
                limits,
                features: supported.language,
            },
            rejected,
            driver_uuid: vulkan11.driver_uuid,
            pipeline_cache_uuid: basic.pipeline_cache_uuid,
            queue_family,
            queue_count,
            timestamp_bits,
            timestamp_period_ns: basic.limits.timestamp_period,
            has,
            export: pick(external.export_opaque, external.export_dma_buf),
            import: pick(external.import_opaque, external.import_dma_buf),
            types: usable_types(&memory),
            export_types: u32::MAX, // Only a logical device knows better.
            memory,
            extensions,
        };
        physical.info.memory_bytes = physical.profile(instance).memory_bytes();
        Ok(physical)
    }

    /// Takes the queue family that somebody else chose.
    #[cfg(feature = "wgpu")]
    pub(crate) fn use_family(&mut self, instance: &ash::Instance, family: u32) {
        // SAFETY: `raw` belongs to `instance`.
        let families = unsafe { instance.get_physical_device_queue_family_properties(self.raw) };
        self.queue_family = family;
        self.timestamp_bits = families.get(family as usize).map_or(0, |family| family.timestamp_valid_bits);
    }

    /// The device as a backend lists it.
    pub(crate) fn adapter(&self) -> Adapter {
        Adapter { info: self.info.clone(), rejected: self.rejected.clone() }
    }

    /// The device's memory as it stands now.
    pub(crate) fn profile(&self, instance: &ash::Instance) -> DeviceProfile {
        let budgets = self.budgets(instance);
        let heaps = self.memory.memory_heaps_as_slice();
        let heaps = heaps.iter().enumerate().map(|(i, heap)| Heap {
            size_bytes: heap.size,
            budget_bytes: budgets.as_ref().and_then(|budgets| budgets[i]),
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        });
        let kinds = self.types.iter().map(|&index| {
            let memory = self.memory.memory_types[index as usize];
            let has = |flag| memory.property_flags.contains(flag);
            MemoryKind {
                name: format!("type {index}"),
                heap: memory.heap_index as usize,
                device_local: has(vk::MemoryPropertyFlags::DEVICE_LOCAL),
                host_visible: has(vk::MemoryPropertyFlags::HOST_VISIBLE),
                host_coherent: has(vk::MemoryPropertyFlags::HOST_COHERENT),
                host_cached: has(vk::MemoryPropertyFlags::HOST_CACHED),
                migrating: false,
                export: if self.export_types & (1 << index) != 0 { self.export.clone() } else { Vec::new() },
            }
        });
        DeviceProfile {
            device: format!("{} ({})", self.info.id, self.info.name),
            kind: self.info.kind,
            unified: UnifiedLevel::None,
            heaps: heaps.collect(),
            memory: kinds.collect(),
            max_allocation_bytes: self.info.limits.max_allocation_bytes,
            max_buffer_bytes: self.info.limits.max_buffer_bytes,
        }
    }

    /// Bytes left in each heap for this process. A budget of 0 is a driver that does not say.
    fn budgets(&self, instance: &ash::Instance) -> Option<[Option<u64>; vk::MAX_MEMORY_HEAPS]> {
        if !self.has.memory_budget {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: `raw` belongs to `instance`, and the device has the extension of the chained struct.
        unsafe { instance.get_physical_device_memory_properties2(self.raw, &mut properties) };
        let mut left = [None; vk::MAX_MEMORY_HEAPS];
        for (left, (budget, usage)) in left.iter_mut().zip(budget.heap_budget.iter().zip(budget.heap_usage)) {
            *left = (*budget > 0).then(|| budget.saturating_sub(usage));
        }
        Some(left)
    }
}

fn text(text: Result<&CStr, std::ffi::FromBytesUntilNulError>) -> String {
    text.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read_extensions(instance: &ash::Instance, raw: vk::PhysicalDevice) -> Result<Vec<String>> {
    // SAFETY: `raw` belongs to `instance`.
    let extensions = unsafe { instance.enumerate_device_extension_properties(raw) }
        .map_err(driver("vkEnumerateDeviceExtensionProperties"))?;
    let mut names: Vec<String> = extensions.iter().map(|e| text(e.extension_name_as_c_str())).collect();
    names.sort();
    Ok(names)
}

/// Memory types that a buffer may lie in. Protected memory never is; lazily allocated memory is for attachments; the
/// uncached device-coherent types of AMD are for debugging and slow.
fn usable_types(memory: &vk::PhysicalDeviceMemoryProperties) -> Vec<u32> {
    let unusable = vk::MemoryPropertyFlags::PROTECTED
        | vk::MemoryPropertyFlags::LAZILY_ALLOCATED
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD;
    let types = memory.memory_types_as_slice().iter().enumerate();
    types.filter(|(_, t)| !t.property_flags.intersects(unusable)).map(|(i, _)| i as u32).collect()
}

/// The family whose queues compute, with its queue count and timestamp bits: one without graphics where there is one,
/// since it runs beside what a renderer does.
fn pick_queues(instance: &ash::Instance, raw: vk::PhysicalDevice) -> Option<(u32, u32, u32)> {
    // SAFETY: `raw` belongs to `instance`.
    let families = unsafe { instance.get_physical_device_queue_family_properties(raw) };
    let computes = |f: &&(usize, vk::QueueFamilyProperties)| {
        f.1.queue_flags.contains(vk::QueueFlags::COMPUTE) && f.1.queue_count > 0
    };
    let families: Vec<_> = families.into_iter().enumerate().collect();
    let alone = |f: &&(usize, vk::QueueFamilyProperties)| !f.1.queue_flags.contains(vk::QueueFlags::GRAPHICS);
    let best = families.iter().filter(computes).find(alone).or_else(|| families.iter().find(computes))?;
    Some((best.0 as u32, best.1.queue_count, best.1.timestamp_valid_bits))
}

fn limits(
    basic: &vk::PhysicalDeviceLimits,
    vulkan11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    maintenance4: &vk::PhysicalDeviceMaintenance4Properties<'_>,
    subgroup: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    at_least_13: bool,
    host_import_alignment_bytes: u64,
) -> Limits {
    let max_allocation_bytes = match vulkan11.max_memory_allocation_size {
        0 => u64::from(u32::MAX),
        bytes => bytes,
    };
    // 0 is a driver that does not say.
    let max_buffer_bytes = match maintenance4.max_buffer_size {
        bytes if at_least_13 && bytes > 0 => bytes,
        _ => max_allocation_bytes,
    };
    let [min, max] = if at_least_13 && subgroup.min_subgroup_size > 0 {
        [subgroup.min_subgroup_size, subgroup.max_subgroup_size]
    } else {
        [vulkan11.subgroup_size; 2]
    };
    Limits {
        max_buffer_bytes,
        max_allocation_bytes,
        max_storage_binding_bytes: u64::from(basic.max_storage_buffer_range),
        max_uniform_binding_bytes: u64::from(basic.max_uniform_buffer_range),
        storage_offset_alignment_bytes: basic.min_storage_buffer_offset_alignment,
        uniform_offset_alignment_bytes: basic.min_uniform_buffer_offset_alignment,
        non_coherent_atom_bytes: basic.non_coherent_atom_size,
        host_import_alignment_bytes,
        max_groups: basic.max_compute_work_group_count,
        max_workgroup_size: basic.max_compute_work_group_size,
        max_workgroup_invocations: basic.max_compute_work_group_invocations,
        max_workgroup_bytes: u64::from(basic.max_compute_shared_memory_size),
        max_immediate_bytes: basic.max_push_constants_size,
        max_bind_groups: basic.max_bound_descriptor_sets,
        max_storage_bindings: basic.max_per_stage_descriptor_storage_buffers,
        max_uniform_bindings: basic.max_per_stage_descriptor_uniform_buffers,
        subgroup_size: [min, max],
    }
}

/// What the device has of the features that the backend turns on.
pub(crate) struct SupportedFeatures {
    pub(crate) language: Features,
    pub(crate) timeline: bool,
    pub(crate) atomic_float: bool,
    pub(crate) zero_workgroup: bool,
    pub(crate) robust_buffers: bool,
    pub(crate) pipeline_robustness: bool,
}

impl SupportedFeatures {
    fn read(
        instance: &ash::Instance,
        raw: vk::PhysicalDevice,
        api: u32,
        has_extension: impl Fn(&CStr) -> bool,
    ) -> SupportedFeatures {
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut vulkan13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut float = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
        let mut per_pipeline = vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default();
        let mut features = vk::PhysicalDeviceFeatures2::default();
        if api >= vk::API_VERSION_1_2 {
            features = features.push_next(&mut vulkan11).push_next(&mut vulkan12);
            if api >= vk::API_VERSION_1_3 {
                features = features.push_next(&mut vulkan13);
            }
            if has_extension(ext::shader_atomic_float::NAME) {
                features = features.push_next(&mut float);
            }
            if has_extension(ext::robustness2::NAME) {
                features = features.push_next(&mut robustness);
            }
            if has_extension(ext::pipeline_robustness::NAME) {
                features = features.push_next(&mut per_pipeline);
            }
            // SAFETY: `raw` belongs to `instance`; each struct of the chain is known to its version or extensions.
            unsafe { instance.get_physical_device_features2(raw, &mut features) };
        }
        let basic = features.features;
        let subgroups = Self::has_subgroups(instance, raw, api);
        let yes = |flag: vk::Bool32| flag == vk::TRUE;
        let stores_16_bits = yes(vulkan11.storage_buffer16_bit_access)
            && yes(vulkan11.uniform_and_storage_buffer16_bit_access);
        SupportedFeatures {
            language: Features {
                f16: yes(vulkan12.shader_float16) && stores_16_bits,
                f64: yes(basic.shader_float64),
                i16: yes(basic.shader_int16) && stores_16_bits,
                i64: yes(basic.shader_int64),
                i64_atomics: yes(basic.shader_int64) && yes(vulkan12.shader_buffer_int64_atomics),
                f32_atomics: yes(float.shader_buffer_float32_atomic_add),
                subgroups,
            },
            timeline: yes(vulkan12.timeline_semaphore),
            atomic_float: yes(float.shader_buffer_float32_atomic_add),
            zero_workgroup: yes(vulkan13.shader_zero_initialize_workgroup_memory),
            robust_buffers: yes(basic.robust_buffer_access) && yes(robustness.robust_buffer_access2),
            pipeline_robustness: yes(per_pipeline.pipeline_robustness),
        }
    }

    /// WGSL's subgroup operations need all of these.
    fn has_subgroups(instance: &ash::Instance, raw: vk::PhysicalDevice, api: u32) -> bool {
        if api < vk::API_VERSION_1_2 {
            return false;
        }
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
        // SAFETY: `raw` belongs to `instance`, and subgroup properties are part of Vulkan 1.1.
        unsafe { instance.get_physical_device_properties2(raw, &mut properties) };
        let needed = vk::SubgroupFeatureFlags::BASIC
            | vk::SubgroupFeatureFlags::VOTE
            | vk::SubgroupFeatureFlags::ARITHMETIC
            | vk::SubgroupFeatureFlags::BALLOT
            | vk::SubgroupFeatureFlags::SHUFFLE
            | vk::SubgroupFeatureFlags::SHUFFLE_RELATIVE;
        subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
            && subgroup.supported_operations.contains(needed)
    }

    /// The features to turn on: what is there, and no more.
    pub(crate) fn with_enabled<R>(
        physical: &Physical,
        f: impl FnOnce(&mut vk::PhysicalDeviceFeatures2<'_>) -> R,
    ) -> R {
        let language = physical.info.features;
        let stores_16_bits = language.f16 || language.i16;
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Features::default()
            .storage_buffer16_bit_access(stores_16_bits)
            .uniform_and_storage_buffer16_bit_access(stores_16_bits);
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .shader_float16(language.f16)
            .shader_buffer_int64_atomics(language.i64_atomics)
            .shader_subgroup_extended_types(language.subgroups && language.f16);
        let mut vulkan13 = vk::PhysicalDeviceVulkan13Features::default()
            .shader_zero_initialize_workgroup_memory(physical.has.zero_workgroup);
        let mut float =
            vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default().shader_buffer_float32_atomic_add(true);
        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default().robust_buffer_access2(true);
        let mut per_pipeline =
            vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
        let basic = vk::PhysicalDeviceFeatures::default()
            .robust_buffer_access(physical.has.robust_buffers)
            .shader_float64(language.f64)
            .shader_int16(language.i16)
            .shader_int64(language.i64);
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .features(basic)
            .push_next(&mut vulkan11)
            .push_next(&mut vulkan12);
        if physical.has.zero_workgroup {
            features = features.push_next(&mut vulkan13);
        }
        if physical.has.atomic_float {
            features = features.push_next(&mut float);
        }
        if physical.has.robust_buffers {
            features = features.push_next(&mut robustness);
        }
        if physical.has.pipeline_robustness {
            features = features.push_next(&mut per_pipeline);
        }
        f(&mut features)
    }
}

/// Whether timeline semaphores leave the driver and come in as opaque descriptors: SwiftShader lists the extension, and has
/// binary ones alone.
fn shares_timelines(instance: &ash::Instance, raw: vk::PhysicalDevice) -> bool {
    let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::PhysicalDeviceExternalSemaphoreInfo::default()
        .handle_type(vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD)
        .push_next(&mut kind);
    let mut properties = vk::ExternalSemaphoreProperties::default();
    // SAFETY: `raw` belongs to `instance`; the query is part of Vulkan 1.1, the semaphore's kind of 1.2.
    unsafe { instance.get_physical_device_external_semaphore_properties(raw, &info, &mut properties) };
    let both = vk::ExternalSemaphoreFeatureFlags::EXPORTABLE | vk::ExternalSemaphoreFeatureFlags::IMPORTABLE;
    properties.external_semaphore_features.contains(both)
}

/// What the driver says of buffers in external memory. That an extension is listed says nothing yet: SwiftShader lists
/// the import of host memory, and its buffer properties deny it.
struct ExternalBuffers {
    export_opaque: bool,
    import_opaque: bool,
    export_dma_buf: bool,
    import_dma_buf: bool,
    host_import: bool,
}

impl ExternalBuffers {
    fn read(instance: &ash::Instance, raw: vk::PhysicalDevice, at_least_12: bool) -> ExternalBuffers {
        let features = |handle: vk::ExternalMemoryHandleTypeFlags| {
            if !at_least_12 {
                return vk::ExternalMemoryFeatureFlags::empty();
            }
            let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(handle);
            let mut properties = vk::ExternalBufferProperties::default();
            // SAFETY: `raw` belongs to `instance`; the query is part of Vulkan 1.1 and takes any handle type.
            unsafe { instance.get_physical_device_external_buffer_properties(raw, &info, &mut properties) };
            properties.external_memory_properties.external_memory_features
        };
        let opaque = features(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        let dma_buf = features(vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT);
        let host = features(vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT);
        ExternalBuffers {
            export_opaque: opaque.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE),
            import_opaque: opaque.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE),
            export_dma_buf: dma_buf.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE),
            import_dma_buf: dma_buf.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE),
            host_import: host.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE),
        }
    }
}
