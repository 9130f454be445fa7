//! A device as another one.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onebuf_core::backend::{
    Allocation, Device, Export, Graph, Kernel, KernelRequest, Memory, MemoryStats, Node, PageAccess, Part,
    Stream,
};
use onebuf_core::profile::MemoryKind;
use onebuf_core::report::SemanticFacts;
use onebuf_core::{DeviceInfo, DeviceProfile, Error, Result, Ticket};
use parking_lot::Mutex;

use crate::control::{Call, Control};
use crate::memory::{HeapRest, Shadow, SimMemory};
use crate::options::Options;
use crate::stream::{SimGraph, SimStream, parts_of, real_parts, with_parts};
use crate::watch::Watch;

pub(crate) struct SimDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    /// The simulated kinds of memory, if they are.
    profile: Option<DeviceProfile>,
    heaps: Vec<Arc<HeapRest>>,
    watch: Arc<Watch>,
}

impl SimDevice {
    pub(crate) fn new(inner: Arc<dyn Device>, options: &Options, control: Arc<Control>) -> SimDevice {
        let mut info = inner.info().clone();
        options.change(&mut info);
        let real = inner.profile();
        let profile = options.memory.as_ref().map(|memory| DeviceProfile {
            device: format!("{} {}", info.id, info.name),
            kind: info.kind,
            unified: options.unified.unwrap_or(real.unified),
            heaps: options.heaps.clone().unwrap_or_else(|| real.heaps.clone()),
            memory: memory.clone(),
            max_allocation_bytes: info.limits.max_allocation_bytes,
            max_buffer_bytes: info.limits.max_buffer_bytes,
        });
        let heaps = profile.iter().flat_map(|profile| &profile.heaps);
        let heaps = heaps.map(|heap| Arc::new(HeapRest(Mutex::new(heap.size_bytes)))).collect();
        let watch = Arc::new(Watch { limits: info.limits.clone(), control });
        SimDevice { inner, info, profile, heaps, watch }
    }

    fn control(&self) -> &Arc<Control> {
        &self.watch.control
    }

    /// The real kind of memory that all simulated ones lie in: one that the CPU sees, coherent and cached, whose pages
    /// stay where they are, if there is one.
    fn real_kind(&self) -> usize {
        let kinds = self.inner.profile().memory;
        let good = |kind: &MemoryKind| kind.host_coherent && kind.host_cached && !kind.migrating;
        let visible = |kind: &MemoryKind| kind.host_visible;
        kinds.iter().position(good).or_else(|| kinds.iter().position(visible)).unwrap_or(0)
    }

    fn plain(&self, inner: Arc<dyn Memory>) -> Arc<dyn Memory> {
        let control = self.control().clone();
        let visible = inner.host_pointer().is_some();
        Arc::new(SimMemory { inner, control, visible, shadow: None, heap: None })
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn profile(&self) -> DeviceProfile {
        self.profile.clone().unwrap_or_else(|| {
            let mut profile = self.inner.profile();
            profile.kind = self.info.kind;
            profile.max_allocation_bytes = self.info.limits.max_allocation_bytes;
            profile.max_buffer_bytes = self.info.limits.max_buffer_bytes;
            profile
        })
    }

    fn semantics(&self) -> Vec<SemanticFacts> {
        self.inner.semantics()
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<dyn Memory>> {
        self.control().enter(Call::Allocate)?;
        let limits = &self.info.limits;
        self.watch.most("buffer size", request.size_bytes, limits.max_buffer_bytes);
        self.watch.most("allocation size", request.size_bytes, limits.max_allocation_bytes);
        let Some(profile) = &self.profile else { return Ok(self.plain(self.inner.allocate(request)?)) };
        let Some(kind) = profile.memory.get(request.kind) else {
            self.control().violation(format!("memory of kind {}", request.kind));
            return Err(Error::InvalidArgument(format!("there is no kind {} of memory", request.kind)));
        };
        let heap = self.heaps[kind.heap].clone();
        let mut rest = heap.0.lock();
        if request.size_bytes > *rest {
            return Err(Error::OutOfMemory {
                asked_bytes: request.size_bytes,
                free_bytes: Some(*rest),
                never_fits: request.size_bytes > profile.heaps[kind.heap].size_bytes,
            });
        }
        if request.mapped && !kind.host_visible {
            self.control().violation(format!("`{}` was asked for mapped", kind.name));
        }
        let real = Allocation { kind: self.real_kind(), mapped: true, ..request.clone() };
        let inner = self.inner.allocate(&real)?;
        *rest -= request.size_bytes;
        drop(rest);
        let visible = kind.host_visible && request.mapped;
        let shadow = (visible && !kind.host_coherent)
            .then(|| Shadow::new(inner.size_bytes(), limits.non_coherent_atom_bytes));
        let heap = Some((heap, request.size_bytes));
        Ok(Arc::new(SimMemory { inner, control: self.control().clone(), visible, shadow, heap }))
    }

    #[allow(unsafe_code)]
    unsafe fn import_host(
        &self,
        pointer: NonNull<u8>,
        size_bytes: u64,
        access: PageAccess,
    ) -> Result<Arc<dyn Memory>> {
        self.control().enter(Call::ImportHost)?;
        let alignment = self.info.limits.host_import_alignment_bytes;
        if alignment == 0 {
            self.control().violation("import of host memory on a device that has none".into());
        }
        self.watch.multiple("imported pointer", pointer.as_ptr().addr() as u64, alignment);
        self.watch.multiple("imported size", size_bytes, alignment);
        // SAFETY: the caller's promise is the same.
        Ok(self.plain(unsafe { self.inner.import_host(pointer, size_bytes, access)? }))
    }

    fn import(&self, export: Export) -> Result<Arc<dyn Memory>> {
        self.control().enter(Call::Import)?;
        Ok(self.plain(self.inner.import(export)?))
    }

    #[allow(unsafe_code)]
    unsafe fn compile(&self, request: &KernelRequest<'_>) -> Result<Arc<dyn Kernel>> {
        self.control().enter(Call::Compile)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.inner.compile(request) }
    }

    fn create_stream(&self) -> Result<Arc<dyn Stream>> {
        self.control().enter(Call::CreateStream)?;
        Ok(Arc::new(SimStream { inner: self.inner.create_stream()?, watch: self.watch.clone() }))
    }

    #[allow(unsafe_code)]
    unsafe fn create_graph(&self, nodes: &[Node<'_>]) -> Result<Arc<dyn Graph>> {
        self.control().enter(Call::CreateGraph)?;
        let mut parts: Vec<Vec<Part<'_>>> = Vec::new();
        for node in nodes {
            self.watch.work(&node.work);
            parts.push(real_parts(&parts_of(&node.work))?);
        }
        let nodes: Vec<Node<'_>> = nodes
            .iter()
            .zip(&parts)
            .map(|(node, parts)| Node { work: with_parts(&node.work, parts), after: node.after })
            .collect();
        // SAFETY: the caller's promise is the same: the real memory has the simulated one's size.
        let inner = unsafe { self.inner.create_graph(&nodes)? };
        Ok(Arc::new(SimGraph { inner, watch: self.watch.clone() }))
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool> {
        self.control().enter(Call::IsDone)?;
        Ok(self.inner.is_done(ticket)? && self.control().time_left(ticket).is_zero())
    }

    fn wait(&self, tickets: &[Ticket], limit: Option<Duration>) -> Result<()> {
        self.control().enter(Call::Wait)?;
        let start = Instant::now();
        self.inner.wait(tickets, limit)?;
        let left = tickets.iter().map(|&ticket| self.control().time_left(ticket)).max().unwrap_or_default();
        let rest = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        std::thread::sleep(left.min(rest));
        if left > rest {
            let after_ms = start.elapsed().as_millis() as u64;
            return Err(Error::Timeout { what: "work on the simulated device".into(), after_ms });
        }
        Ok(())
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn memory_stats(&self) -> MemoryStats {
        self.inner.memory_stats()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
