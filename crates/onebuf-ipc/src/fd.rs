//! What the kernel says of a descriptor that somebody sent, before any driver sees it.

use std::os::fd::BorrowedFd;

use onebuf_core::{Error, HandleKind, Result};
use rustix::fs::{FileType, OFlags, SealFlags};

/// Which file a descriptor is: device and inode. While somebody holds the file no other one has these numbers. All
/// descriptors of a driver's device node have the same.
pub(crate) type FileId = (u64, u64);

/// An object as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) file: FileId,
    /// Its size in bytes, where it is a file.
    pub(crate) bytes: u64,
}

/// Checks that a descriptor can be an object of `bytes` bytes that is opened by `way`.
///
/// # Errors
/// [`Error::InvalidArgument`] with what it is in place of that.
pub(crate) fn check(fd: BorrowedFd<'_>, way: HandleKind, bytes: u64) -> Result<Object> {
    let fstat = || rustix::fs::fstat(fd).map_err(|error| Error::os("fstat of a descriptor", &error.into()));
    let mut stat = fstat()?;
    let file = (stat.st_dev, stat.st_ino);
    let kind = FileType::from_raw_mode(stat.st_mode);
    let bad =
        |what: String| Err(Error::InvalidArgument(format!("the descriptor is no {}: {what}", way.name())));
    match (way, kind) {
        (HandleKind::Memfd, FileType::RegularFile) => {
            check_memfd(fd)?;
            // Its size counts from when it is sealed: who sent it may have cut it short before.
            stat = fstat()?;
        }
        // Software drivers export a memfd of theirs; others their device's node, or an anonymous inode.
        (HandleKind::OpaqueFd, FileType::RegularFile) => {}
        (HandleKind::OpaqueFd, FileType::CharacterDevice | FileType::Unknown) => {
            return Ok(Object { file, bytes: 0 });
        }
        (HandleKind::CudaIpc | HandleKind::CudaPool, FileType::Fifo) => check_lease(fd)?,
        // The kernel's dma-buf file system makes files without a kind.
        (HandleKind::DmaBuf, FileType::Unknown | FileType::RegularFile) => {}
        (_, other) => return bad(format!("it is of kind {other:?}")),
    }
    let has = u64::try_from(stat.st_size).unwrap_or(0);
    if kind == FileType::RegularFile && has < bytes {
        return bad(format!("the object has {has} bytes, and is said to have {bytes}"));
    }
    Ok(Object { file, bytes: has })
}

/// Refuses an end of a pipe that holds nothing: the maker of the memory waits for the ends that can write to go.
fn check_lease(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|error| Error::os("F_GETFL", &error.into()))?;
    if flags & OFlags::RWMODE == OFlags::WRONLY {
        return Ok(());
    }
    Err(Error::InvalidArgument("the descriptor is no lease: it is an end of a pipe that reads".into()))
}

/// Checks that a descriptor can be a pool of a driver's: its device's node, or an anonymous inode.
///
/// # Errors
/// [`Error::InvalidArgument`] with what it is in place of that.
pub(crate) fn check_pool(fd: BorrowedFd<'_>) -> Result<()> {
    let stat = rustix::fs::fstat(fd).map_err(|error| Error::os("fstat of a descriptor", &error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice | FileType::Unknown => Ok(()),
        other => Err(Error::InvalidArgument(format!("the descriptor is no pool: it is of kind {other:?}"))),
    }
}

/// Refuses what is no memfd, cannot be written, or may shrink under those who have it mapped: touching a page past the
/// end kills the process.
fn check_memfd(fd: BorrowedFd<'_>) -> Result<()> {
    let bad =
        |what: &str| Err(Error::InvalidArgument(format!("the descriptor is no memfd to share: {what}")));
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        return bad("it is a file of a file system, which anybody may truncate");
    };
    if !seals.contains(SealFlags::SHRINK) {
        return bad("it is not sealed against shrinking (F_SEAL_SHRINK)");
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return bad("it is sealed against writing");
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|error| Error::os("F_GETFL", &error.into()))?;
    if flags & OFlags::RWMODE != OFlags::RDWR {
        return bad("it is not open for reading and writing");
    }
    Ok(())
}

/// Whether a descriptor is a file whose size is not sealed.
pub(crate) fn may_shrink(fd: BorrowedFd<'_>) -> bool {
    let is_file = rustix::fs::fstat(fd)
        .map_or(true, |stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    is_file && !rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::Memfd;

    fn memfd(bytes: u64, seals: Option<SealFlags>) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        if let Some(seals) = seals {
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        }
        fd
    }

    #[test]
    fn wrong_descriptors_are_refused_with_a_reason() {
        let good = memfd(8192, Some(SealFlags::SHRINK));
        let read_only =
            File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good))).unwrap();
        let wrong: Vec<(&str, OwnedFd)> = vec![
            ("Fifo", std::io::pipe().unwrap().0.into()),
            ("Socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
            ("Directory", File::open("/proc").unwrap().into()),
            ("CharacterDevice", File::open("/dev/null").unwrap().into()),
            ("truncate", tempfile::tempfile().unwrap().into()),
            ("truncate", File::open("/proc/self/exe").unwrap().into()),
            ("F_SEAL_SHRINK", memfd(8192, None)),
            ("F_SEAL_SHRINK", memfd(8192, Some(SealFlags::GROW))),
            ("sealed against writing", memfd(8192, Some(SealFlags::SHRINK | SealFlags::WRITE))),
            ("sealed against writing", memfd(8192, Some(SealFlags::SHRINK | SealFlags::FUTURE_WRITE))),
            ("reading and writing", read_only.into()),
            ("4096 bytes", memfd(4096, Some(SealFlags::SHRINK))),
            ("0 bytes", memfd(0, Some(SealFlags::SHRINK))),
        ];
        for (reason, fd) in wrong {
            match check(fd.as_fd(), HandleKind::Memfd, 8192) {
                Err(Error::InvalidArgument(why)) => assert!(why.contains(reason), "{reason}: {why}"),
                other => panic!("{reason}: {other:?}"),
            }
        }
        check(good.as_fd(), HandleKind::Memfd, 8192).unwrap();
    }

    #[test]
    fn a_memfd_of_ours_is_one() {
        let memfd = Memfd::create(5, 4096).unwrap();
        let export = memfd.export(5).unwrap();
        check(export.fd.as_fd(), HandleKind::Memfd, 4096).unwrap();
        assert!(check(export.fd.as_fd(), HandleKind::Memfd, 4097).is_err());
        // It cannot be made shorter, nor longer, nor can the seals be taken off.
        assert!(rustix::fs::ftruncate(&export.fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&export.fd, 1 << 20).is_err());
        assert!(rustix::fs::fcntl_add_seals(&export.fd, SealFlags::WRITE).is_err());
    }

    #[test]
    fn a_lease_is_the_writing_end_of_a_pipe() {
        let (reads, writes) = std::io::pipe().unwrap();
        let not: [OwnedFd; 4] = [
            reads.into(),
            memfd(8192, Some(SealFlags::SHRINK)),
            std::os::unix::net::UnixStream::pair().unwrap().0.into(),
            File::open("/dev/null").unwrap().into(),
        ];
        for way in HandleKind::ALL.into_iter().filter(|way| way.has_token()) {
            check(writes.as_fd(), way, 1).unwrap();
            for fd in &not {
                assert!(matches!(check(fd.as_fd(), way, 1), Err(Error::InvalidArgument(_))), "{fd:?}");
            }
        }
        assert!(check_pool(writes.as_fd()).is_err() && check_pool(not[1].as_fd()).is_err());
        check_pool(not[3].as_fd()).unwrap();
    }

    #[test]
    fn pipes_are_no_opaque_descriptors() {
        let (pipe, _) = std::io::pipe().unwrap();
        for way in HandleKind::ALL {
            assert!(check(pipe.as_fd(), way, 1).is_err(), "{}", way.name());
        }
    }
}
