//! Source: vulkaninfo of Mesa 25.0.7 on a machine of 24 GiB: the heap is all its memory, `usage` 572 MiB off the budget.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "llvmpipe (Mesa 25.0.7)",
        DeviceKind::Software,
        vec![heap(25_276_059_648, 25_276_059_648 - 599_957_504, "local")],
        vec![kind("type 0", 0, "local visible coherent cached fd")],
        2 * GIB,
    )
}
