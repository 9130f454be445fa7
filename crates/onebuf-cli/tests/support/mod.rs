//! What the tests of the command share.
#![allow(dead_code)] // Each test program uses a part.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

/// The command, as a user would start it.
pub(crate) fn onebuf(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebuf"));
    command.args(args).env_remove("ONEBUF_DEVICE").env_remove("ONEBUF_LOG");
    command
}

/// The command on a machine without a driver.
pub(crate) fn without_drivers(args: &[&str]) -> Command {
    with_driver(args, "/nonexistent/driver.json")
}

/// The command with one driver alone.
pub(crate) fn with_driver(args: &[&str], manifest: impl AsRef<Path>) -> Command {
    let mut command = onebuf(args);
    // Loaders before 1.3.207 read the second.
    command.env("VK_DRIVER_FILES", manifest.as_ref()).env("VK_ICD_FILENAMES", manifest.as_ref());
    command.env_remove("VK_ADD_DRIVER_FILES");
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs it and expects this exit code.
#[track_caller]
pub(crate) fn expect(command: &mut Command, code: i32) -> Output {
    let output = command.output().expect("the command starts");
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
    assert!(!err.contains("panicked"), "{err}");
    output
}

/// Runs it, expects this exit code, and reads stdout as JSON: it must hold nothing else.
#[track_caller]
pub(crate) fn json(command: &mut Command, code: i32) -> Value {
    let output = expect(command, code);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e} in:\n{}", text(&output.stdout)))
}

fn required() -> bool {
    std::env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == "vulkan"))
}

/// Ids of the devices that can run, or none and a word on stderr. Where ONEBUF_REQUIRE names vulkan, none is a failure.
pub(crate) fn devices() -> Vec<String> {
    let output = onebuf(&["devices", "--json"]).output().expect("the command starts");
    let listing: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = listing["devices"].as_array().expect("a list");
    let usable = all.iter().filter(|device| device["rejected"].is_null());
    let ids: Vec<String> = usable.map(|device| device["id"].as_str().expect("an id").to_owned()).collect();
    if ids.is_empty() {
        assert!(
            !required(),
            "ONEBUF_REQUIRE names vulkan, and there is no device:\n{}",
            text(&output.stderr)
        );
        skipped("no Vulkan device");
    }
    ids
}

/// Tells that a test, or a part of it, had nothing to run on: `cargo xtask test` counts it as skipped.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "not run: {why}");
}

/// The manifest of a driver that answers every query and runs nothing.
pub(crate) fn mock() -> Option<PathBuf> {
    let path = std::env::var_os("ONEBUF_MOCK_ICD").map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        skipped("ONEBUF_MOCK_ICD names no driver");
    }
    path
}

/// A `.npy` file, with any header.
pub(crate) fn npy(folder: &Path, name: &str, descr: &str, shape: &str, data: &[u8]) -> String {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{text:117}\n").as_bytes());
    bytes.extend(data);
    write(folder, name, &bytes)
}

/// A file, with its path as text.
pub(crate) fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file in a temporary folder");
    path.to_str().expect("UTF-8").to_owned()
}

pub(crate) fn bytes_of<const N: usize, T>(values: &[T], to: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to).collect()
}

pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    bytes_of(values, |v| v.to_le_bytes())
}

pub(crate) fn u32s(values: &[u32]) -> Vec<u8> {
    bytes_of(values, |v| v.to_le_bytes())
}
