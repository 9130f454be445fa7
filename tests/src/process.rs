//! This program once more, as another process: the same test function, in another role.
//!
//! A test that needs a second process begins with [`role`]; where it is a child it plays that role and returns.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The variable that tells a child its role.
const ROLE: &str = "ONEBUF_TEST_ROLE";

/// The role of this process, where it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This program, to run the calling test alone, in a role.
pub fn command(role: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let mut command = Command::new(program);
    command.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A child that ended, with what it printed on both outputs.
#[derive(Debug)]
pub struct Finished {
    /// How it ended; `None` where it had to be killed.
    pub status: Option<ExitStatus>,
    /// What it printed.
    pub output: String,
}

impl Finished {
    /// Panics unless the child did well.
    #[track_caller]
    pub fn expect_success(&self) {
        assert!(self.status.is_some_and(|status| status.success()), "{:?}\n{}", self.status, self.output);
        // A filter that fits nothing runs nothing, and is no success.
        assert!(self.output.contains("1 passed"), "the child ran nothing\n{}", self.output);
    }
}

/// Runs a child, for at most `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Finished {
    finish(command.spawn().unwrap(), limit)
}

/// Runs a child with one more variable.
pub fn run_with(role: &str, variable: &str, value: impl AsRef<OsStr>, limit: Duration) -> Finished {
    run(command(role).env(variable, value), limit)
}

/// Waits for a child, for at most `limit`, and takes what it prints.
pub fn finish(mut child: Child, limit: Duration) -> Finished {
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                let _ = stream.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let err = read(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    Finished { status, output: out.join().unwrap() + &err.join().unwrap() }
}
