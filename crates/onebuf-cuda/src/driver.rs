//! The driver's library: whether it is there, its version, and its answers as errors that a caller can act on.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use onebuf_core::{Error, Result};

use crate::{BACKEND, fork};

/// The oldest CUDA whose driver has every function that the backend calls without asking.
const OLDEST: Version = Version { major: 12, minor: 0 };

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Version {
    /// From CUDA's number, 13000 for 13.0.
    fn of(number: c_int) -> Version {
        let number = number.max(0) as u32;
        Version { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The driver, started.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// The newest CUDA that it serves.
    pub(crate) version: Version,
    /// Its own version, `580.95.05`, where the system says.
    pub(crate) release: Option<String>,
}

impl Driver {
    /// Loads and starts the driver, once for the process.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], which says what is missing and how to mend it.
    pub(crate) fn start() -> Result<Driver> {
        static STARTED: OnceLock<Result<Driver>> = OnceLock::new();
        fork::check()?;
        STARTED.get_or_init(start).clone()
    }
}

fn start() -> Result<Driver> {
    // SAFETY: looks for the library under its well-known names; its initialisers are those of every CUDA program.
    // cudarc panics when it calls into a library that is not there, so this comes before every other call.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable(missing_library()));
    }
    let mut number = 0;
    // SAFETY: the pointer is to a live integer. This function exists in every driver, and works before cuInit.
    let code = unsafe { sys::cuDriverGetVersion(&mut number) };
    let version = Version::of(number);
    if code != CUresult::CUDA_SUCCESS {
        return Err(unavailable(format!("cuDriverGetVersion answered {}", name(code))));
    }
    if version < OLDEST {
        return Err(unavailable(format!(
            "the NVIDIA driver serves CUDA {version}, and onebuf needs {OLDEST}; install driver 525 or newer"
        )));
    }
    // SAFETY: the flags must be 0.
    let code = unsafe { sys::cuInit(0) };
    if code != CUresult::CUDA_SUCCESS {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        return Err(unavailable(start_failure(code, visible.as_deref())));
    }
    fork::remember();
    Ok(Driver { version, release: release() })
}

fn unavailable(reason: String) -> Error {
    Error::BackendUnavailable { backend: BACKEND, reason }
}

fn missing_library() -> String {
    let has_device = std::fs::exists("/dev/nvidiactl").unwrap_or(false);
    let kernel_module = std::fs::exists("/proc/driver/nvidia/version").unwrap_or(false);
    let remedy = if has_device {
        "the device node /dev/nvidiactl is here, so the driver's user part is missing: in a container, start it with the \
         NVIDIA container toolkit (--gpus all) and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    } else if kernel_module {
        "the kernel module runs, and the container does not show it: start the container with the NVIDIA container \
         toolkit (--gpus all)"
    } else if is_wsl() {
        "under WSL2 it comes with the Windows driver, in /usr/lib/wsl/lib: put that on the loader's path"
    } else {
        "install the NVIDIA driver, or use another backend"
    };
    format!("the NVIDIA driver's library libcuda.so.1 could not be opened; {remedy}")
}

/// True in a virtual machine of the Windows Subsystem for Linux.
pub(crate) fn is_wsl() -> bool {
    std::fs::exists("/dev/dxg").unwrap_or(false)
}

fn start_failure(code: CUresult, visible_devices: Option<&str>) -> String {
    let remedy = match code {
        CUresult::CUDA_ERROR_NO_DEVICE => match visible_devices {
            Some(list) => format!(
                "the driver shows no GPU; CUDA_VISIBLE_DEVICES is \"{list}\": unset it, or name a GPU of `nvidia-smi -L`"
            ),
            None => "the driver finds no GPU that it serves; see `nvidia-smi`".to_owned(),
        },
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the library that was found is the toolkit's stub; take its folder off LD_LIBRARY_PATH".to_owned()
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "the system is not ready; on machines with NVSwitch start nvidia-fabricmanager".to_owned()
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the library and the kernel module do not fit; reboot after a driver's update, or remove the compatibility \
             package"
                .to_owned()
        }
        CUresult::CUDA_ERROR_OPERATING_SYSTEM | CUresult::CUDA_ERROR_UNKNOWN => {
            "often /dev/nvidia-uvm is missing or may not be opened: run `nvidia-modprobe -u`, and give the container the \
             device nodes"
                .to_owned()
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "every GPU is in exclusive use; see its compute mode in `nvidia-smi -q`".to_owned()
        }
        _ => "see `nvidia-smi`".to_owned(),
    };
    format!("cuInit answered {}: {remedy}", name(code))
}

/// The version of the kernel module, from `/proc/driver/nvidia/version`.
fn release() -> Option<String> {
    parse_release(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The first word of the first line that looks like a version: `580.95.05`.
fn parse_release(text: &str) -> Option<String> {
    let looks_right = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains('.')
            && word.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    text.lines().next()?.split_whitespace().find(looks_right).map(str::to_owned)
}

/// The name of an answer, as CUDA's headers have it.
pub(crate) fn name(code: CUresult) -> String {
    format!("{code:?}")
}

/// `Ok` for success, else the error for a failed `call`.
pub(crate) fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(error(call, code)) }
}

/// The error for a failed `call`. Out-of-memory answers lose their sizes here; allocation paths put them in.
pub(crate) fn error(call: &'static str, code: CUresult) -> Error {
    if let Some(what) = fatal(code) {
        return Error::DeviceLost(format!("{call} answered {}: {what}", name(code)));
    }
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Error::OutOfMemory { asked_bytes: 0, free_bytes: None, never_fits: false }
        }
        _ => Error::Driver { call, code: name(code) },
    }
}

/// The error for a failed allocation of `asked_bytes`.
pub(crate) fn allocation_error(
    call: &'static str,
    code: CUresult,
    asked_bytes: u64,
    free_bytes: Option<u64>,
) -> Error {
    match error(call, code) {
        Error::OutOfMemory { .. } => Error::OutOfMemory { asked_bytes, free_bytes, never_fits: false },
        other => other,
    }
}

/// What happened, where an answer means that the context is dead: every later call gives the same answer.
pub(crate) fn fatal(code: CUresult) -> Option<&'static str> {
    Some(match code {
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => "a kernel accessed memory that is not there",
        CUresult::CUDA_ERROR_MISALIGNED_ADDRESS => "a kernel accessed an address that is not aligned",
        CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE => "a kernel used an address of another address space",
        CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION | CUresult::CUDA_ERROR_INVALID_PC => {
            "a kernel ran into something that is no instruction"
        }
        CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR => "a kernel's stack overflowed",
        CUresult::CUDA_ERROR_LAUNCH_FAILED => "a kernel stopped with an exception",
        CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => "a kernel ran longer than the display's watchdog allows",
        CUresult::CUDA_ERROR_ASSERT => "a kernel's assertion failed",
        CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK => "a kernel left tensor memory allocated",
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => "memory had an error that could not be corrected",
        CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE => "NVLink had an error that could not be corrected",
        CUresult::CUDA_ERROR_CONTAINED => "an error of the hardware was contained",
        CUresult::CUDA_ERROR_EXTERNAL_DEVICE => "another device that shares work with this one failed",
        CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED => "the MPS server ended this client",
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => "somebody destroyed the device's primary context",
        CUresult::CUDA_ERROR_DEINITIALIZED => "the process is about to end, and the driver with it",
        _ => return None,
    })
}

/// The milliseconds between two events, by the function that this driver has: the second version is CUDA 12.8's, and
/// CUDA 13's headers know only that.
pub(crate) fn elapsed_ms(start: sys::CUevent, end: sys::CUevent) -> std::result::Result<f32, CUresult> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
    let mut ms = 0.0;
    // SAFETY: the library was loaded when the driver started; both names have this signature; the events are live.
    let code = unsafe {
        let library = sys::culib();
        let symbol = library
            .get::<Elapsed>(b"cuEventElapsedTime_v2\0")
            .or_else(|_| library.get::<Elapsed>(b"cuEventElapsedTime\0"));
        match symbol {
            Ok(elapsed) => elapsed(&mut ms, start, end),
            Err(_) => CUresult::CUDA_ERROR_NOT_FOUND,
        }
    };
    if code == CUresult::CUDA_SUCCESS { Ok(ms) } else { Err(code) }
}

/// The identity that every slice of one GPU has in common: what CUDA gave before it knew of slices. `None` where the
/// driver no longer tells.
pub(crate) fn parent_uuid(device: sys::CUdevice) -> Option<[u8; 16]> {
    type GetUuid = unsafe extern "C" fn(*mut sys::CUuuid, sys::CUdevice) -> CUresult;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: as above.
    let code = unsafe {
        match sys::culib().get::<GetUuid>(b"cuDeviceGetUuid\0") {
            Ok(get) => get(&mut uuid, device),
            Err(_) => return None,
        }
    };
    (code == CUresult::CUDA_SUCCESS).then(|| uuid.bytes.map(|byte: c_char| byte as u8))
}

/// Text that a driver's call wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_numbers() {
        assert_eq!(Version::of(13000), Version { major: 13, minor: 0 });
        assert_eq!(Version::of(12080).to_string(), "12.8");
        assert!(Version::of(11080) < OLDEST && Version::of(12000) >= OLDEST);
        assert_eq!(Version::of(-1), Version { major: 0, minor: 0 });
    }

    #[test]
    fn releases_are_read() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@b)\nGCC version: gcc 12.2.0\n";
        assert_eq!(parse_release(open).as_deref(), Some("580.95.05"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 2022";
        assert_eq!(parse_release(closed).as_deref(), Some("525.60.13"));
        assert_eq!(parse_release(""), None);
        assert_eq!(parse_release("no version here"), None);
    }

    #[test]
    fn answers_become_errors_that_can_be_acted_on() {
        assert_eq!(check("cuInit", CUresult::CUDA_SUCCESS), Ok(()));
        let lost = error("cuStreamSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert!(
            matches!(&lost, Error::DeviceLost(why) if why.contains("CUDA_ERROR_ILLEGAL_ADDRESS")),
            "{lost}"
        );
        assert!(matches!(error("cuLaunchKernel", CUresult::CUDA_ERROR_LAUNCH_FAILED), Error::DeviceLost(_)));
        assert_eq!(
            allocation_error("cuMemCreate", CUresult::CUDA_ERROR_OUT_OF_MEMORY, 4096, Some(7)),
            Error::OutOfMemory { asked_bytes: 4096, free_bytes: Some(7), never_fits: false }
        );
        assert_eq!(
            error("cuMemMap", CUresult::CUDA_ERROR_INVALID_VALUE),
            Error::Driver { call: "cuMemMap", code: "CUDA_ERROR_INVALID_VALUE".into() }
        );
        assert!(fatal(CUresult::CUDA_ERROR_NOT_READY).is_none());
        assert!(fatal(CUresult::CUDA_ERROR_OUT_OF_MEMORY).is_none());
    }

    #[test]
    fn a_refused_start_says_what_to_do() {
        let text = start_failure(CUresult::CUDA_ERROR_NO_DEVICE, Some("7"));
        assert!(text.contains("CUDA_VISIBLE_DEVICES is \"7\""), "{text}");
        assert!(start_failure(CUresult::CUDA_ERROR_STUB_LIBRARY, None).contains("stub"));
        assert!(start_failure(CUresult::CUDA_ERROR_UNKNOWN, None).contains("nvidia-uvm"));
        assert!(start_failure(CUresult::CUDA_ERROR_SYSTEM_NOT_READY, None).contains("fabricmanager"));
    }

    #[test]
    #[allow(clippy::print_stderr)] // What was not tested is said.
    fn without_a_driver_the_backend_says_so() {
        // SAFETY: looks for the library, as above.
        if unsafe { sys::is_culib_present() } {
            return eprintln!("a driver is here, so its absence was not tested");
        }
        let error = Driver::start().unwrap_err();
        let Error::BackendUnavailable { backend: "cuda", reason } = error else { panic!("{error}") };
        assert!(reason.contains("libcuda.so.1"), "{reason}");
    }
}
