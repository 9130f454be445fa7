//! Code that the driver has loaded: a module, its kernel, and what a launch of it passes.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction, CUfunction_attribute as Attribute, CUresult};
use onebuf_core::{Error, KernelInterface, Result};

use crate::adapter::Attributes;
use crate::context::Context;
use crate::driver;

/// One kernel, ready to launch.
pub(crate) struct Program {
    module: sys::CUmodule,
    pub(crate) function: CUfunction,
    /// What each parameter is, in order.
    pub(crate) params: Box<[Param]>,
    /// Workgroup memory that a launch gives, in bytes.
    pub(crate) dynamic_shared_bytes: u32,
    context: Arc<Context>,
}

// SAFETY: modules and functions are handles, and the driver's calls are thread-safe.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Param {
    /// The address of a binding's first byte. Addresses are multiples of `alignment_bytes`.
    Pointer { binding: usize, alignment_bytes: u64 },
    /// A `u32`: the elements of the array that ends a binding, from its offset and stride in bytes.
    Length { binding: usize, offset_bytes: u64, stride_bytes: u64 },
    /// The immediates, by value.
    Immediates { size_bytes: u32 },
    /// Three `u32`: the first workgroup of a part of a grid.
    GridBase,
    /// Three `u32`: the workgroups of the whole grid.
    GridGroups,
}

/// What the driver loads.
#[derive(Clone, Copy)]
pub(crate) enum Image<'a> {
    Cubin(&'a [u8]),
    Ptx(&'a str),
}

impl Program {
    /// Loads an image and finds its kernel. The context is current.
    ///
    /// `dynamic_shared_bytes` is what a launch gives; where it is `None`, what the interface has beyond what the kernel
    /// declares.
    pub(crate) fn load(
        context: &Arc<Context>,
        attributes: &Attributes,
        image: Image<'_>,
        name: &str,
        interface: &KernelInterface,
        params: Vec<Param>,
        dynamic_shared_bytes: Option<u64>,
    ) -> Result<Program> {
        let module = load(image, &interface.entry)?;
        // Made whole at once, so that an error below unloads the module.
        let mut program = Program {
            module,
            function: std::ptr::null_mut(),
            params: params.into(),
            dynamic_shared_bytes: 0,
            context: context.clone(),
        };
        let c_name =
            CString::new(name).map_err(|_| invalid(format!("the kernel's name `{name}` has a NUL")))?;
        // SAFETY: the module is live, the name ends in NUL, and the pointer is to a live handle.
        let code = unsafe { sys::cuModuleGetFunction(&mut program.function, module, c_name.as_ptr()) };
        if code == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(invalid(format!(
                "the code has no kernel `{name}`; declare it `extern \"C\" __global__`, so that its name is not mangled"
            )));
        }
        driver::check("cuModuleGetFunction", code)?;
        program.check_threads(interface)?;
        program.give_shared(attributes, interface, dynamic_shared_bytes)?;
        Ok(program)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u64> {
        let mut value: c_int = 0;
        // SAFETY: the function is of a live module, and the pointer is to a live integer.
        let code = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, self.function) };
        driver::check("cuFuncGetAttribute", code)?;
        Ok(value.max(0) as u64)
    }

    /// Registers may allow fewer threads than the device.
    fn check_threads(&self, interface: &KernelInterface) -> Result<()> {
        let most = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        let what = format!(
            "kernel `{}`: invocations in a workgroup, with the registers that it needs",
            interface.entry
        );
        Error::check_limit(&what, interface.invocations(), most)
    }

    /// Settles the workgroup memory of a launch, and opts in to more than the default where that is needed.
    fn give_shared(
        &mut self,
        attributes: &Attributes,
        interface: &KernelInterface,
        dynamic: Option<u64>,
    ) -> Result<()> {
        let declared = self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic = dynamic.unwrap_or_else(|| interface.workgroup_bytes.saturating_sub(declared));
        match shared_need(attributes, declared, dynamic) {
            SharedNeed::Default => {}
            SharedNeed::OptIn => {
                let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is of a live module, and the size is within the device's limit.
                let code = unsafe { sys::cuFuncSetAttribute(self.function, attribute, dynamic as c_int) };
                driver::check("cuFuncSetAttribute", code)?;
            }
            SharedNeed::TooMuch { available } => {
                return Err(Error::LimitExceeded {
                    what: format!("kernel `{}`: bytes of workgroup memory", interface.entry),
                    required: declared + dynamic,
                    available,
                });
            }
        }
        self.dynamic_shared_bytes = dynamic as u32;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: queued work keeps the code it uses alive, so none uses the module.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// What a kernel's workgroup memory asks of a device.
#[derive(Debug, PartialEq, Eq)]
enum SharedNeed {
    /// Every launch may have it.
    Default,
    /// The function must opt in.
    OptIn,
    /// The device has less.
    TooMuch { available: u64 },
}

/// Static and dynamic memory count together, and exactly the default still is the default.
fn shared_need(attributes: &Attributes, declared: u64, dynamic: u64) -> SharedNeed {
    let (default, most) = (u64::from(attributes.shared_bytes), u64::from(attributes.shared_optin_bytes));
    let need = declared.saturating_add(dynamic);
    if need <= default {
        SharedNeed::Default
    } else if need <= most {
        SharedNeed::OptIn
    } else {
        SharedNeed::TooMuch { available: most.max(default) }
    }
}

fn invalid(message: String) -> Error {
    Error::InvalidKernel { message, line: None }
}

/// Bytes for what the driver's compiler says of PTX.
const LOG_BYTES: usize = 8192;

fn load(image: Image<'_>, entry: &str) -> Result<sys::CUmodule> {
    let mut module = std::ptr::null_mut();
    let mut log = vec![0u8; LOG_BYTES];
    let text;
    let data = match image {
        Image::Cubin(bytes) => bytes.as_ptr().cast::<c_void>(),
        Image::Ptx(ptx) => {
            text = CString::new(ptx).map_err(|_| invalid(format!("the PTX of `{entry}` has a NUL")))?;
            text.as_ptr().cast::<c_void>()
        }
    };
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size is passed in place of a pointer, as the driver wants it.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let count = options.len() as u32;
    // SAFETY: the image is a whole cubin, by its checksum or fresh from the compiler, or text that ends in NUL; options and
    // values are as many as said, and the log outlives the call.
    let code = unsafe {
        sys::cuModuleLoadDataEx(&mut module, data, count, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if code == CUresult::CUDA_SUCCESS {
        return Ok(module);
    }
    let log = driver::text(&log);
    let line = log_line(&log);
    let reason = match code {
        CUresult::CUDA_ERROR_INVALID_PTX | CUresult::CUDA_ERROR_INVALID_SOURCE => "it is not valid",
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "it is of a newer CUDA than the driver serves",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "it is for another GPU",
        CUresult::CUDA_ERROR_INVALID_IMAGE => "it is no code that this driver loads",
        CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
            "the driver's compiler libnvidia-ptxjitcompiler.so.1 is missing; it is part of the driver"
        }
        _ => return Err(driver::error("cuModuleLoadDataEx", code)),
    };
    let language = if matches!(image, Image::Ptx(_)) { "PTX" } else { "machine code" };
    let mut message = format!(
        "the {language} of `{entry}` was refused: {reason} (cuModuleLoadDataEx answered {})",
        driver::name(code)
    );
    if !log.trim().is_empty() {
        message.push('\n');
        message.push_str(log.trim());
    }
    Err(Error::InvalidKernel { message, line })
}

/// The line of the source that the driver's compiler names first: `ptxas application ptx input, line 7; ...`.
fn log_line(log: &str) -> Option<u32> {
    let after = log.split_once(", line ")?.1;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::h200;

    #[test]
    fn workgroup_memory_is_counted_to_the_byte() {
        let device = h200();
        let default = 48 << 10;
        let most = 227 << 10;
        assert_eq!(shared_need(&device, 0, 0), SharedNeed::Default);
        assert_eq!(shared_need(&device, 0, default), SharedNeed::Default);
        assert_eq!(shared_need(&device, default, 0), SharedNeed::Default);
        assert_eq!(shared_need(&device, 1, default), SharedNeed::OptIn);
        assert_eq!(shared_need(&device, 0, default + 1), SharedNeed::OptIn);
        assert_eq!(shared_need(&device, 0, most), SharedNeed::OptIn);
        assert_eq!(shared_need(&device, 16, most), SharedNeed::TooMuch { available: most });
        assert_eq!(shared_need(&device, u64::MAX, 1), SharedNeed::TooMuch { available: most });
        let no_opt_in = Attributes { shared_optin_bytes: 0, ..device };
        assert_eq!(shared_need(&no_opt_in, 0, default + 1), SharedNeed::TooMuch { available: default });
    }

    #[test]
    fn lines_are_found_in_the_log() {
        assert_eq!(
            log_line("ptxas application ptx input, line 7; fatal   : Parsing error near 'x'"),
            Some(7)
        );
        assert_eq!(log_line("ptxas fatal   : Ptx assembly aborted due to errors"), None);
        assert_eq!(log_line(""), None);
    }
}
