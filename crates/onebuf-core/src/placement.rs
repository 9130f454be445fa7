//! The choice of memory for a buffer: a pure function from a device's profile and an intent to a ranked list.
//!
//! The order follows measurements, and each rule has its reason beside it. Nothing here asks a driver, so the
//! choice is tested on tables of devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, human_bytes};
use crate::intent::{DeviceUse, HostAccess, Intent, Share, Strength};
use crate::profile::{CostClass, DeviceProfile, HandleKind, Heap, HostPath, MemoryKind};
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
    /// The way by which another process opens it; `None` where none was asked for.
    #[serde(default)]
    pub way: Option<HandleKind>,
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
    /// The placement of a buffer in `candidate`, with every other kind's reason for losing. Candidates that rank above
    /// it are those whose memory the driver refused.
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
        let others = ranking.candidates.iter().filter(|other| other.kind < profile.memory.len());
        let refused = others.clone().take_while(|other| other.kind != candidate.kind).map(|other| Rejected {
            kind: kind_name(profile, other.kind),
            reason: "it ranks higher, but the driver had no memory of it".into(),
        });
        let outranked =
            others.skip_while(|other| other.kind != candidate.kind).skip(1).map(|other| Rejected {
                kind: kind_name(profile, other.kind),
                reason: why_lower(profile, intent, other, candidate),
            });
        let lost = refused.chain(outranked).chain(ranking.rejected.iter().cloned()).collect();
        let wanted = intent.semantic.map(|(semantic, _)| semantic);
        Placement {
            asked: intent.clone(),
            kind: memory.name.clone(),
            path,
            semantic,
            cached: memory.host_cached,
            coherent: memory.host_coherent,
            exportable: candidate.exportable,
            way: candidate.exportable.then(|| way(memory, intent)).flatten(),
            staged: candidate.staging.is_some(),
            host_cost: match candidate.staging {
                Some(staging) => profile.host_cost(staging),
                None => profile.host_cost(candidate.kind),
            },
            device_cost: profile.device_cost(candidate.kind),
            fell_back_from: wanted.filter(|wanted| match wanted {
                Semantic::Process | Semantic::Api => !gives(profile, intent, candidate.kind, *wanted),
                _ => Some(*wanted) != semantic,
            }),
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
        if let Some(way) = self.way {
            write!(f, " as {}", way.name())?;
        }
        if self.staged {
            f.write_str(", staged: the CPU works on a page-locked copy")?;
        }
        if self.device_cost == CostClass::OverBus {
            f.write_str(", the device reaches it over the bus")?;
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

/// Whether a kind of memory can serve.
enum Verdict {
    /// It can.
    Fits,
    /// It is not what was asked for.
    Unfit(String),
    /// It would serve, but could not hold that much if it were empty.
    NeverFits(Shortage),
    /// It would serve, but has too little left.
    NoRoom(Shortage),
}

/// Too little memory.
struct Shortage {
    reason: String,
    /// The largest buffer that would find room now, in bytes.
    room_bytes: u64,
}

/// Ranks the kinds of memory of `profile` for `intent`.
///
/// # Errors
/// - [`Error::LimitExceeded`] when the size is past what one buffer, or one allocation, may have.
/// - [`Error::OutOfMemory`] when a kind that could serve is too full now, or when every kind could serve and all are
///   too small (`never_fits`).
/// - [`Error::NoPlacement`] otherwise, with each kind's reason: no freeing of memory would help.
pub fn rank(profile: &DeviceProfile, intent: &Intent) -> Result<Ranking> {
    let size = intent.size_bytes;
    Error::check_limit("buffer size in bytes", size, profile.max_buffer_bytes)?;
    Error::check_limit("size of one allocation in bytes", size, profile.max_allocation_bytes)?;
    let staging = staging_kind(profile);
    let mut ranked: Vec<(u32, Candidate)> = Vec::new();
    let mut rejected = Vec::new();
    let mut most_room = None;
    let (mut unfit, mut full) = (false, false);
    for kind in 0..profile.memory.len() {
        let staged = intent.host != HostAccess::None && !works_in_place(profile, intent, kind, staging);
        let staging = staging.filter(|_| staged);
        let verdict = judge(profile, intent, kind, staged, staging);
        let reason = match verdict {
            Verdict::Fits => {
                let candidate = Candidate { kind, staging, exportable: exports(profile, intent, kind) };
                let cost = costs(profile, intent, &candidate).iter().map(|cost| cost.points).sum();
                ranked.push((cost, candidate));
                continue;
            }
            Verdict::Unfit(reason) => {
                unfit = true;
                reason
            }
            Verdict::NeverFits(shortage) => {
                most_room = most_room.max(Some(shortage.room_bytes));
                shortage.reason
            }
            Verdict::NoRoom(shortage) => {
                most_room = most_room.max(Some(shortage.room_bytes));
                full = true;
                shortage.reason
            }
        };
        rejected.push(Rejected { kind: kind_name(profile, kind), reason });
    }
    // A stable sort: among equals the driver's own order decides, as the Vulkan specification intends.
    ranked.sort_by_key(|(cost, _)| *cost);
    let candidates: Vec<Candidate> = ranked.into_iter().map(|(_, candidate)| candidate).collect();
    if !candidates.is_empty() {
        return Ok(Ranking { candidates, rejected });
    }
    if full || (!unfit && !rejected.is_empty()) {
        return Err(Error::OutOfMemory { asked_bytes: size, free_bytes: most_room, never_fits: !full });
    }
    Err(Error::NoPlacement { device: profile.device.clone(), asked: intent.to_string(), rejected })
}

/// Whether the CPU can, and should, work on this memory itself.
fn works_in_place(profile: &DeviceProfile, intent: &Intent, kind: usize, staging: Option<usize>) -> bool {
    match profile.host_path(kind) {
        HostPath::DeviceOnly => false,
        // Where pages may not be touched while any kernel runs, a guard stalls the whole device; but it is in place.
        HostPath::Unified => profile.unified != UnifiedLevel::None,
        // Uncached reads through a BAR crawl (measured on an H200: 64 MiB in 3.1 s against 0.02 s), so they are staged
        // unless the caller insists, or there is nothing to stage through.
        HostPath::ResizableBar | HostPath::BarWindow => {
            let cached = profile.memory.get(kind).is_some_and(|memory| memory.host_cached);
            !intent.host.reads() || cached || intent.in_place == Strength::Require || staging.is_none()
        }
        HostPath::Uma | HostPath::HostMemory => true,
    }
}

/// Whether a buffer of this intent in this memory is made exportable.
fn exports(profile: &DeviceProfile, intent: &Intent, kind: usize) -> bool {
    let by_name = matches!(intent.semantic, Some((Semantic::Process | Semantic::Api, _)));
    let allowed = profile.memory.get(kind).is_some_and(|memory| way(memory, intent).is_some());
    !intent.share.is_empty()
        || by_name
            && allowed
            && intent.semantic.is_some_and(|(semantic, _)| gives(profile, intent, kind, semantic))
}

/// The first way by which memory of this kind leaves the process that the intent allows.
fn way(memory: &MemoryKind, intent: &Intent) -> Option<HandleKind> {
    memory.export.iter().copied().find(|way| intent.ways.contains(*way))
}

/// Whether memory of this kind has a sharing semantic, by a way that the intent allows. The semantics that are not about where a buffer lies
/// (`workgroup`, `host-import`, `framework`, ...) are no memory's.
fn gives(profile: &DeviceProfile, intent: &Intent, kind: usize, semantic: Semantic) -> bool {
    let exports = |kinds: &[HandleKind]| {
        let allowed = |way: &HandleKind| kinds.contains(way) && intent.ways.contains(*way);
        profile.memory.get(kind).is_some_and(|memory| memory.export.iter().any(allowed))
    };
    match semantic {
        Semantic::Process => {
            use HandleKind::{CudaIpc, CudaPool, DmaBuf, OpaqueFd};
            exports(&[OpaqueFd, DmaBuf, CudaPool, CudaIpc])
        }
        // A legacy IPC handle, and a pool's memory, open in CUDA alone.
        Semantic::Api => exports(&[HandleKind::OpaqueFd, HandleKind::DmaBuf]),
        _ => profile.host_path(kind).semantic() == Some(semantic),
    }
}

/// What memory of this kind lacks of a semantic, as the end of a sentence.
fn lack(profile: &DeviceProfile, kind: usize, semantic: Semantic) -> String {
    match semantic {
        Semantic::Unified | Semantic::Uma | Semantic::HostMapped => {
            format!("this is {}", profile.host_path(kind).name())
        }
        Semantic::Process => "it cannot be exported".into(),
        Semantic::Api => "no other API can open it".into(),
        _ => "that is not decided by where a buffer lies".into(),
    }
}

fn judge(
    profile: &DeviceProfile,
    intent: &Intent,
    kind: usize,
    staged: bool,
    staging: Option<usize>,
) -> Verdict {
    let memory = &profile.memory[kind];
    let path = profile.host_path(kind);
    let Some(heap) = profile.heaps.get(memory.heap) else {
        return Verdict::Unfit("its heap does not exist".into());
    };
    if path == HostPath::Unified && profile.unified == UnifiedLevel::None {
        return Verdict::Unfit("the device has no unified memory".into());
    }
    if !intent.share.is_empty() && memory.export.is_empty() {
        return Verdict::Unfit("it cannot be exported".into());
    }
    let by_name = matches!(intent.semantic, Some((Semantic::Process | Semantic::Api, Strength::Require)));
    if (!intent.share.is_empty() || by_name) && !memory.export.is_empty() && way(memory, intent).is_none() {
        let has: Vec<&str> = memory.export.iter().map(|way| way.name()).collect();
        return Verdict::Unfit(format!(
            "it is exported as {}, and only {} is allowed",
            has.join(" or "),
            intent.ways
        ));
    }
    if intent.share.contains(&Share::Api) && !gives(profile, intent, kind, Semantic::Api) {
        return Verdict::Unfit("it can be exported to processes alone, not to another API".into());
    }
    if let Some((semantic, Strength::Require)) = intent.semantic
        && !gives(profile, intent, kind, semantic)
    {
        let lack = lack(profile, kind, semantic);
        return Verdict::Unfit(format!("{semantic} is required, and {lack}"));
    }
    if staged && intent.in_place == Strength::Require {
        return Verdict::Unfit("the CPU cannot see it, and access in place is required".into());
    }
    if !staged {
        return has_room(heap, intent.size_bytes, 1, "its heap");
    }
    let staging_heap = staging.and_then(|staging| profile.memory.get(staging)).map(|staging| staging.heap);
    let Some(staging_heap) = staging_heap.filter(|heap| *heap < profile.heaps.len()) else {
        return Verdict::Unfit("the CPU cannot see it, and there is no host memory to stage through".into());
    };
    if staging_heap == memory.heap {
        return has_room(heap, intent.size_bytes, 2, "its heap, which takes the staging copy too,");
    }
    match has_room(heap, intent.size_bytes, 1, "its heap") {
        Verdict::Fits => {
            has_room(&profile.heaps[staging_heap], intent.size_bytes, 1, "the heap of the staging copy")
        }
        verdict => verdict,
    }
}

/// Whether `heap` takes `copies` more times `size_bytes`. `what` is the heap in the reason.
fn has_room(heap: &Heap, size_bytes: u64, copies: u64, what: &str) -> Verdict {
    let bytes = size_bytes.saturating_mul(copies);
    let room = heap.room_bytes();
    if bytes <= room {
        return Verdict::Fits;
    }
    let never = bytes > heap.size_bytes;
    let has = if never { human_bytes(heap.size_bytes) + " in all" } else { human_bytes(room) + " left" };
    let reason = format!("{what} has {has}, {} asked", human_bytes(bytes));
    let shortage = Shortage { reason, room_bytes: room / copies };
    if never { Verdict::NeverFits(shortage) } else { Verdict::NoRoom(shortage) }
}

/// The page-locked memory that staging goes through: cached where there is any, and coherent among those.
pub fn staging_kind(profile: &DeviceProfile) -> Option<usize> {
    let host = |kind: &usize| {
        matches!(profile.host_path(*kind), HostPath::HostMemory | HostPath::Uma)
            && profile.memory[*kind].heap < profile.heaps.len()
    };
    (0..profile.memory.len()).filter(host).min_by_key(|&kind| {
        let memory = &profile.memory[kind];
        (!memory.host_cached, !memory.host_coherent)
    })
}

/// One respect in which a candidate costs something, and the sentence that says so.
#[derive(Clone, Copy)]
struct Cost {
    points: u32,
    reason: &'static str,
}

/// What a candidate costs in each respect; the least sum wins. The numbers only order the cases, and the respect in
/// which a loser is furthest behind the winner is the reason it is given.
fn costs(profile: &DeviceProfile, intent: &Intent, candidate: &Candidate) -> [Cost; 7] {
    let kind = candidate.kind;
    let path = profile.host_path(kind);
    let memory = &profile.memory[kind];
    let free = Cost { points: 0, reason: "the driver lists it later" };
    let cost = |points, reason| Cost { points, reason };

    let preference = match intent.semantic {
        Some((semantic, _)) if !gives(profile, intent, kind, semantic) => {
            cost(1_000, "another semantic was preferred")
        }
        _ => free,
    };
    let device = match (profile.device_cost(kind), intent.device_use) {
        (CostClass::OverBus, DeviceUse::Heavy) => cost(100, "the device would reach it over the bus"),
        (CostClass::OverBus, DeviceUse::Streaming) => cost(10, "the device would reach it over the bus"),
        // Memory of an integrated device outside its own heap: the same chips, without the device's placement.
        _ if !memory.device_local && path != HostPath::Unified => cost(1, "it is not the device's own"),
        _ => free,
    };
    let way = match (intent.host, path) {
        // The CPU does not come here: leave what it could see to those who need it.
        (HostAccess::None, HostPath::DeviceOnly) => free,
        (HostAccess::None, HostPath::Unified) => cost(200, "its pages could move, which nobody asked for"),
        (HostAccess::None, HostPath::BarWindow) => cost(50, "its window is for what the CPU writes"),
        (HostAccess::None, _) => cost(2, "the CPU could see it, which nobody asked for"),
        (_, HostPath::DeviceOnly) => cost(60, STAGED),
        (_, HostPath::ResizableBar) if candidate.staging.is_some() => cost(62, STAGED_BAR),
        (_, HostPath::BarWindow) if candidate.staging.is_some() => cost(80, STAGED_BAR),
        // Where nothing may run while the CPU touches pages, moving pages is worth it only if nothing else serves.
        (_, HostPath::Unified) if profile.unified <= UnifiedLevel::Exclusive => {
            cost(150, "the CPU may touch it only while no kernel runs")
        }
        // Else they are worth it where the device comes back to them.
        (_, HostPath::Unified) => cost(40, "its pages would move at each change of hands"),
        _ => free,
    };
    // A missing cached kind (Raspberry Pi, PowerVR) rules nothing out; beside a cached kind, uncached is the last choice.
    let read_kind = candidate.staging.unwrap_or(kind);
    let caching = match profile.host_cost(read_kind) {
        Some(CostClass::WriteCombined) if intent.host.reads() => cost(90, "CPU reads of it are uncached"),
        _ => free,
    };
    // The 256 MiB behind a classic BAR, or of an APU's carve-out, serve the whole system: keep out unless the buffer is
    // small beside them.
    let window = match profile.heaps.get(memory.heap) {
        Some(heap) if profile.is_window(kind) && intent.size_bytes > heap.size_bytes / 8 => {
            cost(70, "its heap is small and serves the whole system")
        }
        _ => free,
    };
    // A flush and an invalidation cost far less than one pass of uncached reads.
    let coherence = if intent.host != HostAccess::None && candidate.staging.is_none() && !memory.host_coherent
    {
        cost(1, "it needs flushes and invalidations")
    } else {
        free
    };
    // A legacy handle names a whole allocation, opens in one PID namespace only, and dies with its maker. A pool's memory
    // opens in CUDA alone, and its maker must outlast the others.
    let sharing = match memory.export[..] {
        [HandleKind::CudaIpc] if exports(profile, intent, kind) => {
            cost(5, "it can be shared through a legacy handle alone")
        }
        [HandleKind::CudaPool] if exports(profile, intent, kind) => {
            cost(3, "it can be shared as a pool's memory alone")
        }
        _ => free,
    };
    [preference, device, way, caching, window, coherence, sharing]
}

const STAGED: &str = "the CPU could use it only through a staging copy";
const STAGED_BAR: &str = "CPU reads of it cross the bus uncached, so they would be staged";

/// Why a candidate that could serve lost to `winner`: the respect in which it is furthest behind.
fn why_lower(profile: &DeviceProfile, intent: &Intent, loser: &Candidate, winner: &Candidate) -> String {
    if let Some((semantic, _)) = intent.semantic
        && !gives(profile, intent, loser.kind, semantic)
        && gives(profile, intent, winner.kind, semantic)
    {
        return format!("{semantic} was preferred, and {}", lack(profile, loser.kind, semantic));
    }
    let pairs = costs(profile, intent, loser).into_iter().zip(costs(profile, intent, winner));
    let behind = pairs.map(|(loser, winner)| (loser.points.saturating_sub(winner.points), loser.reason));
    match behind.max_by_key(|(points, _)| *points) {
        Some((1.., reason)) => reason.into(),
        _ => "the driver lists it later".into(),
    }
}

fn kind_name(profile: &DeviceProfile, kind: usize) -> String {
    profile.memory.get(kind).map_or_else(|| format!("kind {kind}"), |memory| memory.name.clone())
}
