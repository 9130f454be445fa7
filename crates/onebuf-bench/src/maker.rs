//! The second process of line 7: it makes the memory that the first one opens, and holds it.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use onebuf::ipc::{Channel, Peers};
use onebuf::{Device, Error as Refused, HandleKind, HostAccess, Registry, Share, SharedBuffer};

use crate::error::{Error, Result};

/// Starts a program that calls [`make`] for the device with this id, with the socket as its standard input.
pub type StartSecond = fn(&str, OwnedFd) -> std::io::Result<Child>;

/// Longer than any line waits for the other side.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the first process asks for, as a note: a way, and a size in words.
fn request(way: HandleKind, words: usize) -> String {
    format!("{} {words}", way.name())
}

fn parse(text: &str) -> Option<(HandleKind, usize)> {
    let (name, words) = text.split_once(' ')?;
    let way = HandleKind::ALL.into_iter().find(|way| way.name() == name)?;
    Some((way, words.parse().ok()?))
}

/// The word at an index of what is made.
pub(crate) fn word(index: usize) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b9) | 1
}

/// What the second process does, until the first one is gone: memory for each request, filled, by the ways that the
/// device has.
///
/// # Errors
/// [`Error::Onebuf`] where the device or the socket fails.
pub fn make(device: &str, socket: OwnedFd) -> Result<()> {
    let mut channel = Channel::from_socket(socket, &Peers::SameUser)?;
    channel.set_patience(PATIENCE);
    let device = Registry::system().open(device)?;
    let mut made = Vec::new();
    loop {
        let asked = match channel.receive_note() {
            Ok(text) => text,
            Err(Refused::PeerGone(_)) => return Ok(()),
            Err(other) => return Err(other.into()),
        };
        let Some((way, words)) = parse(&asked) else {
            return Err(Error::Second(format!("it was asked for `{asked}`")));
        };
        let builder =
            device.buffer::<u32>(words).host(HostAccess::ReadWrite).share(Share::Process).ways([way]);
        match builder.init_with(word) {
            Ok(buffer) => {
                buffer.settle(PATIENCE)?;
                channel.send_note("made")?;
                channel.send_share(way.name(), &buffer.share()?)?;
                made.push(buffer);
            }
            Err(Refused::NoPlacement { .. } | Refused::Unsupported { .. }) => channel.send_note("none")?,
            Err(other) => return Err(other.into()),
        }
    }
}

/// The second process, as the first one has it. It ends with this.
pub(crate) struct Maker {
    child: Child,
    channel: Channel,
}

impl Maker {
    pub(crate) fn start(device: &Device, start: StartSecond) -> Result<Maker> {
        let (mine, its) = Channel::socket_pair()?;
        let failed = |error: std::io::Error| Error::Second(format!("it does not start: {error}"));
        let child = start(&device.info().id.to_string(), its).map_err(failed)?;
        let mut channel = Channel::from_socket(mine, &Peers::SameUser)?;
        channel.set_patience(Duration::from_secs(60));
        Ok(Maker { child, channel })
    }

    /// A share of new memory; `None` where the device has none that leaves by `way`.
    pub(crate) fn ask(&self, way: HandleKind, words: usize) -> Result<Option<SharedBuffer>> {
        self.channel.send_note(&request(way, words))?;
        match self.channel.receive_note()?.as_str() {
            "made" => Ok(Some(self.channel.receive_share()?.1)),
            _ => Ok(None),
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // Its socket is closed after this, so it may be on its way out already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood() {
        for way in HandleKind::ALL {
            assert_eq!(parse(&request(way, 1 << 24)), Some((way, 1 << 24)));
        }
        assert_eq!((parse("opaque-fd"), parse("pigeon 3"), parse("memfd x")), (None, None, None));
    }
}
