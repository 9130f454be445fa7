//! Processes of two users: who may connect, what is counted for whom, and what a stranger's memory must be.
//!
//! The second process is this program again, as the user `nobody`. To start it takes root; elsewhere these tests are not run.

mod support;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onebuf_core::{Error, HandleKind};
use onebuf_ipc::broker::{Broker, Client, Limits, Quota};
use onebuf_ipc::{Channel, Listener, Memfd, Peers, SharedBuffer};
use support::{descriptors, share};

static SERIAL: Mutex<()> = Mutex::new(());

const ROLE: &str = "ONEBUF_TEST_ROLE";
const PATH: &str = "ONEBUF_TEST_PATH";
const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(2);

/// What the second process is to do, if this is it.
fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(PATH).ok()?.into()))
}

/// Whether this process may become another user; if not, that is said.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "not run: it takes root to start a process of another user");
    }
    root
}

/// This program again, as nobody, in a role of `test`. It must end well.
fn as_nobody(test: &str, role: &str, path: &Path) {
    // The running file itself: the way to it may be closed to others.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(PATH, path).stdin(Stdio::null());
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{role}: {told}");
}

/// A folder that others may pass through, and a path in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let path = folder.path().join("socket");
    (folder, path)
}

fn open_to_others(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
}

/// A broker in a thread, until the returned function is called.
fn serve(path: &Path, peers: Peers, limits: Limits) -> impl FnOnce() {
    let broker = Broker::bind(path, peers, limits).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || broker.run(stopped.as_fd()));
    move || {
        drop(stop);
        thread.join().unwrap().unwrap();
    }
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Refused(why) | Error::InvalidArgument(why)) => why,
        other => panic!("{other:?} in place of a refusal"),
    }
}

/// A file of a driver's sort that can still be cut short.
fn unsealed() -> SharedBuffer {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let fd = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let mut export = Memfd::create(4096, 4096).unwrap().export(4096).unwrap();
    (export.fd, export.handle) = (fd, HandleKind::OpaqueFd);
    SharedBuffer::from_export(export, 4096).unwrap()
}

#[test]
fn a_socket_is_its_users_alone() {
    const TEST: &str = "a_socket_is_its_users_alone";
    if let Some((role, path)) = role() {
        let anybody = Peers::Anyone;
        match role.as_str() {
            "shut out" => match (Client::connect(&path, &anybody), Channel::connect(&path, &anybody)) {
                (Err(Error::Os { reason: a, .. }), Err(Error::Os { reason: b, .. })) => {
                    assert!(a.contains("Permission denied") && b.contains("Permission denied"), "{a}; {b}");
                }
                other => panic!("{other:?}"),
            },
            _ => {
                // The other side says why.
                let why = reason(Channel::connect(&path, &anybody));
                assert!(why.contains(&format!("of user {NOBODY}, who is not allowed")), "{why}");
                // This side would not have trusted it either.
                let why = reason(Channel::connect(&path, &Peers::SameUser));
                assert!(why.contains("of user 0, who is not allowed"), "{why}");
            }
        }
        return;
    }
    let _serial = SERIAL.lock();
    if !is_root() {
        return;
    }
    let before = descriptors();
    // A broker.
    let (_folder, path) = place();
    let stop = serve(&path, Peers::SameUser, Limits::default());
    let file = std::fs::symlink_metadata(&path).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid()), (0o600, 0));
    as_nobody(TEST, "shut out", &path);
    open_to_others(&path);
    as_nobody(TEST, "refused", &path);
    let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
    client.publish("still up", &share(64)).unwrap();
    assert_eq!(client.list().unwrap().len(), 1);
    drop(client);
    stop();
    // A listener.
    let listener = Listener::bind(&path, Peers::SameUser).unwrap();
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o600);
    as_nobody(TEST, "shut out", &path);
    open_to_others(&path);
    std::thread::scope(|scope| {
        let child = scope.spawn(|| as_nobody(TEST, "refused", &path));
        let why = reason(listener.accept(Duration::from_secs(20)));
        assert!(why.contains(&format!("of user {NOBODY}")), "{why}");
        // The second one refuses first, and is gone or has said so.
        let second = listener.accept(Duration::from_secs(20));
        assert!(matches!(second, Err(Error::Refused(_) | Error::Timeout { .. })), "{second:?}");
        child.join().unwrap();
        let own = scope.spawn(|| Channel::connect(&path, &Peers::SameUser).unwrap());
        listener.accept(LIMIT).unwrap();
        own.join().unwrap();
    });
    drop(listener);
    assert_eq!(descriptors(), before, "descriptors leaked");
}

/// A container on the host's socket: neither side need know the other's process ids.
#[test]
fn a_peer_of_another_pid_namespace_is_served() {
    const TEST: &str = "a_peer_of_another_pid_namespace_is_served";
    if let Some((_, path)) = role() {
        let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
        let theirs = client.open("outside").unwrap();
        rustix::io::pwrite(&theirs, b"from inside", 0).unwrap();
        client.publish("inside", &share(64)).unwrap();
        assert_eq!(client.inspect("outside").unwrap().held, 1);
        // The process outside is not seen from here.
        let channel = Channel::connect(&path, &Peers::SameUser).unwrap();
        assert_eq!((channel.peer().pid, channel.peer().uid), (0, 0));
        assert_eq!(channel.peer().to_string(), "a process of another PID namespace");
        return;
    }
    let _serial = SERIAL.lock();
    if !is_root() {
        return;
    }
    let (_folder, path) = place();
    let stop = serve(&path, Peers::SameUser, Limits::default());
    let mut client = Client::connect(&path, &Peers::SameUser).unwrap();
    let mine = share(4096);
    client.publish("outside", &mine).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture", "--test-threads=1"]);
    match command.env(ROLE, "inside").env(PATH, &path).stdin(Stdio::null()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            if text.contains("unshare failed") {
                let _ = writeln!(std::io::stderr(), "not run: {text}");
            } else {
                assert!(output.status.success() && text.contains("1 passed"), "{text}");
                let mut bytes = [0; 11];
                rustix::io::pread(&mine, &mut bytes[..], 0).unwrap();
                assert_eq!(&bytes, b"from inside");
            }
        }
        Err(error) => drop(writeln!(std::io::stderr(), "not run: unshare: {error}")),
    }
    drop(client);
    stop();
}

#[test]
fn a_broker_of_two_users_counts_for_each() {
    const TEST: &str = "a_broker_of_two_users_counts_for_each";
    let root = Peers::Users(vec![0]);
    if let Some((_, path)) = role() {
        let mut client = Client::connect(&path, &root).unwrap();
        // Memory of the other user, in both directions.
        let theirs = client.open("roots").unwrap();
        rustix::io::pwrite(&theirs, b"from nobody", 100).unwrap();
        client.publish("ours", &share(4096)).unwrap();
        client.publish("more", &share(4096)).unwrap();
        let why = reason(client.publish("too many", &share(4096)));
        assert!(why.contains(&format!("user {NOBODY} has published 2 name(s)")), "{why}");
        client.close("more").unwrap();
        let why = reason(client.publish("too large", &share(3 * 4096)));
        assert!(why.contains("12 KiB") && why.contains(&format!("user {NOBODY}")), "{why}");
        let why = reason(client.publish("unsealed", &unsealed()));
        assert!(why.contains("comes from another user"), "{why}");
        let why = reason(client.release("roots"));
        assert!(why.contains("user 0's"), "{why}");
        let entry = client.inspect("roots").unwrap();
        assert_eq!((entry.producer.uid, entry.holders[0].uid), (0, NOBODY));
        // Connections are counted by user, too.
        let second = Client::connect(&path, &root).unwrap();
        let why = reason(Client::connect(&path, &root));
        assert!(why.contains(&format!("2 of them user {NOBODY}'s")), "{why}");
        drop(second);
        // Whoever runs the broker may take a name away, which the other user is told of.
        let held = client.open("ours").unwrap();
        client.publish("take mine", &share(4096)).unwrap();
        let start = Instant::now();
        while client.gone().unwrap().as_deref() != Some("ours") {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody took it away");
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(held);
        return;
    }
    let _serial = SERIAL.lock();
    if !is_root() {
        return;
    }
    let (_folder, path) = place();
    let quota = Quota { names: 2, bytes: 3 * 4096 };
    let limits = Limits { quota, clients_of_user: 2, ..Limits::default() };
    let stop = serve(&path, Peers::Users(vec![0, NOBODY]), limits);
    open_to_others(&path);
    let mut client = Client::connect(&path, &root).unwrap();
    let mine = share(4096);
    client.publish("roots", &mine).unwrap();
    std::thread::scope(|scope| {
        let child = scope.spawn(|| as_nobody(TEST, "user", &path));
        let start = Instant::now();
        // The other user's use of its quota is not this one's.
        while client.inspect("take mine").is_err() && !child.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", client.list());
            std::thread::sleep(Duration::from_millis(2));
        }
        if !child.is_finished() {
            client.publish("roots second", &share(4096)).unwrap();
            let entry = client.inspect("ours").unwrap();
            assert_eq!((entry.producer.uid, entry.alive), (NOBODY, true));
            client.release("ours").unwrap();
        }
        child.join().unwrap();
    });
    let mut bytes = [0; 11];
    rustix::io::pread(&mine, &mut bytes[..], 100).unwrap();
    assert_eq!(&bytes, b"from nobody");
    // Its names went with it, and the broker is up.
    let start = Instant::now();
    while client.list().unwrap().len() > 2 {
        assert!(start.elapsed() < LIMIT, "{:?}", client.list());
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(client);
    stop();
}

#[test]
fn a_channel_takes_what_a_stranger_cannot_cut_short() {
    const TEST: &str = "a_channel_takes_what_a_stranger_cannot_cut_short";
    if let Some((_, path)) = role() {
        let channel = Channel::connect(&path, &Peers::Users(vec![0])).unwrap();
        assert_eq!(channel.peer().uid, 0);
        let mine = share(4096);
        channel.send_share("sealed", &mine).unwrap();
        channel.send_share("not sealed", &unsealed()).unwrap();
        assert_eq!(channel.receive_note().unwrap(), "seen");
        let mut bytes = [0; 4];
        rustix::io::pread(&mine, &mut bytes[..], 0).unwrap();
        assert_eq!(&bytes, b"root");
        return;
    }
    let _serial = SERIAL.lock();
    if !is_root() {
        return;
    }
    let (_folder, path) = place();
    let listener = Listener::bind(&path, Peers::Users(vec![NOBODY])).unwrap();
    open_to_others(&path);
    std::thread::scope(|scope| {
        let child = scope.spawn(|| as_nobody(TEST, "sender", &path));
        let channel = listener.accept(Duration::from_secs(20)).unwrap();
        let peer = channel.peer();
        assert_eq!((peer.uid, peer.gid), (NOBODY, NOBODY));
        let (name, theirs) = channel.receive_share().unwrap();
        assert_eq!(name, "sealed");
        rustix::io::pwrite(&theirs, b"root", 0).unwrap();
        let why = reason(channel.receive_share());
        assert!(why.contains("another user"), "{why}");
        channel.send_note("seen").unwrap();
        child.join().unwrap();
    });
    // Of its own user such an object is taken, since that could do worse.
    let (one, two) = support::pair();
    one.send_share("own", &unsealed()).unwrap();
    two.receive_share().unwrap();
}
