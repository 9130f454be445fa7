//! `onebuf doctor`.

mod support;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use support::{devices, expect, json, mock, onebuf, skipped, text, with_driver, write};

fn checks<'a>(findings: &'a Value, id: &str) -> Vec<&'a Value> {
    findings["checks"].as_array().unwrap().iter().filter(|check| check["id"] == id).collect()
}

fn check_schema(findings: &Value) {
    assert_eq!(findings["schema"], "onebuf.doctor/1");
    assert!(findings["can_run"].is_boolean());
    let mut ids: Vec<&str> = Vec::new();
    for check in findings["checks"].as_array().unwrap() {
        ids.push(check["id"].as_str().unwrap());
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "warn", "fail"].contains(&status), "{check}");
        assert!(!check["finding"].as_str().unwrap().is_empty());
        assert!(check["evidence"].as_array().unwrap().iter().all(Value::is_string));
        assert!(check["remedy"].is_null() || check["remedy"].is_string());
    }
    for id in [
        "vulkan-loader",
        "vulkan-driver",
        "device",
        "device-nodes",
        "memlock",
        "open-files",
        "container",
        "sharing-memory",
        "sharing-sockets",
        "sharing-shm",
        "cuda-library",
        "nvrtc",
        "validation-layer",
    ] {
        assert!(ids.contains(&id), "{id} in {ids:?}");
    }
}

#[test]
fn a_machine_with_a_device_can_run() {
    if devices().is_empty() {
        return;
    }
    let findings = json(&mut onebuf(&["doctor", "--json"]), 0);
    check_schema(&findings);
    assert_eq!(findings["can_run"], true);
    let loader = checks(&findings, "vulkan-loader")[0];
    assert_eq!(loader["status"], "ok");
    assert!(loader["evidence"][0].as_str().unwrap().contains("libvulkan.so"), "{loader}");
    assert!(checks(&findings, "vulkan-driver").iter().any(|check| check["status"] == "ok"));
    assert!(findings["checks"].as_array().unwrap().iter().all(|check| check["status"] != "fail"));
    assert_eq!(checks(&findings, "sharing-memory")[0]["status"], "ok");
    let shared = checks(&findings, "sharing-device");
    assert!(
        shared.iter().any(|check| check["finding"].as_str().unwrap().contains("can be shared as")),
        "{shared:?}"
    );
    let out = text(&expect(&mut onebuf(&["doctor"]), 0).stdout);
    assert!(out.lines().any(|line| line.starts_with("ok    vulkan-loader")), "{out}");
}

/// Each way in which the variable can be wrong is told by name, and how to mend it.
#[test]
fn a_broken_variable_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let no_json = write(folder.path(), "no-json.json", b"{ not json");
    let no_library = write(
        folder.path(),
        "no-library.json",
        br#"{"file_format_version": "1.0.0", "ICD": {"library_path": "./libnothing.so", "api_version": "1.3.0"}}"#,
    );
    // A library that is none of a driver's: libc.
    let no_driver = write(
        folder.path(),
        "no-driver.json",
        br#"{"file_format_version": "1.0.0", "ICD": {"library_path": "libc.so.6", "api_version": "1.3.0"}}"#,
    );
    for (manifest, finding) in [
        ("/nonexistent/driver.json", "VK_DRIVER_FILES names a file that is not there"),
        (&no_json, "its manifest cannot be used: it is no JSON"),
        (&no_library, "its library cannot be opened"),
        (&no_driver, "its library is no Vulkan driver"),
    ] {
        let findings = json(&mut with_driver(&["doctor", "--json"], manifest), 1);
        check_schema(&findings);
        assert_eq!(findings["can_run"], false);
        let drivers = checks(&findings, "vulkan-driver");
        assert_eq!(drivers.len(), 1, "{findings}");
        assert_eq!(drivers[0]["status"], "fail");
        assert!(drivers[0]["finding"].as_str().unwrap().contains(finding), "{findings}");
        assert!(drivers[0]["remedy"].is_string() && !drivers[0]["evidence"].as_array().unwrap().is_empty());
        assert!(checks(&findings, "device").iter().any(|check| check["status"] == "fail"));
    }
    let why = json(&mut with_driver(&["doctor", "--json"], &no_library), 1);
    let evidence = checks(&why, "vulkan-driver")[0]["evidence"].to_string();
    assert!(evidence.contains("libnothing.so: cannot open shared object file"), "{evidence}");
}

#[test]
fn a_device_that_is_too_old_is_named() {
    let Some(mock) = mock() else { return };
    let findings = json(&mut with_driver(&["doctor", "--json"], mock), 1);
    let device = checks(&findings, "device")[0];
    assert_eq!(device["status"], "fail");
    assert!(device["finding"].as_str().unwrap().contains("cannot be used"), "{device}");
    assert!(device["remedy"].as_str().unwrap().contains("newer driver"));
}

/// A driver that ends its process does not end the doctor.
#[test]
fn a_driver_that_crashes_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let source = write(
        folder.path(),
        "crash.c",
        b"#include <stdlib.h>\n\
          int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *v) { (void)v; abort(); }\n\
          void *vk_icdGetInstanceProcAddr(void *i, const char *n) { (void)i; (void)n; abort(); }\n",
    );
    let library: PathBuf = folder.path().join("libcrash.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skipped("no C compiler for a driver that crashes");
    }
    let manifest = write(
        folder.path(),
        "crash.json",
        br#"{"file_format_version": "1.0.0", "ICD": {"library_path": "./libcrash.so", "api_version": "1.3.0"}}"#,
    );
    let findings = json(&mut with_driver(&["doctor", "--json"], manifest), 1);
    check_schema(&findings);
    let device = checks(&findings, "device")[0];
    assert!(device["finding"].as_str().unwrap().contains("died of SIGABRT"), "{device}");
    assert_eq!(device["status"], "fail");
    // Opened alone it does no harm, which is told as well.
    assert_eq!(checks(&findings, "vulkan-driver")[0]["status"], "ok");
}
