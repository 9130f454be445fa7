//! Buffers: memory that every processor of the program touches, under one handle.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use onebuf_core::backend::Export;
use onebuf_core::{Error, HandleKind, Placement, Result, Scalar};

use crate::arg::{Span, scalar_of};
use crate::device::Device;
use crate::guard::{Hold, Mode, Patience, ReadGuard, WriteGuard};
use crate::storage::Storage;

/// `len` elements of memory, shared by all that use it. Clones are handles to the same memory, which is freed with
/// the last one; work that was submitted keeps what it needs.
///
/// A buffer of length 0 is allowed: reading it gives an empty slice, copies and fills do nothing, and a kernel
/// refuses it as an argument, since WGSL has no empty arrays.
///
/// The memory is a multiple of 4 bytes, so that a `Buffer<u8>` binds as `array<u32>`; the bytes past the end are zero
/// when the buffer is made.
pub struct Buffer<T: Pod> {
    pub(crate) storage: Arc<Storage>,
    /// The part of the storage that it is, in bytes: all of it, unless a share of a part was opened.
    offset: u64,
    bytes: u64,
    pub(crate) scalar: Option<Scalar>,
    pub(crate) element: PhantomData<T>,
}

/// A range of a buffer's elements, borrowed: an argument of launches and copies, and the place for guards on a part.
pub struct BufferSlice<'a, T: Pod> {
    pub(crate) span: Span<'a>,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(storage: Arc<Storage>) -> Buffer<T> {
        let bytes = storage.bytes;
        Buffer { storage, offset: 0, bytes, scalar: scalar_of::<T>(), element: PhantomData }
    }

    /// A part of the storage. The caller has checked that it is one.
    pub(crate) fn view(storage: Arc<Storage>, offset: u64, bytes: u64) -> Buffer<T> {
        Buffer { storage, offset, bytes, scalar: scalar_of::<T>(), element: PhantomData }
    }

    pub(crate) fn span(&self) -> Span<'_> {
        Span { storage: &self.storage, offset: self.offset, size: self.bytes, scalar: self.scalar }
    }

    /// The whole buffer, as a slice.
    pub fn as_slice(&self) -> BufferSlice<'_, T> {
        BufferSlice { span: self.span(), element: PhantomData }
    }

    /// The device that it was made on.
    pub fn device(&self) -> &Device {
        &self.storage.device
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        // It came from a `usize`, or was checked to fit one.
        (self.bytes / size_of::<T>() as u64) as usize
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins in its memory, in bytes: 0, unless it was opened from a share of a part.
    pub fn offset_bytes(&self) -> u64 {
        self.offset
    }

    /// Where it is, and why: what was asked, what was got, what it costs.
    pub fn placement(&self) -> &Placement {
        self.storage.placement()
    }

    /// The name it was given.
    pub fn label(&self) -> Option<&str> {
        self.storage.label.as_deref()
    }

    /// True when both are handles to one memory.
    pub fn same_memory<U: Pod>(&self, other: &Buffer<U>) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// The elements in `range`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// The same memory, seen as elements of another type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the size is no multiple of the other element's.
    pub fn cast<U: Pod>(&self) -> Result<Buffer<U>> {
        let (bytes, element) = (self.bytes, size_of::<U>() as u64);
        if element == 0 || !bytes.is_multiple_of(element) {
            let ty = std::any::type_name::<U>();
            return Err(Error::InvalidArgument(format!(
                "{bytes} byte(s) are no whole number of `{ty}`, which has {element}"
            )));
        }
        Ok(Buffer::view(self.storage.clone(), self.offset, bytes))
    }

    /// Waits for the work that writes the buffer, then gives its elements to the CPU. While the guard lives, work that
    /// would write the buffer is refused with [`Error::Busy`].
    ///
    /// Reads of memory that is not cached ([`Placement::cached`]) crawl: go through it once, front to back. Where the
    /// placement is [`Placement::staged`], the elements are copied first.
    ///
    /// # Errors
    /// - [`Error::Busy`] while a write guard lives.
    /// - [`Error::Unsupported`] where the buffer was not built for CPU reads; [`Buffer::read_to_vec`] copies any buffer.
    /// - [`Error::DeviceLost`].
    pub fn read(&self) -> Result<ReadGuard<T>> {
        self.as_slice().read()
    }

    /// [`Buffer::read`], that gives up after `limit`.
    ///
    /// # Errors
    /// [`Error::Timeout`], and those of [`Buffer::read`].
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<T>> {
        self.as_slice().read_timeout(limit)
    }

    /// [`Buffer::read`], that never waits for work. Where the placement is staged, the first call starts the copy, and a
    /// later one finds it.
    ///
    /// # Errors
    /// [`Error::Busy`] while work that writes the buffer is not done, and those of [`Buffer::read`].
    pub fn try_read(&self) -> Result<ReadGuard<T>> {
        self.as_slice().try_read()
    }

    /// Waits for all work on the buffer, then gives its elements to the CPU to write. While the guard lives, work on the
    /// buffer is refused with [`Error::Busy`].
    ///
    /// Reading through the guard is as slow as the memory is: see [`Buffer::read`]. Where the placement is staged, the
    /// elements are copied to the CPU first and back when the guard is dropped; [`Buffer::overwrite`] spares the first.
    ///
    /// # Errors
    /// - [`Error::Busy`] while another guard lives.
    /// - [`Error::Unsupported`] where the buffer was not built for CPU writes; [`Buffer::copy_from_slice`] writes any.
    /// - [`Error::DeviceLost`].
    pub fn write(&self) -> Result<WriteGuard<T>> {
        self.as_slice().write()
    }

    /// [`Buffer::write`], that never waits for work.
    ///
    /// # Errors
    /// [`Error::Busy`] while work on the buffer is not done, and those of [`Buffer::write`].
    pub fn try_write(&self) -> Result<WriteGuard<T>> {
        self.as_slice().try_write()
    }

    /// [`Buffer::write`], for those who write every element: what the guard shows at first is unspecified, and nothing
    /// is copied to the CPU. Elements that are not written are unspecified afterwards.
    ///
    /// # Errors
    /// Those of [`Buffer::write`].
    pub fn overwrite(&self) -> Result<WriteGuard<T>> {
        self.as_slice().overwrite()
    }

    /// The elements, copied. It works on every buffer, whatever it was built for.
    ///
    /// # Errors
    /// [`Error::Busy`] while a write guard lives; [`Error::DeviceLost`].
    pub fn read_to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().read_to_vec()
    }

    /// Copies the elements into `target`, which has the same length. It works on every buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length; [`Error::Busy`] while a write guard lives; [`Error::DeviceLost`].
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(target)
    }

    /// Copies `source`, which has the same length, into the buffer. It works on every buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length; [`Error::Busy`] while a guard lives; [`Error::DeviceLost`].
    pub fn copy_from_slice(&self, source: &[T]) -> Result<()> {
        self.as_slice().copy_from_slice(source)
    }

    /// A handle by which another process or API opens the same memory, all of it. The buffer must have been built with
    /// [`share`](crate::BufferBuilder::share). [`Buffer::share`] gives the same with a description that can be checked.
    ///
    /// Hazards order this process's work alone: whoever opens the handle must agree with this side on who uses the
    /// memory when. So must who uses the descriptor in this process: a file that is written by it, as a memfd can be, changes
    /// under guards, as any file that is mapped does.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the buffer was not built to be shared, or not in this way.
    pub fn export(&self, handle: HandleKind) -> Result<Export> {
        self.storage.export(handle)
    }
}

impl<'a, T: Pod> BufferSlice<'a, T> {
    /// Length in elements.
    pub fn len(&self) -> usize {
        (self.span.size / size_of::<T>() as u64) as usize
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.span.size == 0
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.span.size
    }

    /// Where it begins in the buffer, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.span.offset
    }

    /// The elements in `range` of this slice.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the range is not within the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'a, T>> {
        let len = self.len();
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(len),
        };
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Error::InvalidArgument("the range ends past the largest index".into()));
        };
        if start > end || end > len {
            return Err(Error::InvalidArgument(format!("{start}..{end} is no range of {len} element(s)")));
        }
        let element = size_of::<T>() as u64;
        let (offset, size) = (self.span.offset + start as u64 * element, (end - start) as u64 * element);
        Ok(BufferSlice { span: Span { offset, size, ..self.span }, element: PhantomData })
    }

    /// [`Buffer::read`] of these elements. Guards count for the whole buffer.
    ///
    /// # Errors
    /// Those of [`Buffer::read`].
    pub fn read(&self) -> Result<ReadGuard<T>> {
        self.check_read()?;
        self.hold(Mode::Read, Patience::Forever).map(ReadGuard::new)
    }

    /// [`Buffer::read_timeout`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::read_timeout`].
    pub fn read_timeout(&self, limit: Duration) -> Result<ReadGuard<T>> {
        self.check_read()?;
        self.hold(Mode::Read, Patience::Until(limit)).map(ReadGuard::new)
    }

    /// [`Buffer::try_read`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::try_read`].
    pub fn try_read(&self) -> Result<ReadGuard<T>> {
        self.check_read()?;
        self.hold(Mode::Read, Patience::None).map(ReadGuard::new)
    }

    /// [`Buffer::write`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::write`].
    pub fn write(&self) -> Result<WriteGuard<T>> {
        self.check_write()?;
        self.hold(Mode::Write, Patience::Forever).map(WriteGuard::new)
    }

    /// [`Buffer::try_write`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::try_write`].
    pub fn try_write(&self) -> Result<WriteGuard<T>> {
        self.check_write()?;
        self.hold(Mode::Write, Patience::None).map(WriteGuard::new)
    }

    /// [`Buffer::overwrite`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::overwrite`].
    pub fn overwrite(&self) -> Result<WriteGuard<T>> {
        self.check_write()?;
        self.hold(Mode::Overwrite, Patience::Forever).map(WriteGuard::new)
    }

    /// [`Buffer::read_to_vec`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::read_to_vec`].
    pub fn read_to_vec(&self) -> Result<Vec<T>> {
        self.hold(Mode::Read, Patience::Forever).map(|hold| ReadGuard::new(hold).to_vec())
    }

    /// [`Buffer::copy_to_slice`] of these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::copy_to_slice`].
    pub fn copy_to_slice(&self, target: &mut [T]) -> Result<()> {
        self.check_len(target.len())?;
        let guard = self.hold(Mode::Read, Patience::Forever).map(ReadGuard::new)?;
        target.copy_from_slice(&guard);
        Ok(())
    }

    /// [`Buffer::copy_from_slice`] to these elements.
    ///
    /// # Errors
    /// Those of [`Buffer::copy_from_slice`].
    pub fn copy_from_slice(&self, source: &[T]) -> Result<()> {
        self.check_len(source.len())?;
        let mut guard = self.hold(Mode::Overwrite, Patience::Forever).map(WriteGuard::new)?;
        guard.copy_from_slice(source);
        guard.finish()
    }

    /// The CPU's hold on the elements, whatever the buffer was built for.
    pub(crate) fn hold(&self, mode: Mode, patience: Patience) -> Result<Hold> {
        let hold = Hold::begin(self.span.storage, self.span.offset, self.span.size, mode, patience)?;
        hold.check_alignment::<T>()?;
        Ok(hold)
    }

    fn check_len(&self, given: usize) -> Result<()> {
        let len = self.len();
        if given == len {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{given} element(s) given for {len}")))
    }

    fn check_read(&self) -> Result<()> {
        self.check_access(self.span.storage.wish.host.reads(), "read", "Read", "read_to_vec")
    }

    fn check_write(&self) -> Result<()> {
        self.span.storage.check_writable()?;
        self.check_access(self.span.storage.wish.host.writes(), "write", "Write", "copy_from_slice")
    }

    fn check_access(&self, allowed: bool, verb: &str, access: &str, instead: &str) -> Result<()> {
        if allowed {
            return Ok(());
        }
        let storage = self.span.storage;
        Err(Error::unsupported(
            format!("a {verb} guard on {}", storage.describe()),
            format!(
                "it was built for host access `{}`; build it with `.host(HostAccess::{access})`, or use `{instead}`, which copies",
                storage.wish.host.name()
            ),
        ))
    }
}

impl<T: Pod> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        Buffer { storage: self.storage.clone(), ..*self }
    }
}

impl<T: Pod> Clone for BufferSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for BufferSlice<'_, T> {}

impl<'a, T: Pod> From<&'a Buffer<T>> for BufferSlice<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> BufferSlice<'a, T> {
        buffer.as_slice()
    }
}

impl<'a, T: Pod> From<&BufferSlice<'a, T>> for BufferSlice<'a, T> {
    fn from(slice: &BufferSlice<'a, T>) -> BufferSlice<'a, T> {
        *slice
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("device", &self.device().info().id)
            .field("label", &self.label())
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<T: Pod> fmt::Debug for BufferSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferSlice")
            .field("element", &std::any::type_name::<T>())
            .field("offset_bytes", &self.offset_bytes())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
