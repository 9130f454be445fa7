//! Placement on tables of real devices.

use onebuf_core::intent::{DeviceUse, HostAccess, Intent, Share, Strength};
use onebuf_core::placement::{Placement, rank};
use onebuf_core::profile::{DeviceProfile, Heap, MemoryKind};
use onebuf_core::{CostClass, DeviceKind, Error, HandleKind, HostPath, Semantic};

mod devices;

use devices::{GIB, KIB, MIB};

const HOSTS: [HostAccess; 4] = [HostAccess::None, HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite];

fn intent(size_bytes: u64, host: HostAccess) -> Intent {
    Intent { size_bytes, host, ..Intent::default() }
}

/// The placement that the winner gives.
fn place(profile: &DeviceProfile, intent: &Intent) -> Result<Placement, Error> {
    let ranking = rank(profile, intent)?;
    Ok(Placement::new(profile, intent, &ranking, &ranking.candidates[0]))
}

fn placed(profile: &DeviceProfile, intent: &Intent) -> Placement {
    place(profile, intent).unwrap_or_else(|error| panic!("{}: {error}", profile.device))
}

/// `type 4 (resizable-bar)`, `type 1 (device-only, staged)`: enough for a table.
fn brief(profile: &DeviceProfile, intent: &Intent) -> String {
    match place(profile, intent) {
        Ok(placement) => {
            let staged = if placement.staged { ", staged" } else { "" };
            let export = if placement.exportable { ", exportable" } else { "" };
            let bus = if placement.device_cost == CostClass::OverBus { ", over the bus" } else { "" };
            format!("{} ({}{staged}{export}{bus})", placement.kind, placement.path.name())
        }
        Err(Error::OutOfMemory { never_fits, free_bytes, .. }) => {
            let free = free_bytes.map_or("unknown".into(), onebuf_core::error::human_bytes);
            format!("out of memory ({}, {free} free)", if never_fits { "never fits" } else { "full" })
        }
        Err(Error::NoPlacement { rejected, .. }) => format!("no placement ({} reasons)", rejected.len()),
        Err(Error::LimitExceeded { what, .. }) => format!("past the limit: {what}"),
        Err(error) => format!("{error}"),
    }
}

/// What wins for every combination at this size, one line each; equal answers share a line.
fn winners(profile: &DeviceProfile, size: u64) -> String {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    for share in [vec![], vec![Share::Process], vec![Share::Api]] {
        for device_use in [DeviceUse::Streaming, DeviceUse::Heavy] {
            for host in HOSTS {
                let intent = Intent { device_use, share: share.clone(), ..intent(size, host) };
                let share = match share.first() {
                    None => "private",
                    Some(Share::Process) => "process",
                    Some(Share::Api) => "api",
                };
                let device_use = if device_use == DeviceUse::Heavy { " heavy" } else { "" };
                let asked = format!("{share} {}{device_use}", host.name());
                let got = brief(profile, &intent);
                match lines.iter_mut().find(|(answer, _)| *answer == got) {
                    Some((_, asked_before)) => asked_before.push(asked),
                    None => lines.push((got, vec![asked])),
                }
            }
        }
    }
    let all = |asked: &[String]| if asked.len() == 24 { "everything".into() } else { asked.join("; ") };
    lines.iter().map(|(got, asked)| format!("  {got}\n      {}\n", all(asked))).collect()
}

/// One snapshot a device: what wins for every combination, and in full why the others lost.
#[test]
fn tables() {
    for (name, profile) in devices::all() {
        let mut text = format!("{} ({}), {} bytes\n", profile.device, profile.kind, profile.memory_bytes());
        for (kind, memory) in profile.memory.iter().enumerate() {
            let host = profile.host_cost(kind).map_or("none", |cost| cost.name());
            let path = profile.host_path(kind).name();
            let device = profile.device_cost(kind).name();
            text += &format!("  {}: {path}, host {host}, device {device}\n", memory.name);
        }
        for size in [64 * KIB, 100 * MIB, 1536 * MIB, 6 * GIB, 200 * GIB] {
            text += &format!("\n{}\n{}", onebuf_core::error::human_bytes(size), winners(&profile, size));
        }
        for host in HOSTS {
            let shown = match place(&profile, &intent(MIB, host)) {
                Ok(placement) => placement.to_string(),
                Err(error) => error.to_string(),
            };
            text += &format!("\n{shown}\n");
        }
        for semantic in [Semantic::Unified, Semantic::Uma, Semantic::HostMapped] {
            for strength in [Strength::Prefer, Strength::Require] {
                let intent =
                    Intent { semantic: Some((semantic, strength)), ..intent(MIB, HostAccess::ReadWrite) };
                let shown = match place(&profile, &intent) {
                    Ok(placement) => placement.to_string(),
                    Err(error) => error.to_string(),
                };
                text += &format!("\n{shown}\n");
            }
        }
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(name, text);
        });
    }
}

fn reason<'a>(placement: &'a Placement, kind: &str) -> &'a str {
    let lost = placement.lost.iter().find(|lost| lost.kind == kind);
    &lost.unwrap_or_else(|| panic!("{kind} is not among {:?}", placement.lost)).reason
}

/// gpu-allocator pull request 311, prosper pull request 1089: cached first, flush and invalidate.
#[test]
fn cpu_reads_prefer_cached_memory_even_where_it_is_not_coherent() {
    for host in [HostAccess::Read, HostAccess::ReadWrite] {
        let placement = placed(&devices::intel_non_coherent::profile(), &intent(MIB, host));
        assert!(placement.cached && !placement.coherent && !placement.staged, "{placement}");
        assert_eq!(placement.host_cost, Some(CostClass::Cached));
        let placement = placed(&devices::mali_g78::profile(), &intent(MIB, host));
        assert!(placement.cached && !placement.coherent, "{placement}");
    }
    let placement = placed(&devices::intel_non_coherent::profile(), &intent(MIB, HostAccess::Write));
    assert!(!placement.cached && placement.coherent, "{placement}");
    assert_eq!(reason(&placement, "type 1"), "it needs flushes and invalidations");
}

/// VulkanMemoryAllocator issue 362: asking for cached memory must not fail where there is none.
#[test]
fn a_missing_cached_type_rules_nothing_out() {
    for host in HOSTS {
        let placement = placed(&devices::raspberry_pi_4::profile(), &intent(MIB, host));
        assert_eq!((placement.kind.as_str(), placement.staged), ("type 0", false));
        assert_eq!(placement.semantic, Some(Semantic::Uma));
        assert_eq!(placement.host_cost, Some(CostClass::WriteCombined));
    }
}

/// upscayl issue 1314, llama.cpp issue 22368, VulkanMemoryAllocator issue 520: the 256 MiB heap picked.
#[test]
fn small_windows_are_for_small_buffers() {
    let apu = devices::amd_apu_window::profile();
    assert_eq!(placed(&apu, &intent(32 * MIB, HostAccess::Write)).kind, "type 2");
    for host in HOSTS {
        let placement = placed(&apu, &intent(32 * MIB + 1, host));
        assert!(["type 1", "type 3"].contains(&placement.kind.as_str()), "{placement}");
        assert!(!placement.staged);
    }
    let placement = placed(&apu, &intent(100 * MIB, HostAccess::Write));
    assert_eq!(reason(&placement, "type 2"), "its heap is small and serves the whole system");
    let placement = placed(&apu, &intent(GIB, HostAccess::Write));
    assert_eq!(reason(&placement, "type 2"), "its heap has 256 MiB in all, 1 GiB asked");

    let card = devices::amd_bar_256::profile();
    assert_eq!(placed(&card, &intent(32 * MIB, HostAccess::Write)).path, HostPath::BarWindow);
    let heavy = Intent { device_use: DeviceUse::Heavy, ..intent(100 * MIB, HostAccess::Write) };
    let placement = placed(&card, &heavy);
    assert_eq!((placement.kind.as_str(), placement.staged), ("type 0", true));
    assert_eq!(reason(&placement, "type 2"), "its heap is small and serves the whole system");
    // 173 MiB of the window are left.
    let placement = placed(&card, &intent(200 * MIB, HostAccess::Write));
    assert_eq!(reason(&placement, "type 2"), "its heap has 173.3 MiB left, 200 MiB asked");
}

#[test]
fn windows_are_told_by_heaps_and_kind_of_device() {
    let path = |profile: &DeviceProfile, kind: usize| profile.host_path(kind);
    assert_eq!(path(&devices::amd_bar_256::profile(), 2), HostPath::BarWindow);
    assert_eq!(path(&devices::amd_resizable_bar::profile(), 2), HostPath::ResizableBar);
    assert_eq!(path(&devices::nvidia_h200::profile(), 4), HostPath::ResizableBar);
    assert_eq!(path(&devices::amd_apu_window::profile(), 2), HostPath::Uma);
    assert_eq!(path(&devices::lavapipe_22_3::profile(), 0), HostPath::Uma);
    assert_eq!(path(&devices::cuda_jetson_orin::profile(), 2), HostPath::Unified);
    // A window may be larger than 256 MiB, and is one while it shows less than half of the card.
    let mut card = devices::amd_bar_256::profile();
    card.heaps[2].size_bytes = GIB;
    assert_eq!(path(&card, 2), HostPath::BarWindow);
    card.heaps[2].size_bytes = 7 * GIB;
    assert_eq!(path(&card, 2), HostPath::ResizableBar);
}

/// stable-diffusion.cpp issue 2022: an integrated GPU that "has 0.00 MB"; llama.cpp issue 16832: one heap of several.
#[test]
fn memory_is_summed() {
    assert_eq!(devices::amd_apu_split::profile().memory_bytes(), (32 + 64 + 15) * GIB);
    assert_eq!(devices::amd_apu_window::profile().memory_bytes(), 16_437_477_376 + 512 * MIB);
    assert_eq!(devices::amd_bar_256::profile().memory_bytes(), 8_321_499_136 + 256 * MIB);
    assert_eq!(devices::nvidia_h200::profile().memory_bytes(), 139 * GIB);
    let mut nothing_local = devices::radv_apu::profile();
    nothing_local.heaps.retain(|heap| !heap.device_local);
    assert_eq!(nothing_local.memory_bytes(), 1_431_654_400);
    let mut huge = devices::nvidia_h200::profile();
    huge.heaps = vec![Heap { size_bytes: u64::MAX, budget_bytes: None, device_local: true }; 3];
    assert_eq!(huge.memory_bytes(), u64::MAX);
}

/// An APU split over several heaps: when one is full, the next serves.
#[test]
fn a_split_memory_is_used_heap_by_heap() {
    let mut apu = devices::amd_apu_split::profile();
    let asked = intent(20 * GIB, HostAccess::None);
    assert_eq!(placed(&apu, &asked).kind, "type 0");
    apu.heaps[0].budget_bytes = Some(10 * GIB);
    let placement = placed(&apu, &asked);
    assert_eq!(placement.kind, "type 2");
    assert_eq!(reason(&placement, "type 0"), "its heap has 10 GiB left, 20 GiB asked");
    apu.heaps[2].budget_bytes = Some(0);
    let error = place(&apu, &asked).unwrap_err();
    let Error::OutOfMemory { asked_bytes, free_bytes, never_fits } = error else { panic!("{error}") };
    // The host heap could never take it, but the first could if it were empty.
    assert_eq!((asked_bytes, free_bytes, never_fits), (20 * GIB, Some(14 * GIB), false));
}

/// NVIDIA's first type has no flags: it lies in the host's memory. Taking it as "device memory" is a slow path unsaid.
#[test]
fn the_type_without_flags_is_not_device_memory() {
    let placement = placed(&devices::nvidia_h200::profile(), &intent(MIB, HostAccess::None));
    assert_eq!(placement.kind, "type 1");
    assert_eq!(placement.device_cost, CostClass::Cached);
    assert_eq!(reason(&placement, "type 0"), "the device would reach it over the bus");
}

#[test]
fn bar_reads_are_staged_unless_required_in_place() {
    let card = devices::nvidia_h200::profile();
    let heavy = Intent { device_use: DeviceUse::Heavy, ..intent(MIB, HostAccess::ReadWrite) };
    let placement = placed(&card, &heavy);
    assert_eq!((placement.kind.as_str(), placement.staged), ("type 1", true));
    assert_eq!(placement.semantic, None);
    assert_eq!(placement.host_cost, Some(CostClass::Cached));
    assert_eq!(
        reason(&placement, "type 4"),
        "CPU reads of it cross the bus uncached, so they would be staged"
    );
    let in_place = Intent { in_place: Strength::Require, ..heavy };
    let ranking = rank(&card, &in_place).unwrap();
    assert!(ranking.candidates.iter().all(|candidate| candidate.staging.is_none()));
    let bar = ranking.candidates.iter().find(|candidate| candidate.kind == 4).expect("the BAR can serve");
    assert_eq!(Placement::new(&card, &in_place, &ranking, bar).host_cost, Some(CostClass::WriteCombined));
    let gone = ranking.rejected.iter().find(|rejected| rejected.kind == "type 1").unwrap();
    assert_eq!(gone.reason, "the CPU cannot see it, and access in place is required");
}

/// A device whose only memory is a BAR, as some virtual ones show it, still serves the CPU.
#[test]
fn without_host_memory_a_bar_is_read_in_place() {
    let mut only = devices::lavapipe_22_3::profile();
    only.kind = DeviceKind::Virtual;
    for cached in [true, false] {
        only.memory[0].host_cached = cached;
        let placement = placed(&only, &intent(MIB, HostAccess::ReadWrite));
        assert_eq!((placement.path, placement.staged), (HostPath::ResizableBar, false));
    }
}

/// Staging through uncached memory is a copy and a slow read: worse than the slow read alone.
#[test]
fn staging_never_goes_through_uncached_memory_for_nothing() {
    let mut jetson = devices::cuda_jetson_orin::profile();
    jetson.memory[1].host_cached = false;
    let placement = placed(&jetson, &intent(MIB, HostAccess::Read));
    assert_eq!((placement.kind.as_str(), placement.staged), ("pinned", false));
}

#[test]
fn a_staging_copy_needs_room_too() {
    let mut card = devices::amd_bar_256::profile();
    let asked = Intent { device_use: DeviceUse::Heavy, ..intent(GIB, HostAccess::ReadWrite) };
    assert_eq!(placed(&card, &asked).kind, "type 0");
    card.heaps[1].budget_bytes = Some(512 * MIB);
    let error = place(&card, &asked).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { free_bytes: Some(536_870_912), never_fits: false, .. }),
        "{error}"
    );

    // One heap takes both.
    let heaps = vec![Heap { size_bytes: 3 * GIB, budget_bytes: Some(2 * GIB), device_local: true }];
    let memory = vec![
        MemoryKind { name: "private".into(), device_local: true, ..MemoryKind::default() },
        MemoryKind { name: "shared".into(), host_visible: true, ..MemoryKind::default() },
    ];
    let one =
        DeviceProfile { heaps, memory, kind: DeviceKind::Discrete, ..devices::lavapipe_22_3::profile() };
    let asked = Intent { device_use: DeviceUse::Heavy, ..intent(1200 * MIB, HostAccess::Write) };
    let placement = placed(&one, &asked);
    assert_eq!(placement.kind, "shared");
    assert_eq!(
        reason(&placement, "private"),
        "its heap, which takes the staging copy too, has 2 GiB left, 2.3 GiB asked"
    );
}

#[test]
fn sizes_past_limits_heaps_and_budgets_are_three_errors() {
    let card = devices::amd_resizable_bar::profile();
    let error = rank(&card, &intent(5 * GIB, HostAccess::None)).unwrap_err();
    assert!(
        matches!(error, Error::LimitExceeded { required, available, .. }
        if required == 5 * GIB && available == 4 * GIB - 4),
        "{error}"
    );
    let mut soft = card.clone();
    soft.max_buffer_bytes = 32 * GIB;
    let error = rank(&soft, &intent(5 * GIB, HostAccess::None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "size of one allocation in bytes: asked for 5368709120, the device allows 4294967292"
    );

    let lavapipe = DeviceProfile {
        max_allocation_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        ..devices::lavapipe_22_3::profile()
    };
    let error = rank(&lavapipe, &intent(3 * GIB, HostAccess::ReadWrite)).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { free_bytes: Some(2_147_483_648), never_fits: true, .. }),
        "{error}"
    );
    let error = rank(&lavapipe, &intent(u64::MAX, HostAccess::ReadWrite)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { never_fits: true, .. }), "{error}");

    let mut full = lavapipe;
    full.heaps[0].budget_bytes = Some(GIB);
    let error = rank(&full, &intent(GIB + 1, HostAccess::ReadWrite)).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { free_bytes: Some(1_073_741_824), never_fits: false, .. }),
        "{error}"
    );
    assert!(rank(&full, &intent(GIB, HostAccess::ReadWrite)).is_ok());
    // VulkanMemoryAllocator issue 157: RADV once gave budgets of 16 EiB.
    full.heaps[0].budget_bytes = Some(18_446_744_073_271_062_528);
    assert_eq!(full.heaps[0].room_bytes(), 2 * GIB);
    let error = rank(&full, &intent(3 * GIB, HostAccess::ReadWrite)).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { free_bytes: Some(2_147_483_648), never_fits: true, .. }),
        "{error}"
    );
}

/// Where a requirement rules out what would have had the room, freeing memory does not help, so the reasons matter.
#[test]
fn a_requirement_that_leaves_too_little_fails_with_every_reason() {
    let apu = devices::amd_apu_window::profile();
    let asked =
        Intent { semantic: Some((Semantic::Uma, Strength::Require)), ..intent(GIB, HostAccess::ReadWrite) };
    let error = place(&apu, &asked).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no memory of AMD Radeon Graphics (7950X) serves this buffer (1 GiB, host read-write, uma required):\n  \
         type 0: uma is required, and this is device-only\n  \
         type 1: uma is required, and this is host-mapped\n  \
         type 2: its heap has 256 MiB in all, 1 GiB asked\n  \
         type 3: uma is required, and this is host-mapped"
    );
}

/// cupy issue 9306, cudarc issue 521: intent at allocation; the error names the kind and the remedy.
#[test]
fn sharing_picks_what_can_be_exported() {
    let h200 = devices::cuda_h200::profile();
    let share = |share, host| Intent { share: vec![share], ..intent(MIB, host) };
    let placement = placed(&h200, &share(Share::Process, HostAccess::ReadWrite));
    assert_eq!((placement.kind.as_str(), placement.staged, placement.exportable), ("vmm", true, true));
    assert_eq!(reason(&placement, "device"), "it cannot be exported");
    assert_eq!(reason(&placement, "pool"), "it can be shared as a pool's memory alone");
    // The legacy handle is never taken unasked.
    assert_eq!(
        reason(&placement, "ipc"),
        "it is exported as cuda-ipc, and only opaque-fd or dma-buf or memfd or cuda-pool is allowed"
    );
    let by = |way: HandleKind| Intent {
        ways: [way].into_iter().collect(),
        ..share(Share::Process, HostAccess::ReadWrite)
    };
    for (way, kind) in
        [(HandleKind::CudaIpc, "ipc"), (HandleKind::CudaPool, "pool"), (HandleKind::OpaqueFd, "vmm")]
    {
        let placement = placed(&h200, &by(way));
        assert_eq!((placement.kind.as_str(), placement.way, placement.staged), (kind, Some(way), true));
        assert_eq!(placement.device_cost, CostClass::Cached);
        assert!(placement.to_string().contains(&format!("exportable as {}", way.name())), "{placement}");
    }
    assert_eq!(reason(&placement, "managed"), "it cannot be exported");
    let placement = placed(&h200, &share(Share::Api, HostAccess::None));
    assert_eq!(reason(&placement, "pool"), "it can be exported to processes alone, not to another API");
    // Without fd handles the pool serves processes, and only them; without pools too, nothing does unasked.
    let mut legacy = h200.clone();
    legacy.memory.retain(|memory| memory.name != "vmm");
    assert_eq!(placed(&legacy, &share(Share::Process, HostAccess::None)).kind, "pool");
    assert!(
        matches!(rank(&legacy, &share(Share::Api, HostAccess::None)), Err(Error::NoPlacement { rejected, .. }) if rejected.len() == 5)
    );
    legacy.memory.retain(|memory| memory.name != "pool");
    for semantic in [None, Some((Semantic::Process, Strength::Require))] {
        let unasked = Intent { semantic, ..share(Share::Process, HostAccess::None) };
        assert!(matches!(rank(&legacy, &unasked), Err(Error::NoPlacement { .. })));
        let asked = Intent { semantic, ..by(HandleKind::CudaIpc) };
        assert_eq!(placed(&legacy, &asked).kind, "ipc");
    }
    // No export on a Jetson: three reasons, and never a private buffer in its place.
    let error =
        place(&devices::cuda_jetson_orin::profile(), &share(Share::Process, HostAccess::None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no memory of Orin (CUDA) serves this buffer (1 MiB, host none, shared with another process):\n  \
         device: it cannot be exported\n  pinned: it cannot be exported\n  managed: it cannot be exported"
    );
    // Advertised is not verified: placement believes the profile, so the backend must try before it advertises.
    assert_eq!(placed(&devices::cuda_wsl2::profile(), &share(Share::Process, HostAccess::None)).kind, "vmm");
}

#[test]
fn sharing_may_be_asked_for_as_a_semantic() {
    let h200 = devices::cuda_h200::profile();
    let by_name =
        |semantic, strength| Intent { semantic: Some((semantic, strength)), ..intent(MIB, HostAccess::None) };
    for semantic in [Semantic::Process, Semantic::Api] {
        for strength in [Strength::Prefer, Strength::Require] {
            let placement = placed(&h200, &by_name(semantic, strength));
            assert_eq!((placement.kind.as_str(), placement.exportable), ("vmm", true));
            assert_eq!(placement.fell_back_from, None);
        }
    }
    let jetson = devices::cuda_jetson_orin::profile();
    let placement = placed(&jetson, &by_name(Semantic::Process, Strength::Prefer));
    assert_eq!((placement.exportable, placement.fell_back_from), (false, Some(Semantic::Process)));
    let error = place(&jetson, &by_name(Semantic::Process, Strength::Require)).unwrap_err();
    assert!(error.to_string().contains("process is required, and it cannot be exported"), "{error}");
    let error = place(&h200, &by_name(Semantic::Workgroup, Strength::Require)).unwrap_err();
    assert!(
        error.to_string().contains("workgroup is required, and that is not decided by where a buffer lies"),
        "{error}"
    );
}

/// MatX issue 1007, mlx issue 3645: managed memory where the CPU may not touch it during kernels is the last resort.
#[test]
fn exclusive_unified_memory_is_never_chosen_beside_another_way() {
    for profile in [devices::cuda_jetson_orin::profile(), devices::cuda_wsl2::profile()] {
        for host in HOSTS {
            for device_use in [DeviceUse::Streaming, DeviceUse::Heavy] {
                let asked = Intent { device_use, ..intent(MIB, host) };
                assert_ne!(placed(&profile, &asked).path, HostPath::Unified, "{}", profile.device);
            }
        }
        let asked = Intent {
            semantic: Some((Semantic::Unified, Strength::Prefer)),
            ..intent(MIB, HostAccess::ReadWrite)
        };
        assert_eq!(placed(&profile, &asked).semantic, Some(Semantic::Unified));
    }
    let heavy = Intent { device_use: DeviceUse::Heavy, ..intent(MIB, HostAccess::ReadWrite) };
    assert_eq!(placed(&devices::cuda_h200::profile(), &heavy).path, HostPath::Unified);
    let placement = placed(&devices::cuda_wsl2::profile(), &heavy);
    assert_eq!(reason(&placement, "managed"), "the CPU may touch it only while no kernel runs");
}

/// rmm issue 14: a terabyte of managed memory "succeeds" and hangs the device.
#[test]
fn managed_memory_ends_with_the_device() {
    let h200 = DeviceProfile {
        max_allocation_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        ..devices::cuda_h200::profile()
    };
    let asked = Intent {
        semantic: Some((Semantic::Unified, Strength::Require)),
        ..intent(1 << 40, HostAccess::ReadWrite)
    };
    let error = place(&h200, &asked).unwrap_err();
    assert!(error.to_string().contains("managed: its heap has 139 GiB in all, 1 TiB asked"), "{error}");
}

/// No silent downgrade: a driver that refuses memory moves the buffer on, and the placement says from where.
#[test]
fn a_refusal_of_the_driver_is_named() {
    let profile = devices::nvidia_h200::profile();
    let asked = intent(MIB, HostAccess::None);
    let ranking = rank(&profile, &asked).unwrap();
    let placement = Placement::new(&profile, &asked, &ranking, &ranking.candidates[2]);
    assert_eq!(placement.device_cost, CostClass::OverBus);
    assert_eq!(reason(&placement, "type 1"), "it ranks higher, but the driver had no memory of it");
    assert_eq!(reason(&placement, "type 4"), "it ranks higher, but the driver had no memory of it");
    assert_eq!(placement.lost.len(), profile.memory.len() - 1);
    let shown = placement.to_string();
    assert!(shown.starts_with("device-only: type 0, the device reaches it over the bus"), "{shown}");
}

#[test]
fn placements_and_profiles_survive_json() {
    for (name, profile) in devices::all() {
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(serde_json::from_str::<DeviceProfile>(&text).unwrap(), profile, "{name}");
        let placement = placed(&profile, &intent(MIB, HostAccess::ReadWrite));
        let text = serde_json::to_string(&placement).unwrap();
        assert_eq!(serde_json::from_str::<Placement>(&text).unwrap(), placement, "{name}");
    }
}
