//! Memory that leaves through a descriptor and comes back: the same bytes, nothing of a neighbour, nothing believed.

use std::fs::File;
use std::os::fd::OwnedFd;

use onebuf::core::backend::Export;
use onebuf::{Buffer, Error, HandleKind, HostAccess, Share, args};
use onebuf_tests::lab::Variant;
use onebuf_tests::{Subject, kernels, lab, resources};

/// The other simulated devices export nothing.
const EXPORTING: [Variant; 2] = [Variant::Real, Variant::Tight];

fn shared(subject: &Subject, len: usize) -> Option<Buffer<u32>> {
    let builder = subject.device.buffer::<u32>(len).host(HostAccess::ReadWrite).share(Share::Process);
    match builder.build() {
        Ok(buffer) => Some(buffer),
        Err(Error::NoPlacement { .. } | Error::Unsupported { .. }) => {
            subject.skip("it exports no memory");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn import(subject: &Subject, export: Export, len: usize) -> onebuf::Result<Buffer<u32>> {
    // SAFETY: the tests wait for work on one view before they use the other.
    unsafe { subject.device.import_buffer(export, len) }
}

#[test]
fn an_import_is_the_same_memory() {
    lab::on(&EXPORTING, |subject| {
        let kernel = subject.kernel(kernels::INCREMENT);
        for len in [1usize, 3, 1000, 16_000] {
            let Some(mine) = shared(subject, len) else { return };
            assert!(mine.placement().exportable);
            let export = mine.export(HandleKind::OpaqueFd).unwrap();
            assert!(export.size_bytes >= len as u64 * 4 && export.size_bytes <= export.allocation_bytes);
            let theirs = import(subject, export, len).unwrap();
            assert!(theirs.read().unwrap().iter().all(|&word| word == 0));
            mine.write().unwrap().fill(41);
            // Where memory is staged, the guard's copy is work too, and of another view.
            subject.device.wait_idle().unwrap();
            let groups = kernel.groups_for([len as u32, 1, 1]);
            subject.run(&kernel, groups, args![theirs]);
            subject.device.wait_idle().unwrap();
            assert!(mine.read().unwrap().iter().all(|&word| word == 42));
            drop(mine);
            // The exporter is gone, and the memory is not.
            assert!(theirs.read().unwrap().iter().all(|&word| word == 42));
        }
    });
}

#[test]
fn exports_own_whole_granules() {
    lab::on_real_devices(|subject| {
        let Some(first) = shared(subject, 5) else { return };
        let neighbours: Vec<Buffer<u32>> = (0..20).map(|_| subject.buffer(&[0x5ec3_e700; 300])).collect();
        let Some(second) = shared(subject, 5) else { return };
        for buffer in [&first, &second] {
            let mut export = buffer.export(HandleKind::OpaqueFd).unwrap();
            // A peer may look at the whole allocation.
            export.size_bytes = export.allocation_bytes;
            let len = export.allocation_bytes as usize / 4;
            let all = match import(subject, export, len) {
                Ok(all) => all,
                // A driver may need more for a buffer than the size that it is asked for; then it is refused.
                Err(Error::InvalidArgument(_)) => continue,
                Err(other) => panic!("{other}"),
            };
            assert!(all.read().unwrap().iter().all(|&word| word == 0), "something of a neighbour is in it");
        }
        drop(neighbours);
    });
}

#[test]
fn a_buffer_that_was_not_made_to_be_shared_is_not_exported() {
    lab::on(&EXPORTING, |subject| {
        let private = subject.zeros::<u32>(100);
        for handle in HandleKind::ALL {
            match private.export(handle) {
                Err(Error::Unsupported { reason, .. }) => assert!(reason.contains("share"), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
        if let Some(shared) = shared(subject, 100) {
            assert!(matches!(shared.export(HandleKind::CudaIpc), Err(Error::Unsupported { .. })));
        }
    });
}

#[test]
fn what_a_peer_says_is_checked() {
    lab::on(&EXPORTING, |subject| {
        let Some(mine) = shared(subject, 1000) else { return };
        let export = || mine.export(HandleKind::OpaqueFd).unwrap();
        let size = export().size_bytes;
        let fd = |file: std::io::Result<OwnedFd>| file.unwrap();
        // A driver may keep a descriptor that it opened for its first import.
        resources::settles(3, 48 << 20, || {
            let wrong: Vec<(&str, Export, usize)> = vec![
                ("more elements than bytes", export(), size as usize / 4 + 1),
                ("elements past 64 bits", export(), usize::MAX),
                ("size past the allocation", Export { size_bytes: 1 << 50, ..export() }, 1 << 40),
                ("an allocation past the object", Export { allocation_bytes: 1 << 50, ..export() }, 10),
                ("both", Export { allocation_bytes: 1 << 50, size_bytes: 1 << 50, ..export() }, 1 << 40),
                ("no bytes", Export { size_bytes: 0, ..export() }, 0),
                ("an allocation smaller than its buffer", Export { allocation_bytes: 16, ..export() }, 4),
                ("a kind of memory that is not there", Export { kind: 1000, ..export() }, 10),
                ("the largest kind", Export { kind: usize::MAX, ..export() }, 10),
                ("another driver", Export { driver: [0x5a; 16], ..export() }, 10),
                ("another device", Export { device: Some(onebuf::DeviceUuid([3; 16])), ..export() }, 10),
                ("a handle that no device has", Export { handle: HandleKind::CudaIpc, ..export() }, 10),
                ("a pipe", Export { fd: fd(std::io::pipe().map(|(end, _)| end.into())), ..export() }, 10),
                ("a directory", Export { fd: fd(File::open("/proc").map(Into::into)), ..export() }, 10),
                ("an empty file", Export { fd: fd(tempfile::tempfile().map(Into::into)), ..export() }, 10),
                (
                    "this program",
                    Export { fd: fd(File::open("/proc/self/exe").map(Into::into)), ..export() },
                    10,
                ),
                (
                    "a socket",
                    Export {
                        fd: fd(std::os::unix::net::UnixStream::pair().map(|(one, _)| one.into())),
                        ..export()
                    },
                    10,
                ),
            ];
            for (what, told, len) in wrong {
                match import(subject, told, len) {
                    Ok(_) => panic!("{what} was taken"),
                    Err(Error::DeviceLost(why)) => panic!("{what} cost the device: {why}"),
                    Err(_) => {}
                }
                // The truth is still taken.
                match import(subject, export(), 1000) {
                    Ok(theirs) => assert_eq!(theirs.len(), 1000),
                    Err(error) => panic!("after {what}: {error}"),
                }
            }
        });
    });
}

#[test]
fn descriptors_come_back() {
    lab::on(&EXPORTING, |subject| {
        if shared(subject, 1).is_none() {
            return;
        }
        resources::settles(3, 48 << 20, || {
            for round in 0..100usize {
                let Some(mine) = shared(subject, 1 + round * 97) else { return };
                let one = mine.export(HandleKind::OpaqueFd).unwrap();
                let two =
                    import(subject, mine.export(HandleKind::OpaqueFd).unwrap(), 1 + round * 97).unwrap();
                drop((one, two, mine));
            }
            subject.device.wait_idle().unwrap();
        });
    });
}

#[test]
fn a_part_of_an_export_is_the_part_of_the_import() {
    lab::on(&EXPORTING, |subject| {
        let Some(mine) = shared(subject, 4096) else { return };
        let theirs = import(subject, mine.export(HandleKind::OpaqueFd).unwrap(), 4096).unwrap();
        for (start, len) in [(0usize, 1usize), (1, 1), (63, 65), (64, 64), (1000, 3), (4095, 1)] {
            mine.write().unwrap().fill(0xcccc_cccc);
            subject.device.wait_idle().unwrap();
            theirs.slice(start..start + len).unwrap().copy_from_slice(&vec![7; len]).unwrap();
            subject.device.wait_idle().unwrap();
            let seen = mine.read().unwrap();
            for (i, &word) in seen.iter().enumerate() {
                let inside = (start..start + len).contains(&i);
                assert_eq!(word, if inside { 7 } else { 0xcccc_cccc }, "word {i} of {start} + {len}");
            }
        }
    });
}
