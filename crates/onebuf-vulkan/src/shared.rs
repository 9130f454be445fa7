//! The open device as its parts see it: handles, function tables, queues, the allocator.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use ash::{ext, khr, vk};
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings};
use onebuf_core::{Error, HandleKind, Result, StreamId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::adapter::{Physical, SupportedFeatures};
use crate::cache::PipelineCacheDir;
use crate::descriptor::FileSort;
use crate::error::driver;
use crate::instance::Instance;
use crate::memory;
use crate::stream::StreamShared;

/// Streams are spread over this many queues at most.
const MAX_QUEUES: u32 = 8;

/// The first block of a memory type; further blocks double up to [`MAX_BLOCK_BYTES`].
const FIRST_BLOCK_BYTES: u64 = 8 << 20;
const MAX_BLOCK_BYTES: u64 = 64 << 20;

/// An open device. Memory, kernels and streams hold it alive.
pub(crate) struct Shared {
    pub(crate) raw: ash::Device,
    pub(crate) physical: Physical,
    pub(crate) memory_fd: Option<khr::external_memory_fd::Device>,
    pub(crate) semaphore_fd: Option<khr::external_semaphore_fd::Device>,
    pub(crate) memory_host: Option<ext::external_memory_host::Device>,
    pub(crate) queues: Vec<Mutex<vk::Queue>>,
    /// Dropped by hand, before the device.
    pub(crate) allocator: Mutex<ManuallyDrop<Allocator>>,
    pub(crate) streams: RwLock<FxHashMap<StreamId, Weak<StreamShared>>>,
    /// Threads of streams that are gone, with work that was not done; `None` once nobody is left to join them.
    leaving: Mutex<Option<Vec<JoinHandle<()>>>>,
    /// Timeline semaphores of streams that are gone, each with its value. They are used again, and destroyed with the
    /// device: lavapipe's queue thread still touches a semaphore that a submission waited for after that submission
    /// has signalled its own (Mesa 22.3 crashes, about once in a hundred streams that are dropped at that moment).
    timelines: Mutex<Vec<(vk::Semaphore, u64)>>,
    /// Semaphores that nobody signals or follows any more, beyond what is queued.
    retired: Mutex<Vec<vk::Semaphore>>,
    pub(crate) cache: PipelineCacheDir,
    pub(crate) usage: Usage,
    /// What the driver exports memory as, as far as it was asked.
    pub(crate) exported_files: Mutex<Vec<(HandleKind, FileSort)>>,
    next_queue: AtomicU64,
    next_memory: AtomicU64,
    lost: OnceLock<String>,
    owned: bool,
    /// wgpu, where the device is an application's.
    #[cfg(feature = "wgpu")]
    pub(crate) link: Option<Arc<crate::wgpu::Link>>,
    /// What must outlive the device when it is not ours: an application's own device.
    _keep: Option<Box<dyn Send + Sync>>,
    /// The instance goes last.
    pub(crate) instance: Arc<Instance>,
}

/// Bytes in buffers of this device.
#[derive(Default)]
pub(crate) struct Usage {
    pub(crate) live: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) buffers: AtomicU64,
    /// Allocations that are not in the allocator's blocks.
    pub(crate) dedicated: AtomicU64,
    pub(crate) dedicated_bytes: AtomicU64,
}

impl Usage {
    pub(crate) fn add(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        self.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A logical device, made or adopted, before its parts are set up.
pub(crate) struct Logical {
    pub(crate) raw: ash::Device,
    pub(crate) queues: Vec<vk::Queue>,
    pub(crate) owned: bool,
    pub(crate) keep: Option<Box<dyn Send + Sync>>,
    #[cfg(feature = "wgpu")]
    pub(crate) link: Option<Arc<crate::wgpu::Link>>,
}

impl Logical {
    /// Makes a device with every queue of the compute family that streams can use.
    pub(crate) fn create(instance: &Instance, physical: &Physical) -> Result<Logical> {
        let count = physical.queue_count.min(MAX_QUEUES);
        let priorities = [1.0; MAX_QUEUES as usize];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(physical.queue_family)
            .queue_priorities(&priorities[..count as usize])];
        let extensions: Vec<_> =
            device_extensions(physical).into_iter().map(std::ffi::CStr::as_ptr).collect();
        let raw = SupportedFeatures::with_enabled(physical, |features| {
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&extensions)
                .push_next(features);
            // SAFETY: the physical device belongs to the instance, and extensions and features are ones it has.
            unsafe { instance.raw.create_device(physical.raw, &info, None) }
        })
        .map_err(driver("vkCreateDevice"))?;
        // SAFETY: the queues were asked for above.
        let queues = (0..count).map(|i| unsafe { raw.get_device_queue(physical.queue_family, i) }).collect();
        Ok(Logical {
            raw,
            queues,
            owned: true,
            keep: None,
            #[cfg(feature = "wgpu")]
            link: None,
        })
    }
}

impl Shared {
    /// Opens a device of our own.
    pub(crate) fn create(instance: Arc<Instance>, physical: Physical) -> Result<Arc<Shared>> {
        let logical = Logical::create(&instance, &physical)?;
        Shared::assemble(instance, physical, logical)
    }

    /// Sets up the parts of a logical device.
    pub(crate) fn assemble(
        instance: Arc<Instance>,
        mut physical: Physical,
        logical: Logical,
    ) -> Result<Arc<Shared>> {
        let Logical { raw, queues, owned, keep, .. } = logical;
        memory::narrow_types(&raw, &mut physical);
        let mut debug_settings = AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let allocator = Allocator::new(&AllocatorCreateDesc {
            instance: instance.raw.clone(),
            device: raw.clone(),
            physical_device: physical.raw,
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(FIRST_BLOCK_BYTES, FIRST_BLOCK_BYTES)
                .with_max_device_memblock_size(MAX_BLOCK_BYTES)
                .with_max_host_memblock_size(MAX_BLOCK_BYTES),
        });
        let allocator = match allocator {
            Ok(allocator) => allocator,
            Err(error) => {
                if owned {
                    // SAFETY: nothing was made from the device yet.
                    unsafe { raw.destroy_device(None) };
                }
                return Err(Error::Driver { call: "the allocator's set-up", code: error.to_string() });
            }
        };
        let has = physical.has;
        Ok(Arc::new(Shared {
            memory_fd: has.memory_fd.then(|| khr::external_memory_fd::Device::new(&instance.raw, &raw)),
            semaphore_fd: has
                .semaphore_fd
                .then(|| khr::external_semaphore_fd::Device::new(&instance.raw, &raw)),
            memory_host: has.host_import.then(|| ext::external_memory_host::Device::new(&instance.raw, &raw)),
            queues: queues.into_iter().map(Mutex::new).collect(),
            allocator: Mutex::new(ManuallyDrop::new(allocator)),
            streams: RwLock::default(),
            leaving: Mutex::new(Some(Vec::new())),
            timelines: Mutex::default(),
            retired: Mutex::default(),
            cache: PipelineCacheDir::open(&physical),
            usage: Usage::default(),
            exported_files: Mutex::default(),
            next_queue: AtomicU64::new(0),
            next_memory: AtomicU64::new(1),
            lost: OnceLock::new(),
            owned,
            #[cfg(feature = "wgpu")]
            link: logical.link,
            _keep: keep,
            raw,
            physical,
            instance,
        }))
    }

    /// Whether command buffers run within those of somebody else's.
    pub(crate) fn runs_in_others(&self) -> bool {
        #[cfg(feature = "wgpu")]
        return self.link.is_some();
        #[cfg(not(feature = "wgpu"))]
        false
    }

    /// The queue of the next stream, in turn.
    pub(crate) fn next_queue(&self) -> usize {
        self.next_queue.fetch_add(1, Ordering::Relaxed) as usize % self.queues.len().max(1)
    }

    /// An identity for a memory object, never used twice on this device.
    pub(crate) fn next_memory(&self) -> u64 {
        self.next_memory.fetch_add(1, Ordering::Relaxed)
    }

    /// The stream with this identity, unless it is gone and all its work done.
    pub(crate) fn stream(&self, id: StreamId) -> Option<Arc<StreamShared>> {
        self.streams.read().get(&id)?.upgrade()
    }

    /// A timeline semaphore that nobody uses, and its value.
    pub(crate) fn take_timeline(&self) -> Result<(vk::Semaphore, u64)> {
        if let Some(known) = self.timelines.lock().pop() {
            return Ok(known);
        }
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timeline semaphores are enabled on every device that is opened.
        let timeline =
            unsafe { self.raw.create_semaphore(&info, None) }.map_err(self.fail("vkCreateSemaphore"))?;
        Ok((timeline, 0))
    }

    /// Takes a timeline semaphore back that has reached `value`. Work may still be queued that waits for that value or an
    /// earlier one: it is reached, and stays so, since the next stream goes on counting from it.
    pub(crate) fn give_timeline(&self, timeline: vk::Semaphore, value: u64) {
        self.timelines.lock().push((timeline, value));
    }

    /// Takes a semaphore that may be in queued work, to be destroyed with the device.
    pub(crate) fn retire_semaphore(&self, semaphore: vk::Semaphore) {
        self.retired.lock().push(semaphore);
    }

    /// Takes over the thread of a stream that is gone: it is joined with the device if it may take time, else now.
    pub(crate) fn leave(&self, thread: JoinHandle<()>, takes_time: bool) {
        let mut leaving = self.leaving.lock();
        match leaving.as_mut().filter(|_| takes_time) {
            Some(threads) => {
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            None => {
                drop(leaving);
                join(thread);
            }
        }
    }

    /// Joins the threads of streams that are gone. From here on, each is joined with its stream.
    pub(crate) fn join_all(&self) {
        let threads = self.leaving.lock().take();
        threads.into_iter().flatten().for_each(join);
    }

    /// An error once the device is lost.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |why| Err(Error::DeviceLost(why.clone())))
    }

    /// Declares the device lost.
    pub(crate) fn lose(&self, why: &str) -> Error {
        Error::DeviceLost(self.lost.get_or_init(|| format!("{why}; open the device anew")).clone())
    }

    /// Turns a driver's answer into an error, and remembers a lost device.
    pub(crate) fn fail(&self, call: &'static str) -> impl FnOnce(vk::Result) -> Error + '_ {
        move |code| {
            let error = driver(call)(code);
            if let Error::DeviceLost(why) = &error { self.lose(why) } else { error }
        }
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("the thread of a stream panicked");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: every child object holds this device alive, so none is left; the allocator frees its blocks first,
        // and it is not used again. A device of an application is left to the application.
        unsafe {
            if self.owned {
                let _ = self.raw.device_wait_idle();
            }
            for (timeline, _) in self.timelines.get_mut().drain(..) {
                self.raw.destroy_semaphore(timeline, None);
            }
            for semaphore in self.retired.get_mut().drain(..) {
                self.raw.destroy_semaphore(semaphore, None);
            }
            ManuallyDrop::drop(self.allocator.get_mut());
            if self.owned {
                self.raw.destroy_device(None);
            }
        }
    }
}

/// The extensions to turn on: those that the device has and the backend uses.
pub(crate) fn device_extensions(physical: &Physical) -> Vec<&'static std::ffi::CStr> {
    let has = physical.has;
    let wanted = [
        (has.memory_fd, khr::external_memory_fd::NAME),
        (has.dma_buf, ext::external_memory_dma_buf::NAME),
        (has.semaphore_fd, khr::external_semaphore_fd::NAME),
        (has.host_import, ext::external_memory_host::NAME),
        (has.memory_budget, ext::memory_budget::NAME),
        (has.atomic_float, ext::shader_atomic_float::NAME),
        (has.robust_buffers, ext::robustness2::NAME),
        (has.pipeline_robustness, ext::pipeline_robustness::NAME),
    ];
    wanted.into_iter().filter(|(yes, _)| *yes).map(|(_, name)| name).collect()
}
