//! Self-tests of the semantics, each in a process of its own: a driver may die of one, or never answer.

#[cfg(feature = "wgpu")]
mod api;
mod framework;
mod in_place;
mod pairs;
mod process;
#[cfg(test)]
mod tests;
mod unified;
mod workgroup;

use std::time::{Duration, Instant};

use onebuf::core::report::{Answer, Outcome, SemanticFacts, Verified};
use onebuf::{Device, Error, Semantic};
use serde::{Deserialize, Serialize};

use super::TestOf;
use crate::child;
use crate::log::Validation;

pub(crate) use process::{PeerOf, here as peer_here};

/// How long one test may take, with the start of its process. SwiftShader compiles some kernels for 10 s on an idle machine.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// How long one piece of the device's work may take within a test.
const WORK_LIMIT: Duration = Duration::from_secs(10);

/// How a test ended that did not pass.
#[derive(Debug)]
enum Problem {
    /// Something was wrong.
    Failed(String),
    /// It could not be tried.
    Skipped(String),
}

/// What was tested and seen, or the problem.
type TestResult = Result<String, Problem>;

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error {
            Error::OutOfMemory { .. } => Problem::Skipped(error.to_string()),
            other => Problem::Failed(other.to_string()),
        }
    }
}

/// What a test's process reports.
#[derive(Debug, Serialize, Deserialize)]
struct Finding {
    outcome: Outcome,
    detail: String,
    ms: f64,
}

/// The detail of a test that was skipped because the driver does not claim the semantic.
pub(super) const NOT_ADVERTISED: &str = "not advertised";

/// Why there is nothing to test, if so.
pub(super) fn obstacle(facts: &SemanticFacts) -> Option<String> {
    if facts.advertised.value == Answer::No {
        return Some(NOT_ADVERTISED.to_owned());
    }
    if facts.permitted.value == Answer::No {
        let evidence = facts.permitted.evidence.iter();
        let evidence: Vec<String> = evidence.map(|e| format!("{} = {}", e.source, e.value)).collect();
        return Some(format!("not permitted: {}", evidence.join(", ")));
    }
    None
}

/// Tests a semantic of a device in a second process.
pub(super) fn verify(device: &str, facts: &SemanticFacts) -> Verified {
    if let Some(why) = obstacle(facts) {
        return Verified::skipped(why);
    }
    let args = ["__child", "verify", facts.semantic.name(), device];
    let ended = match child::run(&args, TEST_LIMIT) {
        Ok(ended) => ended,
        Err(error) => return Verified::skipped(error.to_string()),
    };
    let finding: Option<Finding> = ended.value();
    match finding {
        Some(Finding { outcome, detail, ms }) => Verified { outcome, detail, ms },
        None => {
            Verified { outcome: Outcome::Failed, detail: ended.why(), ms: ended.elapsed.as_secs_f64() * 1e3 }
        }
    }
}

/// In the second process: runs the test and reports.
pub(crate) fn here(test: &TestOf, validation: &Validation) -> crate::error::Result<()> {
    let device = onebuf::Registry::system().open(&test.device)?;
    let start = Instant::now();
    let result = test_of(test.semantic, &device);
    drop(device);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let (outcome, detail) = match (result, validation.first()) {
        (Ok(_), Some(message)) => (Outcome::Failed, format!("the validation layer says: {message}")),
        (Ok(detail), None) => (Outcome::Passed, detail),
        (Err(Problem::Failed(detail)), _) => (Outcome::Failed, detail),
        (Err(Problem::Skipped(why)), _) => (Outcome::Skipped, why),
    };
    child::report(&Finding { outcome, detail, ms })
}

fn test_of(semantic: Semantic, device: &Device) -> TestResult {
    let skip = |why: &str| Err(Problem::Skipped(why.to_owned()));
    match semantic {
        Semantic::Unified => unified::test(device),
        Semantic::Uma | Semantic::HostMapped => in_place::mapped(device, semantic),
        Semantic::HostImport => in_place::imported(device),
        Semantic::Workgroup => workgroup::test(device),
        Semantic::Process => process::test(device),
        #[cfg(feature = "wgpu")]
        Semantic::Api if device.info().id.backend == "vulkan" => api_with_wgpu(device),
        Semantic::Api => pairs::test(device),
        Semantic::Framework => framework::test(device),
        Semantic::Peer => {
            skip("onebuf copies between devices and uses no peer access, so there is nothing to test")
        }
        Semantic::System => skip("onebuf takes no pointer as it is; see host-import, which is tested"),
        Semantic::HostAtomics => skip("onebuf has no work that shares a word with the CPU while it runs"),
    }
}

/// What passes must pass with wgpu and with other devices; one that cannot run is told of, and the other one counts.
#[cfg(feature = "wgpu")]
fn api_with_wgpu(device: &Device) -> TestResult {
    match (api::test(device), pairs::test(device)) {
        (Err(Problem::Failed(why)), _) | (_, Err(Problem::Failed(why))) => Err(Problem::Failed(why)),
        (Ok(one), Ok(two)) => Ok(format!("{one}; {two}")),
        (Ok(ran), Err(Problem::Skipped(why))) | (Err(Problem::Skipped(why)), Ok(ran)) => {
            Ok(format!("{ran}; not tested: {why}"))
        }
        (Err(Problem::Skipped(one)), Err(Problem::Skipped(two))) => {
            Err(Problem::Skipped(format!("{one}; {two}")))
        }
    }
}

/// The first place where memory and model differ.
fn compare(seen: &[u32], expected: &[u32], what: &str) -> Result<(), Problem> {
    if seen.len() != expected.len() {
        return Err(Problem::Failed(format!("{what}: {} of {} words", seen.len(), expected.len())));
    }
    match seen.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = seen.iter().zip(expected).filter(|(a, b)| a != b).count();
            Err(Problem::Failed(format!(
                "{what}: word {at} is {:#010x}, {:#010x} expected; {wrong} of {} words are wrong",
                seen[at],
                expected[at],
                seen.len()
            )))
        }
    }
}
