//! Source: measured, NVIDIA H200, driver 580: managed memory with concurrentManagedAccess 1; cuMemAlloc exports by legacy
//! IPC alone, cuMemCreate as fd and dma-buf, a pool made for it as a pool's; pinned and managed memory not at all. Largest allocation: the card.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    DeviceProfile {
        device: "NVIDIA H200 (CUDA)".into(),
        kind: DeviceKind::Discrete,
        unified: UnifiedLevel::Managed,
        heaps: vec![heap(139 * GIB, 138 * GIB, "local"), heap(96 * GIB, 96 * GIB, "host")],
        memory: vec![
            kind("device", 0, "local"),
            kind("vmm", 0, "local fd dmabuf"),
            kind("pool", 0, "local pool"),
            kind("ipc", 0, "local ipc"),
            kind("pinned", 1, "visible coherent cached"),
            kind("managed", 0, "local visible coherent cached migrating"),
        ],
        max_allocation_bytes: 139 * GIB,
        max_buffer_bytes: 139 * GIB,
    }
}
