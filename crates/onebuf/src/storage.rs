//! A buffer's memory with what is known of it: who uses it, how it was asked for, where it came from.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use onebuf_core::backend::{Allocation, Memory, Part};
use onebuf_core::hazard::Hazards;
use onebuf_core::placement::{Candidate, Ranking, Rejected, rank, staging_kind};
use onebuf_core::{
    DeviceProfile, DeviceUse, Error, HostAccess, HostPath, Intent, Placement, Result, Semantic, Share,
    Strength, Ticket, Tickets, Ways,
};
use onebuf_ipc::SharedBuffer;
use parking_lot::Mutex;

use crate::device::{Device, Shared};
use crate::order::Order;
use crate::partners::Partners;
use crate::pool::{Free, PoolKey};

/// What a buffer's users will do, without its size and without a heap allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) host: HostAccess,
    pub(crate) in_place: Strength,
    pub(crate) device_use: DeviceUse,
    pub(crate) process: bool,
    pub(crate) api: bool,
    pub(crate) semantic: Option<(Semantic, Strength)>,
    pub(crate) ways: Ways,
}

impl Wish {
    pub(crate) fn intent(&self, size_bytes: u64) -> Intent {
        let mut share = Vec::new();
        share.extend(self.process.then_some(Share::Process));
        share.extend(self.api.then_some(Share::Api));
        let Wish { host, in_place, device_use, semantic, ways, .. } = *self;
        Intent { size_bytes, host, in_place, device_use, share, ways, semantic }
    }

    /// Whether the memory may leave the process, so that it is nobody else's before or after.
    fn shared(&self) -> bool {
        let by_name = matches!(self.semantic, Some((Semantic::Process | Semantic::Api, _)));
        self.process || self.api || by_name
    }

    /// A number for each different wish, for the pool.
    fn code(&self) -> u32 {
        let semantic =
            self.semantic.map_or(0, |(semantic, strength)| 1 + 2 * semantic as u32 + strength as u32);
        self.host as u32 | (self.in_place as u32) << 2 | (self.device_use as u32) << 3 | semantic << 4
    }
}

/// Memory of one kind was asked for by number, for staging: no wish has this bit.
const BY_KIND: u32 = 1 << 31;

/// Where memory lies and how that was decided. Memory that goes through the pool keeps it.
pub(crate) struct Spot {
    pub(crate) path: HostPath,
    /// The kind of memory that the CPU's accesses are staged through, if they are.
    pub(crate) staging: Option<usize>,
    decision: Decision,
}

enum Decision {
    /// Ranked. Candidates before this one were out of memory when they were tried.
    Ranked { profile: DeviceProfile, ranking: Ranking, candidate: Candidate },
    /// There was no choice.
    Given(Box<Placement>),
}

impl Spot {
    /// The spot of memory that somebody else allocated.
    pub(crate) fn given(placement: Placement) -> Spot {
        Spot { path: placement.path, staging: None, decision: Decision::Given(Box::new(placement)) }
    }

    fn placement(&self, intent: Intent) -> Placement {
        match &self.decision {
            Decision::Ranked { profile, ranking, candidate } => {
                Placement::new(profile, &intent, ranking, candidate)
            }
            Decision::Given(placement) => Placement { asked: intent, ..(**placement).clone() },
        }
    }
}

/// What becomes of the memory when the buffer is gone.
pub(crate) enum Origin {
    /// It goes into the pool.
    Pooled(PoolKey),
    /// It goes back to the driver.
    Own,
    /// It is memory of the program, imported: its pages are given back when no work uses them any more. The owner
    /// is dropped after the import.
    Pages(Option<Box<dyn Any + Send + Sync>>),
}

/// Memory and its users. A buffer is a handle to it.
pub(crate) struct Storage {
    pub(crate) device: Device,
    pub(crate) memory: Arc<dyn Memory>,
    // After `memory`: the pages that an import lies on outlive it.
    origin: Origin,
    /// The user's size.
    pub(crate) bytes: u64,
    /// The user's size in whole words: what a kernel sees.
    pub(crate) padded: u64,
    /// What counts as in use.
    held_bytes: u64,
    pub(crate) wish: Wish,
    /// The bytes may not be written, by whomever.
    pub(crate) read_only: bool,
    pub(crate) spot: Arc<Spot>,
    /// One for all storages of one memory, whichever devices they are on.
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) label: Option<Box<str>>,
    placement: OnceLock<Placement>,
    /// The object that others open it by, once it was shared, or came as one.
    pub(crate) object: OnceLock<SharedBuffer>,
}

/// What changes with each use.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) hazards: Hazards,
    /// The devices that have the memory, where there are several.
    pub(crate) partners: Partners,
    /// A copy of the contents, on its way to the CPU or there, that a `try_read` began.
    pub(crate) readback: Option<Readback>,
    /// Why the last host write did not reach the device.
    pub(crate) failed: Option<Box<Error>>,
    /// How many tickets may pile up before those that are done are looked for.
    prune_at: usize,
}

/// A copy of a part of a buffer in staging memory.
pub(crate) struct Readback {
    pub(crate) staging: Arc<Storage>,
    pub(crate) ticket: Ticket,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// Who comes first to a new buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Host,
    Device,
}

/// How the CPU gets at bytes.
pub(crate) enum Route {
    /// At this address, where the memory begins.
    Direct(NonNull<u8>),
    /// Through memory of this kind.
    Staged(usize),
}

impl State {
    /// Remembers work on the buffer.
    pub(crate) fn record(&mut self, device: &Shared, writes: bool, ticket: Ticket, order: Order) {
        if writes {
            self.readback = None;
        }
        match order {
            Order::ByHazards => self.hazards.after_device(writes, ticket),
            Order::ByHand => self.hazards.after_unordered(writes, ticket),
        }
        if self.hazards.pending() > self.prune_at.max(16) {
            let State { hazards, partners, .. } = self;
            hazards.prune(|ticket| matches!(partners.is_done(device, ticket), Ok(true)));
            self.prune_at = 2 * self.hazards.pending();
        }
    }
}

impl Storage {
    /// Memory for `bytes`, from the pool or the driver.
    pub(crate) fn allocate(
        device: &Device,
        bytes: u64,
        wish: Wish,
        label: Option<Box<str>>,
        first: First,
    ) -> Result<Arc<Storage>> {
        let shared = &*device.shared;
        let padded = padded(bytes, shared.info.limits.max_buffer_bytes)?;
        let class = shared.pool.class(padded).filter(|_| !wish.shared());
        let key = class.map(|bytes| PoolKey { asked: wish.code(), bytes });
        let idle = first == First::Host || wish.host != HostAccess::None;
        if let Some(free) = key.and_then(|key| take(shared, key, idle)) {
            return Ok(Storage::from_free(device, free, key, bytes, padded, wish, label));
        }
        // The driver gets one more chance when the pool has let go of what it kept.
        let mut tried = place(shared, &wish, padded, class);
        if matches!(tried, Err(Error::OutOfMemory { never_fits: false, .. })) {
            if let Some(free) = key.and_then(|key| take(shared, key, false)) {
                return Ok(Storage::from_free(device, free, key, bytes, padded, wish, label));
            }
            if device.trim() > 0 || class.is_some_and(|class| class > padded) {
                tried = place(shared, &wish, padded, None);
            }
        }
        let (memory, spot, held_bytes) = match tried {
            Err(Error::NoPlacement { rejected, .. }) if wish.shared() => {
                return crate::share::by_memfd(device, bytes, padded, wish, label, rejected);
            }
            other => other?,
        };
        // Memory that did not get its whole class must not come back as one that has.
        let origin = match key {
            Some(key) if held_bytes == key.bytes => Origin::Pooled(key),
            _ => Origin::Own,
        };
        shared.pool.born(held_bytes);
        Ok(Storage::new(device, memory, origin, (bytes, padded, held_bytes), wish, Arc::new(spot), label))
    }

    /// Page-locked memory for copies to and from the CPU.
    pub(crate) fn staging(device: &Device, kind: usize, bytes: u64) -> Result<Arc<Storage>> {
        let shared = &*device.shared;
        let padded = padded(bytes, shared.info.limits.max_buffer_bytes)?;
        let wish = Wish { host: HostAccess::ReadWrite, ..Wish::default() };
        let limits = &shared.info.limits;
        let most = limits.max_buffer_bytes.min(limits.max_allocation_bytes);
        let class = shared.pool.class(padded).filter(|class| *class <= most);
        let key = class.map(|bytes| PoolKey { asked: BY_KIND | kind as u32, bytes });
        if let Some(free) = key.and_then(|key| take(shared, key, true)) {
            return Ok(Storage::from_free(device, free, key, bytes, padded, wish, None));
        }
        let held_bytes = class.unwrap_or(padded);
        let request = Allocation { kind, size_bytes: held_bytes, exportable: false, mapped: true };
        let memory = match shared.raw.allocate(&request) {
            Err(Error::OutOfMemory { .. }) if device.trim() > 0 => shared.raw.allocate(&request)?,
            other => other?,
        };
        let candidate = Candidate { kind, staging: None, exportable: false };
        let ranking = Ranking { candidates: vec![candidate.clone()], rejected: Vec::new() };
        let placement = Placement::new(&shared.profile, &wish.intent(bytes), &ranking, &candidate);
        let origin = key.map_or(Origin::Own, Origin::Pooled);
        shared.pool.born(held_bytes);
        let spot = Arc::new(Spot::given(placement));
        Ok(Storage::new(device, memory, origin, (bytes, padded, held_bytes), wish, spot, None))
    }

    /// Memory that was not allocated here. The caller has checked that it has `bytes`, in whole words.
    pub(crate) fn given(
        device: &Device,
        memory: Arc<dyn Memory>,
        origin: Origin,
        bytes: u64,
        wish: Wish,
        label: Option<Box<str>>,
        placement: Placement,
    ) -> Arc<Storage> {
        // Bytes past the user's that are not there cannot be bound.
        let padded = bytes.next_multiple_of(4).min(memory.size_bytes());
        let held_bytes = memory.size_bytes();
        device.shared.pool.born(held_bytes);
        let spot = Arc::new(Spot::given(placement));
        Storage::new(device, memory, origin, (bytes, padded, held_bytes), wish, spot, label)
    }

    /// A new storage with the state of the same memory's storages on other devices.
    pub(crate) fn with_state(mut self: Arc<Self>, state: Option<&Arc<Mutex<State>>>) -> Arc<Storage> {
        if let (Some(state), Some(own)) = (state, Arc::get_mut(&mut self)) {
            own.state = state.clone();
        }
        self
    }

    fn from_free(
        device: &Device,
        free: Free,
        key: Option<PoolKey>,
        bytes: u64,
        padded: u64,
        wish: Wish,
        label: Option<Box<str>>,
    ) -> Arc<Storage> {
        let origin = key.map_or(Origin::Own, Origin::Pooled);
        let storage =
            Storage::build(device, free.memory, origin, (bytes, padded, free.bytes), wish, free.spot, label);
        storage.state.lock().hazards = free.hazards;
        Arc::new(storage)
    }

    fn new(
        device: &Device,
        memory: Arc<dyn Memory>,
        origin: Origin,
        sizes: (u64, u64, u64),
        wish: Wish,
        spot: Arc<Spot>,
        label: Option<Box<str>>,
    ) -> Arc<Storage> {
        Arc::new(Storage::build(device, memory, origin, sizes, wish, spot, label))
    }

    fn build(
        device: &Device,
        memory: Arc<dyn Memory>,
        origin: Origin,
        (bytes, padded, held_bytes): (u64, u64, u64),
        wish: Wish,
        spot: Arc<Spot>,
        label: Option<Box<str>>,
    ) -> Storage {
        Storage {
            device: device.clone(),
            read_only: memory.is_read_only(),
            memory,
            origin,
            bytes,
            padded,
            held_bytes,
            wish,
            spot,
            state: Arc::default(),
            label,
            placement: OnceLock::new(),
            object: OnceLock::new(),
        }
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.placement.get_or_init(|| self.spot.placement(self.wish.intent(self.bytes)))
    }

    /// How the CPU gets at the bytes, to read them only (`only_reads`) or also to write.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the memory cannot be seen and there is none to stage through.
    pub(crate) fn route(&self, only_reads: bool) -> Result<Route> {
        let bar = matches!(self.spot.path, HostPath::ResizableBar | HostPath::BarWindow);
        // Reading through a bus window is so slow that a copy by the device wins, unless the caller insisted.
        let crawls = bar && only_reads && !self.wish.host.reads();
        if self.spot.staging.is_none()
            && !crawls
            && let Some(pointer) = self.memory.host_pointer()
        {
            return Ok(Route::Direct(pointer));
        }
        let kind = self.spot.staging.or_else(|| staging_kind(&self.device.shared.profile));
        kind.map(Route::Staged).ok_or_else(|| {
            let what = format!("access of the CPU to {}", self.describe());
            Error::unsupported(
                what,
                "the device has no memory that the CPU can see, not even to copy through",
            )
        })
    }

    /// Waits for all work on the memory, so that another process may have it.
    ///
    /// # Errors
    /// [`Error::Busy`] while a host guard lives; [`Error::Timeout`]; why the last host write did not reach the device.
    pub(crate) fn settle(&self, limit: Duration) -> Result<()> {
        let mut after = Tickets::new();
        let mut state = self.state.lock();
        let free = state.hazards.before_device(true, &mut after);
        let failed = state.failed.take();
        // When this process has the memory again, a copy from before is stale.
        state.readback = None;
        let partners = state.partners.clone();
        drop(state);
        free.map_err(|error| self.name_in(error))?;
        if let Some(error) = failed {
            return Err(*error);
        }
        partners.wait(&self.device.shared, after.as_slice(), Some(limit))
    }

    /// True while no work that was given a ticket may still use the memory.
    pub(crate) fn is_idle(&self) -> bool {
        let State { hazards, partners, .. } = &mut *self.state.lock();
        hazards.prune(|ticket| matches!(partners.is_done(&self.device.shared, ticket), Ok(true)));
        hazards.pending() == 0
    }

    pub(crate) fn part(&self, offset_bytes: u64, size_bytes: u64) -> Part<'_> {
        Part { memory: &self.memory, offset_bytes, size_bytes }
    }

    /// Refuses to write pages that may only be read: the CPU would die of it, and so may a driver.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        let what = self.describe();
        Err(Error::InvalidArgument(format!(
            "{what} lies on pages that were imported to be read only; copy it to another one to change it"
        )))
    }

    /// The buffer, for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.label {
            Some(label) => format!("buffer `{label}`"),
            None => "the buffer".to_owned(),
        }
    }

    /// The same error, with the buffer's name in it where it has one.
    pub(crate) fn name_in(&self, error: Error) -> Error {
        match (error, &self.label) {
            (Error::Busy(message), Some(label)) => Error::Busy(format!("buffer `{label}`: {message}")),
            (error, _) => error,
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let shared = &*self.device.shared;
        // Taken, not read: where it is a lease, the memory's maker frees the memory when every lease is over.
        if let Some(object) = self.object.take() {
            shared.objects.forget(object.key());
        }
        // On another device the memory may live on, and with it what is known of its users.
        let hazards = match Arc::get_mut(&mut self.state) {
            Some(state) => std::mem::take(&mut state.get_mut().hazards),
            None => self.state.lock().hazards.clone(),
        };
        match &mut self.origin {
            Origin::Pooled(key) => {
                let (memory, spot) = (self.memory.clone(), self.spot.clone());
                shared.pool.give(*key, Free { memory, spot, hazards, bytes: self.held_bytes });
            }
            Origin::Own => shared.pool.died(self.held_bytes),
            Origin::Pages(owner) => {
                shared.pool.died(self.held_bytes);
                // The other devices' work uses imports of their own.
                let mut own = hazards.all();
                own.retain(|ticket| shared.knows(ticket.stream));
                let waited = shared.raw.wait(own.as_slice(), None);
                match waited {
                    // The import goes with the field `memory`, and the owner of its pages after it.
                    Ok(()) | Err(Error::DeviceLost(_)) if is_last(&self.memory) => {}
                    Ok(()) | Err(Error::DeviceLost(_)) => shared.pages.retire(&self.memory, owner.take()),
                    Err(error) => {
                        // The device may still use the pages: better lost than given to somebody else.
                        tracing::error!(%error, "imported pages are leaked: their work cannot be waited for");
                        std::mem::forget((self.memory.clone(), owner.take()));
                    }
                }
            }
        }
    }
}

/// True once nobody else holds the memory. Its work is done; a thread of the backend may be letting go of it just now.
fn is_last(memory: &Arc<dyn Memory>) -> bool {
    (0..1000).any(|_| {
        let last = Arc::strong_count(memory) == 1;
        if !last {
            std::thread::sleep(Duration::from_micros(50));
        }
        last
    })
}

/// The size in whole words, at least one: what a kernel that takes `array<u32>` can bind.
fn padded(bytes: u64, most: u64) -> Result<u64> {
    let too_large =
        || Error::LimitExceeded { what: "buffer size in bytes".into(), required: bytes, available: most };
    let padded = bytes.max(1).checked_next_multiple_of(4).ok_or_else(too_large)?;
    if padded > most { Err(too_large()) } else { Ok(padded) }
}

fn take(shared: &Shared, key: PoolKey, idle: bool) -> Option<Free> {
    let is_done = |hazards: &mut Hazards| done(shared, hazards);
    shared.pool.take(key, if idle { Some(&is_done) } else { None })
}

fn done(shared: &Shared, hazards: &mut Hazards) -> bool {
    if hazards.pending() > 0 {
        hazards.prune(|ticket| matches!(shared.raw.is_done(ticket), Ok(true)));
    }
    hazards.pending() == 0
}

/// Tries the ranked kinds of memory in their order. Where a class is given, memory of that size is taken if it can be.
fn place(
    shared: &Shared,
    wish: &Wish,
    padded: u64,
    class: Option<u64>,
) -> Result<(Arc<dyn Memory>, Spot, u64)> {
    let profile = shared.raw.profile();
    let ranking = rank(&profile, &wish.intent(padded))?;
    let most = profile.max_allocation_bytes.min(profile.max_buffer_bytes);
    let size_bytes = class.filter(|class| *class <= most).unwrap_or(padded);
    let mut full = None;
    let mut refused = ranking.rejected.clone();
    for candidate in &ranking.candidates {
        let path = profile.host_path(candidate.kind);
        let near = matches!(path, HostPath::Uma | HostPath::HostMemory | HostPath::Unified);
        let mapped = path != HostPath::DeviceOnly && (near || wish.host != HostAccess::None);
        let request =
            Allocation { kind: candidate.kind, size_bytes, exportable: candidate.exportable, mapped };
        match shared.raw.allocate(&request) {
            Ok(memory) => {
                let (candidate, staging) = (candidate.clone(), candidate.staging);
                let decision = Decision::Ranked { profile, ranking, candidate };
                return Ok((memory, Spot { path, staging, decision }, size_bytes));
            }
            Err(error @ Error::OutOfMemory { .. }) => full = Some(error),
            // A kind may refuse what the profile cannot say: NVIDIA's driver exports no buffer from some types.
            Err(Error::Unsupported { reason, .. }) => {
                let kind = profile.memory.get(candidate.kind).map(|kind| kind.name.clone());
                refused.push(Rejected { kind: kind.unwrap_or_default(), reason });
            }
            Err(error) => return Err(error),
        }
    }
    Err(full.unwrap_or(Error::NoPlacement {
        device: profile.device,
        asked: wish.intent(padded).to_string(),
        rejected: refused,
    }))
}
