//! One memory on several devices: whose ticket is whose, and how one device's work comes behind another's.
//!
//! The storages of one memory have one state, so hazards hold tickets of all its devices. Here each ticket is asked of the
//! device that gave it out, and work of one device is put behind that of another, by the host or by a timeline that both
//! devices have ([`Handover`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use onebuf_core::backend::Timeline;
use onebuf_core::{Error, Result, Ticket, Tickets};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::device::Shared;

/// How a device's work waits for another device's, where both have one memory ([`Buffer::on`](crate::Buffer::on)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handover {
    /// The host waits for as long as a timeline would cost ([`HOST_PATIENCE`]); what then is not done is waited for by a
    /// timeline, where both drivers have one, else by the host.
    #[default]
    Auto,
    /// The host waits before it submits.
    Host,
    /// A timeline semaphore of the driver's, which both devices have open, wherever there is one; the host does not wait.
    /// A device that is lost signals nothing more: what waits for it on the other is waited for in vain, by time limits
    /// alone ([`Device::wait_timeout`](crate::Device::wait_timeout)).
    Timeline,
}

/// How long [`Handover::Auto`] waits on the host: as long as a hand-over by a timeline takes on an H200, where CUDA and Vulkan in
/// turns take 1.2 ms a turn by timelines and 0.19 ms by the host. So it waits at worst twice as long as the better of both.
pub const HOST_PATIENCE: Duration = Duration::from_millis(1);

/// How often work of a device had to wait for another device's, and by what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handovers {
    /// The host waited.
    pub by_host: u64,
    /// A timeline did.
    pub by_timeline: u64,
}

/// The devices of one memory; none where only one has it. It holds them: work of one may be waited for as long as the
/// memory is there.
#[derive(Clone, Default)]
pub(crate) struct Partners(Vec<Arc<Shared>>);

impl Partners {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, device: &Arc<Shared>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, device)) {
            self.0.push(device.clone());
        }
    }

    pub(crate) fn join(&mut self, others: &Partners) {
        others.0.iter().for_each(|device| self.add(device));
    }

    /// The device other than `own` that gave a ticket out.
    fn giver(&self, own: &Shared, ticket: Ticket) -> Option<&Arc<Shared>> {
        self.0.iter().find(|device| !std::ptr::eq(&raw const ***device, own) && device.knows(ticket.stream))
    }

    /// Whether a ticket of any of the devices is reached.
    pub(crate) fn is_done(&self, own: &Shared, ticket: Ticket) -> Result<bool> {
        self.giver(own, ticket).map_or(own, |device| device).raw.is_done(ticket)
    }

    /// Waits for tickets of all the devices.
    pub(crate) fn wait(&self, own: &Shared, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
        if self.is_empty() {
            return own.raw.wait(tickets, limit);
        }
        let start = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let mut mine = Tickets::from_iter(tickets.iter().copied());
        for (device, theirs) in self.split(own, &mut mine) {
            device.raw.wait(theirs.as_slice(), left())?;
        }
        own.raw.wait(mine.as_slice(), left())
    }

    /// Puts tickets of `own` in the place of other devices', which its work can wait for, or waits for those.
    pub(crate) fn bring(&self, own: &Shared, after: &mut Tickets) -> Result<()> {
        let mut patience = Patience::Left;
        loop {
            let mut brought = after.clone();
            let ahead = self.try_bring(own, &mut brought, patience)?;
            if ahead.is_empty() {
                *after = brought;
                return Ok(());
            }
            ahead.wait(own, &mut patience)?;
        }
    }

    /// [`Partners::bring`] without a wait of the host: what it would wait for is taken out of `after` and given back.
    pub(crate) fn try_bring(&self, own: &Shared, after: &mut Tickets, patience: Patience) -> Result<Ahead> {
        let way = *own.handover.lock();
        let by_timeline = way == Handover::Timeline || (way == Handover::Auto && patience == Patience::Gone);
        let mut ahead = Ahead::default();
        for (device, theirs) in self.split(own, after) {
            let mut done = true;
            for &ticket in theirs.as_slice() {
                done = done && device.raw.is_done(ticket)?;
            }
            if done {
                // So that the device's writes are visible outside of it.
                device.raw.wait(theirs.as_slice(), None)?;
            } else if by_timeline && let Some(bridge) = own.bridges.between(own, &device)? {
                own.handovers.by_timeline.fetch_add(1, Ordering::Relaxed);
                after.add(bridge.cross(own, &device, theirs.as_slice())?);
            } else {
                ahead.0.push((device, theirs));
            }
        }
        Ok(ahead)
    }

    /// Takes the tickets of other devices out of `tickets`, by device.
    pub(crate) fn split(&self, own: &Shared, tickets: &mut Tickets) -> ByDevice {
        let mut found = ByDevice::new();
        tickets.retain(|ticket| {
            let Some(giver) = self.giver(own, ticket) else { return true };
            match found.iter_mut().find(|(device, _)| Arc::ptr_eq(device, giver)) {
                Some((_, theirs)) => theirs.add(ticket),
                None => found.push((giver.clone(), Tickets::from_iter([ticket]))),
            }
            false
        });
        found
    }
}

/// What is left of [`HOST_PATIENCE`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// All.
    Left,
    /// Nothing.
    Gone,
}

/// Work of other devices that the host waits for, by device.
#[derive(Default)]
pub(crate) struct Ahead(ByDevice);

type ByDevice = SmallVec<[(Arc<Shared>, Tickets); 2]>;

impl Ahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for it, or under [`Handover::Auto`] until the patience is gone, once.
    pub(crate) fn wait(&self, to: &Shared, patience: &mut Patience) -> Result<()> {
        let way = *to.handover.lock();
        let limit = (way == Handover::Auto && *patience == Patience::Left).then_some(HOST_PATIENCE);
        for (from, tickets) in &self.0 {
            match from.raw.wait(tickets.as_slice(), limit) {
                Ok(()) => drop(to.handovers.by_host.fetch_add(1, Ordering::Relaxed)),
                Err(Error::Timeout { .. }) => *patience = Patience::Gone,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The bridges to a device, from others.
#[derive(Default)]
pub(crate) struct Bridges(Mutex<Vec<Known>>);

/// A device, and the bridge from it where there can be one.
type Known = (Weak<Shared>, Option<Arc<Bridge>>);

/// A timeline that two devices have open: one signals it, the other follows.
pub(crate) struct Bridge {
    near: Arc<dyn Timeline>,
    far: Arc<dyn Timeline>,
    /// The value that was queued last. Held while one is queued, so that values come in their order.
    last: Mutex<u64>,
}

impl Bridges {
    /// The bridge from one device; `None` where the drivers have no timeline in common. It is made once.
    fn between(&self, to: &Shared, from: &Arc<Shared>) -> Result<Option<Arc<Bridge>>> {
        let mut known = self.0.lock();
        if let Some((_, bridge)) =
            known.iter().find(|(device, _)| std::ptr::eq(device.as_ptr(), &raw const **from))
        {
            return Ok(bridge.clone());
        }
        // A weak handle keeps its address from being given to another device.
        known.retain(|(device, _)| device.strong_count() > 0);
        let made = match Bridge::build(to, from) {
            Ok(bridge) => Some(Arc::new(bridge)),
            Err(Error::Unsupported { what, reason }) => {
                tracing::debug!(to = %to.info.id, from = %from.info.id, what, reason, "the host keeps the order");
                None
            }
            Err(error) => return Err(error),
        };
        known.push((Arc::downgrade(from), made.clone()));
        Ok(made)
    }
}

impl Bridge {
    /// Either of both makes the timeline.
    fn build(to: &Shared, from: &Shared) -> Result<Bridge> {
        let last = Mutex::new(0);
        match to.raw.create_timeline() {
            Ok(near) => {
                let far = from.raw.import_timeline(near.export()?)?;
                Ok(Bridge { near, far, last })
            }
            Err(Error::Unsupported { .. }) => {
                let far = from.raw.create_timeline()?;
                let near = to.raw.import_timeline(far.export()?)?;
                Ok(Bridge { near, far, last })
            }
            Err(error) => Err(error),
        }
    }

    fn cross(&self, to: &Shared, from: &Shared, tickets: &[Ticket]) -> Result<Ticket> {
        let mut last = self.last.lock();
        from.raw.signal(&self.far, *last + 1, tickets)?;
        *last += 1;
        to.raw.follow(&self.near, *last)
    }
}
