//! SPIR-V out, by naga, with onebuf's options.

mod wide_grid;
mod widen;
mod words;

use naga::{
    AddressSpace, Handle, ResourceBinding, ShaderStage, Type, TypeInner,
    back::spv::{self, Capability, PipelineOptions, WriterFlags, ZeroInitializeWorkgroupMemoryMode},
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
};
use onebuf_core::kernel::{Features, Slot};

use crate::{Error, Specialized, stack};

/// What an access outside of an array or a buffer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bounds {
    /// Buffers read zero and drop writes; the indices of other arrays, vectors and matrices are clamped. In SPIR-V, a
    /// kernel with atomics in buffers has its buffer indices clamped as well.
    #[default]
    Checked,
    /// It is undefined behaviour. The caller vouches for every index.
    Unchecked,
}

/// How SPIR-V is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpirvOptions {
    /// What an access out of range does.
    pub bounds: Bounds,
    /// Write the variant for grids of more workgroups than one dispatch may have: see [`Spirv::grid_offset_bytes`].
    pub wide_grid: bool,
    /// Version of SPIR-V, as (1, 3). Subgroup operations need 1.3, which Vulkan 1.1 has.
    pub version: (u8, u8),
    /// Keep the names of the source in the module, for debuggers and captures.
    pub debug_names: bool,
    /// The device zeroes workgroup memory itself (Vulkan's `shaderZeroInitializeWorkgroupMemory`). Without it the kernel
    /// begins with stores of whole variables, which drivers take apart word by word: lavapipe of Mesa 25.0 compiles an
    /// array of 1024 words for 98 s that way, and for 0.2 s with the device's own zeroing.
    pub device_zeroes: bool,
    /// With [`Bounds::Checked`]: the device itself keeps accesses to buffers within the bound range (Vulkan's
    /// `robustBufferAccess2`), so that the kernel checks only arrays of its own. Two to four times faster on software
    /// drivers, where a check is a branch of every invocation.
    pub device_checks_buffers: bool,
}

impl Default for SpirvOptions {
    fn default() -> Self {
        SpirvOptions {
            bounds: Bounds::Checked,
            wide_grid: false,
            version: (1, 3),
            debug_names: false,
            device_zeroes: false,
            device_checks_buffers: false,
        }
    }
}

/// A SPIR-V module with one entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spirv {
    /// The module.
    pub words: Vec<u32>,
    /// Name of its entry point.
    pub entry: String,
    /// For the variant with [`SpirvOptions::wide_grid`]: the offset in the push constants at which the host writes
    /// `{ base: vec3<u32> @ +0, groups: vec3<u32> @ +16 }`, 28 bytes in all. `base` is the first workgroup of this
    /// dispatch in the whole grid, and `groups` the size of the whole grid, both in workgroups. `workgroup_id`,
    /// `global_invocation_id` and `num_workgroups` are then those of the whole grid.
    pub grid_offset_bytes: Option<u32>,
}

impl Spirv {
    /// The capabilities that the module declares, as SPIR-V numbers them.
    pub fn capabilities(&self) -> Vec<u32> {
        words::instructions(&self.words)
            .filter(|instruction| instruction.opcode == words::OP_CAPABILITY)
            .filter_map(|instruction| instruction.operands.first().copied())
            .collect()
    }
}

impl Specialized {
    /// Writes the entry point as SPIR-V.
    ///
    /// Workgroup memory is zeroed on entry, integer division and shifts are guarded as WGSL demands, and no bound is put
    /// on loops: naga's counter would tell the driver that endless loops end, which no safety here rests on, and it
    /// costs registers and unrolling in every loop.
    ///
    /// # Errors
    /// [`Error::Write`] where the version of SPIR-V lacks something that the kernel uses.
    pub fn to_spirv(&self, options: &SpirvOptions) -> Result<Spirv, Error> {
        let entry = self.interface.entry.clone();
        let failed = |reason: String| Error::Write { entry: entry.clone(), target: "SPIR-V", reason };
        if self.interface.features.subgroups && options.version < (1, 3) {
            return Err(failed("subgroup operations need SPIR-V 1.3".to_owned()));
        }
        let words = stack::run(|| {
            let pipeline = PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.clone() };
            spv::write_vec(&self.ir, &self.info, &self.naga_options(options), Some(&pipeline))
                .map_err(|error| failed(error.to_string()))
        })?;
        let words = widen::rewrite(words);
        let (words, grid_offset_bytes) = if options.wide_grid {
            let (words, offset) =
                wide_grid::rewrite(&words, self.interface.workgroup_size, self.interface.immediate_bytes)
                    .map_err(failed)?;
            (words, Some(offset))
        } else {
            (words, None)
        };
        Ok(Spirv { words, entry: entry.clone(), grid_offset_bytes })
    }
}

impl Specialized {
    fn naga_options(&self, options: &SpirvOptions) -> spv::Options<'static> {
        let mut flags = WriterFlags::empty();
        flags.set(WriterFlags::DEBUG, options.debug_names);
        let (index, buffer) = match options.bounds {
            Bounds::Checked if options.device_checks_buffers => {
                (BoundsCheckPolicy::Restrict, BoundsCheckPolicy::Unchecked)
            }
            // naga 30 cannot skip an atomic operation, so where there are any it must clamp.
            Bounds::Checked if has_buffer_atomics(&self.ir) => {
                (BoundsCheckPolicy::Restrict, BoundsCheckPolicy::Restrict)
            }
            Bounds::Checked => (BoundsCheckPolicy::Restrict, BoundsCheckPolicy::ReadZeroSkipWrite),
            Bounds::Unchecked => (BoundsCheckPolicy::Unchecked, BoundsCheckPolicy::Unchecked),
        };
        // A descriptor stands where WGSL says: descriptor set `group`, binding `binding`.
        let bindings = self.interface.bindings.iter().map(|binding| {
            let Slot { group, binding } = binding.slot;
            let target = spv::BindingInfo { descriptor_set: group, binding, binding_array_size: None };
            (ResourceBinding { group, binding }, target)
        });
        let binding_map = bindings.collect();
        spv::Options {
            lang_version: options.version,
            flags,
            fake_missing_bindings: false,
            binding_map,
            capabilities: Some(allowed_capabilities(self.interface.features)),
            bounds_check_policies: BoundsCheckPolicies {
                index,
                buffer,
                image_load: BoundsCheckPolicy::ReadZeroSkipWrite,
                binding_array: BoundsCheckPolicy::Restrict,
            },
            zero_initialize_workgroup_memory: if options.device_zeroes {
                ZeroInitializeWorkgroupMemoryMode::Native
            } else {
                ZeroInitializeWorkgroupMemoryMode::Polyfill
            },
            force_loop_bounding: false,
            use_storage_input_output_16: false,
            debug_info: None,
            emit_int_div_checks: true,
            ..spv::Options::default()
        }
    }
}

/// What the module may ask of a device: what [`Features`] says it uses, and nothing that has a plain substitute.
/// `DotProduct` and `Int8` are left out for that reason: naga then writes packed dot products in 32-bit integers.
fn allowed_capabilities(features: Features) -> naga::FastHashSet<Capability> {
    let mut allowed = naga::FastHashSet::default();
    allowed.insert(Capability::Shader);
    let mut allow = |on: bool, capabilities: &[Capability]| {
        if on {
            allowed.extend(capabilities.iter().copied());
        }
    };
    allow(features.f16, &[Capability::Float16]);
    allow(features.f64, &[Capability::Float64]);
    allow(features.i16, &[Capability::Int16]);
    allow(features.i64, &[Capability::Int64]);
    allow(features.i64_atomics, &[Capability::Int64Atomics]);
    allow(features.f32_atomics, &[Capability::AtomicFloat32AddEXT]);
    allow(
        features.subgroups,
        &[
            Capability::GroupNonUniform,
            Capability::GroupNonUniformVote,
            Capability::GroupNonUniformArithmetic,
            Capability::GroupNonUniformBallot,
            Capability::GroupNonUniformShuffle,
            Capability::GroupNonUniformShuffleRelative,
            Capability::GroupNonUniformQuad,
        ],
    );
    allowed
}

fn has_buffer_atomics(ir: &naga::Module) -> bool {
    fn has_atomics(ir: &naga::Module, ty: Handle<Type>) -> bool {
        match ir.types[ty].inner {
            TypeInner::Atomic(_) => true,
            TypeInner::Array { base, .. } => has_atomics(ir, base),
            TypeInner::Struct { ref members, .. } => members.iter().any(|member| has_atomics(ir, member.ty)),
            _ => false,
        }
    }
    let mut buffers = ir.global_variables.iter().map(|(_, variable)| variable);
    buffers.any(|variable| {
        matches!(variable.space, AddressSpace::Storage { .. }) && has_atomics(ir, variable.ty)
    })
}
