//! A ring of buffers between two processes: a camera and a detector, a decoder and a model.
//!
//! The producer fills a slot, by CPU or by kernel, and publishes it; the consumer takes the slots in that order, works on them
//! in place and gives each back. A producer without a free slot waits. Publishing and giving back wait for the device's work on the
//! slot first, so that the other process finds it done: order is kept by the host ([`onebuf_ipc::ring::ORDER`]).
//! When either process is killed, the other gets [`Error::PeerGone`] at its next wait.
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//! use onebuf::ipc::{Channel, Listener, Peers};
//! use onebuf::ring::{Consumer, Producer};
//! use onebuf::{Device, HostAccess, Share};
//!
//! const PATIENCE: Duration = Duration::from_secs(2);
//!
//! fn camera(device: &Device, path: &Path) -> onebuf::Result<()> {
//!     let channel = Listener::bind(path, Peers::SameUser)?.accept(Duration::from_secs(60))?;
//!     let slot = || device.buffer::<u32>(1 << 20).host(HostAccess::ReadWrite).share(Share::Process).build();
//!     let slots = (0..3).map(|_| slot()).collect::<onebuf::Result<Vec<_>>>()?;
//!     // SAFETY: the slots are used between `slot` and `publish` alone, and the other process keeps to its part.
//!     let mut ring = unsafe { Producer::new(channel, slots)? };
//!     for frame in 0..100u32 {
//!         let slot = ring.slot(PATIENCE)?;
//!         slot.write()?.fill(frame);
//!         slot.publish([frame.into(), 0, 0, 0])?;
//!     }
//!     ring.finish(PATIENCE)
//! }
//!
//! fn detector(device: &Device, path: &Path) -> onebuf::Result<()> {
//!     // SAFETY: as above.
//!     let mut ring = unsafe { Consumer::<u32>::open(Channel::connect(path, &Peers::SameUser)?, device)? };
//!     while let Some(frame) = ring.next(PATIENCE)? {
//!         assert!(frame.read()?.iter().all(|&pixel| u64::from(pixel) == frame.note()[0]));
//!         frame.release()?;
//!     }
//!     Ok(())
//! }
//! ```

use std::ops::Deref;
use std::time::Duration;

use bytemuck::Pod;
pub use onebuf_ipc::ring::{MAX_SLOTS, Note, ORDER};
use onebuf_ipc::{Channel, SharedBuffer, ring};

use crate::{Buffer, Device, Error, Result};

/// How long publishing or giving back waits for the device's work on a slot.
const WORK_LIMIT: Duration = Duration::from_secs(60);

/// The end that fills slots.
pub struct Producer<T: Pod> {
    slots: Vec<Buffer<T>>,
    ring: ring::Producer,
}

/// The end that takes them.
pub struct Consumer<T: Pod> {
    slots: Vec<Buffer<T>>,
    ring: ring::Consumer,
}

/// A free slot. It derefs to its buffer. Dropped without [`FreeSlot::publish`], it is free still.
pub struct FreeSlot<'a, T: Pod> {
    buffer: Buffer<T>,
    ring: &'a mut ring::Producer,
}

/// A slot that the producer filled. It derefs to its buffer. It is given back by [`Frame::release`], or when it is dropped.
pub struct Frame<'a, T: Pod> {
    buffer: Buffer<T>,
    note: Note,
    ring: &'a mut ring::Consumer,
    held: bool,
}

impl<T: Pod> Producer<T> {
    /// Makes a ring of these buffers, built with [`share`](crate::BufferBuilder::share), and sends it to the other end of
    /// `channel`, where [`Consumer::open`] is called.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a buffer was not built to be shared; [`Error::InvalidArgument`] where two are one, or one
    /// is empty; [`Error::LimitExceeded`] for more than [`MAX_SLOTS`]; [`Error::PeerGone`]; [`Error::Timeout`].
    ///
    /// # Safety
    /// This process touches a slot between [`Producer::slot`] and [`FreeSlot::publish`] alone, by whatever handle; and the
    /// other process keeps to the same for what it takes.
    pub unsafe fn new(channel: Channel, slots: Vec<Buffer<T>>) -> Result<Producer<T>> {
        for (i, slot) in slots.iter().enumerate() {
            if slot.is_empty() {
                return Err(Error::InvalidArgument(format!("slot {i} of the ring is empty")));
            }
            if slots[..i].iter().any(|other| other.same_memory(slot)) {
                return Err(Error::InvalidArgument(format!(
                    "slot {i} of the ring is the memory of another slot"
                )));
            }
        }
        let shares = slots.iter().map(Buffer::share).collect::<Result<Vec<SharedBuffer>>>()?;
        Ok(Producer { ring: ring::Producer::create(channel, &shares)?, slots })
    }

    /// Waits for a free slot.
    ///
    /// # Errors
    /// [`Error::Timeout`] where the consumer keeps all slots for `limit`; [`Error::PeerGone`] once it is gone.
    pub fn slot(&mut self, limit: Duration) -> Result<FreeSlot<'_, T>> {
        let slot = self.ring.acquire(limit)?;
        Ok(FreeSlot { buffer: self.slots[slot].clone(), ring: &mut self.ring })
    }

    /// Says that no more comes, and waits until the consumer has given back everything.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerGone`].
    pub fn finish(self, limit: Duration) -> Result<()> {
        self.ring.finish(limit)
    }

    /// The connection to the consumer.
    pub fn channel(&self) -> &Channel {
        self.ring.channel()
    }
}

impl<T: Pod> FreeSlot<'_, T> {
    /// Waits for the work on the slot, and hands it to the consumer with a note.
    ///
    /// # Errors
    /// [`Error::Busy`] while a guard on it lives; [`Error::Timeout`] where the work takes more than a minute;
    /// [`Error::DeviceLost`]. The slot is free still, then.
    pub fn publish(self, note: Note) -> Result<()> {
        self.buffer.settle(WORK_LIMIT)?;
        self.ring.publish(note)
    }
}

impl<T: Pod> Consumer<T> {
    /// Takes the ring that the other end of `channel` made, and opens its slots on `device`.
    ///
    /// # Errors
    /// [`Error::Protocol`] where no ring came; those of [`Device::open_shared`].
    ///
    /// # Safety
    /// This process touches a slot while it holds its [`Frame`] alone, by whatever handle; and the other process keeps to
    /// the same for what it fills.
    pub unsafe fn open(channel: Channel, device: &Device) -> Result<Consumer<T>> {
        let (ring, shares) = ring::Consumer::open(channel)?;
        // SAFETY: the caller's promise: the ring tells whose turn it is.
        let slots = shares.iter().map(|share| unsafe { device.open_shared(share) });
        Ok(Consumer { slots: slots.collect::<Result<Vec<Buffer<T>>>>()?, ring })
    }

    /// Waits for the next frame; `None` when the producer has finished.
    ///
    /// # Errors
    /// [`Error::Timeout`] where nothing comes for `limit`; [`Error::PeerGone`] once the producer is gone, and after all that
    /// it published; [`Error::Protocol`] where its counters lie.
    #[allow(clippy::should_implement_trait)] // It waits and fails, and lends what it gives.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Frame<'_, T>>> {
        let Some((slot, note)) = self.ring.next(limit)? else { return Ok(None) };
        Ok(Some(Frame { buffer: self.slots[slot].clone(), note, ring: &mut self.ring, held: true }))
    }

    /// The buffers of the slots: where they are, and how they came.
    pub fn slots(&self) -> &[Buffer<T>] {
        &self.slots
    }

    /// The connection to the producer.
    pub fn channel(&self) -> &Channel {
        self.ring.channel()
    }
}

impl<T: Pod> Frame<'_, T> {
    /// What the producer said of it.
    pub fn note(&self) -> Note {
        self.note
    }

    /// Waits for the work on the slot, and gives it back.
    ///
    /// # Errors
    /// [`Error::Busy`] while a guard on it lives; [`Error::Timeout`] where the work takes more than a minute;
    /// [`Error::DeviceLost`]. The frame is the next one still, then.
    pub fn release(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.held) {
            return Ok(());
        }
        self.buffer.settle(WORK_LIMIT)?;
        self.ring.release()
    }
}

impl<T: Pod> Drop for Frame<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, "a frame was not given back: it will be the next one again");
        }
    }
}

impl<T: Pod> Deref for FreeSlot<'_, T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Deref for Frame<'_, T> {
    type Target = Buffer<T>;

    fn deref(&self) -> &Buffer<T> {
        &self.buffer
    }
}
