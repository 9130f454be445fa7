//! Events: points of a stream, with the device's clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onebuf_core::{Result, Ticket, backend};

use crate::device::Device;

/// A point of a stream: reached when all work that the stream was given before it is done. Clones are handles to the
/// same one.
#[derive(Clone)]
pub struct Event {
    device: Device,
    raw: Arc<dyn backend::Event>,
}

impl Event {
    pub(crate) fn new(device: &Device, raw: Arc<dyn backend::Event>) -> Event {
        Event { device: device.clone(), raw }
    }

    /// The ticket that is reached with it.
    pub fn ticket(&self) -> Ticket {
        self.raw.ticket()
    }

    /// Whether it is reached. It never blocks.
    pub fn is_done(&self) -> Result<bool> {
        self.device.shared.raw.is_done(self.ticket())
    }

    /// Waits until it is reached.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn wait(&self) -> Result<()> {
        self.device.shared.raw.wait(&[self.ticket()], None)
    }

    /// The time on the device's clock from `earlier` to this event. Waits until both are reached.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where they are of different devices;
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the device has no clock.
    pub fn elapsed_since(&self, earlier: &Event) -> Result<Duration> {
        self.device.check_same(&earlier.device, || "the earlier event".to_owned())?;
        self.device.shared.raw.wait(&[earlier.ticket(), self.ticket()], None)?;
        self.raw.elapsed_ns(&*earlier.raw).map(Duration::from_nanos)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("ticket", &self.ticket()).finish_non_exhaustive()
    }
}
