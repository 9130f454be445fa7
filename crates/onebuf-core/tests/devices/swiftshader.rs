//! Source: vulkaninfo of SwiftShader as Debian's chromium-common 156 has it: one type, a heap of 2 GiB, allocations and
//! buffers of at most 1 GiB.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "SwiftShader",
        DeviceKind::Software,
        vec![heap(2 * GIB, None, "local")],
        vec![kind("type 0", 0, "local visible coherent cached fd")],
        GIB,
    )
}
