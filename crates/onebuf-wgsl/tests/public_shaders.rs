//! Shaders that others wrote: every compute entry point in a checkout translates, and NVRTC takes it.
//!
//! `ONEBUF_SHADERS` names a folder with WGSL files, as a checkout of wgpu, whose tests of naga are the widest public
//! collection. Without it there is nothing to test; `ONEBUF_REQUIRE=shaders` makes that a failure.

mod support;

use std::io::Write as _;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

use onebuf_core::kernel::Override;
use onebuf_wgsl::{CudaOptions, Error, Module, OverrideDefault, SpirvOptions, nvrtc::Nvrtc};

fn wgsl_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            wgsl_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "wgsl") {
            found.push(path);
        }
    }
}

#[derive(Default)]
struct Counts {
    files: usize,
    not_valid: Vec<String>,
    entries: usize,
    unsupported: Vec<String>,
    translated: usize,
    compiled: usize,
    failures: Vec<String>,
}

#[test]
fn public_shaders_translate_and_compile() {
    let Some(folder) = env::var_os("ONEBUF_SHADERS").map(PathBuf::from) else {
        assert!(!support::required("shaders"), "ONEBUF_REQUIRE names shaders, and ONEBUF_SHADERS is not set");
        let _ = writeln!(std::io::stderr(), "not run: ONEBUF_SHADERS is not set");
        return;
    };
    let nvrtc = Nvrtc::load();
    assert!(nvrtc.is_ok() || !support::required("nvrtc"), "{nvrtc:?}");
    let mut files = Vec::new();
    wgsl_files(&folder, &mut files);
    files.sort();
    let mut counts = Counts::default();
    for path in &files {
        let name = path.strip_prefix(&folder).unwrap_or(path).display().to_string();
        let Ok(source) = fs::read_to_string(path) else { continue };
        counts.files += 1;
        let module = match Module::parse(&source) {
            Ok(module) => module,
            Err(Error::Internal(message)) => {
                counts.failures.push(format!("{name}: {message}"));
                continue;
            }
            Err(error) => {
                counts
                    .not_valid
                    .push(format!("{name}: {}", error.to_string().lines().next().unwrap_or_default()));
                continue;
            }
        };
        let needed = module.overrides().filter(|constant| constant.default == OverrideDefault::Required);
        let values: Vec<Override> =
            needed.map(|constant| Override { name: constant.name, value: 1.0 }).collect();
        for entry in module.entry_points().map(str::to_owned).collect::<Vec<_>>() {
            counts.entries += 1;
            let kernel = match module.specialize(Some(&entry), &values) {
                Ok(kernel) => kernel,
                Err(error) => {
                    counts.unsupported.push(format!(
                        "{name}, {entry}: {}",
                        error.to_string().lines().next().unwrap_or_default()
                    ));
                    continue;
                }
            };
            if let Err(error) = kernel.to_spirv(&SpirvOptions { version: (1, 5), ..SpirvOptions::default() })
            {
                counts.failures.push(format!("{name}, {entry}: {error}"));
            }
            let source = match kernel.to_cuda(&CudaOptions::default()) {
                Ok(source) => source,
                Err(error) => {
                    counts.failures.push(format!("{name}, {entry}: {error}"));
                    continue;
                }
            };
            counts.translated += 1;
            if let Ok(nvrtc) = &nvrtc {
                match nvrtc.compile(&source, "sm_90", &[]) {
                    Ok(compiled) if compiled.log.is_empty() => counts.compiled += 1,
                    Ok(compiled) => counts.failures.push(format!("{name}, {entry}: {}", compiled.log)),
                    Err(error) => counts.failures.push(format!("{name}, {entry}: {error}")),
                }
            }
        }
    }
    println!(
        "{} files, {} not valid here; {} compute entry points, {} use what kernels cannot have; {} translated, {} compiled",
        counts.files,
        counts.not_valid.len(),
        counts.entries,
        counts.unsupported.len(),
        counts.translated,
        counts.compiled
    );
    for line in counts.not_valid.iter().chain(&counts.unsupported) {
        println!("  {line}");
    }
    assert!(counts.failures.is_empty(), "{}", counts.failures.join("\n"));
    assert!(counts.translated > 0, "no compute entry point in {}", folder.display());
}
