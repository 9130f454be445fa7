//! Source: VulkanMemoryAllocator issue 338, a Ryzen 9 7950X's GPU under AMD's Windows driver 22.40. Both device-local
//! heaps are 256 MiB. Types 4 to 7 repeat 0 to 3 with AMD's device-coherent flags, which no ordinary buffer may use.
//! Handles of Windows are no handles here, so nothing is exportable.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "AMD Radeon Graphics (7950X)",
        DeviceKind::Integrated,
        vec![
            heap(256 * MIB, None, "local"),
            heap(16_437_477_376, None, "host"),
            heap(256 * MIB, None, "local"),
        ],
        vec![
            kind("type 0", 0, "local"),
            kind("type 1", 1, "visible coherent"),
            kind("type 2", 2, "local visible coherent"),
            kind("type 3", 1, "visible coherent cached"),
        ],
        2 * GIB,
    )
}
