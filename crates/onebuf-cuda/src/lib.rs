//! The CUDA backend of onebuf: NVIDIA GPUs, their unified, page-locked and exportable memory, and WGSL compiled for them.
//!
//! - **The driver is loaded at run time**, so one program starts with and without an NVIDIA GPU, and says what is missing.
//! - **The primary context is used**, as by CUDA's runtime, torch, CuPy and JAX: memory and streams can be handed over.
//! - **A launch is one call of the driver.** Nothing is allocated for it, and completion costs no call of its own: an event is
//!   recorded behind a piece of work only when more work comes behind it.
//! - **Memory is what was asked for.** Each way to allocate is a kind of memory of its own, since what memory can be shared
//!   is fixed at its birth.
//! - **A kernel that faults kills the context**, and with it everything of the device in this process. Every later call says
//!   so, and names the kernel; accesses are checked unless a kernel is built `unchecked`.
//!
//! | module | what is in it |
//! |---|---|
//! | `driver`, `fork` | the library, its version, its answers as errors; children that may not use it |
//! | `context` | the primary context, current while it is needed |
//! | `adapter` | what the driver says of a device |
//! | `profile` | its kinds of memory |
//! | `semantics`, `host` | the facts of each sharing semantic; what the system allows |
//! | `shared`, `device` | the open device, and the contract's device over it |
//! | `memory`, `pool`, `mapping` | buffers; the stream-ordered pool; exportable memory and its import |
//! | `foreign` | addresses that go to, and come from, other libraries of CUDA |
//! | `kernel`, `program`, `params` | compilation and its cache; what the driver loads; what a launch passes |
//! | `nvtx` | names for a profiler, where one listens |
//! | `work` | a piece of work, handed to the driver |
//! | `stream`, `event`, `graph` | queues, points in them, work recorded once |
//! | `reaper` | the thread that waits for streams which are gone |
//!
//! ```no_run
//! use onebuf_core::backend::Backend;
//! use onebuf_cuda::{Cuda, CudaOptions};
//!
//! let cuda = Cuda::new(CudaOptions::from_env())?;
//! for adapter in cuda.adapters()? {
//!     println!("{} {} {:?}", adapter.info.id, adapter.info.name, adapter.rejected);
//! }
//! let device = cuda.open(0)?;
//! # Ok::<(), onebuf_core::Error>(())
//! ```

mod adapter;
mod context;
mod device;
mod driver;
mod event;
mod external;
mod foreign;
mod fork;
mod graph;
mod handle;
mod host;
mod kernel;
mod mapping;
mod memory;
mod nvtx;
mod object;
mod params;
mod pool;
mod profile;
mod program;
mod reaper;
mod semantics;
mod shared;
mod stream;
mod tokens;
mod work;

use std::sync::Arc;

use onebuf_core::backend::{Backend, Device};
use onebuf_core::{Adapter, Error, Result};

use crate::adapter::Physical;
use crate::driver::Driver;
use crate::shared::Shared;

pub use device::CudaDevice;
pub use foreign::Place;
pub use handle::Handle;

/// The name in device ids.
const BACKEND: &str = "cuda";

/// How the backend works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Move unified memory ahead of its use, in one go: to the device before a launch when the CPU has touched it since,
    /// and to the CPU when a guard on a megabyte or more begins. Without it each page moves at its first access, six
    /// times slower on an H200. The environment variable `ONEBUF_CUDA_PREFETCH=0` turns it off.
    pub prefetch: bool,
    /// Pieces of work on a stream that was idle with an event behind each, before events become sparse. More tell sooner that
    /// one of many pieces of work is done, and each costs a tenth of a launch. The environment variable `ONEBUF_CUDA_MARKS=FEW,SPARSE` sets this
    /// and the next, for measurements.
    pub few_marks: usize,
    /// Pieces of work between two events of a stream in a long queue, at least 1.
    pub sparse_marks: u64,
    /// Compile WGSL with the hardware's approximate mathematics, within what WGSL allows. The environment variable
    /// `ONEBUF_CUDA_FAST_MATH=1` turns it on.
    pub fast_math: bool,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions { prefetch: true, few_marks: 4, sparse_marks: 32, fast_math: false }
    }
}

impl CudaOptions {
    /// The options that the environment asks for.
    pub fn from_env() -> CudaOptions {
        let default = CudaOptions::default();
        let flag = |name: &str, default: bool| match std::env::var(name).ok().as_deref() {
            Some("0") => false,
            Some("1") => true,
            _ => default,
        };
        let marks = std::env::var("ONEBUF_CUDA_MARKS").ok();
        let marks = marks.as_deref().and_then(|text| text.split_once(','));
        let marks = marks.and_then(|(few, sparse)| Some((few.parse().ok()?, sparse.parse().ok()?)));
        let (few_marks, sparse_marks) = marks.unwrap_or((default.few_marks, default.sparse_marks));
        CudaOptions {
            prefetch: flag("ONEBUF_CUDA_PREFETCH", default.prefetch),
            few_marks,
            sparse_marks,
            fast_math: flag("ONEBUF_CUDA_FAST_MATH", default.fast_math),
        }
    }
}

/// The CUDA backend.
pub struct Cuda {
    driver: Driver,
    options: CudaOptions,
}

impl Cuda {
    /// Loads and starts the driver.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], which says what is missing and how to mend it.
    pub fn new(options: CudaOptions) -> Result<Cuda> {
        Ok(Cuda { driver: Driver::start()?, options })
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn adapters(&self) -> Result<Vec<Adapter>> {
        fork::check()?;
        Ok(Physical::all(&self.driver)?.iter().map(Physical::adapter).collect())
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        fork::check()?;
        let devices = Physical::all(&self.driver)?;
        let count = devices.len();
        let physical = devices.into_iter().nth(ordinal as usize);
        let physical = physical.ok_or_else(|| {
            Error::NoDevice(format!("cuda:{ordinal} was asked for, and there are {count} CUDA devices"))
        })?;
        if let Some(why) = &physical.rejected {
            return Err(Error::NoDevice(format!("{} ({}): {why}", physical.info.id, physical.info.name)));
        }
        Ok(Arc::new(CudaDevice { shared: Shared::create(physical, self.options)? }))
    }
}
