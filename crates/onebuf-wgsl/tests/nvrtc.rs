//! NVRTC takes every translated kernel, without a warning.
//!
//! Without NVRTC there is nothing to test with, and the tests say so; `ONEBUF_REQUIRE=nvrtc` makes that a failure.

mod support;

use onebuf_wgsl::{
    Bounds, CudaOptions, Math,
    nvrtc::{Nvrtc, NvrtcError},
};

const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_100"];

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(!support::required("nvrtc"), "ONEBUF_REQUIRE names nvrtc: {error}");
            println!("not run: {error}");
            None
        }
    }
}

#[test]
fn every_kernel_of_the_corpus_compiles() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut failures = Vec::new();
    let mut count = 0;
    // The option came later; without it, a warning shows in the log.
    let strict: &[&str] =
        if nvrtc.version().unwrap() >= (13, 5) { &["--warning-as-error=all-warnings"] } else { &[] };
    for (name, kernel) in support::corpus() {
        let variants = [
            CudaOptions::default(),
            CudaOptions { bounds: Bounds::Unchecked, math: Math::Fast, wide_grid: true },
        ];
        for options in variants {
            let source = kernel.to_cuda(&options).unwrap();
            for architecture in ARCHITECTURES {
                count += 1;
                match nvrtc.compile(&source, architecture, strict) {
                    Ok(compiled) if compiled.log.is_empty() && !compiled.cubin.is_empty() => {}
                    Ok(compiled) => failures.push(format!("{name} {architecture}: {}", compiled.log)),
                    Err(error) => failures.push(format!("{name}: {error}")),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    println!("{count} compilations");
}

#[test]
fn errors_carry_the_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let error = nvrtc.compile_text("int f( {", "broken", "sm_80", &[]).unwrap_err();
    assert!(matches!(&error, NvrtcError::Compile { log, .. } if log.contains("error")), "{error}");
    assert!(nvrtc.compile_text("", "empty", "sm_1", &[]).is_err());
    assert!(matches!(nvrtc.compile_text("\0", "nul", "sm_80", &[]), Err(NvrtcError::Nul { what: "source" })));
    assert!(nvrtc.version().unwrap().0 >= 11);
}
