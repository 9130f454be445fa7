//! The Vulkan backend of onebuf: integrated GPUs with host-visible device-local memory, discrete GPUs, software drivers.
//!
//! - **It talks to the driver, through `ash`.** The loader is opened at run time, so a program starts without one and
//!   says what is missing.
//! - **One physical memory is mapped once, for good.** A guard of the CPU costs no call where memory is coherent.
//! - **A ticket is a value of a timeline semaphore.** Launches are gathered into submissions while the driver is busy.
//! - **Nothing the specification leaves to the driver is taken on trust**: limits are checked before, names of extensions
//!   are not support, and descriptors are looked at before a driver sees them.
//!
//! | module | what is in it |
//! |---|---|
//! | `instance` | the loader, the instance, the validation layer |
//! | `adapter` | what a driver says of a physical device |
//! | `semantics` | the facts of each sharing semantic |
//! | `shared` | the open device: handles, queues, allocator |
//! | `device` | the contract's device over it |
//! | `memory` | buffers: in blocks, exportable, imported |
//! | `descriptor` | what is checked of an imported descriptor |
//! | `kernel`, `cache` | pipelines, their descriptor sets, and their cache on disk |
//! | `recorder` | work written into a command buffer |
//! | `stream`, `line` | queues of work, and their line to the driver |
//! | `event`, `graph` | points in a stream, work recorded once |
//! | `wgpu` | the same device under wgpu (feature `wgpu`) |
//!
//! ```no_run
//! use onebuf_core::backend::Backend;
//! use onebuf_vulkan::{Vulkan, VulkanOptions};
//!
//! let vulkan = Vulkan::new(VulkanOptions::from_env())?;
//! for adapter in vulkan.adapters()? {
//!     println!("{} {} {:?}", adapter.info.id, adapter.info.name, adapter.rejected);
//! }
//! let device = vulkan.open(0)?;
//! # Ok::<(), onebuf_core::Error>(())
//! ```

mod adapter;
mod cache;
mod descriptor;
mod device;
mod error;
mod event;
mod graph;
mod instance;
mod kernel;
mod line;
mod memory;
mod recorder;
mod semantics;
mod shared;
#[cfg(test)]
mod spy;
mod stream;
mod timeline;
#[cfg(feature = "wgpu")]
pub mod wgpu;

use std::sync::Arc;

use onebuf_core::backend::{Backend, Device};
use onebuf_core::{Adapter, Error, Result};

use crate::adapter::Physical;
use crate::error::driver;
use crate::instance::Instance;
use crate::shared::Shared;

pub use ash;
pub use device::{Handles, VulkanDevice};
pub use instance::VulkanOptions;

/// The name in device ids.
const BACKEND: &str = "vulkan";

/// The Vulkan backend.
pub struct Vulkan {
    instance: Arc<Instance>,
}

impl Vulkan {
    /// Opens the loader.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], which says what is missing and how to mend it.
    pub fn new(options: VulkanOptions) -> Result<Vulkan> {
        Ok(Vulkan { instance: Instance::new(&options)? })
    }

    /// Takes the messages of the validation layer that came since the last call. Empty without the layer.
    pub fn validation_messages(&self) -> Vec<String> {
        std::mem::take(&mut *self.instance.messages.lock())
    }

    fn physical_devices(&self) -> Result<Vec<Physical>> {
        let instance = &self.instance.raw;
        // SAFETY: the instance is live.
        let devices = unsafe { instance.enumerate_physical_devices() }.map_err(|code| {
            match driver("vkEnumeratePhysicalDevices")(code) {
                // A driver that was found and cannot start is told from a machine without one by `onebuf doctor`.
                Error::Driver { call, code } => {
                    Error::BackendUnavailable { backend: BACKEND, reason: format!("{call} answered {code}") }
                }
                other => other,
            }
        })?;
        devices.into_iter().enumerate().map(|(i, raw)| Physical::read(instance, raw, i as u32)).collect()
    }
}

impl Backend for Vulkan {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn adapters(&self) -> Result<Vec<Adapter>> {
        Ok(self.physical_devices()?.iter().map(Physical::adapter).collect())
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        let devices = self.physical_devices()?;
        let count = devices.len();
        let physical = devices.into_iter().nth(ordinal as usize);
        let physical = physical.ok_or_else(|| {
            Error::NoDevice(format!("vulkan:{ordinal} was asked for, and there are {count} Vulkan devices"))
        })?;
        if let Some(why) = &physical.rejected {
            return Err(Error::NoDevice(format!("{} ({}): {why}", physical.info.id, physical.info.name)));
        }
        Ok(Arc::new(VulkanDevice::new(Shared::create(self.instance.clone(), physical)?)))
    }
}
