//! A buffer on another device of the same hardware: CUDA and Vulkan on one GPU, one driver opened twice, any two devices that
//! import pages of the CPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use onebuf_core::{Error, HandleKind, Result};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::partners::{Handover, Handovers};
use crate::share;
use crate::storage::Storage;

impl<T: Pod> Buffer<T> {
    /// The same memory as a buffer of another device, without a copy: another API's on the same hardware (their UUIDs
    /// match), another opening of the same one, or by the memfd route any device that imports pages of the CPU. The buffer
    /// must have been built with [`share`](crate::BufferBuilder::share).
    ///
    /// Both are one memory to onebuf: work of either device waits for what it conflicts with on the other, and a guard on one
    /// holds off the work of both. How the wait is done is [`Device::set_handover`]'s. The other device stays open for as long as
    /// either buffer lives. Calling it again gives the same memory.
    ///
    /// ```no_run
    /// use onebuf::{Device, HostAccess, Share, args};
    ///
    /// # fn main() -> onebuf::Result<()> {
    /// let (cuda, vulkan) = (Device::open("cuda:0")?, Device::open("vulkan:0")?);
    /// let ours = cuda.buffer::<u32>(1 << 20).share(Share::Api).zeroed().build()?;
    /// let theirs = ours.on(&vulkan)?;
    /// let add = "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
    ///     @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3u) { a[at.x] += 1u; }";
    /// let (one, two) = (cuda.kernel(add)?.build()?, vulkan.kernel(add)?.build()?);
    /// let (first, second) = (cuda.stream()?, vulkan.stream()?);
    /// for _ in 0..100 {
    ///     first.launch(&one, [1 << 14, 1, 1], args![&ours])?;
    ///     second.launch(&two, [1 << 14, 1, 1], args![&theirs])?; // behind the other
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the buffer was not built to be shared, or the device opens nothing of its kind;
    /// [`Error::InvalidArgument`] where they are not the same hardware, or the device has the memory open in another way
    /// ([`Device::open_shared`]) already, with an order of its own.
    pub fn on(&self, device: &Device) -> Result<Buffer<T>> {
        if self.device().is(device) {
            return Ok(self.clone());
        }
        let storage = open_on(&self.storage, device)?;
        Ok(Buffer::view(storage, self.offset_bytes(), self.size_bytes()))
    }
}

fn open_on(storage: &Arc<Storage>, device: &Device) -> Result<Arc<Storage>> {
    let object = share::share(storage)?;
    let (mine, its) = (storage.device.info(), device.info());
    let native = object.description().way != HandleKind::Memfd;
    // A software driver has no identity; what it shares it opens itself, and refuses what is not its own.
    if native && mine.uuid != its.uuid {
        return Err(Error::InvalidArgument(format!(
            "{} lies on {} ({}), and {} ({}) is another device; on both at once is memory of the CPU: build the buffer with \
             `.share(Share::Api).ways([HandleKind::Memfd])`",
            storage.describe(),
            mine.id,
            mine.name,
            its.id,
            its.name
        )));
    }
    let opened = device.open_object(&object, Some(&storage.state))?;
    if !Arc::ptr_eq(&opened.state, &storage.state) {
        return Err(Error::InvalidArgument(format!(
            "{} has {} open as memory of another process, in an order of its own; drop that buffer first",
            its.id,
            storage.describe()
        )));
    }
    let mut state = storage.state.lock();
    state.partners.add(&storage.device.shared);
    state.partners.add(&device.shared);
    drop(state);
    Ok(opened)
}

impl Device {
    /// How work of this device waits for work of other devices on a common memory, from now on.
    pub fn set_handover(&self, handover: Handover) {
        *self.shared.handover.lock() = handover;
    }

    /// How often it had to wait, and by what.
    pub fn handovers(&self) -> Handovers {
        let counts = &self.shared.handovers;
        Handovers {
            by_host: counts.by_host.load(Ordering::Relaxed),
            by_timeline: counts.by_timeline.load(Ordering::Relaxed),
        }
    }
}
