//! `onebuf translate`: a kernel in the language that a driver takes.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use onebuf::core::kernel::Override;
use onebuf_wgsl::nvrtc::Nvrtc;
use onebuf_wgsl::{Bounds, CudaOptions, CudaSource, Specialized, SpirvOptions};

use crate::error::{Error, Result};
use crate::output::{note, print_bytes};
use crate::{run, source};

/// Options of `onebuf translate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The kernel's source
    #[arg(value_name = "FILE.wgsl")]
    source: PathBuf,
    /// The entry point, where the source has several
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// What to translate to
    #[arg(long, value_enum)]
    target: Target,
    /// Give an override a value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = run::parse_override)]
    overrides: Vec<Override>,
    /// Leave out the checks of accesses out of range
    #[arg(long)]
    unchecked: bool,
    /// Write to a file, and not to stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Compile the CUDA C++ with NVRTC, for this architecture, to see that it does
    #[arg(long, value_name = "ARCHITECTURE", num_args = 0..=1, require_equals = true, default_missing_value = "sm_90")]
    check: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// SPIR-V words, for Vulkan
    Spirv,
    /// CUDA C++, for NVRTC
    Cuda,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.check.is_some() && options.target != Target::Cuda {
        return Err(Error::usage("--check compiles CUDA C++; give --target cuda"));
    }
    let to_terminal = options.output.is_none() && std::io::stdout().is_terminal();
    if options.target == Target::Spirv && to_terminal {
        return Err(Error::usage("SPIR-V is no text for a terminal; give -o FILE"));
    }
    let kernel = source::specialize(&options.source, options.entry.as_deref(), &options.overrides)?;
    match options.target {
        Target::Spirv => write(options, &spirv(&kernel, options)?),
        Target::Cuda => {
            let cuda = cuda(&kernel, options)?;
            let Some(architecture) = &options.check else { return write(options, cuda.code().as_bytes()) };
            match Nvrtc::load() {
                Ok(nvrtc) => {
                    check(&nvrtc, &cuda, architecture).and_then(|()| write(options, cuda.code().as_bytes()))
                }
                // Nothing is known against the code; that it was not checked is still no success.
                Err(error) => {
                    write(options, cuda.code().as_bytes()).and(Err(Error::Failed(error.to_string())))
                }
            }
        }
    }
}

fn write(options: &Options, bytes: &[u8]) -> Result<()> {
    match &options.output {
        Some(path) => fs::File::create(path)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|error| Error::io(path.display(), error)),
        None => print_bytes(bytes),
    }
}

fn bounds(options: &Options) -> Bounds {
    if options.unchecked { Bounds::Unchecked } else { Bounds::Checked }
}

fn failed(options: &Options) -> impl Fn(onebuf_wgsl::Error) -> Error {
    let path = options.source.display().to_string();
    move |error| Error::Failed(format!("{path}: {error}"))
}

fn spirv(kernel: &Specialized, options: &Options) -> Result<Vec<u8>> {
    let asked = SpirvOptions { bounds: bounds(options), debug_names: true, ..SpirvOptions::default() };
    let spirv = kernel.to_spirv(&asked).map_err(failed(options))?;
    Ok(spirv.words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn cuda(kernel: &Specialized, options: &Options) -> Result<CudaSource> {
    let asked = CudaOptions { bounds: bounds(options), ..CudaOptions::default() };
    kernel.to_cuda(&asked).map_err(failed(options))
}

fn check(nvrtc: &Nvrtc, cuda: &CudaSource, architecture: &str) -> Result<()> {
    let begin = std::time::Instant::now();
    let compiled =
        nvrtc.compile(cuda, architecture, &[]).map_err(|error| Error::Failed(error.to_string()))?;
    let milliseconds = begin.elapsed().as_millis();
    if !compiled.log.trim().is_empty() {
        note(compiled.log.trim());
    }
    let bytes = compiled.cubin.len();
    note(format_args!("NVRTC compiled it for {architecture} in {milliseconds} ms: {bytes} bytes"));
    Ok(())
}
