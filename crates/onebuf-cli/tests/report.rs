//! `onebuf report`.

mod support;

use serde_json::Value;
use support::{devices, expect, json, mock, onebuf, text, with_driver, without_drivers};

const SEMANTICS: [&str; 11] = [
    "unified",
    "uma",
    "host-mapped",
    "host-import",
    "workgroup",
    "process",
    "api",
    "framework",
    "peer",
    "system",
    "host-atomics",
];

fn one_of(value: &Value, allowed: &[&str]) {
    assert!(value.as_str().is_some_and(|text| allowed.contains(&text)), "{value} is none of {allowed:?}");
}

fn keys(value: &Value, wanted: &[&str]) {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut wanted = wanted.to_vec();
    keys.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
}

/// Every field of the schema, its type and its values.
fn check_schema(report: &Value) {
    keys(report, &["schema", "host", "devices"]);
    assert_eq!(report["schema"], "onebuf.report/1");
    let host = &report["host"];
    keys(host, &["os", "cpu", "cores", "memory_bytes", "container", "onebuf"]);
    assert!(host["os"].as_str().unwrap().contains("kernel"));
    assert!(host["cores"].as_u64().unwrap() > 0 && host["memory_bytes"].as_u64().unwrap() > 0);
    assert!(host["container"].is_null() || host["container"].is_string());
    assert_eq!(host["onebuf"], env!("CARGO_PKG_VERSION"));
    for device in report["devices"].as_array().unwrap() {
        keys(
            device,
            &["id", "backend", "name", "kind", "uuid", "driver", "memory", "workgroup", "semantics"],
        );
        one_of(&device["kind"], &["discrete", "integrated", "virtual", "software", "other"]);
        assert!(
            device["id"].as_str().unwrap().starts_with(&format!("{}:", device["backend"].as_str().unwrap()))
        );
        keys(&device["memory"], &["total_bytes", "budget_bytes", "kinds"]);
        for kind in device["memory"]["kinds"].as_array().unwrap() {
            keys(kind, &["name", "path", "heap_bytes", "cached", "coherent", "export"]);
        }
        keys(&device["workgroup"], &["memory_bytes", "max_invocations", "max_size", "subgroup_size"]);
        let names: Vec<&str> = device["semantics"]
            .as_array()
            .unwrap()
            .iter()
            .map(|semantic| semantic["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, SEMANTICS);
        device["semantics"].as_array().unwrap().iter().for_each(check_semantic);
    }
}

fn check_semantic(semantic: &Value) {
    let mut fields = vec!["name", "advertised", "permitted", "verified", "cost", "summary"];
    if semantic.get("level").is_some() {
        fields.push("level");
        one_of(&semantic["level"], &["none", "exclusive", "managed", "system-software", "system-hardware"]);
    }
    keys(semantic, &fields);
    for fact in ["advertised", "permitted"] {
        keys(&semantic[fact], &["value", "evidence"]);
        one_of(&semantic[fact]["value"], &["yes", "no", "partial"]);
        for evidence in semantic[fact]["evidence"].as_array().unwrap() {
            keys(evidence, &["source", "value"]);
            assert!(evidence["source"].is_string() && evidence["value"].is_string());
        }
    }
    assert!(!semantic["advertised"]["evidence"].as_array().unwrap().is_empty(), "{semantic}");
    let verified = &semantic["verified"];
    keys(verified, &["outcome", "detail", "ms"]);
    one_of(&verified["outcome"], &["passed", "failed", "skipped", "not-run"]);
    assert!(verified["detail"].is_string() && verified["ms"].is_number());
    let cost = &semantic["cost"];
    keys(cost, &["class", "host_read_gbps", "host_write_gbps", "device_read_gbps"]);
    if !cost["class"].is_null() {
        one_of(&cost["class"], &["cached", "write-combined", "over-bus", "migrating"]);
    }
    for figure in ["host_read_gbps", "host_write_gbps", "device_read_gbps"] {
        assert!(cost[figure].is_null() || cost[figure].as_f64().is_some_and(|gbps| gbps > 0.0), "{cost}");
    }
    assert!(!semantic["summary"].as_str().unwrap().is_empty());
}

fn semantic<'a>(device: &'a Value, name: &str) -> &'a Value {
    device["semantics"].as_array().unwrap().iter().find(|semantic| semantic["name"] == name).unwrap()
}

#[test]
fn nothing_is_verified_or_measured_unless_asked() {
    if devices().is_empty() {
        return;
    }
    let report = json(&mut onebuf(&["report", "--json"]), 0);
    check_schema(&report);
    for device in report["devices"].as_array().unwrap() {
        for semantic in device["semantics"].as_array().unwrap() {
            assert_eq!(semantic["verified"]["outcome"], "not-run");
            assert!(semantic["cost"]["host_read_gbps"].is_null());
        }
    }
}

/// On every device: what is advertised and permitted passes its self-test and has figures, and nothing else does.
#[test]
fn what_is_advertised_passes_and_has_figures() {
    for id in devices() {
        let report = json(&mut onebuf(&["report", "--device", &id, "--verify", "--measure", "--json"]), 0);
        check_schema(&report);
        let all = report["devices"].as_array().unwrap();
        assert_eq!(all.len(), 1);
        let device = &all[0];
        assert_eq!(device["id"], id.as_str());
        for name in SEMANTICS {
            let semantic = semantic(device, name);
            let (verified, cost) = (&semantic["verified"], &semantic["cost"]);
            let claimed = semantic["advertised"]["value"] != "no";
            assert_ne!(verified["outcome"], "not-run", "{semantic}");
            assert_ne!(verified["detail"], "", "{semantic}");
            if !claimed {
                assert_eq!(verified["outcome"], "skipped", "{semantic}");
                assert_eq!(verified["detail"], "not advertised");
            }
            let tested =
                ["unified", "uma", "host-mapped", "host-import", "workgroup", "process", "framework"]
                    .contains(&name);
            if claimed && tested && semantic["permitted"]["value"] != "no" {
                assert_eq!(verified["outcome"], "passed", "{semantic}");
                assert!(verified["ms"].as_f64().unwrap() > 0.0);
            }
            let has_memory = ["unified", "uma", "host-mapped", "host-import", "process"].contains(&name);
            if claimed && has_memory {
                assert!(cost["device_read_gbps"].is_number(), "{semantic}");
            } else {
                assert!(cost["device_read_gbps"].is_null(), "{semantic}");
            }
            if claimed && ["uma", "host-import"].contains(&name) {
                assert!(
                    cost["host_read_gbps"].is_number() && cost["host_write_gbps"].is_number(),
                    "{semantic}"
                );
            }
        }
        assert_eq!(semantic(device, "workgroup")["verified"]["outcome"], "passed");
    }
}

#[test]
fn the_table_fits_and_explains_itself() {
    if devices().is_empty() {
        return;
    }
    for args in [vec!["report"], vec!["report", "--evidence"]] {
        let out = text(&expect(&mut onebuf(&args), 0).stdout);
        for line in out.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        for name in SEMANTICS {
            assert!(out.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in\n{out}");
        }
        for fact in ["advertised", "permitted", "verified", "cost"] {
            assert!(out.lines().any(|line| line.starts_with(&format!("  {fact}"))), "{fact}");
        }
        assert!(!out.contains('\x1b'), "colours without a terminal");
        assert_eq!(out.contains("maxComputeSharedMemorySize"), args.len() == 2);
    }
}

#[test]
fn the_page_needs_nothing_beside_itself() {
    let Some(id) = devices().into_iter().next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let path = page.to_str().unwrap();
    let report = json(&mut onebuf(&["report", "--device", &id, "--measure", "--json", "--html", path]), 0);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("name=\"viewport\""));
    for outside in ["http:", "https:", "src=", "<link", "<script", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    for name in SEMANTICS {
        assert!(html.contains(&format!("<th scope=\"row\">{name}")), "{name}");
    }
    let measured = report["devices"][0]["semantics"].as_array().unwrap().iter();
    let figures = measured.flat_map(|semantic| {
        ["host_read_gbps", "host_write_gbps", "device_read_gbps"]
            .map(|figure| semantic["cost"][figure].is_number())
    });
    assert_eq!(html.matches("<rect").count(), figures.filter(|measured| *measured).count());

    let nowhere = expect(&mut onebuf(&["report", "--html", "/nonexistent/report.html"]), 1);
    assert!(text(&nowhere.stderr).contains("/nonexistent/report.html"));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let output = expect(&mut onebuf(&["report", "--device", "vulkan:99"]), 1);
    assert!(text(&output.stderr).contains("vulkan:99"));
    let report = json(&mut without_drivers(&["report", "--json"]), 1);
    assert_eq!(report["devices"].as_array().unwrap().len(), 0);
}

/// A driver that answers every query and runs nothing passes no test, and holds nobody up.
#[test]
fn a_driver_that_runs_nothing_fails() {
    let Some(mock) = mock() else { return };
    let mut command = with_driver(&["report", "--verify", "--measure", "--json"], &mock);
    command.timeout(std::time::Duration::from_secs(120));
    let report = json(&mut command, 1);
    check_schema(&report);
    let device = &report["devices"][0];
    let all = device["semantics"].as_array().unwrap();
    for semantic in all {
        assert_eq!(semantic["verified"]["outcome"], "failed", "{semantic}");
        assert!(semantic["verified"]["detail"].as_str().unwrap().contains("cannot be used"), "{semantic}");
    }
    assert!(all.iter().all(|semantic| semantic["cost"]["device_read_gbps"].is_null()));
    let out = text(&expect(&mut with_driver(&["report", "--verify"], &mock), 1).stdout);
    assert!(out.contains("cannot be used"), "{out}");
    for name in SEMANTICS {
        let line = out.lines().find(|line| line.starts_with(&format!("{name} ")));
        assert!(line.is_some_and(|line| line.contains(" failed ")), "{name}: {out}");
    }
}
