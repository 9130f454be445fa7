//! NVRTC takes every translated kernel, without a warning.
//!
//! Without NVRTC there is nothing to test with, and the tests say so; `ONEBUF_REQUIRE=nvrtc` makes that a failure.

mod support;

use std::io::Write as _;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use onebuf_wgsl::{
    Bounds, CudaOptions, Math, Specialized,
    nvrtc::{Nvrtc, NvrtcError},
};

const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_100"];

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(!support::required("nvrtc"), "ONEBUF_REQUIRE names nvrtc: {error}");
            let _ = writeln!(std::io::stderr(), "not run: {error}");
            None
        }
    }
}

#[test]
fn every_kernel_of_the_corpus_compiles() {
    let Some(nvrtc) = nvrtc() else { return };
    let kernels = support::corpus();
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut count, mut failures) = (0, Vec::new());
        while let Some((name, kernel)) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile(&nvrtc, name, kernel, &mut count, &mut failures);
        }
        (count, failures)
    };
    let workers = thread::available_parallelism().map_or(2, |cores| cores.get());
    let results: Vec<(usize, Vec<String>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count: usize = results.iter().map(|(count, _)| count).sum();
    let failures: Vec<String> = results.into_iter().flat_map(|(_, failures)| failures).collect();
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    println!("{count} compilations of {} kernels", kernels.len());
}

fn compile(nvrtc: &Nvrtc, name: &str, kernel: &Specialized, count: &mut usize, failures: &mut Vec<String>) {
    let variants = [
        CudaOptions::default(),
        CudaOptions { bounds: Bounds::Unchecked, math: Math::Fast, wide_grid: true },
    ];
    for options in variants {
        let source = kernel.to_cuda(&options).unwrap();
        for architecture in ARCHITECTURES {
            *count += 1;
            match nvrtc.compile(&source, architecture, &[]) {
                Ok(compiled) if compiled.log.is_empty() && !compiled.cubin.is_empty() => {}
                Ok(compiled) => failures.push(format!("{name} {architecture}: {}", compiled.log)),
                Err(error) => failures.push(format!("{name}: {error}")),
            }
        }
    }
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
