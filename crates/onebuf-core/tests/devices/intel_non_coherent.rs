//! Source: Mesa's ANV (src/intel/vulkan, memory types of a device without LLC), as gpu-allocator pull request 311
//! found it on Arrow Lake: coherent memory is write-combined, cached memory wants flushes. An allocator that asks for
//! cached *and* coherent ends in the write-combined type and reads 87 times slower.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "Intel Graphics (ARL)",
        DeviceKind::Integrated,
        vec![heap(24 * GIB, 22 * GIB, "local")],
        vec![
            kind("type 0", 0, "local visible coherent fd dmabuf"),
            kind("type 1", 0, "local visible cached fd dmabuf"),
        ],
        4 * GIB,
    )
}
