//! How a device is changed.

use std::sync::Arc;

use onebuf_core::profile::{Heap, MemoryKind};
use onebuf_core::{DeviceInfo, DeviceKind, Limits, UnifiedLevel};

/// How a device is changed. The default changes nothing.
#[derive(Clone, Default)]
pub struct Options {
    /// Another kind of device.
    pub kind: Option<DeviceKind>,
    /// Another level of unified memory.
    pub unified: Option<UnifiedLevel>,
    /// Other heaps. An allocation that does not fit into the rest of its heap fails with
    /// [`OutOfMemory`](onebuf_core::Error::OutOfMemory).
    pub heaps: Option<Vec<Heap>>,
    /// Other kinds of memory. Each lies, in truth, in one kind of the real device that the CPU sees.
    pub memory: Option<Vec<MemoryKind>>,
    /// Other limits. They are not enforced: a call past them is a violation.
    pub limits: Option<ChangeLimits>,
}

/// A change of limits.
pub type ChangeLimits = Arc<dyn Fn(&mut Limits) + Send + Sync>;

const GIB: u64 = 1 << 30;

fn kind(name: &str, heap: usize, device_local: bool, host_visible: bool) -> MemoryKind {
    MemoryKind {
        name: name.into(),
        heap,
        device_local,
        host_visible,
        host_coherent: host_visible,
        host_cached: host_visible,
        ..MemoryKind::default()
    }
}

impl Options {
    /// An integrated GPU whose memory is cached and not coherent, with atoms of this many bytes.
    pub fn non_coherent(atom_bytes: u64) -> Options {
        let memory = MemoryKind { host_coherent: false, ..kind("cached, not coherent", 0, true, true) };
        Options {
            kind: Some(DeviceKind::Integrated),
            heaps: Some(vec![Heap { size_bytes: GIB, budget_bytes: None, device_local: true }]),
            memory: Some(vec![memory]),
            ..Options::default()
        }
        .with_limits(move |limits| limits.non_coherent_atom_bytes = atom_bytes)
    }

    /// A card whose memory the CPU cannot see, beside host memory that the device reaches over the bus.
    pub fn discrete() -> Options {
        let heap = |device_local| Heap { size_bytes: GIB, budget_bytes: None, device_local };
        Options {
            kind: Some(DeviceKind::Discrete),
            heaps: Some(vec![heap(true), heap(false)]),
            memory: Some(vec![kind("video memory", 0, true, false), kind("host memory", 1, false, true)]),
            ..Options::default()
        }
    }

    /// [`Options::discrete`], with host memory that is not coherent.
    pub fn discrete_non_coherent(atom_bytes: u64) -> Options {
        let mut options = Options::discrete();
        for memory in options.memory.iter_mut().flatten() {
            memory.host_coherent = false;
        }
        options.with_limits(move |limits| limits.non_coherent_atom_bytes = atom_bytes)
    }

    /// A card all of whose memory the CPU can write through the bus, and read at a crawl.
    pub fn resizable_bar() -> Options {
        let mut options = Options::discrete();
        if let Some(memory) = &mut options.memory {
            memory.push(MemoryKind { host_cached: false, ..kind("bar", 0, true, true) });
        }
        options
    }

    /// An integrated GPU without cached memory, like a Raspberry Pi.
    pub fn uncached() -> Options {
        let memory = MemoryKind { host_cached: false, ..kind("write-combined", 0, true, true) };
        Options {
            kind: Some(DeviceKind::Integrated),
            heaps: Some(vec![Heap { size_bytes: GIB, budget_bytes: None, device_local: true }]),
            memory: Some(vec![memory]),
            ..Options::default()
        }
    }

    /// A device that may be used by the CPU or by itself, never by both: unified memory at its lowest level.
    pub fn exclusive_unified() -> Options {
        let memory = MemoryKind { migrating: true, ..kind("managed", 0, true, true) };
        Options {
            kind: Some(DeviceKind::Discrete),
            unified: Some(UnifiedLevel::Exclusive),
            heaps: Some(vec![Heap { size_bytes: GIB, budget_bytes: None, device_local: true }]),
            memory: Some(vec![memory]),
            ..Options::default()
        }
    }

    /// The lowest limits that a Vulkan device may have, or lower.
    pub fn tight() -> Options {
        Options::default().with_limits(|limits| {
            limits.max_buffer_bytes = 1 << 20;
            limits.max_allocation_bytes = 1 << 20;
            limits.max_storage_binding_bytes = 1 << 16;
            limits.max_uniform_binding_bytes = 1 << 10;
            limits.storage_offset_alignment_bytes = 256;
            limits.uniform_offset_alignment_bytes = 256;
            limits.host_import_alignment_bytes = 1 << 16;
            limits.max_workgroup_size = [128, 64, 4];
            limits.max_workgroup_invocations = 128;
            limits.max_workgroup_bytes = 4096;
            limits.max_immediate_bytes = 16;
            limits.max_bind_groups = 2;
            limits.max_storage_bindings = 4;
            limits.max_uniform_bindings = 2;
        })
    }

    /// The same, with all heaps of this size together.
    pub fn with_memory_bytes(mut self, bytes: u64) -> Options {
        let heap = Heap { size_bytes: bytes, budget_bytes: None, device_local: true };
        self.heaps = Some(vec![heap]);
        match &mut self.memory {
            Some(memory) => memory.iter_mut().for_each(|kind| kind.heap = 0),
            None => self.memory = Some(vec![kind("small", 0, true, true)]),
        }
        self
    }

    /// The same, with these limits changed as well.
    pub fn with_limits(mut self, change: impl Fn(&mut Limits) + Send + Sync + 'static) -> Options {
        let earlier = self.limits.take();
        self.limits = Some(Arc::new(move |limits| {
            if let Some(earlier) = &earlier {
                earlier(limits);
            }
            change(limits);
        }));
        self
    }

    pub(crate) fn change(&self, info: &mut DeviceInfo) {
        info.name = format!("{} (simulated)", info.name);
        info.kind = self.kind.unwrap_or(info.kind);
        if let Some(change) = &self.limits {
            change(&mut info.limits);
        }
        if let Some(heaps) = &self.heaps {
            info.memory_bytes =
                heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.size_bytes).sum();
        }
    }
}
