//! Source: deviceQuery of a Jetson Orin as published ("Integrated GPU sharing Host Memory: Yes", 15,189,422,080 bytes),
//! and NVIDIA's "CUDA for Tegra": one memory for both; concurrentManagedAccess is 0; pinned memory is cached and coherent
//! from compute capability 7.2 on; legacy IPC is not for Tegra.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    DeviceProfile {
        device: "Orin (CUDA)".into(),
        kind: DeviceKind::Integrated,
        unified: UnifiedLevel::Exclusive,
        heaps: vec![heap(15_189_422_080, None, "local")],
        memory: vec![
            kind("device", 0, "local"),
            kind("pinned", 0, "local visible coherent cached"),
            kind("managed", 0, "local visible coherent cached migrating"),
        ],
        max_allocation_bytes: 15_189_422_080,
        max_buffer_bytes: 15_189_422_080,
    }
}
