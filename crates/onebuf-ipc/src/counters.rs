//! Order across processes where the driver has no semaphore to share: counters in a page that all sides map. Who waits
//! sleeps in a futex. The counters are the host's: work of a device is waited for before its point is signalled.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use onebuf_core::backend::Export;
use onebuf_core::{Error, Result};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::channel::{Channel, deadline, timespec};
use crate::map::Mapping;
use crate::memfd::{Memfd, map_export};

/// The size of the page in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A counter and its bell have a cache line.
const LINE_BYTES: usize = 64;

/// How often who waits looks whether the other side still lives. The bell wakes it at once for all else.
const LOOK: Duration = Duration::from_millis(10);

/// Up to 64 counters in shared memory. Each is written by one process, and only grows; any process may wait for it.
///
/// What is read is another process's word: who uses it checks it.
#[derive(Debug)]
pub struct Counters {
    pages: Mapping,
}

impl Counters {
    /// A new page, and the file that others open it by.
    ///
    /// # Errors
    /// Those of [`Memfd::create`].
    pub fn create() -> Result<(Counters, Memfd)> {
        let memfd = Memfd::create(PAGE_BYTES, PAGE_BYTES)?;
        Ok((Counters { pages: memfd.map()? }, memfd))
    }

    /// The page that another process made.
    ///
    /// # Errors
    /// Those of [`map_export`].
    pub fn open(export: &Export) -> Result<Counters> {
        if export.allocation_bytes < PAGE_BYTES {
            let bytes = export.allocation_bytes;
            return Err(Error::InvalidArgument(format!(
                "a page of counters has {PAGE_BYTES} bytes, not {bytes}"
            )));
        }
        Ok(Counters { pages: map_export(export, PAGE_BYTES)? })
    }

    /// What a counter says. All that its writer did before it was set is visible after.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such counter.
    pub fn get(&self, counter: usize) -> Result<u64> {
        Ok(self.cell(counter, 0)?.load(Ordering::Acquire))
    }

    /// Sets a counter, which the caller alone writes, and wakes who waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no such counter.
    pub fn set(&self, counter: usize, value: u64) -> Result<()> {
        let bell = self.bell(counter)?;
        self.cell(counter, 0)?.store(value, Ordering::Release);
        bell.fetch_add(1, Ordering::Release);
        // Nobody may be there to be woken.
        let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX);
        Ok(())
    }

    /// Waits until `reached` says yes to a counter's value, and gives that. The other end of `channel` is the process that
    /// writes it.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when that process is gone before; [`Error::Timeout`].
    pub fn wait(
        &self,
        counter: usize,
        channel: &Channel,
        limit: Duration,
        reached: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        let bell = self.bell(counter)?;
        let deadline = deadline(limit);
        let mut alive = Ok(());
        loop {
            // The bell first: a value that comes after this look has rung it.
            let rung = bell.load(Ordering::Acquire);
            let value = self.get(counter)?;
            if reached(value) {
                return Ok(value);
            }
            // What a process did before it died counts, so its death counts only after a look at the counter.
            alive?;
            alive = channel.check_alive();
            if alive.is_err() {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = channel.peer().to_string();
                return Err(Error::Timeout { what, after_ms: limit.as_millis() as u64 });
            }
            match futex::wait(bell, futex::Flags::empty(), rung, Some(&timespec(left.min(LOOK)))) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(other) => return Err(Error::os("futex", &other.into())),
            }
        }
    }

    /// A word of the page beside the counters, for those who lay it out.
    pub(crate) fn cell(&self, line: usize, word: usize) -> Result<&std::sync::atomic::AtomicU64> {
        let at = line.checked_mul(LINE_BYTES).and_then(|at| at.checked_add(8 * word));
        at.filter(|&at| at < PAGE_BYTES as usize)
            .and_then(|at| self.pages.counter(at))
            .ok_or_else(|| Error::InvalidArgument(format!("a page has no counter {line}")))
    }

    fn bell(&self, counter: usize) -> Result<&std::sync::atomic::AtomicU32> {
        let at = counter.checked_mul(LINE_BYTES).map(|at| at + 8).filter(|&at| at < PAGE_BYTES as usize);
        at.and_then(|at| self.pages.word(at))
            .ok_or_else(|| Error::InvalidArgument(format!("a page has no counter {counter}")))
    }
}
