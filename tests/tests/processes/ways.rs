//! What tests of shared buffers have in common: each way that a device has, and a child that has it too.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use onebuf::ipc::{Channel, Listener, Peers};
use onebuf::{Buffer, Device, Error, HandleKind, HostAccess, Share};
use onebuf_tests::{Subject, lab, process};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const DEVICE: &str = "ONEBUF_TEST_PEER_DEVICE";
const PATH: &str = "ONEBUF_TEST_PEER_PATH";
const WAY: &str = "ONEBUF_TEST_PEER_WAY";
const WAYS: [HandleKind; 4] =
    [HandleKind::OpaqueFd, HandleKind::Memfd, HandleKind::CudaPool, HandleKind::CudaIpc];

/// A buffer of `len` words that leaves the process by `way`; `None` where the device has no such memory.
pub(crate) fn shared(device: &Device, way: HandleKind, len: usize) -> Option<Buffer<u32>> {
    let builder = device.buffer::<u32>(len).host(HostAccess::ReadWrite).share(Share::Process);
    match builder.ways([way]).build() {
        Ok(buffer) => Some(buffer),
        Err(Error::NoPlacement { .. }) => None,
        Err(other) => panic!("{}: {other}", way.name()),
    }
}

/// Runs a case for each way that a device has, with a socket for its children.
pub(crate) fn each_way(case: impl Fn(&Subject, HandleKind, &Listener)) {
    lab::on_real_devices(|subject| {
        let ways: Vec<HandleKind> =
            WAYS.into_iter().filter(|way| shared(&subject.device, *way, 1).is_some()).collect();
        if ways.is_empty() {
            return subject.skip("it shares no memory");
        }
        for way in ways {
            lab::say(&format!("{} by {}", subject.device.info().id, way.name()));
            let folder = tempfile::tempdir().unwrap();
            let listener = Listener::bind(&folder.path().join("socket"), Peers::SameUser).unwrap();
            case(subject, way, &listener);
        }
    });
}

/// A child in a role of the calling test.
pub(crate) fn child(role: &str, subject: &Subject, way: HandleKind, listener: &Listener) -> Child {
    let mut command = process::command(role);
    command.env(DEVICE, subject.device.info().id.to_string()).env(PATH, listener.path());
    command.env(WAY, way.name()).spawn().unwrap()
}

/// What a child has: the device, the way, and the connection to its parent.
pub(crate) fn at_home() -> (Device, HandleKind, Channel) {
    let device = lab::registry().open(&std::env::var(DEVICE).unwrap()).unwrap();
    let name = std::env::var(WAY).unwrap();
    let way = WAYS.into_iter().find(|way| way.name() == name).unwrap();
    let path = std::env::var(PATH).unwrap();
    let mut channel = Channel::connect(Path::new(&path), &Peers::SameUser).unwrap();
    channel.set_patience(PATIENCE);
    (device, way, channel)
}
