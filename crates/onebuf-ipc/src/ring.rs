//! A ring of slots between one producer and one consumer: frames, tensors, anything that comes again and again.
//!
//! Each slot is a share of its own. The producer fills a slot and publishes it; the consumer takes the slots in that order
//! and gives each back. A producer whose slots are all taken waits: nothing is dropped, nothing is overwritten. When either side
//! is killed, the other has [`Error::PeerGone`] at its next wait, after what was published before.
//!
//! This module passes numbers; `onebuf::ring` has the buffers.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onebuf_core::backend::Export;
use onebuf_core::{Error, HandleKind, Result};

use crate::channel::{Channel, unexpected};
use crate::counters::{Counters, PAGE_BYTES};
use crate::share::SharedBuffer;
use crate::wire::Message;

/// The most slots that a ring has.
pub const MAX_SLOTS: usize = 32;

/// What goes with a frame: numbers of the programs' own, such as a frame's count, its time, its used bytes.
pub type Note = [u64; 4];

/// How order is kept, in reports: by counters in shared memory that the host waits for.
pub const ORDER: &str = "host-timeline";

/// Counter of the slots that the producer has published.
const PUBLISHED: usize = 0;
/// Counter of the slots that the consumer has given back.
const RELEASED: usize = 1;
/// 1 when the producer has published its last.
const FINISHED: usize = 2;
/// The lines of the slots' notes begin here.
const NOTES: usize = 3;

/// The end that fills slots.
#[derive(Debug)]
pub struct Producer {
    counters: Counters,
    channel: Channel,
    slots: u64,
    published: u64,
}

/// The end that takes them.
#[derive(Debug)]
pub struct Consumer {
    counters: Counters,
    channel: Channel,
    slots: u64,
    released: u64,
    /// A slot was taken and is not given back.
    holds: bool,
}

impl Producer {
    /// Makes a ring of these shares, and sends it to the other end of `channel`, which calls [`Consumer::open`].
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] where there are none, or more than [`MAX_SLOTS`]; those of [`Channel::send_share`].
    pub fn create(channel: Channel, shares: &[SharedBuffer]) -> Result<Producer> {
        if shares.is_empty() {
            return Err(Error::InvalidArgument("a ring has at least one slot".into()));
        }
        Error::check_limit("slots of a ring", shares.len() as u64, MAX_SLOTS as u64)?;
        let (counters, memfd) = Counters::create()?;
        let page = memfd.export(PAGE_BYTES)?;
        channel.send(&Message::Ring { slots: shares.len() as u32 }, &[page.fd.as_fd()])?;
        for (slot, share) in shares.iter().enumerate() {
            channel.send_share(&format!("slot {slot}"), share)?;
        }
        Ok(Producer { counters, channel, slots: shares.len() as u64, published: 0 })
    }

    /// Waits for a free slot, and gives its index. The same one is given until it is published.
    ///
    /// # Errors
    /// [`Error::Timeout`] where the consumer keeps all slots for `limit`; [`Error::PeerGone`]; [`Error::Protocol`] where it
    /// has given back what it did not have.
    pub fn acquire(&mut self, limit: Duration) -> Result<usize> {
        let (published, slots) = (self.published, self.slots);
        let free = |released: u64| published.wrapping_sub(released) < slots || released > published;
        let released = self.counters.wait(RELEASED, &self.channel, limit, free)?;
        if released > published {
            return Err(Error::Protocol(format!("{released} slots were given back, of {published}")));
        }
        // A consumer that is gone gives nothing back any more, and reads nothing: there is nobody to fill a slot for.
        self.channel.check_alive()?;
        Ok((published % slots) as usize)
    }

    /// Hands the slot that [`Producer::acquire`] gave to the consumer. All that the caller did to it is done.
    ///
    /// # Errors
    /// None but those of a page that is not there.
    pub fn publish(&mut self, note: Note) -> Result<()> {
        let line = NOTES + (self.published % self.slots) as usize;
        for (word, value) in note.into_iter().enumerate() {
            self.counters.cell(line, word)?.store(value, Ordering::Relaxed);
        }
        self.published += 1;
        self.counters.set(PUBLISHED, self.published)
    }

    /// Says that no more comes, and waits until the consumer has taken and given back everything.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerGone`].
    pub fn finish(self, limit: Duration) -> Result<()> {
        self.counters.set(FINISHED, 1)?;
        // Who waits for a slot listens to the other bell.
        self.counters.set(PUBLISHED, self.published)?;
        let published = self.published;
        self.counters.wait(RELEASED, &self.channel, limit, |released| released >= published)?;
        Ok(())
    }

    /// The connection to the consumer.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl Consumer {
    /// Takes the ring that the other end of `channel` made, and the shares of its slots.
    ///
    /// # Errors
    /// [`Error::Protocol`] where something else came; those of [`Channel::receive_share`].
    pub fn open(channel: Channel) -> Result<(Consumer, Vec<SharedBuffer>)> {
        let (message, fds) = channel.receive()?;
        let (slots, fd) = match (message, <[std::os::fd::OwnedFd; 1]>::try_from(fds)) {
            (Message::Ring { slots }, Ok([fd])) => (slots, fd),
            (Message::Refuse { reason }, _) => return Err(Error::Refused(reason)),
            (other, _) => return Err(unexpected("a ring", &other)),
        };
        if slots == 0 || slots as usize > MAX_SLOTS {
            return Err(Error::Protocol(format!("a ring of {slots} slots; it has 1 to {MAX_SLOTS}")));
        }
        let page = Export {
            fd,
            token: None,
            pool: None,
            handle: HandleKind::Memfd,
            allocation_bytes: PAGE_BYTES,
            size_bytes: PAGE_BYTES,
            kind: 0,
            granule_bytes: PAGE_BYTES,
            dedicated: false,
            device_local: false,
            device: None,
            driver: [0; 16],
        };
        let counters = Counters::open(&page)?;
        let shares: Result<Vec<SharedBuffer>> =
            (0..slots).map(|_| channel.receive_share().map(|(_, share)| share)).collect();
        Ok((Consumer { counters, channel, slots: slots.into(), released: 0, holds: false }, shares?))
    }

    /// Waits for the next slot, and gives its index and note; `None` when the producer has finished. A slot that was not
    /// given back is given again.
    ///
    /// # Errors
    /// [`Error::Timeout`] where nothing comes for `limit`; [`Error::PeerGone`], after all that was published;
    /// [`Error::Protocol`] where the producer counts what cannot be.
    pub fn next(&mut self, limit: Duration) -> Result<Option<(usize, Note)>> {
        let released = self.released;
        let there = |published: u64| {
            published != released || self.counters.get(FINISHED).is_ok_and(|finished| finished != 0)
        };
        let published = self.counters.wait(PUBLISHED, &self.channel, limit, there)?;
        // It may have published its last slot and finished between the two looks.
        let published = if published == released { self.counters.get(PUBLISHED)? } else { published };
        if published == released {
            return Ok(None);
        }
        if published < released || published - released > self.slots {
            return Err(Error::Protocol(format!(
                "{published} slots were published, {released} of them given back, and there are {}",
                self.slots
            )));
        }
        let slot = (released % self.slots) as usize;
        let mut note = Note::default();
        for (word, value) in note.iter_mut().enumerate() {
            *value = self.counters.cell(NOTES + slot, word)?.load(Ordering::Relaxed);
        }
        self.holds = true;
        Ok(Some((slot, note)))
    }

    /// Gives the slot back that [`Consumer::next`] gave. All that the caller does with it is done.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it holds none.
    pub fn release(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.holds) {
            return Err(Error::InvalidArgument("no slot of the ring is held".into()));
        }
        self.released += 1;
        self.counters.set(RELEASED, self.released)
    }

    /// The connection to the producer.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }
}
