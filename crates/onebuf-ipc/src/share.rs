//! A share: one memory object that leaves the process, with all that an importer checks it against.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use onebuf_core::backend::Export;
use onebuf_core::{DeviceUuid, Error, HandleKind, Result, Token};
use serde::{Deserialize, Serialize};

use crate::fd::{self, FileId};

/// The name of one memory object, given when it is first shared and never again: 128 random bits. Who knows it was given
/// the object, so it is told to holders alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectId([u8; 16]);

impl ObjectId {
    fn random() -> Result<ObjectId> {
        let mut bytes = [0; 16];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::os("getrandom", &error.into()))?;
        if got != bytes.len() {
            return Err(Error::Os { what: "getrandom".into(), reason: format!("{got} of 16 bytes") });
        }
        Ok(ObjectId(bytes))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first four bytes tell two objects apart and open nothing.
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}..")
    }
}

/// What a share says of its object. It is a stranger's word until [`SharedBuffer::new`] has held it against the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// By which way the object is opened.
    pub way: HandleKind,
    /// Which object it is.
    pub object: ObjectId,
    /// Counts the objects that its maker has shared, from 1.
    pub generation: u64,
    /// Size in bytes of the whole allocation.
    pub allocation_bytes: u64,
    /// Size in bytes of the driver's buffer in it, which begins at byte 0.
    pub size_bytes: u64,
    /// Size in bytes of what its maker asked for: at most `size_bytes`, which is in whole words.
    pub buffer_bytes: u64,
    /// The allocation is a multiple of this many bytes.
    pub granule_bytes: u64,
    /// Index of the kind of memory on the exporting device; 0 for a memfd, which is of no device.
    pub kind: usize,
    /// The allocation was made for one buffer.
    pub dedicated: bool,
    /// It is the device's own memory; not so for a memfd.
    pub device_local: bool,
    /// The device that it lies on, where it has an identity.
    pub device: Option<DeviceUuid>,
    /// The driver's identity; zeros for a memfd.
    pub driver: [u8; 16],
    /// The run of the system that made it.
    pub boot: BootId,
    /// What names the memory to the driver, where the way has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Where the shared part begins in the buffer, in bytes.
    pub view_offset_bytes: u64,
    /// Length of the shared part, in bytes.
    pub view_bytes: u64,
}

impl Description {
    /// The device and driver a native object belongs to, its sizes and its view, checked against each other.
    fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::InvalidArgument(format!("the description of a share: {what}")));
        let Description { allocation_bytes, size_bytes, granule_bytes, .. } = *self;
        if size_bytes == 0 || size_bytes > allocation_bytes {
            return bad(format!("a buffer of {size_bytes} bytes in an allocation of {allocation_bytes}"));
        }
        if granule_bytes == 0 || !allocation_bytes.is_multiple_of(granule_bytes) {
            return bad(format!("an allocation of {allocation_bytes} bytes in granules of {granule_bytes}"));
        }
        if self.buffer_bytes > size_bytes {
            return bad(format!("{} bytes of a buffer of {size_bytes}", self.buffer_bytes));
        }
        let end = self.view_offset_bytes.checked_add(self.view_bytes);
        if end.is_none_or(|end| end > self.buffer_bytes) {
            return bad(format!(
                "a view of {} bytes from {} of a buffer of {}",
                self.view_bytes, self.view_offset_bytes, self.buffer_bytes
            ));
        }
        if self.token.is_some() != self.way.has_token() {
            let has = if self.token.is_some() { "a token" } else { "no token" };
            return bad(format!("{} with {has}", self.way.name()));
        }
        if self.boot != BootId::current()? {
            return bad(
                "it was made on another machine, or before this one was started; share it anew".into()
            );
        }
        Ok(())
    }

    /// How many descriptors come with it: the object, or the lease; and the pool, where the memory is in one.
    pub(crate) fn descriptors(&self) -> usize {
        if self.way == HandleKind::CudaPool { 2 } else { 1 }
    }

    /// The first version of the protocol that can say it.
    pub(crate) fn since(&self) -> u16 {
        if self.way.has_token() { 2 } else { 1 }
    }
}

/// One run of one machine's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootId(DeviceUuid);

impl BootId {
    /// The present run. All zeros where the system does not say, as in some sandboxes.
    pub fn current() -> Result<BootId> {
        static CURRENT: OnceLock<Option<DeviceUuid>> = OnceLock::new();
        let read = || match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
            Ok(text) => text.trim().parse().ok(),
            Err(_) => Some(DeviceUuid([0; 16])),
        };
        let current = *CURRENT.get_or_init(read);
        let current = current.ok_or_else(|| Error::Os {
            what: "/proc/sys/kernel/random/boot_id".into(),
            reason: "it holds no UUID".into(),
        })?;
        Ok(BootId(current))
    }
}

/// A share: the descriptor of a memory object and its description, held against each other. Clones are handles to the
/// same descriptor; it is closed with the last one.
///
/// Having it keeps the memory alive, whatever becomes of the process that made it: the kernel counts. Where the way has a
/// token the descriptor is a *lease*, an end of a pipe: the process that made the memory keeps it until every such end is
/// closed, and a share whose maker is dead may open no more.
#[derive(Clone)]
pub struct SharedBuffer {
    description: Description,
    object: fd::Object,
    fd: Arc<OwnedFd>,
    pool: Option<Arc<OwnedFd>>,
}

/// What tells two objects apart, for caches: the name, and the file that the kernel says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    object: ObjectId,
    file: FileId,
}

impl SharedBuffer {
    /// Takes descriptors with what is said of them: the object or its lease, and the pool where the memory is in one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the description contradicts itself, or the descriptor: another kind of file, an
    /// object shorter than is said, a memfd that could still shrink or cannot be written, a lease that is none; too few
    /// descriptors, or too many.
    pub fn new(description: Description, fds: impl IntoIterator<Item = OwnedFd>) -> Result<SharedBuffer> {
        description.check()?;
        let mut fds = fds.into_iter();
        let (first, second, more) = (fds.next(), fds.next(), fds.count());
        let came = usize::from(first.is_some()) + usize::from(second.is_some()) + more;
        let wanted = description.descriptors();
        let Some(fd) = first.filter(|_| came == wanted) else {
            return Err(Error::InvalidArgument(format!(
                "{came} descriptor(s) of a share by {}, which has {wanted}",
                description.way.name()
            )));
        };
        let object = fd::check(fd.as_fd(), description.way, description.allocation_bytes)?;
        if let Some(pool) = &second {
            fd::check_pool(pool.as_fd())?;
        }
        Ok(SharedBuffer { description, object, fd: Arc::new(fd), pool: second.map(Arc::new) })
    }

    /// A new share of what a backend, or [`Memfd::export`](crate::Memfd::export), exported: the whole buffer, of which its maker
    /// asked for `buffer_bytes`.
    ///
    /// # Errors
    /// Those of [`SharedBuffer::new`]; [`Error::Os`].
    pub fn from_export(export: Export, buffer_bytes: u64) -> Result<SharedBuffer> {
        static GENERATION: AtomicU64 = AtomicU64::new(0);
        let description = Description {
            way: export.handle,
            object: ObjectId::random()?,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed) + 1,
            allocation_bytes: export.allocation_bytes,
            size_bytes: export.size_bytes,
            buffer_bytes,
            granule_bytes: export.granule_bytes,
            kind: export.kind,
            dedicated: export.dedicated,
            device_local: export.device_local,
            device: export.device,
            driver: export.driver,
            boot: BootId::current()?,
            view_offset_bytes: 0,
            view_bytes: buffer_bytes,
            token: export.token,
        };
        SharedBuffer::new(description, [export.fd].into_iter().chain(export.pool))
    }

    /// Its descriptors, in the order in which [`SharedBuffer::new`] takes them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [&self.fd].into_iter().chain(&self.pool).map(|fd| fd.as_fd()).collect()
    }

    /// What it says of the object.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Which object it is, to tell it from others.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { object: self.description.object, file: self.object.file }
    }

    /// Size in bytes of the memory that the descriptor keeps: of the whole file where it is one, whatever is said of it.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.object.bytes.max(self.description.allocation_bytes)
    }

    /// Length of the shared part, in bytes.
    pub fn view_bytes(&self) -> u64 {
        self.description.view_bytes
    }

    /// A share of a part of this one. It is the same object: whoever holds the descriptor can reach the rest of this
    /// buffer by means of their own, and nothing but this buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the part is not within this one.
    pub fn view(&self, offset_bytes: u64, size_bytes: u64) -> Result<SharedBuffer> {
        let Description { view_offset_bytes, view_bytes, .. } = self.description;
        if offset_bytes.checked_add(size_bytes).is_none_or(|end| end > view_bytes) {
            return Err(Error::InvalidArgument(format!(
                "{size_bytes} bytes from {offset_bytes} of a share of {view_bytes}"
            )));
        }
        let mut part = self.clone();
        part.description.view_offset_bytes = view_offset_bytes + offset_bytes;
        part.description.view_bytes = size_bytes;
        Ok(part)
    }

    /// The share of all of its object, as far as this one's description goes.
    #[must_use]
    pub fn whole(&self) -> SharedBuffer {
        let mut whole = self.clone();
        whole.description.view_offset_bytes = 0;
        whole.description.view_bytes = whole.description.buffer_bytes;
        whole
    }

    /// What a backend imports: duplicates of the descriptors, which are spent with it.
    ///
    /// # Errors
    /// [`Error::Os`] where no descriptor is left.
    pub fn to_export(&self) -> Result<Export> {
        let description = &self.description;
        let clone = |fd: &Arc<OwnedFd>| {
            fd.try_clone().map_err(|error| Error::os("dup of a share's descriptor", &error))
        };
        Ok(Export {
            fd: clone(&self.fd)?,
            token: description.token,
            pool: self.pool.as_ref().map(clone).transpose()?,
            handle: description.way,
            allocation_bytes: description.allocation_bytes,
            size_bytes: description.size_bytes,
            kind: description.kind,
            granule_bytes: description.granule_bytes,
            dedicated: description.dedicated,
            device_local: description.device_local,
            device: description.device,
            driver: description.driver,
        })
    }
}

impl AsFd for SharedBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("description", &self.description).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memfd;

    fn share() -> SharedBuffer {
        SharedBuffer::from_export(Memfd::create(10_000, 4096).unwrap().export(10_000).unwrap(), 9_999)
            .unwrap()
    }

    #[test]
    fn descriptions_that_lie_are_refused() {
        let share = share();
        let honest = share.description().clone();
        assert_eq!((honest.allocation_bytes, honest.granule_bytes, honest.view_bytes), (12_288, 4096, 9_999));
        type Lie = fn(&mut Description);
        let lies: [(&str, Lie); 12] = [
            ("no bytes", |d| d.size_bytes = 0),
            ("a buffer past its allocation", |d| d.size_bytes = d.allocation_bytes + 1),
            ("an allocation past its object", |d| d.allocation_bytes += 4096),
            ("half a granule", |d| d.allocation_bytes -= 1),
            ("no granule", |d| d.granule_bytes = 0),
            ("a view past the buffer", |d| d.view_offset_bytes = 1),
            ("a view past 64 bits", |d| d.view_offset_bytes = u64::MAX),
            ("more than the buffer", |d| d.buffer_bytes = d.size_bytes + 1),
            ("another boot", |d| d.boot = BootId(DeviceUuid([7; 16]))),
            ("a token of a memfd", |d| d.token = Some(Token([1; 64]))),
            ("a legacy handle without a token", |d| d.way = HandleKind::CudaIpc),
            ("a size past 64 bits", |d| (d.size_bytes, d.allocation_bytes) = (!4095, !4095)),
        ];
        for (what, lie) in lies {
            let mut description = honest.clone();
            lie(&mut description);
            let fd = share.as_fd().try_clone_to_owned().unwrap();
            let taken = SharedBuffer::new(description, [fd]);
            assert!(matches!(taken, Err(Error::InvalidArgument(_))), "{what}: {taken:?}");
        }
        let fd = share.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(SharedBuffer::new(honest, [fd]).unwrap().key(), share.key());
    }

    #[test]
    fn views_nest_and_stay_inside() {
        let share = share();
        let view = share.view(100, 50).unwrap().view(10, 40).unwrap();
        assert_eq!((view.description().view_offset_bytes, view.view_bytes()), (110, 40));
        assert_eq!(view.key(), share.key());
        assert!(view.view(1, 40).is_err() && view.view(u64::MAX, 2).is_err());
        view.view(40, 0).unwrap();
    }

    #[test]
    fn each_object_has_its_own_name() {
        let (one, two) = (share(), share());
        assert_ne!(one.key(), two.key());
        assert!(two.description().generation > one.description().generation);
    }
}
