//! Work in order: the one place where hazards decide what a submission waits for.

use std::sync::Arc;

use onebuf_core::{Error, Result, Ticket, Tickets};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::device::Shared;
use crate::partners::Partners;
use crate::storage::{State, Storage};

/// Work uses this memory.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) writes: bool,
}

/// What a piece of work uses, each memory once.
pub(crate) type Uses<'a> = SmallVec<[Use<'a>; 8]>;

/// Adds a use; two of the same memory become one.
pub(crate) fn add<'a>(uses: &mut Uses<'a>, storage: &'a Storage, writes: bool) {
    match uses.iter_mut().find(|known| Arc::ptr_eq(&known.storage.state, &storage.state)) {
        Some(known) => known.writes |= writes,
        None => uses.push(Use { storage, writes }),
    }
}

/// Whether submissions wait for the work they conflict with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// They do.
    ByHazards,
    /// They wait for `after` alone.
    ByHand,
}

/// Submits work behind `after` and everything that it conflicts with, and remembers it.
///
/// The hazards of all memory in use are held from the first look to the last note, so that two threads cannot both go
/// first. They are taken in the order of their addresses, so that two threads cannot wait for each other, on whichever
/// devices. Where other devices have the memory too, this may wait for their work ([`crate::partners`]).
///
/// # Errors
/// [`Error::Busy`] while a host guard lives that conflicts; whatever `submit` fails with. Nothing is remembered then.
pub(crate) fn submit(
    device: &Shared,
    uses: &mut Uses<'_>,
    mut after: Tickets,
    order: Order,
    submit: impl FnOnce(&[Ticket]) -> Result<Ticket>,
) -> Result<Ticket> {
    if uses.len() > 1 {
        uses.sort_unstable_by_key(|used| Arc::as_ptr(&used.storage.state).addr());
    }
    let _running = may_run(device)?;
    let mut states: SmallVec<[MutexGuard<'_, State>; 8]> = SmallVec::new();
    let mut partners = Partners::default();
    for used in uses.iter() {
        let mut state = used.storage.state.lock();
        let checked = match order {
            Order::ByHazards => state.hazards.before_device(used.writes, &mut after),
            Order::ByHand => state.hazards.before_device(used.writes, &mut Tickets::new()),
        };
        checked.map_err(|error| used.storage.name_in(error))?;
        if let Some(error) = state.failed.take() {
            return Err(*error);
        }
        if !state.partners.is_empty() {
            partners.join(&state.partners);
        }
        states.push(state);
    }
    if !partners.is_empty() {
        partners.bring(device, &mut after)?;
    }
    let ticket = submit(after.as_slice())?;
    for (used, state) in uses.iter().zip(&mut states) {
        state.record(device, used.writes, ticket, order);
    }
    Ok(ticket)
}

/// Where nothing may run while the CPU touches unified memory: a lock that keeps such guards away during a submission.
///
/// # Errors
/// [`Error::Busy`] while such a guard lives.
pub(crate) fn may_run(device: &Shared) -> Result<Option<MutexGuard<'_, u32>>> {
    let Some(guards) = &device.exclusive else { return Ok(None) };
    let guards = guards.lock();
    if *guards > 0 {
        return Err(Error::Busy(
            "the CPU holds a guard on unified memory, and nothing may run on this device meanwhile; drop it first".into(),
        ));
    }
    Ok(Some(guards))
}
