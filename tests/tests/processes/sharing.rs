//! Memory of this process in another one.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use onebuf::core::backend::Export;
use onebuf::{Buffer, Device, Error, HandleKind, HostAccess, Share, args};
use onebuf_tests::{Subject, kernels, lab, process};

const LEN: usize = 50_000;
const LIMIT: Duration = Duration::from_secs(60);
const DEVICE: &str = "ONEBUF_TEST_PEER_DEVICE";
const EXPORT: &str = "ONEBUF_TEST_PEER_EXPORT";

fn shared(subject: &Subject) -> Option<Buffer<u32>> {
    let builder = subject.device.buffer::<u32>(LEN).host(HostAccess::ReadWrite).share(Share::Process);
    match builder.build() {
        Ok(buffer) => Some(buffer),
        Err(Error::NoPlacement { .. } | Error::Unsupported { .. }) => {
            subject.skip("it exports no memory");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Everything but the descriptor, as text.
fn describe(export: &Export) -> String {
    let driver: String = export.driver.iter().map(|byte| format!("{byte:02x}")).collect();
    let device = export.device.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string());
    let fd = export.fd.as_raw_fd();
    format!("{fd} {} {} {} {driver} {device}", export.allocation_bytes, export.size_bytes, export.kind)
}

fn parse(text: &str) -> Export {
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap();
    // SAFETY: the parent let this process inherit the descriptor, and nobody here owns it yet.
    let fd = unsafe { OwnedFd::from_raw_fd(next().parse().unwrap()) };
    let (allocation_bytes, size_bytes, kind) =
        (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap());
    let (driver, device) = (next(), next());
    let driver = std::array::from_fn(|i| u8::from_str_radix(&driver[2 * i..2 * i + 2], 16).unwrap());
    let device = (device != "-").then(|| device.parse().unwrap());
    let handle = HandleKind::OpaqueFd;
    let (granule_bytes, dedicated) = (1, true);
    let (token, pool) = (None, None);
    Export {
        fd,
        token,
        pool,
        handle,
        allocation_bytes,
        size_bytes,
        kind,
        granule_bytes,
        dedicated,
        device_local: true,
        device,
        driver,
    }
}

/// What the other process does: opens the memory, adds 1 to every word, and looks at what it got.
fn peer(role: &str) {
    let export = parse(&std::env::var(EXPORT).unwrap());
    let device: Device = lab::registry().open(&std::env::var(DEVICE).unwrap()).unwrap();
    // SAFETY: the parent waits for this process to end before it touches the memory again.
    let buffer: Buffer<u32> = unsafe { device.import_buffer(export, LEN) }.unwrap();
    assert!(buffer.read().unwrap().iter().enumerate().all(|(i, &word)| word == i as u32 * 3));
    let kernel = device.kernel(kernels::INCREMENT).unwrap().build().unwrap();
    let stream = device.stream().unwrap();
    stream.launch(&kernel, kernel.groups_for([LEN as u32, 1, 1]), args![buffer]).unwrap();
    stream.wait().unwrap();
    if role == "killed" {
        // Dies with everything open.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    drop((buffer, kernel, stream, device));
    assert!(lab::complaints().is_empty());
}

#[test]
fn another_process_works_on_the_same_memory() {
    if let Some(role) = process::role() {
        return peer(&role);
    }
    lab::on_real_devices(|subject| {
        let Some(mine) = shared(subject) else { return };
        for role in ["peer", "killed", "peer"] {
            mine.write().unwrap().iter_mut().enumerate().for_each(|(i, word)| *word = i as u32 * 3);
            subject.device.wait_idle().unwrap();
            let export = mine.export(HandleKind::OpaqueFd).unwrap();
            let flags = rustix::io::fcntl_getfd(&export.fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "it would leak into every child");
            rustix::io::fcntl_setfd(&export.fd, flags - rustix::io::FdFlags::CLOEXEC).unwrap();
            let mut command = process::command(role);
            command.env(DEVICE, subject.device.info().id.to_string()).env(EXPORT, describe(&export));
            let finished = process::run(&mut command, LIMIT);
            if role == "peer" {
                finished.expect_success();
            } else {
                assert!(finished.status.is_some_and(|status| !status.success()), "{finished:?}");
            }
            let seen = mine.read().unwrap();
            assert!(seen.iter().enumerate().all(|(i, &word)| word == i as u32 * 3 + 1), "{role}");
        }
    });
}

/// Makes memory, writes to it, and hands it to nobody: its parent opens the descriptor of the living process.
#[test]
fn memory_outlives_the_process_that_made_it() {
    if process::role().is_some() {
        let device = lab::registry().open(&std::env::var(DEVICE).unwrap()).unwrap();
        let socket_fd: i32 = std::env::var(EXPORT).unwrap().parse().unwrap();
        // SAFETY: the parent let this process inherit the socket, and nobody here owns it yet.
        let socket = unsafe { OwnedFd::from_raw_fd(socket_fd) };
        let buffer = device.buffer::<u32>(LEN).host(HostAccess::ReadWrite).share(Share::Process);
        let buffer = buffer.init_with(|i| i as u32 ^ 77).unwrap();
        device.wait_idle().unwrap();
        let export = buffer.export(HandleKind::OpaqueFd).unwrap();
        return send(&socket, &export);
    }
    lab::on_real_devices(|subject| {
        if shared(subject).is_none() {
            return;
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let theirs: OwnedFd = theirs.into();
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        let mut command = process::command("maker");
        command.env(DEVICE, subject.device.info().id.to_string()).env(EXPORT, theirs.as_raw_fd().to_string());
        let child = command.spawn().unwrap();
        drop(theirs);
        let export = receive(&ours.into());
        process::finish(child, LIMIT).expect_success();
        // The maker is gone.
        // SAFETY: nobody else has the memory.
        let buffer: Buffer<u32> = unsafe { subject.device.import_buffer(export, LEN) }.unwrap();
        assert!(buffer.read().unwrap().iter().enumerate().all(|(i, &word)| word == i as u32 ^ 77));
    });
}

fn send(socket: &OwnedFd, export: &Export) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    let text = describe(export);
    let fds = [export.fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[std::io::IoSlice::new(text.as_bytes())], &mut control, SendFlags::empty()).unwrap();
}

fn receive(socket: &OwnedFd) -> Export {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0u8; 512];
    let got =
        recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .unwrap();
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd = fds.next().expect("no descriptor came: the maker failed");
    let text = std::str::from_utf8(&text[..got.bytes]).unwrap();
    let (_, rest) = text.split_once(' ').unwrap();
    // The number is this process's own.
    parse(&format!("{} {rest}", std::os::fd::IntoRawFd::into_raw_fd(fd)))
}
