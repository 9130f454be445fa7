//! Order between pieces of work: tickets, and what each buffer remembers of its users.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// The identity of a stream, never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// A new identity.
    pub fn next() -> StreamId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A point in a stream: it is reached when everything the stream was given up to `value` has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The stream.
    pub stream: StreamId,
    /// A count that grows by at least one for each piece of work. It need not begin at 0.
    pub value: u64,
}

/// Tickets to wait for: at most one a stream, the latest, since a stream keeps its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tickets(SmallVec<[Ticket; 4]>);

impl Tickets {
    /// No ticket.
    pub fn new() -> Tickets {
        Tickets::default()
    }

    /// Adds a ticket.
    pub fn add(&mut self, ticket: Ticket) {
        match self.0.iter_mut().find(|t| t.stream == ticket.stream) {
            Some(known) => known.value = known.value.max(ticket.value),
            None => self.0.push(ticket),
        }
    }

    /// Forgets every ticket.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Keeps the tickets that `keep` is true for.
    pub fn retain(&mut self, mut keep: impl FnMut(Ticket) -> bool) {
        self.0.retain(|ticket| keep(*ticket));
    }

    /// The tickets.
    pub fn as_slice(&self) -> &[Ticket] {
        &self.0
    }
}

impl Extend<Ticket> for Tickets {
    fn extend<I: IntoIterator<Item = Ticket>>(&mut self, tickets: I) {
        for ticket in tickets {
            self.add(ticket);
        }
    }
}

impl FromIterator<Ticket> for Tickets {
    fn from_iter<I: IntoIterator<Item = Ticket>>(tickets: I) -> Tickets {
        let mut all = Tickets::new();
        all.extend(tickets);
        all
    }
}

/// What a buffer remembers: who wrote it last, who has read it since, and which host guards live.
/// The last writers are several where work was submitted that waits for none of them.
///
/// The rules are those of a reader-writer lock, with device work queued in place of blocked:
/// work that reads waits for the last write; work that writes waits for the last write and all reads since.
/// Host guards wait likewise, and while one lives, device work that conflicts with it is refused.
#[derive(Clone, Debug, Default)]
pub struct Hazards {
    writes: Tickets,
    reads: Tickets,
    host_readers: u32,
    host_writer: bool,
}

impl Hazards {
    /// A buffer that nobody has used.
    pub fn new() -> Hazards {
        Hazards::default()
    }

    /// Adds to `wait` what device work must wait for that reads (`writes` false) or also writes the buffer.
    ///
    /// # Errors
    /// [`Error::Busy`] while a host guard lives that conflicts.
    pub fn before_device(&self, writes: bool, wait: &mut Tickets) -> Result<()> {
        if self.host_writer {
            return Err(Error::Busy(
                "the CPU holds a write guard on the buffer; drop it before the launch".into(),
            ));
        }
        if writes && self.host_readers > 0 {
            return Err(Error::Busy(
                "the CPU holds a read guard on the buffer, which the work would write; drop it before the launch".into(),
            ));
        }
        wait.extend(self.writes.as_slice().iter().copied());
        if writes {
            wait.extend(self.reads.as_slice().iter().copied());
        }
        Ok(())
    }

    /// Remembers that the work behind `ticket` reads or also writes the buffer. It waits for what
    /// [`Hazards::before_device`] gave, so whoever waits for it waits for that, too.
    pub fn after_device(&mut self, writes: bool, ticket: Ticket) {
        if writes {
            self.reads.clear();
            self.writes.clear();
        }
        self.after_unordered(writes, ticket);
    }

    /// [`Hazards::after_device`] for work that need not have waited for anything: nobody is forgotten for it.
    pub fn after_unordered(&mut self, writes: bool, ticket: Ticket) {
        let users = if writes { &mut self.writes } else { &mut self.reads };
        users.add(ticket);
    }

    /// Takes a host guard and returns the tickets to wait for before the CPU touches the buffer.
    ///
    /// # Errors
    /// [`Error::Busy`] while a host guard lives that conflicts: the holder may be this very thread, so waiting
    /// could last for ever.
    pub fn begin_host(&mut self, writes: bool) -> Result<Tickets> {
        if self.host_writer {
            return Err(Error::Busy("another write guard on the buffer lives".into()));
        }
        if writes && self.host_readers > 0 {
            return Err(Error::Busy(format!("{} read guard(s) on the buffer live", self.host_readers)));
        }
        let mut wait = self.writes.clone();
        if writes {
            wait.extend(self.reads.as_slice().iter().copied());
            self.host_writer = true;
        } else {
            self.host_readers += 1;
        }
        Ok(wait)
    }

    /// Gives a host guard back.
    pub fn end_host(&mut self, writes: bool) {
        if writes {
            self.host_writer = false;
        } else {
            self.host_readers = self.host_readers.saturating_sub(1);
        }
    }

    /// Every ticket that still matters: the last writes and the reads since.
    pub fn all(&self) -> Tickets {
        let mut all = self.writes.clone();
        all.extend(self.reads.as_slice().iter().copied());
        all
    }

    /// How many tickets are remembered, reached or not.
    pub fn pending(&self) -> usize {
        self.writes.as_slice().len() + self.reads.as_slice().len()
    }

    /// Forgets tickets that `done` is true for, so that a buffer read by ever new streams stays small.
    pub fn prune(&mut self, mut done: impl FnMut(Ticket) -> bool) {
        self.writes.retain(|ticket| !done(ticket));
        self.reads.retain(|ticket| !done(ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(stream: u64, value: u64) -> Ticket {
        Ticket { stream: StreamId(stream), value }
    }

    fn waits(hazards: &Hazards, writes: bool) -> Vec<Ticket> {
        let mut wait = Tickets::new();
        hazards.before_device(writes, &mut wait).unwrap();
        wait.as_slice().to_vec()
    }

    #[test]
    fn readers_wait_for_the_writer_and_the_writer_for_all() {
        let mut hazards = Hazards::new();
        assert!(waits(&hazards, true).is_empty());
        hazards.after_device(true, ticket(1, 5));
        assert_eq!(waits(&hazards, false), [ticket(1, 5)]);
        hazards.after_device(false, ticket(2, 1));
        hazards.after_device(false, ticket(2, 3));
        hazards.after_device(false, ticket(3, 1));
        assert_eq!(waits(&hazards, false), [ticket(1, 5)]);
        assert_eq!(waits(&hazards, true), [ticket(1, 5), ticket(2, 3), ticket(3, 1)]);
        hazards.after_device(true, ticket(4, 1));
        assert_eq!(waits(&hazards, true), [ticket(4, 1)]);
    }

    #[test]
    fn unordered_work_forgets_nobody() {
        let mut hazards = Hazards::new();
        hazards.after_device(true, ticket(1, 5));
        hazards.after_device(false, ticket(2, 1));
        hazards.after_unordered(true, ticket(3, 1));
        hazards.after_unordered(true, ticket(4, 7));
        hazards.after_unordered(false, ticket(5, 1));
        let writers = [ticket(1, 5), ticket(3, 1), ticket(4, 7)];
        assert_eq!(waits(&hazards, false), writers);
        let all = [ticket(1, 5), ticket(3, 1), ticket(4, 7), ticket(2, 1), ticket(5, 1)];
        assert_eq!(waits(&hazards, true), all);
        assert_eq!(hazards.begin_host(false).unwrap().as_slice(), writers);
        hazards.end_host(false);
        assert_eq!(hazards.all().as_slice(), all);
        // Work in order follows them all, and stands for them.
        hazards.after_device(true, ticket(1, 6));
        assert_eq!(waits(&hazards, true), [ticket(1, 6)]);
    }

    #[test]
    fn guards_refuse_what_conflicts() {
        let mut hazards = Hazards::new();
        hazards.begin_host(false).unwrap();
        hazards.begin_host(false).unwrap();
        assert!(matches!(hazards.begin_host(true), Err(Error::Busy(_))));
        assert!(hazards.before_device(false, &mut Tickets::new()).is_ok());
        assert!(matches!(hazards.before_device(true, &mut Tickets::new()), Err(Error::Busy(_))));
        hazards.end_host(false);
        hazards.end_host(false);
        hazards.begin_host(true).unwrap();
        assert!(matches!(hazards.begin_host(false), Err(Error::Busy(_))));
        assert!(matches!(hazards.before_device(false, &mut Tickets::new()), Err(Error::Busy(_))));
        hazards.end_host(true);
        assert!(hazards.before_device(true, &mut Tickets::new()).is_ok());
    }

    #[test]
    fn done_tickets_are_forgotten() {
        let mut hazards = Hazards::new();
        hazards.after_device(true, ticket(1, 1));
        for stream in 2..100 {
            hazards.after_device(false, ticket(stream, 1));
        }
        hazards.prune(|ticket| ticket.stream != StreamId(50));
        assert_eq!(hazards.all().as_slice(), [ticket(50, 1)]);
    }
}
