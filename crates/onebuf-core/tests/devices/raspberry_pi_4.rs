//! Source: VulkanMemoryAllocator issue 362 (vulkaninfo of V3D 4.2, Mesa 23.1): one heap of 925 MiB, one type, 0x7. The
//! Raspberry Pi 5 is the same (Vulkan-ValidationLayers pull request 12305): no memory is cached. The issue quotes no
//! allocation limit; the heap's size stands for it.

use super::*;

pub(crate) fn profile() -> DeviceProfile {
    vulkan(
        "V3D 4.2",
        DeviceKind::Integrated,
        vec![heap(969_521_152, 969_521_152, "local")],
        vec![kind("type 0", 0, "local visible coherent fd dmabuf")],
        969_521_152,
    )
}
