//! An open device: what everything else is made from.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytemuck::Pod;
use onebuf_core::backend::KernelSource;
use onebuf_core::report::SemanticFacts;
use onebuf_core::{
    DeviceInfo, DeviceKind, DeviceProfile, Error, KernelInterface, Result, StreamId, Ticket, Tickets,
    UnifiedLevel, backend,
};
use parking_lot::Mutex;

use crate::builder::BufferBuilder;
use crate::graph::GraphBuilder;
use crate::kernel::KernelBuilder;
use crate::partners::{Bridges, Handover};
use crate::pool::{Pool, PoolStats};
use crate::registry::Registry;
use crate::stream::{Stream, StreamInner};

/// An open device. Clones are handles to the same one; it closes when the last handle and the last thing made from
/// it are gone.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

/// What the handles of a device share.
pub(crate) struct Shared {
    pub(crate) info: DeviceInfo,
    /// As it was when the device was opened: the kinds of memory stay, budgets do not.
    pub(crate) profile: DeviceProfile,
    chosen_because: String,
    /// Bytes that went through staging.
    pub(crate) copied_bytes: AtomicU64,
    /// On devices whose unified memory the CPU may not touch while anything runs: how many host guards on such memory
    /// live. Held while work is submitted.
    pub(crate) exclusive: Option<Mutex<u32>>,
    streams: Mutex<Streams>,
    /// Memory that other processes or devices hold too.
    pub(crate) objects: crate::share::Objects,
    /// How work waits for other devices' on a common memory, how often it did, and by which timelines.
    pub(crate) handover: Mutex<Handover>,
    pub(crate) handovers: HandoverCounts,
    pub(crate) bridges: Bridges,
    // The order below is the order of release: memory and streams before the device.
    pub(crate) pool: Pool,
    pub(crate) raw: Arc<dyn backend::Device>,
    /// Imported pages that the backend may still hold when their buffer is gone.
    pub(crate) pages: crate::host::Retired,
}

/// [`Handovers`](crate::Handovers), as they are counted.
#[derive(Default)]
pub(crate) struct HandoverCounts {
    pub(crate) by_host: AtomicU64,
    pub(crate) by_timeline: AtomicU64,
}

/// The streams of a device.
#[derive(Default)]
struct Streams {
    /// Every stream that was ever made, by which a ticket of another device is told; with the last value that it gave out,
    /// once it is gone.
    known: HashMap<StreamId, Option<u64>>,
    live: HashMap<StreamId, Weak<dyn backend::Stream>>,
    /// The last tickets of streams that are gone.
    gone: Tickets,
    default: Option<Arc<StreamInner>>,
    transfer: Option<Arc<StreamInner>>,
}

/// Memory of a device that this process holds through one [`Device`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// Bytes of memory in live buffers.
    pub live_bytes: u64,
    /// The most that `live_bytes` ever was.
    pub peak_bytes: u64,
    /// Live buffers.
    pub buffers: u64,
    /// Freed memory kept for the next buffers.
    pub pool: PoolStats,
    /// Blocks taken from the driver.
    pub blocks: u64,
    /// Bytes taken from the driver.
    pub block_bytes: u64,
    /// The driver's budget for the process over the device's own heaps, in bytes, where it says.
    pub budget_bytes: Option<u64>,
}

impl MemoryUse {
    /// The part of the driver's blocks that neither a live buffer nor the pool uses, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let used = self.live_bytes.saturating_add(self.pool.free_bytes);
        if self.block_bytes == 0 {
            return 0.0;
        }
        1.0 - used.min(self.block_bytes) as f64 / self.block_bytes as f64
    }
}

impl Device {
    /// Opens the default device of [`Registry::system`]: the one that `ONEBUF_DEVICE` names, else the best GPU.
    /// [`Device::chosen_because`] says why it was taken. A software device is taken only where there is nothing else.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with everything that was found and why it cannot be used.
    pub fn open_default() -> Result<Device> {
        Registry::system().open_default()
    }

    /// Opens a device of [`Registry::system`] by id (`vulkan:0`), UUID, kind (`software`) or backend (`vulkan`).
    ///
    /// # Errors
    /// [`Error::NoDevice`] where no usable device has the name; the message lists those there are.
    pub fn open(name: &str) -> Result<Device> {
        Registry::system().open(name)
    }

    /// A device that a backend opened in a way of its own, such as on an application's `wgpu::Device`.
    pub fn from_backend(raw: Arc<dyn backend::Device>, chosen_because: impl Into<String>) -> Device {
        let info = raw.info().clone();
        let profile = raw.profile();
        let chosen_because = chosen_because.into();
        if info.kind == DeviceKind::Software {
            tracing::warn!(device = %info.id, name = %info.name, why = %chosen_because, "a software device, not a GPU");
        } else {
            tracing::info!(device = %info.id, name = %info.name, why = %chosen_because, "device opened");
        }
        let exclusive = (profile.unified == UnifiedLevel::Exclusive).then(Mutex::default);
        let pool = Pool::new(profile.memory_bytes());
        let shared = Shared {
            info,
            profile,
            chosen_because,
            copied_bytes: AtomicU64::new(0),
            exclusive,
            streams: Mutex::default(),
            objects: Default::default(),
            handover: Mutex::default(),
            handovers: HandoverCounts::default(),
            bridges: Bridges::default(),
            pool,
            raw,
            pages: Default::default(),
        };
        Device { shared: Arc::new(shared) }
    }

    /// Who it is and what it allows.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    /// Why this device was taken, in a sentence.
    pub fn chosen_because(&self) -> &str {
        &self.shared.chosen_because
    }

    /// Its memory as it stands now, budgets included.
    pub fn profile(&self) -> DeviceProfile {
        self.shared.raw.profile()
    }

    /// What the driver and the system say of every sharing semantic, in the order of [`crate::Semantic::ALL`].
    pub fn semantics(&self) -> Vec<SemanticFacts> {
        self.shared.raw.semantics()
    }

    /// Memory in use.
    pub fn memory(&self) -> MemoryUse {
        let raw = self.shared.raw.memory_stats();
        let (live, pool) = self.shared.pool.stats();
        MemoryUse {
            live_bytes: live.bytes,
            peak_bytes: live.peak_bytes,
            buffers: live.buffers,
            pool,
            blocks: raw.blocks,
            block_bytes: raw.block_bytes,
            budget_bytes: raw.budget_bytes,
        }
    }

    /// Bytes that onebuf copied between the device's memory and the CPU's because the CPU cannot reach a buffer in
    /// place. On a device that shares its memory with the CPU this stays 0.
    pub fn copied_bytes(&self) -> u64 {
        self.shared.copied_bytes.load(Ordering::Relaxed)
    }

    /// Gives the memory that freed buffers left in the pool back to the driver, and what finished work still holds; where
    /// other processes hold memory by a lease, this is when its maker looks whether they let go. Returns the number of
    /// bytes that left the pool.
    pub fn trim(&self) -> u64 {
        self.shared.pages.reap();
        let bytes = self.shared.pool.trim();
        self.shared.raw.trim();
        bytes
    }

    /// A buffer of `len` elements, to be built.
    pub fn buffer<T: Pod>(&self, len: usize) -> BufferBuilder<'_, T> {
        BufferBuilder::new(self, len)
    }

    /// A kernel from WGSL, to be built.
    ///
    /// # Errors
    /// [`Error::InvalidKernel`] where the source is empty. What is wrong in it shows when it is built.
    pub fn kernel<'a>(&'a self, wgsl: &'a str) -> Result<KernelBuilder<'a>> {
        KernelBuilder::wgsl(self, wgsl)
    }

    /// A kernel from SPIR-V alone, to be built, with the interface that it has.
    ///
    /// # Safety
    /// The words are valid SPIR-V for the device, the interface describes the entry point truly, and the kernel stays
    /// inside of what is bound to it.
    pub unsafe fn kernel_spirv<'a>(
        &'a self,
        words: &'a [u32],
        interface: &'a KernelInterface,
    ) -> Result<KernelBuilder<'a>> {
        KernelBuilder::spirv_only(self, words, interface)
    }

    /// A kernel in a language of one backend alone: CUDA C++ or PTX for CUDA.
    ///
    /// # Safety
    /// The interface describes the entry point truly, and the kernel stays inside of what is bound to it.
    pub unsafe fn kernel_native<'a>(&'a self, source: KernelSource<'a>) -> KernelBuilder<'a> {
        KernelBuilder::native_only(self, source)
    }

    /// A graph, to be recorded.
    pub fn graph(&self) -> GraphBuilder {
        GraphBuilder::new(self)
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream { device: self.clone(), inner: self.new_stream()? })
    }

    /// The device's own stream, the same at each call.
    pub fn default_stream(&self) -> Result<Stream> {
        Ok(Stream { device: self.clone(), inner: self.kept_stream(|streams| &mut streams.default)? })
    }

    /// Whether the work behind a ticket is done. It never blocks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the ticket is another device's; [`Error::DeviceLost`].
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        self.check_ticket(ticket)?;
        self.shared.raw.is_done(ticket)
    }

    /// Waits for the work behind a ticket.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the ticket is another device's; [`Error::DeviceLost`].
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        self.check_ticket(ticket)?;
        self.shared.raw.wait(&[ticket], None)
    }

    /// Waits for the work behind a ticket, at most this long.
    ///
    /// # Errors
    /// [`Error::Timeout`], and those of [`Device::wait`].
    pub fn wait_timeout(&self, ticket: Ticket, limit: Duration) -> Result<()> {
        self.check_ticket(ticket)?;
        self.shared.raw.wait(&[ticket], Some(limit))
    }

    /// Waits for all work of all streams.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn wait_idle(&self) -> Result<()> {
        let all = self.shared.all_tickets();
        self.shared.raw.wait(all.as_slice(), None)?;
        self.shared.pages.reap();
        Ok(())
    }

    /// The backend's device, for interoperation.
    ///
    /// # Safety
    /// The traits of [`onebuf_core::backend`] check nothing and order nothing: what is done through them keeps their
    /// contract, and stays clear of what onebuf does with the same memory.
    pub unsafe fn raw(&self) -> &Arc<dyn backend::Device> {
        &self.shared.raw
    }

    /// The stream that staging copies go through.
    pub(crate) fn transfer_stream(&self) -> Result<Arc<StreamInner>> {
        self.kept_stream(|streams| &mut streams.transfer)
    }

    fn kept_stream(
        &self,
        which: impl Fn(&mut Streams) -> &mut Option<Arc<StreamInner>>,
    ) -> Result<Arc<StreamInner>> {
        if let Some(stream) = which(&mut self.shared.streams.lock()) {
            return Ok(stream.clone());
        }
        // Made, and by a second thread given up again, without the lock: a stream takes it when it comes and goes.
        let made = self.new_stream()?;
        let kept = which(&mut self.shared.streams.lock()).get_or_insert_with(|| made.clone()).clone();
        Ok(kept)
    }

    fn new_stream(&self) -> Result<Arc<StreamInner>> {
        let raw = self.shared.raw.create_stream()?;
        let mut streams = self.shared.streams.lock();
        streams.known.insert(raw.id(), None);
        streams.live.retain(|_, stream| stream.strong_count() > 0);
        streams.live.insert(raw.id(), Arc::downgrade(&raw));
        drop(streams);
        Ok(Arc::new(StreamInner::new(raw, Arc::downgrade(&self.shared))))
    }

    /// Refuses tickets that were never given out: nothing would ever reach them.
    pub(crate) fn check_ticket(&self, ticket: Ticket) -> Result<()> {
        let streams = self.shared.streams.lock();
        let Some(&gone) = streams.known.get(&ticket.stream) else {
            let id = &self.info().id;
            return Err(Error::InvalidArgument(format!(
                "the ticket is not of a stream of {id}; wait for it on its own device"
            )));
        };
        let stream = streams.live.get(&ticket.stream).and_then(Weak::upgrade);
        // A stream's last handle may be dropped here, and that takes as long as the driver likes.
        drop(streams);
        match gone.or_else(|| stream.map(|stream| stream.last().value)) {
            Some(last) if ticket.value > last => Err(Error::InvalidArgument(format!(
                "the ticket is of piece of work {}, and its stream was given {last}",
                ticket.value
            ))),
            _ => Ok(()),
        }
    }

    /// Makes the tickets of a stream that the backend runs for itself acceptable.
    pub(crate) fn know_stream(&self, stream: StreamId) {
        self.shared.streams.lock().known.entry(stream).or_default();
    }

    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// An error where `other` is not this device; `what` is what was made on it.
    pub(crate) fn check_same(&self, other: &Device, what: impl FnOnce() -> String) -> Result<()> {
        if self.is(other) {
            return Ok(());
        }
        let (mine, its) = (&self.info().id, &other.info().id);
        let its = if mine == its { format!("another opening of {its}") } else { its.to_string() };
        Err(Error::InvalidArgument(format!("{} belongs to {its}, and the work is for {mine}", what())))
    }
}

impl Shared {
    /// Whether a stream is, or was, one of this device.
    pub(crate) fn knows(&self, stream: StreamId) -> bool {
        self.streams.lock().known.contains_key(&stream)
    }

    /// The last ticket of every stream.
    pub(crate) fn all_tickets(&self) -> Tickets {
        let streams = self.streams.lock();
        let mut all = streams.gone.clone();
        let live: Vec<Arc<dyn backend::Stream>> = streams.live.values().filter_map(Weak::upgrade).collect();
        // A stream's last handle may be dropped here, and that takes as long as the driver likes.
        drop(streams);
        all.extend(live.iter().map(|stream| stream.last()));
        all
    }

    /// Remembers what a stream that goes away was given last.
    pub(crate) fn stream_gone(&self, last: Ticket) {
        let mut streams = self.streams.lock();
        if streams.gone.as_slice().len() >= 32 {
            streams.gone.retain(|ticket| !matches!(self.raw.is_done(ticket), Ok(true)));
        }
        streams.gone.add(last);
        streams.known.insert(last.stream, Some(last.value));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("id", &self.info().id).field("name", &self.info().name).finish()
    }
}
