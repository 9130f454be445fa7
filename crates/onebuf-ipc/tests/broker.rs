//! The broker under clients that are killed, stall, lie, and come by the thousand.

mod support;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onebuf_core::Error;
use onebuf_ipc::broker::{Broker, Client, Limits, Quota, Request};
use onebuf_ipc::wire::Message;
use onebuf_ipc::{Channel, Listener, Peers, SharedBuffer};
use support::{descriptors, hello, packet, send_raw, share};

/// The tests run one by one, since some count descriptors.
static SERIAL: Mutex<()> = Mutex::new(());

const ROLE: &str = "ONEBUF_TEST_ROLE";
const PATH: &str = "ONEBUF_TEST_PATH";
const LIMIT: Duration = Duration::from_secs(2);

/// A broker in a thread, until it is dropped.
struct Here {
    path: PathBuf,
    stop: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<onebuf_core::Result<()>>>,
    _folder: tempfile::TempDir,
}

impl Here {
    fn new(limits: Limits) -> Here {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker");
        let broker = Broker::bind(&path, Peers::SameUser, limits).unwrap();
        let (stopped, stop) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || broker.run(stopped.as_fd()));
        Here { path, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    fn client(&self) -> Client {
        Client::connect(&self.path, &Peers::SameUser).unwrap()
    }

    /// A connection with no rules, greeted or not.
    fn stranger(&self, greets: bool) -> OwnedFd {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path).unwrap()).unwrap();
        if greets {
            // It may be turned away already.
            let _ = send_raw(&socket, &hello(), &[]);
        }
        socket
    }

    /// Whether it still does what it is for.
    fn check(&self) {
        let (mut one, mut two) = (self.client(), self.client());
        let share = share(4096);
        one.publish("check", &share).unwrap();
        assert_eq!(two.open("check").unwrap().key(), share.key());
        one.release("check").unwrap();
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.stop.take();
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert!(!self.path.exists(), "the socket is left behind");
    }
}

/// What the other end of a socket sent, until it closed or for `limit`.
fn told(socket: &OwnedFd, limit: Duration) -> (String, bool) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (start, mut text, mut bytes) = (Instant::now(), String::new(), vec![0; 40_000]);
    while start.elapsed() < limit {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
        match rustix::net::recv(socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT) {
            Ok((0, _)) => return (text, true),
            Ok((got, _)) => text += &String::from_utf8_lossy(&bytes[..got]),
            Err(_) => {}
        }
    }
    (text, false)
}

fn eventually(mut so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !so() {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

#[test]
fn names_leases_and_their_ends() {
    let _serial = SERIAL.lock();
    let before = descriptors();
    let here = Here::new(Limits::default());
    let (mut maker, mut user) = (here.client(), here.client());
    let share = share(10_000).view(16, 64).unwrap();
    maker.publish("frame", &share).unwrap();
    assert!(matches!(user.publish("frame", &share), Err(Error::Refused(_))));
    let opened = user.open("frame").unwrap();
    assert_eq!((opened.key(), opened.view_bytes()), (share.key(), 64));
    assert!(matches!(user.open("picture"), Err(Error::Refused(_))));

    let entry = user.inspect("frame").unwrap();
    let me = std::process::id() as i32;
    assert_eq!((entry.alive, entry.held, entry.view_bytes, entry.allocation_bytes), (true, 1, 64, 12_288));
    assert_eq!((entry.producer.pid, entry.holders[0].pid), (me, me));
    assert_eq!(user.list().unwrap().len(), 1);

    // The producer goes; the holder is told, and holds.
    assert_eq!(user.gone().unwrap(), None);
    drop(maker);
    assert!(eventually(|| user.gone().unwrap().as_deref() == Some("frame")));
    assert!(!user.inspect("frame").unwrap().alive);
    let mut third = here.client();
    third.open("frame").unwrap();
    user.close("frame").unwrap();
    assert!(matches!(user.close("frame"), Err(Error::Refused(_))));
    drop(third);
    assert!(eventually(|| user.list().unwrap().is_empty()), "a name without producer and holders");

    user.publish("mine", &share).unwrap();
    let mut other = here.client();
    other.open("mine").unwrap();
    user.release("mine").unwrap();
    assert!(eventually(|| other.gone().unwrap().as_deref() == Some("mine")));
    // A clean stop tells who is there.
    drop(here);
    assert!(matches!(user.list(), Err(Error::Refused(why)) if why.contains("stops")));
    assert!(matches!(user.list(), Err(Error::PeerGone(_))));
    drop((user, other, share, opened));
    assert_eq!(descriptors(), before, "descriptors leaked");
}

#[test]
fn holders_are_told_though_who_asked_is_gone() {
    let _serial = SERIAL.lock();
    let here = Here::new(Limits::default());
    let (mut maker, mut holder) = (here.client(), here.client());
    let share = share(4096);
    let name = || "frame".to_owned();
    for request in [Request::Release { name: name() }, Request::Close { name: name() }] {
        let asks = serde_json::to_vec(&Message::Request(request.clone())).unwrap();
        let socket = here.stranger(true);
        if let Request::Close { .. } = request {
            let publish = Request::Publish { name: name(), description: share.description().clone() };
            let body = serde_json::to_vec(&Message::Request(publish)).unwrap();
            send_raw(&socket, &packet(1, 1, &body), &[share.as_fd()]).unwrap();
            assert!(eventually(|| holder.open("frame").is_ok()));
        } else {
            maker.publish("frame", &share).unwrap();
            holder.open("frame").unwrap();
        }
        // It reads nothing, so its end is there before the answer can be.
        send_raw(&socket, &packet(1, 0, &asks), &[]).unwrap();
        drop(socket);
        assert!(eventually(|| holder.gone().unwrap().as_deref() == Some("frame")), "{request:?}");
        let _ = holder.close("frame");
        assert!(eventually(|| holder.list().unwrap().is_empty()), "{request:?}");
    }
}

/// Asks for a name that is not there, and does not read the answer.
fn ask_in_vain(socket: &OwnedFd) -> bool {
    let body = serde_json::to_vec(&Message::Request(Request::Inspect { name: "-".into() })).unwrap();
    loop {
        match send_raw(socket, &packet(1, 0, &body), &[]) {
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            other => return other.is_ok(),
        }
    }
}

#[test]
fn a_chain_of_clients_ends_on_a_small_stack() {
    const LONG: usize = 300;
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let broker = Broker::bind(&path, Peers::SameUser, Limits::default()).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let builder = std::thread::Builder::new().stack_size(256 << 10);
    let thread = builder.spawn(move || broker.run(stopped.as_fd())).unwrap();
    let here = Here { path, stop: Some(stop), thread: Some(thread), _folder: folder };

    // So many answers may lie unread, and the next one ends the connection.
    let deaf = here.stranger(true);
    let mut served = here.client();
    let mut room = 0;
    while ask_in_vain(&deaf) {
        served.list().unwrap();
        room += 1;
    }
    let text = told(&deaf, Duration::from_millis(200)).0;
    let answers = text.matches("refused").count();
    assert!((10..=room).contains(&answers), "{answers} answers to {room} questions");

    // Each holds what the one before published, and has no room for another word.
    let share = share(4096);
    let ask = |socket: &OwnedFd, request: Request, fds: &[_]| {
        let body = serde_json::to_vec(&Message::Request(request)).unwrap();
        send_raw(socket, &packet(1, fds.len() as u16, &body), fds).unwrap();
    };
    let chain: Vec<OwnedFd> = (0..LONG).map(|_| here.stranger(true)).collect();
    for (i, socket) in chain.iter().enumerate() {
        let description = share.description().clone();
        ask(socket, Request::Publish { name: format!("{i}"), description }, &[share.as_fd()]);
        assert!(eventually(|| served.inspect(&i.to_string()).is_ok()));
        if i > 0 {
            ask(socket, Request::Open { name: format!("{}", i - 1) }, &[]);
            assert!(eventually(|| served.inspect(&(i - 1).to_string()).unwrap().held == 1));
        }
        let (text, closed) = told(socket, Duration::from_millis(5));
        assert!(!closed && text.contains("done"), "{i}: {text}");
    }
    for _ in 0..answers {
        for socket in &chain[1..] {
            assert!(ask_in_vain(socket), "it ended too early");
        }
    }
    served.list().unwrap();
    assert_eq!(served.list().unwrap().len(), LONG);
    drop(chain.into_iter().next());
    assert!(eventually(|| served.list().unwrap().is_empty()), "{} are left", served.list().unwrap().len());
}

#[test]
fn quotas_and_long_lists() {
    let _serial = SERIAL.lock();
    let quota = Quota { names: 100, bytes: 100 * 4096 };
    let here = Here::new(Limits { quota, ..Limits::default() });
    let mut client = here.client();
    let share = share(4096);
    for i in 0..100 {
        client.publish(&format!("{i:03}{}", "n".repeat(120)), &share).unwrap();
    }
    assert!(
        matches!(client.publish("more", &share), Err(Error::Refused(why)) if why.contains("may have 100"))
    );
    let names = client.list().unwrap();
    assert!(names.len() == 100 && names.is_sorted_by(|a, b| a.name < b.name));
    let bad = client.publish(&"n".repeat(129), &share);
    assert!(matches!(bad, Err(Error::Refused(_))), "{bad:?}");

    // What counts is the file, and not what is said of it.
    client.release(&names[0].name).unwrap();
    let memfd = onebuf_ipc::Memfd::create(1 << 20, 4096).unwrap();
    let mut small = memfd.export(4096).unwrap();
    small.allocation_bytes = 4096;
    let small = SharedBuffer::from_export(small, 4096).unwrap();
    let large = client.publish("large", &small);
    assert!(matches!(&large, Err(Error::Refused(why)) if why.contains("400 KiB")), "{large:?}");
}

#[test]
fn connections_by_the_thousand_are_turned_away() {
    let _serial = SERIAL.lock();
    let limits = Limits { clients: 40, hello: Duration::from_millis(300), ..Limits::default() };
    let here = Here::new(limits);
    let mut served = here.client();
    served.publish("still here", &share(4096)).unwrap();
    let before = descriptors();
    let mut open: Vec<OwnedFd> = Vec::new();
    let mut random = fastrand::Rng::new();
    for i in 0..10_000 {
        open.push(here.stranger(random.bool()));
        if open.len() == 120 {
            // The first of these hold their places, and the others must be told.
            let (text, closed) = told(&open[119], LIMIT);
            assert!(closed && text.contains("no more"), "connection {i}: {text}");
            open.clear();
            assert_eq!(served.list().unwrap().len(), 1);
        }
    }
    drop(open);
    assert!(eventually(|| descriptors() <= before), "{} descriptors became {}", before, descriptors());
    here.check();
}

#[test]
fn clients_that_stall_are_let_go() {
    let _serial = SERIAL.lock();
    let here = Here::new(Limits { hello: Duration::from_millis(100), ..Limits::default() });
    // One that never says hello.
    let (text, closed) = told(&here.stranger(false), LIMIT);
    assert!(closed && text.contains("no hello"), "{text}");
    // One that asks and never reads.
    let deaf = here.stranger(true);
    let ask = serde_json::to_vec(&Message::Request(Request::List { after: String::new() })).unwrap();
    let gone = eventually(|| match send_raw(&deaf, &packet(1, 0, &ask), &[]) {
        Err(error) => error != rustix::io::Errno::AGAIN,
        Ok(_) => false,
    });
    assert!(gone, "it is still served");
    here.check();
}

#[test]
fn another_user_is_not_served() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let others = Peers::Users(vec![rustix::process::geteuid().as_raw() + 1]);
    let broker = Broker::bind(&path, others, Limits::default()).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || broker.run(stopped.as_fd()));
    match Client::connect(&path, &Peers::SameUser) {
        Err(Error::Refused(why)) => assert!(why.contains("not allowed"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(stop);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_list_of_a_broker_that_lies_has_an_end() {
    let _serial = SERIAL.lock();
    use onebuf_ipc::broker::{Answer, Entry, Holder};
    let entry = |name: &str| Entry {
        name: name.into(),
        producer: Holder { pid: 1, uid: 0 },
        alive: true,
        way: onebuf_core::HandleKind::Memfd,
        view_bytes: 1,
        allocation_bytes: 1,
        held: 0,
        holders: Vec::new(),
    };
    let long = "n".repeat(1025);
    for names in [vec!["a"], vec!["b", "a"], vec!["a", "a"], vec![long.as_str()], vec!["a"; 33]] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker");
        let listener = Listener::bind(&path, Peers::SameUser).unwrap();
        let entries = names.iter().map(|name| entry(name)).collect();
        let body = serde_json::to_vec(&Message::Answer(Answer::Names { entries, more: true })).unwrap();
        // The same page, for as long as somebody asks.
        let server = std::thread::spawn(move || {
            let channel = listener.accept(LIMIT).unwrap();
            while send_raw(&channel, &packet(channel.version(), 0, &body), &[])
                != Err(rustix::io::Errno::PIPE)
            {
                std::thread::yield_now();
            }
        });
        let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
        let listed = client.list();
        let lies = matches!(&listed, Err(Error::Protocol(why)) if !why.contains("version"));
        assert!(lies, "{names:?}: {listed:?}");
        drop(client);
        server.join().unwrap();
    }
}

/// A connection whose closing takes as long as its maker says, since nobody reads what it sent; with its other end.
fn lingering(seconds: u64) -> (OwnedFd, (std::net::TcpListener, std::net::TcpStream)) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut full = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    full.set_nonblocking(true).unwrap();
    while full.write(&[0; 1 << 16]).is_ok() {}
    let linger = Some(Duration::from_secs(seconds));
    rustix::net::sockopt::set_socket_linger(&full, linger).unwrap();
    (full.into(), (listener, other))
}

#[test]
fn descriptors_that_take_long_to_close_stall_nobody() {
    let _serial = SERIAL.lock();
    let here = Here::new(Limits { clients: 3, ..Limits::default() });
    let mut served = here.client();
    let honest = Message::Request(Request::Open { name: "x".into() });
    let body = serde_json::to_vec(&honest).unwrap();
    // Not asked for; more than a message has; left unread when the connection ends; come before it is let in.
    let cases: [(&str, &[usize], bool); 4] = [
        ("one", &[1], false),
        ("many", &[40], false),
        ("unread", &[0, 1, 0, 0, 40], false),
        ("turned away", &[1, 1], true),
    ];
    for (what, packets, is_full) in cases {
        let taken = is_full.then(|| (here.client(), here.client()));
        let socket = here.stranger(true);
        let mut others = Vec::new();
        for (i, &count) in packets.iter().enumerate() {
            let made: Vec<_> = (0..count).map(|_| lingering(20)).collect();
            let fds: Vec<_> = made.iter().map(|(fd, _)| fd.as_fd()).collect();
            // What is no packet ends the connection; what is empty looks like its end.
            let bytes = match (i, count) {
                (0, 0) => b"nonsense".to_vec(),
                (_, 0) => Vec::new(),
                _ => packet(1, count as u16, &body),
            };
            if send_raw(&socket, &bytes, &fds).is_err() {
                fds.iter().for_each(|fd| rustix::net::sockopt::set_socket_linger(fd, None).unwrap());
            }
            others.extend(made.into_iter().map(|(_, other)| other));
        }
        let start = Instant::now();
        assert!(served.list().unwrap().is_empty());
        let (text, _) = told(&socket, Duration::from_millis(100));
        assert!(text.contains("refuse"), "{what}: {text}");
        assert!(served.list().unwrap().is_empty());
        assert!(start.elapsed() < LIMIT, "{what}: the broker was held for {:?}", start.elapsed());
        drop((taken, others));
        assert!(eventually(|| Client::connect(&here.path, &Peers::SameUser).is_ok()));
    }
}

/// This test program again, in a role.
fn spawn(role: &str, test: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(PATH, path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Holds `name`, publishes one of its own, and goes on until it is killed.
fn victim(path: &Path) {
    let mut client = Client::connect(path, &Peers::SameUser).unwrap();
    let held = client.open("survivor's").unwrap();
    let mine = share(4096);
    for i in 0u64.. {
        client.publish("victim's", &mine).unwrap();
        rustix::io::pwrite(&held, &i.to_le_bytes(), 8).unwrap();
        let again = client.open("survivor's").unwrap();
        assert_eq!(again.key(), held.key());
        client.close("survivor's").unwrap();
        client.close("victim's").unwrap();
    }
}

#[test]
fn clients_are_killed_and_their_leases_end() {
    const TEST: &str = "clients_are_killed_and_their_leases_end";
    if std::env::var(ROLE).is_ok() {
        return victim(Path::new(&std::env::var(PATH).unwrap()));
    }
    let _serial = SERIAL.lock();
    let here = Here::new(Limits::default());
    let mut survivor = here.client();
    let share = share(4096);
    survivor.publish("survivor's", &share).unwrap();
    rustix::io::pwrite(&share, &[7; 8], 0).unwrap();
    let mut random = fastrand::Rng::new();
    let before = descriptors();
    for _ in 0..60 {
        let mut child = spawn("victim", TEST, &here.path);
        assert!(eventually(|| survivor.inspect("survivor's").unwrap().held == 1));
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(eventually(|| {
            let names = survivor.list().unwrap();
            names.len() == 1 && names[0].held == 0
        }));
        let mut bytes = [0; 8];
        rustix::io::pread(&share, &mut bytes[..], 0).unwrap();
        assert_eq!(bytes, [7; 8]);
    }
    assert!(eventually(|| descriptors() == before), "{before} descriptors became {}", descriptors());
}

#[test]
fn the_broker_is_killed_and_comes_back() {
    const TEST: &str = "the_broker_is_killed_and_comes_back";
    if std::env::var(ROLE).is_ok() {
        let path = std::env::var(PATH).unwrap();
        let broker = Broker::bind(Path::new(&path), Peers::SameUser, Limits::default()).unwrap();
        let (never, _kept) = std::io::pipe().unwrap();
        broker.run(never.as_fd()).unwrap();
        return;
    }
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let share = share(4096);
    rustix::io::pwrite(&share, &[7; 8], 0).unwrap();
    let mut random = fastrand::Rng::new();
    let before = descriptors();
    for round in 0..40 {
        let mut broker = spawn("broker", TEST, &path);
        let mut connected = None;
        assert!(eventually(|| {
            connected = Client::connect(&path, &Peers::SameUser).ok();
            connected.is_some()
        }));
        let mut maker = connected.unwrap();
        let mut user = Client::connect(&path, &Peers::SameUser).unwrap();
        maker.publish("x", &share).unwrap();
        let held: SharedBuffer = user.open("x").unwrap();
        let delay = Duration::from_micros(random.u64(0..3000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            broker.kill().unwrap();
            let killed = Instant::now();
            broker.wait().unwrap();
            killed
        });
        // In the middle of what it does.
        let end = loop {
            match user.open("x").and_then(|_| user.close("x")) {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        let after = Instant::now().saturating_duration_since(killer.join().unwrap());
        assert!(matches!(end, Error::PeerGone(_)), "round {round}: {end}");
        assert!(after < LIMIT, "told {after:?} after the death");
        assert!(matches!(maker.gone(), Err(Error::PeerGone(_))));
        // What was held is held.
        let mut bytes = [0; 8];
        rustix::io::pread(&held, &mut bytes[..], 0).unwrap();
        assert_eq!(bytes, [7; 8]);
    }
    assert_eq!(descriptors(), before, "descriptors leaked");
}

#[test]
fn a_broker_is_no_chat_room() {
    let _serial = SERIAL.lock();
    let here = Here::new(Limits::default());
    let channel = Channel::connect(&here.path, &Peers::SameUser).unwrap();
    channel.send_note("hello?").unwrap();
    assert!(matches!(channel.receive_note(), Err(Error::Refused(_))));
    here.check();
}

#[test]
fn a_broker_that_never_ends_holds_no_client() {
    let _serial = SERIAL.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker");
    let listener = Listener::bind(&path, Peers::SameUser).unwrap();
    let server = std::thread::spawn(move || {
        let channel = listener.accept(LIMIT).unwrap();
        for i in 0u64.. {
            let body = format!(r#"{{"answer":{{"gone":{{"name":"{i}"}}}}}}"#);
            while let Err(error) = send_raw(&channel, &packet(channel.version(), 0, body.as_bytes()), &[]) {
                if error == rustix::io::Errno::PIPE {
                    return;
                }
                std::thread::yield_now();
            }
        }
    });
    let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
    client.set_patience(Duration::from_millis(300));
    let start = Instant::now();
    let listed = client.list();
    assert!(matches!(listed, Err(Error::Timeout { .. })), "{listed:?}");
    // It looks, finds nothing that it holds, and comes back.
    assert_eq!(client.gone().unwrap(), None);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    drop(client);
    server.join().unwrap();
}
