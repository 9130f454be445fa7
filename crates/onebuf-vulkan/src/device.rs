//! The open device, as the contract has it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ash::vk;
use onebuf_core::backend::{
    Allocation, Device, Export, Graph, Kernel, KernelRequest, Memory, MemoryStats, Node, PageAccess, Stream,
    Timeline,
};
use onebuf_core::report::SemanticFacts;
use onebuf_core::{DeviceInfo, DeviceProfile, Error, Result, Ticket};

use crate::graph::VulkanGraph;
use crate::kernel::VulkanKernel;
use crate::memory::{self, Origin, VulkanMemory};
use crate::semantics;
use crate::shared::Shared;
use crate::stream::{self, StreamShared, VulkanStream};
use crate::timeline::{self, VulkanTimeline};

/// An open Vulkan device.
pub struct VulkanDevice {
    pub(crate) shared: Arc<Shared>,
    #[cfg(feature = "wgpu")]
    pub(crate) outside: std::sync::OnceLock<Arc<StreamShared>>,
}

impl VulkanDevice {
    pub(crate) fn new(shared: Arc<Shared>) -> VulkanDevice {
        VulkanDevice {
            shared,
            #[cfg(feature = "wgpu")]
            outside: std::sync::OnceLock::new(),
        }
    }
}

impl Drop for VulkanDevice {
    /// Waits for the work of streams that were dropped before it was done.
    fn drop(&mut self) {
        self.shared.join_all();
        #[cfg(feature = "wgpu")]
        crate::wgpu::settle(&self.shared);
    }
}

/// The driver's handles of an open device, for code that calls Vulkan itself beside onebuf. They are valid while the
/// device lives, which everything made from it keeps alive.
#[derive(Clone)]
pub struct Handles {
    /// The instance, with its functions.
    pub instance: ash::Instance,
    /// The physical device.
    pub physical_device: vk::PhysicalDevice,
    /// The device, with its functions.
    pub device: ash::Device,
    /// The family of its queues.
    pub queue_family: u32,
}

impl VulkanDevice {
    /// The driver's handles.
    pub fn handles(&self) -> Handles {
        Handles {
            instance: self.shared.instance.raw.clone(),
            physical_device: self.shared.physical.raw,
            device: self.shared.raw.clone(),
            queue_family: self.shared.physical.queue_family,
        }
    }

    /// Calls `submit` with a queue that nobody else submits to meanwhile: a queue is used by one thread at a time, and
    /// onebuf's streams share theirs. `submit` calls nothing of this device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on an application's wgpu device, whose queue is under a lock of wgpu's own.
    pub fn with_queue<R>(&self, submit: impl FnOnce(vk::Queue) -> R) -> Result<R> {
        let queue = self.shared.queues.get(self.shared.next_queue()).ok_or_else(|| {
            Error::unsupported("a queue of the device", "wgpu owns it; submit through `wgpu::Queue`")
        })?;
        Ok(submit(*queue.lock()))
    }
}

impl Device for VulkanDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.physical.info
    }

    fn profile(&self) -> DeviceProfile {
        self.shared.physical.profile(&self.shared.instance.raw)
    }

    fn semantics(&self) -> Vec<SemanticFacts> {
        semantics::facts(&self.shared.physical, &self.profile())
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(VulkanMemory::allocate(&self.shared, request)?))
    }

    #[allow(unsafe_code)]
    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(VulkanMemory::import_host(&self.shared, pointer, size_bytes, access)?))
    }

    fn import(&self, export: Export) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(VulkanMemory::import(&self.shared, export, Origin::Anywhere)?))
    }

    fn import_across(&self, mut export: Export) -> Result<(Arc<dyn Memory>, usize)> {
        export.kind = memory::kind_of(&self.shared, &export)?;
        let kind = export.kind;
        Ok((Arc::new(VulkanMemory::import(&self.shared, export, Origin::ThisProcess)?), kind))
    }

    fn create_timeline(&self) -> Result<Arc<dyn Timeline>> {
        Ok(Arc::new(VulkanTimeline::create(&self.shared)?))
    }

    fn import_timeline(&self, fd: OwnedFd) -> Result<Arc<dyn Timeline>> {
        Ok(Arc::new(VulkanTimeline::import(&self.shared, fd)?))
    }

    fn signal(&self, timeline: &Arc<dyn Timeline>, value: u64, after: &[Ticket]) -> Result<()> {
        timeline::own(&self.shared, timeline)?.signal(value, after)
    }

    fn follow(&self, timeline: &Arc<dyn Timeline>, value: u64) -> Result<Ticket> {
        timeline::own(&self.shared, timeline)?.follow(value)
    }

    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(VulkanKernel::compile(&self.shared, request)?))
    }

    fn create_stream(&self) -> Result<Arc<dyn Stream>> {
        Ok(Arc::new(VulkanStream { inner: StreamShared::create(&self.shared)? }))
    }

    unsafe fn create_graph(&self, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
        Ok(Arc::new(VulkanGraph::create(&self.shared, nodes)?))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        stream::is_done(&self.shared, ticket)
    }

    fn wait(&self, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
        stream::wait(&self.shared, tickets, limit)
    }

    fn memory_stats(&self) -> MemoryStats {
        let usage = &self.shared.usage;
        let report = self.shared.allocator.lock().generate_report();
        let profile = self.profile();
        let budgets = profile.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.budget_bytes);
        MemoryStats {
            live_bytes: usage.live.load(Ordering::Relaxed),
            peak_bytes: usage.peak.load(Ordering::Relaxed),
            buffers: usage.buffers.load(Ordering::Relaxed),
            blocks: report.blocks.len() as u64 + usage.dedicated.load(Ordering::Relaxed),
            block_bytes: report.total_capacity_bytes + usage.dedicated_bytes.load(Ordering::Relaxed),
            budget_bytes: budgets.sum::<Option<u64>>(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
