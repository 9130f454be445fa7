//! What can go wrong, as data that a caller can act on.

use std::fmt;

use crate::kernel::Slot;
use crate::placement::Rejected;

/// The result of anything that may fail in onebuf.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed. Each message says what was asked, what the device allows, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device fits the request.
    #[error("no device: {0}")]
    NoDevice(String),

    /// A backend cannot start here: no driver, no loader, a refusal of the operating system.
    #[error("the {backend} backend cannot start: {reason}")]
    BackendUnavailable {
        /// Name of the backend.
        backend: &'static str,
        /// What was tried, what came back and how to mend it.
        reason: String,
    },

    /// The device cannot do this at all.
    #[error("not supported: {what}: {reason}")]
    Unsupported {
        /// What was asked.
        what: String,
        /// Why not, and what to use in its place.
        reason: String,
    },

    /// More was asked than the device allows.
    #[error("{what}: asked for {required}, the device allows {available}")]
    LimitExceeded {
        /// The quantity, with its unit.
        what: String,
        /// How much was asked.
        required: u64,
        /// How much is allowed.
        available: u64,
    },

    /// The memory is not there.
    #[error("{}", out_of_memory(*asked_bytes, *free_bytes, *never_fits))]
    OutOfMemory {
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes free at that moment, where known.
        free_bytes: Option<u64>,
        /// True when the device could not hold it even if it were empty: freeing will not help.
        never_fits: bool,
    },

    /// No memory of the device satisfies what the buffer's users need.
    #[error("no memory of {device} serves this buffer ({asked}):{}", list(rejected))]
    NoPlacement {
        /// The device.
        device: String,
        /// The request.
        asked: String,
        /// Each kind of memory with the reason that ruled it out.
        rejected: Vec<Rejected>,
    },

    /// Somebody else is using it now; asking again later can succeed.
    #[error("busy: {0}")]
    Busy(String),

    /// A kernel's source is not valid, or its entry point or overrides are not.
    #[error("{message}")]
    InvalidKernel {
        /// What is wrong, with the source line marked where there is one.
        message: String,
        /// Line in the source, from 1, where known.
        line: Option<u32>,
    },

    /// An argument does not fit the binding it was given for.
    #[error("kernel `{kernel}`, {binding}: {problem}")]
    BindingMismatch {
        /// Entry point of the kernel.
        kernel: String,
        /// The binding, by name and slot.
        binding: BindingRef,
        /// What is wrong and what the binding wants.
        problem: String,
    },

    /// A call's arguments make no sense: out of range, overlapping, of another device.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),

    /// The process or the socket at the other end is gone.
    #[error("the peer is gone: {0}")]
    PeerGone(String),

    /// The process at the other end speaks no protocol that this one does, or breaks it.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(String),

    /// The process at the other end said no.
    #[error("the peer refused: {0}")]
    Refused(String),

    /// The device stopped. Nothing on it can be used again; open the device anew.
    #[error("device lost: {0}")]
    DeviceLost(String),

    /// A time limit passed first.
    #[error("timed out after {after_ms} ms: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in milliseconds.
        after_ms: u64,
    },

    /// A driver's call failed in a way that onebuf has no better name for.
    #[error("{call} failed: {code}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// Its answer, by name.
        code: String,
    },

    /// The operating system said no.
    #[error("{what}: {reason}")]
    Os {
        /// What was tried.
        what: String,
        /// Its answer.
        reason: String,
    },
}

impl Error {
    /// An [`Error::Os`] for `what`.
    pub fn os(what: impl Into<String>, error: &std::io::Error) -> Error {
        Error::Os { what: what.into(), reason: error.to_string() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Unsupported { what: what.into(), reason: reason.into() }
    }

    /// The same error, unless this process can open no further file: then that is the cause, whatever name a driver gives
    /// it. A lost device stays one.
    pub fn or_no_descriptor_left(self, what: impl Into<String>) -> Error {
        let left = !matches!(std::fs::File::open("/dev/null"), Err(error) if is_descriptor_limit(&error));
        match self {
            Error::DeviceLost(_) => self,
            _ if left => self,
            _ => Error::Os {
                what: what.into(),
                reason: "no file descriptor is left; raise the limit on open files (ulimit -n)".into(),
            },
        }
    }

    /// `Ok` while `required` is at most `available`, else an [`Error::LimitExceeded`].
    pub fn check_limit(what: &str, required: u64, available: u64) -> Result<()> {
        if required <= available {
            return Ok(());
        }
        Err(Error::LimitExceeded { what: what.to_owned(), required, available })
    }
}

/// The process's limit (`EMFILE`), or the system's (`ENFILE`).
fn is_descriptor_limit(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// Which argument of a kernel an error speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingRef {
    /// A resource.
    Slot {
        /// Its name in the source.
        name: String,
        /// Its place.
        slot: Slot,
    },
    /// The `var<immediate>`.
    Immediate,
    /// The argument list as a whole.
    List,
}

impl fmt::Display for BindingRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindingRef::Slot { name, slot } => write!(f, "binding `{name}` {slot}"),
            BindingRef::Immediate => f.write_str("the `var<immediate>`"),
            BindingRef::List => f.write_str("the argument list"),
        }
    }
}

/// A byte count for people: `4 bytes`, `1.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

fn out_of_memory(asked: u64, free: Option<u64>, never_fits: bool) -> String {
    let asked = human_bytes(asked);
    let free = free.map(human_bytes).map_or_else(String::new, |free| format!(", {free} free"));
    if never_fits {
        format!("out of memory: {asked} asked{free}; the device can never hold that much, so split the data")
    } else {
        format!("out of memory: {asked} asked{free}; free other buffers or ask for less")
    }
}

fn list(rejected: &[Rejected]) -> String {
    rejected.iter().map(|r| format!("\n  {}: {}", r.kind, r.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_readable() {
        assert_eq!(human_bytes(0), "0 bytes");
        assert_eq!(human_bytes(1023), "1023 bytes");
        assert_eq!(human_bytes(1 << 20), "1 MiB");
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        assert_eq!(human_bytes((1 << 20) - 1), "1 MiB");
        assert_eq!(human_bytes(u64::MAX), "16384 PiB");
    }

    #[test]
    fn an_error_stays_itself_while_descriptors_are_left() {
        let full = Error::OutOfMemory { asked_bytes: 4, free_bytes: None, never_fits: false };
        assert_eq!(full.clone().or_no_descriptor_left("export"), full);
        let limit = |code| is_descriptor_limit(&std::io::Error::from_raw_os_error(code));
        assert!(limit(23) && limit(24) && !limit(2) && !limit(13));
    }

    #[test]
    fn messages_say_what_to_do() {
        let error = Error::OutOfMemory { asked_bytes: 1 << 40, free_bytes: Some(1 << 30), never_fits: true };
        assert_eq!(
            error.to_string(),
            "out of memory: 1 TiB asked, 1 GiB free; the device can never hold that much, so split the data"
        );
        let error = Error::check_limit("workgroup memory in bytes", 40_000, 32_768).unwrap_err();
        assert_eq!(error.to_string(), "workgroup memory in bytes: asked for 40000, the device allows 32768");
    }
}
