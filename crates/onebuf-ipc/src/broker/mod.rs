//! The broker: shares under names, for processes that do not know each other.
//!
//! A producer publishes a share under a name; others open it. A lease is a connection: it ends when its socket does, so
//! that nothing has to be given back by a process that is killed. A name lives while its producer or a holder does. When the producer
//! goes, every holder is told.
//!
//! [`Broker`] is the server, [`Client`] a connection to one. The broker keeps descriptors and never maps memory.

mod client;
mod registry;
mod server;

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use onebuf_core::{Error, HandleKind, Result};
use serde::{Deserialize, Serialize};

pub use client::Client;
pub use registry::Quota;
pub use server::{Broker, Limits};

use crate::share::Description;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// The most names in one answer; a list goes on from the last one.
pub(crate) const PAGE: usize = 32;

/// The most names that a client takes for a list: twice the most descriptors that a process may have, where nobody changed
/// that.
pub(crate) const MOST_LISTED: usize = 1 << 21;

/// The most holders that are named one by one.
pub(crate) const MAX_HOLDERS: usize = 64;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Put a share under a name; its descriptor comes with the request.
    Publish {
        /// The name.
        name: String,
        /// What the descriptor is said to be.
        description: Description,
    },
    /// Hold the share under a name.
    Open {
        /// The name.
        name: String,
    },
    /// Hold it no more, or publish it no more.
    Close {
        /// The name.
        name: String,
    },
    /// The names, in their order.
    List {
        /// After this one.
        after: String,
    },
    /// One name.
    Inspect {
        /// The name.
        name: String,
    },
    /// Take a name away, whoever holds it. Those who have the memory keep it.
    Release {
        /// The name.
        name: String,
    },
}

impl Request {
    pub(crate) fn name(&self) -> &String {
        match self {
            Request::Publish { name, .. }
            | Request::Open { name }
            | Request::Close { name }
            | Request::List { after: name }
            | Request::Inspect { name }
            | Request::Release { name } => name,
        }
    }
}

/// What a broker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// The share; its descriptor comes with the answer.
    Share {
        /// What it is.
        description: Description,
    },
    /// Names, in their order.
    Names {
        /// They.
        entries: Vec<Entry>,
        /// There are more.
        more: bool,
    },
    /// One name, with its holders.
    Entry(Entry),
    /// It is not done.
    Refused {
        /// Why.
        reason: String,
    },
    /// Not an answer: the producer of a share that this client holds is gone.
    Gone {
        /// Its name.
        name: String,
    },
}

impl Answer {
    /// A name is as short as the broker lets anybody publish it. A reason may quote a whole request.
    pub(crate) fn check(&self) -> Result<()> {
        let of_name =
            |name: &String| Error::check_limit("bytes of a name", name.len() as u64, MAX_NAME_BYTES as u64);
        match self {
            Answer::Names { entries, .. } => {
                Error::check_limit("names in an answer", entries.len() as u64, PAGE as u64)?;
                entries.iter().try_for_each(|entry| of_name(&entry.name))
            }
            Answer::Entry(entry) => of_name(&entry.name),
            Answer::Gone { name } => of_name(name),
            Answer::Done | Answer::Share { .. } | Answer::Refused { .. } => Ok(()),
        }
    }
}

/// A process that has a name's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Its process id.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

/// What a broker tells of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Who published it.
    pub producer: Holder,
    /// Whether its producer is connected still.
    pub alive: bool,
    /// By which way it is opened.
    pub way: HandleKind,
    /// Length of the shared part, in bytes.
    pub view_bytes: u64,
    /// Size of the object, in bytes.
    pub allocation_bytes: u64,
    /// How many connections hold it.
    pub held: u64,
    /// Who they are, the first of them; empty in a list.
    pub holders: Vec<Holder>,
}

/// Where a user's broker listens: `onebuf.sock` in `XDG_RUNTIME_DIR`, or else in a folder of the user's own below the
/// system's folder for temporary files, which is made if it is not there.
///
/// # Errors
/// [`Error::Os`] where that folder cannot be made; [`Error::Refused`] where it is not this user's alone.
pub fn default_path() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        return Ok(PathBuf::from(folder).join("onebuf.sock"));
    }
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("onebuf-{uid}"));
    let os = |error| Error::os(format!("the folder {}", folder.display()), &error);
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(os(error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(os)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
        return Err(Error::Refused(format!(
            "{} is not a folder of user {uid} alone; remove it, or set XDG_RUNTIME_DIR",
            folder.display()
        )));
    }
    Ok(folder.join("onebuf.sock"))
}
