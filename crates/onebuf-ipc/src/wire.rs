//! The wire format: one packet a message, a fixed header, and a body of bounded size.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `1buf` |
//! | 4..6 | the protocol's version; in a hello, the highest that its sender speaks |
//! | 6..8 | the same; in a hello, the lowest that its sender speaks |
//! | 8..10 | how many descriptors come with it |
//! | 10..12 | zero |
//! | 12..16 | length of the body in bytes, which is the rest of the packet |
//!
//! Version 2 adds shares with a token, which may come with two descriptors.
//!
//! Numbers are little-endian. The body is one [`Message`] in JSON. The header, and the hello in it, stay as they are in every
//! version to come, so that two releases that share no version can tell each other so.

use std::ops::RangeInclusive;

use onebuf_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::broker::{Answer, Request};
use crate::share::Description;

/// The versions that this release speaks.
pub const VERSIONS: RangeInclusive<u16> = 1..=2;

/// The longest packet, header and body.
pub const MAX_PACKET_BYTES: usize = 32 << 10;

/// The most descriptors that come with a message.
pub const MAX_FDS: usize = 2;

/// The longest text in a message, in bytes: a note, a name, a reason.
pub const MAX_TEXT_BYTES: usize = 1024;

pub(crate) const HEADER_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"1buf";

/// What is said over a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// The first of each side: who speaks.
    Hello {
        /// Name and version of the program's onebuf.
        release: String,
    },
    /// The last of a side that will not go on, with the reason.
    Refuse {
        /// Why.
        reason: String,
    },
    /// A share; its descriptors come with it.
    Share {
        /// What its sender calls it.
        name: String,
        /// What the descriptor is said to be.
        description: Description,
    },
    /// A ring's page of counters; its descriptor comes with it. A share for each slot follows.
    Ring {
        /// How many slots it has.
        slots: u32,
    },
    /// A text of the programs' own.
    Note {
        /// The text.
        text: String,
    },
    /// To a broker.
    Request(Request),
    /// From a broker.
    Answer(Answer),
}

impl Message {
    fn check(&self) -> Result<()> {
        let text = match self {
            Message::Hello { release: text }
            | Message::Refuse { reason: text }
            | Message::Share { name: text, .. }
            | Message::Note { text } => text,
            Message::Request(request) => request.name(),
            Message::Answer(answer) => return answer.check(),
            Message::Ring { .. } => return Ok(()),
        };
        Error::check_limit("bytes of text in a message", text.len() as u64, MAX_TEXT_BYTES as u64)
    }
}

/// A packet's header, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) highest: u16,
    pub(crate) lowest: u16,
    pub(crate) fds: u16,
}

/// A packet for a message in a version; for a hello, of a range of versions.
///
/// # Errors
/// [`Error::LimitExceeded`] where a text is too long.
pub(crate) fn encode(message: &Message, versions: RangeInclusive<u16>, fds: usize) -> Result<Vec<u8>> {
    message.check()?;
    let body = serde_json::to_vec(message).map_err(|error| Error::Protocol(error.to_string()))?;
    Error::check_limit("bytes in a message", (HEADER_BYTES + body.len()) as u64, MAX_PACKET_BYTES as u64)?;
    let mut packet = Vec::with_capacity(HEADER_BYTES + body.len());
    packet.extend(MAGIC);
    packet.extend(versions.end().to_le_bytes());
    packet.extend(versions.start().to_le_bytes());
    packet.extend((fds as u16).to_le_bytes());
    packet.extend([0; 2]);
    packet.extend((body.len() as u32).to_le_bytes());
    packet.extend(body);
    Ok(packet)
}

/// The header of a packet that came with `fds` descriptors, and its body.
///
/// # Errors
/// [`Error::Protocol`] where it is no packet of this protocol, or not all of one.
pub(crate) fn header(packet: &[u8], fds: usize) -> Result<(Header, &[u8])> {
    let bad = |what: String| Err(Error::Protocol(what));
    let Some((head, body)) = packet.split_at_checked(HEADER_BYTES) else {
        return bad(format!("a packet of {} bytes, and a header has {HEADER_BYTES}", packet.len()));
    };
    if head[..4] != MAGIC || head[10..12] != [0; 2] {
        return bad("a packet that does not begin as one of onebuf".into());
    }
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let length = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
    if length != body.len() {
        return bad(format!("a body of {} bytes, said to have {length}", body.len()));
    }
    let header = Header { highest: short(4), lowest: short(6), fds: short(8) };
    if usize::from(header.fds) != fds {
        return bad(format!("{fds} descriptors came, and {} were said to", header.fds));
    }
    Ok((header, body))
}

/// The message in a body.
///
/// # Errors
/// [`Error::Protocol`] where there is none.
pub(crate) fn decode(body: &[u8]) -> Result<Message> {
    let message: Message = serde_json::from_slice(body)
        .map_err(|error| Error::Protocol(format!("a message that cannot be read: {error}")))?;
    message.check().map_err(|error| Error::Protocol(error.to_string()))?;
    Ok(message)
}

/// The version that two sides speak.
///
/// # Errors
/// [`Error::Refused`] where they have none in common, with both ranges.
pub(crate) fn agree(ours: RangeInclusive<u16>, theirs: Header) -> Result<u16> {
    let version = (*ours.end()).min(theirs.highest);
    if version < *ours.start() || version < theirs.lowest || theirs.lowest > theirs.highest {
        return Err(Error::Refused(format!(
            "it speaks versions {} to {} of the protocol, and this release {} to {}; update the older program",
            theirs.lowest,
            theirs.highest,
            ours.start(),
            ours.end()
        )));
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> Message {
        Message::Note { text: text.into() }
    }

    #[test]
    fn messages_round_trip() {
        let message = note("four");
        let packet = encode(&message, 1..=1, 0).unwrap();
        let (head, body) = header(&packet, 0).unwrap();
        assert_eq!(head, Header { highest: 1, lowest: 1, fds: 0 });
        assert_eq!(decode(body).unwrap(), message);
    }

    #[test]
    fn texts_are_bounded_at_both_ends() {
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        assert!(matches!(encode(&note(&long), 1..=1, 0), Err(Error::LimitExceeded { .. })));
        let body = serde_json::to_vec(&note(&long)).unwrap();
        assert!(matches!(decode(&body), Err(Error::Protocol(_))));
    }

    #[test]
    fn broken_packets_are_refused() {
        let packet = encode(&note("hello"), 1..=1, 0).unwrap();
        for length in 0..packet.len() {
            assert!(header(&packet[..length], 0).is_err(), "cut to {length}");
        }
        assert!(header(&packet, 1).is_err(), "a descriptor more than was said");
        for at in (0..4).chain(8..16) {
            let mut broken = packet.clone();
            broken[at] ^= 0x40;
            assert!(header(&broken, 0).is_err(), "byte {at}");
        }
        for body in
            ["", "{", "[]", "{\"note\":{}}", "{\"note\":{\"text\":\"a\",\"more\":1}}", "{\"bomb\":{}}"]
        {
            assert!(matches!(decode(body.as_bytes()), Err(Error::Protocol(_))), "{body}");
        }
        let deep = "[".repeat(MAX_PACKET_BYTES);
        assert!(decode(deep.as_bytes()).is_err());
    }

    #[test]
    fn versions_meet_or_part_politely() {
        let theirs = |lowest, highest| Header { highest, lowest, fds: 0 };
        assert_eq!(agree(1..=3, theirs(2, 5)).unwrap(), 3);
        assert_eq!(agree(2..=3, theirs(1, 2)).unwrap(), 2);
        for (lowest, highest) in [(4, 9), (0, 0), (9, 4), (3, 2)] {
            match agree(1..=3, theirs(lowest, highest)) {
                Err(Error::Refused(why)) => assert!(why.contains("1 to 3"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
