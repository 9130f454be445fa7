//! What a buffer's users will do with it, said before it is made.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::profile::HandleKind;
use crate::semantics::Semantic;

/// What the CPU will do with a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostAccess {
    /// Nothing, or now and then through a copy.
    #[default]
    None,
    /// Read it, in any order.
    Read,
    /// Write it, front to back, and never read it.
    Write,
    /// Read and write it, in any order.
    ReadWrite,
}

impl HostAccess {
    /// True when the CPU reads.
    pub fn reads(self) -> bool {
        matches!(self, HostAccess::Read | HostAccess::ReadWrite)
    }

    /// True when the CPU writes.
    pub fn writes(self) -> bool {
        matches!(self, HostAccess::Write | HostAccess::ReadWrite)
    }

    /// The name in placements.
    pub fn name(self) -> &'static str {
        match self {
            HostAccess::None => "none",
            HostAccess::Read => "read",
            HostAccess::Write => "write",
            HostAccess::ReadWrite => "read-write",
        }
    }
}

/// How hard a wish is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Take the next best where it cannot be had; the placement says so.
    #[default]
    Prefer,
    /// Fail with every reason where it cannot be had.
    Require,
}

/// How often the device touches each byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceUse {
    /// About once between two uses by the CPU: memory that needs no copy wins, even over a bus.
    #[default]
    Streaming,
    /// Many times: memory close to the device wins, even if the CPU's bytes must then be moved.
    Heavy,
}

/// Who else, outside this API and this process, will hold the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Another process, or another API of this one: the memory must be exportable.
    Process,
    /// Another API in this process: the memory must be exportable.
    Api,
}

/// The ways by which memory may leave the process: a set of [`HandleKind`]s. [`Ways::DEFAULT`], unless a policy says
/// otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<HandleKind>", from = "Vec<HandleKind>")]
pub struct Ways(u8);

impl Ways {
    /// Every way.
    pub const ALL: Ways = Ways((1 << HandleKind::ALL.len()) - 1);

    /// Every way but the legacy handle of CUDA, which is taken where it is asked for alone: memory that leaves so
    /// ends with its maker, and opens in one PID namespace.
    pub const DEFAULT: Ways = Ways::ALL.without(HandleKind::CudaIpc);

    /// Whether memory may leave in this way.
    pub fn contains(self, way: HandleKind) -> bool {
        self.0 & (1 << way as u8) != 0
    }

    /// The set without this way.
    pub const fn without(self, way: HandleKind) -> Ways {
        Ways(self.0 & !(1 << way as u8))
    }

    /// Its members.
    pub fn iter(self) -> impl Iterator<Item = HandleKind> {
        HandleKind::ALL.into_iter().filter(move |way| self.contains(*way))
    }
}

impl Default for Ways {
    fn default() -> Ways {
        Ways::DEFAULT
    }
}

impl FromIterator<HandleKind> for Ways {
    fn from_iter<I: IntoIterator<Item = HandleKind>>(ways: I) -> Ways {
        Ways(ways.into_iter().fold(0, |set, way| set | 1 << way as u8))
    }
}

impl From<Vec<HandleKind>> for Ways {
    fn from(ways: Vec<HandleKind>) -> Ways {
        ways.into_iter().collect()
    }
}

impl From<Ways> for Vec<HandleKind> {
    fn from(ways: Ways) -> Vec<HandleKind> {
        ways.iter().collect()
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(HandleKind::name).collect();
        f.write_str(&if names.is_empty() { "no way".into() } else { names.join(" or ") })
    }
}

impl fmt::Debug for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Everything that decides where a buffer goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Size in bytes.
    pub size_bytes: u64,
    /// What the CPU does.
    pub host: HostAccess,
    /// Whether the CPU must work on the very bytes that the device uses, with no staging copy.
    pub in_place: Strength,
    /// How often the device touches each byte.
    pub device_use: DeviceUse,
    /// Who else holds it.
    pub share: Vec<Share>,
    /// By which ways it may leave the process.
    #[serde(default)]
    pub ways: Ways,
    /// A sharing semantic asked for by name.
    pub semantic: Option<(Semantic, Strength)>,
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, host {}", crate::error::human_bytes(self.size_bytes), self.host.name())?;
        if self.in_place == Strength::Require {
            f.write_str(" in place")?;
        }
        if self.device_use == DeviceUse::Heavy {
            f.write_str(", heavy device use")?;
        }
        for share in &self.share {
            f.write_str(match share {
                Share::Process => ", shared with another process",
                Share::Api => ", shared with another API",
            })?;
        }
        if self.ways != Ways::DEFAULT {
            write!(f, " as {}", self.ways)?;
        }
        match self.semantic {
            Some((semantic, Strength::Prefer)) => write!(f, ", {semantic} preferred"),
            Some((semantic, Strength::Require)) => write!(f, ", {semantic} required"),
            None => Ok(()),
        }
    }
}
