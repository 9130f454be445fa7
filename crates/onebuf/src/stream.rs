//! Streams: queues of work. The order between pieces of work follows from the buffers they use.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytemuck::Pod;
use onebuf_core::args::{BufferArg, check};
use onebuf_core::backend::{self, Launch, Part, Work};
use onebuf_core::error::BindingRef;
use onebuf_core::{Error, Result, StreamId, Ticket, Tickets};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::arg::{Arg, ArgKind, Span};
use crate::buffer::BufferSlice;
use crate::device::{Device, Shared};
use crate::event::Event;
use crate::graph::Graph;
use crate::kernel::Kernel;
use crate::order::{self, Order, Uses};

/// A queue of work of a device. Clones are handles to the same one; streams of a device may run at the same time.
///
/// Work waits, on the device, for earlier work that it conflicts with through a buffer, whichever stream that is on.
/// Work that conflicts with none may overlap, also within one stream.
#[derive(Clone)]
pub struct Stream {
    pub(crate) device: Device,
    pub(crate) inner: Arc<StreamInner>,
}

pub(crate) struct StreamInner {
    pub(crate) raw: Arc<dyn backend::Stream>,
    device: Weak<Shared>,
    /// What all later work of the stream waits for, by the user's wish.
    fence: Mutex<Tickets>,
    fenced: AtomicBool,
}

impl StreamInner {
    pub(crate) fn new(raw: Arc<dyn backend::Stream>, device: Weak<Shared>) -> StreamInner {
        StreamInner { raw, device, fence: Mutex::default(), fenced: AtomicBool::new(false) }
    }

    fn fence(&self) -> Tickets {
        if !self.fenced.load(Ordering::Acquire) {
            return Tickets::new();
        }
        self.fence.lock().clone()
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            device.stream_gone(self.raw.last());
        }
    }
}

impl Stream {
    /// Its identity, as in its tickets.
    pub fn id(&self) -> StreamId {
        self.inner.raw.id()
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs a kernel over a grid of workgroups. Buffers are given in the order of the kernel's bindings, sorted by group
    /// and binding, and the value of its `var<immediate>` among them; see [`args!`](crate::args).
    ///
    /// Nothing waits here. A grid with a dimension of 0 does nothing, after its arguments have been checked.
    ///
    /// # Errors
    /// - [`Error::BindingMismatch`] naming the binding that an argument does not fit.
    /// - [`Error::LimitExceeded`] where a binding is larger than the device allows.
    /// - [`Error::InvalidArgument`] where kernel or buffers are another device's.
    /// - [`Error::Busy`] while a host guard on a buffer lives that conflicts.
    /// - [`Error::DeviceLost`].
    pub fn launch(&self, kernel: &Kernel, groups: [u32; 3], args: &[Arg<'_>]) -> Result<Ticket> {
        self.submit_launch(kernel, groups, args, self.inner.fence(), Order::ByHazards)
    }

    /// [`Stream::launch`] behind the work of `after`, and of nothing else. Later work waits for it as usual.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// Work that uses the same buffers and that `after` does not lead back to may run at the same time. The caller sees
    /// to it that this does no harm. Later work, guards and the memory itself wait for this launch as for any other.
    pub unsafe fn launch_unordered(
        &self,
        kernel: &Kernel,
        groups: [u32; 3],
        args: &[Arg<'_>],
        after: &[Ticket],
    ) -> Result<Ticket> {
        for &ticket in after {
            self.device.check_ticket(ticket)?;
        }
        self.submit_launch(kernel, groups, args, after.iter().copied().collect(), Order::ByHand)
    }

    fn submit_launch(
        &self,
        kernel: &Kernel,
        groups: [u32; 3],
        args: &[Arg<'_>],
        after: Tickets,
        order: Order,
    ) -> Result<Ticket> {
        let mut checked = Checked::default();
        checked.check(&self.device, kernel, args)?;
        if groups.contains(&0) {
            return Ok(self.inner.raw.last());
        }
        let Checked { bindings, immediates, .. } = &checked;
        let launch = Launch { kernel: &kernel.raw, bindings, immediates, groups };
        let mut uses = checked.uses(kernel);
        order::submit(&self.device.shared, &mut uses, after, order, |after| {
            // SAFETY: the arguments were checked, as were the groups, and what conflicts is in `after`, or the caller of an
            // unsafe function sees to it.
            unsafe { self.inner.raw.submit(Work::Launch(launch), after) }
        })
    }

    /// Copies elements from one buffer, or slice of one, to another of the same length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the lengths differ, the parts overlap or a buffer is another device's;
    /// [`Error::Busy`] while a host guard lives that conflicts; [`Error::DeviceLost`].
    pub fn copy<'a, 'b, T: Pod>(
        &self,
        from: impl Into<BufferSlice<'a, T>>,
        to: impl Into<BufferSlice<'b, T>>,
    ) -> Result<Ticket> {
        let (from, to) = (from.into().span, to.into().span);
        check_copy(&self.device, &from, &to)?;
        if from.size == 0 {
            return Ok(self.inner.raw.last());
        }
        let mut uses = Uses::new();
        order::add(&mut uses, from.storage, false);
        order::add(&mut uses, to.storage, true);
        let work = Work::Copy {
            from: from.storage.part(from.offset, from.size),
            to: to.storage.part(to.offset, to.size),
        };
        self.submit(&mut uses, work)
    }

    /// Fills a buffer, or a slice of one, with a 32-bit word (`1.5f32.to_bits()` for a float). A whole buffer of a size
    /// that is no multiple of 4 bytes is filled up to the next one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a slice begins or ends within a word or the buffer is another device's;
    /// [`Error::Busy`] while a host guard lives; [`Error::DeviceLost`].
    pub fn fill<'a, T: Pod>(&self, to: impl Into<BufferSlice<'a, T>>, word: u32) -> Result<Ticket> {
        let to = to.into().span;
        check_fill(&self.device, &to)?;
        if to.size == 0 {
            return Ok(self.inner.raw.last());
        }
        let mut uses = Uses::new();
        order::add(&mut uses, to.storage, true);
        self.submit(&mut uses, Work::Fill { to: to.storage.part(to.offset, to.bound_size()), word })
    }

    /// Runs a graph.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the graph is another device's; [`Error::Busy`] while a host guard on one of its
    /// buffers lives that conflicts; [`Error::DeviceLost`].
    pub fn replay(&self, graph: &Graph) -> Result<Ticket> {
        self.device.check_same(graph.device(), || "the graph".to_owned())?;
        let Some(raw) = graph.raw() else { return Ok(self.inner.raw.last()) };
        let mut uses = graph.uses();
        order::submit(&self.device.shared, &mut uses, self.inner.fence(), Order::ByHazards, |after| {
            // SAFETY: `after` has what conflicts with any of the graph's buffers.
            unsafe { self.inner.raw.replay(raw, after) }
        })
    }

    /// Marks this point of the stream with the device's clock.
    pub fn event(&self) -> Result<Event> {
        Ok(Event::new(&self.device, self.inner.raw.event()?))
    }

    /// Makes all later work of this stream wait for a ticket of this device. The order through buffers needs no such
    /// call; it is for order that no buffer shows.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the ticket is another device's.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        self.device.check_ticket(ticket)?;
        let raw = &self.device.shared.raw;
        let mut fence = self.inner.fence.lock();
        if fence.as_slice().len() >= 8 {
            fence.retain(|ticket| !matches!(raw.is_done(ticket), Ok(true)));
        }
        fence.add(ticket);
        self.inner.fenced.store(true, Ordering::Release);
        Ok(())
    }

    /// The ticket of the last work that the stream was given.
    pub fn last(&self) -> Ticket {
        self.inner.raw.last()
    }

    /// Hands gathered work to the driver now. It is handed over without this call, too, a little later.
    pub fn flush(&self) -> Result<()> {
        self.inner.raw.flush()
    }

    /// Waits for all work that the stream was given.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn wait(&self) -> Result<()> {
        self.device.shared.raw.wait(&[self.last()], None)
    }

    /// [`Stream::wait`], that gives up after `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::DeviceLost`].
    pub fn wait_timeout(&self, limit: Duration) -> Result<()> {
        self.device.shared.raw.wait(&[self.last()], Some(limit))
    }

    /// The backend's stream, for interoperation.
    ///
    /// # Safety
    /// The traits of [`onebuf_core::backend`] check nothing and order nothing: what is done through them keeps their
    /// contract, and stays clear of what onebuf does with the same memory.
    pub unsafe fn raw(&self) -> &Arc<dyn backend::Stream> {
        &self.inner.raw
    }

    fn submit(&self, uses: &mut Uses<'_>, work: Work<'_>) -> Result<Ticket> {
        order::submit(&self.device.shared, uses, self.inner.fence(), Order::ByHazards, |after| {
            // SAFETY: copies and fills come here checked, behind all that conflicts.
            unsafe { self.inner.raw.submit(work, after) }
        })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The arguments of a launch, found good. They are filled in place: the lists are too large to be moved for nothing.
#[derive(Default)]
pub(crate) struct Checked<'a> {
    pub(crate) spans: SmallVec<[Span<'a>; 8]>,
    /// What is bound of each.
    pub(crate) bindings: SmallVec<[Part<'a>; 8]>,
    pub(crate) immediates: &'a [u8],
}

impl<'a> Checked<'a> {
    pub(crate) fn new(device: &Device, kernel: &Kernel, args: &[Arg<'a>]) -> Result<Checked<'a>> {
        let mut checked = Checked::default();
        checked.check(device, kernel, args)?;
        Ok(checked)
    }

    /// Fills it in.
    fn check(&mut self, device: &Device, kernel: &Kernel, args: &[Arg<'a>]) -> Result<()> {
        device.check_same(&kernel.device, || "the kernel".to_owned())?;
        let interface = kernel.raw.interface();
        let mut buffers: SmallVec<[BufferArg; 8]> = SmallVec::new();
        for arg in args {
            match arg.0 {
                ArgKind::Buffer(span) => {
                    let storage = span.storage;
                    device.check_same(&storage.device, || storage.describe())?;
                    let size_bytes = span.bound_size();
                    self.bindings.push(storage.part(span.offset, size_bytes));
                    buffers.push(BufferArg {
                        memory: Arc::as_ptr(storage).addr(),
                        offset_bytes: span.offset,
                        size_bytes,
                        scalar: span.scalar,
                        writable: !storage.read_only,
                    });
                    self.spans.push(span);
                }
                ArgKind::Immediates(bytes) if self.immediates.is_empty() => self.immediates = bytes,
                ArgKind::Immediates(_) => {
                    let problem = "more than one value is given for it; put all in one struct".into();
                    let (kernel, binding) = (interface.entry.clone(), BindingRef::Immediate);
                    return Err(Error::BindingMismatch { kernel, binding, problem });
                }
            }
        }
        check(interface, &device.info().limits, &buffers, self.immediates)
    }

    pub(crate) fn uses(&self, kernel: &Kernel) -> Uses<'a> {
        let mut uses = Uses::new();
        for (span, binding) in self.spans.iter().zip(&kernel.raw.interface().bindings) {
            order::add(&mut uses, span.storage, binding.access.writes());
        }
        uses
    }
}

/// Checks a copy: one device, one length, no overlap.
pub(crate) fn check_copy(device: &Device, from: &Span<'_>, to: &Span<'_>) -> Result<()> {
    device.check_same(&from.storage.device, || from.storage.describe())?;
    device.check_same(&to.storage.device, || to.storage.describe())?;
    to.storage.check_writable()?;
    let (has, takes) = (from.size, to.size);
    if has != takes {
        return Err(Error::InvalidArgument(format!("{has} bytes are copied to a place of {takes}")));
    }
    let overlap = Arc::ptr_eq(from.storage, to.storage)
        && from.offset < to.offset + to.size
        && to.offset < from.offset + from.size;
    if overlap {
        let (from, to) = (from.offset, to.offset);
        return Err(Error::InvalidArgument(format!(
            "{has} bytes are copied from byte {from} to byte {to} of one buffer, and overlap"
        )));
    }
    Ok(())
}

/// Checks a fill: the device, and whole words.
pub(crate) fn check_fill(device: &Device, to: &Span<'_>) -> Result<()> {
    device.check_same(&to.storage.device, || to.storage.describe())?;
    to.storage.check_writable()?;
    if to.offset.is_multiple_of(4) && to.bound_size().is_multiple_of(4) {
        return Ok(());
    }
    let (offset, size) = (to.offset, to.size);
    Err(Error::InvalidArgument(format!(
        "a fill of {size} bytes from byte {offset} on is not of whole words: both must be multiples of 4"
    )))
}
