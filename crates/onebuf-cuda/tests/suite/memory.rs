//! Each of CUDA's kinds of memory, its export and import, and the program's own pages.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::support::{
    SAXPY, Sound, kernel, kind, mapped, of_kind, on_every_device, read, slice, wait, whole,
};
use onebuf_core::backend::{Allocation, Device, Launch, Memory, PageAccess, Part, Work};
use onebuf_core::{Error, HandleKind, HostPath, UnifiedLevel};

fn exportable(device: &dyn Device, size_bytes: u64) -> Option<std::sync::Arc<dyn Memory>> {
    let kind = kind(device, "device-vmm")?;
    match device.allocate(&Allocation { kind, size_bytes, exportable: true, mapped: false }) {
        Err(Error::Unsupported { reason, .. }) => {
            eprintln!("no export on {}: {reason}", device.info().id);
            None
        }
        other => Some(other.unwrap()),
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn every_kind_is_filled_copied_and_computed_on() {
    on_every_device(|device| {
        let saxpy = kernel(device, SAXPY, &[]);
        let profile = device.profile();
        for (kind, described) in profile.memory.iter().enumerate() {
            let (x, y) = (of_kind(device, kind, 40_000), of_kind(device, kind, 40_000));
            assert_eq!(x.host_pointer().is_some(), described.host_visible, "{}", described.name);
            let stream = device.create_stream().unwrap();
            let one = stream.run(Work::Fill { to: whole(&x), word: 1f32.to_bits() }, &[]).unwrap();
            let two = stream.run(Work::Fill { to: whole(&y), word: 2f32.to_bits() }, &[]).unwrap();
            let (bindings, immediates) = ([whole(&x), whole(&y)], 3f32.to_ne_bytes());
            let launch =
                Launch { kernel: &saxpy, bindings: &bindings, immediates: &immediates, groups: [157, 1, 1] };
            wait(device, stream.run(Work::Launch(launch), &[one, two]).unwrap());
            assert!(read::<f32>(device, &y).iter().all(|&y| y == 5.0), "{}", described.name);
            let odd = Part { memory: &y, offset_bytes: 16, size_bytes: 1000 };
            wait(device, stream.run(Work::Fill { to: odd, word: 9f32.to_bits() }, &[]).unwrap());
            let all = read::<f32>(device, &y);
            assert_eq!((all[3], all[4], all[253], all[254]), (5.0, 9.0, 9.0, 5.0), "{}", described.name);
        }
    });
}

#[test]
fn unified_memory_goes_back_and_forth() {
    on_every_device(|device| {
        let profile = device.profile();
        let Some(kind) = kind(device, "managed") else { return };
        assert_eq!(profile.host_path(kind), HostPath::Unified);
        let bytes = 8 << 20;
        let (x, y) = (of_kind(device, kind, bytes), of_kind(device, kind, bytes));
        let saxpy = kernel(device, SAXPY, &[]);
        let stream = device.create_stream().unwrap();
        slice::<f32>(&x).fill(1.0);
        slice::<f32>(&y).fill(0.0);
        for round in 1..=5u32 {
            // The guards of the crate above make these calls around the CPU's turn.
            for memory in [&x, &y] {
                memory.invalidate(0, bytes).unwrap();
                memory.flush(0, bytes).unwrap();
            }
            let (bindings, immediates) = ([whole(&x), whole(&y)], 1f32.to_ne_bytes());
            let groups = [(bytes / 4 / 64) as u32, 1, 1];
            let launch = Launch { kernel: &saxpy, bindings: &bindings, immediates: &immediates, groups };
            wait(device, stream.run(Work::Launch(launch), &[stream.last()]).unwrap());
            y.invalidate(0, bytes).unwrap();
            assert!(slice::<f32>(&y).iter().all(|&y| y == round as f32), "round {round}");
        }
        let too_much = device.info().memory_bytes + 1;
        let refused =
            device.allocate(&Allocation { kind, size_bytes: too_much, exportable: false, mapped: true });
        let capped = matches!(refused, Err(Error::OutOfMemory { never_fits: true, .. }));
        assert!(capped, "more than the device has");
        assert_ne!(profile.unified, UnifiedLevel::None);
    });
}

#[test]
fn exported_memory_starts_as_zeros_and_is_the_same_memory() {
    on_every_device(|device| {
        let Some(memory) = exportable(device, 10_000) else { return };
        assert!(read::<u8>(device, &memory).iter().all(|&byte| byte == 0));
        let export = memory.export(HandleKind::OpaqueFd).unwrap();
        assert_eq!((export.size_bytes, export.device), (10_000, device.info().uuid));
        assert!(export.allocation_bytes >= 10_000);
        let other = device.import(export).unwrap();
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&other), word: 0x5a5a_5a5a }, &[]).unwrap());
        assert!(read::<u8>(device, &memory).iter().all(|&byte| byte == 0x5a));
        // The importer outlives the exporter.
        drop(memory);
        assert!(read::<u8>(device, &other).iter().all(|&byte| byte == 0x5a));
        assert!(matches!(other.export(HandleKind::OpaqueFd), Err(Error::Unsupported { .. })));
        for (index, described) in device.profile().memory.iter().enumerate() {
            let private = of_kind(device, index, 64);
            let exported = private.export(HandleKind::OpaqueFd);
            if described.export.is_empty() {
                assert!(matches!(exported, Err(Error::Unsupported { .. })), "{}", described.name);
            }
            let asked = Allocation { kind: index, size_bytes: 64, exportable: true, mapped: false };
            assert_eq!(device.allocate(&asked).is_ok(), !described.export.is_empty(), "{}", described.name);
        }
    });
}

#[test]
fn a_dma_buf_leaves_too_where_the_profile_says_so() {
    on_every_device(|device| {
        let Some(memory) = exportable(device, 4096) else { return };
        let kind = kind(device, "device-vmm").unwrap();
        let advertised = device.profile().memory[kind].export.contains(&HandleKind::DmaBuf);
        match memory.export(HandleKind::DmaBuf) {
            Ok(export) => assert!(advertised && export.fd.as_raw_fd() >= 0),
            Err(error) => assert!(!advertised, "{error}"),
        }
    });
}

#[test]
fn descriptors_that_are_no_memory_are_refused() {
    on_every_device(|device| {
        let Some(memory) = exportable(device, 4096) else { return };
        let before = open_descriptors();
        for wrong in (0..8).cycle().take(80) {
            let mut export = memory.export(HandleKind::OpaqueFd).unwrap();
            match wrong {
                0 => export.fd = std::io::pipe().unwrap().0.into(),
                1 => export.fd = std::fs::File::open("/proc/self/exe").unwrap().into(),
                2 => export.fd = std::fs::File::open("/dev/null").unwrap().into(),
                3 => export.allocation_bytes = 1 << 40,
                4 => export.allocation_bytes *= 2,
                5 => export.size_bytes = export.allocation_bytes + 1,
                6 => export.device = Some(onebuf_core::DeviceUuid([9; 16])),
                _ => export.driver = [7; 16],
            }
            let result = device.import(export);
            assert!(matches!(result, Err(Error::InvalidArgument(_))), "case {wrong}: {:?}", result.err());
        }
        // Other tests of this program open and close their own beside this.
        assert!(open_descriptors() <= before + 4, "descriptors leaked");
    });
}

#[test]
fn a_thousand_exports_leave_nothing_behind() {
    on_every_device(|device| {
        let Some(first) = exportable(device, 4096) else { return };
        drop(first);
        let (descriptors, before) = (open_descriptors(), device.memory_stats());
        for _ in 0..1000 {
            let memory = exportable(device, 4096).unwrap();
            let import = device.import(memory.export(HandleKind::OpaqueFd).unwrap()).unwrap();
            drop((memory, import));
        }
        let after = device.memory_stats();
        assert_eq!(open_descriptors(), descriptors);
        assert_eq!((after.blocks, after.block_bytes), (before.blocks, before.block_bytes));
        let lost = before.budget_bytes.unwrap().saturating_sub(after.budget_bytes.unwrap());
        // Others use the device as well; a leak would be 2 GiB.
        assert!(lost < 1 << 30, "{lost} bytes are gone");
    });
}

#[test]
fn pages_of_the_program_are_used_in_place() {
    on_every_device(|device| {
        let alignment = device.info().limits.host_import_alignment_bytes as usize;
        if alignment == 0 {
            return eprintln!("no import of host memory on {}", device.info().id);
        }
        let stream = device.create_stream().unwrap();
        let mut words = vec![0u32; 100_003];
        let pointer = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
        for _ in 0..20 {
            // SAFETY: the words are valid until the memory is dropped, and touched only while no work runs.
            let memory = unsafe { device.import_host(pointer, 4 * 100_003, PageAccess::ReadWrite) }.unwrap();
            assert_eq!(memory.host_pointer(), Some(pointer));
            wait(device, stream.run(Work::Fill { to: whole(&memory), word: 0x0102_0304 }, &[]).unwrap());
            assert!(slice::<u32>(&memory).iter().all(|&word| word == 0x0102_0304));
            // SAFETY: as above.
            let overlap = unsafe { device.import_host(pointer, 4096, PageAccess::ReadWrite) };
            let Err(Error::Unsupported { reason, .. }) = overlap else { panic!("an overlap was taken") };
            assert!(reason.contains("another import"), "{reason}");
        }
    });
}

#[test]
fn a_device_opens_twice_on_one_context() {
    on_every_device(|device| {
        let cuda = onebuf_cuda::Cuda::new(onebuf_cuda::CudaOptions::default()).unwrap();
        let again = onebuf_core::backend::Backend::open(&cuda, device.info().id.ordinal).unwrap();
        let memory = mapped(&*again, 4096);
        let stream = again.create_stream().unwrap();
        wait(&*again, stream.run(Work::Fill { to: whole(&memory), word: 5 }, &[]).unwrap());
        drop((stream, again));
        assert!(slice::<u32>(&memory).iter().all(|&word| word == 5));
        drop(memory);
        let here = mapped(device, 4096);
        let stream = device.create_stream().unwrap();
        wait(device, stream.run(Work::Fill { to: whole(&here), word: 6 }, &[]).unwrap());
        assert!(slice::<u32>(&here).iter().all(|&word| word == 6));
    });
}
