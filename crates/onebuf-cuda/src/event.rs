//! Events: marks in a stream, with and without the device's clock.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream};
use onebuf_core::backend::Event;
use onebuf_core::{Error, Result, Ticket};

use crate::context::Context;
use crate::driver;
use crate::shared::Shared;

/// An event of the driver.
pub(crate) struct RawEvent {
    pub(crate) raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: an event is a handle, and the driver's calls are thread-safe.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To know when it is reached.
    Mark,
    /// To read the clock, too, which costs more.
    Clock,
}

impl RawEvent {
    /// A new event. The context is current.
    pub(crate) fn create(context: &Arc<Context>, purpose: Purpose) -> Result<RawEvent> {
        let flags = match purpose {
            Purpose::Mark => CUevent_flags::CU_EVENT_DISABLE_TIMING,
            Purpose::Clock => CUevent_flags::CU_EVENT_DEFAULT,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current, and the pointer is to a live handle.
        driver::check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(RawEvent { raw, context: context.clone() })
    }

    /// Marks the point of a stream behind all work that it was given.
    pub(crate) fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: event and stream are live and of one context.
        driver::check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream) })
    }

    /// Whether the mark is reached.
    pub(crate) fn is_reached(&self) -> Result<bool> {
        // SAFETY: the event is live.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(driver::error("cuEventQuery", code)),
        }
    }

    /// Blocks until the mark is reached.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event is live.
        driver::check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: nobody has the event any more; the driver keeps what it needs of one that is not reached yet.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// An event of this backend.
pub(crate) struct CudaEvent {
    pub(crate) ticket: Ticket,
    pub(crate) clock: RawEvent,
    pub(crate) shared: Arc<Shared>,
}

impl Event for CudaEvent {
    fn ticket(&self) -> Ticket {
        self.ticket
    }

    fn elapsed_ns(&self, start: &dyn Event) -> Result<u64> {
        let start: Option<&CudaEvent> = start.as_any().downcast_ref();
        let start = start.filter(|start| start.shared.context.raw == self.shared.context.raw);
        let start = start
            .ok_or_else(|| Error::InvalidArgument("the start event is not one of the same device".into()))?;
        let _entered = self.shared.enter()?;
        let ms = driver::elapsed_ms(start.clock.raw, self.clock.raw).map_err(|code| match code {
            CUresult::CUDA_ERROR_NOT_READY => {
                Error::Busy("an event is not reached yet; wait for its ticket first".into())
            }
            code => self.shared.note(driver::error("cuEventElapsedTime", code)),
        })?;
        if ms < 0.0 {
            return Err(Error::InvalidArgument("the start event lies behind the end event".into()));
        }
        Ok((f64::from(ms) * 1e6) as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
