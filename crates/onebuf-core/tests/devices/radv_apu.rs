//! Source: Vulkan-Tools issue 582 (vulkaninfo): heaps of 1.33 and 2.67 GiB. RADV reports two thirds of an APU's memory
//! as device-local, whatever the carve-out. Types 0 to 3 of eight; the rest repeat them with AMD's device-coherent
//! flags. Types 0 and 1 are quoted there, 2 and 3 are RADV's order (src/amd/vulkan).

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "AMD APU (RADV)",
        DeviceKind::Integrated,
        vec![heap(1_431_654_400, 1_026_842_624, "host"), heap(2_863_312_896, 2_053_685_248, "local")],
        vec![
            kind("type 0", 1, "local fd dmabuf"),
            kind("type 1", 0, "visible coherent fd dmabuf"),
            kind("type 2", 1, "local visible coherent fd dmabuf"),
            kind("type 3", 0, "visible coherent cached fd dmabuf"),
        ],
        4 * GIB - 4,
    )
}
