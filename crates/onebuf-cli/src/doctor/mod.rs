//! `onebuf doctor`: what is wrong with this machine, each finding with what it rests on and how to mend it.

mod cuda;
mod devices;
mod library;
mod limits;
mod nodes;
mod nvidia;
mod sharing;
mod vulkan;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::output::{print, print_json};

pub(crate) use cuda::nvrtc_here;
pub(crate) use devices::here as devices_here;
pub(crate) use library::{LibraryOf, here as library_here};

/// Options of `onebuf doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
ok: nothing to do; warn: something is missing or weak, see whether you need it; fail: it must be mended.
The exit code is 1 where no device can run anything.")]
pub(crate) struct Options {
    /// Print JSON (schema onebuf.doctor/1)
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    Warn,
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// What was looked at. Several checks may have one id: one driver each.
    id: &'static str,
    status: Status,
    /// The result in a sentence.
    finding: String,
    /// What it rests on.
    evidence: Vec<String>,
    /// What to do.
    remedy: Option<String>,
}

impl Check {
    fn new(id: &'static str, status: Status, finding: impl Into<String>) -> Check {
        Check { id, status, finding: finding.into(), evidence: Vec::new(), remedy: None }
    }

    fn ok(id: &'static str, finding: impl Into<String>) -> Check {
        Check::new(id, Status::Ok, finding)
    }

    fn warn(id: &'static str, finding: impl Into<String>) -> Check {
        Check::new(id, Status::Warn, finding)
    }

    fn fail(id: &'static str, finding: impl Into<String>) -> Check {
        Check::new(id, Status::Fail, finding)
    }

    fn because(mut self, evidence: impl Into<String>) -> Check {
        self.evidence.push(evidence.into());
        self
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy = Some(remedy.into());
        self
    }
}

#[derive(Serialize)]
struct Findings {
    schema: &'static str,
    /// Whether some device can run kernels.
    can_run: bool,
    checks: Vec<Check>,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Options) -> Result<()> {
    let listed = devices::list();
    let can_run = listed.usable();
    let mut checks = vec![vulkan::loader()];
    checks.extend(vulkan::variables(&environment));
    checks.extend(vulkan::drivers(&environment, can_run));
    checks.extend(listed.checks());
    checks.extend(nodes::checks());
    checks.extend(limits::checks());
    checks.extend(sharing::checks(&listed.parties()));
    checks.extend(cuda::checks());
    checks.push(vulkan::validation_layer(&environment));
    let findings = Findings { schema: "onebuf.doctor/1", can_run, checks };
    if options.json {
        print_json(&findings)?;
    } else {
        print(&text(&findings))?;
    }
    if can_run {
        return Ok(());
    }
    Err(Error::Failed("nothing can run on this machine; what fails above says how to mend it".into()))
}

fn environment(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

fn text(findings: &Findings) -> String {
    let mut text = String::new();
    for check in &findings.checks {
        text.push_str(&format!("{:5} {:18} {}\n", check.status.name(), check.id, check.finding));
        for evidence in &check.evidence {
            for line in evidence.lines() {
                text.push_str(&format!("{:24} {line}\n", ""));
            }
        }
        if let Some(remedy) = &check.remedy {
            for (index, line) in remedy.lines().enumerate() {
                let mark = if index == 0 { "->" } else { "  " };
                text.push_str(&format!("{:21} {mark} {line}\n", ""));
            }
        }
    }
    text
}
