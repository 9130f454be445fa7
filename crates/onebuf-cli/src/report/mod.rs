//! `onebuf report`: for each device and each semantic four facts that are not one another.

mod html;
mod measure;
mod table;
mod verify;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use indicatif::ProgressBar;
use onebuf::core::report::{
    Answer, Cost, DeviceReport, Evidence, Fact, MemoryKindReport, MemoryReport, Outcome, Report, SCHEMA,
    SemanticFacts, SemanticReport, Verified, WorkgroupReport,
};
use onebuf::{Adapter, Device, DeviceInfo, Registry, Semantic};

use crate::devices;
use crate::error::{Error, Result};
use crate::output::{note, print, print_json, progress};
use crate::system;

pub(crate) use measure::here as measure_here;
pub(crate) use verify::{PeerOf, here as verify_here, peer_here};

/// Options of `onebuf report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Four facts a semantic, and none is another:
  advertised  what the driver says: extensions, limits, memory types
  permitted   what the operating system and the container allow
  verified    what a self-test found; `not-run` without --verify
  cost        the class of an access, and bandwidths; measured with --measure

The exit code is 1 where a self-test failed or there is no device.")]
pub(crate) struct Options {
    /// Report on one device: an id (vulkan:0), a UUID, a kind (software) or a backend (vulkan)
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Test each semantic, in a second process with a time limit
    #[arg(long)]
    verify: bool,
    /// Measure bandwidths
    #[arg(long)]
    measure: bool,
    /// Print JSON (schema onebuf.report/1)
    #[arg(long)]
    json: bool,
    /// Write the report as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// List the evidence below the table
    #[arg(long)]
    evidence: bool,
}

/// A semantic of a device, for a second process.
#[derive(Debug, clap::Args)]
pub(crate) struct TestOf {
    semantic: Semantic,
    device: String,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Options) -> Result<()> {
    let registry = Registry::system();
    let listing = registry.adapters();
    if listing.adapters.iter().all(|adapter| adapter.rejected.is_some()) {
        devices::note_unavailable(&listing);
    }
    let adapters: Vec<Adapter> = match &options.device {
        None => listing.adapters,
        Some(name) => {
            let id = registry.open(name)?.info().id.clone();
            listing.adapters.into_iter().filter(|adapter| adapter.info.id == id).collect()
        }
    };
    // Before the work: a page that cannot be written should not cost a minute of measuring.
    let page = match &options.html {
        Some(path) => Some(File::create(path).map_err(|error| Error::io(path.display(), error))?),
        None => None,
    };
    let steps = adapters.len() * Semantic::ALL.len();
    let bar = if options.verify || options.measure { progress(steps as u64) } else { ProgressBar::hidden() };
    let reports = adapters.iter().map(|adapter| device_report(registry, adapter, options, &bar)).collect();
    bar.finish_and_clear();
    let usable: Vec<_> = adapters.iter().filter(|a| a.rejected.is_none()).map(|a| &a.info.id).collect();
    let report = Report { schema: SCHEMA.to_owned(), host: system::host(), devices: reports };

    if let (Some(mut page), Some(path)) = (page, &options.html) {
        let written = page.write_all(html::render(&report).as_bytes());
        written.map_err(|error| Error::io(path.display(), error))?;
    }
    if options.json {
        print_json(&report)?;
    } else {
        print(&table::render(&report, options.evidence))?;
    }
    if usable.is_empty() {
        return Err(Error::Failed(
            "no usable device; `onebuf doctor` says what is missing and how to mend it".into(),
        ));
    }
    // A device that onebuf does not take is reported, and is no failure beside one that it does.
    failures(report.devices.iter().filter(|device| usable.contains(&&device.id)))
}

/// The failed self-tests, as one error.
fn failures<'a>(devices: impl Iterator<Item = &'a DeviceReport>) -> Result<()> {
    let failed: Vec<String> = devices
        .flat_map(|device| device.semantics.iter().map(move |semantic| (device, semantic)))
        .filter(|(_, semantic)| semantic.verified.outcome == Outcome::Failed)
        .map(|(device, semantic)| format!("{} on {}", semantic.name, device.id))
        .collect();
    match failed.as_slice() {
        [] => Ok(()),
        [one] => Err(Error::Failed(format!("the self-test of {one} failed"))),
        many => Err(Error::Failed(format!("{} self-tests failed: {}", many.len(), many.join(", ")))),
    }
}

fn device_report(
    registry: &Registry,
    adapter: &Adapter,
    options: &Options,
    bar: &ProgressBar,
) -> DeviceReport {
    let info = &adapter.info;
    let id = info.id.to_string();
    let opened = match &adapter.rejected {
        Some(reason) => Err(format!("rejected: {reason}")),
        None => registry.open(&id).map_err(|error| error.to_string()),
    };
    let (facts, memory) = match &opened {
        Ok(device) => (complete(device.semantics()), memory_report(device)),
        Err(reason) => (
            Semantic::ALL.map(|semantic| unusable(semantic, reason)).into(),
            MemoryReport { total_bytes: info.memory_bytes, budget_bytes: None, kinds: Vec::new() },
        ),
    };
    let reason = opened.err(); // The device is closed here: a test opens it in a process of its own.
    let mut semantics = Vec::with_capacity(facts.len());
    for fact in facts {
        bar.set_message(format!("{id} {}", fact.semantic));
        let verified = match (&reason, options.verify) {
            (_, false) => Verified::not_run(),
            // The first step of every test is to open the device.
            (Some(reason), true) => Verified {
                outcome: Outcome::Failed,
                detail: format!("the device cannot be used: {reason}"),
                ms: 0.0,
            },
            (None, true) => verify::verify(&id, &fact),
        };
        let usable = verify::obstacle(&fact).is_none() && verified.outcome != Outcome::Failed;
        let mut cost = Cost { class: fact.class, ..Cost::default() };
        if options.measure && reason.is_none() && usable {
            match measure::measure(&id, fact.semantic) {
                Ok(measured) => cost = Cost { class: fact.class, ..measured },
                Err(why) => bar.suspend(|| note(format_args!("{id} {}: not measured: {why}", fact.semantic))),
            }
        }
        semantics.push(SemanticReport {
            name: fact.semantic,
            level: fact.level.map(str::to_owned),
            advertised: fact.advertised,
            permitted: fact.permitted,
            verified,
            cost,
            summary: fact.summary,
        });
        bar.inc(1);
    }
    DeviceReport {
        id: info.id.clone(),
        backend: info.id.backend.to_string(),
        name: info.name.clone(),
        kind: info.kind,
        uuid: info.uuid,
        driver: info.driver.clone(),
        memory,
        workgroup: workgroup_report(info),
        semantics,
    }
}

/// Stands in the evidence where a device cannot be opened.
const OPENING: &str = "opening the device";

/// The facts of a device that cannot be opened: it can do nothing, and the evidence says why.
fn unusable(semantic: Semantic, reason: &str) -> SemanticFacts {
    nothing(semantic, Evidence::new(OPENING, reason), "the device cannot be used")
}

/// The facts of a semantic that is not there, for one reason.
fn nothing(semantic: Semantic, evidence: Evidence, summary: &str) -> SemanticFacts {
    SemanticFacts {
        semantic,
        level: None,
        advertised: Fact::new(Answer::No, vec![evidence.clone()]),
        permitted: Fact::new(Answer::No, vec![evidence]),
        class: None,
        summary: summary.into(),
    }
}

/// The facts of every semantic, in their order. What a backend says nothing of is not there, and the evidence says so.
fn complete(mut facts: Vec<SemanticFacts>) -> Vec<SemanticFacts> {
    Semantic::ALL
        .into_iter()
        .map(|semantic| match facts.iter().position(|fact| fact.semantic == semantic) {
            Some(at) => facts.swap_remove(at),
            None => {
                let evidence = Evidence::new("the backend", "says nothing of it");
                nothing(semantic, evidence, "the backend says nothing of it")
            }
        })
        .collect()
}

/// Why the device could not be opened, if so.
fn unusable_because(device: &DeviceReport) -> Option<&str> {
    let evidence = device.semantics.first()?.advertised.evidence.first()?;
    (evidence.source == OPENING).then_some(evidence.value.as_str())
}

fn memory_report(device: &Device) -> MemoryReport {
    let profile = device.profile();
    let kinds = profile.memory.iter().enumerate().map(|(index, kind)| MemoryKindReport {
        name: kind.name.clone(),
        path: profile.host_path(index).name().to_owned(),
        heap_bytes: profile.heaps.get(kind.heap).map_or(0, |heap| heap.size_bytes),
        cached: kind.host_cached,
        coherent: kind.host_coherent,
        export: kind.export.iter().map(|handle| handle.name().to_owned()).collect(),
    });
    MemoryReport {
        total_bytes: device.info().memory_bytes,
        budget_bytes: device.memory().budget_bytes,
        kinds: kinds.collect(),
    }
}

fn workgroup_report(info: &DeviceInfo) -> WorkgroupReport {
    let limits = &info.limits;
    WorkgroupReport {
        memory_bytes: limits.max_workgroup_bytes,
        max_invocations: limits.max_workgroup_invocations,
        max_size: limits.max_workgroup_size,
        subgroup_size: limits.subgroup_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_semantic_has_its_facts() {
        assert!(complete(Vec::new()).iter().map(|fact| fact.semantic).eq(Semantic::ALL));
        // In any order, and with some missing.
        let said: Vec<SemanticFacts> =
            Semantic::ALL.into_iter().rev().skip(2).map(|semantic| unusable(semantic, "a test")).collect();
        let facts = complete(said);
        assert!(facts.iter().map(|fact| fact.semantic).eq(Semantic::ALL));
        let silent = facts.iter().filter(|fact| fact.summary.contains("says nothing")).count();
        assert_eq!((silent, facts[0].summary.as_str()), (2, "the device cannot be used"));
        // Each has an outcome with a reason, without a driver that could be asked.
        for fact in &facts {
            let verified = verify::verify("habit:0", fact);
            assert_eq!((verified.outcome, verified.detail.is_empty()), (Outcome::Skipped, false));
        }
    }
}
