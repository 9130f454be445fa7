//! Printed CUDA C++ on the CPU, compiled by g++ under UBSan and ASan.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    batch::{Batch, Program, Value},
    case::{Case, Outcome},
};
use anyhow::{Context as _, Result, bail, ensure};

/// The headers that make CUDA C++ run on a CPU.
const SHIM: [(&str, &str); 2] =
    [("cuda_shim.h", include_str!("../shim/cuda_shim.h")), ("main.h", include_str!("../shim/main.h"))];

/// What watches the CPU's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitize {
    /// Nothing.
    Off,
    /// Undefined arithmetic, conversions and array indices: cheap to compile.
    Arithmetic,
    /// All of UBSan, and ASan on every buffer.
    All,
}

/// Runs every case, compiled as one program. A failure names the case that ran.
///
/// # Errors
/// What g++ says, or what a sanitizer says at run time.
pub fn run(cases: &[&Case], sanitize: Sanitize) -> Result<Vec<Outcome>> {
    let folder = tempfile::tempdir()?;
    let batch = Batch::new(cases)?;
    let mut text = format!("#include \"cuda_shim.h\"\n{}{}", onebuf_wgsl::cuda_prelude(), batch.kernels);
    let mut table = String::new();
    for (index, (case, program)) in cases.iter().zip(&batch.programs).enumerate() {
        let [x, y, z] = case.kernel.interface().workgroup_size;
        let kernel = &program.source.kernel;
        let switches =
            ["__sync", "__activemask", "wg_mask", "0xffffffffu"].iter().any(|mark| kernel.contains(mark));
        _ = writeln!(
            table,
            "    {{\"{}\", [](void **values, shim_dim grid) {{ shim::launch(case_{index}::{}, values, grid, \
             {{{x}u, {y}u, {z}u}}, {switches}); }}}},",
            case.name.replace(['"', '\\', '\n'], " "),
            program.kernel_name
        );
    }
    _ = writeln!(
        text,
        "#include \"main.h\"\nstatic const shim_program programs[] = {{\n{table}}};\n\
         int main(int argc, char **argv) {{ return shim_main(programs, argc, argv); }}"
    );
    let program = compile(folder.path(), &text, sanitize)?;
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    fs::write(&input, encode(cases, &batch.programs)?)?;
    let run = Command::new(&program)
        .arg(&input)
        .arg(&output)
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .env("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
        .output()?;
    if !run.status.success() {
        let log = String::from_utf8_lossy(&run.stderr);
        let tail: Vec<&str> = log.lines().rev().take(40).collect();
        bail!(
            "the CPU's run failed, {}:\n{}",
            run.status,
            tail.into_iter().rev().collect::<Vec<_>>().join("\n")
        );
    }
    decode(cases, &fs::read(&output)?)
}

fn compile(folder: &Path, text: &str, sanitize: Sanitize) -> Result<PathBuf> {
    let source = folder.join("batch.cpp");
    let program = folder.join("batch");
    fs::write(&source, text)?;
    // For those who look for the cause of a difference.
    if let Some(kept) = std::env::var_os("ONEBUF_KEEP_SOURCES") {
        fs::copy(&source, Path::new(&kept).join("batch.cpp"))?;
    }
    for (name, text) in SHIM {
        fs::write(folder.join(name), text)?;
    }
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "g++".into()));
    command
        .args(["-std=c++17", "-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-I"])
        .arg(folder)
        .arg(&source)
        .arg("-o")
        .arg(&program);
    match sanitize {
        Sanitize::Off => {}
        Sanitize::Arithmetic => {
            let checks = "signed-integer-overflow,shift,integer-divide-by-zero,bounds,bool,return,unreachable,float-cast-overflow";
            command.arg(format!("-fsanitize={checks}")).arg("-fsanitize-undefined-trap-on-error");
        }
        Sanitize::All => {
            command.args(["-fsanitize=undefined,address", "-fno-sanitize-recover=all", "-fno-sanitize=vptr"]);
        }
    }
    let compiled = command.output().context("g++ is needed to run translated kernels on the CPU")?;
    if !compiled.status.success() {
        let log = String::from_utf8_lossy(&compiled.stderr);
        bail!("g++ refused a translated kernel:\n{}", log.lines().take(60).collect::<Vec<_>>().join("\n"));
    }
    Ok(program)
}

fn encode(cases: &[&Case], programs: &[Program]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (index, (case, program)) in cases.iter().zip(programs).enumerate() {
        let mut word = |value: u32| bytes.extend_from_slice(&value.to_le_bytes());
        word(index as u32);
        case.grid.iter().for_each(|&groups| word(groups));
        let values = program.values(case)?;
        word(values.len() as u32);
        for value in values {
            let (kind, value) = match value {
                Value::Buffer(binding) => (0u32, case.buffers[binding].clone()),
                Value::Bytes(value) => (1, value),
            };
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
    }
    Ok(bytes)
}

fn decode(cases: &[&Case], mut bytes: &[u8]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for case in cases {
        let mut outcome = Vec::new();
        for buffer in &case.buffers {
            let padded = buffer.len().next_multiple_of(4);
            ensure!(bytes.len() >= padded, "the CPU's run wrote too little");
            outcome.push(bytes[..buffer.len()].to_vec());
            bytes = &bytes[padded..];
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
