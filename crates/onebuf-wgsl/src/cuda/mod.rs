//! CUDA C++ out: naga's IR printed for NVRTC.
//!
//! The printed source needs no header. It has two parts: a prelude that gives WGSL's types and built-ins their meaning in
//! C++, and the kernel, whose names are those of the source.
//!
//! | file | what is in it |
//! |---|---|
//! | `module` | constants, memory, parameters, the kernel |
//! | `function`, `statement`, `expression` | the code of a function |
//! | `types`, `literal`, `names`, `builtins` | the words it is made of |
//! | `uniformity` | which subgroup operations all threads of a subgroup reach together |
//! | `unroll` | which loops are worth unrolling whole |
//! | `prelude/*.cuh` | the prelude |
//!
//! How it keeps WGSL's meaning:
//!
//! - **Loads stay where they are.** A load is named where naga emits it; a pointer is never kept but printed at each use.
//! - **Integers wrap.** Signed arithmetic is done in unsigned; division is guarded; shift amounts are masked.
//! - **Buffers are checked by length**: an access out of range reads zero or is dropped, and other arrays are clamped.
//! - **Memory is laid out by naga's offsets**, and assertions in the printed source say so.
//! - **Private variables are a struct on the thread's stack**, which inlining turns into registers.

mod builtins;
mod expression;
mod function;
mod literal;
mod module;
mod names;
mod operands;
mod prelude;
mod ranges;
mod statement;
mod types;
mod uniformity;
mod unroll;

use crate::{Bounds, Error, Specialized, stack};

/// How exact floating point is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Math {
    /// CUDA's functions as they are, within a few units in the last place; IEEE division and square root.
    #[default]
    Precise,
    /// The hardware's approximations, with denormals flushed: what WGSL's table of accuracies allows, and no more.
    Fast,
}

/// How CUDA C++ is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CudaOptions {
    /// What an access out of range does. Without checks one such access ends the whole CUDA context.
    pub bounds: Bounds,
    /// How exact floating point is.
    pub math: Math,
    /// Take the first workgroup and the size of the whole grid as parameters, for grids of which a launch is one part.
    pub wide_grid: bool,
}

/// One parameter of the kernel, in the order of [`CudaSource::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CudaParam {
    /// A device pointer to the binding at this place in `KernelInterface::bindings`, offset included. It must be aligned
    /// as the binding's type is, for which 16 bytes are always enough but for 32 with `vec3` and `vec4` of 64-bit
    /// scalars. Bindings of which one is written must not overlap: the parameters are `__restrict__`.
    Buffer {
        /// Index into `KernelInterface::bindings`.
        binding: usize,
    },
    /// A `u32`: how many elements the runtime-sized array at the end of that binding has. That is
    /// (bytes bound - offset of the array) / stride, rounded down, where the offset is `min_bytes - stride_bytes`. At
    /// least one.
    Length {
        /// Index into `KernelInterface::bindings`.
        binding: usize,
    },
    /// The `var<immediate>`, by value, in WGSL's layout.
    Immediates {
        /// Its size.
        size_bytes: u32,
    },
    /// Three `u32`: the first workgroup of this launch in the whole grid. With [`CudaOptions::wide_grid`] alone.
    GridBase,
    /// Three `u32`: the workgroups of the whole grid. With [`CudaOptions::wide_grid`] alone.
    GridGroups,
}

/// A kernel as CUDA C++.
///
/// Compile `prelude` and `kernel` as one source with [`CudaSource::nvrtc_options`], and launch
/// [`CudaSource::kernel_name`] with blocks of the interface's workgroup size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaSource {
    /// WGSL's types and built-ins, as far as the kernel uses them.
    pub prelude: String,
    /// The kernel itself.
    pub kernel: String,
    /// The name of the kernel, which is not mangled.
    pub kernel_name: String,
    /// What each parameter of the kernel is.
    pub params: Vec<CudaParam>,
    /// Workgroup memory that the kernel declares itself.
    pub static_shared_bytes: u64,
    /// Workgroup memory that the host gives at launch. It is more than 48 KiB, so that the host must first raise
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub dynamic_shared_bytes: u64,
    math: Math,
}

impl CudaSource {
    /// Prelude and kernel, as one source.
    pub fn code(&self) -> String {
        format!("{}\n{}", self.prelude, self.kernel)
    }

    /// The options for NVRTC, but for `--gpu-architecture`.
    pub fn nvrtc_options(&self) -> Vec<&'static str> {
        let mut options = vec!["--std=c++17"];
        if self.math == Math::Fast {
            options.push("--use_fast_math");
        }
        options
    }
}

/// The whole prelude, for those who compile several kernels as one source.
pub fn cuda_prelude() -> String {
    prelude::whole()
}

/// Why a module cannot be printed: a sentence for [`Error::Write`].
#[derive(Debug)]
pub(crate) struct Fault(String);

impl Specialized {
    /// Writes the entry point as CUDA C++.
    ///
    /// # Errors
    /// [`Error::Write`] where CUDA cannot have what the kernel asks, as a workgroup of more than 1024 invocations.
    pub fn to_cuda(&self, options: &CudaOptions) -> Result<CudaSource, Error> {
        let entry = self.interface.entry.clone();
        let failed = |reason: String| Error::Write { entry: entry.clone(), target: "CUDA C++", reason };
        let threads = self.interface.invocations();
        if threads > 1024 || self.interface.workgroup_size[2] > 64 {
            let [x, y, z] = self.interface.workgroup_size;
            return Err(failed(format!(
                "a workgroup of {x} x {y} x {z} invocations; CUDA allows 1024 in all, and 64 along z"
            )));
        }
        if self.interface.immediate_bytes > 4000 {
            return Err(failed(format!(
                "{} bytes of immediates; CUDA allows about 4000 beside the bindings",
                self.interface.immediate_bytes
            )));
        }
        stack::run(|| {
            let names = names::Names::new(&self.ir);
            let writer = module::ModuleWriter::new(self, options, &names).map_err(|fault| failed(fault.0))?;
            let printed = writer.write().map_err(|fault| failed(fault.0))?;
            let shared_bytes = self.interface.workgroup_bytes.next_multiple_of(16);
            let (static_shared_bytes, dynamic_shared_bytes) =
                if writer.dynamic_shared { (0, shared_bytes) } else { (shared_bytes, 0) };
            Ok(CudaSource {
                prelude: prelude::assemble(&printed.body, self.interface.features),
                kernel: printed.body,
                kernel_name: printed.kernel_name,
                params: printed.params,
                static_shared_bytes,
                dynamic_shared_bytes,
                math: options.math,
            })
        })
    }
}
