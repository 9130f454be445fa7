//! The report's JSON: others script against it, so its shape is fixed here to the letter.

use onebuf_core::report::{
    Answer, Cost, DeviceReport, Evidence, Fact, Host, MemoryKindReport, MemoryReport, Outcome, Report,
    SCHEMA, SemanticReport, Verified, WorkgroupReport,
};
use onebuf_core::{CostClass, DeviceId, DeviceKind, DeviceUuid, Semantic};
use serde_json::{Value, json};

fn unified() -> SemanticReport {
    SemanticReport {
        name: Semantic::Unified,
        level: Some("managed".into()),
        advertised: Fact::new(Answer::Yes, vec![Evidence::new("concurrentManagedAccess", 1)]),
        permitted: Fact::new(Answer::Partial, vec![Evidence::new("RLIMIT_MEMLOCK", "64 KiB")]),
        verified: Verified { outcome: Outcome::Passed, detail: "1 MiB, both ways".into(), ms: 1.5 },
        cost: Cost {
            class: Some(CostClass::Migrating),
            host_read_gbps: Some(3.5),
            host_write_gbps: None,
            device_read_gbps: Some(3440.0),
        },
        summary: "CPU and GPU use one pointer.".into(),
    }
}

fn silent(name: Semantic) -> SemanticReport {
    SemanticReport {
        name,
        level: None,
        advertised: Fact::new(Answer::of(false), Vec::new()),
        permitted: Fact::new(Answer::of(true), Vec::new()),
        verified: Verified::not_run(),
        cost: Cost::default(),
        summary: String::new(),
    }
}

fn report() -> Report {
    let semantics = Semantic::ALL
        .into_iter()
        .map(|name| if name == Semantic::Unified { unified() } else { silent(name) })
        .collect();
    Report {
        schema: SCHEMA.into(),
        host: Host {
            os: "Linux 6.1".into(),
            cpu: "any".into(),
            cores: 2,
            memory_bytes: 24 << 30,
            container: None,
            onebuf: "0.1.0".into(),
        },
        devices: vec![DeviceReport {
            id: DeviceId::new("vulkan", 0),
            backend: "vulkan".into(),
            name: "llvmpipe".into(),
            kind: DeviceKind::Software,
            uuid: Some(DeviceUuid([0xab; 16])),
            driver: "Mesa 25.0.7".into(),
            memory: MemoryReport {
                total_bytes: 2 << 30,
                budget_bytes: None,
                kinds: vec![MemoryKindReport {
                    name: "type 0".into(),
                    path: "uma".into(),
                    heap_bytes: 2 << 30,
                    cached: true,
                    coherent: true,
                    export: vec!["opaque-fd".into()],
                }],
            },
            workgroup: WorkgroupReport {
                memory_bytes: 32768,
                max_invocations: 1024,
                max_size: [1024, 1024, 64],
                subgroup_size: [8, 8],
            },
            semantics,
        }],
    }
}

#[test]
fn the_json_is_the_schema() {
    let value = serde_json::to_value(report()).unwrap();
    assert_eq!(value["schema"], "onebuf.report/1");
    assert_eq!(
        value["host"],
        json!({
            "os": "Linux 6.1", "cpu": "any", "cores": 2, "memory_bytes": 25_769_803_776u64, "container": null,
            "onebuf": "0.1.0",
        })
    );
    let device = &value["devices"][0];
    assert_eq!(
        keys(device),
        ["backend", "driver", "id", "kind", "memory", "name", "semantics", "uuid", "workgroup"]
    );
    assert_eq!((&device["id"], &device["kind"]), (&json!("vulkan:0"), &json!("software")));
    assert_eq!(device["uuid"], "abababab-abab-abab-abab-abababababab");
    assert_eq!(
        device["memory"],
        json!({
            "total_bytes": 2_147_483_648u64, "budget_bytes": null,
            "kinds": [{
                "name": "type 0", "path": "uma", "heap_bytes": 2_147_483_648u64, "cached": true, "coherent": true,
                "export": ["opaque-fd"],
            }],
        })
    );
    assert_eq!(
        device["workgroup"],
        json!({
            "memory_bytes": 32768, "max_invocations": 1024, "max_size": [1024, 1024, 64], "subgroup_size": [8, 8],
        })
    );
    assert_eq!(
        device["semantics"][0],
        json!({
            "name": "unified", "level": "managed",
            "advertised": {"value": "yes", "evidence": [{"source": "concurrentManagedAccess", "value": "1"}]},
            "permitted": {"value": "partial", "evidence": [{"source": "RLIMIT_MEMLOCK", "value": "64 KiB"}]},
            "verified": {"outcome": "passed", "detail": "1 MiB, both ways", "ms": 1.5},
            "cost": {
                "class": "migrating", "host_read_gbps": 3.5, "host_write_gbps": null, "device_read_gbps": 3440.0,
            },
            "summary": "CPU and GPU use one pointer.",
        })
    );
    // Without levels there is no `level`, and what nobody tested says so.
    assert_eq!(
        device["semantics"][1],
        json!({
            "name": "uma",
            "advertised": {"value": "no", "evidence": []},
            "permitted": {"value": "yes", "evidence": []},
            "verified": {"outcome": "not-run", "detail": "", "ms": 0.0},
            "cost": {"class": null, "host_read_gbps": null, "host_write_gbps": null, "device_read_gbps": null},
            "summary": "",
        })
    );
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn every_name_is_there_in_the_documented_order() {
    let value = serde_json::to_value(report()).unwrap();
    let names: Vec<&Value> = value["devices"][0]["semantics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|semantic| &semantic["name"])
        .collect();
    assert_eq!(
        names,
        [
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
        ]
    );
}

#[test]
fn words_are_fixed() {
    for answer in [Answer::Yes, Answer::No, Answer::Partial] {
        assert_eq!(serde_json::to_value(answer).unwrap(), answer.name());
    }
    for outcome in [Outcome::Passed, Outcome::Failed, Outcome::Skipped, Outcome::NotRun] {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
    }
    for class in [CostClass::Cached, CostClass::WriteCombined, CostClass::OverBus, CostClass::Migrating] {
        assert_eq!(serde_json::to_value(class).unwrap(), class.name());
    }
    let kinds = [
        DeviceKind::Discrete,
        DeviceKind::Integrated,
        DeviceKind::Virtual,
        DeviceKind::Software,
        DeviceKind::Other,
    ];
    for kind in kinds {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
}

#[test]
fn a_report_survives_json() {
    let report = report();
    let text = serde_json::to_string_pretty(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    for (from, to) in
        [("\"passed\"", "\"PASSED\""), ("\"unified\"", "\"shared\""), ("\"vulkan:0\"", "\"vulkan\"")]
    {
        assert!(serde_json::from_str::<Report>(&text.replace(from, to)).is_err(), "{to}");
    }
    assert_eq!(Verified::skipped("no fd left").outcome, Outcome::Skipped);
}
