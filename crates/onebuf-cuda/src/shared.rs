//! The open device as its parts see it: the context, the pool, the streams, and whether it is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::sys::{self, CUresult};
use onebuf_cache::{Cache, Kind as CacheKind};
use onebuf_core::{DeviceProfile, Error, Result, StreamId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::CudaOptions;
use crate::adapter::Physical;
use crate::context::{Context, Entered};
use crate::driver;
use crate::host::HostMemory;
use crate::pool::Pool;
use crate::profile::{self, Kind, Sizes};
use crate::reaper::Reaper;
use crate::stream::StreamShared;

const CUBINS: CacheKind = CacheKind { extension: "cubin", magic: *b"onebufC1" };

/// An open device. Memory, kernels and streams hold it alive.
pub(crate) struct Shared {
    pub(crate) physical: Physical,
    pub(crate) options: CudaOptions,
    /// The kinds of memory, in the order of the profile.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) streams: RwLock<FxHashMap<StreamId, Weak<StreamShared>>>,
    pub(crate) cache: Cache,
    pub(crate) usage: Usage,
    pub(crate) pool: Pool,
    lost: OnceLock<String>,
    /// Takes streams whose user is gone while work is queued.
    pub(crate) reaper: Reaper<Arc<StreamShared>>,
    /// Last, so that everything on it goes first.
    pub(crate) context: Arc<Context>,
}

/// Bytes in buffers of this device.
#[derive(Default)]
pub(crate) struct Usage {
    pub(crate) live: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) buffers: AtomicU64,
    /// Allocations that are not of the pool.
    pub(crate) blocks: AtomicU64,
    pub(crate) block_bytes: AtomicU64,
}

impl Usage {
    pub(crate) fn add(&self, bytes: u64, block: Option<u64>) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.buffers.fetch_add(1, Ordering::Relaxed);
        if let Some(block) = block {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            self.block_bytes.fetch_add(block, Ordering::Relaxed);
        }
    }

    pub(crate) fn remove(&self, bytes: u64, block: Option<u64>) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        if let Some(block) = block {
            self.blocks.fetch_sub(1, Ordering::Relaxed);
            self.block_bytes.fetch_sub(block, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Opens a device on its primary context.
    pub(crate) fn create(physical: Physical, options: CudaOptions) -> Result<Arc<Shared>> {
        let context = Arc::new(Context::retain(physical.raw, physical.ordinal)?);
        let pool = {
            let _entered = context.enter()?;
            Pool::create(&context, &physical)?
        };
        Ok(Arc::new(Shared {
            kinds: profile::kinds(&physical.attributes),
            physical,
            options,
            streams: RwLock::default(),
            cache: Cache::open(CUBINS),
            usage: Usage::default(),
            pool,
            lost: OnceLock::new(),
            reaper: Reaper::new(|stream: Arc<StreamShared>| stream.finish()),
            context,
        }))
    }

    /// Makes the context current on this thread, unless the device is lost.
    pub(crate) fn enter(&self) -> Result<Entered> {
        self.check_alive()?;
        self.context.enter()
    }

    /// The stream with this identity, unless it is gone and all its work done.
    pub(crate) fn stream(&self, id: StreamId) -> Option<Arc<StreamShared>> {
        self.streams.read().get(&id)?.upgrade()
    }

    /// Every stream that is there, gathered so that nobody holds the list while one of them is dropped.
    fn all_streams(&self) -> Vec<Arc<StreamShared>> {
        self.streams.read().values().filter_map(Weak::upgrade).collect()
    }

    /// Lets go of what finished work of any stream still holds. The context is current.
    pub(crate) fn collect(&self) {
        for stream in self.all_streams() {
            if stream.look().is_ok() {
                stream.collect();
            }
        }
    }

    /// An error once the device is lost.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |why| Err(Error::DeviceLost(why.clone())))
    }

    /// Remembers a lost device, and names the kernels that may have done it: any that was under way, on any stream.
    /// Other errors pass as they are.
    pub(crate) fn note(&self, error: Error) -> Error {
        self.note_with(error, &[])
    }

    /// [`Shared::note`], for a caller that holds the state of a stream, with the kernels of that stream.
    pub(crate) fn note_with(&self, error: Error, known: &[String]) -> Error {
        let Error::DeviceLost(why) = error else { return error };
        let why = self.lost.get_or_init(|| {
            let mut kernels = known.to_vec();
            for stream in self.all_streams() {
                kernels.extend(stream.kernels_under_way());
            }
            explain_loss(&why, kernels, self.physical.ordinal)
        });
        Error::DeviceLost(why.clone())
    }

    /// `Ok` for success, else the error for a failed `call`.
    pub(crate) fn check(&self, call: &'static str, code: CUresult) -> Result<()> {
        if code == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        Err(self.note(driver::error(call, code)))
    }

    /// Bytes of the device's memory that the process may still take: what the driver has free, and what our pool keeps.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let _entered = self.context.enter().ok()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the context is current, and both pointers are to live integers.
        let code = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        let (held, used) = self.pool.usage();
        (code == CUresult::CUDA_SUCCESS).then(|| (free as u64).saturating_add(held - used))
    }

    /// The device's memory as it stands now.
    pub(crate) fn profile(&self) -> DeviceProfile {
        let info = &self.physical.info;
        let sizes = Sizes {
            device_bytes: self.physical.total_bytes,
            device_free_bytes: self.free_bytes(),
            host: HostMemory::read(),
            max_buffer_bytes: info.limits.max_buffer_bytes,
        };
        profile::profile(format!("{} ({})", info.id, info.name), &self.physical.attributes, &sizes)
    }
}

/// The message of a lost device.
fn explain_loss(why: &str, mut kernels: Vec<String>, ordinal: u32) -> String {
    kernels.sort();
    kernels.dedup();
    let quoted: Vec<String> = kernels.iter().map(|name| format!("`{name}`")).collect();
    let who = match quoted.as_slice() {
        [] => "no kernel of onebuf was known to be under way".to_owned(),
        [one] => format!("kernel {one} was under way"),
        many => format!("one of the kernels {} was it; CUDA_LAUNCH_BLOCKING=1 tells which", many.join(", ")),
    };
    format!(
        "{why}; {who}. CUDA ends the context of cuda:{ordinal} with it: drop everything of the device and open it again, or restart the process if that fails"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_its_kernels() {
        let one = explain_loss("cuStreamSynchronize answered X", vec!["blur".into(), "blur".into()], 1);
        assert!(one.contains("kernel `blur` was under way") && one.contains("cuda:1"), "{one}");
        let two = explain_loss("X", vec!["scan".into(), "blur".into()], 0);
        assert!(two.contains("`blur`, `scan`") && two.contains("CUDA_LAUNCH_BLOCKING=1"), "{two}");
        assert!(explain_loss("X", Vec::new(), 0).contains("no kernel of onebuf"));
    }

    #[test]
    fn usage_returns_to_where_it_was() {
        let usage = Usage::default();
        usage.add(100, None);
        usage.add(50, Some(4096));
        usage.remove(100, None);
        usage.add(10, None);
        usage.remove(50, Some(4096));
        usage.remove(10, None);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&usage.live), read(&usage.buffers), read(&usage.blocks)), (0, 0, 0));
        assert_eq!((read(&usage.peak), read(&usage.block_bytes)), (150, 0));
    }
}
