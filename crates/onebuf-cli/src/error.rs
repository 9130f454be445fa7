//! What a subcommand can fail with, and the exit code that follows.

use std::fmt;
use std::io;

/// The result of a subcommand or a part of one.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a subcommand did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line makes no sense; the message says what would.
    #[error("{0}")]
    Usage(String),
    /// The work was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The library's own error, which says what to do.
    #[error("{0}")]
    Onebuf(#[from] onebuf::Error),
    /// The operating system said no.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// The answer.
        source: io::Error,
    },
}

impl Error {
    /// Wrong use of the command.
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    /// An answer of the operating system to `what`.
    pub(crate) fn io(what: impl fmt::Display, source: io::Error) -> Error {
        Error::Io { what: what.to_string(), source }
    }

    /// 2 for wrong use, as for the command lines that the parser refuses; 1 for everything else.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Failed(_) | Error::Onebuf(_) | Error::Io { .. } => 1,
        }
    }
}
