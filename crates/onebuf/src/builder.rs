//! The making of a buffer: its users are stated first, since the kind of its memory is fixed at birth.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use onebuf_core::backend::Work;
use onebuf_core::{
    DeviceUse, Error, HandleKind, HostAccess, HostPath, Result, Semantic, Share, Strength, Tickets,
};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::guard::{Hold, Mode, Patience, WriteGuard};
use crate::order::{self, Order, Uses};
use crate::storage::{First, Route, Storage, Wish};

/// A buffer to be built. [`Device::buffer`] makes it.
#[must_use = "a builder does nothing until `build`, `init` or `init_with`"]
pub struct BufferBuilder<'a, T: Pod> {
    device: &'a Device,
    len: usize,
    wish: Wish,
    label: Option<&'a str>,
    zeroed: bool,
    element: PhantomData<T>,
}

impl<'a, T: Pod> BufferBuilder<'a, T> {
    pub(crate) fn new(device: &'a Device, len: usize) -> BufferBuilder<'a, T> {
        BufferBuilder { device, len, wish: Wish::default(), label: None, zeroed: false, element: PhantomData }
    }

    /// The CPU will read or write it, in place if it can be had, else through a copy; the placement says which.
    pub fn host(mut self, access: HostAccess) -> Self {
        self.wish.host = access;
        self
    }

    /// The CPU will read or write the very bytes that the device uses. Building fails where that cannot be had.
    pub fn host_in_place(mut self, access: HostAccess) -> Self {
        self.wish.host = access;
        self.wish.in_place = Strength::Require;
        self
    }

    /// Another process or another API will hold it too. Call it once for each.
    pub fn share(mut self, share: Share) -> Self {
        match share {
            Share::Process => self.wish.process = true,
            Share::Api => self.wish.api = true,
        }
        self
    }

    /// The ways by which it may leave the process, where a policy rules some out. Without it any way will do: the
    /// driver's own first, and the memfd route where no memory of the driver's serves. The placement says which it is.
    pub fn ways(mut self, ways: impl IntoIterator<Item = HandleKind>) -> Self {
        self.wish.ways = ways.into_iter().collect();
        self
    }

    /// Take memory with this sharing semantic if it can be had; the placement says whether.
    pub fn prefer(mut self, semantic: Semantic) -> Self {
        self.wish.semantic = Some((semantic, Strength::Prefer));
        self
    }

    /// Take memory with this sharing semantic, or fail with the reasons.
    pub fn require(mut self, semantic: Semantic) -> Self {
        self.wish.semantic = Some((semantic, Strength::Require));
        self
    }

    /// How often the device touches each byte between two uses by the CPU.
    pub fn device_use(mut self, device_use: DeviceUse) -> Self {
        self.wish.device_use = device_use;
        self
    }

    /// A name for messages.
    pub fn label(mut self, label: &'a str) -> Self {
        self.label = Some(label);
        self
    }

    /// All bytes are zero at first. Without it they are unspecified.
    pub fn zeroed(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// - [`Error::LimitExceeded`] when it is larger than any buffer may be.
    /// - [`Error::OutOfMemory`] when no memory that serves has room.
    /// - [`Error::NoPlacement`] when no memory serves, with each kind's reason.
    pub fn build(self) -> Result<Buffer<T>> {
        let storage = self.allocate(First::Device)?;
        // Memory that can leave the process is zero when it is made.
        if self.zeroed && !(self.wish.process || self.wish.api) {
            zero(&storage, 0)?;
        } else {
            zero(&storage, storage.bytes)?;
        }
        Ok(Buffer::new(storage))
    }

    /// Builds it with these elements, as many as it is long.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of elements, and those of [`BufferBuilder::build`].
    pub fn init(self, elements: &[T]) -> Result<Buffer<T>> {
        if elements.len() != self.len {
            let (given, len) = (elements.len(), self.len);
            return Err(Error::InvalidArgument(format!("{given} element(s) given for a buffer of {len}")));
        }
        self.fill_with(|target| target.copy_from_slice(elements))
    }

    /// Builds it with the elements that `element` gives for each index.
    ///
    /// # Errors
    /// Those of [`BufferBuilder::build`].
    pub fn init_with(self, mut element: impl FnMut(usize) -> T) -> Result<Buffer<T>> {
        self.fill_with(|target| {
            for (index, slot) in target.iter_mut().enumerate() {
                *slot = element(index);
            }
        })
    }

    fn fill_with(self, fill: impl FnOnce(&mut [T])) -> Result<Buffer<T>> {
        let storage = self.allocate(First::Host)?;
        zero(&storage, storage.bytes)?;
        let buffer = Buffer::new(storage);
        let hold = buffer.as_slice().hold(Mode::Overwrite, Patience::Forever)?;
        let mut guard = WriteGuard::new(hold);
        fill(&mut guard);
        guard.finish()?;
        Ok(buffer)
    }

    fn allocate(&self, first: First) -> Result<Arc<Storage>> {
        let element = size_of::<T>();
        if element == 0 {
            let ty = std::any::type_name::<T>();
            return Err(Error::InvalidArgument(format!(
                "`{ty}` has no bytes, so there is nothing to put in a buffer"
            )));
        }
        let bytes = (self.len as u64).checked_mul(element as u64).ok_or_else(|| Error::LimitExceeded {
            what: format!("buffer size in bytes ({} elements of {element})", self.len),
            required: u64::MAX,
            available: self.device.info().limits.max_buffer_bytes,
        })?;
        Storage::allocate(self.device, bytes, self.wish, self.label.map(Into::into), first)
    }
}

/// Zeroes memory from `from` on to the end of its last word: by the CPU where it comes there and nobody is in the way,
/// else by the device.
fn zero(storage: &Arc<Storage>, from: u64) -> Result<()> {
    if from >= storage.padded {
        return Ok(());
    }
    // Across a bus the device fills faster than the CPU, but for a few bytes nobody should be woken.
    let near = matches!(storage.spot.path, HostPath::Uma | HostPath::HostMemory | HostPath::Unified);
    let by_cpu = near || storage.padded - from <= 4096;
    if by_cpu && matches!(storage.route(false)?, Route::Direct(_)) && storage.is_idle() {
        let hold = Hold::begin(storage, from, storage.padded - from, Mode::Overwrite, Patience::Forever)?;
        let mut guard = WriteGuard::<u8>::new(hold);
        guard.fill(0);
        return guard.finish();
    }
    // The device fills whole words. The bytes before `from` in the first are unspecified as yet.
    let from = from / 4 * 4;
    let device = &storage.device;
    let stream = device.transfer_stream()?;
    let to = storage.part(from, storage.padded - from);
    let mut uses = Uses::new();
    order::add(&mut uses, storage, true);
    order::submit(&device.shared, &mut uses, Tickets::new(), Order::ByHazards, |after| {
        // SAFETY: whole words of live memory of this device that may be written, behind all that conflicts.
        unsafe { stream.raw.submit(Work::Fill { to, word: 0 }, after) }
    })?;
    Ok(())
}
