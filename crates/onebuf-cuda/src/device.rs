//! The open device, as the contract has it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onebuf_core::backend::{
    Allocation, Device, Export, Graph, Kernel, KernelRequest, Memory, MemoryStats, Node, PageAccess, Stream,
    Timeline,
};
use onebuf_core::report::SemanticFacts;
use onebuf_core::{DeviceInfo, DeviceProfile, Result, Ticket};

use crate::external::{self, CudaTimeline};
use crate::graph::CudaGraph;
use crate::kernel::CudaKernel;
use crate::memory::{self, CudaMemory};
use crate::semantics;
use crate::shared::Shared;
use crate::stream::{self, CudaStream};
use crate::tokens;

/// An open CUDA device.
pub struct CudaDevice {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for CudaDevice {
    /// Waits for the work of streams that were dropped before it was done.
    fn drop(&mut self) {
        self.shared.reaper.close();
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.physical.info
    }

    fn profile(&self) -> DeviceProfile {
        self.shared.profile()
    }

    fn semantics(&self) -> Vec<SemanticFacts> {
        semantics::of_device(&self.shared)
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::allocate(&self.shared, request)?))
    }

    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::import_host(&self.shared, pointer, size_bytes, access)?))
    }

    fn import(&self, export: Export) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::import(&self.shared, export)?))
    }

    fn import_across(&self, export: Export) -> Result<(Arc<dyn Memory>, usize)> {
        if !memory::is_vulkans(&self.shared, &export) {
            let kind = export.kind;
            return Ok((self.import(export)?, kind));
        }
        let (memory, kind) = CudaMemory::import_vulkans(&self.shared, export)?;
        Ok((Arc::new(memory), kind))
    }

    fn import_timeline(&self, fd: OwnedFd) -> Result<Arc<dyn Timeline>> {
        Ok(Arc::new(CudaTimeline::import(&self.shared, fd)?))
    }

    fn signal(&self, timeline: &Arc<dyn Timeline>, value: u64, after: &[Ticket]) -> Result<()> {
        external::own(&self.shared, timeline)?.signal(value, after)
    }

    fn follow(&self, timeline: &Arc<dyn Timeline>, value: u64) -> Result<Ticket> {
        external::own(&self.shared, timeline)?.follow(value)
    }

    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(CudaKernel::compile(&self.shared, request)?))
    }

    fn create_stream(&self) -> Result<Arc<dyn Stream>> {
        Ok(Arc::new(CudaStream::create(&self.shared)?))
    }

    unsafe fn create_graph(&self, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
        Ok(Arc::new(CudaGraph::create(&self.shared, nodes)?))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        stream::is_done(&self.shared, ticket)
    }

    fn wait(&self, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
        stream::wait(&self.shared, tickets, limit)
    }

    fn trim(&self) {
        if let Ok(_entered) = self.shared.enter() {
            self.shared.collect();
            tokens::collect();
            self.shared.pool.trim();
        }
    }

    fn memory_stats(&self) -> MemoryStats {
        let entered = self.shared.enter();
        if entered.is_ok() {
            // What finished work still holds is not in use.
            self.shared.collect();
            tokens::collect();
        }
        let usage = &self.shared.usage;
        let (held, _) = if entered.is_ok() { self.shared.pool.usage() } else { (0, 0) };
        MemoryStats {
            live_bytes: usage.live.load(Ordering::Relaxed),
            peak_bytes: usage.peak.load(Ordering::Relaxed),
            buffers: usage.buffers.load(Ordering::Relaxed),
            blocks: usage.blocks.load(Ordering::Relaxed) + u64::from(held > 0),
            block_bytes: usage.block_bytes.load(Ordering::Relaxed) + held,
            budget_bytes: self.shared.free_bytes(),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
