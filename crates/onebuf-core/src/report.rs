//! The sharing report: for each device and each semantic four separate facts. Schema `onebuf.report/1`.
//!
//! "Advertised" is not "permitted" is not "verified", and none says what it costs. Most public bugs of this field
//! took one of them for another.

use serde::{Deserialize, Serialize};

use crate::device::{DeviceId, DeviceKind, DeviceUuid};
use crate::profile::CostClass;
use crate::semantics::Semantic;

/// The schema's name, in the field `schema` of the JSON.
pub const SCHEMA: &str = "onebuf.report/1";

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// The machine.
    pub host: Host,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
}

/// The machine, as far as sharing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Operating system and kernel.
    pub os: String,
    /// The processor's name.
    pub cpu: String,
    /// Logical processors that the process may use.
    pub cores: u32,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// The container or virtual machine, where one shows.
    pub container: Option<String>,
    /// Version of onebuf.
    pub onebuf: String,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Backend and ordinal.
    pub id: DeviceId,
    /// Name of the backend.
    pub backend: String,
    /// The name the driver gives.
    pub name: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// The hardware's identity.
    pub uuid: Option<DeviceUuid>,
    /// Name and version of the driver.
    pub driver: String,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its workgroups.
    pub workgroup: WorkgroupReport,
    /// Every semantic, in the order of [`Semantic::ALL`].
    pub semantics: Vec<SemanticReport>,
}

/// Memory of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes the process may still take, where the driver says.
    pub budget_bytes: Option<u64>,
    /// Each kind of memory.
    pub kinds: Vec<MemoryKindReport>,
}

/// One kind of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryKindReport {
    /// The backend's name for it.
    pub name: String,
    /// What it is to the CPU.
    pub path: String,
    /// Size of its heap in bytes.
    pub heap_bytes: u64,
    /// CPU reads are cached.
    pub cached: bool,
    /// CPU accesses need no flush.
    pub coherent: bool,
    /// Ways to export it.
    pub export: Vec<String>,
}

/// Workgroups of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkgroupReport {
    /// Workgroup memory in bytes.
    pub memory_bytes: u64,
    /// Invocations in all.
    pub max_invocations: u32,
    /// Invocations along x, y, z.
    pub max_size: [u32; 3],
    /// Smallest and largest subgroup.
    pub subgroup_size: [u32; 2],
}

/// One semantic on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SemanticReport {
    /// Which semantic.
    pub name: Semantic,
    /// How far it goes, where it has levels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub level: Option<String>,
    /// What the driver says.
    pub advertised: Fact,
    /// What the operating system and the container allow.
    pub permitted: Fact,
    /// What a self-test found.
    pub verified: Verified,
    /// What it costs.
    pub cost: Cost,
    /// All of it in a sentence.
    pub summary: String,
}

/// An answer with the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The answer.
    pub value: Answer,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}

impl Fact {
    /// `value`, on this evidence.
    pub fn new(value: Answer, evidence: Vec<Evidence>) -> Fact {
        Fact { value, evidence }
    }
}

/// Yes, no, or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// All of it.
    Yes,
    /// None of it.
    No,
    /// Some of it; the evidence says what.
    Partial,
}

impl Answer {
    /// [`Answer::Yes`] or [`Answer::No`].
    pub fn of(yes: bool) -> Answer {
        if yes { Answer::Yes } else { Answer::No }
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::Partial => "partial",
        }
    }
}

/// One attribute, extension, limit or permission, with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Its name, as the driver's or the system's documentation has it.
    pub source: String,
    /// Its value here.
    pub value: String,
}

impl Evidence {
    /// `source` has `value`.
    pub fn new(source: impl Into<String>, value: impl ToString) -> Evidence {
        Evidence { source: source.into(), value: value.to_string() }
    }
}

/// What a self-test found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// The outcome.
    pub outcome: Outcome,
    /// What was tested and seen, or why nothing was.
    pub detail: String,
    /// How long the test took, in milliseconds; 0 when none ran.
    pub ms: f64,
}

impl Verified {
    /// Nobody asked for a test.
    pub fn not_run() -> Verified {
        Verified { outcome: Outcome::NotRun, detail: String::new(), ms: 0.0 }
    }

    /// A test was asked for and could not run.
    pub fn skipped(why: impl Into<String>) -> Verified {
        Verified { outcome: Outcome::Skipped, detail: why.into(), ms: 0.0 }
    }
}

/// How a self-test ended. A test that could not run is [`Outcome::Skipped`], never a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It ran and everything was right.
    Passed,
    /// It ran and something was wrong.
    Failed,
    /// It could not run.
    Skipped,
    /// Nobody asked for it.
    NotRun,
}

impl Outcome {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
            Outcome::NotRun => "not-run",
        }
    }
}

/// What a semantic costs. Bandwidths are in 10^9 bytes a second, `None` until measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The class, where it has one.
    pub class: Option<CostClass>,
    /// The CPU reads.
    pub host_read_gbps: Option<f64>,
    /// The CPU writes.
    pub host_write_gbps: Option<f64>,
    /// The device reads.
    pub device_read_gbps: Option<f64>,
}

/// What a backend knows of one semantic without a test: the driver's word, the system's, and the class of the cost.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticFacts {
    /// Which semantic.
    pub semantic: Semantic,
    /// How far it goes, where it has levels.
    pub level: Option<&'static str>,
    /// What the driver says.
    pub advertised: Fact,
    /// What the operating system and the container allow.
    pub permitted: Fact,
    /// The class of its cost.
    pub class: Option<CostClass>,
    /// All of it in a sentence.
    pub summary: String,
}
