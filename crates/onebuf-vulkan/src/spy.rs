//! Tests of what reaches the driver: a real device whose function table notes some calls before it passes them on.
//!
//! What is formally wanted and no driver here needs can be tested in no other way: barriers that lavapipe does without,
//! flushes of memory that is coherent, a device that is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use ash::vk;
use onebuf_core::backend::{Allocation, Device, Memory, Node, Part, Stream, Work};
use onebuf_core::{Error, Ticket};
use parking_lot::{Mutex, RwLock};

use crate::device::VulkanDevice;
use crate::shared::{Logical, Shared};
use crate::{Vulkan, VulkanOptions};

/// A call that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Begin(vk::CommandBuffer),
    Barrier {
        cmd: vk::CommandBuffer,
        from: (vk::PipelineStageFlags, vk::AccessFlags),
        to: (vk::PipelineStageFlags, vk::AccessFlags),
    },
    Fill(vk::CommandBuffer),
    /// With the number of semaphores that it waits for.
    Submit(vk::CommandBuffer, u32),
    /// Offset and size in bytes, in the memory object.
    Flush(u64, u64),
    Invalidate(u64, u64),
}

/// One device is spied on at a time.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());
static LOST: AtomicBool = AtomicBool::new(false);
/// The driver's own functions. A driver may be unloaded with the last instance, and come back elsewhere.
static REAL: RwLock<Option<(ash::DeviceFnV1_0, ash::DeviceFnV1_2)>> = RwLock::new(None);

fn note(call: Call) {
    CALLS.lock().push(call);
}

/// Looked at for a moment: a wait must not keep anybody else away.
fn real<F>(function: impl FnOnce(&ash::DeviceFnV1_0, &ash::DeviceFnV1_2) -> F) -> F {
    let real = REAL.read();
    let (v1_0, v1_2) = real.as_ref().unwrap();
    function(v1_0, v1_2)
}

// SAFETY (of all below): the functions have the signatures of the table, are called as the driver's own would be, and pass
// on what they were given.
unsafe extern "system" fn begin(
    cmd: vk::CommandBuffer,
    info: *const vk::CommandBufferBeginInfo<'_>,
) -> vk::Result {
    note(Call::Begin(cmd));
    // SAFETY: see above.
    unsafe { real(|v1_0, _| v1_0.begin_command_buffer)(cmd, info) }
}

#[allow(clippy::too_many_arguments)] // Vulkan's.
unsafe extern "system" fn barrier(
    cmd: vk::CommandBuffer,
    from: vk::PipelineStageFlags,
    to: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffers: u32,
    buffer: *const vk::BufferMemoryBarrier<'_>,
    images: u32,
    image: *const vk::ImageMemoryBarrier<'_>,
) {
    assert_eq!((count, buffers, images), (1, 0, 0));
    // SAFETY: there is one.
    let only = unsafe { &*memory };
    note(Call::Barrier { cmd, from: (from, only.src_access_mask), to: (to, only.dst_access_mask) });
    // SAFETY: see above.
    unsafe {
        real(|v1_0, _| v1_0.cmd_pipeline_barrier)(
            cmd, from, to, flags, count, memory, buffers, buffer, images, image,
        );
    }
}

unsafe extern "system" fn fill(cmd: vk::CommandBuffer, to: vk::Buffer, offset: u64, size: u64, word: u32) {
    note(Call::Fill(cmd));
    // SAFETY: see above.
    unsafe { real(|v1_0, _| v1_0.cmd_fill_buffer)(cmd, to, offset, size, word) }
}

unsafe extern "system" fn submit(
    queue: vk::Queue,
    count: u32,
    infos: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    assert_eq!(count, 1);
    // SAFETY: there is one, with one command buffer.
    unsafe { note(Call::Submit(*(*infos).p_command_buffers, (*infos).wait_semaphore_count)) };
    // SAFETY: see above.
    unsafe { real(|v1_0, _| v1_0.queue_submit)(queue, count, infos, fence) }
}

unsafe extern "system" fn flush(
    device: vk::Device,
    count: u32,
    ranges: *const vk::MappedMemoryRange<'_>,
) -> vk::Result {
    // SAFETY: there is at least one.
    unsafe { note(Call::Flush((*ranges).offset, (*ranges).size)) };
    // SAFETY: see above.
    unsafe { real(|v1_0, _| v1_0.flush_mapped_memory_ranges)(device, count, ranges) }
}

unsafe extern "system" fn invalidate(
    device: vk::Device,
    count: u32,
    ranges: *const vk::MappedMemoryRange<'_>,
) -> vk::Result {
    // SAFETY: there is at least one.
    unsafe { note(Call::Invalidate((*ranges).offset, (*ranges).size)) };
    // SAFETY: see above.
    unsafe { real(|v1_0, _| v1_0.invalidate_mapped_memory_ranges)(device, count, ranges) }
}

unsafe extern "system" fn counter(
    device: vk::Device,
    semaphore: vk::Semaphore,
    value: *mut u64,
) -> vk::Result {
    if LOST.load(Ordering::Acquire) {
        return vk::Result::ERROR_DEVICE_LOST;
    }
    // SAFETY: see above.
    unsafe { real(|_, v1_2| v1_2.get_semaphore_counter_value)(device, semaphore, value) }
}

unsafe extern "system" fn wait(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    limit: u64,
) -> vk::Result {
    if LOST.load(Ordering::Acquire) {
        return vk::Result::ERROR_DEVICE_LOST;
    }
    // SAFETY: see above.
    unsafe { real(|_, v1_2| v1_2.wait_semaphores)(device, info, limit) }
}

/// A device whose calls are noted.
struct Spied {
    device: VulkanDevice,
    _turn: MutexGuard<'static, ()>,
}

/// Opens the first usable device; `None` where there is no Vulkan.
fn open(atom_bytes: Option<u64>) -> Option<Spied> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let vulkan = match Vulkan::new(VulkanOptions::default()) {
        Ok(vulkan) => vulkan,
        Err(error) if std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.contains("vulkan")) => {
            panic!("{error}")
        }
        Err(_) => return None,
    };
    let mut physical = vulkan.physical_devices().unwrap().into_iter().find(|p| p.rejected.is_none())?;
    if let Some(bytes) = atom_bytes {
        physical.info.limits.non_coherent_atom_bytes = bytes;
        for kind in &mut physical.memory.memory_types {
            kind.property_flags &= !vk::MemoryPropertyFlags::HOST_COHERENT;
        }
    }
    let mut logical = Logical::create(&vulkan.instance, &physical).unwrap();
    let (mut v1_0, mut v1_2) = (logical.raw.fp_v1_0().clone(), logical.raw.fp_v1_2().clone());
    *REAL.write() = Some((v1_0.clone(), v1_2.clone()));
    v1_0.begin_command_buffer = begin;
    v1_0.cmd_pipeline_barrier = barrier;
    v1_0.cmd_fill_buffer = fill;
    v1_0.queue_submit = submit;
    v1_0.flush_mapped_memory_ranges = flush;
    v1_0.invalidate_mapped_memory_ranges = invalidate;
    v1_2.get_semaphore_counter_value = counter;
    v1_2.wait_semaphores = wait;
    let (v1_1, v1_3) = (logical.raw.fp_v1_1().clone(), logical.raw.fp_v1_3().clone());
    logical.raw = ash::Device::from_parts_1_3(logical.raw.handle(), v1_0, v1_1, v1_2, v1_3);
    let shared = Shared::assemble(vulkan.instance.clone(), physical, logical).unwrap();
    LOST.store(false, Ordering::Release);
    CALLS.lock().clear();
    Some(Spied { device: VulkanDevice::new(shared), _turn: turn })
}

impl Spied {
    fn memory(&self, size_bytes: u64, exportable: bool) -> Arc<dyn Memory> {
        let visible = |index: &u32| {
            let flags = self.device.shared.physical.memory.memory_types[*index as usize].property_flags;
            flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
        };
        let kind = self.device.shared.physical.types.iter().position(visible).unwrap();
        self.device.allocate(&Allocation { kind, size_bytes, exportable, mapped: true }).unwrap()
    }

    fn wait(&self, ticket: Ticket) {
        self.device.wait(&[ticket], None).unwrap();
    }
}

fn calls() -> Vec<Call> {
    std::mem::take(&mut *CALLS.lock())
}

fn whole(memory: &Arc<dyn Memory>) -> Part<'_> {
    Part { memory, offset_bytes: 0, size_bytes: memory.size_bytes() }
}

/// Queues a fill of the whole memory.
fn fill_all(stream: &Arc<dyn Stream>, memory: &Arc<dyn Memory>, word: u32, after: &[Ticket]) -> Ticket {
    // SAFETY: whole words within live memory; the tests list what conflicts, or wait for it.
    unsafe { stream.submit(Work::Fill { to: whole(memory), word }, after) }.unwrap()
}

/// True for a barrier behind all writes of any stage, and before all that follows.
fn sees_all(call: &Call, buffer: vk::CommandBuffer) -> bool {
    use vk::AccessFlags as A;
    let all = vk::PipelineStageFlags::ALL_COMMANDS;
    let (from, to) = ((all, A::MEMORY_WRITE), (all, A::MEMORY_READ | A::MEMORY_WRITE));
    *call == Call::Barrier { cmd: buffer, from, to }
}

#[test]
fn every_command_buffer_sees_what_was_waited_for() {
    let Some(spied) = open(None) else { return };
    let (one, two) = (spied.device.create_stream().unwrap(), spied.device.create_stream().unwrap());
    let memory = spied.memory(1024, false);
    let node = [Node { work: Work::Fill { to: whole(&memory), word: 9 }, after: &[] }];
    // SAFETY: whole words within live memory.
    let graph = unsafe { spied.device.create_graph(&node) }.unwrap();
    // The tickets are forgotten once they are waited for, as hazards forget them. On the same stream, on another one, and
    // in a graph: nothing but the barrier at the beginning makes the writes seen.
    for (round, stream) in [&one, &one, &two, &one].into_iter().enumerate() {
        spied.wait(fill_all(stream, &memory, round as u32, &[]));
    }
    // SAFETY: everything that conflicts has been waited for.
    spied.wait(unsafe { two.replay(&graph, &[]) }.unwrap());
    let calls = calls();
    let begun = calls.iter().enumerate().filter_map(|(at, call)| match call {
        Call::Begin(buffer) => Some((at, *buffer)),
        _ => None,
    });
    let begun: Vec<_> = begun.collect();
    assert_eq!(begun.len(), 5, "{calls:?}");
    for (at, buffer) in begun {
        assert!(sees_all(&calls[at + 1], buffer), "after {at} of {calls:?}");
    }
    let submitted = calls.iter().filter(|call| matches!(call, Call::Submit(_, 0))).count();
    assert_eq!(submitted, 5, "{calls:?}");
}

#[test]
fn other_streams_are_waited_for_unless_their_end_is_known() {
    let Some(spied) = open(None) else { return };
    let (one, two) = (spied.device.create_stream().unwrap(), spied.device.create_stream().unwrap());
    let memory = spied.memory(1024, false);
    let first = fill_all(&one, &memory, 1, &[]);
    let second = fill_all(&two, &memory, 2, &[first]);
    spied.wait(second);
    let last_submission = |calls: Vec<Call>| {
        calls.into_iter().rev().find_map(|call| match call {
            Call::Submit(_, waits) => Some(waits),
            _ => None,
        })
    };
    assert_eq!(last_submission(calls()), Some(1));
    spied.wait(fill_all(&one, &memory, 3, &[second]));
    assert_eq!(last_submission(calls()), Some(0), "its end is known, and the barrier does the rest");
}

#[test]
fn flushes_are_of_whole_atoms_and_of_no_other_buffer() {
    const ATOM: u64 = 256;
    let Some(spied) = open(Some(ATOM)) else { return };
    let mut ends = Vec::new();
    for size in [1000, 64, 777, 4096] {
        let memory = spied.memory(size, false);
        calls();
        // Where the buffer begins in its memory object shows in a flush of its first byte.
        memory.flush(0, 1).unwrap();
        let [Call::Flush(base, ATOM)] = calls()[..] else { panic!("one flush of one atom") };
        assert!(base.is_multiple_of(ATOM));
        for (offset, length) in
            [(0, size), (0, 1), (1, 1), (ATOM.min(size) - 1, 1), (size - 1, 1), (size / 2, size / 4)]
        {
            memory.flush(offset, length).unwrap();
            memory.invalidate(offset, length).unwrap();
            let (start, end) = (offset / ATOM * ATOM, (offset + length).next_multiple_of(ATOM));
            let range = (base + start, end - start);
            let expected = [Call::Flush(range.0, range.1), Call::Invalidate(range.0, range.1)];
            assert_eq!(calls(), expected, "{length} bytes from {offset} of {size}");
        }
        memory.flush(size, 0).unwrap();
        memory.invalidate(0, 0).unwrap();
        assert_eq!(calls(), [], "nothing to flush");
        for (offset, length) in [(0, size + 1), (size, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(memory.flush(offset, length), Err(Error::InvalidArgument(_))));
            assert!(matches!(memory.invalidate(offset, length), Err(Error::InvalidArgument(_))));
        }
        assert_eq!(calls(), [], "out of range");
        ends.push((base, base + size.next_multiple_of(ATOM), memory));
    }
    for (i, a) in ends.iter().enumerate() {
        for b in &ends[i + 1..] {
            assert!(a.1 <= b.0 || b.1 <= a.0, "two buffers of one block share an atom");
        }
    }
}

#[test]
fn the_last_atom_ends_with_the_memory() {
    // An allocation of its own is as long as the driver wants it, which need not be a multiple of this.
    const ATOM: u64 = 1 << 20;
    let Some(spied) = open(Some(ATOM)) else { return };
    if spied.device.shared.physical.export.is_empty() {
        return;
    }
    let memory = spied.memory(5000, true);
    calls();
    memory.flush(4999, 1).unwrap();
    let [Call::Flush(0, size)] = calls()[..] else { panic!("one flush, from the first atom on") };
    assert!((5000..ATOM).contains(&size), "{size}");
}

#[test]
fn streams_that_wait_for_each_other_go_with_a_lost_device() {
    let Some(spied) = open(None) else { return };
    let (one, two) = (spied.device.create_stream().unwrap(), spied.device.create_stream().unwrap());
    // Large, so that neither stream is known to be done when the other one follows it.
    let (a, b) = (spied.memory(32 << 20, false), spied.memory(32 << 20, false));
    let (on_one, on_two) = (fill_all(&one, &a, 1, &[]), fill_all(&two, &b, 1, &[]));
    fill_all(&one, &b, 2, &[on_one, on_two]);
    fill_all(&two, &a, 2, &[on_one, on_two]);
    one.flush().unwrap();
    two.flush().unwrap();
    LOST.store(true, Ordering::Release);
    // SAFETY: nobody submits meanwhile. What is dropped below is not in use any more; only the backend is not told.
    unsafe { spied.device.shared.raw.device_wait_idle() }.unwrap();
    let shared = Arc::downgrade(&spied.device.shared);
    assert!(matches!(spied.device.wait(&[one.last(), two.last()], None), Err(Error::DeviceLost(_))));
    drop((one, two, a, b));
    drop(spied.device);
    assert_eq!(shared.strong_count(), 0, "somebody still holds the device");
}
