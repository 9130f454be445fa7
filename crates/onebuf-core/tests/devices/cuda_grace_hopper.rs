//! Source: NVIDIA's GH200 data sheet (96 GB of HBM3 beside 480 GB of LPDDR5X) and its documents on memory of the machine:
//! page tables are shared (ATS), managed memory is coherent over NVLink-C2C, and the CPU cannot touch cuMemAlloc memory.
//! The card has 97,871 MiB as nvidia-smi shows it. The machine is no integrated device: both memories are real.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    DeviceProfile {
        device: "NVIDIA GH200 480GB (CUDA)".into(),
        kind: DeviceKind::Discrete,
        unified: UnifiedLevel::SystemHardware,
        heaps: vec![heap(97_871 * MIB, 97_000 * MIB, "local"), heap(440 * GIB, 430 * GIB, "host")],
        memory: vec![
            kind("device", 0, "local"),
            kind("vmm", 0, "local fd dmabuf"),
            kind("pool", 0, "local pool"),
            kind("ipc", 0, "local ipc"),
            kind("pinned", 1, "visible coherent cached"),
            kind("managed", 0, "local visible coherent cached migrating"),
        ],
        max_allocation_bytes: 97_871 * MIB,
        max_buffer_bytes: 97_871 * MIB,
    }
}
