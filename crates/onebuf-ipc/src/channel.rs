//! Two processes that talk: descriptors and messages over a Unix socket, with limits on size and time.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use onebuf_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::fd::FileId;
use crate::peer::my_uid;
pub use crate::peer::{Peer, Peers};
use crate::share::{Description, SharedBuffer};
use crate::wire::{self, MAX_FDS, MAX_PACKET_BYTES, Message, VERSIONS};

/// The most descriptors that Linux lets anybody send with one packet (`SCM_MAX_FD`).
const MOST_SENT_FDS: usize = 253;

/// How long a side waits for the other one, unless it is told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to one other process. Each call ends in bounded time: [`Error::Timeout`] for a peer that stalls,
/// [`Error::PeerGone`] for one that is gone.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    peer: Peer,
    version: u16,
    patience: Duration,
}

impl Channel {
    /// Two ends in this process, one to be inherited by a child: see [`Channel::from_socket`].
    ///
    /// # Errors
    /// [`Error::Os`] where no descriptor is left.
    pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| Error::os("socketpair", &error.into()))
    }

    /// Speaks on a connected socket of kind `SOCK_SEQPACKET`. Both sides call it, or [`Channel::connect`] and
    /// [`Listener::accept`]: each says hello first.
    ///
    /// # Errors
    /// [`Error::Refused`] where the peer is not one of `peers`, or speaks other versions of the protocol;
    /// [`Error::Protocol`] where it speaks none; [`Error::Timeout`]; [`Error::PeerGone`].
    pub fn from_socket(socket: OwnedFd, peers: &Peers) -> Result<Channel> {
        Channel::greet(socket, peers, VERSIONS, PATIENCE)
    }

    /// Connects to a [`Listener`].
    ///
    /// # Errors
    /// [`Error::PeerGone`] where nobody listens; those of [`Channel::from_socket`].
    pub fn connect(path: &Path, peers: &Peers) -> Result<Channel> {
        let socket = socket()?;
        let os = |error: Errno| match error {
            Errno::CONNREFUSED | Errno::NOENT => {
                Error::PeerGone(format!("nobody listens at {}", path.display()))
            }
            other => Error::os(format!("connect to {}", path.display()), &other.into()),
        };
        let address = SocketAddrUnix::new(path).map_err(os)?;
        rustix::net::connect(&socket, &address).map_err(os)?;
        Channel::greet(socket, peers, VERSIONS, PATIENCE)
    }

    pub(crate) fn greet(
        socket: OwnedFd,
        peers: &Peers,
        versions: std::ops::RangeInclusive<u16>,
        patience: Duration,
    ) -> Result<Channel> {
        let mut channel = Channel::unheard(socket, patience)?;
        if let Err(error) = peers.check(channel.peer) {
            let _ = channel.refuse(&error);
            return Err(error);
        }
        match channel.send_packet(&hello(versions.clone())?, &[]) {
            // Who refuses this side closes at once, and its reason is still there to be read.
            Ok(()) | Err(Error::PeerGone(_)) => {}
            Err(other) => return Err(other),
        }
        let (packet, fds) = channel.receive_packet(deadline(patience))?;
        match channel.hear_hello(&packet, fds.len(), versions) {
            Ok(()) => Ok(channel),
            Err(error) => {
                let _ = channel.refuse(&error);
                Err(error)
            }
        }
    }

    /// A channel on which nothing was said yet.
    pub(crate) fn unheard(socket: OwnedFd, patience: Duration) -> Result<Channel> {
        let peer = Peer::of(socket.as_fd())?;
        Ok(Channel { socket, peer, version: *VERSIONS.end(), patience })
    }

    /// Takes a packet that must be the peer's hello.
    pub(crate) fn hear_hello(
        &mut self,
        packet: &[u8],
        fds: usize,
        versions: std::ops::RangeInclusive<u16>,
    ) -> Result<()> {
        let (header, body) = wire::header(packet, fds)?;
        // A release of another version may say more in its hello than this one knows; the header is what counts.
        match wire::decode(body) {
            Ok(Message::Refuse { reason }) => return Err(Error::Refused(reason)),
            Ok(Message::Hello { .. }) => {}
            _ if wire::agree(versions.clone(), header).is_err() => {}
            _ => return Err(Error::Protocol("its first message is no hello".into())),
        }
        self.version = wire::agree(versions, header)?;
        Ok(())
    }

    /// The process at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The version of the protocol that both sides speak.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// How long each call waits for the other side.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Tells the peer that a process is at this end no more, and why; it is told so by the socket in any case.
    pub(crate) fn refuse(&self, why: &Error) -> Result<()> {
        let mut reason = match why {
            Error::Refused(reason) | Error::Protocol(reason) => reason.clone(),
            other => other.to_string(),
        };
        while reason.len() > wire::MAX_TEXT_BYTES {
            reason.pop();
        }
        let packet = wire::encode(&Message::Refuse { reason }, self.version..=self.version, 0)?;
        self.try_send(&packet, &[]).map(|_| ())
    }

    /// Sends a share, with a name that the two programs agree on. It stays this process's as well.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] where the name is too long; [`Error::Refused`] where the peer's version of the protocol
    /// knows no such shares; [`Error::PeerGone`]; [`Error::Timeout`].
    pub fn send_share(&self, name: &str, share: &SharedBuffer) -> Result<()> {
        let description = share.description().clone();
        self.check_can_say(&description)?;
        self.send(&Message::Share { name: name.into(), description }, &share.descriptors())
    }

    /// An error where the peer is of a release that cannot understand this.
    pub(crate) fn check_can_say(&self, description: &Description) -> Result<()> {
        let (since, version) = (description.since(), self.version);
        if version >= since {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the peer speaks version {version} of the protocol, and shares by {} came with version {since}; update \
             its program, or share by another way",
            description.way.name()
        )))
    }

    /// The next message, which is a share, and its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the object is not what the peer says; [`Error::Protocol`] where something else
    /// came; [`Error::PeerGone`]; [`Error::Timeout`].
    pub fn receive_share(&self) -> Result<(String, SharedBuffer)> {
        let (message, fds) = self.receive()?;
        match (message, fds) {
            (Message::Share { name, description }, fds) => Ok((name, self.accept_share(description, fds)?)),
            (Message::Refuse { reason }, _) => Err(Error::Refused(reason)),
            (other, _) => Err(unexpected("a share", &other)),
        }
    }

    /// Takes what the peer sent for a share.
    pub(crate) fn accept_share(&self, description: Description, fds: Vec<OwnedFd>) -> Result<SharedBuffer> {
        // A process of the same user can end this one anyway; another user's must not be able to. The size is looked at
        // after the seals, since it could change before.
        let may_shrink =
            self.peer.uid != my_uid() && fds.first().is_some_and(|fd| crate::fd::may_shrink(fd.as_fd()));
        let believed = self.peer.uid != my_uid() && description.way.has_token();
        let share = SharedBuffer::new(description, fds)?;
        if believed {
            // Driver 580 died of 64 bytes that no pool had given, and mapped what was not there for a legacy handle of which
            // a byte was turned.
            return Err(Error::InvalidArgument(format!(
                "the driver believes what a token of {} says, and this one comes from another user; share by opaque-fd",
                share.description().way.name()
            )));
        }
        if may_shrink {
            return Err(Error::InvalidArgument(
                "the object can still be cut short, and comes from another user; share it as a memfd".into(),
            ));
        }
        Ok(share)
    }

    /// Sends a text.
    ///
    /// # Errors
    /// Those of [`Channel::send_share`].
    pub fn send_note(&self, text: &str) -> Result<()> {
        self.send(&Message::Note { text: text.into() }, &[])
    }

    /// The next message, which is a text.
    ///
    /// # Errors
    /// Those of [`Channel::receive_share`].
    pub fn receive_note(&self) -> Result<String> {
        match self.receive()?.0 {
            Message::Note { text } => Ok(text),
            Message::Refuse { reason } => Err(Error::Refused(reason)),
            other => Err(unexpected("a note", &other)),
        }
    }

    /// An error once the other process has closed its end, or died. It never blocks. What it sent before is still there to
    /// be received.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn check_alive(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&now));
        if fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR) {
            return Err(self.gone());
        }
        Ok(())
    }

    pub(crate) fn gone(&self) -> Error {
        Error::PeerGone(format!("{} has closed its end, or died", self.peer))
    }

    pub(crate) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let packet = wire::encode(message, self.version..=self.version, fds.len())?;
        self.send_packet(&packet, fds)
    }

    fn send_packet(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let deadline = deadline(self.patience);
        while !self.try_send(packet, fds)? {
            self.wait_for(PollFlags::OUT, deadline, "the peer to read what it was sent")?;
        }
        Ok(())
    }

    /// Sends a packet if there is room now.
    pub(crate) fn try_send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::Protocol(format!("{} descriptors in a message", fds.len())));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            return match rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags) {
                Ok(_) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(false),
                // Too many descriptors of this user are under way; they are when the peers have taken some.
                Err(Errno::TOOMANYREFS) => Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(self.gone()),
                Err(other) => Err(Error::os("sendmsg", &other.into())),
            };
        }
    }

    pub(crate) fn receive(&self) -> Result<(Message, Vec<OwnedFd>)> {
        self.receive_until(deadline(self.patience))
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// The next message, if it comes before a point in time.
    pub(crate) fn receive_until(&self, until: Instant) -> Result<(Message, Vec<OwnedFd>)> {
        let (packet, fds) = self.receive_packet(until)?;
        self.understand(&packet, fds)
    }

    /// The message in a packet.
    pub(crate) fn understand(&self, packet: &[u8], fds: Vec<OwnedFd>) -> Result<(Message, Vec<OwnedFd>)> {
        let (header, body) = wire::header(packet, fds.len())?;
        let message = wire::decode(body)?;
        let refusal = matches!(message, Message::Refuse { .. });
        if (header.highest, header.lowest) != (self.version, self.version) && !refusal {
            return Err(Error::Protocol(format!(
                "a message of version {}, and {} was agreed on",
                header.highest, self.version
            )));
        }
        Ok((message, fds))
    }

    fn receive_packet(&self, deadline: Instant) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        loop {
            if let Some(packet) = self.try_receive()? {
                return Ok(packet);
            }
            self.wait_for(PollFlags::IN, deadline, "a message of the peer")?;
        }
    }

    /// The next packet, if one has come. Descriptors past the most that a message may have are closed, and so are those
    /// of a packet that is refused.
    pub(crate) fn try_receive(&self) -> Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        // Room for all that may come with a packet: what has no room the kernel closes here, and that may take long.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut resets = 0;
        let got = loop {
            let into = &mut [IoSliceMut::new(&mut packet)];
            match rustix::net::recvmsg(&self.socket, into, &mut control, flags) {
                Ok(got) => break got,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // The kernel says once that the peer closed with unread packets, before it gives those that it sent.
                Err(Errno::CONNRESET) if resets == 0 => resets += 1,
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(self.gone()),
                Err(other) => return Err(Error::os("recvmsg", &other.into())),
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        fds.iter().for_each(close_at_once);
        if got.bytes == 0 && fds.is_empty() {
            return Err(self.gone());
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(Error::Protocol(format!("a packet longer than {MAX_PACKET_BYTES} bytes")));
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(Error::Protocol(format!(
                "more than {MAX_FDS} descriptors in a message, or none is left for them here (ulimit -n)"
            )));
        }
        packet.truncate(got.bytes);
        Ok(Some((packet, fds)))
    }

    /// Takes out what was sent and not received, and lets nothing more come: the kernel would close the descriptors in it
    /// together with the socket, which may take as long as their maker likes. Nobody else has this socket.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read);
        // An empty packet looks like the end, so the end must be seen as often as there may be packets.
        let mut ends = 0;
        while ends <= most_queued() {
            match self.try_receive() {
                Ok(None) | Err(Error::Os { .. }) => return,
                Err(Error::PeerGone(_)) => ends += 1,
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    fn wait_for(&self, what: PollFlags, deadline: Instant, for_what: &str) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let after_ms = self.patience.as_millis() as u64;
            return Err(Error::Timeout { what: for_what.into(), after_ms });
        }
        let mut fds = [PollFd::new(&self.socket, what)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(other) => Err(Error::os("poll", &other.into())),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How many packets a socket holds that nobody has received.
fn most_queued() -> usize {
    static QUEUED: OnceLock<usize> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").ok()?.trim().parse().ok();
    *QUEUED.get_or_init(|| read().unwrap_or(1024))
}

/// No shared object is a socket, and closing one waits for its peer for as long as its maker liked (`SO_LINGER`).
fn close_at_once(fd: &OwnedFd) {
    // Other files have no such thing, and say so.
    let _ = rustix::net::sockopt::set_socket_linger(fd, None);
}

/// A hello of these versions.
pub(crate) fn hello(versions: std::ops::RangeInclusive<u16>) -> Result<Vec<u8>> {
    let release = concat!("onebuf ", env!("CARGO_PKG_VERSION")).to_owned();
    wire::encode(&Message::Hello { release }, versions, 0)
}

pub(crate) fn unexpected(wanted: &str, message: &Message) -> Error {
    let came = match message {
        Message::Hello { .. } => "a hello",
        Message::Refuse { .. } => "a refusal",
        Message::Share { .. } => "a share",
        Message::Ring { .. } => "a ring",
        Message::Note { .. } => "a note",
        Message::Request(_) => "a request to a broker",
        Message::Answer(_) => "a broker's answer",
    };
    Error::Protocol(format!("{came} in place of {wanted}"))
}

/// When a limit that begins now is over. One that the clock cannot count is a hundred years.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    Instant::now() + limit.min(LONGEST)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}

fn socket() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::os("a Unix socket", &error.into()))
}

/// A socket with a path, where other processes connect. The path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Which file it made there.
    file: FileId,
    peers: Peers,
}

impl Listener {
    /// Listens at `path`, which its user alone may connect to (mode 0600). A socket that a killed process left there is
    /// replaced; one that is in use is not.
    ///
    /// # Errors
    /// [`Error::Busy`] where somebody listens there; [`Error::Os`] where it cannot be made, or is no socket.
    pub fn bind(path: &Path, peers: Peers) -> Result<Listener> {
        let socket = socket()?;
        let os = |what: &str| {
            let what = format!("{what} at {}", path.display());
            move |error: Errno| Error::os(what, &error.into())
        };
        // A Unix socket's file gets the mode of the socket itself, less the umask: it is never open to others.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(os("the mode of a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(os("a socket"))?;
        // Between its bind and its listen a socket looks abandoned, so no other one is judged meanwhile.
        let _turn = take_turn(path);
        if let Err(error) = rustix::net::bind(&socket, &address) {
            if error != Errno::ADDRINUSE || !is_abandoned(path, &address)? {
                return Err(os("a socket")(error));
            }
            rustix::fs::unlink(path).map_err(os("the removal of an abandoned socket"))?;
            rustix::net::bind(&socket, &address).map_err(os("a socket"))?;
        }
        let file = file_at(path).map_err(os("the file of a socket"))?;
        let listener = Listener { socket, path: path.to_owned(), file, peers };
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(os("the mode of a socket"))?;
        rustix::net::listen(&listener.socket, 128).map_err(os("listen"))?;
        Ok(listener)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next process that connects and says hello, within `limit`. Those that connect and vanish are passed over.
    ///
    /// # Errors
    /// [`Error::Timeout`]; those of [`Channel::from_socket`], after which the listener is as good as before.
    pub fn accept(&self, limit: Duration) -> Result<Channel> {
        let deadline = deadline(limit);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(0) => {
                    let what = format!("a process to connect to {}", self.path.display());
                    return Err(Error::Timeout { what, after_ms: limit.as_millis() as u64 });
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(other) => return Err(Error::os("poll", &other.into())),
            }
            match Channel::greet(self.accept_socket()?, &self.peers, VERSIONS, PATIENCE.min(limit)) {
                Err(Error::PeerGone(_)) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn accept_socket(&self) -> Result<OwnedFd> {
        rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)
            .map_err(|error| Error::os("accept", &error.into()))
    }
}

impl Listener {
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it, and another process listen there now.
        if file_at(&self.path) == Ok(self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn file_at(path: &Path) -> rustix::io::Result<FileId> {
    rustix::fs::lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Waits for those who make sockets in the folder of `path` just now, and keeps others waiting until it is dropped. Where
/// the folder cannot be locked, or somebody keeps it locked, it goes on without.
fn take_turn(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    let deadline = deadline(Duration::from_secs(1));
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return None,
        }
    }
}

/// Whether a path is a socket that nobody listens at.
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> Result<bool> {
    let probe = socket()?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            let stat = rustix::fs::lstat(path)
                .map_err(|error| Error::os(format!("lstat of {}", path.display()), &error.into()))?;
            Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket())
        }
        Ok(()) => Err(Error::Busy(format!(
            "a process listens at {} already; stop it, or take another path",
            path.display()
        ))),
        Err(_) => Ok(false),
    }
}
