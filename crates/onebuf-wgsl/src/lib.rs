//! WGSL in; validation, reflection, SPIR-V and CUDA C++ out.
//!
//! A source goes through three types, each of which can do less wrong than the one before:
//!
//! | type | what it is | module |
//! |---|---|---|
//! | [`Module`] | parsed and validated WGSL | `module` |
//! | [`Specialized`] | one entry point, overrides replaced by values, unused parts left out | `specialize` |
//! | [`Spirv`] | what a Vulkan driver takes | `spirv` |
//! | [`CudaSource`] | CUDA C++ that NVRTC takes, and how to launch it | `cuda` |
//!
//! [`Specialized::interface`] is what a host needs to know: bindings with what the kernel does to each, immediates,
//! workgroup memory, features (`reflect`).
//!
//! - **No input makes it panic or overflow the stack.** Sources are limited in depth before they are parsed
//!   (`nesting`), and passes run on a thread of their own with a large stack, where a panic becomes an error (`stack`).
//! - **Errors are places in the source.** [`Error`] shows the line with a caret and carries its position.
//! - **Only what the entry point uses counts**: for bindings, for features, and for what is refused (`unsupported`).
//!
//! ```
//! use onebuf_core::kernel::{Access, Override};
//! use onebuf_wgsl::{CudaOptions, Module, SpirvOptions};
//!
//! let module = Module::parse(
//!     "
//!     override SIZE: u32 = 64;
//!     @group(0) @binding(0) var<storage> x: array<f32>;
//!     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
//!     var<immediate> a: f32;
//!
//!     @compute @workgroup_size(SIZE)
//!     fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
//!         if id.x < arrayLength(&y) { y[id.x] += a * x[id.x]; }
//!     }",
//! )?;
//! assert_eq!(module.entry_points().collect::<Vec<_>>(), ["saxpy"]);
//!
//! let kernel = module.specialize(None, &[Override { name: "SIZE".to_owned(), value: 128.0 }])?;
//! let interface = kernel.interface();
//! assert_eq!(interface.workgroup_size, [128, 1, 1]);
//! assert_eq!(interface.bindings[0].access, Access::Read);
//! assert_eq!(interface.bindings[1].access, Access::ReadWrite);
//! assert_eq!(interface.immediate_bytes, 4);
//!
//! let spirv = kernel.to_spirv(&SpirvOptions::default())?;
//! assert_eq!(spirv.words[0], 0x0723_0203);
//!
//! let cuda = kernel.to_cuda(&CudaOptions::default())?;
//! assert!(cuda.kernel.contains("__global__ void __launch_bounds__(128) kernel_saxpy("));
//! # Ok::<(), onebuf_wgsl::Error>(())
//! ```
#![cfg_attr(not(feature = "nvrtc"), forbid(unsafe_code))]
#![cfg_attr(feature = "nvrtc", deny(unsafe_code))]

mod cuda;
mod error;
mod immediates;
mod module;
mod nesting;
#[cfg(feature = "nvrtc")]
#[allow(unsafe_code)]
pub mod nvrtc;
mod reflect;
mod specialize;
mod spirv;
mod stack;
mod unsupported;

pub use cuda::{CudaOptions, CudaParam, CudaSource, Math, cuda_prelude};
pub use error::{Diagnostic, Error, Location};
pub use immediates::MAX_IMMEDIATE_BYTES;
pub use module::{Module, OverrideDefault, OverrideInfo};
pub use specialize::Specialized;
pub use spirv::{Bounds, Spirv, SpirvOptions};
