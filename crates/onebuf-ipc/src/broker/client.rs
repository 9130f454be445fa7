//! A connection to a broker.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use onebuf_core::{Error, Result};

use super::{Answer, Entry, MOST_LISTED, Request};
use crate::channel::{Channel, Peers, unexpected};
use crate::share::SharedBuffer;
use crate::wire::Message;

/// A connection to a broker. What it published and what it holds, it does until it is dropped or its process ends.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    gone: VecDeque<String>,
}

impl Client {
    /// Connects to the broker at `path`: see [`super::default_path`].
    ///
    /// # Errors
    /// [`Error::PeerGone`] where there is none; [`Error::Refused`] where it does not want this process, or has no room;
    /// those of [`Channel::connect`].
    pub fn connect(path: &Path, broker: &Peers) -> Result<Client> {
        Ok(Client { channel: Channel::connect(path, broker)?, gone: VecDeque::new() })
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
            (Answer::Share { description }, fds) => self.channel.accept_share(description, fds),
            (other, _) => Err(answered("a share", other)),
        }
    }

    /// Gives one opening of a name back, or else publishes it no more.
    ///
    /// # Errors
    /// [`Error::Refused`] where this connection has neither.
    pub fn close(&mut self, name: &str) -> Result<()> {
        self.done(Request::Close { name: name.into() }, &[])
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
        while let Some((packet, fds)) = self.channel.try_receive()? {
            match self.channel.understand(&packet, fds)?.0 {
                Message::Answer(Answer::Gone { name }) => self.gone.push_back(name),
                Message::Refuse { reason } => return Err(Error::Refused(reason)),
                other => return Err(unexpected("nothing", &other)),
            }
        }
        Ok(self.gone.pop_front())
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
        loop {
            match self.channel.receive()? {
                (Message::Answer(Answer::Gone { name }), _) => self.gone.push_back(name),
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
