//! Work in order: the one place where hazards decide what a submission waits for.

use std::sync::Arc;

use onebuf_core::{Error, Result, Ticket, Tickets};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::device::Shared;
use crate::partners::{Partners, Patience};
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
/// devices.
///
/// # Errors
/// [`Error::Busy`] while a host guard lives that conflicts; whatever `submit` fails with. Nothing is remembered then.
pub(crate) fn submit(
    device: &Shared,
    uses: &mut Uses<'_>,
    after: Tickets,
    order: Order,
    submit: impl FnOnce(&[Ticket]) -> Result<Ticket>,
) -> Result<Ticket> {
    if uses.len() > 1 {
        uses.sort_unstable_by_key(|used| Arc::as_ptr(&used.storage.state).addr());
    }
    let mut held = Held::take(device, uses, after, order)?;
    let ticket = submit(held.after.as_slice())?;
    for (used, state) in uses.iter().zip(&mut held.states) {
        state.record(device, used.writes, ticket, order);
    }
    Ok(ticket)
}

/// How often other devices' work is waited for without the locks before it is waited for with them. New work may come
/// each time.
const WAITS_OUTSIDE: u32 = 3;

/// The hazards of all memory that a submission uses, and what it must follow.
struct Held<'a, 'd> {
    states: SmallVec<[MutexGuard<'a, State>; 8]>,
    after: Tickets,
    _running: Option<MutexGuard<'d, u32>>,
}

impl<'a, 'd> Held<'a, 'd> {
    /// Where the host has to wait for other devices that have the memory too, it does so without the locks: whoever else
    /// wants the memory may have a time limit.
    fn take(device: &'d Shared, uses: &Uses<'a>, after: Tickets, order: Order) -> Result<Held<'a, 'd>> {
        let (mut patience, mut waits) = (Patience::Left, 0);
        loop {
            let (mut held, partners) = Held::lock(device, uses, after.clone(), order)?;
            if partners.is_empty() {
                return Ok(held);
            }
            if waits == WAITS_OUTSIDE {
                partners.bring(device, &mut held.after)?;
                return Ok(held);
            }
            let ahead = partners.try_bring(device, &mut held.after, patience)?;
            if ahead.is_empty() {
                return Ok(held);
            }
            drop(held);
            ahead.wait(device, &mut patience)?;
            waits += 1;
        }
    }

    fn lock(
        device: &'d Shared,
        uses: &Uses<'a>,
        mut after: Tickets,
        order: Order,
    ) -> Result<(Held<'a, 'd>, Partners)> {
        let _running = may_run(device)?;
        let mut states: SmallVec<[MutexGuard<'a, State>; 8]> = SmallVec::new();
        let mut partners = Partners::default();
        for used in uses {
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
        Ok((Held { states, after, _running }, partners))
    }
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
