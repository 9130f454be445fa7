//! Shares: one object under two openings of a device, which know nothing of each other, as two processes would.

use onebuf::dlpack::View;
use onebuf::{
    Buffer, CostClass, Device, Error, HandleKind, HostAccess, HostPath, Semantic, Share, SharedBuffer, args,
};
use onebuf_tests::{Subject, kernels, lab, resources};

const WAYS: [HandleKind; 4] =
    [HandleKind::OpaqueFd, HandleKind::Memfd, HandleKind::CudaPool, HandleKind::CudaIpc];

fn build(subject: &Subject, way: HandleKind, len: usize) -> onebuf::Result<Buffer<u32>> {
    subject.device.buffer(len).host(HostAccess::ReadWrite).share(Share::Process).ways([way]).build()
}

/// The device once more, as another process has it.
fn elsewhere(subject: &Subject) -> Device {
    lab::registry().open(&subject.device.info().id.to_string()).unwrap()
}

fn open(device: &Device, share: &SharedBuffer) -> onebuf::Result<Buffer<u32>> {
    // SAFETY: the tests wait for work on one buffer before they use the other.
    unsafe { device.open_shared(share) }
}

/// Runs a case for every way that the device has.
fn each_way(case: impl Fn(&Subject, HandleKind, &Device)) {
    lab::on_real_devices(|subject| {
        let mut any = false;
        for way in WAYS {
            match build(subject, way, 1) {
                Ok(_) => {
                    any = true;
                    case(subject, way, &elsewhere(subject));
                }
                Err(Error::NoPlacement { rejected, .. }) => {
                    assert!(!rejected.is_empty());
                    let about_memfd = rejected.iter().any(|out| out.kind == "memfd");
                    assert!(about_memfd, "the memfd route must be spoken of: {rejected:?}");
                }
                Err(other) => panic!("{}: {other}", way.name()),
            }
        }
        if !any {
            subject.skip("it shares no memory");
        }
    });
}

#[test]
fn a_share_opens_as_the_same_memory_elsewhere() {
    each_way(|subject, way, there| {
        for len in [1usize, 1000, 70_000] {
            let mine = build(subject, way, len).unwrap();
            assert!(mine.read().unwrap().iter().all(|&word| word == 0), "shared memory begins as zeros");
            let placement = mine.placement();
            assert_eq!((placement.exportable, placement.way), (true, Some(way)));
            assert!(placement.to_string().contains(&format!("exportable as {}", way.name())), "{placement}");
            if way == HandleKind::Memfd {
                assert_eq!(
                    (placement.path, placement.semantic),
                    (HostPath::HostMemory, Some(Semantic::HostImport))
                );
                let shares_memory = subject.device.info().kind.shares_host_memory();
                let cost = if shares_memory { CostClass::Cached } else { CostClass::OverBus };
                assert_eq!((placement.device_cost, placement.staged), (cost, false));
            }
            let share = mine.share().unwrap();
            let theirs = open(there, &share).unwrap();
            assert_eq!((theirs.len(), theirs.placement().way), (len, Some(way)));
            mine.write().unwrap().fill(41);
            mine.device().wait_idle().unwrap();
            let kernel = there.kernel(kernels::INCREMENT).unwrap().build().unwrap();
            let stream = there.stream().unwrap();
            stream.launch(&kernel, kernel.groups_for([len as u32, 1, 1]), args![theirs]).unwrap();
            stream.wait().unwrap();
            assert!(mine.read().unwrap().iter().all(|&word| word == 42));
            // The maker lets go; a share of the share still opens.
            drop((mine, share));
            let third = open(&elsewhere(subject), &theirs.share().unwrap()).unwrap();
            assert!(third.read().unwrap().iter().all(|&word| word == 42));
        }
    });
}

#[test]
fn an_object_is_opened_once() {
    each_way(|subject, way, there| {
        let mine = build(subject, way, 1000).unwrap();
        let share = mine.share().unwrap();
        // What this device made is found, not opened.
        let same = open(&subject.device, &share).unwrap();
        assert!(same.same_memory(&mine));
        // A driver may keep a descriptor that it opened for its first import.
        resources::settles(3, 48 << 20, || {
            let before = there.memory().buffers;
            let all: Vec<Buffer<u32>> = (0..20).map(|_| open(there, &share).unwrap()).collect();
            assert!(all.iter().all(|one| one.same_memory(&all[0]) && !one.same_memory(&mine)));
            assert_eq!((there.memory().buffers, there.shared_objects()), (before + 1, 1));
            // One memory has common hazards.
            let guard = all[0].write().unwrap();
            assert!(matches!(all[1].try_read(), Err(Error::Busy(_))));
            drop((guard, all));
            there.wait_idle().unwrap();
            assert_eq!((there.memory().buffers, there.shared_objects()), (before, 0));
        });
        // Many threads get one object, too.
        std::thread::scope(|scope| {
            let opened: Vec<_> = (0..4).map(|_| scope.spawn(|| open(there, &share).unwrap())).collect();
            let opened: Vec<Buffer<u32>> = opened.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(opened.iter().all(|one| one.same_memory(&opened[0])));
        });
    });
}

#[test]
fn a_share_of_a_part_shows_the_part_alone() {
    each_way(|subject, way, there| {
        let mine = build(subject, way, 4096).unwrap();
        mine.write().unwrap().fill(0xcafe_f00d);
        let alignment = subject.device.info().limits.storage_offset_alignment_bytes.max(4) as usize / 4;
        for (start, len) in [(0, 1), (alignment, 3), (4 * alignment, 1000), (4095, 1), (7, 0)] {
            let share = mine.slice(start..start + len).unwrap().share().unwrap();
            let part = open(there, &share).unwrap();
            assert_eq!((part.len(), part.offset_bytes(), part.is_empty()), (len, start as u64 * 4, len == 0));
            part.copy_from_slice(&vec![7; len]).unwrap();
            assert!(part.slice(..=len).is_err(), "nothing lies past its end");
            if len > 0 && start % alignment == 0 {
                let kernel = there.kernel(kernels::INCREMENT).unwrap().build().unwrap();
                let stream = there.stream().unwrap();
                // More invocations than elements: the length that the kernel sees is the part's.
                stream.launch(&kernel, kernel.groups_for([4096, 1, 1]), args![part]).unwrap();
                stream.wait().unwrap();
            }
            let added = u32::from(start % alignment == 0);
            there.wait_idle().unwrap();
            // A share of the part is of the part, and so is a cast.
            let again = part.share().unwrap();
            assert_eq!(again.description(), share.description());
            assert_eq!(part.cast::<u8>().unwrap().len(), 4 * len);
            if part.placement().coherent && !part.placement().staged && len > 0 {
                // SAFETY: nobody touches the tensors.
                let view =
                    |buffer: &Buffer<u32>| unsafe { buffer.to_dlpack(View::Host, &[buffer.len()], false) };
                let whole = open(there, &mine.share().unwrap()).unwrap();
                let (whole, part) = (view(&whole).unwrap(), view(&part).unwrap());
                assert_eq!(part.extent().address, whole.extent().address + start as u64 * 4);
            }
            drop(part);
            let mut seen = mine.write().unwrap();
            for (i, &word) in seen.iter().enumerate() {
                let inside = (start..start + len).contains(&i);
                assert_eq!(word, if inside { 7 + added } else { 0xcafe_f00d }, "word {i} of {start} + {len}");
            }
            seen.fill(0xcafe_f00d);
        }
    });
}

#[test]
fn odd_bytes_keep_their_length() {
    each_way(|subject, way, there| {
        let builder = subject.device.buffer::<u8>(4099).host(HostAccess::ReadWrite).share(Share::Process);
        let mine = builder.ways([way]).init_with(|i| i as u8).unwrap();
        mine.settle(std::time::Duration::from_secs(10)).unwrap();
        // SAFETY: the work on each side is waited for before the other side looks.
        let theirs: Buffer<u8> = unsafe { there.open_shared(&mine.share().unwrap()) }.unwrap();
        assert_eq!(theirs.len(), 4099);
        assert!(theirs.read().unwrap().iter().enumerate().all(|(i, &byte)| byte == i as u8));
        // SAFETY: nothing is opened.
        let words = unsafe { there.open_shared::<u32>(&mine.share().unwrap()) };
        assert!(matches!(words, Err(Error::InvalidArgument(_))));
    });
}

#[test]
fn neighbours_are_not_in_a_share() {
    each_way(|subject, way, there| {
        let secret = |_| subject.buffer(&[0x5ec3_e700u32; 300]);
        let before: Vec<Buffer<u32>> = (0..10).map(secret).collect();
        let mine = build(subject, way, 5).unwrap();
        let after: Vec<Buffer<u32>> = (0..10).map(secret).collect();
        let share = mine.share().unwrap();
        assert!(share.description().allocation_bytes.is_multiple_of(share.description().granule_bytes));
        let mut export = share.to_export().unwrap();
        export.size_bytes = export.allocation_bytes;
        let len = export.allocation_bytes as usize / 4;
        // SAFETY: nobody else uses it now.
        match unsafe { there.import_buffer::<u32>(export, len) } {
            Ok(all) => assert!(all.read().unwrap().iter().all(|&word| word == 0)),
            // A driver may need more for a buffer than the size that it is asked for; then it is refused.
            Err(Error::InvalidArgument(_)) => {}
            Err(other) => panic!("{other}"),
        }
        drop((before, after));
    });
}

#[test]
fn a_policy_rules_ways_out_and_the_reasons_are_told() {
    lab::on_real_devices(|subject| {
        let builder = || subject.device.buffer::<u32>(10).share(Share::Process);
        match builder().ways([]).build() {
            Err(Error::NoPlacement { rejected, .. }) => {
                assert!(rejected.iter().any(|out| out.reason.contains("no way is allowed")), "{rejected:?}");
            }
            other => panic!("{other:?}"),
        }
        // The driver's own way is taken first, and the memfd route where it is forbidden.
        let Ok(free) = builder().build() else { return subject.skip("it shares no memory") };
        let native = free.placement().way.unwrap();
        assert_ne!(native, HandleKind::CudaIpc, "it is taken by request alone");
        match builder().ways([HandleKind::Memfd]).build() {
            Ok(other) => {
                assert_eq!(other.placement().way, Some(HandleKind::Memfd));
                let why = format!("exported as {}", native.name());
                let lost = &other.placement().lost;
                assert!(lost.iter().any(|lost| lost.reason.contains(&why)), "{lost:?}");
            }
            Err(Error::NoPlacement { .. }) => {
                assert_eq!(subject.device.info().limits.host_import_alignment_bytes, 0)
            }
            Err(other) => panic!("{other}"),
        }
    });
}

#[test]
fn what_cannot_be_shared_says_how_to_build_it() {
    lab::on_real_devices(|subject| {
        let mut others = vec![subject.zeros::<u32>(10)];
        others.extend(subject.device.buffer(10).require(Semantic::Unified).build().ok());
        others.extend(subject.device.adopt(subject.device.page_vec(1024).unwrap()).ok());
        for buffer in others {
            match buffer.share() {
                Err(Error::Unsupported { reason, .. }) => {
                    assert!(reason.contains("Share::Process"), "{reason}")
                }
                other => panic!("{}: {other:?}", buffer.placement()),
            }
        }
        for way in WAYS {
            let Ok(shared) = build(subject, way, 10) else { continue };
            let other = WAYS.into_iter().find(|other| *other != way).unwrap();
            assert!(matches!(shared.export(other), Err(Error::Unsupported { .. })), "{}", way.name());
        }
    });
}

#[test]
fn a_share_that_lies_is_refused_and_costs_nothing() {
    each_way(|subject, way, there| {
        let mine = build(subject, way, 1000).unwrap();
        let share = mine.share().unwrap();
        let before = (resources::descriptors(), there.memory().buffers);
        let retold = |lie: &dyn Fn(&mut onebuf::ipc::Description)| {
            let mut description = share.description().clone();
            lie(&mut description);
            let fds: Vec<_> = share.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            SharedBuffer::new(description, fds).and_then(|share| open(there, &share))
        };
        let small =
            &|d: &mut onebuf::ipc::Description| (d.size_bytes, d.buffer_bytes, d.view_bytes) = (4, 4, 4);
        let large = &|d: &mut onebuf::ipc::Description| d.allocation_bytes = 1 << 40;
        let pipe =
            |_: &()| SharedBuffer::new(share.description().clone(), [std::io::pipe().unwrap().0.into()]);
        assert!(pipe(&()).is_err());
        // A software driver's object is a file with a size; of a GPU's the driver alone knows it.
        assert!(retold(large).is_err());
        if way != HandleKind::Memfd {
            let lies: [&dyn Fn(&mut onebuf::ipc::Description); 3] =
                [&|d| d.driver = [0x5a; 16], &|d| d.device = Some(onebuf::DeviceUuid([3; 16])), &|d| {
                    d.kind = 1000
                }];
            for lie in lies {
                assert!(matches!(retold(lie), Err(Error::InvalidArgument(_))));
            }
        }
        drop(retold(small)); // either is right: the part is there
        assert_eq!((resources::descriptors(), there.memory().buffers), before);
        // An object that is open is described in one way only.
        let opened = open(there, &share).unwrap();
        assert!(matches!(retold(small), Err(Error::InvalidArgument(_))));
        drop(opened);
    });
}

#[test]
fn a_thousand_cycles_leave_nothing() {
    each_way(|subject, way, there| {
        let kernel = there.kernel(kernels::INCREMENT).unwrap().build().unwrap();
        let stream = there.stream().unwrap();
        let cycle = |round: u32| {
            let mine = build(subject, way, 2000).unwrap();
            mine.write().unwrap()[1999] = round;
            mine.settle(std::time::Duration::from_secs(10)).unwrap();
            let theirs = open(there, &mine.share().unwrap()).unwrap();
            if round.is_multiple_of(50) {
                stream.launch(&kernel, kernel.groups_for([2000, 1, 1]), args![theirs]).unwrap();
                stream.wait().unwrap();
                assert_eq!(mine.read().unwrap()[1999], round + 1);
            } else {
                assert_eq!(theirs.read().unwrap()[1999], round);
            }
        };
        cycle(0);
        let held = || {
            subject.device.trim();
            there.trim();
            (
                resources::descriptors(),
                resources::mappings(),
                subject.device.memory().live_bytes + there.memory().live_bytes,
                there.shared_objects() + subject.device.shared_objects(),
            )
        };
        there.wait_idle().unwrap();
        let before = held();
        (1..=1000).for_each(cycle);
        there.wait_idle().unwrap();
        let after = held();
        assert_eq!((after.0, after.2, after.3), (before.0, before.2, before.3), "{}", way.name());
        // Threads and allocators may map a little; a thousand objects would show.
        assert!(after.1 < before.1 + 100, "{} mappings became {}", before.1, after.1);
    });
}
