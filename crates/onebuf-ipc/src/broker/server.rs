//! The broker's loop: one thread, many sockets, nothing that a client does or leaves undone can stop it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use onebuf_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::registry::{ClientId, Quota, Registry};
use super::{Answer, Request};
use crate::channel::{Channel, Listener, Peers, deadline, hello, timespec};
use crate::wire::{self, Message, VERSIONS};

/// How much a broker takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub clients: usize,
    /// Connections of one user.
    pub clients_of_user: usize,
    /// Names in all.
    pub names: usize,
    /// What each user may have published.
    pub quota: Quota,
    /// How long a new connection may take to say hello.
    pub hello: Duration,
}

impl Default for Limits {
    /// What the process's limit on open files allows: half of it for connections, a quarter for names.
    fn default() -> Limits {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = usize::try_from(files.unwrap_or(1 << 20)).unwrap_or(usize::MAX).clamp(64, 1 << 14);
        Limits {
            clients: files / 2,
            clients_of_user: files / 2,
            names: files / 4,
            quota: Quota { names: files / 4, bytes: u64::MAX },
            hello: Duration::from_secs(2),
        }
    }
}

/// Where no descriptor is left, new connections wait this long.
const REST: Duration = Duration::from_millis(50);

/// A broker that listens.
pub struct Broker {
    listener: Listener,
    limits: Limits,
    registry: Registry,
    clients: BTreeMap<ClientId, Connection>,
    of_user: HashMap<u32, usize>,
    next: ClientId,
    /// No connection is taken before.
    rests_until: Option<Instant>,
}

struct Connection {
    channel: Guest,
    /// When it must have said hello; `None` when it has.
    greets_until: Option<Instant>,
}

/// A channel that nobody else has.
struct Guest(Channel);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

impl std::ops::Deref for Guest {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.0
    }
}

impl std::ops::DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.0
    }
}

/// Why a connection ends.
enum End {
    /// It is closed at the other end.
    Gone,
    /// It is closed here, and the client is told why.
    Refused(Error),
}

impl Broker {
    /// Listens at `path` for these peers.
    ///
    /// # Errors
    /// Those of [`Listener::bind`].
    pub fn bind(path: &Path, peers: Peers, limits: Limits) -> Result<Broker> {
        Ok(Broker {
            listener: Listener::bind(path, peers)?,
            registry: Registry::new(limits.quota, limits.names),
            limits,
            clients: BTreeMap::new(),
            of_user: HashMap::new(),
            next: 0,
            rests_until: None,
        })
    }

    /// Serves until `stop` can be read, or is closed at its other end. Then every client is told, and the socket is removed.
    ///
    /// # Errors
    /// [`Error::Os`] where the system does not let it wait for its sockets.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Result<()> {
        tracing::info!(path = %self.listener.path().display(), "the broker listens");
        while !self.turn(stop)? {}
        tracing::info!(clients = self.clients.len(), "the broker stops");
        let why = Error::Refused("the broker stops; what you hold stays yours".into());
        for connection in self.clients.values() {
            let _ = connection.channel.refuse(&why);
        }
        Ok(())
    }

    /// Waits for something to happen and deals with it. True when it is to stop.
    fn turn(&mut self, stop: BorrowedFd<'_>) -> Result<bool> {
        let now = Instant::now();
        let rests = self.rests_until.is_some_and(|until| until > now);
        let greets = self.clients.values().filter_map(|client| client.greets_until).min();
        let next = greets.into_iter().chain(self.rests_until.filter(|_| rests)).min();
        let limit = next.map(|at| timespec(at.saturating_duration_since(now) + Duration::from_millis(1)));

        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let new = if rests { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::new(&self.listener, new));
        fds.extend(self.clients.values().map(|client| PollFd::new(&client.channel.0, PollFlags::IN)));
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(Error::os("poll", &other.into())),
        }
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if happened[0] {
            return Ok(true);
        }
        for (id, happened) in ids.into_iter().zip(&happened[2..]) {
            if *happened && let Err(end) = self.hear(id) {
                self.end(id, end);
            }
        }
        let now = Instant::now();
        let late = |client: &Connection| client.greets_until.is_some_and(|until| until <= now);
        let late: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| late(client)).map(|(&id, _)| id).collect();
        for id in late {
            self.end(id, End::Refused(Error::Refused("no hello came in time".into())));
        }
        if happened[1] {
            self.accept();
        }
        Ok(false)
    }

    /// Takes one new connection, or turns it away.
    fn accept(&mut self) {
        let channel = match self.listener.accept_socket() {
            Ok(socket) => Channel::unheard(socket, Duration::ZERO).map(Guest),
            Err(error) => {
                // Most likely no descriptor is left; the connection stays in the queue.
                tracing::warn!(%error, "a connection waits");
                self.rests_until = Some(Instant::now() + REST);
                return;
            }
        };
        let Ok(channel) = channel else { return };
        let peer = channel.peer();
        let of_user = self.of_user.get(&peer.uid).copied().unwrap_or(0);
        let admitted = self.listener.peers().check(peer).and_then(|()| {
            if self.clients.len() < self.limits.clients && of_user < self.limits.clients_of_user {
                return Ok(());
            }
            Err(Error::Refused(format!(
                "{} connections are open, {of_user} of them user {}'s, and there is room for no more",
                self.clients.len(),
                peer.uid
            )))
        });
        let greeted = admitted.and_then(|()| channel.try_send(&hello(VERSIONS)?, &[]));
        if let Err(why) = greeted {
            tracing::info!(pid = peer.pid, uid = peer.uid, %why, "a connection is refused");
            let _ = channel.refuse(&why);
            return;
        }
        *self.of_user.entry(peer.uid).or_default() += 1;
        let greets_until = Some(deadline(self.limits.hello));
        self.clients.insert(self.next, Connection { channel, greets_until });
        self.next += 1;
    }

    /// Takes one packet of a client.
    fn hear(&mut self, id: ClientId) -> std::result::Result<(), End> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let (packet, fds) = match client.channel.try_receive() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(()),
            Err(Error::PeerGone(_)) => return Err(End::Gone),
            Err(error) => return Err(End::Refused(error)),
        };
        if client.greets_until.take().is_some() {
            return client.channel.hear_hello(&packet, fds.len(), VERSIONS).map_err(End::Refused);
        }
        let (message, fds) = client.channel.understand(&packet, fds).map_err(End::Refused)?;
        match message {
            Message::Request(request) => {
                let (answer, share, told) = self.answer(id, request, fds);
                let fds = share.as_ref().map(crate::SharedBuffer::descriptors);
                let sent = self.send(id, answer, fds.as_deref().unwrap_or(&[]));
                // Whatever became of who asked: it is done.
                for (id, end) in self.tell(told) {
                    self.end(id, end);
                }
                sent
            }
            Message::Refuse { .. } => Err(End::Gone),
            other => {
                let why = crate::channel::unexpected("a request", &other);
                Err(End::Refused(why))
            }
        }
    }

    #[allow(clippy::type_complexity)] // An answer with its descriptor, and whom to tell of which name.
    fn answer(
        &mut self,
        id: ClientId,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> (Answer, Option<crate::SharedBuffer>, Vec<(ClientId, String)>) {
        let Some(client) = self.clients.get(&id) else { return (Answer::Done, None, Vec::new()) };
        let peer = client.channel.peer();
        let mut share = None;
        let mut told = Vec::new();
        let name_of =
            |told: Vec<ClientId>, name: &str| told.into_iter().map(|id| (id, name.to_owned())).collect();
        let answer = match request {
            Request::Publish { name, description } => {
                let taken = client.channel.accept_share(description, fds).map_err(|error| error.to_string());
                taken.and_then(|share| self.registry.publish(id, peer, name, share)).map(|()| Answer::Done)
            }
            Request::Open { name } => self.registry.open(id, peer, &name).and_then(|opened| {
                let description = opened.description().clone();
                if let Err(error) = client.channel.check_can_say(&description) {
                    let _ = self.registry.close(id, &name);
                    return Err(error.to_string());
                }
                share = Some(opened);
                Ok(Answer::Share { description })
            }),
            Request::Close { name } => self.registry.close(id, &name).map(|holders| {
                told = name_of(holders, &name);
                Answer::Done
            }),
            Request::List { after } => {
                let (entries, more) = self.registry.list(&after);
                Ok(Answer::Names { entries, more })
            }
            Request::Inspect { name } => self.registry.inspect(&name).map(Answer::Entry),
            Request::Release { name } => {
                let rules = peer.uid == rustix::process::geteuid().as_raw() || peer.uid == 0;
                self.registry.release(peer, rules, &name).map(|holders| {
                    told = name_of(holders, &name);
                    Answer::Done
                })
            }
        };
        (answer.unwrap_or_else(|reason| Answer::Refused { reason }), share, told)
    }

    /// Sends without waiting: a client that does not read what it asked for is let go.
    fn send(&self, id: ClientId, answer: Answer, fds: &[BorrowedFd<'_>]) -> std::result::Result<(), End> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let version = client.channel.version();
        let packet = wire::encode(&Message::Answer(answer), version..=version, fds.len());
        let sent = packet.and_then(|packet| client.channel.try_send(&packet, fds));
        match sent {
            Ok(true) => Ok(()),
            Ok(false) => Err(End::Refused(Error::Refused("the client does not read what it is sent".into()))),
            Err(Error::PeerGone(_)) => Err(End::Gone),
            Err(error) => Err(End::Refused(error)),
        }
    }

    /// Tells holders that the producer of a name is gone. Gives those that could not be told, whose connections end.
    fn tell(&self, told: Vec<(ClientId, String)>) -> Vec<(ClientId, End)> {
        let deaf = |(id, name)| self.send(id, Answer::Gone { name }, &[]).err().map(|end| (id, end));
        told.into_iter().filter_map(deaf).collect()
    }

    /// Ends a connection, its leases and what it published; and those that cannot be told of that. They are in a list,
    /// since a chain of them, each holding what the one before published, may be longer than a stack is.
    fn end(&mut self, id: ClientId, end: End) {
        let mut ending = vec![(id, end)];
        while let Some((id, end)) = ending.pop() {
            let Some(client) = self.clients.remove(&id) else { continue };
            let peer = client.channel.peer();
            if let End::Refused(why) = &end {
                tracing::info!(pid = peer.pid, uid = peer.uid, %why, "a connection is ended");
                let _ = client.channel.refuse(why);
            }
            if let Some(count) = self.of_user.get_mut(&peer.uid) {
                *count -= 1;
                if *count == 0 {
                    self.of_user.remove(&peer.uid);
                }
            }
            drop(client);
            let told = self.registry.leave(id);
            ending.extend(self.tell(told));
        }
    }
}
