//! The eleven meanings of "shared GPU memory", each with the name that reports and the command use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One meaning of "shared". A device supports each on its own; none implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Semantic {
    /// CPU and GPU use one pointer, and the driver or the hardware moves pages between them.
    Unified,
    /// CPU and GPU use one physical memory that is mapped for good.
    Uma,
    /// The GPU reads CPU memory over the bus, with no copy.
    HostMapped,
    /// The GPU uses memory that the program already has.
    HostImport,
    /// The invocations of one workgroup share on-chip memory.
    Workgroup,
    /// Several processes use the same device memory.
    Process,
    /// Several APIs (CUDA, Vulkan, wgpu) in one process use the same memory.
    Api,
    /// Another library's tensor and a buffer are the same memory.
    Framework,
    /// One GPU uses another GPU's memory.
    Peer,
    /// The GPU uses any pointer that `malloc` gave.
    System,
    /// CPU and GPU do atomics on one word at the same time.
    HostAtomics,
}

impl Semantic {
    /// Every semantic, in the order of the report.
    pub const ALL: [Semantic; 11] = [
        Semantic::Unified,
        Semantic::Uma,
        Semantic::HostMapped,
        Semantic::HostImport,
        Semantic::Workgroup,
        Semantic::Process,
        Semantic::Api,
        Semantic::Framework,
        Semantic::Peer,
        Semantic::System,
        Semantic::HostAtomics,
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Semantic::Unified => "unified",
            Semantic::Uma => "uma",
            Semantic::HostMapped => "host-mapped",
            Semantic::HostImport => "host-import",
            Semantic::Workgroup => "workgroup",
            Semantic::Process => "process",
            Semantic::Api => "api",
            Semantic::Framework => "framework",
            Semantic::Peer => "peer",
            Semantic::System => "system",
            Semantic::HostAtomics => "host-atomics",
        }
    }

    /// Who shares, in a few words for a table.
    pub fn who(self) -> &'static str {
        match self {
            Semantic::Unified => "CPU and GPU, one pointer, pages move",
            Semantic::Uma => "CPU and GPU, one physical memory",
            Semantic::HostMapped => "CPU memory the GPU reads over the bus",
            Semantic::HostImport => "memory the program already has",
            Semantic::Workgroup => "invocations of one workgroup",
            Semantic::Process => "several processes",
            Semantic::Api => "CUDA, Vulkan, wgpu in one process",
            Semantic::Framework => "another library's tensor",
            Semantic::Peer => "another GPU",
            Semantic::System => "any malloc pointer",
            Semantic::HostAtomics => "CPU and GPU atomics on one word",
        }
    }
}

impl fmt::Display for Semantic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no semantic's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no sharing semantic; there are: {list}", list = Semantic::ALL.map(Semantic::name).join(", "))]
pub struct UnknownSemantic(pub String);

impl FromStr for Semantic {
    type Err = UnknownSemantic;

    fn from_str(name: &str) -> Result<Semantic, UnknownSemantic> {
        Semantic::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| UnknownSemantic(name.to_owned()))
    }
}

/// How far [`Semantic::Unified`] goes. The rules for the CPU differ from level to level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnifiedLevel {
    /// No unified memory.
    #[default]
    None,
    /// The CPU may touch no unified memory while any kernel runs (`concurrentManagedAccess` is 0).
    Exclusive,
    /// CPU and GPU may touch managed allocations at the same time (`concurrentManagedAccess` is 1).
    Managed,
    /// Any system allocation, through page faults (HMM).
    SystemSoftware,
    /// Any system allocation, through shared page tables (ATS).
    SystemHardware,
}

impl UnifiedLevel {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            UnifiedLevel::None => "none",
            UnifiedLevel::Exclusive => "exclusive",
            UnifiedLevel::Managed => "managed",
            UnifiedLevel::SystemSoftware => "system-software",
            UnifiedLevel::SystemHardware => "system-hardware",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_match_serde() {
        for semantic in Semantic::ALL {
            assert_eq!(semantic.name().parse::<Semantic>().unwrap(), semantic);
            assert_eq!(serde_json::to_value(semantic).unwrap(), semantic.name());
        }
        assert_eq!(serde_json::to_value(UnifiedLevel::SystemHardware).unwrap(), "system-hardware");
        let error = "shared".parse::<Semantic>().unwrap_err();
        assert!(error.to_string().contains("host-mapped"), "{error}");
    }
}
