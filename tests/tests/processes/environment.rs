//! Machines where something is missing or broken: each start ends in an error that says what, and nothing crashes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use onebuf::{Error, Registry};
use onebuf_tests::{lab, process};
use onebuf_vulkan::{Vulkan, VulkanOptions};

const LIMIT: Duration = Duration::from_secs(60);

/// Where Vulkan is broken, a GPU of CUDA would open in its place.
const HIDE_CUDA: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "");

/// What a child does: opens what there is, and prints the outcome.
fn open_everything() {
    let registry = Registry::system();
    for (backend, error) in registry.adapters().unavailable {
        assert!(matches!(error, Error::BackendUnavailable { .. }), "{error:?}");
        lab::say(&format!("unavailable {backend}: {error}"));
    }
    match registry.open_default() {
        Ok(device) => lab::say(&format!("opened {}", device.info().id)),
        Err(error) => {
            assert!(matches!(error, Error::NoDevice(_)), "{error:?}");
            lab::say(&format!("refused: {error}"));
        }
    }
    match Vulkan::new(VulkanOptions::default()) {
        Ok(_) => lab::say("vulkan starts"),
        Err(error) => lab::say(&format!("vulkan does not: {error}")),
    }
}

fn is_child() -> bool {
    let child = process::role().is_some();
    if child {
        open_everything();
    }
    child
}

fn output(finished: &process::Finished) -> &str {
    finished.expect_success();
    &finished.output
}

/// Whether a child opened a device. (That a library could not be opened is said too.)
fn opened(output: &str) -> bool {
    output.lines().any(|line| line.starts_with("opened "))
}

#[test]
fn a_missing_loader_is_named_with_its_package() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        // A library of that name that is none stands first in the search.
        let directory = tempfile::tempdir().unwrap();
        for content in ["", "not a library", "\x7fELF and then nothing"] {
            for name in ["libvulkan.so.1", "libvulkan.so"] {
                fs::write(directory.path().join(name), content).unwrap();
            }
            let mut command = process::command("no loader");
            command.env("LD_LIBRARY_PATH", directory.path()).env(HIDE_CUDA.0, HIDE_CUDA.1);
            let finished = process::run(&mut command, LIMIT);
            let output = output(&finished);
            // The dynamic linker goes on to the next file of that name where the first is none of its kind.
            if output.contains("vulkan starts") {
                continue;
            }
            assert!(output.contains("libvulkan.so.1") && output.contains("libvulkan1"), "{output}");
            assert!(output.contains("refused: no device"), "{output}");
        }
    });
}

fn icd(directory: &Path, name: &str, library: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    let json = format!(
        "{{\"file_format_version\": \"1.0.0\", \"ICD\": {{\"library_path\": \"{library}\", \"api_version\": \"1.3.0\"}}}}"
    );
    fs::write(&path, json).unwrap();
    path
}

#[test]
fn drivers_that_do_not_load_are_no_devices() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::write(at.join("noise.so"), "not a library").unwrap();
        fs::write(at.join("cut.json"), "{\"ICD\": {").unwrap();
        fs::write(at.join("empty.json"), "").unwrap();
        let broken = [
            icd(at, "noise.json", &at.join("noise.so").display().to_string()),
            icd(at, "missing.json", "/nowhere/libvulkan_nothing.so"),
            // A library, and no driver.
            icd(at, "foreign.json", "libm.so.6"),
            at.join("cut.json"),
            at.join("empty.json"),
            at.join("not there.json"),
        ];
        for path in broken {
            let mut command = process::command("broken driver");
            command
                .env("VK_DRIVER_FILES", &path)
                .env("VK_ICD_FILENAMES", &path)
                .env("ONEBUF_VALIDATION", "0")
                .env(HIDE_CUDA.0, HIDE_CUDA.1);
            let finished = process::run(&mut command, LIMIT);
            let output = output(&finished);
            assert!(output.contains("refused: no device"), "{}: {output}", path.display());
            assert!(output.contains("doctor") || output.contains("driver"), "{output}");
        }
    });
}

#[test]
fn a_cuda_driver_that_does_not_start_is_explained() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        // Names of no GPU.
        for hidden in ["", "-1", "99", "GPU-00000000-0000-0000-0000-000000000000"] {
            let finished = process::run_with("hidden", HIDE_CUDA.0, hidden, LIMIT);
            let output = output(&finished);
            let told = output.lines().find(|line| line.starts_with("unavailable cuda"));
            let told = told.unwrap_or_else(|| panic!("CUDA starts without a GPU: {output}"));
            assert!(told.contains("libcuda.so.1") || told.contains("CUDA_VISIBLE_DEVICES"), "{told}");
        }
        // A library of the driver's name that is none.
        let directory = tempfile::tempdir().unwrap();
        for content in ["", "not a library", "\x7fELF and then nothing"] {
            for name in ["libcuda.so.1", "libcuda.so"] {
                fs::write(directory.path().join(name), content).unwrap();
            }
            let finished = process::run_with("no driver", "LD_LIBRARY_PATH", directory.path(), LIMIT);
            let output = output(&finished);
            // The dynamic linker goes on to the next file of that name, as above.
            let told = output.lines().find(|line| line.starts_with("unavailable cuda"));
            assert!(told.is_none_or(|told| told.contains("libcuda.so.1")), "{output}");
        }
    });
}

#[test]
fn a_validation_layer_that_is_missing_is_named() {
    if process::role().is_some() {
        match Vulkan::new(VulkanOptions { validation: true }) {
            Err(Error::BackendUnavailable { reason, .. }) => lab::say(&format!("refused: {reason}")),
            Err(other) => panic!("{other}"),
            Ok(_) => lab::say("vulkan starts"),
        }
        return;
    }
    lab::alone(|| {
        if lab::tested().iter().all(|one| one.backend.is_err()) {
            return;
        }
        let nowhere = tempfile::tempdir().unwrap();
        let mut command = process::command("no layer");
        // Places where the loader looks for layers.
        for variable in
            ["HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_DATA_HOME", "VK_LAYER_PATH"]
        {
            command.env(variable, nowhere.path());
        }
        let finished = process::run(&mut command, LIMIT);
        let output = output(&finished);
        let told = output.contains("vulkan-validationlayers") || output.contains("vulkan starts");
        assert!(told, "{output}");
    });
}

#[test]
fn a_wrong_device_variable_is_explained() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        for name in ["vulkan:77", "discrete", "nonsense", "cuda:0"] {
            let finished = process::run_with("wrong name", "ONEBUF_DEVICE", name, LIMIT);
            let output = output(&finished);
            if opened(output) {
                continue; // There is one.
            }
            assert!(output.contains(name) && output.contains("ONEBUF_DEVICE"), "{output}");
        }
        // No text, so no device; and not the default in its place.
        let name = std::ffi::OsStr::from_bytes(b"vulkan:\xff");
        let finished = process::run_with("wrong name", "ONEBUF_DEVICE", name, LIMIT);
        let told = output(&finished);
        assert!(!opened(told) && told.contains("ONEBUF_DEVICE"), "{told}");
        for name in ["", "  "] {
            let finished = process::run_with("no name", "ONEBUF_DEVICE", name, LIMIT);
            let found = lab::registry().default_choice().is_ok();
            assert_eq!(opened(output(&finished)), found, "{}", finished.output);
        }
    });
}

#[test]
fn the_mock_driver_is_handled_without_a_crash() {
    if is_child() {
        return;
    }
    lab::alone(|| {
        let Some(mock) = std::env::var_os("ONEBUF_MOCK_ICD") else {
            return lab::say("skipped: ONEBUF_MOCK_ICD names no mock driver");
        };
        let mut command = process::command("mock");
        command.env("VK_DRIVER_FILES", &mock).env("VK_ICD_FILENAMES", &mock);
        let finished = process::run(&mut command, LIMIT);
        let output = output(&finished);
        assert!(opened(output) || output.contains("refused: "), "{output}");
    });
}
