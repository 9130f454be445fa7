//! Channels between two ends of which one may be anybody.

mod support;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onebuf_core::backend::Export;
use onebuf_core::{Error, HandleKind, Token};
use onebuf_ipc::wire::{MAX_PACKET_BYTES, MAX_TEXT_BYTES, Message};
use onebuf_ipc::{Channel, Listener, Peers, SharedBuffer};
use support::{descriptors, hello, packet, pair, send_raw, share};

/// The tests run one by one, since some count descriptors.
static SERIAL: Mutex<()> = Mutex::new(());

#[test]
fn a_share_and_a_note_pass() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let (one, two) = pair();
    let sent = share(10_000);
    one.send_share("frame", &sent.view(8, 100).unwrap()).unwrap();
    one.send_note("and this is it").unwrap();
    let (name, came) = two.receive_share().unwrap();
    assert_eq!((name.as_str(), came.key(), came.view_bytes()), ("frame", sent.key(), 100));
    assert_eq!(two.receive_note().unwrap(), "and this is it");
    assert_eq!(two.peer().pid, std::process::id() as i32);
    let flags = rustix::io::fcntl_getfd(&came).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "it would leak into every child");
    // What is too long is refused here, not there.
    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    assert!(matches!(one.send_note(&long), Err(Error::LimitExceeded { .. })));
    one.send_note(&long[1..]).unwrap();
    assert_eq!(two.receive_note().unwrap().len(), MAX_TEXT_BYTES);
    drop((one, two, sent, came));
    assert_eq!(descriptors(), before);
}

#[test]
fn a_listener_lets_its_user_alone_in() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path, Peers::SameUser).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::bind(&path, Peers::SameUser), Err(Error::Busy(_))), "it is in use");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Channel::connect(&path, &Peers::SameUser).unwrap());
        let server = listener.accept(Duration::from_secs(5)).unwrap();
        client.join().unwrap().send_note("hello").unwrap();
        assert_eq!(server.receive_note().unwrap(), "hello");
        // Nobody came in time.
        assert!(matches!(listener.accept(Duration::from_millis(20)), Err(Error::Timeout { .. })));
    });
    drop(listener);
    assert!(!path.exists());
    assert!(matches!(Channel::connect(&path, &Peers::SameUser), Err(Error::PeerGone(_))));

    // What a killed process leaves is replaced; what is no socket is not.
    let left = Listener::bind(&path, Peers::SameUser).unwrap();
    let socket: OwnedFd = left.as_fd().try_clone_to_owned().unwrap();
    std::mem::forget(left);
    assert!(matches!(Listener::bind(&path, Peers::SameUser), Err(Error::Busy(_))));
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
    drop(Listener::bind(&path, Peers::SameUser).unwrap());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Listener::bind(&path, Peers::SameUser), Err(Error::Os { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

#[test]
fn another_user_is_told_why_it_may_not() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let others = Peers::Users(vec![rustix::process::geteuid().as_raw() + 1]);
    let listener = Listener::bind(&path, others).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Channel::connect(&path, &Peers::SameUser));
        assert!(matches!(listener.accept(Duration::from_secs(5)), Err(Error::Refused(_))));
        match client.join().unwrap() {
            Err(Error::Refused(why)) => assert!(why.contains("not allowed"), "{why}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn releases_without_a_common_version_refuse_each_other() {
    let _serial = SERIAL.lock();
    for version in [0u16, 3, 9] {
        let (one, two) = Channel::socket_pair().unwrap();
        // Another release may say things in its hello that this one does not know.
        let body = br#"{"hello":{"release":"onebuf 9","colour":"green"}}"#;
        send_raw(&two, &packet(version, 0, body), &[]).unwrap();
        match Channel::from_socket(one, &Peers::SameUser) {
            Err(Error::Refused(why)) => assert!(why.contains("update"), "{why}"),
            other => panic!("version {version}: {other:?}"),
        }
        // It was told so, with our range.
        let told = read_all(&two);
        assert!(told.contains("hello") && told.contains("refuse") && told.contains("1 to 2"), "{told}");
    }
}

fn read_all(socket: &OwnedFd) -> String {
    let mut text = String::new();
    let mut bytes = [0; MAX_PACKET_BYTES];
    while let Ok((got, _)) = rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
        if got == 0 {
            break;
        }
        text += &String::from_utf8_lossy(&bytes[..got]);
    }
    text
}

#[test]
fn a_peer_that_stalls_costs_bounded_time() {
    let _serial = SERIAL.lock();
    let (mut one, two) = pair();
    one.set_patience(Duration::from_millis(100));
    let start = Instant::now();
    assert!(matches!(one.receive_note(), Err(Error::Timeout { .. })));
    // A peer that does not read fills the socket, and then costs the same.
    let stalled = (0..100_000).find_map(|_| one.send_note(&"x".repeat(1000)).err());
    assert!(matches!(stalled, Some(Error::Timeout { .. })), "{stalled:?}");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    // It may come back.
    assert_eq!(two.receive_note().unwrap().len(), 1000);
    drop(two);
}

#[test]
fn a_peer_that_is_gone_is_known_at_once() {
    let _serial = SERIAL.lock();
    let (one, two) = pair();
    one.check_alive().unwrap();
    two.send_note("last words").unwrap();
    drop(two);
    assert!(matches!(one.check_alive(), Err(Error::PeerGone(_))));
    assert_eq!(one.receive_note().unwrap(), "last words");
    assert!(matches!(one.receive_note(), Err(Error::PeerGone(_))));
    assert!(matches!(one.send_note("anybody?"), Err(Error::PeerGone(_))));

    // Also by who waits for it.
    let (one, two) = pair();
    let waits = std::thread::spawn(move || {
        let got = one.receive_note();
        (got, Instant::now())
    });
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(two);
    let (got, told) = waits.join().unwrap();
    assert!(matches!(got, Err(Error::PeerGone(_))), "{got:?}");
    assert!(told.duration_since(start) < Duration::from_secs(1));
}

/// An end that has greeted a stranger, and the stranger's socket.
fn stranger() -> (Channel, OwnedFd) {
    let (one, two) = Channel::socket_pair().unwrap();
    send_raw(&two, &hello(), &[]).unwrap();
    let mut channel = Channel::from_socket(one, &Peers::SameUser).unwrap();
    channel.set_patience(Duration::from_millis(200));
    (channel, two)
}

/// A share of memory that a token names, with its lease: what its maker watches.
fn by_token(way: HandleKind) -> (SharedBuffer, std::io::PipeReader) {
    let (watch, lease) = std::io::pipe().unwrap();
    let export = Export {
        fd: lease.into(),
        token: Some(Token([7; 64])),
        pool: (way == HandleKind::CudaPool).then(|| std::fs::File::open("/dev/null").unwrap().into()),
        handle: way,
        allocation_bytes: 2 << 20,
        size_bytes: 4096,
        kind: 3,
        granule_bytes: 2 << 20,
        dedicated: true,
        device_local: true,
        device: None,
        driver: [9; 16],
    };
    (SharedBuffer::from_export(export, 4000).unwrap(), watch)
}

#[test]
fn a_lease_lasts_as_long_as_somebody_holds_the_share() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    for way in [HandleKind::CudaIpc, HandleKind::CudaPool] {
        let (share, watch) = by_token(way);
        let is_over = || {
            let mut fds = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::empty())];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
        };
        let (one, two) = pair();
        one.send_share("token", &share).unwrap();
        let key = share.key();
        assert_eq!(one.version(), 2);
        drop(share);
        // It is under way.
        assert!(!is_over());
        let (_, got) = two.receive_share().unwrap();
        assert_eq!((got.key(), got.description().token), (key, Some(Token([7; 64]))));
        assert_eq!(got.to_export().unwrap().pool.is_some(), way == HandleKind::CudaPool);
        let part = got.view(100, 10).unwrap();
        drop(got);
        assert!(!is_over());
        drop(part);
        assert!(is_over());
    }
    assert_eq!(descriptors(), before, "descriptors leaked");
}

#[test]
fn an_older_release_is_sent_no_tokens() {
    let _serial = SERIAL.lock();
    let (share, _watch) = by_token(HandleKind::CudaPool);
    let (channel, _socket) = stranger();
    assert_eq!(channel.version(), 1);
    match channel.send_share("token", &share) {
        Err(Error::Refused(why)) => assert!(why.contains("cuda-pool") && why.contains("version 2"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lies_about_tokens_are_refused_and_closed() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let (share, watch) = by_token(HandleKind::CudaPool);
    let (legacy, _legacy_watch) = by_token(HandleKind::CudaIpc);
    let body = |share: &SharedBuffer, from: &str, to: &str| {
        let message = Message::Share { name: "x".into(), description: share.description().clone() };
        let text = serde_json::to_string(&message).unwrap();
        assert!(text.contains(from), "{text}");
        text.replacen(from, to, 1).into_bytes()
    };
    let (fds, file) = (share.descriptors(), support::wrong_descriptors(8192));
    let token = "07".repeat(64);
    let packets: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
        ("no pool", body(&share, "x", "x"), vec![fds[0]]),
        ("a pool of no pool's", body(&legacy, "x", "x"), fds.clone()),
        ("no lease", body(&share, "x", "x"), vec![]),
        ("the other way round", body(&share, "x", "x"), vec![fds[1], fds[0]]),
        ("a pipe for a pool", body(&share, "x", "x"), vec![fds[0], fds[0]]),
        ("an end that reads", body(&legacy, "x", "x"), vec![watch.as_fd()]),
        ("a file for a lease", body(&legacy, "x", "x"), vec![file[0].1.as_fd()]),
        ("half a token", body(&legacy, &token, &token[64..]), vec![fds[0]]),
        ("a long token", body(&legacy, &token, &(token.clone() + "07")), vec![fds[0]]),
        ("a token that is none", body(&legacy, &token, &"zz".repeat(64)), vec![fds[0]]),
        ("no token", body(&legacy, &format!(",\"token\":\"{token}\""), ""), vec![fds[0]]),
        ("another way", body(&legacy, "cuda-ipc", "opaque-fd"), vec![fds[0]]),
    ];
    for (what, body, fds) in packets {
        let (one, two) = Channel::socket_pair().unwrap();
        send_raw(&two, &packet(2, 0, br#"{"hello":{"release":"onebuf 2"}}"#), &[]).unwrap();
        let mut channel = Channel::from_socket(one, &Peers::SameUser).unwrap();
        channel.set_patience(Duration::from_millis(200));
        send_raw(&two, &packet(2, fds.len() as u16, &body), &fds).unwrap();
        let got = channel.receive_share();
        assert!(matches!(got, Err(Error::InvalidArgument(_) | Error::Protocol(_))), "{what}: {got:?}");
    }
    drop((share, watch, legacy, _legacy_watch, file));
    assert_eq!(descriptors(), before, "descriptors leaked");
}

#[test]
fn wrong_descriptors_and_lies_are_refused_and_closed() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let share = share(8192);
    let body = |lie: &dyn Fn(&mut onebuf_ipc::Description)| {
        let mut description = share.description().clone();
        lie(&mut description);
        serde_json::to_vec(&Message::Share { name: "x".into(), description }).unwrap()
    };
    let honest = body(&|_| {});
    for (what, fd) in support::wrong_descriptors(8192) {
        let (channel, socket) = stranger();
        send_raw(&socket, &packet(1, 1, &honest), &[fd.as_fd()]).unwrap();
        assert!(matches!(channel.receive_share(), Err(Error::InvalidArgument(_))), "{what}");
    }
    let fd = share.as_fd();
    let lie = |lie: &dyn Fn(&mut onebuf_ipc::Description)| packet(1, 1, &body(lie));
    let packets: Vec<(&str, Vec<u8>, Vec<BorrowedFd<'_>>)> = vec![
        ("an allocation past the object", lie(&|d| d.allocation_bytes = 1 << 40), vec![fd]),
        ("a buffer past the allocation", lie(&|d| d.size_bytes = 1 << 40), vec![fd]),
        ("a view past the buffer", lie(&|d| d.view_offset_bytes = u64::MAX), vec![fd]),
        ("no descriptor", packet(1, 0, &honest), vec![]),
        ("none, but one is said to come", packet(1, 1, &honest), vec![]),
        ("one that is not spoken of", packet(1, 0, &honest), vec![fd]),
        ("two descriptors", packet(1, 2, &honest), vec![fd, fd]),
        ("many descriptors", packet(1, 60, &honest), vec![fd; 60]),
        ("another version", packet(2, 1, &honest), vec![fd]),
        ("a note with a descriptor", packet(1, 1, br#"{"note":{"text":"x"}}"#), vec![fd]),
        ("too long", vec![7; MAX_PACKET_BYTES + 1], vec![fd]),
        ("a bare header", packet(1, 0, b""), vec![]),
    ];
    for (what, packet, fds) in packets {
        let (channel, socket) = stranger();
        send_raw(&socket, &packet, &fds).unwrap();
        let got = channel.receive_share();
        assert!(matches!(got, Err(Error::InvalidArgument(_) | Error::Protocol(_))), "{what}: {got:?}");
    }
    // The same, told truly, is taken.
    let (channel, socket) = stranger();
    send_raw(&socket, &packet(1, 1, &honest), &[fd]).unwrap();
    assert_eq!(channel.receive_share().unwrap().1.key(), share.key());
    drop((channel, socket, share));
    assert_eq!(descriptors(), before, "descriptors leaked");
}

/// Leaves a socket at a path, as a killed process does.
fn abandon(path: &Path) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let _ = std::fs::remove_file(path);
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
}

#[test]
fn one_of_many_takes_an_abandoned_socket() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for round in 0..50 {
        abandon(&path);
        let start = std::sync::Barrier::new(8);
        let bind = || {
            start.wait();
            Listener::bind(&path, Peers::SameUser)
        };
        let bound: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (listening, refused): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
        assert_eq!(listening.len(), 1, "round {round}");
        assert!(refused.iter().all(|other| matches!(other, Err(Error::Busy(_)))), "{refused:?}");
        let listener = listening.into_iter().next().unwrap().unwrap();
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| Channel::connect(&path, &Peers::SameUser));
            listener.accept(Duration::from_secs(5)).unwrap();
            other.join().unwrap()
        });
        other.unwrap();
    }
}

#[test]
fn a_listener_leaves_the_socket_of_another() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let first = Listener::bind(&path, Peers::SameUser).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Listener::bind(&path, Peers::SameUser).unwrap();
    drop(first);
    assert!(path.exists(), "the second one's socket is gone");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn limits_that_the_clock_cannot_count_are_long() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path, Peers::SameUser).unwrap();
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| Channel::connect(&path, &Peers::SameUser).unwrap());
        let mut channel = listener.accept(Duration::MAX).unwrap();
        channel.set_patience(Duration::MAX);
        channel.send_note("in time").unwrap();
        other.join().unwrap()
    });
    assert_eq!(other.receive_note().unwrap(), "in time");
    let (counters, _memfd) = onebuf_ipc::Counters::create().unwrap();
    let (one, _two) = pair();
    assert_eq!(counters.wait(0, &one, Duration::MAX, |value| value == 0).unwrap(), 0);
}
