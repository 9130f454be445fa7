//! Source: Mesa's ANV (src/intel/vulkan, memory types of a device with `has_llc`, since Mesa 23): one heap, and types
//! device-local alone, write-combined, and cached and coherent. The heap is that of a Tiger Lake laptop with 32 GiB
//! (memtest_vulkan issue 4 shows 24 GB); the allocation limit is ANV's 4 GiB.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "Intel Xe Graphics (TGL GT2)",
        DeviceKind::Integrated,
        vec![heap(24 * GIB, 20 * GIB, "local")],
        vec![
            kind("type 0", 0, "local fd dmabuf"),
            kind("type 1", 0, "local visible coherent fd dmabuf"),
            kind("type 2", 0, "local visible coherent cached fd dmabuf"),
        ],
        4 * GIB,
    )
}
