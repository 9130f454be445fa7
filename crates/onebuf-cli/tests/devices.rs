//! `onebuf devices`.

mod support;

use std::process::{Command, Stdio};

use support::{devices, expect, json, mock, onebuf, text, with_driver, without_drivers};

#[test]
fn json_has_every_field() {
    let ids = devices();
    if ids.is_empty() {
        return;
    }
    let listing = json(&mut onebuf(&["devices", "--json"]), 0);
    assert_eq!(listing["schema"], "onebuf.devices/1");
    assert!(listing["unavailable"].is_array());
    let all = listing["devices"].as_array().unwrap();
    for device in all {
        assert!(device["id"].as_str().unwrap().starts_with(device["backend"].as_str().unwrap()));
        assert!(
            ["discrete", "integrated", "virtual", "software", "other"]
                .contains(&device["kind"].as_str().unwrap())
        );
        for field in ["name", "driver", "api"] {
            assert!(!device[field].as_str().unwrap().is_empty(), "{field}");
        }
        assert!(device["memory_bytes"].as_u64().unwrap() > 0);
        assert!(device["uuid"].is_null() || device["uuid"].as_str().unwrap().len() == 36);
        assert!(device.get("rejected").is_some());
    }
    assert_eq!(all.iter().filter(|device| device["default"].is_string()).count(), 1);
}

#[test]
fn a_line_a_device_and_the_default_is_marked() {
    let ids = devices();
    if ids.is_empty() {
        return;
    }
    let out = text(&expect(&mut onebuf(&["devices"]), 0).stdout);
    for id in &ids {
        assert_eq!(out.lines().filter(|line| line[2..].starts_with(id.as_str())).count(), 1, "{out}");
    }
    let marked: Vec<&str> = out.lines().filter(|line| line.starts_with("* ")).collect();
    assert_eq!(marked.len(), 1, "{out}");
    assert!(marked[0].contains("default: "), "{out}");
    assert!(!out.contains('\x1b'), "colours without a terminal");

    let named = text(&expect(onebuf(&["devices"]).env("ONEBUF_DEVICE", &ids[0]), 0).stdout);
    assert!(named.contains(&format!("* {}", ids[0])) && named.contains("named by ONEBUF_DEVICE"), "{named}");
    let wrong = expect(onebuf(&["devices"]).env("ONEBUF_DEVICE", "vulkan:99"), 0);
    assert!(text(&wrong.stderr).contains("no device is `vulkan:99`"));
}

#[test]
fn without_a_driver_it_says_what_to_do() {
    let output = expect(&mut without_drivers(&["devices"]), 1);
    assert!(output.stdout.is_empty());
    assert!(text(&output.stderr).contains("onebuf doctor"));
    let listing = json(&mut without_drivers(&["devices", "--json"]), 1);
    assert_eq!(listing["devices"].as_array().unwrap().len(), 0);
    let unavailable = listing["unavailable"].as_array().unwrap();
    let vulkan = unavailable.iter().find(|entry| entry["backend"] == "vulkan").unwrap();
    assert!(vulkan["reason"].as_str().unwrap().contains("cannot start"));
}

#[test]
fn a_device_that_cannot_be_used_says_why() {
    let Some(mock) = mock() else { return };
    let out = text(&expect(&mut with_driver(&["devices"], mock), 1).stdout);
    assert!(out.contains("rejected: "), "{out}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for args in [vec!["devices"], vec!["devices", "--json"], vec!["doctor"], vec!["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_onebuf"))
            .args(&args)
            .stdout(Stdio::from(writer))
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = text(&output.stderr);
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        // Without a device the listing itself is a failure.
        assert!(
            output.status.code().is_some_and(|code| code == 0 || !err.is_empty()),
            "{args:?}: {output:?}"
        );
    }
}
