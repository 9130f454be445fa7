//! Every test: once those that open no device, and once a driver those that do.
//!
//! The test programs are built once and run directly, so each driver costs its run alone.

use crate::drivers::{Driver, LeftOut};
use crate::process::{self, Finished};
use crate::setup::{self, TestSetup};
use crate::workspace::{self, Executable, Package, Workspace};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Lines of a failed program's output that are shown; its log has all.
const SHOWN: usize = 200;

/// Doctests are compiled one by one within their limit, so they get this many times a program's.
const DOCTEST_FACTOR: u64 = 3;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this package's tests (may be given several times)
    #[arg(short, long)]
    package: Vec<String>,
    /// Only this driver (may be given several times): system, lavapipe, lavapipe-backports, swiftshader
    #[arg(short, long)]
    driver: Vec<String>,
    /// Seconds after which a test program is killed
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Passed to each test program: a filter, or flags of Rust's test harness
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// `cargo xtask test`.
pub(crate) fn chore(options: &Options) -> Result<()> {
    let workspace = Workspace::load()?;
    for package in &options.package {
        workspace.member(package)?;
    }
    let setup = setup::for_tests(&workspace, &options.driver)?;
    let mut build = workspace::cargo();
    build.args(["test", "--all-features", "--no-run"]);
    select_packages(&mut build, &options.package);
    let programs = workspace.build(&mut build)?;
    let programs: Vec<Executable> = programs.into_iter().filter(|program| program.is_test).collect();

    let mut opens_device = workspace.members_that_reach("ash");
    // It asks for devices, but nothing in its tests depends on which there are.
    opens_device.remove(env!("CARGO_PKG_NAME"));
    let (on_devices, once): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| opens_device.contains(&program.package));

    let runner = Runner { workspace: &workspace, setup: &setup, options };
    let mut rows = vec![runner.programs("no device", None, &once)?];
    let mut programs = on_devices;
    for driver in &setup.matrix.drivers {
        rows.push(runner.programs(driver.name, Some(driver), &programs)?);
        // The first driver has run those that want just one.
        programs.retain(|program| !workspace.member(&program.package).is_ok_and(Package::wants_one_driver));
    }
    if let Some(row) = runner.doctests(setup.matrix.drivers.first())? {
        rows.push(row);
    }
    summarise(&rows, &setup.left_out)
}

fn select_packages(command: &mut Command, packages: &[String]) {
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
}

/// What came of some tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Counts {
    /// From the closing lines of Rust's test harness. A program that failed without counting a failure, by a signal or
    /// at its limit, counts as one; so does a success of a program with a harness of its own.
    fn of(finished: &Finished) -> Self {
        let mut counts = Self::default();
        let mut lines = 0;
        for line in finished.output.lines().filter(|line| line.starts_with("test result: ")) {
            let number = |word: &str| {
                let before = line.split_once(word).map_or("", |(before, _)| before);
                before
                    .trim_end()
                    .rsplit(' ')
                    .next()
                    .and_then(|digits| digits.parse::<usize>().ok())
                    .unwrap_or(0)
            };
            counts.passed += number(" passed;");
            counts.failed += number(" failed;");
            counts.ignored += number(" ignored;");
            lines += 1;
        }
        // Rust's harness cannot skip a test at run time, so one that has nothing to run on says so.
        let not_run = finished.output.matches("not run: ").count();
        let not_run = not_run.min(counts.passed);
        counts.passed -= not_run;
        counts.ignored += not_run;
        let success = finished.status.is_some_and(|status| status.success());
        match success {
            true if lines == 0 => counts.passed = 1,
            false if counts.failed == 0 => counts.failed = 1,
            _ => {}
        }
        counts
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// A line of the closing table.
struct Row {
    name: String,
    devices: Vec<String>,
    counts: Counts,
    time: Duration,
    /// Programs that failed, with how.
    failures: Vec<String>,
}

struct Runner<'a> {
    workspace: &'a Workspace,
    setup: &'a TestSetup,
    options: &'a Options,
}

impl Runner<'_> {
    /// Runs the programs one after the other on one driver, or on whatever the system has.
    fn programs(&self, name: &str, driver: Option<&Driver>, programs: &[Executable]) -> Result<Row> {
        println!("\n== {name}: {} test programs", programs.len());
        let environment = self.environment(driver)?;
        let mut row = Row::new(name, driver);
        for program in programs {
            let package = self.workspace.member(&program.package)?;
            let mut command = Command::new(&program.path);
            command.args(&self.options.arguments).current_dir(package.folder()).envs(environment.clone());
            // As cargo sets them for the tests that it runs itself.
            command.env("CARGO_MANIFEST_DIR", package.folder()).env("CARGO_PKG_NAME", &package.name);
            command.env("CARGO_PKG_VERSION", &package.version);
            let label = match program.kind.as_str() {
                "test" => format!("{}::{}", program.package, program.target),
                kind => format!("{} ({kind})", program.package),
            };
            self.one(&mut row, &label, &mut command, self.options.limit)?;
        }
        Ok(row)
    }

    /// Runs the examples in the documentation, on the first driver.
    fn doctests(&self, driver: Option<&Driver>) -> Result<Option<Row>> {
        // With `--workspace` cargo reuses what the other tests were built from; a package without a library is an error
        // only where it is named.
        let mut packages = self.options.package.clone();
        packages.retain(|name| self.workspace.member(name).is_ok_and(Package::has_library));
        if packages.is_empty() && !self.options.package.is_empty() {
            return Ok(None);
        }
        println!("\n== doctests");
        let mut command = workspace::cargo();
        command.args(["test", "--all-features", "--doc"]);
        select_packages(&mut command, &packages);
        command.arg("--").args(&self.options.arguments);
        command.current_dir(&self.workspace.root).envs(self.environment(driver)?);
        let mut row = Row::new("doctests", driver);
        self.one(&mut row, "doctests", &mut command, self.options.limit * DOCTEST_FACTOR)?;
        Ok(Some(row))
    }

    /// Runs one command, tells how it ended, and adds it to the row.
    fn one(&self, row: &mut Row, label: &str, command: &mut Command, limit: u64) -> Result<()> {
        print!("{label} ... ");
        std::io::stdout().flush()?;
        let log = self.log(&row.name, label);
        let finished = process::run_limited(command, Duration::from_secs(limit), &log)?;
        let counts = Counts::of(&finished);
        let seconds = finished.time.as_secs_f64();
        println!(
            "{} passed, {} failed, {} ignored, {seconds:.1} s",
            counts.passed, counts.failed, counts.ignored
        );
        let ending = match finished.status {
            None => format!("killed after {limit} s"),
            Some(status) if !status.success() => status.to_string(),
            Some(_) => String::new(),
        };
        if !ending.is_empty() {
            let lines: Vec<&str> = finished.output.lines().collect();
            let hidden = lines.len().saturating_sub(SHOWN);
            println!("---- {label}: {ending}; all of its output is in {}", log.display());
            lines[hidden..].iter().for_each(|line| println!("{line}"));
            println!("----");
            row.failures.push(format!("{label} on {}: {ending}", row.name));
        }
        row.counts.add(counts);
        row.time += finished.time;
        Ok(())
    }

    fn log(&self, row: &str, label: &str) -> PathBuf {
        let name: String = label.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let folder = self.workspace.target.join("test-logs").join(row.replace(' ', "-"));
        folder.join(name.trim_matches('-')).with_extension("log")
    }

    /// The variables that tests read: which driver, what may not be missing, where the tools are.
    fn environment(&self, driver: Option<&Driver>) -> Result<BTreeMap<&'static str, OsString>> {
        let mut environment = BTreeMap::new();
        let mut require = vec!["vulkan"];
        if let Some(driver) = driver {
            environment.extend(driver.environment.iter().cloned());
            environment.insert("ONEBUF_TEST_DRIVER", driver.name.into());
        }
        if let Some(nvrtc) = &self.setup.nvrtc {
            let more = nvrtc.environment(environment.get("LD_LIBRARY_PATH"))?;
            environment.extend(more);
            require.push(setup::NVRTC);
        }
        if self.setup.has_validation {
            environment.insert("ONEBUF_VALIDATION", "1".into());
        }
        if let Some(mock) = &self.setup.matrix.mock {
            environment.insert("ONEBUF_MOCK_ICD", mock.into());
        }
        environment.insert("ONEBUF_REQUIRE", require.join(",").into());
        Ok(environment)
    }
}

impl Row {
    fn new(name: &str, driver: Option<&Driver>) -> Self {
        let devices = driver.iter().flat_map(|driver| &driver.devices);
        let devices = devices.map(|device| format!("{} ({})", device.name, device.driver)).collect();
        let (counts, time, failures) = Default::default();
        Self { name: name.to_string(), devices, counts, time, failures }
    }
}

/// Prints the table, what failed, and last one line with the totals; fails where a test failed or none ran.
fn summarise(rows: &[Row], left_out: &[LeftOut]) -> Result<()> {
    let mut total = Counts::default();
    println!("\n{:<20} {:>6} {:>6} {:>7} {:>8}  devices", "driver", "passed", "failed", "ignored", "seconds");
    for row in rows {
        let Counts { passed, failed, ignored } = row.counts;
        let seconds = row.time.as_secs_f64();
        let devices = if row.devices.is_empty() { "-".to_string() } else { row.devices.join("; ") };
        println!("{:<20} {passed:>6} {failed:>6} {ignored:>7} {seconds:>8.1}  {devices}", row.name);
        total.add(row.counts);
    }
    for one in left_out {
        println!("left out: {}: {}", one.name, one.why);
    }
    let failures: Vec<&String> = rows.iter().flat_map(|row| &row.failures).collect();
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    println!("\n{} passed, {} failed, {} skipped", total.passed, total.failed, total.ignored);
    if total.failed > 0 || !failures.is_empty() {
        bail!("{} of {} tests failed", total.failed, total.passed + total.failed);
    }
    if total.passed == 0 {
        bail!("no test ran: is the filter right?");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn finished(output: &str, status: Option<i32>) -> Finished {
        let status = status.map(ExitStatus::from_raw);
        Finished { status, output: output.to_string(), time: Duration::ZERO }
    }

    const GREEN: &str =
        "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.1s\n";

    #[test]
    fn closing_lines_are_added_up() {
        let counts = Counts::of(&finished(&format!("{GREEN}test a ... ok\n{GREEN}"), Some(0)));
        assert_eq!(counts, Counts { passed: 24, failed: 0, ignored: 6 });
    }

    #[test]
    fn what_had_nothing_to_run_on_has_not_passed() {
        let counts = Counts::of(&finished(&format!("not run: no CUDA\nnot run: no CUDA\n{GREEN}"), Some(0)));
        assert_eq!(counts, Counts { passed: 10, failed: 0, ignored: 5 });
    }

    #[test]
    fn an_end_without_a_count_is_a_failure() {
        let segfault = finished("test a ... ", Some(11));
        assert_eq!(Counts::of(&segfault).failed, 1);
        let killed = finished(GREEN, None);
        assert_eq!(Counts::of(&killed), Counts { passed: 12, failed: 1, ignored: 3 });
    }

    #[test]
    fn a_program_without_the_harness_counts_as_one() {
        assert_eq!(Counts::of(&finished("fine\n", Some(0))), Counts { passed: 1, ..Counts::default() });
    }

    #[test]
    fn a_run_without_tests_fails() {
        assert!(summarise(&[Row::new("empty", None)], &[]).is_err());
    }
}
