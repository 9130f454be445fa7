//! Descriptors that another process says are memory. No driver sees one before it is known to be what drivers export:
//! lavapipe hangs on a pipe and believes any size, and on NVIDIA's driver a regular file spoils the next import.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use onebuf_core::backend::{Allocation, Export, Memory};
use onebuf_core::{Error, HandleKind, Result};
use rustix::fs::{FileType, Stat, fstat};

use crate::memory::VulkanMemory;
use crate::shared::Shared;

/// Which file a descriptor is: device and inode.
pub(crate) type FileIdentity = (u64, u64);

/// What sort of file a driver exports memory as: a device node, or a file of one of the kernel's own filesystems, which
/// are the same in every process and container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSort {
    kind: FileType,
    /// The number of the device for a device node, of the filesystem for anything else.
    number: u64,
}

impl FileSort {
    fn of(stat: &Stat) -> FileSort {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let number = if kind == FileType::CharacterDevice { stat.st_rdev } else { stat.st_dev };
        FileSort { kind, number }
    }
}

fn stat(fd: impl AsFd) -> Result<Stat> {
    fstat(fd).map_err(|error| Error::os("fstat of an imported descriptor", &error.into()))
}

impl Shared {
    /// The sort of file that this driver exports, found by an export of its own; `None` where that fails.
    pub(crate) fn exported_file(self: &std::sync::Arc<Self>, handle: HandleKind) -> Option<FileSort> {
        let known =
            self.exported_files.lock().iter().find(|(kind, _)| *kind == handle).map(|(_, sort)| *sort);
        known.or_else(|| {
            let allowed = |index: &u32| self.physical.export_types & (1 << index) != 0;
            let kind = self.physical.types.iter().position(allowed)?;
            let request = Allocation { kind, size_bytes: 4, exportable: true, mapped: false };
            let sort = VulkanMemory::allocate(self, &request)
                .and_then(|memory| memory.export(handle))
                .and_then(|export| Ok(FileSort::of(&stat(&export.fd)?)))
                .ok()?;
            self.exported_files.lock().push((handle, sort));
            Some(sort)
        })
    }
}

/// Refuses descriptors that cannot be memory, and those of another sort than the driver's own exports.
pub(crate) fn check(export: &Export, own: Option<FileSort>) -> Result<FileIdentity> {
    let stat = stat(&export.fd)?;
    let sort = FileSort::of(&stat);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let refuse = |what: String| Err(Error::InvalidArgument(what));
    match sort.kind {
        FileType::RegularFile if size < export.allocation_bytes => refuse(format!(
            "the descriptor's object has {size} bytes, and is said to have {}",
            export.allocation_bytes
        )),
        // A memfd, a device's descriptor, or an anonymous inode such as a dma-buf.
        FileType::RegularFile | FileType::CharacterDevice | FileType::Unknown => match own {
            Some(own) if own != sort => refuse(format!(
                "the descriptor is no {} of this driver: it is another sort of file than the driver's own exports",
                export.handle.name()
            )),
            _ => Ok((stat.st_dev, stat.st_ino)),
        },
        other => refuse(format!("a descriptor of kind {other:?} is no memory")),
    }
}

/// Closes the descriptor of a failed import unless the driver did. The specification leaves it to the caller; lavapipe
/// closes it. What stands at the number now tells: another file, or none, is not ours to close.
pub(crate) fn close_after_failed_import(fd: RawFd, identity: FileIdentity) {
    // SAFETY: the borrow ends with the query; a descriptor that is not open gives an error.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity) {
        // SAFETY: it is still the descriptor that was handed over, which nobody else owns.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
