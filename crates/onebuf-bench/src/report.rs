//! What a run gives: a line of figures for each benchmark, with its goal and whether it was met.

use std::fmt;

use onebuf::DeviceInfo;
use serde::Serialize;

use crate::measure::Outcome;

/// All lines of one device.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The layout of this structure as JSON.
    pub schema: &'static str,
    /// The device.
    pub device: Measured,
    /// The figures.
    pub lines: Vec<Line>,
}

/// The device that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its id, `vulkan:0`.
    pub id: String,
    /// The name the driver gives.
    pub name: String,
    /// What sort of device it is.
    pub kind: &'static str,
    /// Name and version of the driver.
    pub driver: String,
    /// Version of the API it offers.
    pub api: String,
}

impl Measured {
    pub(crate) fn new(info: &DeviceInfo) -> Measured {
        Measured {
            id: info.id.to_string(),
            name: info.name.clone(),
            kind: info.kind.name(),
            driver: info.driver.clone(),
            api: info.api.clone(),
        }
    }
}

/// One benchmark. Times are medians; ratios are medians of ratios within a round, and below 1 where onebuf is faster.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its number. Several benchmarks may belong to one line.
    pub line: u32,
    /// What was measured.
    pub name: String,
    /// The unit of the times.
    pub unit: &'static str,
    /// onebuf's time.
    pub onebuf: f64,
    /// The time of the same steps written by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<f64>,
    /// The time of what a user would take instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerTime>,
    /// onebuf's time over that of the same steps by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_raw: Option<f64>,
    /// onebuf's time over the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_peer: Option<f64>,
    /// onebuf's time over onebuf's time: how far the machine lets a ratio be trusted.
    pub control: f64,
    /// Rounds that counted.
    pub rounds: usize,
    /// What is wanted.
    pub goal: String,
    /// Whether it was had.
    pub met: bool,
}

/// The peer's time.
#[derive(Clone, Debug, Serialize)]
pub struct PeerTime {
    /// Who it is.
    pub name: &'static str,
    /// Its time.
    pub value: f64,
}

/// What is wanted of a line. A part that was not measured is not judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Goal {
    /// The largest time, in the line's unit.
    pub(crate) most: Option<f64>,
    /// The largest ratio to the same steps by hand.
    pub(crate) raw: Option<f64>,
    /// How many times faster than the peer.
    pub(crate) faster: Option<f64>,
    /// The part of the peer's goal that is given to the machine's noise, for sides that should be equal.
    pub(crate) noise: f64,
}

/// A line's number, name and unit.
pub(crate) struct Title {
    pub(crate) line: u32,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
}

impl Goal {
    pub(crate) fn judge(self, title: Title, peer: &'static str, outcome: &Outcome, rounds: usize) -> Line {
        let mut parts = Vec::new();
        let mut met = true;
        if let Some(most) = self.most {
            parts.push(format!("<= {most} {}", title.unit));
            met &= outcome.ours <= most;
        }
        if let (Some(most), Some(ratio)) = (self.raw, outcome.ratio_raw) {
            parts.push(format!("<= {most:.2} x raw"));
            met &= ratio <= most;
        }
        if let (Some(times), Some(ratio)) = (self.faster, outcome.ratio_peer) {
            let noise = match self.noise {
                0.0 => String::new(),
                noise => format!(", {:.0} % given to noise", noise * 100.0),
            };
            parts.push(if times == 1.0 {
                format!("not slower than {peer}{noise}")
            } else {
                format!(">= {times} x faster than {peer}{noise}")
            });
            met &= ratio * times <= 1.0 + self.noise;
        }
        Line {
            line: title.line,
            name: title.name,
            unit: title.unit,
            onebuf: outcome.ours,
            raw: outcome.raw,
            peer: outcome.peer.map(|value| PeerTime { name: peer, value }),
            ratio_raw: outcome.ratio_raw,
            ratio_peer: outcome.ratio_peer,
            control: outcome.control,
            rounds,
            goal: parts.join("; "),
            met,
        }
    }
}

impl fmt::Display for Report {
    /// A table within 100 columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { id, name, kind, driver, .. } = &self.device;
        writeln!(f, "{id}: {name} ({kind}; {driver})")?;
        writeln!(
            f,
            "Times are medians, ratios medians of the rounds' ratios: onebuf / the other; below 1, onebuf is faster."
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{:>4}  {:<36} {:>9} {:>9} {:>9}  {:>6} {:>6}  {:>7}",
            "line", "what", "onebuf", "raw", "peer", "/ raw", "/ peer", "control"
        )?;
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), significant);
        for line in &self.lines {
            let peer = line.peer.as_ref().map(|peer| peer.value);
            writeln!(
                f,
                "{:>4}  {:<36} {:>9} {:>9} {:>9}  {:>6} {:>6}  {:>7}",
                line.line,
                format!("{}, {}", line.name, line.unit),
                significant(line.onebuf),
                number(line.raw),
                number(peer),
                ratio(line.ratio_raw),
                ratio(line.ratio_peer),
                ratio(Some(line.control)),
            )?;
            let verdict = if line.met { "met" } else { "missed" };
            writeln!(f, "      goal {}: {verdict}", line.goal)?;
        }
        Ok(())
    }
}

fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 0.1 => format!("{value:.2}"),
        Some(value) => format!("{value:.4}"),
    }
}

/// Three digits or so.
fn significant(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}
