//! Work written into a command buffer, for streams and graphs alike.

use std::sync::Arc;

use ash::vk;
use onebuf_core::backend::{Launch, Memory, Part, Work};
use onebuf_core::{Error, Result};
use smallvec::SmallVec;

use crate::event::Timestamp;
use crate::kernel::{self, BoundSets, KernelCode, Pipeline, STAGE, Sets};
use crate::shared::Shared;

/// What a command buffer uses, to be kept until its work is done.
#[allow(dead_code)] // Held, never read.
pub(crate) enum Keep {
    Memory(Arc<dyn Memory>),
    Kernel(Arc<KernelCode>),
    Sets(Arc<BoundSets>),
    Timestamp(Arc<Timestamp>),
}

/// What is bound in a command buffer, and was, so that nothing is bound twice in a row or looked up and kept twice.
#[derive(Default)]
pub(crate) struct Bound {
    pipeline: vk::Pipeline,
    /// The first of the bound sets. It names them all.
    sets: vk::DescriptorSet,
    /// Argument lists of earlier launches, each in the place that [`place_of`] gives it or in its neighbour.
    recent: Vec<Option<Recent>>,
    /// Work may have written memory that the CPU sees.
    pub(crate) host_visible_writes: bool,
}

/// An argument list that the command buffer keeps. So the addresses in it are nobody else's while it is recorded.
struct Recent {
    code: *const KernelCode,
    parts: SmallVec<[(usize, u64, u64); 4]>,
    sets: Sets,
}

// SAFETY: the pointer is compared and never followed.
unsafe impl Send for Recent {}

/// Argument lists that are remembered, as a power of two.
const RECENT_BITS: u32 = 6;

impl Bound {
    /// Forgets everything, for a new command buffer.
    pub(crate) fn reset(&mut self) {
        self.pipeline = vk::Pipeline::null();
        self.sets = vk::DescriptorSet::null();
        self.recent.iter_mut().for_each(|recent| *recent = None);
        self.host_visible_writes = false;
    }

    /// Descriptor sets for a launch. What the command buffer does not keep as yet, it does then.
    fn sets_for(
        &mut self,
        code: &Arc<KernelCode>,
        bindings: &[Part<'_>],
        keep: &mut Vec<Keep>,
    ) -> Result<&Sets> {
        if self.recent.is_empty() {
            self.recent.resize_with(1 << RECENT_BITS, || None);
        }
        let mut place = place_of(code, bindings);
        let is_known = |recent: &Option<Recent>| recent.as_ref().is_some_and(|r| r.is(code, bindings));
        let mut known = is_known(&self.recent[place]);
        if !known && self.recent[place].is_some() {
            // Two lists that meet have a second place.
            place ^= 1;
            known = is_known(&self.recent[place]);
        }
        let recent = &mut self.recent[place];
        if !known {
            let sets = code.bind(bindings)?;
            for part in bindings {
                keep.push(Keep::Memory(part.memory.clone()));
                self.host_visible_writes |= part.memory.host_pointer().is_some();
            }
            *recent = Some(Recent {
                code: Arc::as_ptr(code),
                parts: bindings.iter().map(identity).collect(),
                sets: sets.raw.clone(),
            });
            keep.extend([Keep::Kernel(code.clone()), Keep::Sets(sets)]);
        }
        recent.as_ref().map(|recent| &recent.sets).ok_or_else(|| Error::Busy("no sets are bound".into()))
    }
}

impl Recent {
    fn is(&self, code: &Arc<KernelCode>, bindings: &[Part<'_>]) -> bool {
        std::ptr::eq(self.code, Arc::as_ptr(code))
            && self.parts.len() == bindings.len()
            && self.parts.iter().zip(bindings).all(|(known, part)| *known == identity(part))
    }
}

/// What tells a part from others while its memory lives.
fn identity(part: &Part<'_>) -> (usize, u64, u64) {
    (Arc::as_ptr(part.memory).addr(), part.offset_bytes, part.size_bytes)
}

/// Where an argument list is remembered, if it is.
fn place_of(code: &Arc<KernelCode>, bindings: &[Part<'_>]) -> usize {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15); // Knuth: 2^64 over the golden ratio.
    let hash = bindings.iter().fold(Arc::as_ptr(code).addr() as u64, |hash, part| {
        mix(hash, Arc::as_ptr(part.memory).addr() as u64 ^ part.offset_bytes)
    });
    (mix(hash, 0) >> (64 - RECENT_BITS)) as usize
}

/// The accesses of compute and transfer work.
const WRITES: vk::AccessFlags = vk::AccessFlags::from_raw(
    vk::AccessFlags::SHADER_WRITE.as_raw() | vk::AccessFlags::TRANSFER_WRITE.as_raw(),
);
const ACCESSES: vk::AccessFlags = vk::AccessFlags::from_raw(
    WRITES.as_raw()
        | vk::AccessFlags::SHADER_READ.as_raw()
        | vk::AccessFlags::UNIFORM_READ.as_raw()
        | vk::AccessFlags::TRANSFER_READ.as_raw(),
);
const STAGES: vk::PipelineStageFlags = vk::PipelineStageFlags::from_raw(
    vk::PipelineStageFlags::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags::TRANSFER.as_raw(),
);

/// Makes all work of a command buffer see what work before it wrote, on whatever queue. That work is either earlier in
/// this queue, or its end was waited for, by a semaphore or by the CPU: its writes are available then, and no wait of the
/// CPU makes them visible to the device.
pub(crate) fn opening_barrier(shared: &Shared, cmd: vk::CommandBuffer) {
    let all = vk::PipelineStageFlags::ALL_COMMANDS;
    let memory = [vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE)];
    // SAFETY: the command buffer records, outside a render pass.
    unsafe {
        shared.raw.cmd_pipeline_barrier(cmd, all, all, vk::DependencyFlags::empty(), &memory, &[], &[]);
    }
}

/// Makes later work see all that earlier work of the queue wrote.
pub(crate) fn barrier(shared: &Shared, cmd: vk::CommandBuffer) {
    let memory = [vk::MemoryBarrier::default().src_access_mask(WRITES).dst_access_mask(ACCESSES)];
    // SAFETY: the command buffer records, outside a render pass.
    unsafe {
        shared.raw.cmd_pipeline_barrier(cmd, STAGES, STAGES, vk::DependencyFlags::empty(), &memory, &[], &[]);
    }
}

/// Makes the CPU see all that earlier work of the queue wrote: the wait for its end alone does not.
pub(crate) fn host_barrier(shared: &Shared, cmd: vk::CommandBuffer) {
    let memory = [vk::MemoryBarrier::default()
        .src_access_mask(WRITES)
        .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE)];
    let host = vk::PipelineStageFlags::HOST;
    // SAFETY: as above.
    unsafe {
        shared.raw.cmd_pipeline_barrier(cmd, STAGES, host, vk::DependencyFlags::empty(), &memory, &[], &[]);
    }
}

/// Writes a piece of work. The caller has placed the barriers.
pub(crate) fn record(
    shared: &Shared,
    cmd: vk::CommandBuffer,
    work: &Work<'_>,
    bound: &mut Bound,
    keep: &mut Vec<Keep>,
) -> Result<()> {
    match work {
        Work::Launch(launch) => record_launch(shared, cmd, launch, bound, keep),
        Work::Copy { from, to } => {
            let region = [vk::BufferCopy {
                src_offset: from.offset_bytes,
                dst_offset: to.offset_bytes,
                size: to.size_bytes,
            }];
            let (source, target) = (kernel::memory(from)?, kernel::memory(to)?);
            keep.push(Keep::Memory(from.memory.clone()));
            keep.push(Keep::Memory(to.memory.clone()));
            bound.host_visible_writes |= target.host_pointer().is_some();
            // SAFETY: the ranges are within the buffers and do not overlap, as the caller of the contract checks.
            unsafe { shared.raw.cmd_copy_buffer(cmd, source.buffer, target.buffer, &region) };
            Ok(())
        }
        Work::Fill { to, word } => {
            let target = kernel::memory(to)?;
            keep.push(Keep::Memory(to.memory.clone()));
            bound.host_visible_writes |= target.host_pointer().is_some();
            // SAFETY: offset and size are multiples of 4 within the buffer, as the caller of the contract checks.
            unsafe { shared.raw.cmd_fill_buffer(cmd, target.buffer, to.offset_bytes, to.size_bytes, *word) };
            Ok(())
        }
    }
}

fn record_launch(
    shared: &Shared,
    cmd: vk::CommandBuffer,
    launch: &Launch<'_>,
    bound: &mut Bound,
    keep: &mut Vec<Keep>,
) -> Result<()> {
    let code = kernel::code(launch.kernel)?;
    let limits = &shared.physical.info.limits;
    let split = launch.groups.iter().zip(limits.max_groups).any(|(&groups, most)| groups > most);
    let pipeline = if split { code.wide()? } else { &code.pipeline };
    let device = &shared.raw;
    let (bound_pipeline, bound_set) = (bound.pipeline, bound.sets);
    let sets = bound.sets_for(code, launch.bindings, keep)?;
    let same_pipeline = bound_pipeline == pipeline.raw;
    if !same_pipeline {
        // SAFETY: the pipeline is live, and kept with the sets.
        unsafe { device.cmd_bind_pipeline(cmd, vk::PipelineBindPoint::COMPUTE, pipeline.raw) };
    }
    if let Some(&first) = sets.first() {
        if !same_pipeline || first != bound_set {
            // SAFETY: the sets are of the pipeline's layout, and kept.
            unsafe {
                let point = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_descriptor_sets(cmd, point, code.layout, 0, sets, &[]);
            }
        }
        bound.sets = first;
    }
    bound.pipeline = pipeline.raw;
    if !launch.immediates.is_empty() {
        // SAFETY: the layout's range covers the immediates, whose size was checked.
        unsafe { device.cmd_push_constants(cmd, code.layout, STAGE, 0, launch.immediates) };
    }
    if split {
        return dispatch_chunks(shared, cmd, code, pipeline, launch.groups);
    }
    let [x, y, z] = launch.groups;
    // SAFETY: everything the pipeline uses is bound.
    unsafe { device.cmd_dispatch(cmd, x, y, z) };
    Ok(())
}

/// Covers a grid by dispatches that the device takes. They touch what one dispatch would: no barrier lies between them.
fn dispatch_chunks(
    shared: &Shared,
    cmd: vk::CommandBuffer,
    code: &KernelCode,
    pipeline: &Pipeline,
    groups: [u32; 3],
) -> Result<()> {
    let most = shared.physical.info.limits.max_groups;
    let steps = |axis: usize| {
        let step = most[axis].max(1);
        (0..groups[axis]).step_by(step as usize).map(move |base| (base, (groups[axis] - base).min(step)))
    };
    let chunks: u64 = (0..3).map(|axis| u64::from(groups[axis].div_ceil(most[axis].max(1)))).product();
    // A command buffer of a million dispatches is a mistake in the grid, or a device with absurd limits.
    Error::check_limit("dispatches that one launch is split into", chunks, 1 << 20)?;
    for (z, depth) in steps(2) {
        for (y, height) in steps(1) {
            for (x, width) in steps(0) {
                if let Some(offset) = pipeline.grid_offset_bytes {
                    let mut grid = [0u8; kernel::GRID_BYTES as usize];
                    for (axis, base) in [x, y, z].into_iter().enumerate() {
                        grid[axis * 4..axis * 4 + 4].copy_from_slice(&base.to_ne_bytes());
                        grid[16 + axis * 4..20 + axis * 4].copy_from_slice(&groups[axis].to_ne_bytes());
                    }
                    // SAFETY: the range was checked when the wide pipeline was made.
                    unsafe { shared.raw.cmd_push_constants(cmd, code.layout, STAGE, offset, &grid) };
                }
                // SAFETY: everything the pipeline uses is bound, and each count is within the limits.
                unsafe { shared.raw.cmd_dispatch(cmd, width, height, depth) };
            }
        }
    }
    Ok(())
}
