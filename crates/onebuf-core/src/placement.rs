//! The choice of memory for a buffer: a pure function from a device's profile and an intent to a ranked list.
//!
//! The order follows measurements, and each rule has its reason beside it. Nothing here asks a driver, so the
//! choice is tested on tables of devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, human_bytes};
use crate::intent::{DeviceUse, HostAccess, Intent, Strength};
use crate::profile::{CostClass, DeviceProfile, HostPath, MemoryKind};
use crate::semantics::{Semantic, UnifiedLevel};

/// A kind of memory that was not taken, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// Name of the kind of memory.
    pub kind: String,
    /// Why it cannot serve, or why another serves better.
    pub reason: String,
}

/// A kind of memory that can serve, with how it would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Index into [`DeviceProfile::memory`].
    pub kind: usize,
    /// Where the CPU's accesses go through a second buffer: the kind of memory of that one.
    pub staging: Option<usize>,
    /// The memory must be exportable.
    pub exportable: bool,
}

/// Candidates, the best first, and why each other kind of memory is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// Kinds of memory that can serve, the best first. Never empty.
    pub candidates: Vec<Candidate>,
    /// Kinds of memory that cannot.
    pub rejected: Vec<Rejected>,
}

/// Where a buffer is, and why: what was asked, what was got, what it costs, what was left aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// What was asked.
    pub asked: Intent,
    /// Name of the kind of memory.
    pub kind: String,
    /// What the memory is to the CPU.
    pub path: HostPath,
    /// The sharing semantic that CPU and device have through it, if any.
    pub semantic: Option<Semantic>,
    /// CPU reads go through the CPU's caches.
    pub cached: bool,
    /// CPU accesses need no flush and no invalidation.
    pub coherent: bool,
    /// The memory can be exported.
    pub exportable: bool,
    /// CPU accesses go through a copy in page-locked memory.
    pub staged: bool,
    /// What the CPU's accesses to the mapped bytes cost; `None` where there are none.
    pub host_cost: Option<CostClass>,
    /// What the device's accesses cost.
    pub device_cost: CostClass,
    /// The semantic that was preferred and could not be had.
    pub fell_back_from: Option<Semantic>,
    /// Each other kind of memory and why it lost.
    pub lost: Vec<Rejected>,
}

impl Placement {
    /// The placement of a buffer in `candidate`, with every other kind's reason for losing.
    pub fn new(
        profile: &DeviceProfile,
        intent: &Intent,
        ranking: &Ranking,
        candidate: &Candidate,
    ) -> Placement {
        let unknown = MemoryKind { name: "unknown".into(), ..MemoryKind::default() };
        let memory = profile.memory.get(candidate.kind).unwrap_or(&unknown);
        let path = profile.host_path(candidate.kind);
        let semantic = path.semantic().filter(|_| candidate.staging.is_none());
        let mut lost = ranking.rejected.clone();
        let outranked = ranking.candidates.iter().filter(|other| other.kind != candidate.kind);
        lost.extend(outranked.map(|other| Rejected {
            kind: kind_name(profile, other.kind),
            reason: why_lower(profile, intent, other),
        }));
        let wanted = intent.semantic.map(|(semantic, _)| semantic);
        Placement {
            asked: intent.clone(),
            kind: memory.name.clone(),
            path,
            semantic,
            cached: memory.host_cached,
            coherent: memory.host_coherent,
            exportable: candidate.exportable,
            staged: candidate.staging.is_some(),
            host_cost: match candidate.staging {
                Some(staging) => profile.host_cost(staging),
                None => profile.host_cost(candidate.kind),
            },
            device_cost: profile.device_cost(candidate.kind),
            fell_back_from: wanted.filter(|wanted| Some(*wanted) != semantic),
            lost,
        }
    }
}

impl fmt::Display for Placement {
    /// One line for what was got, then one for each kind of memory that lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.name(), self.kind)?;
        if self.path != HostPath::DeviceOnly {
            f.write_str(if self.cached { ", cached" } else { ", uncached" })?;
            f.write_str(if self.coherent { ", coherent" } else { ", non-coherent" })?;
        }
        if self.exportable {
            f.write_str(", exportable")?;
        }
        if self.staged {
            f.write_str(", staged: the CPU works on a page-locked copy")?;
        }
        if self.device_cost == CostClass::OverBus {
            f.write_str(", the device reads it over the bus")?;
        }
        if let Some(semantic) = self.fell_back_from {
            write!(f, "; {semantic} was preferred and could not be had")?;
        }
        write!(f, " (asked: {})", self.asked)?;
        for lost in &self.lost {
            write!(f, "\n  not {}: {}", lost.kind, lost.reason)?;
        }
        Ok(())
    }
}

/// Why a kind of memory cannot serve; the order is from "never" to "not now".
enum Verdict {
    Fits,
    Unfit(String),
    NeverFits(String),
    NoRoom(String),
}

/// Ranks the kinds of memory of `profile` for `intent`.
///
/// # Errors
/// - [`Error::LimitExceeded`] when the size is past what one buffer may have.
/// - [`Error::OutOfMemory`] when every kind that could serve is too small (`never_fits`) or too full.
/// - [`Error::NoPlacement`] when no kind can serve, with each one's reason.
pub fn rank(profile: &DeviceProfile, intent: &Intent) -> Result<Ranking> {
    Error::check_limit("buffer size in bytes", intent.size_bytes, profile.max_buffer_bytes)?;
    let staging = staging_kind(profile);
    let exportable = !intent.share.is_empty();
    let mut ranked: Vec<(u32, Candidate)> = Vec::new();
    let mut rejected = Vec::new();
    let mut only_size = true;
    let mut only_never = true;
    for kind in 0..profile.memory.len() {
        let verdict = judge(profile, intent, kind, staging);
        let reason = match verdict {
            Verdict::Fits => {
                let path = profile.host_path(kind);
                let staged = intent.host != HostAccess::None && !works_in_place(profile, intent, path);
                let candidate = Candidate { kind, staging: staging.filter(|_| staged), exportable };
                ranked.push((score(profile, intent, &candidate), candidate));
                continue;
            }
            Verdict::Unfit(reason) => {
                only_size = false;
                reason
            }
            Verdict::NeverFits(reason) => reason,
            Verdict::NoRoom(reason) => {
                only_never = false;
                reason
            }
        };
        rejected.push(Rejected { kind: kind_name(profile, kind), reason });
    }
    // A stable sort: among equals the driver's own order decides, as the Vulkan specification intends.
    ranked.sort_by_key(|(score, _)| *score);
    let candidates: Vec<Candidate> = ranked.into_iter().map(|(_, candidate)| candidate).collect();
    if !candidates.is_empty() {
        return Ok(Ranking { candidates, rejected });
    }
    if only_size && !profile.memory.is_empty() {
        let free_bytes = profile.heaps.iter().map(|h| h.budget_bytes.unwrap_or(h.size_bytes)).max();
        return Err(Error::OutOfMemory {
            asked_bytes: intent.size_bytes,
            free_bytes,
            never_fits: only_never,
        });
    }
    Err(Error::NoPlacement { device: profile.device.clone(), asked: intent.to_string(), rejected })
}

/// Whether the CPU can work on memory of this path itself.
fn works_in_place(profile: &DeviceProfile, intent: &Intent, path: HostPath) -> bool {
    match path {
        HostPath::DeviceOnly => false,
        // Pages may not be touched while any kernel runs: a guard then stalls the whole device, but it is in place.
        HostPath::Unified => profile.unified != UnifiedLevel::None,
        // Reads through a BAR crawl (measured on an H200: 64 MiB in 3.1 s against 0.02 s), so they are staged unless
        // the caller insists.
        HostPath::ResizableBar | HostPath::BarWindow => {
            !intent.host.reads() || intent.in_place == Strength::Require
        }
        HostPath::Uma | HostPath::HostMemory => true,
    }
}

fn judge(profile: &DeviceProfile, intent: &Intent, kind: usize, staging: Option<usize>) -> Verdict {
    let memory = &profile.memory[kind];
    let path = profile.host_path(kind);
    let Some(heap) = profile.heaps.get(memory.heap) else {
        return Verdict::Unfit("its heap does not exist".into());
    };
    if !intent.share.is_empty() && memory.export.is_empty() {
        return Verdict::Unfit("it cannot be exported".into());
    }
    if path == HostPath::Unified && profile.unified == UnifiedLevel::None {
        return Verdict::Unfit("the device has no unified memory".into());
    }
    if let Some((semantic, Strength::Require)) = intent.semantic
        && path.semantic() != Some(semantic)
    {
        return Verdict::Unfit(format!("{semantic} is required, and this is {}", path.name()));
    }
    if intent.host != HostAccess::None && !works_in_place(profile, intent, path) {
        if intent.in_place == Strength::Require {
            return Verdict::Unfit("the CPU cannot see it, and access in place is required".into());
        }
        if staging.is_none() {
            return Verdict::Unfit(
                "the CPU cannot see it, and there is no host memory to stage through".into(),
            );
        }
    }
    let size = intent.size_bytes;
    let asked = human_bytes(size);
    if size > heap.size_bytes {
        return Verdict::NeverFits(format!(
            "its heap has {} in all, {asked} asked",
            human_bytes(heap.size_bytes)
        ));
    }
    if size > profile.max_allocation_bytes {
        let most = human_bytes(profile.max_allocation_bytes);
        return Verdict::NeverFits(format!("one allocation may have {most}, {asked} asked"));
    }
    match heap.budget_bytes {
        Some(budget) if size > budget => {
            Verdict::NoRoom(format!("its heap has {} left, {asked} asked", human_bytes(budget)))
        }
        _ => Verdict::Fits,
    }
}

/// The kind of page-locked memory that copies to and from the CPU go through: a cached one where there is any.
pub fn staging_kind(profile: &DeviceProfile) -> Option<usize> {
    let host = |kind: &usize| matches!(profile.host_path(*kind), HostPath::HostMemory | HostPath::Uma);
    let kinds = || (0..profile.memory.len()).filter(host);
    kinds().find(|&kind| profile.memory[kind].host_cached).or_else(|| kinds().next())
}

/// The cost of a candidate; lower is better. The numbers only order the cases.
fn score(profile: &DeviceProfile, intent: &Intent, candidate: &Candidate) -> u32 {
    let memory = &profile.memory[candidate.kind];
    let path = profile.host_path(candidate.kind);
    let preferred = match intent.semantic {
        Some((semantic, _)) if path.semantic() != Some(semantic) => 1_000,
        _ => 0,
    };
    let heavy = intent.device_use == DeviceUse::Heavy;
    let device = match profile.device_cost(candidate.kind) {
        CostClass::OverBus if heavy => 100,
        CostClass::OverBus => 10,
        // Memory of an integrated device outside its own heap: the same chips, without the device's placement.
        _ if !memory.device_local && path == HostPath::HostMemory => 1,
        _ => 0,
    };
    let host = match (intent.host, path) {
        // The CPU does not come here: leave what it could see to those who need it.
        (HostAccess::None, HostPath::DeviceOnly) => 0,
        (HostAccess::None, HostPath::Unified) => 200,
        (HostAccess::None, HostPath::BarWindow) => 50,
        (HostAccess::None, _) => 2,
        _ if candidate.staging.is_some() => 60,
        // Pages that move are worth it where the device comes back to them; where nothing may run while the CPU
        // touches them (exclusive), only if nothing else serves.
        (_, HostPath::Unified) if profile.unified <= UnifiedLevel::Exclusive => 150,
        (_, HostPath::Unified) => 40,
        // A window of 256 MiB serves the whole system: keep out unless the buffer is small beside it.
        (HostAccess::Write, HostPath::BarWindow)
            if intent.size_bytes > profile.heaps[memory.heap].size_bytes / 8 =>
        {
            55
        }
        (HostAccess::Write, _) => 0,
        _ if memory.host_cached && memory.host_coherent => 0,
        // A flush and an invalidation cost far less than one pass of uncached reads.
        _ if memory.host_cached => 1,
        // No cached kind at all (Raspberry Pi, PowerVR): read it as it is. Beside a cached kind, this is the last choice.
        _ => 90,
    };
    preferred + device + host
}

/// Why a candidate that could serve was ranked below the winner.
fn why_lower(profile: &DeviceProfile, intent: &Intent, candidate: &Candidate) -> String {
    let memory = &profile.memory[candidate.kind];
    let path = profile.host_path(candidate.kind);
    if let Some((semantic, _)) = intent.semantic
        && path.semantic() != Some(semantic)
    {
        return format!("{semantic} was preferred, and this is {}", path.name());
    }
    if candidate.staging.is_some() {
        return "the CPU could use it only through a staging copy".into();
    }
    if intent.host.reads() && path != HostPath::Unified && !memory.host_cached {
        return "CPU reads of it are uncached".into();
    }
    if profile.device_cost(candidate.kind) == CostClass::OverBus {
        return "the device would read it over the bus".into();
    }
    match path {
        HostPath::Unified => "its pages would move at each change of hands".into(),
        HostPath::BarWindow => "its window is small and serves the whole system".into(),
        _ if intent.host == HostAccess::None => "the CPU could see it, which nobody asked for".into(),
        _ if !memory.host_coherent => "it needs flushes and invalidations".into(),
        _ if !memory.device_local => "it is not the device's own".into(),
        _ => "the driver lists it later".into(),
    }
}

fn kind_name(profile: &DeviceProfile, kind: usize) -> String {
    profile.memory.get(kind).map_or_else(|| format!("kind {kind}"), |memory| memory.name.clone())
}
