//! Source: cuda-python issues 1045 and 1617 and rmm issues 1029 and 2023: on WSL2 concurrentManagedAccess is 0, and fd
//! handles are advertised although making a pool with them fails. A profile holds what is advertised, so this is what
//! placement sees; only a self-test can tell. Size: a card of 8 GiB, with what Windows keeps off the budget.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    DeviceProfile {
        device: "NVIDIA GeForce RTX (CUDA, WSL2)".into(),
        kind: DeviceKind::Discrete,
        unified: UnifiedLevel::Exclusive,
        heaps: vec![heap(8 * GIB, 7 * GIB, "local"), heap(8 * GIB, 4 * GIB, "host")],
        memory: vec![
            kind("device", 0, "local"),
            kind("vmm", 0, "local fd"),
            kind("pinned", 1, "visible coherent cached"),
            kind("managed", 0, "local visible coherent cached migrating"),
        ],
        max_allocation_bytes: 8 * GIB,
        max_buffer_bytes: 8 * GIB,
    }
}
