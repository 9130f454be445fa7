//! A backend around a backend, that simulates what no driver at hand has, and watches for what no driver at hand minds.
//!
//! Software drivers have one kind of memory, coherent and cached, and enforce next to no limit. Real devices differ. A
//! [`Simulated`] backend runs the work on the real device behind it, and in between:
//!
//! - shows the memory of another device ([`Options::heaps`], [`Options::memory`]), such as memory that the CPU cannot see
//!   or caches badly, and runs out of it;
//! - keeps a shadow copy of non-coherent memory, so that a missing flush or invalidation, or one that puts back stale
//!   neighbours, shows as wrong bytes;
//! - shows other limits, and notes every call that is past them in [`Control::violations`], as a validation layer does
//!   for the real ones;
//! - fails, slows down and loses the device when it is told to ([`Control`]).
//!
//! It is written against `onebuf-core` alone. What it does not simulate: the splitting of grids past `max_groups`, which
//! is the business of the backend that records them; two allocations that share an atom, which is the business of the
//! backend that sub-allocates.

mod control;
mod device;
mod memory;
mod options;
mod stream;
mod watch;

use std::sync::Arc;

use onebuf_core::backend::{Backend, Device};
use onebuf_core::{Adapter, Result};

pub use control::{Call, Control};
pub use options::{ChangeLimits, Options};

/// A backend whose devices are those of another one, changed.
pub struct Simulated {
    inner: Arc<dyn Backend>,
    options: Options,
    control: Arc<Control>,
}

impl Simulated {
    /// The devices of `inner`, changed by `options`.
    pub fn new(inner: Arc<dyn Backend>, options: Options) -> Simulated {
        Simulated { inner, options, control: Arc::default() }
    }

    /// What tests tell the simulation while it runs, and what it noted. It is that of all devices of this backend.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }
}

impl Backend for Simulated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn adapters(&self) -> Result<Vec<Adapter>> {
        let mut adapters = self.inner.adapters()?;
        for adapter in &mut adapters {
            self.options.change(&mut adapter.info);
        }
        Ok(adapters)
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        let inner = self.inner.open(ordinal)?;
        Ok(Arc::new(device::SimDevice::new(inner, &self.options, self.control.clone())))
    }
}
