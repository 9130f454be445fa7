//! Buffers that other processes hold too: how they leave as a share, how a share becomes a buffer, and the memfd route.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytemuck::Pod;
use onebuf_core::backend::{Export, PageAccess};
use onebuf_core::placement::Rejected;
use onebuf_core::{Error, HandleKind, Placement, Result, Semantic, Strength};
use onebuf_ipc::{Mapping, Memfd, ObjectKey, SharedBuffer};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::buffer::{Buffer, BufferSlice};
use crate::device::Device;
use crate::host;
use crate::storage::{Origin, State, Storage, Wish};

/// The shared memory of a device, by object: a share is opened once, and what this process shared is found, not opened.
#[derive(Default)]
pub(crate) struct Objects {
    known: Mutex<FxHashMap<ObjectKey, Weak<Storage>>>,
    /// Held while one is opened, so that two threads do not open one object twice.
    opening: Mutex<()>,
}

impl Objects {
    fn find(&self, key: ObjectKey) -> Option<Arc<Storage>> {
        let known = self.known.lock().get(&key).cloned();
        // Without the lock: where this is the last handle, dropping it takes the lock again.
        known?.upgrade()
    }

    fn remember(&self, key: ObjectKey, storage: &Arc<Storage>) {
        self.known.lock().insert(key, Arc::downgrade(storage));
    }

    /// Called by a storage that goes away. The object may have been opened anew meanwhile.
    pub(crate) fn forget(&self, key: ObjectKey) {
        let mut known = self.known.lock();
        if known.get(&key).is_some_and(|storage| storage.strong_count() == 0) {
            known.remove(&key);
        }
    }

    /// Objects that are open.
    fn count(&self) -> usize {
        self.known.lock().len()
    }
}

impl<T: Pod> Buffer<T> {
    /// A share of the buffer, to be passed to other processes by [`ipc`](crate::ipc). The buffer must have been built with
    /// [`share`](crate::BufferBuilder::share), or opened from a share.
    ///
    /// Hazards order this process's work alone: see [`Device::open_shared`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the buffer was not built to be shared, and how to build it so; [`Error::Os`] where no
    /// descriptor is left.
    pub fn share(&self) -> Result<SharedBuffer> {
        self.as_slice().share()
    }

    /// Waits for all of this process's work on the buffer: before another process is told that it has it.
    ///
    /// # Errors
    /// [`Error::Busy`] while a guard lives; [`Error::Timeout`] after `limit`; [`Error::DeviceLost`].
    pub fn settle(&self, limit: Duration) -> Result<()> {
        self.storage.settle(limit)
    }
}

impl<T: Pod> BufferSlice<'_, T> {
    /// A share of these elements alone; see [`Buffer::share`]. Who opens it gets a buffer of them. The rest of the buffer,
    /// not of any other, is one object with them, and is kept from honest programs only.
    ///
    /// # Errors
    /// Those of [`Buffer::share`].
    pub fn share(&self) -> Result<SharedBuffer> {
        share(self.span.storage)?.view(self.span.offset, self.span.size)
    }
}

impl Device {
    /// A buffer in memory that another process shared. The object is opened once: while a buffer of it lives, a further
    /// call costs a look-up, and its buffers are one memory with common hazards. A share that this process made of a
    /// buffer of this device gives the same memory back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the object is none that this device can open, or the shared part is no whole number
    /// of elements; [`Error::Unsupported`] where the device opens no objects of the share's kind.
    ///
    /// # Safety
    /// Hazards order what goes through this process's buffers. The other processes that hold the memory do not write it
    /// while this one reads, nor touch it while this one writes: a [`ring`](crate::ring), or a
    /// message of a [`Channel`](crate::ipc::Channel), passes the turn, and whoever passes it has waited for its own work
    /// ([`Buffer::settle`]).
    pub unsafe fn open_shared<T: Pod>(&self, share: &SharedBuffer) -> Result<Buffer<T>> {
        let element = size_of::<T>() as u64;
        let view = share.view_bytes();
        if element == 0 || !view.is_multiple_of(element) {
            let ty = std::any::type_name::<T>();
            return Err(Error::InvalidArgument(format!(
                "a share of {view} byte(s) holds no whole number of `{ty}`, which has {element}"
            )));
        }
        Ok(Buffer::view(self.open_object(share, None)?, share.description().view_offset_bytes, view))
    }

    /// How many memory objects of this device are shared with, or opened from, other processes.
    pub fn shared_objects(&self) -> usize {
        self.shared.objects.count()
    }

    /// The storage of an object, opened where it is not open. `state` is that of its storages on other devices.
    pub(crate) fn open_object(
        &self,
        share: &SharedBuffer,
        state: Option<&Arc<Mutex<State>>>,
    ) -> Result<Arc<Storage>> {
        let objects = &self.shared.objects;
        if let Some(found) = objects.find(share.key()) {
            return check_same(found, share);
        }
        let _opening = objects.opening.lock();
        if let Some(found) = objects.find(share.key()) {
            return check_same(found, share);
        }
        let storage = self
            .import(share.to_export()?, share.description().buffer_bytes, state.is_some())?
            .with_state(state);
        objects.remember(share.key(), &storage);
        let _ = storage.object.set(share.whole());
        Ok(storage)
    }
}

/// Refuses a share that describes an open object otherwise than it was when it was opened.
fn check_same(found: Arc<Storage>, share: &SharedBuffer) -> Result<Arc<Storage>> {
    if found.object.get().is_some_and(|object| object.description() != share.whole().description()) {
        return Err(Error::InvalidArgument(
            "the object is open in this process, and the share describes it in another way".into(),
        ));
    }
    Ok(found)
}

/// The share of a storage's memory.
pub(crate) fn share(storage: &Arc<Storage>) -> Result<SharedBuffer> {
    if let Some(object) = storage.object.get() {
        return Ok(object.clone());
    }
    let way = storage.placement().way.ok_or_else(|| {
        let what = format!("a share of {}", storage.describe());
        Error::unsupported(
            what,
            "its memory cannot leave the process; build the buffer with `.share(Share::Process)`",
        )
    })?;
    let made = SharedBuffer::from_export(storage.export(way)?, storage.bytes)?;
    let object = storage.object.get_or_init(|| made).clone();
    storage.device.shared.objects.remember(object.key(), storage);
    Ok(object)
}

impl Storage {
    /// A handle to the whole memory.
    pub(crate) fn export(&self, way: HandleKind) -> Result<Export> {
        match self.object.get() {
            Some(object) if object.description().way == way => object.to_export(),
            Some(object) if object.description().way == HandleKind::Memfd => Err(Error::unsupported(
                format!("export as {}", way.name()),
                "the buffer took the memfd route, as its placement says: export it as memfd",
            )),
            _ => {
                let mut export = self.memory.export(way)?;
                export.size_bytes = export.size_bytes.min(self.padded);
                Ok(export)
            }
        }
    }
}

/// Memory for a shared buffer where no kind of the driver's memory serves, for the reasons in `rejected`: pages of a sealed
/// memfd, imported. They are zero.
pub(crate) fn by_memfd(
    device: &Device,
    bytes: u64,
    padded: u64,
    wish: Wish,
    label: Option<Box<str>>,
    rejected: Vec<Rejected>,
) -> Result<Arc<Storage>> {
    let granule = device.info().limits.host_import_alignment_bytes;
    let missing = wish.semantic.filter(|(semantic, _)| !HAS.contains(semantic));
    let out = if !wish.ways.contains(HandleKind::Memfd) {
        Some(format!("only {} is allowed", wish.ways))
    } else if let Some((semantic, Strength::Require)) = missing {
        Some(format!("{semantic} is required, and this is host-import"))
    } else if granule == 0 {
        Some("the driver imports no memory of the CPU".into())
    } else {
        None
    };
    let refuse = |mut rejected: Vec<Rejected>, reason: String| {
        rejected.push(Rejected { kind: MEMFD.into(), reason });
        let device = format!("{} ({})", device.info().id, device.info().name);
        Err(Error::NoPlacement { device, asked: wish.intent(padded).to_string(), rejected })
    };
    if let Some(reason) = out {
        return refuse(rejected, reason);
    }
    let memfd = Memfd::create(padded, granule)?;
    let pages = memfd.map()?;
    match on_pages(device, pages, bytes, wish, label, rejected.clone()) {
        Ok(storage) => {
            let object = SharedBuffer::from_export(memfd.export(padded)?, bytes)?;
            let object = storage.object.get_or_init(|| object);
            device.shared.objects.remember(object.key(), &storage);
            Ok(storage)
        }
        Err(Error::Unsupported { reason, .. }) => refuse(rejected, reason),
        Err(other) => Err(other),
    }
}

/// The memory of the memfd route, in placements.
const MEMFD: &str = "memfd";

/// What that memory has of what may be asked for by name.
const HAS: [Semantic; 3] = [Semantic::Process, Semantic::Api, Semantic::HostImport];

/// A storage on the pages of a memfd, which it keeps mapped.
pub(crate) fn on_pages(
    device: &Device,
    pages: Mapping,
    bytes: u64,
    wish: Wish,
    label: Option<Box<str>>,
    lost: Vec<Rejected>,
) -> Result<Arc<Storage>> {
    // SAFETY: the storage keeps the pages mapped until the memory is gone and the work on it is done, and their file cannot
    // shrink. Who else in this process maps the file goes by the rules of `Device::open_shared`.
    let memory = unsafe { host::import(device, pages.pointer(), pages.bytes(), PageAccess::ReadWrite)? };
    let placement = Placement {
        exportable: true,
        way: Some(HandleKind::Memfd),
        lost,
        fell_back_from: wish
            .semantic
            .map(|(semantic, _)| semantic)
            .filter(|semantic| !HAS.contains(semantic)),
        ..host::placement(device, wish.intent(bytes), MEMFD)
    };
    let origin = Origin::Pages(Some(Box::new(pages)));
    Ok(Storage::given(device, memory, origin, bytes, wish, label, placement))
}
