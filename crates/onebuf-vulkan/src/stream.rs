//! Streams: a queue, a timeline semaphore, and batches of work on their way to the driver.
//!
//! Each piece of work takes the next value of the stream; a batch signals the value of its last piece. So a ticket is
//! reached when the semaphore has its value, and no table maps one to the other.
//!
//! **When work goes to the driver.** At once when the stream has nothing in flight. While it has, work is gathered, and
//! goes as one submission when the driver is done with what it has (a thread of the stream sees to it), when somebody
//! waits for it, or when [`BATCH`] pieces have come together. A submission costs 10 to 100 times what a launch costs to
//! record.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ash::vk;
use onebuf_core::backend::{Event, Graph, Stream, Work};
use onebuf_core::{Error, Result, StreamId, Ticket};
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::event::{Timestamp, VulkanEvent};
use crate::graph::{self, Recording};
use crate::line::{self, Line, Wait};
use crate::recorder::{self, Bound, Keep};
use crate::shared::Shared;
#[cfg(feature = "wgpu")]
use crate::wgpu::WgpuLine;

/// Pieces of work after which a batch goes to the driver even if the driver is busy.
const BATCH: u32 = 512;

/// A stream as its user holds it.
pub(crate) struct VulkanStream {
    pub(crate) inner: Arc<StreamShared>,
}

/// A stream as the device knows it. It outlives its user's handle until its work is done.
pub(crate) struct StreamShared {
    pub(crate) id: StreamId,
    pub(crate) shared: Arc<Shared>,
    line: Line,
    /// Held by who hands something to the driver, so that it gets everything in its order. Taken before `state`, which is
    /// free meanwhile: others go on recording.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// The highest value that is known to be reached.
    reached: AtomicU64,
    pump: Mutex<Pump>,
    pump_wakes: Condvar,
}

struct State {
    /// The value of the newest piece of work.
    last: u64,
    /// The value of the newest batch that the driver has, or is given now.
    submitted: u64,
    /// Work up to this value is seen by what is recorded next.
    seen: u64,
    /// The batch that is being recorded.
    open: Option<Batch>,
    /// What other streams must have reached before the next submission. Streams do not hold each other: two that wait
    /// for each other would live for ever once the device is lost.
    waits: SmallVec<[Wait; 2]>,
    /// Semaphores of other devices, which the next submission gives these values.
    signals: SmallVec<[Wait; 1]>,
    in_flight: VecDeque<Flight>,
    spare: Vec<Batch>,
    bound: Bound,
}

/// A command buffer with all that its work needs. It begins with a barrier behind all that came before.
struct Batch {
    pool: vk::CommandPool,
    cmd: vk::CommandBuffer,
    pieces: u32,
    keep: Vec<Keep>,
}

/// What the driver has.
struct Flight {
    /// The value that it signals.
    last: u64,
    what: Flown,
}

enum Flown {
    Batch(Batch),
    /// A replay.
    Graph(Arc<Recording>),
}

/// What the stream's own thread is asked to do.
#[derive(Default)]
struct Pump {
    thread: Option<JoinHandle<()>>,
    /// Work was gathered behind work in flight.
    gathered: bool,
    /// The user's handle is gone: finish and end.
    ending: bool,
}

impl StreamShared {
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<Arc<StreamShared>> {
        shared.check_alive()?;
        let (line, value) = Line::create(shared)?;
        let stream = Arc::new(StreamShared {
            id: StreamId::next(),
            shared: shared.clone(),
            line,
            turn: Mutex::default(),
            state: Mutex::new(State {
                last: value,
                submitted: value,
                seen: value,
                open: None,
                waits: SmallVec::new(),
                signals: SmallVec::new(),
                in_flight: VecDeque::new(),
                spare: Vec::new(),
                bound: Bound::default(),
            }),
            reached: AtomicU64::new(value),
            pump: Mutex::default(),
            pump_wakes: Condvar::new(),
        });
        let mut streams = shared.streams.write();
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(stream.id, Arc::downgrade(&stream));
        Ok(stream)
    }

    /// Hands work to the driver until it has all up to `value`. Returns the value to wait for: the one that the batch
    /// with this piece of work signals. A wait for a value in between would end at the same moment, but the validation
    /// layer (seen in 1.3.239) loses track of one and blocks for ten seconds.
    pub(crate) fn flush_to(&self, value: u64) -> Result<u64> {
        let _turn = self.turn.lock();
        let mut state = self.state.lock();
        if state.submitted < value {
            self.close(&mut state)?;
        }
        let before = state.in_flight.partition_point(|flight| flight.last < value);
        Ok(state.in_flight.get(before).map_or(value, |flight| flight.last))
    }

    /// Whether the stream has reached a value.
    pub(crate) fn is_reached(&self, value: u64) -> Result<bool> {
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        let now = self.line.reached(&self.shared)?;
        self.reached.fetch_max(now, Ordering::AcqRel);
        Ok(now >= value)
    }

    /// Makes room: drops what finished batches kept, and takes their command buffers back.
    pub(crate) fn collect(&self) {
        let mut done: SmallVec<[Vec<Keep>; 4]> = SmallVec::new();
        let mut graphs: SmallVec<[Flown; 2]> = SmallVec::new();
        // What is just being handed over may be done before its place in the list is known.
        let turn = self.turn.lock();
        let mut state = self.state.lock();
        let reached = self.reached.load(Ordering::Acquire);
        while state.in_flight.front().is_some_and(|flight| flight.last <= reached) {
            match state.in_flight.pop_front().map(|flight| flight.what) {
                Some(Flown::Batch(mut batch)) => {
                    done.push(std::mem::take(&mut batch.keep));
                    state.spare.push(batch);
                }
                other => graphs.extend(other),
            }
        }
        // What was kept is dropped without the locks: the last holder of a buffer frees it here.
        drop((state, turn));
    }

    /// Makes sure that what is submitted next comes behind `after`, and tells whether a barrier is wanted for that. Other
    /// streams' work goes to the driver first, since a semaphore may be waited for on a queue only behind the submission
    /// that signals it.
    fn follow(&self, after: &[Ticket]) -> Result<(MutexGuard<'_, State>, bool)> {
        let mut foreign: SmallVec<[Wait; 2]> = SmallVec::new();
        let mut own = 0;
        for ticket in after {
            if ticket.stream == self.id {
                own = own.max(ticket.value);
            } else if let Some(stream) = self.shared.stream(ticket.stream)
                && stream.reached.load(Ordering::Acquire) < ticket.value
            {
                let value = stream.flush_to(ticket.value)?;
                foreign.extend(stream.line.wait_at(value));
            }
            // Work that the CPU knows to be done, as that of a stream that is gone, needs no semaphore: every command
            // buffer begins with a barrier that makes it seen.
        }
        if !foreign.is_empty() {
            // Work that came earlier need not wait for the other stream.
            self.flush_to(u64::MAX)?;
        }
        let mut state = self.state.lock();
        if !foreign.is_empty() {
            state.waits.extend(foreign);
        }
        let barrier = own > state.seen;
        Ok((state, barrier))
    }

    /// The batch that is being recorded.
    fn open<'a>(&self, state: &'a mut State) -> Result<&'a mut Batch> {
        if state.open.is_none() {
            let mut batch = match state.spare.pop() {
                Some(batch) => batch,
                None => self.create_batch()?,
            };
            // SAFETY: the batch's work is done, or it is new.
            let reset =
                unsafe { self.shared.raw.reset_command_pool(batch.pool, vk::CommandPoolResetFlags::empty()) };
            let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
            let begun = reset.and_then(|()| begin(&self.shared, batch.cmd, once));
            batch.pieces = 0;
            if let Err(code) = begun {
                state.spare.push(batch);
                return Err(self.shared.fail("vkBeginCommandBuffer")(code));
            }
            recorder::opening_barrier(&self.shared, batch.cmd);
            state.seen = state.last;
            state.bound.reset();
            state.open = Some(batch);
        }
        state.open.as_mut().ok_or_else(|| Error::Busy("no batch is open".into()))
    }

    fn create_batch(&self) -> Result<Batch> {
        let (pool, cmd) = create_commands(&self.shared, vk::CommandPoolCreateFlags::TRANSIENT)?;
        Ok(Batch { pool, cmd, pieces: 0, keep: Vec::new() })
    }

    /// Hands the open batch, if there is one, to the driver. The caller has the turn.
    fn close(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        // A batch without work stays open: a signal needs a value of its own.
        let Some(batch) = state.open.take_if(|batch| batch.pieces > 0) else { return Ok(()) };
        if state.bound.host_visible_writes {
            recorder::host_barrier(&self.shared, batch.cmd);
        }
        self.hand_over(state, Flown::Batch(batch))
    }

    /// Hands a command buffer with all work up to `state.last` to the driver. The caller has the turn.
    fn hand_over(&self, state: &mut MutexGuard<'_, State>, what: Flown) -> Result<()> {
        let (last, waits) = (state.last, std::mem::take(&mut state.waits));
        let signals = std::mem::take(&mut state.signals);
        state.submitted = last;
        let result = MutexGuard::unlocked(state, || {
            let cmd = match &what {
                Flown::Batch(batch) => {
                    // SAFETY: the command buffer records, and nobody else has it any more.
                    unsafe { self.shared.raw.end_command_buffer(batch.cmd) }
                        .map_err(self.shared.fail("vkEndCommandBuffer"))?;
                    batch.cmd
                }
                Flown::Graph(recording) => recording.cmd,
            };
            self.line.submit(&self.shared, cmd, &waits, &signals, last)
        });
        if let Err(error) = result {
            if let Flown::Batch(batch) = what {
                state.spare.push(batch);
            }
            // It will never be reached: the stream's later work would wait for ever, so the device counts as lost.
            return Err(self.shared.lose(&format!("a submission failed: {error}")));
        }
        state.in_flight.push_back(Flight { last, what });
        Ok(())
    }

    /// A piece without work behind `after` and another device's signal, which signals another device in turn. It goes to the
    /// driver at once.
    pub(crate) fn pass(&self, after: &[Ticket], wait: Option<Wait>, signal: Option<Wait>) -> Result<Ticket> {
        self.shared.check_alive()?;
        let (mut state, _) = self.follow(after)?;
        self.open(&mut state)?.pieces += 1;
        state.waits.extend(wait);
        state.signals.extend(signal);
        state.last += 1;
        let ticket = Ticket { stream: self.id, value: state.last };
        let many = state.in_flight.len() > 4;
        drop(state);
        self.flush_to(ticket.value)?;
        if many {
            self.tidy();
        }
        Ok(ticket)
    }

    /// After work was recorded: hands it to the driver, or leaves it to be gathered.
    fn settle(self: &Arc<Self>, state: MutexGuard<'_, State>) -> Result<Ticket> {
        let ticket = Ticket { stream: self.id, value: state.last };
        let pieces = state.open.as_ref().map_or(0, |batch| batch.pieces);
        // What was recorded stays recorded: an answer that does not come only leaves it to be gathered.
        let idle = pieces <= 1 && self.is_reached(state.submitted).unwrap_or(false);
        let many = state.in_flight.len() > 4;
        drop(state);
        if idle || pieces >= BATCH {
            self.flush_to(ticket.value)?;
            if many {
                self.tidy();
            }
        } else if pieces == 1 {
            self.wake_pump();
        }
        Ok(ticket)
    }

    /// Looks at what is done, and makes room. The work is with the driver whatever comes of it.
    fn tidy(&self) {
        if self.is_reached(u64::MAX).is_ok() {
            self.collect();
        }
    }

    /// Tells the stream's thread that work was gathered; starts it the first time.
    fn wake_pump(self: &Arc<Self>) {
        let mut pump = self.pump.lock();
        pump.gathered = true;
        self.start_pump(&mut pump);
        self.pump_wakes.notify_one();
    }

    fn start_pump(self: &Arc<Self>, pump: &mut Pump) {
        // A thread that ended early met an error; the next one meets it again, and whoever waits is told.
        if pump.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let stream = self.clone();
        let spawned =
            std::thread::Builder::new().name("onebuf-stream".into()).spawn(move || stream.run_pump());
        // Without a thread, gathered work goes at the next wait or flush.
        match spawned {
            Ok(thread) => pump.thread = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread for a stream; gathered work waits for the next flush")
            }
        }
    }

    /// The stream's thread: hands gathered work over when the driver has finished what it has; ends with the user's
    /// handle, when all work is done.
    fn run_pump(self: Arc<Self>) {
        loop {
            let mut pump = self.pump.lock();
            while !pump.gathered && !pump.ending {
                self.pump_wakes.wait(&mut pump);
            }
            pump.gathered = false;
            let ending = pump.ending;
            drop(pump);
            // The lock is never held over a wait: others ask the stream meanwhile, and must not wait with it.
            let submitted = || self.state.lock().submitted;
            let first = submitted();
            let flushed = self.wait_for(first, None).and_then(|()| self.flush_to(u64::MAX));
            let result = flushed.and_then(|_| {
                let last = submitted();
                if ending { self.wait_for(last, None) } else { Ok(()) }
            });
            self.collect();
            if let Err(error) = &result {
                tracing::error!(%error, "a stream stopped");
            }
            if ending || result.is_err() {
                return;
            }
        }
    }

    /// Blocks until a submitted value is reached.
    fn wait_for(&self, value: u64, limit: Option<Duration>) -> Result<()> {
        line::wait(&self.shared, &[(&self.line, value)], limit)?;
        self.reached.fetch_max(value, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(feature = "wgpu")]
impl StreamShared {
    /// Counts a submission that goes to the driver without a batch of this stream.
    pub(crate) fn submit_outside(&self, submit: impl FnOnce(&WgpuLine, u64)) -> Result<Ticket> {
        self.shared.check_alive()?;
        let Line::Wgpu(line) = &self.line else {
            return Err(Error::InvalidArgument("the device was not opened on a wgpu device".into()));
        };
        let _turn = self.turn.lock();
        let mut state = self.state.lock();
        state.last += 1;
        submit(line, state.last);
        state.submitted = state.last;
        Ok(Ticket { stream: self.id, value: state.last })
    }
}

impl Drop for StreamShared {
    fn drop(&mut self) {
        self.shared.streams.write().remove(&self.id);
        let state = self.state.get_mut();
        // The handle's drop leaves work in flight to the stream's thread. Without one, it ends here.
        if !state.in_flight.is_empty() {
            let _ = line::wait(&self.shared, &[(&self.line, state.submitted)], None);
        }
        let flown = state.in_flight.drain(..).filter_map(|flight| match flight.what {
            Flown::Batch(batch) => Some(batch),
            Flown::Graph(_) => None,
        });
        let batches = flown.chain(state.spare.drain(..)).chain(state.open.take());
        for batch in batches {
            // SAFETY: the work is done, or the device lost.
            unsafe { self.shared.raw.destroy_command_pool(batch.pool, None) };
        }
        self.line.end(&self.shared, state.submitted);
    }
}

impl Drop for VulkanStream {
    fn drop(&mut self) {
        if let Err(error) = self.inner.flush_to(u64::MAX) {
            tracing::debug!(%error, "a stream was dropped with work that could not be submitted");
        }
        let submitted = self.inner.state.lock().submitted;
        let busy = !self.inner.is_reached(submitted).unwrap_or(true);
        self.inner.collect();
        let mut pump = self.inner.pump.lock();
        pump.ending = true;
        if busy {
            self.inner.start_pump(&mut pump);
        }
        self.inner.pump_wakes.notify_one();
        let thread = pump.thread.take();
        drop(pump);
        // A thread that is left alone could be the one to destroy the device, while the process runs its exit handlers and
        // the driver is half gone. So it is joined: here where it has nothing to wait for, else with the device.
        match thread {
            Some(thread) => self.inner.shared.leave(thread, busy),
            // No thread could be started. The work is waited for here, while the stream can still be asked.
            None if busy => {
                if let Err(error) = self.inner.wait_for(submitted, None) {
                    tracing::debug!(%error, "the work of a dropped stream");
                }
            }
            None => {}
        }
    }
}

impl Stream for VulkanStream {
    fn id(&self) -> StreamId {
        self.inner.id
    }

    unsafe fn submit(&self, work: Work<'_>, after: &[Ticket]) -> Result<Ticket> {
        let stream = &self.inner;
        stream.shared.check_alive()?;
        let (mut state, barrier) = stream.follow(after)?;
        stream.open(&mut state)?;
        let State { open, bound, last, seen, .. } = &mut *state;
        let Some(batch) = open.as_mut() else { return Err(Error::Busy("no batch is open".into())) };
        if barrier {
            recorder::barrier(&stream.shared, batch.cmd);
            *seen = *last;
        }
        recorder::record(&stream.shared, batch.cmd, &work, bound, &mut batch.keep)?;
        batch.pieces += 1;
        *last += 1;
        stream.settle(state)
    }

    unsafe fn replay(&self, graph: &Arc<dyn Graph>, after: &[Ticket]) -> Result<Ticket> {
        let stream = &self.inner;
        stream.shared.check_alive()?;
        let recording = graph::recording(graph)?;
        drop(stream.follow(after)?);
        let turn = stream.turn.lock();
        let mut state = stream.state.lock();
        // While a batch is handed over others may record the next one, whose values come before the graph's.
        while state.open.as_ref().is_some_and(|batch| batch.pieces > 0) {
            stream.close(&mut state)?;
        }
        state.last += 1;
        let ticket = Ticket { stream: stream.id, value: state.last };
        stream.hand_over(&mut state, Flown::Graph(recording))?;
        let many = state.in_flight.len() > 4;
        drop((state, turn));
        if many {
            stream.tidy();
        }
        Ok(ticket)
    }

    fn event(&self) -> Result<Arc<dyn Event>> {
        let stream = &self.inner;
        stream.shared.check_alive()?;
        let timestamp = Timestamp::create(&stream.shared)?;
        let mut state = stream.state.lock();
        stream.open(&mut state)?;
        let State { open, last, .. } = &mut *state;
        let Some(batch) = open.as_mut() else { return Err(Error::Busy("no batch is open".into())) };
        timestamp.record(batch.cmd);
        batch.keep.push(Keep::Timestamp(timestamp.clone()));
        batch.pieces += 1;
        *last += 1;
        let ticket = stream.settle(state)?;
        Ok(Arc::new(VulkanEvent { ticket, timestamp }))
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush_to(u64::MAX).map(drop)
    }

    fn last(&self) -> Ticket {
        Ticket { stream: self.inner.id, value: self.inner.state.lock().last }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Waits for tickets of the device's streams.
pub(crate) fn wait(shared: &Shared, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
    let mut streams: SmallVec<[(Arc<StreamShared>, u64); 4]> = SmallVec::new();
    for ticket in tickets {
        let Some(stream) = shared.stream(ticket.stream) else { continue };
        if stream.is_reached(ticket.value)? {
            // What the work kept goes now: the caller may be waiting for memory to come back.
            stream.collect();
            continue;
        }
        let value = stream.flush_to(ticket.value)?;
        streams.push((stream, value));
    }
    if streams.is_empty() {
        return shared.check_alive();
    }
    let lines: SmallVec<[(&Line, u64); 4]> =
        streams.iter().map(|(stream, value)| (&stream.line, *value)).collect();
    line::wait(shared, &lines, limit)?;
    for (stream, value) in &streams {
        stream.reached.fetch_max(*value, Ordering::AcqRel);
        stream.collect();
    }
    Ok(())
}

/// Hands the work behind a ticket to the driver.
#[cfg(feature = "wgpu")]
pub(crate) fn hand_over(shared: &Shared, ticket: Ticket) -> Result<()> {
    shared.stream(ticket.stream).map_or(Ok(()), |stream| stream.flush_to(ticket.value).map(drop))
}

/// Whether a ticket is reached; hands its work over.
pub(crate) fn is_done(shared: &Shared, ticket: Ticket) -> Result<bool> {
    let Some(stream) = shared.stream(ticket.stream) else { return Ok(true) };
    stream.flush_to(ticket.value)?;
    stream.is_reached(ticket.value)
}

/// A command pool with one command buffer.
pub(crate) fn create_commands(
    shared: &Shared,
    flags: vk::CommandPoolCreateFlags,
) -> Result<(vk::CommandPool, vk::CommandBuffer)> {
    let info =
        vk::CommandPoolCreateInfo::default().queue_family_index(shared.physical.queue_family).flags(flags);
    // SAFETY: the family is the one the device was made with.
    let pool =
        unsafe { shared.raw.create_command_pool(&info, None) }.map_err(shared.fail("vkCreateCommandPool"))?;
    let level = if shared.runs_in_others() {
        vk::CommandBufferLevel::SECONDARY
    } else {
        vk::CommandBufferLevel::PRIMARY
    };
    let info =
        vk::CommandBufferAllocateInfo::default().command_pool(pool).level(level).command_buffer_count(1);
    // SAFETY: the pool is live.
    let buffers = unsafe { shared.raw.allocate_command_buffers(&info) };
    let cmd = buffers.map_err(shared.fail("vkAllocateCommandBuffers")).and_then(|buffers| {
        buffers
            .first()
            .copied()
            .ok_or(Error::Driver { call: "vkAllocateCommandBuffers", code: "no buffer".into() })
    });
    match cmd {
        Ok(cmd) => Ok((pool, cmd)),
        Err(error) => {
            // SAFETY: nothing of the pool is in use.
            unsafe { shared.raw.destroy_command_pool(pool, None) };
            Err(error)
        }
    }
}

/// Begins a command buffer that is not being recorded, and that no queued work uses.
pub(crate) fn begin(
    shared: &Shared,
    cmd: vk::CommandBuffer,
    flags: vk::CommandBufferUsageFlags,
) -> Result<(), vk::Result> {
    let inheritance = vk::CommandBufferInheritanceInfo::default();
    let info = vk::CommandBufferBeginInfo::default().flags(flags).inheritance_info(&inheritance);
    // SAFETY: as the caller says. A primary command buffer ignores the inheritance.
    unsafe { shared.raw.begin_command_buffer(cmd, &info) }
}

/// Records and runs a few commands, and waits for them.
pub(crate) fn run_once(shared: &Arc<Shared>, commands: impl FnOnce(vk::CommandBuffer)) -> Result<()> {
    let stream = StreamShared::create(shared)?;
    {
        let mut state = stream.state.lock();
        let batch = stream.open(&mut state)?;
        commands(batch.cmd);
        batch.pieces += 1;
        state.last += 1;
    }
    stream.flush_to(u64::MAX)?;
    let submitted = stream.state.lock().submitted;
    stream.wait_for(submitted, None)
}
