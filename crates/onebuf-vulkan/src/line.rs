//! A stream's line to the driver: how batches are submitted, and how their end is seen.

use std::time::{Duration, Instant};

use ash::vk;
use onebuf_core::{Error, Result};
use smallvec::SmallVec;

use crate::shared::Shared;
#[cfg(feature = "wgpu")]
use crate::wgpu::WgpuLine;

/// A value of another stream's timeline semaphore. The semaphore lives as long as the device, and its value never falls:
/// see `Shared::give_timeline`. So a wait needs no hold on the stream.
pub(crate) type Wait = (vk::Semaphore, u64);

/// A line to the driver.
pub(crate) enum Line {
    /// A queue of our own, and a timeline semaphore that it signals.
    Queue {
        /// Index into the device's queues.
        queue: usize,
        /// The semaphore that has the value of the newest batch that is done.
        timeline: vk::Semaphore,
    },
    /// wgpu's queue, through wgpu.
    #[cfg(feature = "wgpu")]
    Wgpu(WgpuLine),
}

impl Line {
    /// A line, and the value it begins with.
    pub(crate) fn create(shared: &Shared) -> Result<(Line, u64)> {
        #[cfg(feature = "wgpu")]
        if let Some(link) = &shared.link {
            return Ok((Line::Wgpu(WgpuLine::new(link)), 0));
        }
        let (timeline, value) = shared.take_timeline()?;
        Ok((Line::Queue { queue: shared.next_queue(), timeline }, value))
    }

    /// Submits a complete command buffer behind `waits`; when it is done the line reaches `signal`, and the semaphores of
    /// `others`, on a queue of our own, have their values.
    pub(crate) fn submit(
        &self,
        shared: &Shared,
        cmd: vk::CommandBuffer,
        waits: &[Wait],
        others: &[Wait],
        signal: u64,
    ) -> Result<()> {
        match self {
            Line::Queue { queue, timeline } => {
                let (waits, wait_values): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) =
                    waits.iter().copied().unzip();
                let stages: SmallVec<[_; 4]> =
                    waits.iter().map(|_| vk::PipelineStageFlags::ALL_COMMANDS).collect();
                let all = others.iter().copied().chain([(*timeline, signal)]);
                let (signals, signal_values): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) = all.unzip();
                let commands = [cmd];
                let mut values = vk::TimelineSemaphoreSubmitInfo::default()
                    .wait_semaphore_values(&wait_values)
                    .signal_semaphore_values(&signal_values);
                let info = vk::SubmitInfo::default()
                    .command_buffers(&commands)
                    .wait_semaphores(&waits)
                    .wait_dst_stage_mask(&stages)
                    .signal_semaphores(&signals)
                    .push_next(&mut values);
                let queue = shared.queues[*queue].lock();
                // SAFETY: the queue is locked; the command buffer is complete, and all it uses is kept by its batch,
                // which outlives the work.
                unsafe { shared.raw.queue_submit(*queue, &[info], vk::Fence::null()) }
                    .map_err(shared.fail("vkQueueSubmit"))
            }
            // wgpu runs its submissions strictly one after the other, so the waits are kept by the order alone.
            #[cfg(feature = "wgpu")]
            Line::Wgpu(line) => line.submit(shared, cmd, signal),
        }
    }

    /// The value that the line has reached.
    pub(crate) fn reached(&self, shared: &Shared) -> Result<u64> {
        match self {
            Line::Queue { timeline, .. } => {
                // SAFETY: the semaphore is live.
                let value = unsafe { shared.raw.get_semaphore_counter_value(*timeline) }
                    .map_err(shared.fail("vkGetSemaphoreCounterValue"))?;
                // A lost device reports that everything is done.
                if value == u64::MAX {
                    return Err(shared.lose("a timeline semaphore has the value of a lost device"));
                }
                Ok(value)
            }
            #[cfg(feature = "wgpu")]
            Line::Wgpu(line) => line.reached(shared),
        }
    }

    /// What another line's work waits for, to come behind `value` of this one; `None` where the driver runs all lines in
    /// one order.
    pub(crate) fn wait_at(&self, value: u64) -> Option<Wait> {
        Some((self.timeline()?, value))
    }

    /// Gives back what the line is made of; it has reached `value`, and no queued work waits for it.
    pub(crate) fn end(&self, shared: &Shared, value: u64) {
        if let Some(timeline) = self.timeline() {
            shared.give_timeline(timeline, value);
        }
    }

    fn timeline(&self) -> Option<vk::Semaphore> {
        match self {
            Line::Queue { timeline, .. } => Some(*timeline),
            #[cfg(feature = "wgpu")]
            Line::Wgpu(_) => None,
        }
    }
}

/// Waits until each line has reached its value.
pub(crate) fn wait(shared: &Shared, lines: &[(&Line, u64)], limit: Option<Duration>) -> Result<()> {
    shared.check_alive()?;
    #[cfg(feature = "wgpu")]
    if shared.link.is_some() {
        let start = Instant::now();
        for (line, value) in lines {
            if let Line::Wgpu(line) = line {
                line.wait(shared, *value, limit.map(|limit| limit.saturating_sub(start.elapsed())))?;
            }
        }
        return Ok(());
    }
    let all = lines.iter().filter_map(|(line, value)| line.wait_at(*value));
    let (semaphores, values): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = all.unzip();
    let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
    let start = Instant::now();
    let nanoseconds = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    // SAFETY: the semaphores are live: their streams are held by the caller.
    match unsafe { shared.raw.wait_semaphores(&info, nanoseconds) } {
        Ok(()) => Ok(()),
        Err(vk::Result::TIMEOUT) => Err(timeout(start)),
        Err(code) => Err(shared.fail("vkWaitSemaphores")(code)),
    }
}

/// A time limit passed that began at `start`.
pub(crate) fn timeout(start: Instant) -> Error {
    Error::Timeout { what: "work on the device".into(), after_ms: start.elapsed().as_millis() as u64 }
}
