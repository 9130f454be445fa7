//! wgpu on the same device: an application's `wgpu::Device`, and buffers that both sides use with no copy.
//!
//! ```no_run
//! # async fn example(device: wgpu::Device, queue: wgpu::Queue, encoder: wgpu::CommandEncoder)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use onebuf::{Arg, HostAccess};
//! use onebuf::wgpu::WgpuDevice;
//!
//! let shared = WgpuDevice::adopt(&device, &queue)?;
//! let buffer = shared.device().buffer::<u32>(1024).host(HostAccess::ReadWrite).zeroed().build()?;
//! // SAFETY: what uses the view is submitted through `shared.submit`, which is told of the buffer.
//! let view: wgpu::Buffer = unsafe { shared.view(&buffer)? };
//! // ... record work of wgpu on `view` ...
//! shared.submit([encoder.finish()], &[(Arg::buffer(&buffer), true)])?;
//! println!("{}", buffer.read()?[0]); // waits for wgpu's work
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! Both sides use wgpu's queue, and onebuf submits through wgpu, so no lock is broken whatever threads do. Submissions of
//! a wgpu queue run one after the other, each seeing what the one before wrote. onebuf gathers launches, so work of the
//! application has to be told of the buffers it uses: [`WgpuDevice::submit`] hands over what conflicts first, and makes
//! later launches and guards of the CPU wait. Callbacks of wgpu (`map_async`, `on_submitted_work_done`) must not call
//! onebuf: wgpu runs them within its submit and poll, which onebuf calls with locks held. `wgpu::Queue::submit` on its own is for work that uses no shared buffer.

use std::sync::Arc;

use bytemuck::Pod;
use onebuf_core::placement::{Candidate, Ranking, staging_kind};
use onebuf_core::{Error, HostAccess, Intent, Placement, Result, Ticket};
use onebuf_vulkan::{VulkanDevice, wgpu as interop};

use crate::arg::Arg;
use crate::buffer::Buffer;
use crate::device::Device;

/// A wgpu device with onebuf opened on it.
#[derive(Clone, Debug)]
pub struct WgpuDevice {
    device: Device,
}

impl WgpuDevice {
    /// Opens onebuf on an application's device and queue, which live as long as anything made here.
    ///
    /// The device's features decide what onebuf's kernels may use: f16, 64-bit types, subgroups and float atomics only
    /// where the application asked wgpu for them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device is not of wgpu's Vulkan backend.
    pub fn adopt(device: &::wgpu::Device, queue: &::wgpu::Queue) -> Result<WgpuDevice> {
        let raw = Arc::new(interop::adopt(device, queue)?);
        Ok(WgpuDevice { device: Device::from_backend(raw, "the application's wgpu device") })
    }

    /// onebuf's side of the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A buffer as a `wgpu::Buffer`, which keeps the memory alive. It has all usages but mapping: the CPU's way to the
    /// bytes are onebuf's guards. Its size is the buffer's in whole words.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the buffer is another device's.
    ///
    /// # Safety
    /// Command buffers that use the view go through [`WgpuDevice::submit`], which is told of the buffer and whether it is
    /// written. Nothing else orders them with onebuf's launches and with the slices that guards give.
    pub unsafe fn view<T: Pod>(&self, buffer: &Buffer<T>) -> Result<::wgpu::Buffer> {
        if buffer.offset_bytes() != 0 {
            return Err(onebuf_core::Error::unsupported(
                "a view of a part of a shared buffer",
                "wgpu's view is of a whole memory; open a share of the whole buffer",
            ));
        }
        // SAFETY: the backend's memory is only named; the rest is the caller's promise.
        unsafe { interop::view(self.raw()?, buffer.raw()) }
    }

    /// A buffer of `len` elements over a `wgpu::Buffer`, which it keeps alive. The CPU reads and writes it through staging.
    ///
    /// wgpu zeroes memory lazily, by its own count of what was used. So that it never does so over what onebuf wrote, the
    /// buffer is read once in whole here, into memory that is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the buffer lacks one of the usages STORAGE, COPY_SRC and COPY_DST, or is too small.
    ///
    /// # Safety
    /// The buffer is this device's, and is not mapped while onebuf uses it. As for [`WgpuDevice::view`].
    pub unsafe fn buffer<T: Pod>(&self, buffer: ::wgpu::Buffer, len: usize) -> Result<Buffer<T>> {
        // SAFETY: the caller's promise.
        let memory = unsafe { interop::memory(self.raw()?, buffer)? };
        let profile = self.device.profile();
        // wgpu does not say which memory it took. Staging is right for any.
        let kind = profile.memory.iter().position(|kind| kind.device_local).unwrap_or(0);
        let candidate = Candidate { kind, staging: staging_kind(&profile), exportable: false };
        let ranking = Ranking { candidates: vec![candidate.clone()], rejected: Vec::new() };
        let intent =
            Intent { size_bytes: memory.size_bytes(), host: HostAccess::ReadWrite, ..Intent::default() };
        let placement = Placement::new(&profile, &intent, &ranking, &candidate);
        // SAFETY: the memory is of this device's backend; the rest is the caller's promise.
        unsafe { self.device.buffer_from_memory(memory, len, placement) }
    }

    /// Submits command buffers of the application, in order with onebuf's work. `uses` lists the shared buffers they use
    /// ([`Arg::buffer`]), each with whether it is written. Later launches that conflict follow, and guards wait.
    ///
    /// # Errors
    /// [`Error::Busy`] while a guard of the CPU lives that conflicts: the command buffers are then dropped unsubmitted;
    /// [`Error::InvalidArgument`] where a buffer is another device's.
    pub fn submit(
        &self,
        commands: impl IntoIterator<Item = ::wgpu::CommandBuffer>,
        uses: &[(Arg<'_>, bool)],
    ) -> Result<Ticket> {
        let raw = self.raw()?;
        // An iterator of the caller's may do anything; it is done before any lock is held.
        let commands = commands.into_iter().collect();
        // SAFETY: the work is submitted behind the tickets, on the queue that runs one submission after the other, and the
        // ticket is that submission's. That it touches no more than stated was promised where the buffers were shared.
        unsafe { self.device.order_external(uses, |after| interop::submit(raw, after, commands)) }
    }

    fn raw(&self) -> Result<&VulkanDevice> {
        // SAFETY: the backend's device is only looked at.
        let raw = unsafe { self.device.raw() }.as_any().downcast_ref();
        raw.ok_or_else(|| Error::InvalidArgument("the device is not of the Vulkan backend".into()))
    }
}
