//! The structures and constants of `dlpack.h`, version 1.

use std::ffi::c_void;

/// The version of the structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Version {
    /// Another one means another layout.
    pub major: u32,
    /// A newer one knows more devices and types.
    pub minor: u32,
}

/// What exports are written as.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// Where memory lies, and who may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Device {
    /// `DLDeviceType`.
    pub kind: i32,
    /// Which of these; 0 for memory of the CPU, and for page-locked and managed memory by the letter of the standard.
    pub id: i32,
}

impl Device {
    /// The CPU's memory.
    pub const CPU: Device = Device { kind: kind::CPU, id: 0 };

    /// A device of CUDA, by its number among the visible ones.
    pub const fn cuda(id: i32) -> Device {
        Device { kind: kind::CUDA, id }
    }

    /// The CPU's memory, page-locked by CUDA.
    pub const CUDA_HOST: Device = Device { kind: kind::CUDA_HOST, id: 0 };

    /// CUDA's managed memory. CuPy and others look at the number to find the device.
    pub const fn cuda_managed(id: i32) -> Device {
        Device { kind: kind::CUDA_MANAGED, id }
    }

    /// Whether the CPU may read and write the memory at the address that the tensor has.
    pub const fn is_host_visible(self) -> bool {
        matches!(self.kind, kind::CPU | kind::CUDA_HOST | kind::CUDA_MANAGED)
    }

    /// Whether CUDA may use the address that the tensor has.
    pub const fn is_cuda_visible(self) -> bool {
        matches!(self.kind, kind::CUDA | kind::CUDA_HOST | kind::CUDA_MANAGED)
    }
}

/// Values of `DLDeviceType`.
pub mod kind {
    /// `kDLCPU`.
    pub const CPU: i32 = 1;
    /// `kDLCUDA`.
    pub const CUDA: i32 = 2;
    /// `kDLCUDAHost`.
    pub const CUDA_HOST: i32 = 3;
    /// `kDLCUDAManaged`.
    pub const CUDA_MANAGED: i32 = 13;
    /// The highest that the standard has given out (`kDLTrn`); 5 and 6 are free.
    pub const LAST: i32 = 18;
}

/// The tensor may only be read.
pub const READ_ONLY: u64 = 1;
/// The producer made a copy for this export.
pub const IS_COPIED: u64 = 2;
/// Elements of less than a byte have a byte each.
pub const SUB_BYTE_PADDED: u64 = 4;

/// `DLDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RawDataType {
    /// `DLDataTypeCode`.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Scalars of one element.
    pub lanes: u16,
}

/// `DLTensor`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawTensor {
    /// The memory; the first element is `byte_offset` behind it.
    pub data: *mut c_void,
    /// Where the memory lies.
    pub device: Device,
    /// Dimensions.
    pub ndim: i32,
    /// The element type.
    pub dtype: RawDataType,
    /// Elements along each dimension.
    pub shape: *mut i64,
    /// Elements from one index to the next, or null for the order of C.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`, the form before versions.
#[derive(Debug)]
#[repr(C)]
pub struct Legacy {
    /// The tensor.
    pub tensor: RawTensor,
    /// The producer's.
    pub context: *mut c_void,
    /// Frees the structure and what is behind it. It is called once, on any thread.
    pub deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// `DLManagedTensorVersioned`.
#[derive(Debug)]
#[repr(C)]
pub struct Versioned {
    /// The version of what follows.
    pub version: Version,
    /// The producer's.
    pub context: *mut c_void,
    /// As in [`Legacy`].
    pub deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    /// [`READ_ONLY`], [`IS_COPIED`], [`SUB_BYTE_PADDED`].
    pub flags: u64,
    /// The tensor.
    pub tensor: RawTensor,
}
