//! Kernels: WGSL, CUDA C++ and PTX compiled, with machine code cached on disk.
//!
//! A cached kernel needs no compiler: NVRTC is looked for only when something must be compiled.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use onebuf_cache::Key;
use onebuf_core::backend::{Bounds, Kernel, KernelRequest, KernelSource};
use onebuf_core::{Error, KernelInterface, Result, args};
use onebuf_wgsl::nvrtc::{Nvrtc, NvrtcError};
use onebuf_wgsl::{CudaOptions as WgslOptions, Math, Module, Specialized};

use crate::nvtx;
use crate::params;
use crate::program::{Image, Param, Program};
use crate::shared::Shared;

/// The options for CUDA C++ that a program gives.
const NATIVE_OPTIONS: [&str; 1] = ["--std=c++17"];

/// A kernel of this backend.
pub(crate) struct CudaKernel {
    pub(crate) code: Arc<KernelCode>,
}

/// What queued work needs of a kernel.
pub(crate) struct KernelCode {
    pub(crate) interface: KernelInterface,
    pub(crate) program: Program,
    /// The variant for grids larger than one launch, made when one comes.
    wide: OnceLock<Result<Program>>,
    source: Source,
    cached: Option<bool>,
    /// Workgroups along x, y, z that one launch takes.
    pub(crate) max_groups: [u32; 3],
    /// Last, so that the device outlives the code on it.
    shared: Arc<Shared>,
}

/// What the wide variant is made from.
enum Source {
    Wgsl { kernel: Box<Specialized>, bounds: Bounds },
    Native(&'static str),
}

/// Code on its way to the driver.
struct Job<'a> {
    text: &'a str,
    /// The kernel's name in it.
    name: &'a str,
    options: &'a [&'a str],
    params: Vec<Param>,
    /// `None` where the interface decides.
    dynamic_shared_bytes: Option<u64>,
}

impl CudaKernel {
    /// Compiles the first source that CUDA takes.
    pub(crate) fn compile(shared: &Arc<Shared>, request: &KernelRequest<'_>) -> Result<CudaKernel> {
        let _entered = shared.enter()?;
        let understood = |source: &&KernelSource<'_>| !matches!(source, KernelSource::SpirV(..));
        let source = request.sources.iter().find(understood);
        let source = source.ok_or_else(|| request.no_source_for("CUDA", "WGSL, CUDA C++ and PTX"))?;
        let limits = &shared.physical.info.limits;
        let features = shared.physical.info.features;
        let (interface, program, cached, source) = match *source {
            KernelSource::Wgsl(text) => {
                let kernel = Module::parse(text)
                    .and_then(|module| module.specialize(request.entry, request.overrides))
                    .map_err(invalid)?;
                args::check_interface(kernel.interface(), limits, features)?;
                let (program, cached) = compile_wgsl(shared, &kernel, request.bounds, false)?;
                let interface = kernel.interface().clone();
                let source = Source::Wgsl { kernel: Box::new(kernel), bounds: request.bounds };
                (interface, program, Some(cached), source)
            }
            KernelSource::CudaC(text, interface) => {
                args::check_interface(interface, limits, features)?;
                let job = Job {
                    text,
                    name: &interface.entry,
                    options: &NATIVE_OPTIONS,
                    params: params::of_native(interface),
                    dynamic_shared_bytes: None,
                };
                let (program, cached) = build(shared, interface, job)?;
                (interface.clone(), program, Some(cached), Source::Native("CUDA C++"))
            }
            KernelSource::Ptx(text, interface) => {
                args::check_interface(interface, limits, features)?;
                let params = params::of_native(interface);
                // The driver has a cache of its own for what it compiles, and does not tell of it.
                let image = Image::Ptx(text);
                let program = load(shared, image, &interface.entry, interface, params, None)?;
                (interface.clone(), program, None, Source::Native("PTX"))
            }
            KernelSource::SpirV(..) => {
                return Err(request.no_source_for("CUDA", "WGSL, CUDA C++ and PTX"));
            }
        };
        let max_groups = limits.max_groups.map(|most| most.max(1));
        let (wide, shared) = (OnceLock::new(), shared.clone());
        let code = KernelCode { interface, program, wide, source, cached, max_groups, shared };
        Ok(CudaKernel { code: Arc::new(code) })
    }
}

impl Kernel for CudaKernel {
    fn interface(&self) -> &KernelInterface {
        &self.code.interface
    }

    fn was_cached(&self) -> Option<bool> {
        self.code.cached
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl KernelCode {
    /// The program for a grid that one launch cannot cover. The context is current.
    pub(crate) fn wide(&self) -> Result<&Program> {
        self.wide.get_or_init(|| self.compile_wide()).as_ref().map_err(Clone::clone)
    }

    fn compile_wide(&self) -> Result<Program> {
        match &self.source {
            Source::Wgsl { kernel, bounds } => {
                compile_wgsl(&self.shared, kernel, *bounds, true).map(|(program, _)| program)
            }
            Source::Native(language) => Err(Error::unsupported(
                format!("a grid past the device's limit for kernel `{}`", self.interface.entry),
                format!("kernels given as {language} are not split; launch parts of the grid"),
            )),
        }
    }

    /// Whether a grid is past what one launch covers.
    pub(crate) fn is_split(&self, groups: [u32; 3]) -> bool {
        let [x, y, z] = self.max_groups;
        groups[0] > x || groups[1] > y || groups[2] > z
    }
}

/// The backend's kernel behind a launch.
pub(crate) fn code(kernel: &Arc<dyn Kernel>) -> Result<&Arc<KernelCode>> {
    let kernel: Option<&CudaKernel> = kernel.as_any().downcast_ref();
    kernel
        .map(|kernel| &kernel.code)
        .ok_or_else(|| Error::InvalidArgument("the kernel was not compiled by the CUDA backend".into()))
}

fn compile_wgsl(
    shared: &Arc<Shared>,
    kernel: &Specialized,
    bounds: Bounds,
    wide_grid: bool,
) -> Result<(Program, bool)> {
    let options = WgslOptions {
        bounds: match bounds {
            Bounds::Checked => onebuf_wgsl::Bounds::Checked,
            Bounds::Unchecked => onebuf_wgsl::Bounds::Unchecked,
        },
        math: if shared.options.fast_math { Math::Fast } else { Math::Precise },
        wide_grid,
    };
    let source = kernel.to_cuda(&options).map_err(invalid)?;
    let job = Job {
        text: &source.code(),
        name: &source.kernel_name,
        options: &source.nvrtc_options(),
        params: params::from_wgsl(kernel.interface(), &source.params),
        dynamic_shared_bytes: Some(source.dynamic_shared_bytes),
    };
    build(shared, kernel.interface(), job)
}

/// Machine code from the cache or the compiler, loaded; and whether the cache had it.
fn build(shared: &Arc<Shared>, interface: &KernelInterface, job: Job<'_>) -> Result<(Program, bool)> {
    let _range = nvtx::range(|| format!("compile `{}`", interface.entry));
    let (major, minor) = shared.physical.attributes.capability;
    let key = cache_key(shared, &job);
    let Job { text, name, options, params, dynamic_shared_bytes } = job;
    if let Some(cubin) = shared.cache.load(&key).as_deref().and_then(current_cubin) {
        match load(shared, Image::Cubin(cubin), name, interface, params.clone(), dynamic_shared_bytes) {
            Ok(program) => return Ok((program, true)),
            // A driver that refuses what it once took gets it fresh.
            Err(Error::InvalidKernel { .. }) => shared.cache.remove(&key),
            Err(other) => return Err(other),
        }
    }
    let nvrtc = nvrtc()?;
    let cubin = compile_cubin(nvrtc, text, &interface.entry, options, (major, minor))?;
    let program = load(shared, Image::Cubin(&cubin), name, interface, params, dynamic_shared_bytes)
        .map_err(|error| with_versions(error, nvrtc, shared))?;
    shared.cache.store(&key, &stamped(nvrtc, &cubin));
    Ok((program, false))
}

fn load(
    shared: &Arc<Shared>,
    image: Image<'_>,
    name: &str,
    interface: &KernelInterface,
    params: Vec<Param>,
    dynamic_shared_bytes: Option<u64>,
) -> Result<Program> {
    let attributes = &shared.physical.attributes;
    Program::load(&shared.context, attributes, image, name, interface, params, dynamic_shared_bytes)
        .map_err(|error| shared.note(error))
}

/// Everything that the machine code depends on but NVRTC's version, which stands in the file: a cached kernel must be
/// found where there is no NVRTC.
fn cache_key(shared: &Shared, job: &Job<'_>) -> Key {
    let (major, minor) = shared.physical.attributes.capability;
    let driver = shared.physical.driver.release.clone().unwrap_or_default();
    shared.cache.key(&[
        job.text.as_bytes(),
        job.name.as_bytes(),
        job.options.join(" ").as_bytes(),
        format!("sm_{major}{minor}").as_bytes(),
        driver.as_bytes(),
        shared.physical.driver.version.to_string().as_bytes(),
    ])
}

/// The compiler, looked for once.
fn nvrtc() -> Result<&'static Nvrtc> {
    FOUND.get_or_init(Nvrtc::load).as_ref().map_err(|error| {
        let reason = match error {
            NvrtcError::Missing { .. } => format!(
                "{error}. On Debian and Ubuntu with NVIDIA's repository: apt-get install cuda-nvrtc-13-0. Kernels in the cache run without it"
            ),
            other => other.to_string(),
        };
        Error::unsupported("compilation of a kernel for CUDA", reason)
    })
}

static FOUND: OnceLock<Result<Nvrtc, NvrtcError>> = OnceLock::new();

/// The cubin of a cached file. One of another NVRTC counts as none where NVRTC is in use already: it is not loaded just to
/// ask for its version, since that takes longer than many compilations.
fn current_cubin(file: &[u8]) -> Option<&[u8]> {
    let (stamp, cubin) = file.split_at_checked(8)?;
    match FOUND.get() {
        Some(Ok(nvrtc)) if stamp != version_stamp(nvrtc) => None,
        _ => Some(cubin),
    }
}

fn version_stamp(nvrtc: &Nvrtc) -> [u8; 8] {
    let (major, minor) = nvrtc.version().unwrap_or_default();
    let mut stamp = [0; 8];
    stamp[..4].copy_from_slice(&major.to_le_bytes());
    stamp[4..].copy_from_slice(&minor.to_le_bytes());
    stamp
}

fn stamped(nvrtc: &Nvrtc, cubin: &[u8]) -> Vec<u8> {
    let mut file = version_stamp(nvrtc).to_vec();
    file.extend_from_slice(cubin);
    file
}

/// Compiles for a device, or for an older one whose machine code it runs: that of its generation with a smaller number,
/// where NVRTC does not know the device yet.
fn compile_cubin(
    nvrtc: &Nvrtc,
    text: &str,
    entry: &str,
    options: &[&str],
    (major, minor): (u32, u32),
) -> Result<Vec<u8>> {
    let mut first = None;
    for minor in (0..=minor).rev() {
        match nvrtc.compile_text(text, entry, &format!("sm_{major}{minor}"), options) {
            Ok(compiled) => {
                if !compiled.log.is_empty() {
                    tracing::debug!(kernel = entry, log = compiled.log, "NVRTC");
                }
                return Ok(compiled.cubin);
            }
            Err(error) => {
                let architecture = is_about_architecture(&error);
                first.get_or_insert(error);
                if !architecture {
                    break;
                }
            }
        }
    }
    Err(match first {
        Some(error) => not_compiled(entry, &error),
        None => Error::Driver { call: "nvrtcCompileProgram", code: "no architecture".into() },
    })
}

/// Whether NVRTC refused the architecture, not the source.
fn is_about_architecture(error: &NvrtcError) -> bool {
    let text = error.to_string();
    text.contains("gpu-architecture") || text.contains("INVALID_OPTION")
}

fn not_compiled(entry: &str, error: &NvrtcError) -> Error {
    match error {
        NvrtcError::Compile { log, .. } => Error::InvalidKernel {
            message: format!("the CUDA C++ of kernel `{entry}` does not compile: {error}"),
            line: log_line(log),
        },
        NvrtcError::Nul { .. } => {
            Error::InvalidKernel { message: format!("kernel `{entry}`: {error}"), line: None }
        }
        _ => Error::Driver { call: "nvrtcCompileProgram", code: error.to_string() },
    }
}

/// The line that NVRTC names first: `saxpy(3): error: ...`.
fn log_line(log: &str) -> Option<u32> {
    log.lines().find_map(|line| {
        let place = line.split_once("): ")?.0;
        place.rsplit_once('(')?.1.parse().ok()
    })
}

/// What came from the compiler and was refused by the driver: their versions are likely the reason.
fn with_versions(error: Error, nvrtc: &Nvrtc, shared: &Shared) -> Error {
    match error {
        Error::InvalidKernel { message, line } => {
            let (major, minor) = nvrtc.version().unwrap_or_default();
            let driver = shared.physical.driver.version;
            let message = format!(
                "{message}\nNVRTC is {major}.{minor}, and the driver serves CUDA {driver}: use an NVRTC that is not newer than the driver"
            );
            Error::InvalidKernel { message, line }
        }
        other => other,
    }
}

fn invalid(error: onebuf_wgsl::Error) -> Error {
    Error::InvalidKernel { line: error.location().map(|l| l.line), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_name_lines() {
        let log = "k(3): error: identifier \"nope\" is undefined\n  x = nope;\n\n1 error detected";
        assert_eq!(log_line(log), Some(3));
        assert_eq!(log_line("nvrtc: error: invalid value for --gpu-architecture (-arch)"), None);
    }

    #[test]
    fn refusals_become_errors_that_name_the_kernel() {
        let log = "k(2): error: expected a \";\"".to_owned();
        let error = not_compiled("k", &NvrtcError::Compile { architecture: "sm_90".into(), log });
        let Error::InvalidKernel { message, line: Some(2) } = error else { panic!("{error}") };
        assert!(message.contains("kernel `k`") && message.contains("expected a"), "{message}");
        let unknown = NvrtcError::Compile {
            architecture: "sm_199".into(),
            log: "nvrtc: error: invalid value for --gpu-architecture (-arch)".into(),
        };
        assert!(is_about_architecture(&unknown));
    }

    /// With NVRTC at hand and no GPU, everything up to the driver is real.
    #[test]
    #[allow(clippy::print_stderr)] // What was not tested is said.
    fn kernels_compile_up_to_the_driver() {
        let nvrtc = match nvrtc() {
            Ok(nvrtc) => nvrtc,
            Err(error) => {
                let required =
                    std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == "nvrtc"));
                assert!(!required, "{error}");
                let text = error.to_string();
                assert!(text.contains("nvidia-cuda-nvrtc") && text.contains("cuda-nvrtc-13-0"), "{text}");
                let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("not run: {error}\n"));
                return;
            }
        };
        let native = "extern \"C\" __global__ void k(float* x, float a) { x[threadIdx.x] *= a; }";
        let cubin = compile_cubin(nvrtc, native, "k", &NATIVE_OPTIONS, (9, 0)).unwrap();
        assert!(cubin.starts_with(b"\x7fELF"));
        // A device newer than the compiler, of a generation that it knows.
        assert!(compile_cubin(nvrtc, native, "k", &NATIVE_OPTIONS, (9, 3)).unwrap().starts_with(b"\x7fELF"));
        let broken = compile_cubin(nvrtc, "extern \"C\" __global__ void k() {\n  nope;\n}", "k", &[], (9, 0));
        assert!(matches!(broken, Err(Error::InvalidKernel { line: Some(2), .. })), "{broken:?}");

        let file = stamped(nvrtc, b"cubin");
        assert_eq!(current_cubin(&file), Some(&b"cubin"[..]));
        let mut older = file.clone();
        older[0] ^= 1;
        assert_eq!(current_cubin(&older), None, "of another NVRTC");
        assert_eq!(current_cubin(b"short"), None);
    }
}
