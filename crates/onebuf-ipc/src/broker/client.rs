//! A connection to a broker.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use onebuf_core::{Error, Result};

use super::{Answer, Entry, MOST_LISTED, Request};
use crate::channel::{Channel, Peers, deadline, unexpected};
use crate::share::SharedBuffer;
use crate::wire::Message;

/// A connection to a broker. What it published and what it holds, it does until it is dropped or its process ends.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    held: HashMap<String, Held>,
    /// Names that are held and whose producer is gone, each once, as long as nobody has asked.
    gone: VecDeque<String>,
}

/// A name that a connection holds.
#[derive(Debug, Default)]
struct Held {
    leases: u64,
    is_told: bool,
}

/// The most packets that one look at what came takes: a broker that never stops sending must not hold who looks.
const MOST_AT_ONCE: usize = 1024;

impl Client {
    /// Connects to the broker at `path`: see [`super::default_path`].
    ///
    /// # Errors
    /// [`Error::PeerGone`] where there is none; [`Error::Refused`] where it does not want this process, or has no room;
    /// those of [`Channel::connect`].
    pub fn connect(path: &Path, broker: &Peers) -> Result<Client> {
        Ok(Client { channel: Channel::connect(path, broker)?, held: HashMap::new(), gone: VecDeque::new() })
    }

    /// How long each call waits for the broker.
    pub fn set_patience(&mut self, patience: Duration) {
        self.channel.set_patience(patience);
    }

    /// Publishes a share under a name, which is free.
    ///
    /// # Errors
    /// [`Error::Refused`] with the broker's reason: the name is taken, a quota is used up; [`Error::PeerGone`];
    /// [`Error::Timeout`].
    pub fn publish(&mut self, name: &str, share: &SharedBuffer) -> Result<()> {
        let description = share.description().clone();
        self.channel.check_can_say(&description)?;
        self.done(Request::Publish { name: name.into(), description }, &share.descriptors())
    }

    /// Opens the share under a name, and holds it until [`Client::close`].
    ///
    /// # Errors
    /// [`Error::Refused`] where there is none; [`Error::InvalidArgument`] where the object is not what is said.
    pub fn open(&mut self, name: &str) -> Result<SharedBuffer> {
        match self.ask(Request::Open { name: name.into() }, &[])? {
            (Answer::Share { description }, fds) => {
                self.held.entry(name.to_owned()).or_default().leases += 1;
                self.channel.accept_share(description, fds)
            }
            (other, _) => Err(answered("a share", other)),
        }
    }

    /// Gives one opening of a name back, or else publishes it no more.
    ///
    /// # Errors
    /// [`Error::Refused`] where this connection has neither.
    pub fn close(&mut self, name: &str) -> Result<()> {
        self.done(Request::Close { name: name.into() }, &[])?;
        if let Some(held) = self.held.get_mut(name) {
            held.leases -= 1;
            if held.leases == 0 {
                self.held.remove(name);
                self.gone.retain(|gone| gone != name);
            }
        }
        Ok(())
    }

    /// Every name, in order, without holders.
    ///
    /// # Errors
    /// [`Error::Protocol`] where the broker's list is in no order, or has no end; [`Error::PeerGone`]; [`Error::Timeout`].
    pub fn list(&mut self) -> Result<Vec<Entry>> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map(|entry| entry.name.clone()).unwrap_or_default();
            match self.ask(Request::List { after }, &[])?.0 {
                Answer::Names { entries, more } => {
                    let ends = !more || entries.is_empty();
                    let last = all.last().into_iter().chain(&entries);
                    if !last.is_sorted_by(|a, b| a.name < b.name) || all.len() >= MOST_LISTED {
                        return Err(Error::Protocol(
                            "the broker's list is in no order, or has no end".into(),
                        ));
                    }
                    all.extend(entries);
                    if ends {
                        return Ok(all);
                    }
                }
                other => return Err(answered("names", other)),
            }
        }
    }

    /// What the broker knows of a name, with its holders.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is none.
    pub fn inspect(&mut self, name: &str) -> Result<Entry> {
        match self.ask(Request::Inspect { name: name.into() }, &[])?.0 {
            Answer::Entry(entry) => Ok(entry),
            other => Err(answered("an entry", other)),
        }
    }

    /// Takes a name away, whoever holds it: for its producer's user, and the broker's. Those who have the memory keep it, and
    /// are told that its producer is gone.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is none, or it is another user's.
    pub fn release(&mut self, name: &str) -> Result<()> {
        self.done(Request::Release { name: name.into() }, &[])
    }

    /// The next name that this connection holds and whose producer is gone. It never blocks.
    ///
    /// # Errors
    /// [`Error::PeerGone`] once the broker itself is gone: what is held stays, and its names are nobody's.
    pub fn gone(&mut self) -> Result<Option<String>> {
        for _ in 0..MOST_AT_ONCE {
            let Some((packet, fds)) = self.channel.try_receive()? else { break };
            match self.channel.understand(&packet, fds)?.0 {
                Message::Answer(Answer::Gone { name }) => self.hear_gone(name),
                Message::Refuse { reason } => return Err(Error::Refused(reason)),
                other => return Err(unexpected("nothing", &other)),
            }
        }
        let next = self.gone.pop_front();
        if let Some(held) = next.as_ref().and_then(|name| self.held.get_mut(name)) {
            held.is_told = false;
        }
        Ok(next)
    }

    /// Remembers that a producer is gone, where this connection holds what it published.
    fn hear_gone(&mut self, name: String) {
        if let Some(held) = self.held.get_mut(&name)
            && !std::mem::replace(&mut held.is_told, true)
        {
            self.gone.push_back(name);
        }
    }

    fn done(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<()> {
        match self.ask(request, fds)?.0 {
            Answer::Done => Ok(()),
            other => Err(answered("a yes", other)),
        }
    }

    fn ask(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>)> {
        match self.channel.send(&Message::Request(request), fds) {
            // A broker that ended this connection has said why, and that is still there to be read.
            Ok(()) | Err(Error::PeerGone(_)) => {}
            Err(other) => return Err(other),
        }
        // One limit for all that comes before the answer.
        let until = deadline(self.channel.patience());
        loop {
            match self.channel.receive_until(until)? {
                (Message::Answer(Answer::Gone { name }), _) if Instant::now() < until => self.hear_gone(name),
                (Message::Answer(Answer::Gone { .. }), _) => {
                    let after_ms = self.channel.patience().as_millis() as u64;
                    return Err(Error::Timeout { what: "a broker's answer".into(), after_ms });
                }
                (Message::Answer(Answer::Refused { reason }), _) => return Err(Error::Refused(reason)),
                (Message::Answer(answer), fds) => return Ok((answer, fds)),
                (Message::Refuse { reason }, _) => return Err(Error::Refused(reason)),
                (other, _) => return Err(unexpected("a broker's answer", &other)),
            }
        }
    }
}

fn answered(wanted: &str, answer: Answer) -> Error {
    Error::Protocol(format!("the broker answered {answer:?} in place of {wanted}"))
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
