//! The report as a table for people, at most 100 columns wide.

use super::unusable_because;
use onebuf::core::error::human_bytes;
use onebuf::core::report::{Cost, DeviceReport, Fact, Outcome, Report, SemanticReport};

const WIDTH: usize = 100;

/// Where a semantic's sentences begin, below its row.
const INDENT: usize = 14;

const LEGEND: &str = "\
Four facts a semantic, and none is another:
  advertised  what the driver says: extensions, limits, memory types (--evidence lists them)
  permitted   what the operating system and the container allow
  verified    what a self-test on this device found (--verify); skipped: there was nothing to test
  cost        cached: as fast as the memory is; write-combined: write in order, never read;
              over-bus: each access crosses a bus; migrating: the first access moves the page
";

const BANDWIDTHS: &str =
    "  GB/s        10^9 bytes a second: one CPU thread reads, writes in place; the device reads\n";

/// The whole report.
pub(super) fn render(report: &Report, evidence: bool) -> String {
    let host = &report.host;
    let mut machine =
        format!("{}; {}, {} cores, {}", host.os, host.cpu, host.cores, human_bytes(host.memory_bytes));
    if let Some(container) = &host.container {
        machine.push_str(&format!("; in {container}"));
    }
    let mut text = wrap(&machine, "", "  ");
    for device in &report.devices {
        text.push('\n');
        text.push_str(&head(device));
        text.push_str(&table(device, evidence));
    }
    if !report.devices.is_empty() {
        text.push('\n');
        text.push_str(LEGEND);
        if report.devices.iter().any(measured) {
            text.push_str(BANDWIDTHS);
        }
    }
    text
}

fn head(device: &DeviceReport) -> String {
    let mut about = format!("{}; {} of memory", device.driver, human_bytes(device.memory.total_bytes));
    if let Some(budget) = device.memory.budget_bytes {
        about.push_str(&format!(", {} free", human_bytes(budget)));
    }
    if let Some(uuid) = device.uuid {
        about.push_str(&format!("; {uuid}"));
    }
    let title = format!("{}: {} ({})", device.id, device.name, device.kind);
    let mut text = wrap(&title, "", "  ") + &wrap(&about, "  ", "  ");
    if let Some(reason) = unusable_because(device) {
        text.push_str(&wrap(&format!("cannot be used: {reason}"), "  ", "  "));
    }
    text
}

fn measured(device: &DeviceReport) -> bool {
    device.semantics.iter().any(|semantic| has_figures(&semantic.cost))
}

fn has_figures(cost: &Cost) -> bool {
    figures(cost).iter().any(Option::is_some)
}

/// What was measured: the CPU reads, the CPU writes, the device reads.
pub(super) fn figures(cost: &Cost) -> [Option<f64>; 3] {
    [cost.host_read_gbps, cost.host_write_gbps, cost.device_read_gbps]
}

fn table(device: &DeviceReport, evidence: bool) -> String {
    let bandwidths = measured(device);
    let row = |cells: [&str; 5], figures: [&str; 3]| {
        let [semantic, advertised, permitted, verified, cost] = cells;
        let mut line = format!("{semantic:INDENT$}{advertised:12}{permitted:11}{verified:16}{cost:16}");
        if bandwidths {
            let [read, write, device] = figures;
            line.push_str(&format!("{read:>10}{write:>8}{device:>13}"));
        }
        line.trim_end().to_owned() + "\n"
    };
    let rule = "-".repeat(if bandwidths { 100 } else { 85 }) + "\n";
    let mut text = row(
        ["semantic", "advertised", "permitted", "verified", "cost"],
        ["GB/s: read", "write", "device read"],
    );
    text.push_str(&rule);
    for semantic in &device.semantics {
        let figures = figures(&semantic.cost).map(|figure| figure.map_or_else(String::new, significant));
        text.push_str(&row(
            [
                semantic.name.name(),
                semantic.advertised.value.name(),
                semantic.permitted.value.name(),
                &verified(semantic),
                semantic.cost.class.map_or("-", |class| class.name()),
            ],
            [&figures[0], &figures[1], &figures[2]],
        ));
        for sentence in sentences(device, semantic, evidence) {
            let indent = " ".repeat(INDENT);
            text.push_str(&wrap(&sentence, &indent, &(indent.clone() + "  ")));
        }
    }
    text
}

fn verified(semantic: &SemanticReport) -> String {
    match semantic.verified.outcome {
        Outcome::Passed if semantic.verified.ms < 1000.0 => {
            format!("passed {:.0} ms", semantic.verified.ms.max(1.0))
        }
        Outcome::Passed => format!("passed {:.1} s", semantic.verified.ms / 1e3),
        other => other.name().to_owned(),
    }
}

/// What stands below a row. A device that cannot be used has said why above.
fn sentences(device: &DeviceReport, semantic: &SemanticReport, evidence: bool) -> Vec<String> {
    if unusable_because(device).is_some() {
        return Vec::new();
    }
    let mut all = vec![match semantic.level.as_deref() {
        Some(level) if level != "none" => format!("{level}: {}", semantic.summary),
        _ => semantic.summary.clone(),
    }];
    let verified = &semantic.verified;
    // "Not advertised" is in the row already.
    let told = verified.outcome == Outcome::Skipped && verified.detail == super::verify::NOT_ADVERTISED;
    if !verified.detail.is_empty() && !told {
        all.push(format!("test {}: {}", verified.outcome.name(), verified.detail));
    }
    if evidence {
        let mut list = |what: &str, fact: &Fact| {
            let lines = fact.evidence.iter().map(|e| format!("{what}: {} = {}", e.source, e.value));
            all.extend(lines);
        };
        list("advertised", &semantic.advertised);
        list("permitted", &semantic.permitted);
    }
    all
}

/// Three significant digits are what a measurement holds.
pub(super) fn significant(figure: f64) -> String {
    match figure {
        f if f >= 100.0 => format!("{f:.0}"),
        f if f >= 10.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

/// Lines of at most [`WIDTH`] columns; a word that is longer is broken.
fn wrap(text: &str, first: &str, rest: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    let mut used = 0;
    let mut indent = first;
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let room = WIDTH - indent.len();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= room {
                line.extend(std::iter::repeat_n(' ', gap).chain(word.iter().copied()));
                used += gap + word.len();
                break;
            }
            if used == 0 {
                line.extend(word.drain(..room));
            }
            lines.push_str(&format!("{indent}{line}\n"));
            line.clear();
            used = 0;
            indent = rest;
        }
    }
    if used > 0 {
        lines.push_str(&format!("{indent}{line}\n"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_at_most_100_columns() {
        let text = format!("a {} {} end", "long".repeat(80), "wörter ".repeat(60));
        for (first, rest) in [("", ""), ("  ", "      ")] {
            let wrapped = wrap(&text, first, rest);
            assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(letters(&wrapped), letters(&text));
        }
        assert_eq!(wrap("", "  ", ""), "");
        assert_eq!(wrap("two words", "* ", ""), "* two words\n");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.0312, 4.5, 12.34, 4321.0].map(significant), ["0.03", "4.50", "12.3", "4321"]);
    }
}
