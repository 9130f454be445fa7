//! Freed memory, kept for the next buffers: a driver takes microseconds to milliseconds for what this does in a
//! tenth of one.
//!
//! Memory goes back into the list of buffers that were asked for in the same way and have about the same size. What the
//! old buffer's users still do with it goes along as hazards, so that the new buffer's first work waits on the
//! device, and nobody waits here.

use std::collections::VecDeque;
use std::sync::Arc;

use onebuf_core::backend::Memory;
use onebuf_core::hazard::Hazards;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::storage::Spot;

/// Memory that waits for its next buffer.
pub(crate) struct Free {
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) spot: Arc<Spot>,
    pub(crate) hazards: Hazards,
    pub(crate) bytes: u64,
}

/// How memory was asked for: the code of a wish, and a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) asked: u32,
    pub(crate) bytes: u64,
}

/// Live buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    pub(crate) bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) buffers: u64,
}

/// Freed memory that a device keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes kept.
    pub free_bytes: u64,
    /// Pieces kept.
    pub free_buffers: u64,
    /// The most bytes that are kept: an eighth of the device's memory, at most 256 MiB.
    pub limit_bytes: u64,
    /// Buffers that got their memory from the pool.
    pub hits: u64,
    /// Buffers that could have, and found none that fits.
    pub misses: u64,
}

pub(crate) struct Pool {
    limit_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    free: FxHashMap<PoolKey, VecDeque<Free>>,
    free_bytes: u64,
    free_buffers: u64,
    hits: u64,
    misses: u64,
    live: Live,
}

const MOST_BYTES: u64 = 256 << 20;

impl Pool {
    pub(crate) fn new(memory_bytes: u64) -> Pool {
        Pool { limit_bytes: (memory_bytes / 8).min(MOST_BYTES), inner: Mutex::default() }
    }

    /// The size that memory for `bytes` gets, so that buffers of about that size can share it: at most an eighth more.
    /// `None` where the pool keeps nothing so large.
    pub(crate) fn class(&self, bytes: u64) -> Option<u64> {
        if bytes > self.limit_bytes / 2 {
            return None;
        }
        let bytes = bytes.max(256);
        let step = (1 << bytes.ilog2()) / 8;
        Some(bytes.next_multiple_of(step))
    }

    /// Memory for a buffer. Where the CPU comes first (`idle` is asked), only memory whose work is done.
    pub(crate) fn take(&self, key: PoolKey, idle: Option<&dyn Fn(&mut Hazards) -> bool>) -> Option<Free> {
        let mut inner = self.inner.lock();
        let found = inner.free.get_mut(&key).and_then(|list| match idle {
            None => list.pop_back(),
            // The last one is warm in the caches; the first one is the likeliest to be done.
            Some(idle) if list.back_mut().is_some_and(|free| idle(&mut free.hazards)) => list.pop_back(),
            Some(idle) if list.front_mut().is_some_and(|free| idle(&mut free.hazards)) => list.pop_front(),
            Some(_) => None,
        });
        match &found {
            Some(free) => {
                inner.hits += 1;
                inner.free_bytes -= free.bytes;
                inner.free_buffers -= 1;
                inner.add_live(free.bytes);
            }
            None => inner.misses += 1,
        }
        found
    }

    /// Takes memory back.
    pub(crate) fn give(&self, key: PoolKey, free: Free) {
        let mut inner = self.inner.lock();
        inner.remove_live(free.bytes);
        // Past the limit all goes: sizes that nobody asks for any more would otherwise fill the pool for good.
        let evicted = (inner.free_bytes + free.bytes > self.limit_bytes).then(|| inner.take_all());
        inner.free_bytes += free.bytes;
        inner.free_buffers += 1;
        inner.free.entry(key).or_default().push_back(free);
        drop(inner);
        drop(evicted); // The driver's part, without the lock.
    }

    /// Counts memory that did not come from the pool.
    pub(crate) fn born(&self, bytes: u64) {
        self.inner.lock().add_live(bytes);
    }

    /// Counts memory that does not come back.
    pub(crate) fn died(&self, bytes: u64) {
        self.inner.lock().remove_live(bytes);
    }

    /// Lets go of everything kept, and returns the number of bytes.
    pub(crate) fn trim(&self) -> u64 {
        let mut inner = self.inner.lock();
        let bytes = inner.free_bytes;
        let all = inner.take_all();
        drop(inner);
        drop(all);
        bytes
    }

    pub(crate) fn stats(&self) -> (Live, PoolStats) {
        let inner = self.inner.lock();
        let pool = PoolStats {
            free_bytes: inner.free_bytes,
            free_buffers: inner.free_buffers,
            limit_bytes: self.limit_bytes,
            hits: inner.hits,
            misses: inner.misses,
        };
        (inner.live, pool)
    }
}

impl Inner {
    fn add_live(&mut self, bytes: u64) {
        self.live.bytes += bytes;
        self.live.buffers += 1;
        self.live.peak_bytes = self.live.peak_bytes.max(self.live.bytes);
    }

    fn remove_live(&mut self, bytes: u64) {
        self.live.bytes = self.live.bytes.saturating_sub(bytes);
        self.live.buffers = self.live.buffers.saturating_sub(1);
    }

    fn take_all(&mut self) -> FxHashMap<PoolKey, VecDeque<Free>> {
        self.free_bytes = 0;
        self.free_buffers = 0;
        std::mem::take(&mut self.free)
    }
}
