//! Source: Arm's GPU Best Practices Developer Guide, on CPU access to Vulkan memory: coherent memory is write-combined,
//! cached memory wants flushes, and the third type is for transient attachments alone (left out). Filament pull request
//! 7084 met it on a Pixel 6 Pro: no type is visible, coherent and cached at once. Size: a phone of 8 GiB.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "Mali-G78",
        DeviceKind::Integrated,
        vec![heap(7 * GIB + 512 * MIB, None, "local")],
        vec![kind("type 0", 0, "local visible coherent fd"), kind("type 1", 0, "local visible cached fd")],
        4 * GIB - 1,
    )
}
