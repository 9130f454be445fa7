//! Source: llama.cpp issue 16832, a Ryzen AI Max+ 395 under AMD's Windows driver with a carve-out of 96 GiB, which the
//! driver splits: heap 0 has 32 GiB with a budget of 30.4 GiB (as quoted there), and the remaining 64 GiB are the heap
//! the CPU sees. Host heap: half of the 32 GiB left. Type list as in the same driver's (VulkanMemoryAllocator issue 338).

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "AMD Radeon 8060S Graphics",
        DeviceKind::Integrated,
        vec![
            heap(34_359_738_368, 32_641_751_040, "local"),
            heap(15 * GIB, 14 * GIB, "host"),
            heap(68_719_476_736, 65_283_502_080, "local"),
        ],
        vec![
            kind("type 0", 0, "local"),
            kind("type 1", 1, "visible coherent"),
            kind("type 2", 2, "local visible coherent"),
            kind("type 3", 1, "visible coherent cached"),
        ],
        64 * GIB,
    )
}
