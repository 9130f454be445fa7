//! Memory that the program already has, used by the device in place.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use onebuf_core::backend::{Memory, PageAccess};
use onebuf_core::error::human_bytes;
use onebuf_core::{CostClass, Error, HostAccess, HostPath, Intent, Placement, Result, Semantic};
use parking_lot::Mutex;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::pages;
use crate::storage::{Origin, Storage, Wish};

/// An owned array of whole pages, zero at first: what [`Device::adopt`] turns into a buffer without a copy.
///
/// It derefs to a slice, so that a decoder, a file or a socket can be read straight into it.
pub struct PageVec<T: Pod> {
    pointer: NonNull<T>,
    len: usize,
    layout: Layout,
}

/// The alignment without a device to ask: a page of most systems, and what drivers want.
const PAGE_BYTES: usize = 4096;

impl<T: Pod> PageVec<T> {
    /// `len` zeros on pages of 4096 bytes. Where a device wants more, [`Device::page_vec`] knows.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] where the size is past what this CPU can address.
    pub fn zeroed(len: usize) -> Result<PageVec<T>> {
        PageVec::aligned(len, PAGE_BYTES)
    }

    /// A copy of `elements`, on pages of 4096 bytes.
    ///
    /// # Errors
    /// Those of [`PageVec::zeroed`].
    pub fn from_slice(elements: &[T]) -> Result<PageVec<T>> {
        let mut pages = PageVec::zeroed(elements.len())?;
        pages.copy_from_slice(elements);
        Ok(pages)
    }

    /// `len` zeros that start at a multiple of `alignment_bytes` and own memory up to the next one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the alignment is no power of two; [`Error::LimitExceeded`] where the size is past
    /// what this CPU can address.
    pub fn aligned(len: usize, alignment_bytes: usize) -> Result<PageVec<T>> {
        if !alignment_bytes.is_power_of_two() {
            return Err(Error::InvalidArgument(format!(
                "{alignment_bytes} is no alignment: it must be a power of two"
            )));
        }
        let alignment = alignment_bytes.max(align_of::<T>());
        let layout = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.max(1).checked_next_multiple_of(alignment))
            .and_then(|bytes| Layout::from_size_align(bytes, alignment).ok());
        let Some(layout) = layout else {
            return Err(Error::LimitExceeded {
                what: format!("bytes of host memory ({len} elements of {})", size_of::<T>()),
                required: u64::MAX,
                available: isize::MAX as u64,
            });
        };
        // SAFETY: the layout's size is at least the alignment, so not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        match NonNull::new(pointer.cast::<T>()) {
            Some(pointer) => Ok(PageVec { pointer, len, layout }),
            None => Err(Error::OutOfMemory {
                asked_bytes: layout.size() as u64,
                free_bytes: None,
                never_fits: false,
            }),
        }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes of the pages.
    pub fn capacity_bytes(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: it owns its memory as a `Vec` does.
unsafe impl<T: Pod + Send> Send for PageVec<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for PageVec<T> {}

impl<T: Pod> Drop for PageVec<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.pointer.as_ptr().cast(), self.layout) }
    }
}

impl<T: Pod> Deref for PageVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements lie within the layout, were zeroed, and zero is a `T`.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for PageVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Pod> fmt::Debug for PageVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageVec").field("len", &self.len).field("bytes", &self.layout.size()).finish()
    }
}

/// Pages that a device did not take. The data is handed back.
pub struct NotAdopted<T: Pod> {
    /// The pages, as they were.
    pub pages: PageVec<T>,
    /// Why they were not taken.
    pub error: Error,
}

impl<T: Pod> fmt::Debug for NotAdopted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotAdopted").field("pages", &self.pages).field("error", &self.error).finish()
    }
}

impl<T: Pod> fmt::Display for NotAdopted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: Pod + Send + Sync> std::error::Error for NotAdopted<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T: Pod> From<NotAdopted<T>> for Error {
    fn from(not_adopted: NotAdopted<T>) -> Error {
        not_adopted.error
    }
}

/// Pages whose buffer is gone, and whose import the backend still holds.
#[derive(Default)]
pub(crate) struct Retired(Mutex<Vec<Pages>>);

struct Pages {
    // Dropped in this order.
    memory: Arc<dyn Memory>,
    _owner: Option<Box<dyn Any + Send + Sync>>,
}

impl Retired {
    /// Drops the owner of pages once nobody but the caller's storage holds `memory`. The caller drops its own at once.
    pub(crate) fn retire(&self, memory: &Arc<dyn Memory>, owner: Option<Box<dyn Any + Send + Sync>>) {
        self.0.lock().push(Pages { memory: memory.clone(), _owner: owner });
    }

    pub(crate) fn reap(&self) {
        let mut kept = self.0.lock();
        let (held, free): (Vec<Pages>, Vec<Pages>) =
            std::mem::take(&mut *kept).into_iter().partition(|pages| Arc::strong_count(&pages.memory) > 1);
        *kept = held;
        drop(kept);
        drop(free);
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        for pages in self.0.get_mut().drain(..) {
            if Arc::strong_count(&pages.memory) > 1 {
                // Somebody outlives the device with the import in hand: better lost than used after they are freed.
                std::mem::forget(pages);
            }
        }
    }
}

impl Device {
    /// `len` zeros on pages of the size that this device can [`adopt`](Device::adopt).
    ///
    /// # Errors
    /// Those of [`PageVec::aligned`].
    pub fn page_vec<T: Pod>(&self, len: usize) -> Result<PageVec<T>> {
        let wants = usize::try_from(self.info().limits.host_import_alignment_bytes).unwrap_or(PAGE_BYTES);
        PageVec::aligned(len, wants.max(PAGE_BYTES))
    }

    /// Makes a buffer of pages that the program filled, without a copy: the device uses them where they are.
    ///
    /// The buffer owns the pages. Dropping its last handle waits for the work that uses it.
    ///
    /// # Errors
    /// With the pages handed back: [`Error::Unsupported`] where the device cannot import host memory,
    /// [`Error::InvalidArgument`] where it wants another alignment than the pages have.
    pub fn adopt<T: Pod + Send + Sync>(&self, pages: PageVec<T>) -> Result<Buffer<T>, NotAdopted<T>> {
        let bytes = pages.capacity_bytes() as u64;
        let user_bytes = (pages.len * size_of::<T>()) as u64;
        let pointer = pages.pointer.cast::<u8>();
        if size_of::<T>() == 0 {
            let error = Error::InvalidArgument("elements without bytes cannot be put in a buffer".into());
            return Err(NotAdopted { pages, error });
        }
        // SAFETY: the pages are owned by the buffer's storage, which drops them after the memory and after the work on it;
        // until then nobody reaches them but through the buffer.
        match unsafe { import(self, pointer, bytes, PageAccess::ReadWrite) } {
            Ok(memory) => {
                let origin = Origin::Pages(Some(Box::new(pages)));
                Ok(Buffer::new(imported(self, memory, origin, user_bytes)))
            }
            Err(error) => Err(NotAdopted { pages, error }),
        }
    }

    /// Makes a buffer of memory that somebody else owns, without a copy. Start and size in bytes are multiples of
    /// [`Limits::host_import_alignment_bytes`](crate::Limits). [`Device::adopt`] does the same for memory that the buffer may own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device cannot import host memory, or refuses these pages (drivers may refuse
    /// files and memory shared between processes); [`Error::InvalidArgument`] saying what to round to, or that the program
    /// may not write the pages.
    ///
    /// # Safety
    /// Until the last handle to the buffer is dropped, which waits for work on it, the memory stays mapped and writable, and
    /// is read and written only by work on the buffer and through the buffer's guards.
    pub unsafe fn import_host<T: Pod>(&self, elements: *mut [T]) -> Result<Buffer<T>> {
        // SAFETY: the caller's promise.
        unsafe { self.import_pages(elements, PageAccess::ReadWrite, None) }
    }

    /// [`Device::import_host`] for memory that is only read: a file that is mapped, another library's constants. The
    /// buffer refuses guards and work that would write it.
    ///
    /// # Errors
    /// Those of [`Device::import_host`].
    ///
    /// # Safety
    /// Until the last handle to the buffer is dropped, which waits for work on it, the memory stays mapped, and nobody
    /// writes it.
    pub unsafe fn import_host_read_only<T: Pod>(&self, elements: *const [T]) -> Result<Buffer<T>> {
        // SAFETY: the caller's promise; the pages are not written.
        unsafe { self.import_pages(elements.cast_mut(), PageAccess::Read, None) }
    }

    /// Memory of the program that `owner` keeps, where there is one: it is dropped when no work uses the memory any more.
    ///
    /// # Safety
    /// That of [`Device::import_host`], or of [`Device::import_host_read_only`] where `access` is to read; an `owner` keeps
    /// the memory until it is dropped.
    pub(crate) unsafe fn import_pages<T: Pod>(
        &self,
        elements: *mut [T],
        access: PageAccess,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Buffer<T>> {
        let Some(pointer) = NonNull::new(elements.cast::<u8>()) else {
            return Err(Error::InvalidArgument("the pointer is null".into()));
        };
        if size_of::<T>() == 0 {
            return Err(Error::InvalidArgument("elements without bytes cannot be put in a buffer".into()));
        }
        let bytes = (elements.len() * size_of::<T>()) as u64;
        pages::check(pointer.as_ptr().addr() as u64, bytes, access)?;
        // SAFETY: the caller's promise.
        let memory = unsafe { import(self, pointer, bytes, access)? };
        Ok(Buffer::new(imported(self, memory, Origin::Pages(owner), bytes)))
    }
}

/// Checks the rules for imports and has the backend do it.
///
/// # Safety
/// As for [`Device::import_host`], or [`Device::import_host_read_only`].
pub(crate) unsafe fn import(
    device: &Device,
    pointer: NonNull<u8>,
    bytes: u64,
    access: PageAccess,
) -> Result<Arc<dyn Memory>> {
    let limits = &device.info().limits;
    let alignment = limits.host_import_alignment_bytes;
    if alignment == 0 {
        return Err(Error::unsupported(
            format!("import of host memory on {}", device.info().id),
            "the driver cannot; build a buffer with `.host(..)` and write into it, which needs no copy where the memory is shared",
        ));
    }
    let address = pointer.as_ptr().addr() as u64;
    if !address.is_multiple_of(alignment) {
        return Err(Error::InvalidArgument(format!(
            "host memory at {address:#x} cannot be imported: {} wants a multiple of {alignment}; `Device::page_vec` allocates such memory",
            device.info().id
        )));
    }
    if bytes == 0 || !bytes.is_multiple_of(alignment) {
        let next = bytes.max(1).checked_next_multiple_of(alignment).unwrap_or(bytes);
        return Err(Error::InvalidArgument(format!(
            "{bytes} byte(s) of host memory cannot be imported: {} wants a multiple of {alignment}; round up to {next}",
            device.info().id
        )));
    }
    Error::check_limit(
        "size of imported memory in bytes",
        bytes,
        limits.max_buffer_bytes.min(limits.max_allocation_bytes),
    )?;
    // SAFETY: the caller's promise; alignment and size have been checked.
    let memory = unsafe { device.shared.raw.import_host(pointer, bytes, access)? };
    if memory.size_bytes() < bytes {
        let has = human_bytes(memory.size_bytes());
        let call = "Device::import_host";
        return Err(Error::Driver { call, code: format!("{has} imported of {}", human_bytes(bytes)) });
    }
    Ok(memory)
}

fn imported(device: &Device, memory: Arc<dyn Memory>, origin: Origin, bytes: u64) -> Arc<Storage> {
    let host = if memory.is_read_only() { HostAccess::Read } else { HostAccess::ReadWrite };
    let wish = Wish { host, ..Wish::default() };
    let asked = wish.intent(bytes);
    Storage::given(
        device,
        memory,
        origin,
        bytes,
        wish,
        None,
        placement(device, asked, "imported host memory"),
    )
}

/// The placement of memory of the CPU that the device has imported.
pub(crate) fn placement(device: &Device, asked: Intent, kind: &str) -> Placement {
    let profile = &device.shared.profile;
    let shares = profile.kind.shares_host_memory();
    Placement {
        asked,
        kind: kind.into(),
        path: HostPath::HostMemory,
        semantic: Some(Semantic::HostImport),
        cached: true,
        coherent: profile.memory.iter().filter(|kind| kind.host_visible).all(|kind| kind.host_coherent),
        exportable: false,
        way: None,
        staged: false,
        host_cost: Some(CostClass::Cached),
        device_cost: if shares { CostClass::Cached } else { CostClass::OverBus },
        fell_back_from: None,
        lost: Vec::new(),
    }
}
