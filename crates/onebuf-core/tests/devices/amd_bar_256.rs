//! Source: obs-vkcapture issue 6 (vulkaninfo of a card of 8 GiB under RADV): sizes and budgets as published. A classic
//! 256 MiB BAR, of which 173 MiB are left. Types 0 to 3 of eight; the rest repeat them with AMD's device-coherent flags.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "AMD Radeon RX (RADV, 8 GiB)",
        DeviceKind::Discrete,
        vec![
            heap(8_321_499_136, 7_675_416_576, "local"),
            heap(8_573_157_376, 8_434_692_096, "host"),
            heap(268_435_456, 181_755_904, "local"),
        ],
        vec![
            kind("type 0", 0, "local fd dmabuf"),
            kind("type 1", 1, "visible coherent fd dmabuf"),
            kind("type 2", 2, "local visible coherent fd dmabuf"),
            kind("type 3", 1, "visible coherent cached fd dmabuf"),
        ],
        4 * GIB - 4,
    )
}
