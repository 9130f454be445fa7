//! The report as one page that needs nothing beside itself, for a phone as well as for a wide screen.

use std::fmt::Write;

use onebuf::core::error::human_bytes;
use onebuf::core::report::{Answer, DeviceReport, Fact, Host, Outcome, Report, SemanticReport};

use super::table::{figures, significant};
use super::unusable_because;

const STYLE: &str = include_str!("page.css");

/// The page.
pub(super) fn render(report: &Report) -> String {
    let mut devices = String::new();
    for device in &report.devices {
        devices.push_str(&device_section(device));
    }
    if report.devices.is_empty() {
        devices.push_str("<p>No device was found. <code>onebuf doctor</code> says what is missing.</p>");
    }
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>onebuf: sharing report</title>
<style>
{STYLE}</style>
</head>
<body>
<h1>Sharing report</h1>
{host}
{LEGEND}
{devices}</body>
</html>
"#,
        host = host_line(&report.host),
    )
}

const LEGEND: &str = r"<p>Four facts a semantic, and none is another:</p>
<dl>
<dt>advertised</dt><dd>what the driver says: extensions, limits, memory types</dd>
<dt>permitted</dt><dd>what the operating system and the container allow</dd>
<dt>verified</dt><dd>what a self-test on this device found; skipped: there was nothing to test</dd>
<dt>cost</dt><dd>cached: as fast as the memory is; write-combined: write in order, never read; over-bus: each access crosses a
bus; migrating: the first access moves the page</dd>
</dl>";

/// Text as it may stand in an element or in a quoted attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn host_line(host: &Host) -> String {
    let container = host.container.as_ref().map_or_else(String::new, |c| format!("; in {c}"));
    let text = format!(
        "{}; {}, {} cores, {}{container}; onebuf {}",
        host.os,
        host.cpu,
        host.cores,
        human_bytes(host.memory_bytes),
        host.onebuf
    );
    format!("<p class=\"about\">{}</p>", escape(&text))
}

fn device_section(device: &DeviceReport) -> String {
    let title = format!("{}: {}", device.id, device.name);
    let memory = human_bytes(device.memory.total_bytes);
    let mut about = format!("{}; {}; {memory} of memory", device.kind, device.driver);
    if let Some(budget) = device.memory.budget_bytes {
        let _ = write!(about, ", {} free", human_bytes(budget));
    }
    if let Some(uuid) = device.uuid {
        let _ = write!(about, "; {uuid}");
    }
    let mut html =
        format!("<section>\n<h2>{}</h2>\n<p class=\"about\">{}</p>\n", escape(&title), escape(&about));
    if let Some(reason) = unusable_because(device) {
        let _ = writeln!(html, "<p class=\"bad\">Cannot be used: {}</p>", escape(reason));
    }
    html.push_str("<table>\n<thead><tr>");
    for column in ["semantic", "advertised", "permitted", "verified", "cost", "in a sentence"] {
        let _ = write!(html, "<th scope=\"col\">{column}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for semantic in &device.semantics {
        html.push_str(&row(device, semantic));
    }
    html.push_str("</tbody>\n</table>\n");
    html.push_str(&plot(device));
    html.push_str(&memory_kinds(device));
    html.push_str("</section>\n");
    html
}

fn row(device: &DeviceReport, semantic: &SemanticReport) -> String {
    let name = semantic.name.name();
    let level = match semantic.level.as_deref() {
        Some(level) if level != "none" => format!(" <small>{}</small>", escape(level)),
        _ => String::new(),
    };
    let verified = &semantic.verified;
    let (word, class) = match verified.outcome {
        Outcome::Passed if verified.ms < 1000.0 => (format!("passed {:.0} ms", verified.ms.max(1.0)), "good"),
        Outcome::Passed => (format!("passed {:.1} s", verified.ms / 1e3), "good"),
        Outcome::Failed => ("failed".to_owned(), "bad"),
        Outcome::Skipped | Outcome::NotRun => (verified.outcome.name().to_owned(), "none"),
    };
    let cost = semantic.cost.class.map_or("–", |class| class.name());
    // A device that cannot be used has said why above.
    let sentences = if unusable_because(device).is_some() { String::new() } else { sentences(semantic) };
    let advertised = semantic.advertised.value != Answer::No;
    format!(
        "<tr><th scope=\"row\">{name}{level}<small class=\"who\">{who}</small></th>{advertised}{permitted}\
         <td data-label=\"verified\"><span class=\"{class}\">{word}</span></td>\
         <td data-label=\"cost\">{cost}</td><td class=\"sentence\">{sentences}</td></tr>\n",
        who = escape(semantic.name.who()),
        advertised = answer("advertised", &semantic.advertised, true),
        permitted = answer("permitted", &semantic.permitted, advertised),
    )
}

fn sentences(semantic: &SemanticReport) -> String {
    let verified = &semantic.verified;
    let detail = if verified.detail.is_empty() || verified.detail == super::verify::NOT_ADVERTISED {
        String::new()
    } else {
        format!("<br><small>test {}: {}</small>", verified.outcome.name(), escape(&verified.detail))
    };
    escape(&semantic.summary) + &detail + &evidence(semantic)
}

/// A cell. What is permitted matters, and is coloured, where there is something to permit.
fn answer(label: &str, fact: &Fact, matters: bool) -> String {
    let class = match fact.value {
        _ if !matters => "none",
        Answer::Yes => "good",
        Answer::Partial => "part",
        Answer::No => "none",
    };
    format!("<td data-label=\"{label}\"><span class=\"{class}\">{}</span></td>", fact.value.name())
}

fn evidence(semantic: &SemanticReport) -> String {
    let mut items = String::new();
    for (what, fact) in [("advertised", &semantic.advertised), ("permitted", &semantic.permitted)] {
        for evidence in &fact.evidence {
            let text = format!("{what}: {} = {}", evidence.source, evidence.value);
            let _ = write!(items, "<li>{}</li>", escape(&text));
        }
    }
    if items.is_empty() {
        return String::new();
    }
    format!("<details><summary>evidence</summary><ul>{items}</ul></details>")
}

fn memory_kinds(device: &DeviceReport) -> String {
    if device.memory.kinds.is_empty() {
        return String::new();
    }
    let mut html = "<details><summary>kinds of memory</summary><ul>".to_owned();
    for kind in &device.memory.kinds {
        let mut text = format!("{}: {}, heap of {}", kind.name, kind.path, human_bytes(kind.heap_bytes));
        text.push_str(if kind.cached { ", cached" } else { ", not cached" });
        text.push_str(if kind.coherent { ", coherent" } else { ", not coherent" });
        if !kind.export.is_empty() {
            let _ = write!(text, ", exported as {}", kind.export.join(" or "));
        }
        let _ = write!(html, "<li>{}</li>", escape(&text));
    }
    html.push_str("</ul></details>\n");
    html
}

/// The three figures of a semantic, with the class of each one's bar.
const BARS: [(&str, &str); 3] = [("CPU reads", "read"), ("CPU writes", "write"), ("device reads", "device")];

/// Bandwidths as bars, drawn to one scale a device. The drawing is 360 units wide, which is a phone's width, and grows
/// with the page.
fn plot(device: &DeviceReport) -> String {
    const BAR: usize = 14;
    const LEFT: f64 = 92.0;
    const MOST: f64 = 212.0;
    let measured: Vec<(&str, [Option<f64>; 3])> = device
        .semantics
        .iter()
        .map(|semantic| (semantic.name.name(), figures(&semantic.cost)))
        .filter(|(_, figures)| figures.iter().any(Option::is_some))
        .collect();
    let all = measured.iter().flat_map(|(_, figures)| figures.iter().copied().flatten());
    let longest = all.filter(|figure| figure.is_finite()).fold(0.0, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let mut y = 4;
    let mut drawing = String::new();
    for (name, figures) in measured {
        let _ = write!(drawing, "<text x=\"0\" y=\"{}\" class=\"name\">{name}</text>", y + BAR - 3);
        for ((what, class), figure) in BARS.iter().zip(figures) {
            let Some(figure) = figure.filter(|figure| figure.is_finite()) else { continue };
            let width = (figure / longest * MOST).max(1.0);
            let label = significant(figure);
            let _ = write!(
                drawing,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" class=\"{class}\">\
                 <title>{name}: {what} {label} GB/s</title></rect>\
                 <text x=\"{at:.1}\" y=\"{base}\">{label}</text>",
                height = BAR - 2,
                at = LEFT + width + 4.0,
                base = y + BAR - 4,
            );
            y += BAR;
        }
        y += 8;
    }
    let key: String = BARS.iter().map(|(what, class)| format!("<li class=\"{class}\">{what}</li>")).collect();
    format!(
        "<h3>Bandwidths, GB/s</h3>\n<ul class=\"key\">{key}</ul>\n\
         <svg viewBox=\"0 0 360 {y}\" role=\"img\" aria-label=\"Bandwidths in gigabytes a second\">{drawing}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use onebuf::core::report::{Cost, Evidence, MemoryReport, SCHEMA, Verified, WorkgroupReport};
    use onebuf::{DeviceId, DeviceKind, Semantic};

    use super::*;

    const HOSTILE: &str = "<script>alert('&\"')</script>";

    fn report() -> Report {
        let semantics = Semantic::ALL.map(|name| SemanticReport {
            name,
            level: Some(HOSTILE.into()),
            advertised: Fact::new(Answer::Yes, vec![Evidence::new(HOSTILE, HOSTILE)]),
            permitted: Fact::new(Answer::Partial, vec![Evidence::new(HOSTILE, HOSTILE)]),
            verified: Verified { outcome: Outcome::Passed, detail: HOSTILE.into(), ms: 3.0 },
            cost: Cost {
                class: None,
                host_read_gbps: Some(4.0),
                host_write_gbps: None,
                device_read_gbps: Some(f64::NAN),
            },
            summary: HOSTILE.into(),
        });
        let device = DeviceReport {
            id: DeviceId::new("vulkan", 0),
            backend: "vulkan".into(),
            name: HOSTILE.into(),
            kind: DeviceKind::Software,
            uuid: None,
            driver: HOSTILE.into(),
            memory: MemoryReport { total_bytes: 1, budget_bytes: Some(1), kinds: Vec::new() },
            workgroup: WorkgroupReport {
                memory_bytes: 1,
                max_invocations: 1,
                max_size: [1; 3],
                subgroup_size: [1; 2],
            },
            semantics: semantics.into(),
        };
        let host = Host {
            os: HOSTILE.into(),
            cpu: HOSTILE.into(),
            container: Some(HOSTILE.into()),
            ..Host::default()
        };
        Report { schema: SCHEMA.into(), host, devices: vec![device] }
    }

    #[test]
    fn whatever_a_driver_says_stays_text() {
        let page = render(&report());
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)"));
        assert!(!page.contains("http"), "the page must need nothing beside itself");
    }

    #[test]
    fn every_semantic_has_a_row_and_what_was_measured_a_bar() {
        let page = render(&report());
        for semantic in Semantic::ALL {
            assert_eq!(page.matches(&format!("<th scope=\"row\">{semantic}")).count(), 1, "{semantic}");
        }
        assert_eq!(page.matches("<rect").count(), Semantic::ALL.len());
        let mut empty = report();
        empty.devices.clear();
        assert!(render(&empty).contains("onebuf doctor"));
    }
}
