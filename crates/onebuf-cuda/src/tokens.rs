//! The memory of this process that has a token, and its leases.
//!
//! The driver counts no references across processes: memory that its maker frees while others have it open is undefined. So
//! every share carries a *lease*, the writing end of a pipe whose other end the maker keeps. When all such ends are closed,
//! by processes that let go or died, the pipe hangs up, and the maker may free. Until then what it let go of stays in the
//! table here, and is freed by the next allocation, import or look at the memory of any device.
//!
//! The table is the process's, since a token opens once in a process: what is open, or was made here, is found in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use onebuf_core::backend::Export;
use onebuf_core::{Error, HandleKind, Result, Token};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::object::Object;
use crate::shared::Shared;

/// Which memory it is. Tokens of two pools may be alike, so there the pipe tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    token: Token,
    device: i32,
    pipe: Option<(u64, u64)>,
}

impl Key {
    fn new(shared: &Shared, way: HandleKind, token: Token, lease: BorrowedFd<'_>) -> Result<Key> {
        let pipe = if way == HandleKind::CudaPool {
            let stat =
                rustix::fs::fstat(lease).map_err(|error| Error::os("fstat of a lease", &error.into()))?;
            Some((stat.st_dev, stat.st_ino))
        } else {
            None
        };
        Ok(Key { token, device: shared.context.device, pipe })
    }
}

/// Fields go in this order: the lease after what it stands for.
struct Entry {
    object: Arc<Object>,
    lease: Lease,
}

/// The two sides of a lease.
enum Lease {
    /// This process made the memory. `hold` is there while a buffer of its own is.
    Given { watch: OwnedFd, hold: Option<OwnedFd> },
    /// Another one did. Its maker sees the descriptor go.
    Taken { _lease: OwnedFd },
}

static TABLE: LazyLock<Mutex<FxHashMap<Key, Entry>>> = LazyLock::new(Mutex::default);

/// Entries that no buffer of this process is left of.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A buffer's hold on memory that has, or may get, a token.
pub(crate) struct Held {
    /// `None` once it is dropped.
    object: Option<Arc<Object>>,
    key: OnceLock<Key>,
}

impl Held {
    /// Memory of this process that nobody else knows.
    pub(crate) fn new(object: Object) -> Held {
        Held { object: Some(Arc::new(object)), key: OnceLock::new() }
    }

    /// What an export says: found where this process has it, else opened. The context is current.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it is no such memory, or not as long; [`Error::PeerGone`] where its maker is dead.
    pub(crate) fn open(shared: &Shared, export: Export) -> Result<Held> {
        let way = export.handle;
        let token = export.token.filter(|_| export.pool.is_some() == (way == HandleKind::CudaPool));
        let Some(token) = token else {
            return Err(Error::InvalidArgument(format!(
                "an export as {} without all that opens it",
                way.name()
            )));
        };
        let key = Key::new(shared, way, token, export.fd.as_fd())?;
        // Held throughout, so that two threads do not open one token twice.
        let mut table = TABLE.lock();
        if let Some(entry) = table.get_mut(&key) {
            if entry.object.bytes < export.allocation_bytes {
                return Err(Error::InvalidArgument(format!(
                    "the memory is said to have {} bytes, and has {}",
                    export.allocation_bytes, entry.object.bytes
                )));
            }
            if let Lease::Given { hold: hold @ None, .. } = &mut entry.lease {
                *hold = Some(export.fd);
                KEPT.fetch_sub(1, Ordering::Relaxed);
            }
            return Ok(Held { object: Some(entry.object.clone()), key: OnceLock::from(key) });
        }
        if happened(export.fd.as_fd()).contains(PollFlags::ERR) {
            return Err(Error::PeerGone(format!(
                "the process that made the memory is gone, and what is shared by {} goes with its maker",
                way.name()
            )));
        }
        let pool = export.pool.as_ref().map(AsFd::as_fd);
        let object = Object::open(&shared.context, way, token, pool, export.allocation_bytes)?;
        let object = Arc::new(object);
        table.insert(key, Entry { object: object.clone(), lease: Lease::Taken { _lease: export.fd } });
        Ok(Held { object: Some(object), key: OnceLock::from(key) })
    }

    /// The address that kernels use.
    pub(crate) fn pointer(&self) -> u64 {
        self.object.as_ref().map_or(0, |object| object.pointer)
    }

    /// Size in bytes of the whole.
    pub(crate) fn bytes(&self) -> u64 {
        self.object.as_ref().map_or(0, |object| object.bytes)
    }

    /// Token, lease and pool, for other processes. The context is current.
    pub(crate) fn export(
        &self,
        shared: &Shared,
        way: HandleKind,
    ) -> Result<(Token, OwnedFd, Option<OwnedFd>)> {
        let Some(object) = &self.object else {
            return Err(Error::unsupported(format!("export as {}", way.name()), "the buffer is gone"));
        };
        let no_descriptor = |error| Error::os("a lease on shared memory", &error);
        let pool = object.export_pool()?;
        let mut table = TABLE.lock();
        if let Some(key) = self.key.get() {
            return match table.get(key).map(|entry| &entry.lease) {
                Some(Lease::Given { hold: Some(hold), .. }) => {
                    Ok((key.token, hold.try_clone().map_err(no_descriptor)?, pool))
                }
                _ => Err(Error::unsupported(
                    format!("export as {}", way.name()),
                    "the buffer was imported; pass its exporter's share on",
                )),
            };
        }
        let token = object.token()?;
        let (watch, hold) = std::io::pipe().map_err(no_descriptor)?;
        let (watch, hold) = (OwnedFd::from(watch), OwnedFd::from(hold));
        let lease = hold.try_clone().map_err(no_descriptor)?;
        let key = Key::new(shared, way, token, hold.as_fd())?;
        let _ = self.key.set(key);
        table.insert(key, Entry { object: object.clone(), lease: Lease::Given { watch, hold: Some(hold) } });
        Ok((token, lease, pool))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let object = self.object.take();
        let Some(key) = self.key.get() else { return };
        let mut table = TABLE.lock();
        // Let go of under the lock: who opens the token next must find it open, or closed.
        drop(object);
        let Some(entry) = table.get_mut(key) else { return };
        if Arc::strong_count(&entry.object) > 1 {
            return;
        }
        if let Lease::Given { watch, hold } = &mut entry.lease {
            *hold = None;
            if !is_over(watch) {
                KEPT.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        table.remove(key);
    }
}

/// Frees what this process let go of, and since then everybody else.
pub(crate) fn collect() {
    if KEPT.load(Ordering::Relaxed) == 0 {
        return;
    }
    TABLE.lock().retain(|_, entry| {
        let kept = match &entry.lease {
            Lease::Given { watch, hold: None } => !is_over(watch),
            _ => true,
        };
        if !kept {
            KEPT.fetch_sub(1, Ordering::Relaxed);
        }
        kept
    });
}

/// Whether every lease on it is over.
fn is_over(watch: &OwnedFd) -> bool {
    happened(watch.as_fd()).contains(PollFlags::HUP)
}

/// What happened to a pipe: `HUP` at the end that reads when all others are closed, `ERR` at one that writes.
fn happened(fd: BorrowedFd<'_>) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_tells_both_sides() {
        let (watch, hold) = std::io::pipe().unwrap();
        let (watch, hold) = (OwnedFd::from(watch), OwnedFd::from(hold));
        let other = hold.try_clone().unwrap();
        drop(hold);
        assert!(!is_over(&watch));
        assert_eq!(happened(other.as_fd()), PollFlags::empty());
        // What somebody writes there changes nothing.
        rustix::io::write(&other, b"x").unwrap();
        assert!(!is_over(&watch));
        drop(other);
        assert!(is_over(&watch));
        let (watch, hold) = std::io::pipe().unwrap();
        drop(watch);
        assert!(happened(hold.as_fd()).contains(PollFlags::ERR));
    }
}
