//! Properties of placement that hold on any device at all, real or not.

use onebuf_core::intent::{DeviceUse, HostAccess, Intent, Share, Strength};
use onebuf_core::placement::{Placement, rank};
use onebuf_core::profile::{DeviceProfile, Heap, MemoryKind};
use onebuf_core::{DeviceKind, Error, HandleKind, Semantic, UnifiedLevel};
use proptest::prelude::*;

const HOSTS: [HostAccess; 4] = [HostAccess::None, HostAccess::Read, HostAccess::Write, HostAccess::ReadWrite];

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        0..16u64,
        (0..40u32, 0..3u64).prop_map(|(shift, off)| (1u64 << shift).saturating_sub(1) + off),
        any::<u64>(),
    ]
}

prop_compose! {
    fn any_heap()(size_bytes in any_bytes(), budget_bytes in proptest::option::of(any_bytes()), device_local: bool) -> Heap {
        Heap { size_bytes, budget_bytes, device_local }
    }
}

prop_compose! {
    fn any_memory()(
        heap in 0..5usize,
        flags: [bool; 5],
        export in proptest::sample::subsequence(HandleKind::ALL.to_vec(), 0..=5),
        far in proptest::bool::weighted(0.05),
    ) -> MemoryKind {
        MemoryKind {
            name: String::new(),
            heap: if far { usize::MAX - heap } else { heap },
            device_local: flags[0],
            host_visible: flags[1],
            host_coherent: flags[2],
            host_cached: flags[3],
            migrating: flags[4],
            export,
        }
    }
}

prop_compose! {
    fn any_profile()(
        kind in proptest::sample::select(vec![
            DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Virtual, DeviceKind::Software, DeviceKind::Other,
        ]),
        unified in proptest::sample::select(vec![
            UnifiedLevel::None, UnifiedLevel::Exclusive, UnifiedLevel::Managed, UnifiedLevel::SystemHardware,
        ]),
        heaps in proptest::collection::vec(any_heap(), 0..4),
        mut memory in proptest::collection::vec(any_memory(), 0..8),
        max_allocation_bytes in any_bytes(),
        max_buffer_bytes in any_bytes(),
    ) -> DeviceProfile {
        for (index, memory) in memory.iter_mut().enumerate() {
            memory.name = format!("kind {index}");
        }
        DeviceProfile { device: "any".into(), kind, unified, heaps, memory, max_allocation_bytes, max_buffer_bytes }
    }
}

prop_compose! {
    fn any_intent()(
        size_bytes in any_bytes(),
        host in proptest::sample::select(HOSTS.to_vec()),
        require_in_place: bool,
        heavy: bool,
        share in proptest::sample::subsequence(vec![Share::Process, Share::Api], 0..=2),
        ways in proptest::sample::subsequence(HandleKind::ALL.to_vec(), 0..=5),
        semantic in proptest::option::of((proptest::sample::select(Semantic::ALL.to_vec()), any::<bool>())),
    ) -> Intent {
        let strength = |require| if require { Strength::Require } else { Strength::Prefer };
        Intent {
            size_bytes,
            host,
            in_place: strength(require_in_place),
            device_use: if heavy { DeviceUse::Heavy } else { DeviceUse::Streaming },
            share,
            ways: ways.into_iter().collect(),
            semantic: semantic.map(|(semantic, require)| (semantic, strength(require))),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Whatever the device and the intent: no panic, each kind once, and every candidate is what was required.
    #[test]
    fn rank_holds_on_any_device(profile in any_profile(), asked in any_intent()) {
        let answer = rank(&profile, &asked);
        prop_assert_eq!(&answer, &rank(&profile, &asked));
        for kind in 0..profile.memory.len() + 2 {
            profile.host_cost(kind);
            profile.device_cost(kind);
        }
        profile.memory_bytes();
        match answer {
            Ok(ranking) => {
                prop_assert!(asked.size_bytes <= profile.max_buffer_bytes.min(profile.max_allocation_bytes));
                let mut seen: Vec<String> = ranking.rejected.iter().map(|rejected| rejected.kind.clone()).collect();
                seen.extend(ranking.candidates.iter().map(|candidate| profile.memory[candidate.kind].name.clone()));
                seen.sort();
                let names: Vec<String> = profile.memory.iter().map(|memory| memory.name.clone()).collect();
                prop_assert_eq!(seen, names);
                for candidate in &ranking.candidates {
                    let memory = &profile.memory[candidate.kind];
                    prop_assert!(asked.size_bytes <= profile.heaps[memory.heap].room_bytes());
                    if asked.in_place == Strength::Require || asked.host == HostAccess::None {
                        prop_assert_eq!(candidate.staging, None);
                    }
                    if asked.host != HostAccess::None && candidate.staging.is_none() {
                        prop_assert!(memory.host_visible || memory.migrating);
                    }
                    if let Some(staging) = candidate.staging {
                        let staging = &profile.memory[staging];
                        prop_assert!(staging.host_visible && !staging.migrating);
                        prop_assert!(asked.size_bytes <= profile.heaps[staging.heap].room_bytes());
                    }
                    if !asked.share.is_empty() {
                        prop_assert!(candidate.exportable && !memory.export.is_empty());
                    }
                    if candidate.exportable {
                        prop_assert!(memory.export.iter().any(|way| asked.ways.contains(*way)));
                    }
                    let placement = Placement::new(&profile, &asked, &ranking, candidate);
                    if let Some((semantic, Strength::Require)) = asked.semantic {
                        prop_assert_eq!(placement.fell_back_from, None, "{} {}", semantic, placement);
                    }
                    prop_assert_eq!(placement.lost.len(), profile.memory.len() - 1);
                    prop_assert!(placement.lost.iter().all(|lost| !lost.reason.is_empty()));
                    prop_assert_eq!(placement.staged, candidate.staging.is_some());
                    prop_assert_eq!(placement.to_string().lines().count(), profile.memory.len());
                }
            }
            Err(Error::LimitExceeded { required, available, .. }) => {
                prop_assert!(required == asked.size_bytes && required > available);
            }
            Err(Error::OutOfMemory { asked_bytes, free_bytes, .. }) => {
                prop_assert_eq!(asked_bytes, asked.size_bytes);
                prop_assert!(free_bytes.is_some_and(|free| free < asked_bytes));
            }
            Err(Error::NoPlacement { rejected, .. }) => prop_assert_eq!(rejected.len(), profile.memory.len()),
            Err(error) => prop_assert!(false, "unexpected: {}", error),
        }
    }

    /// More room never makes a fitting buffer fail.
    #[test]
    fn room_never_hurts(profile in any_profile(), asked in any_intent()) {
        if rank(&profile, &asked).is_ok() {
            let mut larger = profile.clone();
            for heap in &mut larger.heaps {
                heap.budget_bytes = None;
            }
            prop_assert!(rank(&larger, &asked).is_ok());
        }
    }

    /// What is only preferred never decides whether there is a placement.
    #[test]
    fn a_preference_never_fails(profile in any_profile(), asked in any_intent()) {
        let plain = Intent { semantic: None, ..asked.clone() };
        let preferring = Intent { semantic: asked.semantic.map(|(semantic, _)| (semantic, Strength::Prefer)), ..asked };
        prop_assert_eq!(rank(&profile, &plain).is_ok(), rank(&profile, &preferring).is_ok());
    }
}
