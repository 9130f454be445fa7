//! The CPU's turn: guards that wait for the device, show its bytes as a slice, and hand them back.
//!
//! A guard claims the buffer in its hazards, so that conflicting work is refused while it lives; waits for the work that
//! conflicts; and invalidates before, flushes after. Where the CPU cannot reach the memory, the same steps go through
//! a staging buffer, which the device fills and empties.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytemuck::Pod;
use onebuf_core::backend::{Part, Work};
use onebuf_core::{Error, HostPath, Result, Ticket, Tickets};

use crate::order::{self, Order};
use crate::partners::Partners;
use crate::storage::{Readback, Route, State, Storage};

/// The elements of a buffer, for the CPU to read. Made by [`Buffer::read`](crate::Buffer::read); keeps the buffer alive.
pub struct ReadGuard<T: Pod> {
    hold: Hold,
    element: PhantomData<T>,
}

/// The elements of a buffer, for the CPU to write. Made by [`Buffer::write`](crate::Buffer::write); keeps the buffer alive.
/// What was written is the device's when the guard is dropped.
pub struct WriteGuard<T: Pod> {
    hold: Hold,
    element: PhantomData<T>,
}

/// What the CPU will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    /// Write, without a look at what was there.
    Overwrite,
}

/// How long to wait for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Forever,
    Until(Duration),
    None,
}

/// The CPU's hold on a range of a buffer.
pub(crate) struct Hold {
    claim: Claim,
    /// Where the elements are, if not in the buffer itself.
    staging: Option<Arc<Storage>>,
    /// The first byte; dangling where there is none.
    pointer: NonNull<u8>,
    offset: u64,
    size: u64,
    /// What a copy back to the device must follow.
    after: Tickets,
    /// The devices of those tickets, where there are several.
    partners: Partners,
    returned: bool,
}

// SAFETY: `pointer` points into memory that `claim.storage` or `staging` keeps mapped for the hold's life, wherever it
// moves; access through it is governed by the borrow of the guard.
unsafe impl Send for Hold {}
// SAFETY: as above; a shared hold gives shared access only.
unsafe impl Sync for Hold {}

/// A host guard's place in the hazards, given back when dropped.
struct Claim {
    storage: Arc<Storage>,
    writes: bool,
    /// The guard stops the whole device.
    exclusive: bool,
}

/// A lock on the hazards is held for moments, except while another thread hands work to the driver. One who must not
/// wait takes that for busy.
const MOMENT: Duration = Duration::from_micros(200);

impl Claim {
    fn take(storage: &Arc<Storage>, writes: bool, patience: Patience) -> Result<(Claim, Tickets, Partners)> {
        let device = &storage.device.shared;
        let guards = device.exclusive.as_ref().filter(|_| storage.spot.path == HostPath::Unified);
        let mut state = match patience {
            Patience::None => storage.state.try_lock_for(MOMENT).ok_or_else(|| {
                storage.name_in(Error::Busy("another thread hands work on the buffer to the driver".into()))
            })?,
            _ => storage.state.lock(),
        };
        let mut wait = state.hazards.begin_host(writes).map_err(|error| storage.name_in(error))?;
        // From here on the claim gives back what was taken.
        let claim = Claim { storage: storage.clone(), writes, exclusive: guards.is_some() };
        let failed = state.failed.take();
        let partners = state.partners.clone();
        drop(state);
        if let Some(guards) = guards {
            // New work is refused from here on, and what was submitted before is waited for.
            *guards.lock() += 1;
            wait.extend(device.all_tickets().as_slice().iter().copied());
        }
        match failed {
            Some(error) => Err(*error),
            None => Ok((claim, wait, partners)),
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.storage.state.lock()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.lock().hazards.end_host(self.writes);
        if self.exclusive
            && let Some(guards) = &self.storage.device.shared.exclusive
        {
            let mut guards = guards.lock();
            *guards = guards.saturating_sub(1);
        }
    }
}

impl Hold {
    pub(crate) fn begin(
        storage: &Arc<Storage>,
        offset: u64,
        size: u64,
        mode: Mode,
        patience: Patience,
    ) -> Result<Hold> {
        if mode != Mode::Read {
            storage.check_writable()?;
        }
        let (claim, after, partners) = Claim::take(storage, mode != Mode::Read, patience)?;
        let mut hold = Hold {
            claim,
            staging: None,
            pointer: NonNull::dangling(),
            offset,
            size,
            after,
            partners,
            returned: mode == Mode::Read,
        };
        if size == 0 {
            hold.returned = true;
            return Ok(hold);
        }
        // Until the CPU has the bytes there is nothing to give back.
        let returned = std::mem::replace(&mut hold.returned, true);
        match storage.route(mode == Mode::Read)? {
            Route::Direct(pointer) => {
                hold.wait(hold.after.as_slice(), patience)?;
                hold.after.clear();
                if mode != Mode::Read {
                    hold.claim.lock().readback = None;
                }
                // A write, too, invalidates: its flush is of whole atoms, and must not put stale neighbours back.
                storage.memory.invalidate(offset, size)?;
                hold.pointer = advance(pointer, offset)?;
            }
            Route::Staged(kind) => {
                hold.wait_for_others(patience)?;
                hold.stage(kind, mode, patience)?;
            }
        }
        hold.returned = returned;
        Ok(hold)
    }

    /// Puts the range into staging memory, or for an overwrite only makes room.
    fn stage(&mut self, kind: usize, mode: Mode, patience: Patience) -> Result<()> {
        let storage = self.claim.storage.clone();
        let (offset, size) = (self.offset, self.size);
        let known = self.claim.lock().readback.take();
        let staging = if mode == Mode::Overwrite {
            drop(known);
            Storage::staging(&storage.device, kind, size)?
        } else {
            let readback = match known.filter(|known| known.offset == offset && known.size == size) {
                // It follows the last write. Readers since may still run, and the way back stays behind them.
                Some(readback) => readback,
                None => {
                    let staging = Storage::staging(&storage.device, kind, size)?;
                    let from = storage.part(offset, size);
                    let ticket = copy(&storage, from, staging.part(0, size), &self.after)?;
                    self.claim.lock().record(&storage.device.shared, false, ticket, Order::ByHazards);
                    staging.state.lock().record(&storage.device.shared, true, ticket, Order::ByHazards);
                    self.after = Tickets::from_iter([ticket]);
                    Readback { staging, ticket, offset, size }
                }
            };
            if let Err(error) = self.wait(&[readback.ticket], patience) {
                // The copy goes on; whoever asks next finds it.
                self.claim.lock().readback = Some(readback);
                return Err(error);
            }
            readback.staging.memory.invalidate(0, size)?;
            readback.staging
        };
        self.pointer = staging.memory.host_pointer().ok_or_else(|| Error::Driver {
            call: "Memory::host_pointer",
            code: "no pointer to memory that was allocated to be mapped".into(),
        })?;
        self.staging = Some(staging);
        Ok(())
    }

    /// Gives written bytes to the device.
    fn give_back(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.returned, true) {
            return Ok(());
        }
        let storage = &self.claim.storage;
        let Some(staging) = &self.staging else {
            storage.memory.flush(self.offset, self.size)?;
            self.push_through_bus();
            return Ok(());
        };
        let device = &storage.device.shared;
        staging.memory.flush(0, self.size)?;
        let (from, to) = (staging.part(0, self.size), storage.part(self.offset, self.size));
        let ticket = copy(storage, from, to, &self.after)?;
        self.claim.lock().record(device, true, ticket, Order::ByHazards);
        staging.state.lock().record(device, false, ticket, Order::ByHazards);
        Ok(())
    }

    /// What the CPU wrote through a bus window is on its way there. The driver whose window it is sees to it when work is
    /// submitted; another device, or another process, that has the memory has no part in that. A read comes back behind all
    /// writes before it.
    fn push_through_bus(&self) {
        let storage = &self.claim.storage;
        let window = matches!(storage.spot.path, HostPath::ResizableBar | HostPath::BarWindow);
        if !window || self.size == 0 || (self.partners.is_empty() && storage.object.get().is_none()) {
            return;
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: the byte is in the range of the hold, which is mapped and the claim's alone.
        let _ = unsafe { self.pointer.add(self.size as usize - 1).read_volatile() };
    }

    /// Waits for the work of other devices that have the memory: copies of this one could not follow it.
    fn wait_for_others(&mut self, patience: Patience) -> Result<()> {
        if self.partners.is_empty() {
            return Ok(());
        }
        let mut own = self.after.clone();
        for (_, theirs) in self.partners.split(&self.claim.storage.device.shared, &mut own) {
            self.wait(theirs.as_slice(), patience)?;
        }
        self.after = own;
        Ok(())
    }

    fn wait(&self, tickets: &[Ticket], patience: Patience) -> Result<()> {
        let (storage, partners) = (&self.claim.storage, &self.partners);
        let device = &storage.device.shared;
        match patience {
            _ if tickets.is_empty() => Ok(()),
            Patience::Forever => partners.wait(device, tickets, None),
            Patience::Until(limit) => partners.wait(device, tickets, Some(limit)),
            Patience::None => {
                for &ticket in tickets {
                    if !partners.is_done(device, ticket)? {
                        return Err(storage.name_in(Error::Busy("work on the buffer is not done yet".into())));
                    }
                }
                // All are reached: this does not wait, and makes their effects visible.
                partners.wait(device, tickets, None)
            }
        }
    }

    pub(crate) fn check_alignment<T>(&self) -> Result<()> {
        if self.size == 0 || self.pointer.as_ptr().addr().is_multiple_of(align_of::<T>()) {
            return Ok(());
        }
        let (ty, wants) = (std::any::type_name::<T>(), align_of::<T>());
        Err(Error::InvalidArgument(format!(
            "the bytes are not aligned for `{ty}`, which wants a multiple of {wants}"
        )))
    }

    fn elements<T: Pod>(&self) -> (NonNull<T>, usize) {
        if self.size == 0 {
            return (NonNull::dangling(), 0);
        }
        (self.pointer.cast(), self.size as usize / size_of::<T>())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            let storage = &self.claim.storage;
            tracing::error!(%error, buffer = %storage.describe(), "what the CPU wrote did not reach the device");
            self.claim.lock().failed = Some(Box::new(error));
        }
    }
}

/// A copy between a buffer and its staging memory.
fn copy(storage: &Storage, from: Part<'_>, to: Part<'_>, after: &Tickets) -> Result<Ticket> {
    let device = &storage.device;
    let stream = device.transfer_stream()?;
    let _running = order::may_run(&device.shared)?;
    // SAFETY: both parts have the hold's size and lie in memory of this device; the staging memory is the hold's alone, the
    // buffer was claimed in its hazards, and `after` is what conflicted then.
    let ticket = unsafe { stream.raw.submit(Work::Copy { from, to }, after.as_slice())? };
    device.shared.copied_bytes.fetch_add(from.size_bytes, Ordering::Relaxed);
    Ok(ticket)
}

fn advance(pointer: NonNull<u8>, offset: u64) -> Result<NonNull<u8>> {
    let offset = usize::try_from(offset)
        .map_err(|_| Error::InvalidArgument(format!("byte {offset} is past what this CPU can address")))?;
    // SAFETY: the range was checked to lie in the buffer, and the memory is mapped as one object from `pointer` on.
    Ok(unsafe { pointer.add(offset) })
}

impl<T: Pod> ReadGuard<T> {
    pub(crate) fn new(hold: Hold) -> ReadGuard<T> {
        ReadGuard { hold, element: PhantomData }
    }
}

impl<T: Pod> WriteGuard<T> {
    pub(crate) fn new(hold: Hold) -> WriteGuard<T> {
        WriteGuard { hold, element: PhantomData }
    }

    /// Hands the elements to the device, as dropping the guard does, and says whether that worked. Where dropping it
    /// fails, the next use of the buffer fails with the reason.
    ///
    /// # Errors
    /// The driver's, for a flush or a copy.
    pub fn finish(mut self) -> Result<()> {
        self.hold.give_back()
    }
}

impl<T: Pod> Deref for ReadGuard<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let (pointer, len) = self.hold.elements::<T>();
        // SAFETY: the range is mapped and aligned for `T` (checked when the guard was made), every bit pattern is a `T`,
        // and nothing writes it while the claim stands: host writers and device work that writes are refused, and
        // what was submitted before has been waited for.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) }
    }
}

impl<T: Pod> Deref for WriteGuard<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let (pointer, len) = self.hold.elements::<T>();
        // SAFETY: as for `ReadGuard`; the claim of a writer excludes everybody else.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) }
    }
}

impl<T: Pod> DerefMut for WriteGuard<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let (pointer, len) = self.hold.elements::<T>();
        // SAFETY: as above, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for ReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for WriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
