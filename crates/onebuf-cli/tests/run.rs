//! `onebuf run`: kernels on array files.

mod support;

use std::path::Path;

use serde_json::Value;
use support::{bytes_of, devices, expect, f32s, json, npy, onebuf, text, u32s, without_drivers, write};

const SAXPY: &str = "
override SCALE: f32 = 1.0;
@group(0) @binding(0) var<storage> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> a: f32;
@compute @workgroup_size(64)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&y) { y[id.x] += SCALE * a * x[id.x]; }
}
";

/// A folder with a kernel and its inputs.
struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new(wgsl: &str) -> Case {
        let case = Case { folder: tempfile::tempdir().unwrap() };
        write(case.path(), "kernel.wgsl", wgsl.as_bytes());
        case
    }

    fn saxpy() -> Case {
        let case = Case::new(SAXPY);
        let x: Vec<f32> = (0..1000u16).map(f32::from).collect();
        npy(case.path(), "x.npy", "<f4", "(1000,)", &f32s(&x));
        npy(case.path(), "y.npy", "<f4", "(10, 100)", &f32s(&[1.0; 1000]));
        npy(case.path(), "a.npy", "<f4", "()", &f32s(&[2.0]));
        case
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = onebuf(&["run", "kernel.wgsl"]);
        command.args(args).current_dir(self.path());
        command
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }
}

const GOOD: [&str; 8] =
    ["--groups", "16", "--in", "0:0=x.npy", "--inout", "0:1=y.npy:out.npy", "--immediate", "a.npy"];

#[test]
fn a_kernel_runs_on_files_in_place() {
    for id in devices() {
        let case = Case::saxpy();
        let mut args = GOOD.to_vec();
        args.extend(["--device", &id, "--json"]);
        let summary = json(&mut case.run(&args), 0);
        let expected: Vec<f32> = (0..1000u16).map(|i| 1.0 + 2.0 * f32::from(i)).collect();
        let out = case.read("out.npy");
        assert_eq!(out[..128], case.read("y.npy")[..128], "the shape is the input's");
        assert_eq!(out[128..], f32s(&expected));

        assert_eq!(summary["schema"], "onebuf.run/1");
        assert_eq!(summary["device"]["id"], id.as_str());
        assert_eq!((&summary["entry"], &summary["repeat"]), (&"saxpy".into(), &1.into()));
        let [x, y] = [&summary["buffers"][0], &summary["buffers"][1]];
        assert_eq!((&x["name"], &x["dtype"], &x["bytes"]), (&"x".into(), &"f4".into(), &4000.into()));
        assert_eq!(y["shape"], serde_json::json!([10, 100]));
        let staged = |buffer: &Value| buffer["placement"]["staged"].as_bool().unwrap();
        if !staged(x) && !staged(y) {
            assert_eq!(summary["copied_bytes"], 0);
        }
        assert!(summary["host_ms"]["min"].as_f64().unwrap() > 0.0);

        let out = text(&expect(&mut case.run(&GOOD), 0).stdout);
        for line in ["device  ", "kernel  ", "buffer  ", "copied  ", "time    "] {
            assert!(out.lines().any(|l| l.starts_with(line)), "{line} in\n{out}");
        }
        assert!(out.contains("asked: "), "the placement says what was asked: {out}");
    }
}

#[test]
fn repeats_use_the_same_buffers_and_overrides_count() {
    if devices().is_empty() {
        return;
    }
    let case = Case::saxpy();
    let mut args = GOOD.to_vec();
    args.extend(["--repeat", "3", "--set", "SCALE=0.5", "--unchecked", "--json"]);
    let summary = json(&mut case.run(&args), 0);
    assert_eq!(summary["checked"], false);
    let expected: Vec<f32> = (0..1000u16).map(|i| 1.0 + 3.0 * f32::from(i)).collect();
    assert_eq!(case.read("out.npy")[128..], f32s(&expected));
    let host = &summary["host_ms"];
    assert!(host["min"].as_f64().unwrap() <= host["median"].as_f64().unwrap());
}

#[test]
fn every_element_type_arrives() {
    if devices().is_empty() {
        return;
    }
    // Each word of the output is the one of the input, whatever its bytes are: 64-bit and 16-bit types go as raw words.
    let case = Case::new(
        "@group(1) @binding(3) var<storage> a: array<u32>;
         @group(1) @binding(4) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1)
         fn main(@builtin(workgroup_id) id: vec3<u32>) { b[id.x] = ~a[id.x]; }",
    );
    let data: Vec<u8> = (0..64).collect();
    let inverted: Vec<u8> = data.iter().map(|b| !b).collect();
    npy(case.path(), "in.npy", "|u1", "(4, 16)", &data);
    write(case.path(), "in.bin", &data);
    for (input, output) in
        [("in.npy", "out.npy:u4:2,8"), ("in.bin", "out.bin:u4:16"), ("in.npy", "out.npy:u1:64")]
    {
        let arguments = [format!("1:3={input}"), format!("1:4={output}")];
        expect(&mut case.run(&["--groups", "16", "--in", &arguments[0], "--out", &arguments[1]]), 0);
        let (name, header) = if output.contains("npy") { ("out.npy", 128) } else { ("out.bin", 0) };
        assert_eq!(case.read(name)[header..], inverted, "{input} {output}");
    }
    let npy = case.read("out.npy");
    assert!(text(&npy[10..128]).contains("'descr': '|u1', 'fortran_order': False, 'shape': (64,), "));

    // Typed bindings, as far as every device has the type.
    for (ty, descr, code, data) in [
        ("u32", "<u4", "u4", u32s(&[1, 2, 3, u32::MAX])),
        ("i32", "<i4", "i4", bytes_of(&[1i32, -2, 3, i32::MIN], |v| v.to_le_bytes())),
        ("f32", "<f4", "f4", f32s(&[1.0, -2.5, 0.0, f32::MAX])),
    ] {
        let case = Case::new(&format!(
            "@group(0) @binding(0) var<storage> a: array<{ty}>;
             @group(0) @binding(1) var<storage, read_write> b: array<{ty}>;
             @compute @workgroup_size(1)
             fn main(@builtin(workgroup_id) id: vec3<u32>) {{ b[id.x] = a[3u - id.x]; }}"
        ));
        support::npy(case.path(), "a.npy", descr, "(4,)", &data);
        let out = format!("0:1=b.npy:{code}:4");
        expect(&mut case.run(&["--groups", "4", "--in", "0:0=a.npy", "--out", &out]), 0);
        let reversed: Vec<u8> = data.chunks(4).rev().flatten().copied().collect();
        assert_eq!(case.read("b.npy")[128..], reversed);
    }
}

#[test]
fn uniforms_and_three_axes() {
    if devices().is_empty() {
        return;
    }
    let case = Case::new(
        "struct Add { by: vec4<u32> }
         @group(0) @binding(0) var<uniform> add: Add;
         @group(0) @binding(1) var<storage, read_write> out: array<u32>;
         @compute @workgroup_size(1)
         fn main(@builtin(workgroup_id) id: vec3<u32>) {
             out[id.x + 2u * id.y + 6u * id.z] = add.by.y + 100u * id.x + 10u * id.y + id.z;
         }",
    );
    npy(case.path(), "add.npy", "<u4", "(4,)", &u32s(&[1, 5000, 3, 4]));
    expect(
        &mut case.run(&["--groups", "2,3,4", "--uniform", "0:0=add.npy", "--out", "0:1=o.npy:u4:4,3,2"]),
        0,
    );
    let mut expected = Vec::new();
    for z in 0..4 {
        for y in 0..3 {
            expected.extend([0, 1].map(|x| 5000 + 100 * x + 10 * y + z));
        }
    }
    assert_eq!(case.read("o.npy")[128..], u32s(&expected));
}

/// Each is found before a device is opened, so none is needed.
#[test]
fn wrong_arguments_name_the_binding() {
    let case = Case::saxpy();
    npy(case.path(), "i.npy", "<i4", "(1000,)", &u32s(&[0; 1000]));
    npy(case.path(), "none.npy", "<f4", "(0, 3)", &[]);
    let given = |more: &[&'static str]| -> Vec<&'static str> {
        ["--groups", "16"].into_iter().chain(more.iter().copied()).collect()
    };
    let x = ["--in", "0:0=x.npy"];
    let y = ["--inout", "0:1=y.npy:out.npy"];
    let a = ["--immediate", "a.npy"];
    let all = |parts: &[&[&'static str]]| given(&parts.concat());
    for (args, says) in [
        (all(&[&x, &a]), "binding 0:1 `y` (array<f32>, read and written) is not given; give --inout 0:1="),
        (all(&[&y, &a]), "binding 0:0 `x` (array<f32>, read) is not given; give --in 0:0=FILE.npy"),
        (all(&[&x, &y]), "`var<immediate>` of 4 bytes is not given"),
        (all(&[&x, &x, &y, &a]), "binding 0:0 is given twice, by --in and --in"),
        (all(&[&x, &y, &a, &["--in", "2:7=x.npy"]]), "uses no such binding; it uses:\n  binding 0:0 `x`"),
        (
            all(&[&["--in", "0:0=i.npy"], &y, &a]),
            "`x` (array<f32>, read) takes elements of f4, and is given i4",
        ),
        (all(&[&["--in", "0:0=none.npy"], &y, &a]), "an array without elements cannot be bound"),
        (all(&[&["--uniform", "0:0=x.npy"], &y, &a]), "is given by --uniform; give --in"),
        (all(&[&["--out", "0:0=o.npy:f4:1000"], &y, &a]), "is given by --out; give --in"),
        (all(&[&x, &["--out", "0:1=o.npy:u4:1000"], &a]), "takes elements of f4, and is given u4"),
        (all(&[&x, &["--out", "0:1=o.npy:f4:9999999999,9999999999"], &a]), "past 64 bits"),
        (all(&[&x, &y, &["--immediate", "x.npy"]]), "has 4 bytes, and x.npy has 4000"),
        (all(&[&x, &y, &a, &["--entry", "main"]]), "`saxpy`"),
        (all(&[&x, &y, &a, &["--set", "SIZE=1"]]), "`SCALE`"),
    ] {
        let mut command = without_drivers(&["run", "kernel.wgsl"]);
        let output = expect(command.args(&args).current_dir(case.path()), 2);
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty() && !case.path().join("out.npy").exists());
    }
    // What is left is a matter of the machine.
    let mut command = without_drivers(&["run", "kernel.wgsl"]);
    let output = expect(command.args(GOOD).current_dir(case.path()), 1);
    assert!(text(&output.stderr).contains("no usable device"), "{}", text(&output.stderr));
}

#[test]
fn hostile_files_are_refused_before_anything_is_reserved() {
    let case = Case::saxpy();
    let good = case.read("x.npy");
    let with = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        edit(&mut bytes);
        bytes
    };
    let replaced = |from: &str, to: &str| {
        let header = text(&good[10..128]).replace(from, to);
        with(&|bytes| {
            let header = format!("{:117}\n", header.trim_end());
            bytes.splice(10..128, header.bytes());
        })
    };
    for (bytes, says) in [
        (Vec::new(), "no .npy file"),
        (with(&|b| b[0] = b'P'), "no .npy file"),
        (with(&|b| b[6] = 9), "version is 9.0"),
        (with(&|b| b.truncate(60)), "cut within the header"),
        (with(&|b| b.truncate(4000)), "it is cut"),
        (with(&|b| b.push(0)), "something follows the array"),
        (replaced("<f4", ">f4"), "big-endian"),
        (replaced("<f4", "|O"), "objects"),
        (replaced("<f4", "<f8"), "`<f8`"),
        (replaced("(1000,)", "(10, 100)").tap("False", "True"), "Fortran"),
        (replaced("(1000,)", "(1000000000000,)"), "it is cut"),
        (replaced("(1000,)", "(4294967296, 4294967296)"), "64 bits"),
        (replaced("(1000,)", "(-1000,)"), "not negative"),
        (replaced("'shape'", "'shabe'"), "unknown key"),
        (with(&|b| b[11..60].fill(b'[')), "not understood"),
        (with(&|b| b[20] = 0xff), "not understood"),
    ] {
        write(case.path(), "bad.npy", &bytes);
        let mut args = GOOD.to_vec();
        args[3] = "0:0=bad.npy";
        let mut command = without_drivers(&["run", "kernel.wgsl"]);
        let output = expect(command.args(&args).current_dir(case.path()), 1);
        let err = text(&output.stderr);
        assert!(err.contains("bad.npy") && err.contains(says), "{says}: {err}");
    }
    for (name, says) in [("missing.npy", "missing.npy"), ("folder.npy", "regular file")] {
        std::fs::create_dir_all(case.path().join("folder.npy")).unwrap();
        let argument = format!("0:0={name}");
        let mut args = GOOD.to_vec();
        args[3] = &argument;
        let mut command = without_drivers(&["run", "kernel.wgsl"]);
        let output = expect(command.args(&args).current_dir(case.path()), 1);
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

/// As the last test's, without waiting for the other end.
#[test]
fn a_pipe_is_no_array_file() {
    let case = Case::saxpy();
    let status = std::process::Command::new("mkfifo").arg(case.path().join("pipe.npy")).status().unwrap();
    assert!(status.success());
    for (at, argument) in [(3, "0:0=pipe.npy"), (5, "0:1=pipe.npy:out.npy"), (7, "pipe.npy")] {
        let mut args = GOOD.to_vec();
        args[at] = argument;
        let mut command = without_drivers(&["run", "kernel.wgsl"]);
        command.args(&args).current_dir(case.path()).timeout(std::time::Duration::from_secs(60));
        let output = expect(&mut command, 1);
        assert!(text(&output.stderr).contains("pipe.npy: it is no regular file"), "{}", text(&output.stderr));
    }
}

/// Each is found before a device is opened, so none is needed.
#[test]
fn results_that_cannot_be_written_are_found_before_the_work() {
    use std::os::unix::fs::PermissionsExt;
    let case = Case::saxpy();
    std::fs::create_dir(case.path().join("folder.npy")).unwrap();
    std::fs::create_dir(case.path().join("closed")).unwrap();
    write(case.path(), "kept.npy", b"as it was");
    for name in ["closed", "kept.npy"] {
        let closed = std::fs::Permissions::from_mode(0o555);
        std::fs::set_permissions(case.path().join(name), closed).unwrap();
    }
    // To whom no permission applies nothing is denied.
    let denied = std::fs::File::create(case.path().join("closed/probe")).is_err();
    for (to, says, certain) in [
        ("nowhere/out.npy", "no folder nowhere", true),
        ("folder.npy", "it is a folder", true),
        ("closed/out.npy", "the folder closed: Permission denied", denied),
        ("kept.npy", "kept.npy: Permission denied", denied),
    ] {
        let argument = format!("0:1=y.npy:{to}");
        let mut args = GOOD.to_vec();
        args[5] = &argument;
        let output = expect(without_drivers(&["run", "kernel.wgsl"]).args(&args).current_dir(case.path()), 1);
        let err = text(&output.stderr);
        assert!(err.contains(if certain { says } else { "no usable device" }), "{to}: {err}");
    }
    assert_eq!(case.read("kept.npy"), b"as it was");
}

#[test]
fn two_results_want_two_files() {
    let case = Case::new(
        "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
         @group(0) @binding(1) var<storage, read_write> b: array<u32>;
         @compute @workgroup_size(1) fn main() { a[0] = 1u; b[0] = 2u; }",
    );
    write(case.path(), "there.npy", b"as it was");
    std::os::unix::fs::symlink("there.npy", case.path().join("link.npy")).unwrap();
    let run = |one: &str, two: &str, code: i32| {
        let (one, two) = (format!("0:0={one}:u4:1"), format!("0:1={two}:u4:1"));
        let mut command = without_drivers(&["run", "kernel.wgsl", "--groups", "1"]);
        text(&expect(command.args(["--out", &one, "--out", &two]).current_dir(case.path()), code).stderr)
    };
    for (one, two) in [("o.npy", "o.npy"), ("o.npy", "./o.npy"), ("there.npy", "link.npy")] {
        let err = run(one, two, 2);
        assert!(err.contains(&format!("{two}: two results go to this file")), "{err}");
    }
    let err = run("o.npy", "there.npy", 1);
    assert!(err.contains("no usable device"), "{err}");
    assert_eq!(case.read("there.npy"), b"as it was");
}

/// A second edit of a header.
trait Tap {
    fn tap(self, from: &str, to: &str) -> Self;
}

impl Tap for Vec<u8> {
    fn tap(mut self, from: &str, to: &str) -> Self {
        let header = text(&self[10..128]).replace(from, to);
        let header = format!("{:117}\n", header.trim_end());
        self.splice(10..128, header.bytes());
        self
    }
}

#[test]
fn a_device_that_has_too_little_says_so() {
    if devices().is_empty() {
        return;
    }
    let case = Case::new(
        "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
         @compute @workgroup_size(1) fn main() { a[0] = 1u; }",
    );
    let output = expect(&mut case.run(&["--groups", "1", "--out", "0:0=a.npy:u4:999999999999999"]), 1);
    assert!(text(&output.stderr).contains("asked for"), "{}", text(&output.stderr));
    assert!(!case.path().join("a.npy").exists());
}
