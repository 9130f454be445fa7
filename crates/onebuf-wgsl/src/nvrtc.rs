//! NVRTC, NVIDIA's compiler as a library: loaded at run time, needing neither a GPU nor a driver.
//!
//! The library comes with the CUDA toolkit, with the driver's container images, and as the Python package
//! `nvidia-cuda-nvrtc`.

use std::{
    env,
    ffi::{CStr, CString, OsString, c_char, c_int, c_void},
    ptr,
};

use libloading::Library;

use crate::CudaSource;

/// The variable that names the library, before the usual names are tried.
pub const PATH_VARIABLE: &str = "ONEBUF_NVRTC";

const USUAL_NAMES: [&str; 6] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so",
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
    "libnvrtc.so.11.2",
];

/// Why NVRTC could not be used, or what it refused.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvrtcError {
    /// No library was found.
    #[error(
        "no NVRTC: {reason}; set {PATH_VARIABLE} to the path of libnvrtc.so, which `pip install nvidia-cuda-nvrtc` brings"
    )]
    Missing {
        /// What the loader said of each name.
        reason: String,
    },
    /// The source did not compile.
    #[error("NVRTC refused the source for {architecture}:\n{log}")]
    Compile {
        /// The asked architecture.
        architecture: String,
        /// NVRTC's messages.
        log: String,
    },
    /// A call failed for another reason.
    #[error("{call} failed: {message}")]
    Call {
        /// The function.
        call: &'static str,
        /// What NVRTC calls the error.
        message: String,
    },
    /// A string holds a NUL, which no C string can.
    #[error("the {what} holds a NUL character")]
    Nul {
        /// Which string.
        what: &'static str,
    },
}

/// What NVRTC made of a source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code for the asked architecture.
    pub cubin: Vec<u8>,
    /// Warnings and remarks.
    pub log: String,
}

type Program = *mut c_void;
type Status = c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> Status;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> Status;

/// The loaded library.
pub struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: GetSize,
    log: GetBytes,
    cubin_size: GetSize,
    cubin: GetBytes,
    // Last, so that the functions are never there without it.
    _library: Library,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("version", &self.version().ok()).finish()
    }
}

impl Nvrtc {
    /// Loads the library named by [`PATH_VARIABLE`], or the first of the usual names that the loader finds.
    ///
    /// # Errors
    /// [`NvrtcError::Missing`].
    pub fn load() -> Result<Nvrtc, NvrtcError> {
        if let Some(path) = env::var_os(PATH_VARIABLE) {
            return Nvrtc::open(path);
        }
        let mut reasons = Vec::new();
        for name in USUAL_NAMES {
            match Nvrtc::open(OsString::from(name)) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(NvrtcError::Missing { reason }) => reasons.push(reason),
                Err(error) => return Err(error),
            }
        }
        Err(NvrtcError::Missing { reason: reasons.join("; ") })
    }

    fn open(path: OsString) -> Result<Nvrtc, NvrtcError> {
        let missing = |error: libloading::Error| NvrtcError::Missing { reason: error.to_string() };
        // SAFETY: running NVRTC's initializers has no preconditions; the name is NVRTC's or the user's choice.
        let library = unsafe { Library::new(&path) }.map_err(missing)?;
        // SAFETY: each name is loaded with the type that nvrtc.h declares for it in every version from CUDA 11 on.
        unsafe {
            Ok(Nvrtc {
                version: *library.get(b"nvrtcVersion\0").map_err(missing)?,
                error_string: *library.get(b"nvrtcGetErrorString\0").map_err(missing)?,
                create: *library.get(b"nvrtcCreateProgram\0").map_err(missing)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(missing)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(missing)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").map_err(missing)?,
                log: *library.get(b"nvrtcGetProgramLog\0").map_err(missing)?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0").map_err(missing)?,
                cubin: *library.get(b"nvrtcGetCUBIN\0").map_err(missing)?,
                _library: library,
            })
        }
    }

    /// NVRTC's version, as (12, 4).
    ///
    /// # Errors
    /// [`NvrtcError::Call`].
    pub fn version(&self) -> Result<(i32, i32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to integers that outlive the call.
        self.check("nvrtcVersion", unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok((major, minor))
    }

    /// Compiles a translated kernel for an architecture, as `sm_80`.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with NVRTC's messages.
    pub fn compile(
        &self,
        source: &CudaSource,
        architecture: &str,
        more: &[&str],
    ) -> Result<Compiled, NvrtcError> {
        let mut options = source.nvrtc_options();
        options.extend_from_slice(more);
        self.compile_text(&source.code(), &source.kernel_name, architecture, &options)
    }

    /// Compiles any CUDA C++.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with NVRTC's messages.
    pub fn compile_text(
        &self,
        text: &str,
        name: &str,
        architecture: &str,
        options: &[&str],
    ) -> Result<Compiled, NvrtcError> {
        let c_string = |text: &str, what| CString::new(text).map_err(|_| NvrtcError::Nul { what });
        let (text, name) = (c_string(text, "source")?, c_string(name, "name")?);
        let mut owned = vec![c_string(&format!("--gpu-architecture={architecture}"), "architecture")?];
        for option in options {
            owned.push(c_string(option, "option")?);
        }
        let pointers: Vec<*const c_char> = owned.iter().map(|option| option.as_ptr()).collect();
        let mut handle = ptr::null_mut();
        // SAFETY: both strings end in NUL and outlive the call; with no headers the two arrays may be null.
        let status =
            unsafe { (self.create)(&mut handle, text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        self.check("nvrtcCreateProgram", status)?;
        let program = OwnedProgram { nvrtc: self, handle };
        // SAFETY: the program is live, and `pointers` holds as many strings as it says, which outlive the call.
        let status = unsafe { (self.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.bytes("nvrtcGetProgramLog", self.log_size, self.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim_end().to_owned();
        if status != 0 {
            return Err(NvrtcError::Compile { architecture: architecture.to_owned(), log });
        }
        let cubin = program.bytes("nvrtcGetCUBIN", self.cubin_size, self.cubin)?;
        Ok(Compiled { cubin, log })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), NvrtcError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any status, and returns a static string or null.
        let text = unsafe { (self.error_string)(status) };
        let message = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: a string that is not null ends in NUL and is static.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(NvrtcError::Call { call, message })
    }
}

struct OwnedProgram<'a> {
    nvrtc: &'a Nvrtc,
    handle: Program,
}

impl OwnedProgram<'_> {
    fn bytes(&self, call: &'static str, size: GetSize, get: GetBytes) -> Result<Vec<u8>, NvrtcError> {
        let mut length = 0usize;
        // SAFETY: the program is live, and the size goes to an integer that outlives the call.
        self.nvrtc.check(call, unsafe { size(self.handle, &mut length) })?;
        let mut bytes = vec![0u8; length];
        // SAFETY: the buffer has the length that NVRTC has just asked for.
        self.nvrtc.check(call, unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
        unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}
