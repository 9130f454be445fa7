//! What the driver says of a device, before it is opened.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};
use onebuf_core::{Adapter, DeviceId, DeviceInfo, DeviceKind, DeviceUuid, Features, Limits, Result};

use crate::BACKEND;
use crate::driver::{self, Driver};
use crate::host::HostMemory;

/// The attributes that the backend looks at. 0 where the driver does not know one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    pub(crate) integrated: bool,
    pub(crate) compute_mode: u32,
    pub(crate) unified_addressing: bool,
    pub(crate) can_map_host_memory: bool,
    pub(crate) managed: bool,
    pub(crate) concurrent_managed: bool,
    pub(crate) pageable: bool,
    pub(crate) host_page_tables: bool,
    pub(crate) direct_managed_from_host: bool,
    pub(crate) host_native_atomic: bool,
    pub(crate) host_pointer_for_registered: bool,
    pub(crate) host_register: bool,
    pub(crate) read_only_host_register: bool,
    pub(crate) memory_pools: bool,
    pub(crate) virtual_memory: bool,
    pub(crate) posix_fd: bool,
    pub(crate) fabric: bool,
    pub(crate) dma_buf: bool,
    pub(crate) pool_handle_types: u32,
    pub(crate) ipc_event: bool,
    pub(crate) timeline_semaphores: bool,
    pub(crate) async_engines: u32,
    pub(crate) l2_bytes: u32,
    pub(crate) warp: u32,
    pub(crate) max_threads: u32,
    pub(crate) max_block: [u32; 3],
    pub(crate) max_grid: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) shared_optin_bytes: u32,
    pub(crate) mps: bool,
}

impl Attributes {
    fn read(device: CUdevice) -> Attributes {
        let number = |attribute: Attribute| {
            let mut value: c_int = 0;
            // SAFETY: the driver is started, the device is one of its, and the pointer is to a live integer. A driver
            // that does not know an attribute answers INVALID_VALUE.
            let code = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
            if code == CUresult::CUDA_SUCCESS { value.max(0) as u32 } else { 0 }
        };
        let yes = |attribute: Attribute| number(attribute) != 0;
        use Attribute::*;
        Attributes {
            capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            integrated: yes(CU_DEVICE_ATTRIBUTE_INTEGRATED),
            compute_mode: number(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
            unified_addressing: yes(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
            can_map_host_memory: yes(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY),
            managed: yes(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
            concurrent_managed: yes(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
            pageable: yes(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
            host_page_tables: yes(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
            direct_managed_from_host: yes(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
            host_native_atomic: yes(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED),
            host_pointer_for_registered: yes(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
            host_register: yes(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
            read_only_host_register: yes(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED),
            memory_pools: yes(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
            virtual_memory: yes(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
            posix_fd: yes(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            fabric: yes(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            dma_buf: yes(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            pool_handle_types: number(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES),
            ipc_event: yes(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
            timeline_semaphores: yes(CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
            async_engines: number(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
            l2_bytes: number(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            warp: number(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            max_threads: number(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            max_block: [
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                number(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
            ],
            max_grid: [
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                number(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            ],
            shared_bytes: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            shared_optin_bytes: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            mps: yes(CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
        }
    }

    /// Largest workgroup memory, in bytes: with the opt-in where there is one.
    fn max_shared_bytes(&self) -> u32 {
        self.shared_bytes.max(self.shared_optin_bytes)
    }

    /// Why onebuf cannot use the device, if it cannot.
    fn rejected(&self) -> Option<String> {
        let (major, minor) = self.capability;
        if major < 7 {
            // Before Volta the threads of a warp do not progress on their own, which WGSL's control flow relies on.
            return Some(format!("its compute capability is {major}.{minor}, and kernels need 7.0 or newer"));
        }
        if !self.unified_addressing {
            return Some("it has no unified addressing (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING is 0)".into());
        }
        if self.compute_mode == sys::CUcomputemode::CU_COMPUTEMODE_PROHIBITED as u32 {
            return Some(
                "its compute mode is prohibited; an administrator can set it by `nvidia-smi -c 0`".into(),
            );
        }
        None
    }
}

/// A device, with everything that is read once.
#[derive(Clone, Debug)]
pub(crate) struct Physical {
    pub(crate) raw: CUdevice,
    pub(crate) ordinal: u32,
    pub(crate) info: DeviceInfo,
    pub(crate) rejected: Option<String>,
    pub(crate) attributes: Attributes,
    pub(crate) driver: Driver,
    /// A slice of a GPU that is shared in hardware (Multi-Instance GPU).
    pub(crate) is_slice: bool,
    /// Memory of the device in bytes.
    pub(crate) total_bytes: u64,
}

impl Physical {
    pub(crate) fn all(driver: &Driver) -> Result<Vec<Physical>> {
        let mut count = 0;
        // SAFETY: the driver is started, and the pointer is to a live integer.
        driver::check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        (0..count.max(0) as u32).map(|ordinal| Physical::read(driver, ordinal)).collect()
    }

    fn read(driver: &Driver, ordinal: u32) -> Result<Physical> {
        let (mut raw, mut total, mut name) = (0, 0usize, [0u8; 256]);
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver is started; the ordinal is below the count; each pointer is to a live value of the type and
        // length that the function writes.
        unsafe {
            driver::check("cuDeviceGet", sys::cuDeviceGet(&mut raw, ordinal as c_int))?;
            driver::check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut total, raw))?;
            let written = sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, raw);
            driver::check("cuDeviceGetName", written)?;
            driver::check("cuDeviceGetUuid", sys::cuDeviceGetUuid_v2(&mut uuid, raw))?;
        }
        let uuid = uuid.bytes.map(|byte| byte as u8);
        let attributes = Attributes::read(raw);
        let name = driver::text(&name);
        // A slice has an identity of its own, and the older function gives that of the whole GPU.
        let is_slice = name.contains("MIG ") || driver::parent_uuid(raw).is_some_and(|parent| parent != uuid);
        let total_bytes = total as u64;
        let (major, minor) = attributes.capability;
        let info = DeviceInfo {
            id: DeviceId::new(BACKEND, ordinal),
            name: if is_slice && !name.contains("MIG") { format!("{name} (MIG slice)") } else { name },
            kind: if attributes.integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
            uuid: Some(DeviceUuid(uuid)),
            driver: match &driver.release {
                Some(release) => format!("NVIDIA {release}"),
                None => format!("NVIDIA, for CUDA {}", driver.version),
            },
            api: format!("CUDA {}, compute capability {major}.{minor}", driver.version),
            memory_bytes: total_bytes,
            limits: limits(&attributes, total_bytes, HostMemory::read().total_bytes),
            features: Features::ALL,
        };
        let rejected = attributes.rejected();
        let driver = driver.clone();
        Ok(Physical { raw, ordinal, info, rejected, attributes, driver, is_slice, total_bytes })
    }

    /// The device as a backend lists it.
    pub(crate) fn adapter(&self) -> Adapter {
        Adapter { info: self.info.clone(), rejected: self.rejected.clone() }
    }
}

/// Bindings of each kind that one kernel may have. With the immediates that WGSL may declare, and 12 bytes for each binding's pointer and
/// length, the parameters stay within the 4 KiB that every device allows.
const MAX_STORAGE_BINDINGS: u32 = 96;
const MAX_UNIFORM_BINDINGS: u32 = 32;
const MAX_IMMEDIATE_BYTES: u32 = onebuf_wgsl::MAX_IMMEDIATE_BYTES;

/// What the device allows. Bindings are pointers, so most of what limits a descriptor does not limit them.
pub(crate) fn limits(attributes: &Attributes, device_bytes: u64, host_bytes: u64) -> Limits {
    // Page-locked memory may be larger than the device's own.
    let largest = if attributes.integrated { device_bytes } else { device_bytes.max(host_bytes) };
    Limits {
        max_buffer_bytes: largest,
        max_allocation_bytes: largest,
        max_storage_binding_bytes: largest,
        max_uniform_binding_bytes: largest,
        // A vec4 of 32-bit scalars is loaded whole. Kernels with wider vectors are checked for more at launch.
        storage_offset_alignment_bytes: 16,
        uniform_offset_alignment_bytes: 16,
        non_coherent_atom_bytes: 1,
        // The driver locks the pages around the bytes. Kernels want whole words.
        host_import_alignment_bytes: if attributes.host_register { 4 } else { 0 },
        max_groups: attributes.max_grid,
        max_workgroup_size: attributes.max_block,
        max_workgroup_invocations: attributes.max_threads,
        max_workgroup_bytes: u64::from(attributes.max_shared_bytes()),
        max_immediate_bytes: MAX_IMMEDIATE_BYTES,
        max_bind_groups: 32,
        max_storage_bindings: MAX_STORAGE_BINDINGS,
        max_uniform_bindings: MAX_UNIFORM_BINDINGS,
        subgroup_size: [attributes.warp; 2],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An H200 with driver 580, as measured.
    pub(crate) fn h200() -> Attributes {
        Attributes {
            capability: (9, 0),
            multiprocessors: 132,
            unified_addressing: true,
            can_map_host_memory: true,
            managed: true,
            concurrent_managed: true,
            host_pointer_for_registered: true,
            host_register: true,
            read_only_host_register: true,
            memory_pools: true,
            virtual_memory: true,
            posix_fd: true,
            fabric: true,
            dma_buf: true,
            pool_handle_types: 9,
            ipc_event: true,
            timeline_semaphores: true,
            async_engines: 3,
            l2_bytes: 60 << 20,
            warp: 32,
            max_threads: 1024,
            max_block: [1024, 1024, 64],
            max_grid: [0x7fff_ffff, 65_535, 65_535],
            shared_bytes: 48 << 10,
            shared_optin_bytes: 227 << 10,
            ..Attributes::default()
        }
    }

    #[test]
    fn parameters_fit_the_space_that_every_device_has() {
        let pointers = (MAX_STORAGE_BINDINGS + MAX_UNIFORM_BINDINGS) * (8 + 4);
        // Two grids of three words each are the rest of what a launch passes.
        assert!(pointers + MAX_IMMEDIATE_BYTES + 24 + 64 <= 4096);
    }

    #[test]
    fn unusable_devices_say_why() {
        assert_eq!(h200().rejected(), None);
        let old = Attributes { capability: (6, 1), ..h200() };
        assert!(old.rejected().unwrap().contains("6.1"));
        let prohibited = Attributes { compute_mode: 2, ..h200() };
        assert!(prohibited.rejected().unwrap().contains("prohibited"));
        let no_addressing = Attributes { unified_addressing: false, ..h200() };
        assert!(no_addressing.rejected().unwrap().contains("UNIFIED_ADDRESSING"));
    }

    #[test]
    fn limits_follow_the_attributes() {
        let limits = limits(&h200(), 139 << 30, 200 << 30);
        assert_eq!(limits.max_workgroup_bytes, 227 << 10);
        assert_eq!(limits.max_buffer_bytes, 200 << 30);
        assert_eq!(limits.host_import_alignment_bytes, 4);
        let none = Attributes { host_register: false, integrated: true, ..h200() };
        assert_eq!(super::limits(&none, 8 << 30, 16 << 30).host_import_alignment_bytes, 0);
        assert_eq!(super::limits(&none, 8 << 30, 16 << 30).max_buffer_bytes, 8 << 30);
    }
}
