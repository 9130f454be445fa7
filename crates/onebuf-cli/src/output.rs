//! Where text goes: results to stdout, everything else to stderr.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::{Error, Result};

/// Writes a result to stdout.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes a result that is no text to stdout. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::io("stdout", error)),
        _ => Ok(()),
    }
}

/// Writes a value to stdout as JSON, and nothing else.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::io("JSON", e.into()))?;
    text.push('\n');
    print(&text)
}

/// Tells the person at the terminal something beside the result.
pub(crate) fn note(text: impl std::fmt::Display) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A bar of `steps` on stderr. It shows on a terminal only.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
