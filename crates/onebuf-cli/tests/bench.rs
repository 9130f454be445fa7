//! `onebuf bench`.

mod support;

use support::{devices, expect, json, onebuf, text};

#[test]
fn json_has_every_field_and_nothing_else() {
    let Some(id) = devices().into_iter().next() else { return };
    let report = json(&mut onebuf(&["bench", "6", "--rounds", "2", "--device", &id, "--json"]), 0);
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().map(String::clone).collect()
    };
    assert_eq!(report["schema"], "onebuf.bench/1");
    assert_eq!(report["device"]["id"], id.as_str());
    let mut top = keys(&report);
    top.sort();
    assert_eq!(top, ["device", "lines", "schema"]);
    let lines = report["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 1);
    let line = &lines[0];
    let known = [
        "control",
        "goal",
        "line",
        "met",
        "name",
        "onebuf",
        "peer",
        "ratio_peer",
        "ratio_raw",
        "raw",
        "rounds",
        "unit",
    ];
    for key in keys(line) {
        assert!(known.contains(&key.as_str()), "{key}");
    }
    assert_eq!((&line["line"], &line["unit"], &line["rounds"]), (&6.into(), &"us".into(), &2.into()));
    assert!(line["onebuf"].as_f64().unwrap() > 0.0);
    assert!(line["control"].as_f64().unwrap() > 0.0);
    assert!(line["met"].is_boolean() && line["goal"].as_str().unwrap().contains("0.5 us"));
    // A ratio comes with the time it is of, and below 1 is onebuf faster.
    assert_eq!(line["raw"].is_number(), line["ratio_raw"].is_number());
    assert_eq!(line["peer"].is_object(), line["ratio_peer"].is_number());
}

#[test]
fn the_table_fits_100_columns() {
    let Some(id) = devices().into_iter().next() else { return };
    let out = text(&expect(&mut onebuf(&["bench", "1", "6", "--rounds", "1", "--device", &id]), 0).stdout);
    let table = out.lines().skip_while(|line| !line.contains("control"));
    assert!(table.clone().count() > 2, "{out}");
    assert!(table.into_iter().all(|line| line.chars().count() <= 100), "{out}");
}

#[test]
fn wrong_use_is_told() {
    for wrong in [&["bench", "9"][..], &["bench", "x"], &["bench", "--rounds", "0"]] {
        expect(&mut onebuf(wrong), 2);
    }
    let error = text(&expect(&mut onebuf(&["bench", "9"]), 2).stderr);
    assert!(error.contains("the lines are 1, 2, 3, 4, 5, 6, 7, 16"), "{error}");
}
