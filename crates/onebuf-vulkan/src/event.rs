//! Events: a point of a stream with the device's clock.

use std::any::Any;
use std::sync::Arc;

use ash::vk;
use onebuf_core::backend::Event;
use onebuf_core::{Error, Result, Ticket};

use crate::shared::Shared;
use crate::stream;

/// An event of this backend.
pub(crate) struct VulkanEvent {
    pub(crate) ticket: Ticket,
    pub(crate) timestamp: Arc<Timestamp>,
}

/// A query of the device's clock.
pub(crate) struct Timestamp {
    pool: vk::QueryPool,
    shared: Arc<Shared>,
}

impl Timestamp {
    pub(crate) fn create(shared: &Arc<Shared>) -> Result<Arc<Timestamp>> {
        if shared.physical.timestamp_bits == 0 {
            return Err(Error::unsupported(
                "an event",
                "the device's queues have no timestamps; wait for a ticket instead",
            ));
        }
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(1);
        // SAFETY: plain creation.
        let pool =
            unsafe { shared.raw.create_query_pool(&info, None) }.map_err(shared.fail("vkCreateQueryPool"))?;
        Ok(Arc::new(Timestamp { pool, shared: shared.clone() }))
    }

    /// Writes the clock behind all work that was recorded before.
    pub(crate) fn record(&self, cmd: vk::CommandBuffer) {
        // SAFETY: the command buffer records, and keeps this query; a query is reset before it is written.
        unsafe {
            self.shared.raw.cmd_reset_query_pool(cmd, self.pool, 0, 1);
            self.shared.raw.cmd_write_timestamp(cmd, vk::PipelineStageFlags::BOTTOM_OF_PIPE, self.pool, 0);
        }
    }

    /// The clock's ticks.
    fn ticks(&self) -> Result<u64> {
        let mut ticks = [0u64];
        // SAFETY: the buffer holds one 64-bit result.
        unsafe {
            self.shared.raw.get_query_pool_results(self.pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        }
        .map_err(self.shared.fail("vkGetQueryPoolResults"))?;
        Ok(ticks[0])
    }
}

impl Drop for Timestamp {
    fn drop(&mut self) {
        // SAFETY: batches that write the query hold it.
        unsafe { self.shared.raw.destroy_query_pool(self.pool, None) };
    }
}

impl Event for VulkanEvent {
    fn ticket(&self) -> Ticket {
        self.ticket
    }

    fn elapsed_ns(&self, start: &dyn Event) -> Result<u64> {
        let start: Option<&VulkanEvent> = start.as_any().downcast_ref();
        let start = start.filter(|start| Arc::ptr_eq(&start.timestamp.shared, &self.timestamp.shared));
        let Some(start) = start else {
            return Err(Error::InvalidArgument("the two events are of different devices".into()));
        };
        for event in [start, self] {
            if !stream::is_done(&self.timestamp.shared, event.ticket)? {
                return Err(Error::Busy("the event is not reached; wait for it first".into()));
            }
        }
        let physical = &self.timestamp.shared.physical;
        let (from, to) = (start.timestamp.ticks()?, self.timestamp.ticks()?);
        // The clock wraps at its width. A start that is later than the end reads as a difference past half of it.
        let mask = u64::MAX >> (64 - physical.timestamp_bits.clamp(1, 64));
        let ticks = to.wrapping_sub(from) & mask;
        if ticks > mask / 2 {
            return Err(Error::InvalidArgument("the start event lies behind the end event".into()));
        }
        Ok((ticks as f64 * f64::from(physical.timestamp_period_ns)) as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
