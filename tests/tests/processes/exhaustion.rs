//! Processes that run out: of descriptors, of address space, of threads. An error each, and what was there still works.

use std::time::{Duration, Instant};

use onebuf::{Buffer, Device, Error, HandleKind, HostAccess, Share, Stream, args};
use onebuf_tests::{kernels, lab, process, resources};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: Duration = Duration::from_secs(120);

/// How long openings may go on.
const PATIENCE: Duration = Duration::from_secs(15);

fn still_works(device: &Device, kernel: &onebuf::Kernel, stream: &Stream, data: &Buffer<u32>) {
    let before = data.read().unwrap()[0];
    stream.launch(kernel, [1, 1, 1], args![data]).unwrap();
    assert_eq!(*data.read().unwrap(), [before + 1; 64]);
    assert!(device.wait_idle().is_ok());
}

/// A device with something on it that is made before anything runs out.
fn world(device: &Device) -> (onebuf::Kernel, Stream, Buffer<u32>) {
    let kernel = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
    let data = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
    let stream = device.stream().unwrap();
    still_works(device, &kernel, &stream, &data);
    (kernel, stream, data)
}

#[test]
fn without_descriptors_sharing_fails_and_the_rest_goes_on() {
    if process::role().is_none() {
        return lab::alone(|| process::run(&mut process::command("child"), LIMIT).expect_success());
    }
    lab::on_real_devices(|subject| {
        let device = &subject.device;
        let (kernel, stream, data) = world(device);
        let shared = || device.buffer::<u32>(1000).host(HostAccess::ReadWrite).share(Share::Process).build();
        let Ok(first) = shared() else { return subject.skip("it exports no memory") };
        let open = resources::descriptors() as u64;
        let old = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + 24), maximum: old.maximum }).unwrap();
        let mut kept = Vec::new();
        let error = loop {
            match shared().and_then(|buffer| {
                let export = buffer.export(HandleKind::OpaqueFd)?;
                Ok((buffer, export))
            }) {
                Ok(both) => kept.push(both),
                Err(error) => break error,
            }
            assert!(kept.len() < 100, "descriptors do not run out");
        };
        let told = error.to_string();
        assert!(matches!(error, Error::Os { .. } | Error::OutOfMemory { .. }), "{told}");
        // Whatever else needs one fails or works, and what was there goes on.
        still_works(device, &kernel, &stream, &data);
        let more = device.buffer::<u32>(100).host(HostAccess::ReadWrite).zeroed().build();
        // A GPU's driver may want a descriptor for a mapping.
        let gpu = device.info().kind != onebuf::DeviceKind::Software;
        let told = matches!(more, Err(Error::Os { .. } | Error::OutOfMemory { .. }));
        assert!(more.is_ok() || gpu && told, "{more:?}");
        drop(more);
        let _ = first.export(HandleKind::OpaqueFd);
        let _ = lab::registry().open(&device.info().id.to_string());
        drop(kept);
        setrlimit(Resource::Nofile, old).unwrap();
        let again = shared().unwrap();
        again.export(HandleKind::OpaqueFd).unwrap();
        drop((first, again));
        still_works(device, &kernel, &stream, &data);
    });
}

#[test]
fn without_address_space_allocation_fails_and_memory_comes_back() {
    if process::role().is_none() {
        return lab::alone(|| process::run(&mut process::command("child"), LIMIT).expect_success());
    }
    lab::on_real_devices(|subject| {
        let device = &subject.device;
        if device.info().kind != onebuf::DeviceKind::Software {
            return subject.skip("its memory is not the process's");
        }
        let (kernel, stream, data) = world(device);
        let before = device.memory();
        let old = getrlimit(Resource::As);
        let used = address_space_bytes();
        setrlimit(Resource::As, Rlimit { current: Some(used + (512 << 20)), maximum: old.maximum }).unwrap();
        for size in [64usize << 20, 8 << 20] {
            let mut kept: Vec<Buffer<u8>> = Vec::new();
            let error = loop {
                match device.buffer::<u8>(size).build() {
                    Ok(buffer) => kept.push(buffer),
                    Err(error) => break error,
                }
                assert!(kept.len() < 200, "memory does not run out");
            };
            match error {
                Error::OutOfMemory { asked_bytes, never_fits, .. } => {
                    assert!(
                        asked_bytes >= size as u64 && asked_bytes <= size as u64 * 9 / 8,
                        "{asked_bytes}"
                    );
                    assert!(!never_fits);
                }
                other => panic!("{other}"),
            }
            still_works(device, &kernel, &stream, &data);
            drop(kept);
            device.trim();
            let after = device.memory();
            assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers));
        }
        setrlimit(Resource::As, old).unwrap();
        drop(device.buffer::<u8>(256 << 20).build().unwrap());
        device.trim();
    });
}

fn address_space_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn without_threads_work_goes_at_the_next_wait() {
    if process::role().is_none() {
        return lab::alone(|| process::run(&mut process::command("child"), LIMIT).expect_success());
    }
    lab::on_real_devices(|subject| {
        let device = &subject.device;
        let (kernel, _stream, data) = world(device);
        let old = getrlimit(Resource::Nproc);
        // The superuser may always make threads, so there nothing is refused, and the rest still holds.
        setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: old.maximum }).unwrap();
        let start = data.read().unwrap()[0];
        let stream = device.stream().unwrap();
        for _ in 0..50 {
            stream.launch(&kernel, [1, 1, 1], args![data]).unwrap();
        }
        drop(stream);
        assert_eq!(*data.read().unwrap(), [start + 50; 64]);
        setrlimit(Resource::Nproc, old).unwrap();
    });
}

#[test]
fn a_thousand_openings_leave_nothing() {
    if process::role().is_none() {
        return lab::alone(|| process::run(&mut process::command("child"), LIMIT).expect_success());
    }
    lab::on_real_devices(|subject| {
        let id = subject.device.info().id.to_string();
        // A GPU's driver may take a tenth of a second to open.
        let (start, mut opened) = (Instant::now(), 0);
        let in_time = |opened: u32| opened < 1000 && (opened < 60 || start.elapsed() < PATIENCE);
        resources::settles(4, 48 << 20, || {
            let first = opened;
            while opened < first + 500 && (opened < first + 20 || in_time(opened)) {
                let (i, device) = (opened, lab::registry().open(&id).unwrap());
                let data = device.buffer::<u32>(64).host(HostAccess::ReadWrite).zeroed().build().unwrap();
                let stream = device.stream().unwrap();
                stream.fill(&data, i).unwrap();
                if i % 3 == 0 {
                    assert_eq!(data.read().unwrap()[0], i);
                }
                if i % 10 == 0 {
                    let shared = device.buffer::<u32>(64).share(Share::Process).build();
                    let _ = shared.and_then(|shared| shared.export(HandleKind::OpaqueFd));
                }
                opened += 1;
            }
            assert!(lab::eventually(|| resources::threads_named("onebuf-stream") == 0));
        });
        lab::say(&format!("{opened} openings of {id}"));
    });
}
