//! `onebuf translate`.

mod support;

use support::{expect, onebuf, text, write};

const KERNEL: &str = "
override SIZE: u32 = 64;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(SIZE)
fn twice(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] *= 2.0; }
@compute @workgroup_size(1)
fn once() { y[0] = 1.0; }
";

#[test]
fn spirv_goes_to_a_file_or_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write(folder.path(), "kernel.wgsl", KERNEL.as_bytes());
    let args = ["translate", &kernel, "--entry", "twice", "--target", "spirv"];
    let piped = expect(&mut onebuf(&args), 0).stdout;
    assert_eq!(piped[..4], 0x0723_0203u32.to_le_bytes());
    assert_eq!(piped.len() % 4, 0);
    let path = folder.path().join("kernel.spv");
    let out = expect(onebuf(&args).arg("-o").arg(&path), 0);
    assert!(out.stdout.is_empty());
    assert_eq!(std::fs::read(&path).unwrap(), piped);
    let larger = expect(onebuf(&args).args(["--set", "SIZE=128"]), 0).stdout;
    assert_ne!(larger, piped);
    let unchecked = expect(onebuf(&args).arg("--unchecked"), 0).stdout;
    assert!(unchecked.len() < piped.len(), "the checks are gone");
    let validated =
        std::process::Command::new("spirv-val").args(["--target-env", "vulkan1.1"]).arg(&path).output();
    match validated {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stdout)),
        Err(_) => support::skipped("no spirv-val"),
    }
}

#[test]
fn cuda_is_text() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write(folder.path(), "kernel.wgsl", KERNEL.as_bytes());
    let args = ["translate", &kernel, "--entry", "twice", "--target", "cuda"];
    let code = text(&expect(&mut onebuf(&args), 0).stdout);
    assert!(code.contains("__global__") && code.contains("twice"), "{code}");

    let checked = onebuf(&args).arg("--check").output().unwrap();
    let required = std::env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|n| n == "nvrtc"));
    let err = text(&checked.stderr);
    assert_eq!(text(&checked.stdout), code, "the code is there, whatever the check says");
    if checked.status.success() {
        assert!(err.contains("NVRTC compiled it for sm_90 in ") && err.contains(" ms"), "{err}");
        let wrong = expect(onebuf(&args).arg("--check=sm_1"), 1);
        assert!(!wrong.stderr.is_empty() && wrong.stdout.is_empty());
    } else {
        assert!(!required && err.contains("ONEBUF_NVRTC"), "{err}");
        support::skipped("no NVRTC");
    }
}

#[test]
fn a_wrong_source_and_a_wrong_request_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = write(folder.path(), "kernel.wgsl", KERNEL.as_bytes());
    let broken = write(folder.path(), "broken.wgsl", b"@compute @workgroup_size(1) fn main() { let x = ; }");
    let empty = write(folder.path(), "empty.wgsl", b"");
    let latin = write(folder.path(), "latin.wgsl", b"// caf\xe9");
    let missing = folder.path().join("missing.wgsl").to_str().unwrap().to_owned();
    for (file, more, code, says) in [
        (&kernel, vec![], 2, "--entry NAME"),
        (&kernel, vec!["--entry", "thrice"], 2, "`once`"),
        (&kernel, vec!["--entry", "twice", "--set", "COUNT=1"], 2, "`SIZE`"),
        (&kernel, vec!["--entry", "twice", "--set", "SIZE=1.5"], 2, "whole number"),
        (&broken, vec![], 1, "broken.wgsl"),
        (&empty, vec![], 1, "no @compute entry point"),
        (&latin, vec![], 1, "UTF-8"),
        (&missing, vec![], 1, "missing.wgsl"),
    ] {
        let output = expect(onebuf(&["translate", file, "--target", "spirv"]).args(&more), code);
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).contains(says), "{more:?}: {}", text(&output.stderr));
    }
}
