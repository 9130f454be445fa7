//! Streams: a CUDA stream, and just enough events to know how far it is.
//!
//! Each piece of work goes to the driver at once and takes the next value of the stream. To learn that a value is reached,
//! the host asks an event that was recorded behind it, or the whole stream. An event costs a tenth of a launch, so one is
//! recorded only where it can tell more than the end of the stream would:
//!
//! - Behind the last piece there is none: a wait for it waits for the stream.
//! - When a further piece comes, an event is first recorded behind the last one: for the first few pieces since the stream
//!   was known to be idle ([`CudaOptions::few_marks`](crate::CudaOptions)), and after that for every
//!   [`sparse_marks`](crate::CudaOptions)th, so that a wait for a piece in a long queue is at most that many pieces too long.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream};
use onebuf_core::backend::{Event, Graph, Memory, Stream, Work};
use onebuf_core::{Error, Result, StreamId, Ticket};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::event::{CudaEvent, Purpose, RawEvent};
use crate::graph::{self, Replay};
use crate::kernel::{self, KernelCode};
use crate::params::Values;
use crate::shared::Shared;
use crate::work::{Ready, describe};
use crate::{driver, fork, nvtx};

/// Things kept after which a submission looks for some to let go of.
const MANY_KEPT: usize = 256;

/// A stream as its user holds it.
pub(crate) struct CudaStream {
    inner: Arc<StreamShared>,
}

/// A stream as the device knows it. It outlives its user's handle until its work is done.
pub(crate) struct StreamShared {
    id: StreamId,
    raw: CUstream,
    state: Mutex<State>,
    /// The highest value that is known to be reached.
    reached: AtomicU64,
    /// The value of the newest piece of work.
    last: AtomicU64,
    /// Last, so that the device outlives the stream.
    shared: Arc<Shared>,
}

// SAFETY: a stream is a handle, and the driver's calls are thread-safe. What else is here is behind a lock.
unsafe impl Send for StreamShared {}
// SAFETY: as above.
unsafe impl Sync for StreamShared {}

#[derive(Default)]
struct State {
    /// The value of the newest piece of work.
    last: u64,
    /// Work up to this value has a mark.
    marked: u64,
    /// Marks behind single pieces of work since the stream was known to be idle.
    early: usize,
    /// Marks that are not known to be reached, in order: value and event.
    marks: VecDeque<(u64, Arc<RawEvent>)>,
    /// Events for further marks.
    spare: Vec<Arc<RawEvent>>,
    /// What queued work uses, in the order of its submission, with the value after which it may go.
    kept: VecDeque<(u64, Keep)>,
    /// Other streams' values that work of this stream follows already.
    followed: SmallVec<[(StreamId, u64); 4]>,
    /// How many things kept make the next submission look.
    look_at: usize,
}

/// Tickets of other streams, with an event of each.
type Marks = SmallVec<[(Ticket, Arc<RawEvent>); 2]>;

/// What a piece of work uses, to be kept until it is done.
pub(crate) enum Keep {
    Memory(Arc<dyn Memory>),
    Kernel(Arc<KernelCode>),
    Replay(Replay),
}

/// What a piece of work uses, borrowed: most of it is kept already, and then nothing is counted.
enum Used<'a> {
    Memory(&'a Arc<dyn Memory>),
    Kernel(&'a Arc<KernelCode>),
    Replay(&'a Replay),
}

impl Used<'_> {
    fn is(&self, kept: &Keep) -> bool {
        match (self, kept) {
            (Used::Memory(a), Keep::Memory(b)) => std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
            (Used::Kernel(a), Keep::Kernel(b)) => Arc::ptr_eq(a, b),
            (Used::Replay(a), Keep::Replay(b)) => a.is(b),
            _ => false,
        }
    }

    fn keep(&self) -> Keep {
        match self {
            Used::Memory(memory) => Keep::Memory(Arc::clone(memory)),
            Used::Kernel(code) => Keep::Kernel(Arc::clone(code)),
            Used::Replay(replay) => Keep::Replay((*replay).clone()),
        }
    }
}

/// How many of the newest things kept a submission looks at: a loop over the same buffers finds them there.
const NEWEST: usize = 12;

impl State {
    /// Keeps something for the newest piece of work. What the pieces before it kept is kept longer in place of twice.
    fn keep(&mut self, used: Used<'_>) {
        let value = self.last;
        let count = self.kept.len();
        for place in (count.saturating_sub(NEWEST)..count).rev() {
            let (until, kept) = &mut self.kept[place];
            if used.is(kept) {
                *until = value;
                return;
            }
        }
        self.kept.push_back((value, used.keep()));
    }

    /// Names of the kernels of work past `reached`.
    fn kernels(&self, reached: u64) -> Vec<String> {
        let mut names = Vec::new();
        for (_, keep) in self.kept.iter().filter(|(until, _)| *until > reached) {
            match keep {
                Keep::Kernel(code) => names.push(code.interface.entry.clone()),
                Keep::Replay(replay) => names.extend(replay.kernels()),
                Keep::Memory(_) => {}
            }
        }
        names
    }

    /// Takes marks up to `reached` off the list.
    fn forget_marks(&mut self, reached: u64) {
        while self.marks.front().is_some_and(|(value, _)| *value <= reached) {
            if let Some((_, event)) = self.marks.pop_front() {
                self.spare.push(event);
            }
        }
    }
}

impl StreamShared {
    fn create(shared: &Arc<Shared>) -> Result<Arc<StreamShared>> {
        let _entered = shared.enter()?;
        let mut raw = std::ptr::null_mut();
        // Not ordered with the legacy default stream, which other libraries may use without thought.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and the pointer is to a live handle.
        shared.check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        let stream = Arc::new(StreamShared {
            id: StreamId::next(),
            raw,
            state: Mutex::default(),
            reached: AtomicU64::new(0),
            last: AtomicU64::new(0),
            shared: shared.clone(),
        });
        let mut streams = shared.streams.write();
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(stream.id, Arc::downgrade(&stream));
        Ok(stream)
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Finds out how far the stream is, without waiting. The context is current.
    pub(crate) fn look(&self) -> Result<()> {
        let mut state = self.state.lock();
        self.look_in(&mut state).map_err(|error| self.fault(&state, error))
    }

    fn look_in(&self, state: &mut State) -> Result<()> {
        while let Some((value, event)) = state.marks.front() {
            if *value > self.reached() && !event.is_reached()? {
                return Ok(());
            }
            self.reached.fetch_max(*value, Ordering::AcqRel);
            state.forget_marks(self.reached());
        }
        if self.reached() < state.last && self.is_idle()? {
            // Nothing is submitted while the state is locked, so all of it is done.
            self.reached.fetch_max(state.last, Ordering::AcqRel);
        }
        Ok(())
    }

    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(driver::error("cuStreamQuery", code)),
        }
    }

    /// Whether the stream has reached a value. The context is current.
    fn is_reached(&self, value: u64) -> Result<bool> {
        if self.reached() >= value {
            return Ok(true);
        }
        self.look()?;
        Ok(self.reached() >= value)
    }

    /// Lets go of what finished work kept.
    pub(crate) fn collect(&self) {
        let mut done: SmallVec<[Keep; 16]> = SmallVec::new();
        let mut state = self.state.lock();
        let reached = self.reached();
        state.forget_marks(reached);
        while state.kept.front().is_some_and(|(until, _)| *until <= reached) {
            done.extend(state.kept.pop_front().map(|(_, keep)| keep));
        }
        // What was kept is dropped without the lock: the last holder of a buffer frees it here.
        drop(state);
    }

    /// Records a mark behind all work so far.
    fn mark(&self, state: &mut State) -> Result<Arc<RawEvent>> {
        // An event that others still wait for must not be recorded anew under them.
        let spare = state.spare.pop().filter(|event| Arc::strong_count(event) == 1);
        let event = match spare {
            Some(event) => event,
            None => Arc::new(RawEvent::create(&self.shared.context, Purpose::Mark)?),
        };
        event.record(self.raw)?;
        state.marked = state.last;
        state.marks.push_back((state.last, event.clone()));
        Ok(event)
    }

    /// Before a further piece of work: records a mark behind the last one where that is worth it.
    fn mark_last(&self, state: &mut State) -> Result<()> {
        let (few, sparse) = (self.shared.options.few_marks, self.shared.options.sparse_marks);
        if self.reached() == state.last {
            state.early = 0;
            return Ok(());
        }
        let unmarked = state.last - state.marked.max(self.reached());
        if unmarked == 0 {
            return Ok(());
        }
        if state.early < few {
            state.early += 1;
        } else if unmarked < sparse {
            return Ok(());
        } else {
            self.look_in(state)?;
            if self.reached() == state.last {
                state.early = 0;
                return Ok(());
            }
        }
        self.mark(state).map(drop)
    }

    /// An event that is reached when `value` is, and maybe a little later; `None` where that has come. The context is
    /// current.
    pub(crate) fn event_for(&self, value: u64) -> Result<Option<Arc<RawEvent>>> {
        if self.reached() >= value {
            return Ok(None);
        }
        let mut state = self.state.lock();
        if let Some((_, event)) = state.marks.iter().find(|(marked, _)| *marked >= value) {
            return Ok(Some(event.clone()));
        }
        self.mark(&mut state).map(Some).map_err(|error| self.fault(&state, error))
    }

    /// The events of other streams that work behind `after` must follow. This stream's own order does the rest.
    fn foreign(&self, after: &[Ticket]) -> Result<Marks> {
        let mut events = Marks::new();
        for &ticket in after.iter().filter(|ticket| ticket.stream != self.id) {
            let follows = |known: &(StreamId, u64)| known.0 == ticket.stream && known.1 >= ticket.value;
            if self.state.lock().followed.iter().any(follows) {
                continue;
            }
            // A stream that is gone has no work left.
            if let Some(stream) = self.shared.stream(ticket.stream)
                && let Some(event) = stream.event_for(ticket.value)?
            {
                events.push((ticket, event));
            }
        }
        Ok(events)
    }

    /// Locks the stream for one more piece of work behind `after`. The context is current.
    fn follow(&self, after: &[Ticket]) -> Result<MutexGuard<'_, State>> {
        let foreign = self.foreign(after)?;
        let mut state = self.state.lock();
        let waits = |state: &mut State| {
            self.mark_last(state)?;
            for (ticket, event) in foreign {
                // SAFETY: stream and event are live; the wait is for the mark as it stands, so the event may be recorded
                // anew afterwards.
                let code = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
                driver::check("cuStreamWaitEvent", code)?;
                state.followed.retain(|known| known.0 != ticket.stream);
                if state.followed.len() >= 16 {
                    state.followed.remove(0);
                }
                state.followed.push((ticket.stream, ticket.value));
            }
            Ok(())
        };
        match waits(&mut state) {
            Ok(()) => Ok(state),
            Err(error) => Err(self.fault(&state, error)),
        }
    }

    /// Hands something over behind `after` that uses no memory and no kernel of onebuf's.
    fn pass(&self, after: &[Ticket], hand_over: impl FnOnce(CUstream) -> Result<()>) -> Result<Ticket> {
        let _entered = self.shared.enter()?;
        let mut state = self.follow(after)?;
        let result = hand_over(self.raw);
        state.last += 1;
        self.finish_submission(state, result)
    }

    /// After a piece of work was handed over, wholly or in part: counts it, and keeps what it uses.
    fn settle(
        &self,
        mut state: MutexGuard<'_, State>,
        work: &Work<'_>,
        result: Result<()>,
    ) -> Result<Ticket> {
        state.last += 1;
        match work {
            Work::Launch(launch) => {
                for part in launch.bindings {
                    state.keep(Used::Memory(part.memory));
                }
                if let Ok(code) = kernel::code(launch.kernel) {
                    state.keep(Used::Kernel(code));
                }
            }
            Work::Copy { from, to } => {
                state.keep(Used::Memory(from.memory));
                state.keep(Used::Memory(to.memory));
            }
            Work::Fill { to, .. } => state.keep(Used::Memory(to.memory)),
        }
        self.finish_submission(state, result)
    }

    fn finish_submission(&self, mut state: MutexGuard<'_, State>, result: Result<()>) -> Result<Ticket> {
        let value = state.last;
        self.last.store(value, Ordering::Release);
        if let Err(error) = result {
            return Err(self.fault(&state, error));
        }
        let many = state.kept.len() >= state.look_at.max(MANY_KEPT);
        if many {
            self.look_in(&mut state).map_err(|error| self.fault(&state, error))?;
            drop(state);
            self.collect();
            let mut state = self.state.lock();
            // What is still in use is not looked at again before it has doubled.
            state.look_at = 2 * state.kept.len();
        }
        Ok(Ticket { stream: self.id, value })
    }

    /// Remembers a lost device, with the kernels of this stream, whose state the caller holds.
    fn fault(&self, state: &State, error: Error) -> Error {
        match error {
            Error::DeviceLost(_) => self.shared.note_with(error, &state.kernels(self.reached())),
            other => other,
        }
    }

    /// Names of the kernels that are not known to be done. Empty where another thread works on the stream.
    pub(crate) fn kernels_under_way(&self) -> Vec<String> {
        self.state.try_lock().map(|state| state.kernels(self.reached())).unwrap_or_default()
    }

    /// Blocks until a value is reached. The context is current.
    fn wait_for(&self, value: u64) -> Result<()> {
        if self.reached() >= value {
            return Ok(());
        }
        let state = self.state.lock();
        let mark = state.marks.iter().find(|(marked, _)| *marked >= value).cloned();
        let last = state.last;
        drop(state);
        let (until, result) = match mark {
            Some((marked, event)) => (marked, event.wait()),
            None => {
                // SAFETY: the stream is live.
                let code = unsafe { sys::cuStreamSynchronize(self.raw) };
                (last, driver::check("cuStreamSynchronize", code))
            }
        };
        result.map_err(|error| self.shared.note(error))?;
        self.reached.fetch_max(until, Ordering::AcqRel);
        self.collect();
        Ok(())
    }

    /// Waits for all work, and lets go of what it kept.
    pub(crate) fn finish(&self) {
        let Ok(_entered) = self.shared.enter() else { return };
        if let Err(error) = self.wait_for(self.last.load(Ordering::Acquire)) {
            tracing::error!(%error, "a dropped stream stopped");
        }
    }
}

impl Drop for StreamShared {
    fn drop(&mut self) {
        self.shared.streams.write().remove(&self.id);
        let Ok(_entered) = self.shared.context.enter() else { return };
        // SAFETY: nobody has the stream any more. Work that is still under way, as there is only where nobody could wait
        // for it, is waited for here, since it uses what is dropped next.
        unsafe {
            if self.reached() < self.last.load(Ordering::Acquire) {
                let _ = sys::cuStreamSynchronize(self.raw);
            }
            let _ = sys::cuStreamDestroy_v2(self.raw);
        }
    }
}

impl CudaStream {
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<CudaStream> {
        Ok(CudaStream { inner: StreamShared::create(shared)? })
    }

    /// See [`StreamShared::pass`].
    pub(crate) fn pass(
        &self,
        after: &[Ticket],
        hand_over: impl FnOnce(CUstream) -> Result<()>,
    ) -> Result<Ticket> {
        self.inner.pass(after, hand_over)
    }

    /// Waits for all work.
    pub(crate) fn finish(&self) {
        self.inner.finish();
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let stream = &self.inner;
        if fork::is_forked() {
            return;
        }
        let last = stream.last.load(Ordering::Acquire);
        let done = match stream.shared.enter() {
            Ok(_entered) => stream.is_reached(last).unwrap_or(true),
            Err(_) => true,
        };
        if done {
            stream.collect();
        } else {
            stream.shared.reaper.give(stream.clone());
        }
    }
}

impl Stream for CudaStream {
    fn id(&self) -> StreamId {
        self.inner.id
    }

    unsafe fn submit(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        let stream = &self.inner;
        let _range = nvtx::range(|| describe(&work));
        let _entered = stream.shared.enter()?;
        // What can be refused is refused before the stream counts anything.
        let mut values = Values::default();
        let ready = Ready::of(&work, &mut values)?;
        let state = stream.follow(after)?;
        let result = ready.issue(stream.raw, &mut values);
        stream.settle(state, &work, result)
    }

    unsafe fn replay(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        let stream = &self.inner;
        let _range = nvtx::range(|| format!("replay of {} nodes", graph.len()));
        let _entered = stream.shared.enter()?;
        graph::with_replay(graph, |replay| {
            let mut state = stream.follow(after)?;
            let result = replay.launch(stream.raw);
            state.last += 1;
            state.keep(Used::Replay(&replay));
            stream.finish_submission(state, result)
        })
    }

    fn event(&self) -> Result<Arc<dyn Event>> {
        let stream = &self.inner;
        let _entered = stream.shared.enter()?;
        let clock = RawEvent::create(&stream.shared.context, Purpose::Clock)
            .map_err(|error| stream.shared.note(error))?;
        let mut state = stream.follow(&[])?;
        let result = clock.record(stream.raw);
        state.last += 1;
        let ticket = stream.finish_submission(state, result)?;
        Ok(Arc::new(CudaEvent { ticket, clock, shared: stream.shared.clone() }))
    }

    fn flush(&self) -> Result<()> {
        // Nothing is gathered: each piece of work went to the driver when it was submitted.
        self.inner.shared.check_alive()
    }

    fn last(&self) -> Ticket {
        Ticket { stream: self.inner.id, value: self.inner.last.load(Ordering::Acquire) }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Waits for tickets of the device's streams.
pub(crate) fn wait(shared: &Shared, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
    let _entered = shared.enter()?;
    let start = Instant::now();
    for ticket in tickets {
        let Some(stream) = shared.stream(ticket.stream) else { continue };
        match limit {
            None => stream.wait_for(ticket.value)?,
            Some(limit) => poll(&stream, ticket.value, start, limit)?,
        }
    }
    Ok(())
}

/// Asks again and again: CUDA has no wait with a time limit.
fn poll(stream: &StreamShared, value: u64, start: Instant, limit: Duration) -> Result<()> {
    while !stream.is_reached(value)? {
        let waited = start.elapsed();
        if waited >= limit {
            return Err(Error::Timeout {
                what: "work on the device".into(),
                after_ms: waited.as_millis() as u64,
            });
        }
        // Short work is over before a sleep would be; long work does not notice one.
        if waited < Duration::from_micros(100) {
            std::hint::spin_loop();
        } else {
            let nap = (waited / 16).min(Duration::from_millis(1)).min(limit - waited);
            std::thread::sleep(nap);
        }
    }
    stream.collect();
    Ok(())
}

/// Whether a ticket is reached.
pub(crate) fn is_done(shared: &Shared, ticket: Ticket) -> Result<bool> {
    let Some(stream) = shared.stream(ticket.stream) else {
        shared.check_alive()?;
        return Ok(true);
    };
    if stream.reached() >= ticket.value {
        return Ok(true);
    }
    let _entered = shared.enter()?;
    stream.is_reached(ticket.value)
}
