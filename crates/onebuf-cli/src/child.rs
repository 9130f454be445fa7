//! A second process of this command, for work that may hang or die of a signal.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Stands before the result: a driver may print to stdout, too.
const MARK: &str = "onebuf-result ";

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What became of it.
    pub(crate) how: How,
    /// What it wrote.
    pub(crate) stdout: String,
    /// What it wrote beside that.
    pub(crate) stderr: String,
    /// From its start to its end.
    pub(crate) elapsed: Duration,
}

/// What became of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It ended by itself, with this code.
    Exited(i32),
    /// A signal ended it.
    Signal(i32),
    /// It was still running when its time was over, and was killed.
    TimedOut(Duration),
}

impl Ended {
    /// The value that the child reported with [`report`].
    pub(crate) fn value<T: DeserializeOwned>(&self) -> Option<T> {
        let line = self.stdout.lines().rev().find_map(|line| line.strip_prefix(MARK))?;
        serde_json::from_str(line).ok()
    }

    /// Why there is no value, with the last thing that the child said.
    pub(crate) fn why(&self) -> String {
        let how = match self.how {
            How::Exited(code) => format!("the test process ended with code {code} and no result"),
            How::Signal(signal) => format!("the test process died of {}", signal_name(signal)),
            How::TimedOut(limit) => {
                format!("no answer within {} s; the test process was killed", limit.as_secs())
            }
        };
        match self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            Some(last) => format!("{how}; it said: {last}"),
            None => how,
        }
    }
}

/// Starts this program again with `args`. `stdin` is a descriptor that the child inherits as its first.
pub(crate) fn spawn(args: &[&str], stdin: Option<OwnedFd>) -> Result<Child> {
    start(command(args).stdin(stdin.map_or_else(Stdio::null, Stdio::from)))
}

/// Runs this program again with `args`, for at most `limit`.
pub(crate) fn run(args: &[&str], limit: Duration) -> Result<Ended> {
    run_with(args, &[], limit)
}

/// [`run`], with some variables of the environment changed.
pub(crate) fn run_with(args: &[&str], variables: &[(&str, &str)], limit: Duration) -> Result<Ended> {
    let begin = Instant::now();
    let child = start(command(args).envs(variables.iter().copied()).stdin(Stdio::null()))?;
    finish(child, begin, limit)
}

fn command(args: &[&str]) -> Command {
    // The running file itself, even where another one has taken its place.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("onebuf").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(command: &mut Command) -> Result<Child> {
    command.spawn().map_err(|error| Error::io("a second process of this command", error))
}

/// Waits for a child, which is killed when `limit` has passed since `start`.
pub(crate) fn finish(mut child: Child, start: Instant, limit: Duration) -> Result<Ended> {
    let stdout = child.stdout.take().map(|pipe| collect(OwnedFd::from(pipe)));
    let stderr = child.stderr.take().map(|pipe| collect(OwnedFd::from(pipe)));
    let wait = |error| Error::io("the wait for a second process", error);
    let how = loop {
        if let Some(status) = child.try_wait().map_err(wait)? {
            break ended(status);
        }
        if start.elapsed() >= limit {
            child.kill().map_err(wait)?;
            child.wait().map_err(wait)?;
            break How::TimedOut(limit);
        }
        thread::sleep(Duration::from_millis(2));
    };
    let elapsed = start.elapsed();
    let text = |thread: Option<thread::JoinHandle<String>>| {
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    };
    Ok(Ended { how, stdout: text(stdout), stderr: text(stderr), elapsed })
}

fn ended(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Signal(signal.unwrap_or(0)),
    }
}

/// At most this much is kept of what a child writes.
const MOST_BYTES: u64 = 1 << 20;

fn collect(pipe: OwnedFd) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut pipe = File::from(pipe);
        let mut bytes = Vec::new();
        // A pipe that breaks has given what it had.
        let _ = pipe.by_ref().take(MOST_BYTES).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// In a child: die with the parent.
pub(crate) fn follow_parent() {
    // Where the kernel refuses, the parent's time limit is what is left.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// In a child: hands the result to the parent.
pub(crate) fn report(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| Error::io("JSON", e.into()))?;
    crate::output::print(&format!("\n{MARK}{text}\n"))
}

/// The name of a signal that can end a process by accident.
pub(crate) fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap(), Instant::now(), limit).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_result_is_found_among_what_a_driver_prints() {
        let ended = shell("echo hello; echo 'onebuf-result [1,2]'; echo bye", LONG);
        assert_eq!(ended.how, How::Exited(0));
        assert_eq!(ended.value::<Vec<u32>>(), Some(vec![1, 2]));
        assert_eq!(shell("echo 'onebuf-result nonsense'", LONG).value::<Vec<u32>>(), None);
    }

    #[test]
    fn each_end_is_told_by_name() {
        let ended = shell("echo warning >&2; echo 'assertion failed' >&2; kill -SEGV $$", LONG);
        assert_eq!(ended.how, How::Signal(11));
        assert_eq!(ended.why(), "the test process died of SIGSEGV; it said: assertion failed");
        assert_eq!(shell("exit 3", LONG).why(), "the test process ended with code 3 and no result");

        let limit = Duration::from_millis(100);
        let ended = shell("exec sleep 600", limit);
        assert_eq!(ended.how, How::TimedOut(limit));
        assert!(ended.elapsed < LONG);
        assert!(ended.why().contains("killed"), "{}", ended.why());
    }

    #[test]
    fn a_flood_of_output_is_cut() {
        let ended = shell("head -c 5000000 /dev/zero", LONG);
        assert_eq!((ended.how, ended.stdout.len() as u64), (How::Exited(0), MOST_BYTES));
    }
}
