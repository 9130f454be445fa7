//! wgpu on the same device: onebuf on an application's `wgpu::Device`, and buffers that both sides use.
//!
//! Vulkan wants one thread at a queue at a time, and wgpu's lock on its queue is its own. So onebuf hands its batches to
//! wgpu as command buffers of wgpu's: each runs one recorded batch as a secondary command buffer. wgpu submits them
//! under its lock, and runs all submissions of a queue strictly one after the other, each seeing all memory that the
//! one before wrote. That is the whole order between both sides: what is submitted earlier is done earlier.
//!
//! wgpu calls the application's callbacks (`map_async`, `on_submitted_work_done`) from its submit and poll, which onebuf
//! calls too, with locks held. Such a callback must not call onebuf; let it set a flag or send a message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ash::{ext, vk};
use onebuf_core::backend::Memory;
use onebuf_core::{Error, Features, Result, Ticket};
use parking_lot::Mutex;
use wgpu::hal::api::Vulkan as Hal;
use wgpu::{PollError, PollType, SubmissionIndex};

use crate::adapter::{Physical, USAGE};
use crate::device::VulkanDevice;
use crate::instance::Instance;
use crate::line::timeout;
use crate::memory::VulkanMemory;
use crate::shared::{Logical, Shared};
use crate::stream::{self, StreamShared};

/// wgpu's side of a device that onebuf was opened on.
pub(crate) struct Link {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

/// A stream's line through wgpu.
pub(crate) struct WgpuLine {
    link: Arc<Link>,
    /// The highest value whose submission wgpu has seen the end of.
    reached: Arc<AtomicU64>,
    /// Submissions that may not be done, with the value of each.
    submissions: Mutex<VecDeque<(u64, SubmissionIndex)>>,
}

impl WgpuLine {
    pub(crate) fn new(link: &Arc<Link>) -> WgpuLine {
        WgpuLine { link: link.clone(), reached: Arc::default(), submissions: Mutex::default() }
    }

    /// Submits a batch as a command buffer of wgpu's.
    pub(crate) fn submit(&self, shared: &Shared, cmd: vk::CommandBuffer, value: u64) -> Result<()> {
        let mut encoder = self.link.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        // SAFETY: the encoder's command buffer is neither ended nor destroyed here, and wgpu does not touch the encoder
        // meanwhile. The batch is a complete secondary command buffer of the same queue family, kept until it is done.
        let recorded = unsafe {
            encoder.as_hal_mut::<Hal, _, _>(|encoder| {
                encoder.map(|encoder| shared.raw.cmd_execute_commands(encoder.raw_handle(), &[cmd]))
            })
        };
        recorded.ok_or_else(|| shared.lose("wgpu's command encoder is not of Vulkan"))?;
        self.submitted(value, [encoder.finish()]);
        Ok(())
    }

    /// Submits command buffers of the application; the line reaches `value` when they are done.
    fn submitted(&self, value: u64, commands: impl IntoIterator<Item = wgpu::CommandBuffer>) {
        let mut submissions = self.submissions.lock();
        let done = self.reached.load(Ordering::Acquire);
        submissions.retain(|(value, _)| *value > done);
        let index = self.link.queue.submit(commands);
        submissions.push_back((value, index));
        drop(submissions);
        let reached = self.reached.clone();
        self.link.queue.on_submitted_work_done(move || {
            reached.fetch_max(value, Ordering::AcqRel);
        });
    }

    pub(crate) fn reached(&self, shared: &Shared) -> Result<u64> {
        self.poll(shared, PollType::Poll)?;
        Ok(self.reached.load(Ordering::Acquire))
    }

    pub(crate) fn wait(&self, shared: &Shared, value: u64, limit: Option<Duration>) -> Result<()> {
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(());
        }
        let start = Instant::now();
        let found = self.submissions.lock().iter().find(|(last, _)| *last >= value).cloned();
        let Some((last, index)) = found else { return Ok(()) };
        if !self.poll(shared, PollType::Wait { submission_index: Some(index), timeout: limit })? {
            return Err(timeout(start));
        }
        self.reached.fetch_max(last, Ordering::AcqRel);
        self.submissions.lock().retain(|(value, _)| *value > last);
        Ok(())
    }

    /// Lets wgpu look at its submissions. False where the time limit passed first.
    fn poll(&self, shared: &Shared, how: PollType) -> Result<bool> {
        match self.link.device.poll(how) {
            Ok(_) => Ok(true),
            Err(PollError::Timeout) => Ok(false),
            Err(error) => Err(shared.lose(&format!("wgpu's poll failed: {error}"))),
        }
    }
}

/// Opens onebuf on an application's device. Both use wgpu's queue; the device lives as long as either needs it.
///
/// # Errors
/// [`Error::Unsupported`] where the device is not wgpu's Vulkan backend.
pub fn adopt(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<VulkanDevice> {
    // SAFETY: the handles are only read, and used for as long as `Link` holds the device.
    let hal = unsafe { device.as_hal::<Hal>() };
    let hal = hal.ok_or_else(|| Error::unsupported("a wgpu device", "it is not of wgpu's Vulkan backend"))?;
    let instance = Instance::borrowed(hal.shared_instance().raw_instance().clone());
    // SAFETY: the instance is live.
    let all = unsafe { instance.raw.enumerate_physical_devices() };
    let position = all.ok().and_then(|all| all.iter().position(|raw| *raw == hal.raw_physical_device()));
    let mut physical =
        Physical::read(&instance.raw, hal.raw_physical_device(), position.unwrap_or(0) as u32)?;
    let enabled = hal.enabled_device_extensions();
    restrict(&mut physical, |name| enabled.contains(&name), device.features());
    physical.use_family(&instance.raw, hal.queue_family_index());
    let raw = hal.raw_device().clone();
    drop(hal);
    let link = Arc::new(Link { device: device.clone(), queue: queue.clone() });
    let keep: Box<dyn Send + Sync> = Box::new(link.clone());
    let logical = Logical { raw, queues: Vec::new(), owned: false, keep: Some(keep), link: Some(link) };
    Ok(VulkanDevice::new(Shared::assemble(instance, physical, logical)?))
}

/// Leaves what the application turned on when it made its device.
fn restrict(physical: &mut Physical, enabled: impl Fn(&std::ffi::CStr) -> bool, features: wgpu::Features) {
    let has = &mut physical.has;
    has.memory_fd &= enabled(ash::khr::external_memory_fd::NAME);
    has.dma_buf &= has.memory_fd && enabled(ext::external_memory_dma_buf::NAME);
    has.host_import &= enabled(ext::external_memory_host::NAME);
    // wgpu submits; other devices' signals have no place in what it submits.
    has.semaphore_fd = false;
    has.memory_budget &= enabled(ext::memory_budget::NAME);
    has.atomic_float &= enabled(ext::shader_atomic_float::NAME);
    has.robust_buffers &= enabled(ext::robustness2::NAME);
    has.pipeline_robustness = false;
    has.feedback = false;
    if !has.memory_fd {
        physical.export.clear();
        physical.import.clear();
    }
    if !has.host_import {
        physical.info.limits.host_import_alignment_bytes = 0;
    }
    let language = &mut physical.info.features;
    *language = Features {
        f16: language.f16 && features.contains(wgpu::Features::SHADER_F16),
        i16: language.i16 && features.contains(wgpu::Features::SHADER_I16),
        f64: language.f64 && features.contains(wgpu::Features::SHADER_F64),
        i64: language.i64 && features.contains(wgpu::Features::SHADER_INT64),
        i64_atomics: language.i64_atomics && features.contains(wgpu::Features::SHADER_INT64_ATOMIC_ALL_OPS),
        f32_atomics: language.f32_atomics && features.contains(wgpu::Features::SHADER_FLOAT32_ATOMIC),
        subgroups: language.subgroups && features.contains(wgpu::Features::SUBGROUP),
    };
}

/// What a `wgpu::Buffer` view of a onebuf buffer can be used for: everything but mapping, which the memory has for good.
const VIEW: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::UNIFORM)
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST)
    .union(wgpu::BufferUsages::INDIRECT)
    .union(wgpu::BufferUsages::VERTEX)
    .union(wgpu::BufferUsages::INDEX);

/// The memory as a `wgpu::Buffer` of the device's application. It keeps the memory alive.
///
/// # Errors
/// [`Error::InvalidArgument`] where the memory is not this device's, or the device is not wgpu's.
///
/// # Safety
/// Command buffers that use the view are submitted through [`submit`], behind the tickets that conflict; else nothing
/// orders them with onebuf's work and with the CPU's slices.
pub unsafe fn view(device: &VulkanDevice, memory: &Arc<dyn Memory>) -> Result<wgpu::Buffer> {
    let link = link(device)?;
    let own: Option<&VulkanMemory> = memory.as_any().downcast_ref();
    let own = own.filter(|own| Arc::ptr_eq(&own.shared, &device.shared));
    let own = own.ok_or_else(|| Error::InvalidArgument("the buffer is not this device's".into()))?;
    debug_assert!(USAGE.contains(vk::BufferUsageFlags::STORAGE_BUFFER));
    let keep = memory.clone();
    // SAFETY: the callback keeps the buffer alive until wgpu has dropped its own; wgpu does not destroy it.
    let hal = unsafe {
        wgpu::hal::vulkan::Buffer::from_raw_externally_owned(own.buffer, Box::new(move || drop(keep)))
    };
    let size = own.size_bytes / 4 * 4;
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage: VIEW, mapped_at_creation: false };
    // SAFETY: the buffer is of the same device, has these usages and at least this size, and is initialised: memory of
    // onebuf holds bytes from its birth.
    Ok(unsafe { link.device.create_buffer_from_hal::<Hal>(hal, &descriptor) })
}

/// A `wgpu::Buffer` as memory of the device. It keeps the buffer alive.
///
/// # Errors
/// [`Error::InvalidArgument`] where the buffer lacks the usages STORAGE, COPY_SRC and COPY_DST or is not of Vulkan.
///
/// # Safety
/// The buffer is the device's, and not mapped. As for [`view`].
pub unsafe fn memory(device: &VulkanDevice, buffer: wgpu::Buffer) -> Result<Arc<dyn Memory>> {
    let link = link(device)?;
    let needed = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    if !buffer.usage().contains(needed) {
        let has = buffer.usage();
        return Err(Error::InvalidArgument(format!(
            "the wgpu buffer has the usages {has:?}; it needs {needed:?}"
        )));
    }
    // SAFETY: the handle is only named, and the buffer is kept.
    let raw = unsafe { buffer.as_hal::<Hal>().map(|hal| hal.raw_handle()) };
    let raw = raw
        .ok_or_else(|| Error::InvalidArgument("the wgpu buffer is not of Vulkan, or was destroyed".into()))?;
    // wgpu zeroes memory when it is first used, by its own count. A first use after onebuf has written would wipe that
    // out, so wgpu is made to read all of it now.
    let size = buffer.size();
    if size == 0 || !size.is_multiple_of(4) {
        return Err(Error::InvalidArgument(format!(
            "the wgpu buffer has {size} bytes; it must be of whole words"
        )));
    }
    let copy = link.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = link.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&buffer, 0, &copy, 0, size);
    link.queue.submit([encoder.finish()]);
    Ok(Arc::new(VulkanMemory::foreign(&device.shared, raw, size, Box::new(buffer))))
}

/// Submits command buffers of the application behind `after`, and gives the ticket that is reached when they are done.
///
/// # Errors
/// [`Error::InvalidArgument`] where the device is not wgpu's; [`Error::DeviceLost`].
pub fn submit(device: &VulkanDevice, after: &[Ticket], commands: Vec<wgpu::CommandBuffer>) -> Result<Ticket> {
    link(device)?;
    for ticket in after {
        stream::hand_over(&device.shared, *ticket)?;
    }
    device.outside()?.submit_outside(|line, value| {
        line.submitted(value, commands);
    })
}

fn link(device: &VulkanDevice) -> Result<&Arc<Link>> {
    let link = device.shared.link.as_ref();
    link.ok_or_else(|| Error::InvalidArgument("the device was not opened on a wgpu device".into()))
}

/// Waits for what wgpu was given. Its submissions hold the views they use, and those the device: without a last look,
/// wgpu would never let go.
pub(crate) fn settle(shared: &Shared) {
    if let Some(link) = &shared.link
        && let Err(error) = link.device.poll(PollType::wait_indefinitely())
    {
        tracing::debug!(%error, "wgpu's last submissions");
    }
}

impl VulkanDevice {
    /// The stream that the application's own submissions count on.
    fn outside(&self) -> Result<&Arc<StreamShared>> {
        if let Some(stream) = self.outside.get() {
            return Ok(stream);
        }
        let stream = StreamShared::create(&self.shared)?;
        Ok(self.outside.get_or_init(|| stream))
    }
}
