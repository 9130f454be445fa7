//! The report as a table for people, at most 100 columns wide.

use comfy_table::{ContentArrangement, Table, presets};
use onebuf::core::error::human_bytes;
use onebuf::core::report::{Cost, DeviceReport, Fact, Outcome, Report, SemanticReport};

const WIDTH: u16 = 100;

const LEGEND: &str = "\
advertised  what the driver says: extensions, limits, memory types
permitted   what the operating system and the container allow
verified    what a self-test on this device found; not-run without --verify
cost        cached: as fast as the memory is; write-combined: write in order, never read;
            over-bus: each access crosses a bus; migrating: the first access moves the page
";

const GBPS: &str = "\
GB/s        in 10^9 bytes a second: CPU read, CPU write (one thread, in place), device read
";

/// The whole report.
pub(super) fn render(report: &Report, evidence: bool) -> String {
    let host = &report.host;
    let mut text =
        format!("{}\n{}, {} cores, {}", host.os, host.cpu, host.cores, human_bytes(host.memory_bytes));
    if let Some(container) = &host.container {
        text.push_str(&format!(", in {container}"));
    }
    text.push('\n');
    for device in &report.devices {
        text.push('\n');
        text.push_str(&head(device));
        text.push_str(&table(device));
        text.push('\n');
        text.push_str(&remarks(device));
        if evidence {
            text.push_str(&all_evidence(device));
        }
    }
    if !report.devices.is_empty() {
        text.push('\n');
        text.push_str(LEGEND);
        if report.devices.iter().any(measured) {
            text.push_str(GBPS);
        }
    }
    text
}

fn measured(device: &DeviceReport) -> bool {
    device.semantics.iter().any(|semantic| gbps(&semantic.cost).is_some())
}

fn head(device: &DeviceReport) -> String {
    let mut text = format!("{}  {}  ({})\n", device.id, device.name, device.kind);
    let mut line = format!("  {}, {} of memory", device.driver, human_bytes(device.memory.total_bytes));
    if let Some(budget) = device.memory.budget_bytes {
        line.push_str(&format!(", {} free", human_bytes(budget)));
    }
    if let Some(uuid) = device.uuid {
        line.push_str(&format!(", {uuid}"));
    }
    text.push_str(&line);
    text.push('\n');
    text
}

fn table(device: &DeviceReport) -> String {
    let figures = measured(device);
    let mut header = vec!["semantic", "advertised", "permitted", "verified", "cost"];
    if figures {
        header.push("GB/s");
    }
    header.push("in a sentence");
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header);
    for semantic in &device.semantics {
        let mut row = vec![
            name(semantic),
            semantic.advertised.value.name().to_owned(),
            semantic.permitted.value.name().to_owned(),
            verified(semantic),
            semantic.cost.class.map_or("-", |class| class.name()).to_owned(),
        ];
        if figures {
            row.push(gbps(&semantic.cost).unwrap_or_else(|| "-".into()));
        }
        row.push(semantic.summary.clone());
        table.add_row(row);
    }
    table.to_string()
}

fn name(semantic: &SemanticReport) -> String {
    match semantic.level.as_deref() {
        Some(level) if level != "none" => format!("{} ({level})", semantic.name),
        _ => semantic.name.to_string(),
    }
}

fn verified(semantic: &SemanticReport) -> String {
    match semantic.verified.outcome {
        Outcome::Passed => format!("passed {:.0} ms", semantic.verified.ms.max(1.0)),
        other => other.name().to_owned(),
    }
}

fn gbps(cost: &Cost) -> Option<String> {
    let figures = [cost.host_read_gbps, cost.host_write_gbps, cost.device_read_gbps];
    if figures.iter().all(Option::is_none) {
        return None;
    }
    Some(figures.map(|figure| figure.map_or_else(|| "-".into(), short)).join(" / "))
}

/// Three significant digits are what a measurement holds.
pub(super) fn short(figure: f64) -> String {
    match figure {
        f if f >= 100.0 => format!("{f:.0}"),
        f if f >= 10.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

/// What the tests saw, where a word in the table says too little.
fn remarks(device: &DeviceReport) -> String {
    let mut text = String::new();
    for semantic in &device.semantics {
        let verified = &semantic.verified;
        let detail = match verified.outcome {
            Outcome::Failed | Outcome::Passed => &verified.detail,
            Outcome::Skipped if verified.detail != "not advertised" => &verified.detail,
            Outcome::Skipped | Outcome::NotRun => continue,
        };
        text.push_str(&entry(&format!("{} {}: {detail}", semantic.name, verified.outcome.name())));
    }
    text
}

fn all_evidence(device: &DeviceReport) -> String {
    let mut text = String::new();
    for semantic in &device.semantics {
        let mut list = |what: &str, fact: &Fact| {
            for evidence in &fact.evidence {
                text.push_str(&entry(&format!(
                    "{} {what}: {} = {}",
                    semantic.name, evidence.source, evidence.value
                )));
            }
        };
        list("advertised", &semantic.advertised);
        list("permitted", &semantic.permitted);
    }
    text
}

/// A line of a list, wrapped.
fn entry(text: &str) -> String {
    let most = usize::from(WIDTH) - 4;
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > most {
            lines.push_str(&format!("  {}{line}\n", if lines.is_empty() { "" } else { "  " }));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push_str(&format!("  {}{line}\n", if lines.is_empty() { "" } else { "  " }));
    lines
}
