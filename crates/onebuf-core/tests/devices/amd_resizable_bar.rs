//! Source: magic-mirror issue 5 (vulkaninfo of a card of 16 GiB under RADV with resizable BAR): sizes and budgets as
//! published, one device-local heap. Of eleven types those that a buffer may use, without AMD's device-coherent ones.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "AMD Radeon RX (RADV, 16 GiB)",
        DeviceKind::Discrete,
        vec![heap(67_396_808_704, 67_339_554_816, "host"), heap(17_163_091_968, 16_614_862_848, "local")],
        vec![
            kind("type 0", 1, "local fd dmabuf"),
            kind("type 2", 0, "visible coherent fd dmabuf"),
            kind("type 3", 1, "local visible coherent fd dmabuf"),
            kind("type 5", 0, "visible coherent cached fd dmabuf"),
        ],
        4 * GIB - 4,
    )
}
