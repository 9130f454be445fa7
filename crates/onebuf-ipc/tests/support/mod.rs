//! What the tests of this crate have in common.
#![allow(dead_code)] // Each test program takes what it needs.

pub(crate) mod fuzzing;
pub(crate) mod mutate;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use onebuf_ipc::{Channel, Memfd, Peers, SharedBuffer};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A share of fresh memory.
pub(crate) fn share(bytes: u64) -> SharedBuffer {
    let memfd = Memfd::create(bytes, 4096).unwrap();
    SharedBuffer::from_export(memfd.export(bytes).unwrap(), bytes).unwrap()
}

/// Two ends that have greeted each other.
pub(crate) fn pair() -> (Channel, Channel) {
    let (one, two) = Channel::socket_pair().unwrap();
    let other = std::thread::spawn(|| Channel::from_socket(two, &Peers::SameUser).unwrap());
    (Channel::from_socket(one, &Peers::SameUser).unwrap(), other.join().unwrap())
}

/// A packet as the protocol has it, of any bytes.
pub(crate) fn packet(version: u16, fds: u16, body: &[u8]) -> Vec<u8> {
    let mut packet = b"1buf".to_vec();
    packet.extend(version.to_le_bytes());
    packet.extend(version.to_le_bytes());
    packet.extend(fds.to_le_bytes());
    packet.extend([0; 2]);
    packet.extend((body.len() as u32).to_le_bytes());
    packet.extend(body);
    packet
}

/// A hello of version 1.
pub(crate) fn hello() -> Vec<u8> {
    hello_of(1)
}

/// A hello of a version.
pub(crate) fn hello_of(version: u16) -> Vec<u8> {
    packet(version, 0, br#"{"hello":{"release":"a stranger"}}"#)
}

/// Sends bytes and descriptors with no rules.
pub(crate) fn send_raw(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Descriptors that are no memory, or not the memory they should be, each with its name.
pub(crate) fn wrong_descriptors(bytes: u64) -> Vec<(&'static str, OwnedFd)> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let memfd = |bytes, seals| {
        let fd = memfd_create("wrong", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let sealed = memfd(bytes, SealFlags::SHRINK);
    let number = std::os::fd::AsRawFd::as_raw_fd(&sealed);
    let read_only = std::fs::File::open(format!("/proc/self/fd/{number}")).unwrap();
    vec![
        ("a pipe", std::io::pipe().unwrap().0.into()),
        ("a socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        ("a directory", std::fs::File::open("/proc").unwrap().into()),
        ("a device", std::fs::File::open("/dev/zero").unwrap().into()),
        ("a file", tempfile::tempfile().unwrap().into()),
        ("a file that is read only", read_only.into()),
        ("a file that is too short", memfd(bytes / 2, SealFlags::SHRINK)),
        ("a file that may shrink", memfd(bytes, SealFlags::empty())),
    ]
}

/// Open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How long a generated test goes on: `ONEBUF_FUZZ_SECONDS`, or a few.
pub(crate) fn fuzz_time() -> Duration {
    let asked = std::env::var("ONEBUF_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(5))
}
