//! Compiled kernels: modules, layouts, pipelines, and the descriptor sets of recent argument lists.

use std::any::Any;
use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use ash::vk;
use onebuf_core::backend::{Bounds, Kernel, KernelRequest, KernelSource, Part};
use onebuf_core::{BindingKind, Error, KernelInterface, Result, args};
use onebuf_wgsl::{Module, Specialized, SpirvOptions};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::memory::VulkanMemory;
use crate::shared::Shared;

/// The stage that every descriptor and push constant is for.
pub(crate) const STAGE: vk::ShaderStageFlags = vk::ShaderStageFlags::COMPUTE;

/// Bytes that the grid of a split launch adds to the immediates: two `vec3<u32>`, each aligned to 16.
pub(crate) const GRID_BYTES: u32 = 28;

/// The longest name of an entry point that the validation layer takes.
const MAX_ENTRY_NAME_BYTES: usize = 255;

/// A kernel of this backend.
pub(crate) struct VulkanKernel {
    pub(crate) code: Arc<KernelCode>,
}

/// What queued work needs of a kernel.
pub(crate) struct KernelCode {
    pub(crate) interface: KernelInterface,
    pub(crate) layout: vk::PipelineLayout,
    set_layouts: Vec<vk::DescriptorSetLayout>,
    pub(crate) pipeline: Pipeline,
    /// The variant for grids larger than one dispatch, made when one comes.
    wide: OnceLock<Pipeline>,
    /// Held while the variant is made. What fails is tried again at the next launch.
    widening: Mutex<()>,
    source: Source,
    sets: Mutex<SetCache>,
    shared: Arc<Shared>,
}

/// A pipeline, with where the grid of a split launch lies in the push constants.
pub(crate) struct Pipeline {
    pub(crate) raw: vk::Pipeline,
    pub(crate) grid_offset_bytes: Option<u32>,
    cached: Option<bool>,
}

/// What the wide variant is made from.
enum Source {
    Wgsl { kernel: Box<Specialized>, bounds: Bounds },
    SpirV,
}

impl VulkanKernel {
    /// Compiles the first source that Vulkan takes.
    pub(crate) fn compile(shared: &Arc<Shared>, request: &KernelRequest<'_>) -> Result<VulkanKernel> {
        shared.check_alive()?;
        let understood =
            |source: &&KernelSource<'_>| matches!(source, KernelSource::Wgsl(_) | KernelSource::SpirV(..));
        let Some(source) = request.sources.iter().find(understood) else {
            return Err(request.no_source_for("Vulkan", "WGSL and SPIR-V"));
        };
        let limits = &shared.physical.info.limits;
        let features = shared.physical.info.features;
        let (interface, words, entry, source) = match *source {
            KernelSource::Wgsl(text) => {
                let kernel = Module::parse(text)
                    .and_then(|module| module.specialize(request.entry, request.overrides))
                    .map_err(invalid)?;
                args::check_interface(kernel.interface(), limits, features)?;
                let spirv = kernel.to_spirv(&options(shared, request.bounds, false)).map_err(invalid)?;
                let interface = kernel.interface().clone();
                let source = Source::Wgsl { kernel: Box::new(kernel), bounds: request.bounds };
                (interface, spirv.words, spirv.entry, source)
            }
            KernelSource::SpirV(words, interface) => {
                args::check_interface(interface, limits, features)?;
                (interface.clone(), words.to_vec(), interface.entry.clone(), Source::SpirV)
            }
            KernelSource::CudaC(..) | KernelSource::Ptx(..) => {
                return Err(request.no_source_for("Vulkan", "WGSL and SPIR-V"));
            }
        };
        let mut parts = Parts { shared, set_layouts: Vec::new(), layout: vk::PipelineLayout::null() };
        parts.create_layouts(&interface)?;
        let pipeline = create_pipeline(shared, parts.layout, &words, &entry, request.bounds, None)?;
        let (set_layouts, layout) = parts.take();
        let sets = Mutex::new(SetCache::default());
        let shared = shared.clone();
        let code = KernelCode {
            interface,
            layout,
            set_layouts,
            pipeline,
            wide: OnceLock::new(),
            widening: Mutex::default(),
            source,
            sets,
            shared,
        };
        Ok(VulkanKernel { code: Arc::new(code) })
    }
}

impl Kernel for VulkanKernel {
    fn interface(&self) -> &KernelInterface {
        &self.code.interface
    }

    fn was_cached(&self) -> Option<bool> {
        self.code.pipeline.cached
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl KernelCode {
    /// The pipeline for a grid that one dispatch cannot cover.
    pub(crate) fn wide(&self) -> Result<&Pipeline> {
        if let Some(wide) = self.wide.get() {
            return Ok(wide);
        }
        let _one_at_a_time = self.widening.lock();
        if let Some(wide) = self.wide.get() {
            return Ok(wide);
        }
        let wide = self.create_wide()?;
        Ok(self.wide.get_or_init(|| wide))
    }

    fn create_wide(&self) -> Result<Pipeline> {
        let Source::Wgsl { kernel, bounds } = &self.source else {
            return Err(Error::unsupported(
                format!("a grid past the device's limit for kernel `{}`", self.interface.entry),
                "kernels given as SPIR-V are not split; launch parts of the grid",
            ));
        };
        let limits = &self.shared.physical.info.limits;
        let spirv = kernel.to_spirv(&options(&self.shared, *bounds, true)).map_err(invalid)?;
        let end = spirv.grid_offset_bytes.map_or(0, |offset| offset + GRID_BYTES);
        Error::check_limit(
            &format!(
                "kernel `{}`: bytes of immediate data with the grid of a split launch",
                self.interface.entry
            ),
            u64::from(end),
            u64::from(limits.max_immediate_bytes),
        )?;
        create_pipeline(
            &self.shared,
            self.layout,
            &spirv.words,
            &spirv.entry,
            *bounds,
            spirv.grid_offset_bytes,
        )
    }

    /// Descriptor sets for these arguments: those of an earlier launch where there was one.
    pub(crate) fn bind(&self, parts: &[Part<'_>]) -> Result<Arc<BoundSets>> {
        let mut key = SetKey::new();
        for part in parts {
            key.push((memory(part)?.id, part.offset_bytes, part.size_bytes));
        }
        let mut cache = self.sets.lock();
        if let Some(sets) = cache.find(&key) {
            return Ok(sets);
        }
        let raw = match cache.spare() {
            Some(raw) => raw,
            None => cache.allocate(&self.shared, &self.set_layouts, &self.interface)?,
        };
        self.write(&raw, parts)?;
        Ok(cache.insert(key, BoundSets { raw }))
    }

    /// Points descriptor sets that no queued work uses at these arguments.
    fn write(&self, sets: &Sets, parts: &[Part<'_>]) -> Result<()> {
        let mut infos: SmallVec<[vk::DescriptorBufferInfo; 8]> = SmallVec::new();
        for part in parts {
            let buffer = memory(part)?.buffer;
            infos.push(vk::DescriptorBufferInfo {
                buffer,
                offset: part.offset_bytes,
                range: part.size_bytes,
            });
        }
        let writes: SmallVec<[vk::WriteDescriptorSet<'_>; 8]> = self
            .interface
            .bindings
            .iter()
            .zip(&infos)
            .map(|(binding, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(sets[binding.slot.group as usize])
                    .dst_binding(binding.slot.binding)
                    .descriptor_type(descriptor_type(binding.kind))
                    .buffer_info(std::slice::from_ref(info))
            })
            .collect();
        // SAFETY: the sets are of this kernel's layouts and no queued work uses them; the buffers are live.
        unsafe { self.shared.raw.update_descriptor_sets(&writes, &[]) };
        Ok(())
    }
}

impl Drop for KernelCode {
    fn drop(&mut self) {
        let device = &self.shared.raw;
        // SAFETY: queued work keeps the code it uses alive, so none uses any of this; sets go with their pools.
        unsafe {
            for pool in &self.sets.get_mut().pools {
                device.destroy_descriptor_pool(*pool, None);
            }
            if let Some(wide) = self.wide.get() {
                device.destroy_pipeline(wide.raw, None);
            }
            device.destroy_pipeline(self.pipeline.raw, None);
            device.destroy_pipeline_layout(self.layout, None);
            for layout in &self.set_layouts {
                device.destroy_descriptor_set_layout(*layout, None);
            }
        }
    }
}

/// The backend's memory behind a part.
pub(crate) fn memory<'a>(part: &Part<'a>) -> Result<&'a VulkanMemory> {
    let memory = part.memory.as_any().downcast_ref();
    memory.ok_or_else(|| Error::InvalidArgument("the buffer is not memory of the Vulkan backend".into()))
}

/// The backend's kernel behind a launch.
pub(crate) fn code(kernel: &Arc<dyn Kernel>) -> Result<&Arc<KernelCode>> {
    let kernel: Option<&VulkanKernel> = kernel.as_any().downcast_ref();
    kernel
        .map(|kernel| &kernel.code)
        .ok_or_else(|| Error::InvalidArgument("the kernel was not compiled by the Vulkan backend".into()))
}

fn options(shared: &Shared, bounds: Bounds, wide_grid: bool) -> SpirvOptions {
    let bounds = match bounds {
        Bounds::Checked => onebuf_wgsl::Bounds::Checked,
        Bounds::Unchecked => onebuf_wgsl::Bounds::Unchecked,
    };
    let has = shared.physical.has;
    SpirvOptions {
        bounds,
        wide_grid,
        device_zeroes: has.zero_workgroup,
        device_checks_buffers: has.robust_buffers,
        ..SpirvOptions::default()
    }
}

fn invalid(error: onebuf_wgsl::Error) -> Error {
    Error::InvalidKernel { line: error.location().map(|l| l.line), message: error.to_string() }
}

fn descriptor_type(kind: BindingKind) -> vk::DescriptorType {
    match kind {
        BindingKind::Storage => vk::DescriptorType::STORAGE_BUFFER,
        BindingKind::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
    }
}

/// Layouts on their way into a kernel; they are destroyed if it does not come about.
struct Parts<'a> {
    shared: &'a Shared,
    set_layouts: Vec<vk::DescriptorSetLayout>,
    layout: vk::PipelineLayout,
}

impl Parts<'_> {
    fn create_layouts(&mut self, interface: &KernelInterface) -> Result<()> {
        let device = &self.shared.raw;
        let groups = interface.bindings.iter().map(|b| b.slot.group + 1).max().unwrap_or(0);
        for group in 0..groups {
            let bindings: Vec<_> = interface
                .bindings
                .iter()
                .filter(|b| b.slot.group == group)
                .map(|b| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(b.slot.binding)
                        .descriptor_type(descriptor_type(b.kind))
                        .descriptor_count(1)
                        .stage_flags(STAGE)
                })
                .collect();
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            // SAFETY: the counts are within the device's limits, which were checked.
            let layout = unsafe { device.create_descriptor_set_layout(&info, None) }
                .map_err(self.shared.fail("vkCreateDescriptorSetLayout"))?;
            self.set_layouts.push(layout);
        }
        // One range for both variants of the kernel, as far as the device goes; a wide one that needs more is refused.
        let most = self.shared.physical.info.limits.max_immediate_bytes;
        let size =
            (interface.immediate_bytes.next_multiple_of(16) + GRID_BYTES.next_multiple_of(16)).min(most) / 4
                * 4;
        let ranges = [vk::PushConstantRange { stage_flags: STAGE, offset: 0, size }];
        let info = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(&self.set_layouts)
            .push_constant_ranges(if size > 0 { &ranges } else { &[] });
        // SAFETY: the set layouts are live.
        self.layout = unsafe { device.create_pipeline_layout(&info, None) }
            .map_err(self.shared.fail("vkCreatePipelineLayout"))?;
        Ok(())
    }

    fn take(mut self) -> (Vec<vk::DescriptorSetLayout>, vk::PipelineLayout) {
        let layout = std::mem::replace(&mut self.layout, vk::PipelineLayout::null());
        (std::mem::take(&mut self.set_layouts), layout)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        // SAFETY: what is left here no kernel took over. Null handles are ignored.
        unsafe {
            self.shared.raw.destroy_pipeline_layout(self.layout, None);
            for layout in &self.set_layouts {
                self.shared.raw.destroy_descriptor_set_layout(*layout, None);
            }
        }
    }
}

fn create_pipeline(
    shared: &Shared,
    layout: vk::PipelineLayout,
    words: &[u32],
    entry: &str,
    bounds: Bounds,
    grid_offset_bytes: Option<u32>,
) -> Result<Pipeline> {
    let device = &shared.raw;
    let bad_name = |message: String| Error::InvalidKernel { message, line: None };
    if entry.len() > MAX_ENTRY_NAME_BYTES {
        let bytes = entry.len();
        return Err(bad_name(format!(
            "the entry point's name has {bytes} bytes; at most {MAX_ENTRY_NAME_BYTES} are supported"
        )));
    }
    let entry_name =
        CString::new(entry).map_err(|_| bad_name("the entry point's name has a NUL".to_owned()))?;
    let key = shared.cache.key(words, entry, bounds == Bounds::Unchecked);
    let earlier = shared.cache.load(&key);
    let info = vk::PipelineCacheCreateInfo::default().initial_data(earlier.as_deref().unwrap_or_default());
    // SAFETY: the data is what this driver gave for this key, whole, by its checksum.
    let cache =
        unsafe { device.create_pipeline_cache(&info, None) }.map_err(shared.fail("vkCreatePipelineCache"))?;
    let info = vk::ShaderModuleCreateInfo::default().code(words);
    // SAFETY: the words are valid SPIR-V: naga made them, or the caller of an unsafe function vouched for them.
    let module = unsafe { device.create_shader_module(&info, None) };
    let result = module.map_err(shared.fail("vkCreateShaderModule")).and_then(|module| {
        let stage =
            vk::PipelineShaderStageCreateInfo::default().stage(STAGE).module(module).name(&entry_name);
        let mut feedback = vk::PipelineCreationFeedback::default();
        let mut stage_feedback = [vk::PipelineCreationFeedback::default()];
        let mut feedback_info = vk::PipelineCreationFeedbackCreateInfo::default()
            .pipeline_creation_feedback(&mut feedback)
            .pipeline_stage_creation_feedbacks(&mut stage_feedback);
        let mut info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
        let off = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
        let mut unchecked =
            vk::PipelineRobustnessCreateInfoEXT::default().storage_buffers(off).uniform_buffers(off);
        if bounds == Bounds::Unchecked && shared.physical.has.pipeline_robustness {
            info = info.push_next(&mut unchecked);
        }
        if shared.physical.has.feedback {
            info = info.push_next(&mut feedback_info);
        }
        // SAFETY: everything the infos point to is live; the module matches the layout, which came from its reflection.
        let pipelines = unsafe { device.create_compute_pipelines(cache, &[info], None) };
        // SAFETY: pipelines do not need their modules once they are made.
        unsafe { device.destroy_shader_module(module, None) };
        let raw = pipelines.map_err(|(_, code)| shared.fail("vkCreateComputePipelines")(code))?;
        let raw = raw.first().copied().filter(|raw| *raw != vk::Pipeline::null());
        let raw =
            raw.ok_or(Error::Driver { call: "vkCreateComputePipelines", code: "no pipeline".into() })?;
        let valid = feedback.flags.contains(vk::PipelineCreationFeedbackFlags::VALID);
        let hit = feedback.flags.contains(vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT);
        Ok(Pipeline { raw, grid_offset_bytes, cached: valid.then_some(hit) })
    });
    if result.is_ok() && earlier.is_none() {
        // SAFETY: the cache is live.
        if let Ok(data) = unsafe { device.get_pipeline_cache_data(cache) } {
            shared.cache.store(&key, &data);
        }
    }
    // SAFETY: no pipeline needs the cache it was made with.
    unsafe { device.destroy_pipeline_cache(cache, None) };
    result
}

/// One set a bind group.
pub(crate) type Sets = SmallVec<[vk::DescriptorSet; 2]>;

/// Memory, offset and size of each binding.
type SetKey = SmallVec<[(u64, u64, u64); 4]>;

/// Descriptor sets that point at one argument list. Queued work holds them; while it does they are not written.
pub(crate) struct BoundSets {
    pub(crate) raw: Sets,
}

/// Sets of recent argument lists. Memory is known by an identity that never returns, so a set that points at memory that
/// is gone is never found again, and falls out in time.
#[derive(Default)]
struct SetCache {
    known: FxHashMap<SetKey, Arc<BoundSets>>,
    /// In order of their making.
    order: std::collections::VecDeque<SetKey>,
    pools: Vec<vk::DescriptorPool>,
    /// Sets of the newest pool that are not given out yet.
    fresh: Vec<Sets>,
}

/// Argument lists that a kernel remembers, and the sets of one pool.
const REMEMBERED: usize = 128;
const SETS_A_POOL: u32 = 32;

impl SetCache {
    fn find(&self, key: &SetKey) -> Option<Arc<BoundSets>> {
        self.known.get(key).cloned()
    }

    /// Sets that can be written: fresh ones, or those of an old argument list that no queued work uses.
    fn spare(&mut self) -> Option<Sets> {
        if let Some(sets) = self.fresh.pop() {
            return Some(sets);
        }
        if self.order.len() < REMEMBERED {
            return None;
        }
        // The oldest are the likeliest to be idle; a few tries keep the cost flat.
        for _ in 0..4 {
            let key = self.order.pop_front()?;
            match self.known.remove(&key).map(Arc::try_unwrap) {
                Some(Ok(idle)) => return Some(idle.raw),
                Some(Err(busy)) => {
                    self.known.insert(key.clone(), busy);
                    self.order.push_back(key);
                }
                None => {}
            }
        }
        None
    }

    fn insert(&mut self, key: SetKey, sets: BoundSets) -> Arc<BoundSets> {
        let sets = Arc::new(sets);
        self.known.insert(key.clone(), sets.clone());
        self.order.push_back(key);
        sets
    }

    fn allocate(
        &mut self,
        shared: &Shared,
        layouts: &[vk::DescriptorSetLayout],
        interface: &KernelInterface,
    ) -> Result<Sets> {
        if layouts.is_empty() {
            return Ok(Sets::new());
        }
        let count = |kind| interface.bindings.iter().filter(|b| b.kind == kind).count() as u32 * SETS_A_POOL;
        let sizes: SmallVec<[vk::DescriptorPoolSize; 2]> = [BindingKind::Storage, BindingKind::Uniform]
            .into_iter()
            .map(|kind| vk::DescriptorPoolSize { ty: descriptor_type(kind), descriptor_count: count(kind) })
            .filter(|size| size.descriptor_count > 0)
            .collect();
        let info = vk::DescriptorPoolCreateInfo::default()
            .max_sets(SETS_A_POOL * layouts.len() as u32)
            .pool_sizes(&sizes);
        // SAFETY: plain creation; the pool is destroyed with the kernel.
        let pool = unsafe { shared.raw.create_descriptor_pool(&info, None) }
            .map_err(shared.fail("vkCreateDescriptorPool"))?;
        self.pools.push(pool);
        for _ in 0..SETS_A_POOL {
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(layouts);
            // SAFETY: pool and layouts are live, and the pool was made for this many sets.
            let sets = unsafe { shared.raw.allocate_descriptor_sets(&info) }
                .map_err(shared.fail("vkAllocateDescriptorSets"))?;
            self.fresh.push(sets.into());
        }
        self.fresh.pop().ok_or(Error::Driver { call: "vkAllocateDescriptorSets", code: "no set".into() })
    }
}
