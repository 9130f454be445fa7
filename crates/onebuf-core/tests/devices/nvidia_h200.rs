//! Source: measured, NVIDIA H200, driver 580, headless: the types, and the allocation limit just under 4 GiB. Type 0 has
//! no flag at all: memory of the host that the CPU cannot map. The host heap's size is that of the machine.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "NVIDIA H200 (Vulkan)",
        DeviceKind::Discrete,
        vec![heap(139 * GIB, 138 * GIB, "local"), heap(96 * GIB, 96 * GIB, "host")],
        vec![
            kind("type 0", 1, "fd"),
            kind("type 1", 0, "local fd"),
            kind("type 2", 1, "visible coherent fd"),
            kind("type 3", 1, "visible coherent cached fd"),
            kind("type 4", 0, "local visible coherent fd"),
        ],
        4 * GIB - 2 * MIB,
    )
}
