//! Source: vulkaninfo of Mesa 22.3.6, and measured: one type, a heap of 2 GiB whatever the machine has, no budget.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "llvmpipe (Mesa 22.3.6)",
        DeviceKind::Software,
        vec![heap(2 * GIB, None, "local")],
        vec![kind("type 0", 0, "local visible coherent cached fd")],
        2 * GIB,
    )
}
