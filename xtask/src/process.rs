//! Running other programs: shown, captured, or with a time limit.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The command line as a person would type it, without its environment.
pub(crate) fn line(command: &Command) -> String {
    // Cargo names itself by its path in the toolchain.
    let program = match Path::new(command.get_program()) {
        path if path.ends_with("cargo") => "cargo".into(),
        path => path.to_string_lossy(),
    };
    std::iter::once(program)
        .chain(command.get_args().map(OsStr::to_string_lossy))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Prints the command line, runs it with this program's own output, and fails where it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.status().with_context(|| format!("could not start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs the command and returns what it wrote to its standard output. What it wrote to its standard error is in the
/// error where it fails.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{}`", line(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", line(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the command can be started and succeeds. Its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// How a command with a time limit ended.
pub(crate) struct Finished {
    /// `None` where it ran past its limit and was killed.
    pub(crate) status: Option<ExitStatus>,
    /// Both outputs, in the order in which they were written.
    pub(crate) output: String,
    pub(crate) time: Duration,
}

/// Runs the command with both outputs going to `log`. Past `limit` it is killed with every child in its process group. It
/// also ends with this program, since an interrupt typed at the terminal does not reach its group.
pub(crate) fn run_limited(command: &mut Command, limit: Duration, log: &Path) -> Result<Finished> {
    let name = || format!("could not write {}", log.display());
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).with_context(name)?;
    }
    let file = File::create(log).with_context(name)?;
    let start = Instant::now();
    // SAFETY: between fork and exec only calls that are safe in a signal handler are allowed: this is one system call.
    unsafe {
        command.pre_exec(|| {
            Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
        });
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().with_context(name)?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("could not start `{}`", line(command)))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() >= limit {
            let group = rustix::process::Pid::from_child(&child);
            // The child may have ended between the two calls: then there is nothing left to kill.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let output = String::from_utf8_lossy(&std::fs::read(log).with_context(name)?).into_owned();
    Ok(Finished { status, output, time: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_carries_what_was_said() {
        let error = read(&mut shell("echo out; echo 'no such disk' >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("no such disk") && error.contains("3"), "{error}");
    }

    #[test]
    fn both_outputs_are_kept_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("deep/log");
        let done =
            run_limited(&mut shell("echo 1; echo 2 >&2; echo 3"), Duration::from_secs(20), &log).unwrap();
        assert_eq!(done.output, "1\n2\n3\n");
        assert!(done.status.unwrap().success());
    }

    #[test]
    fn the_limit_ends_grandchildren_too() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! >{}; wait", pid_file.display());
        let done = run_limited(&mut shell(&script), Duration::from_secs(2), &folder.path().join("log"));
        assert!(done.unwrap().status.is_none());
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        // A killed process dies when it is next scheduled, and may stay a zombie until its new parent reaps it.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let gone = |stat: &str| stat.is_empty() || stat.contains(") Z");
        let start = Instant::now();
        while !gone(&stat()) {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", stat());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
