//! Passing shared buffers between processes.
//!
//! This crate knows no device: it takes what a backend exports, and gives what a backend imports. The crate `onebuf` ties
//! it to devices.
//!
//! | module | what is in it |
//! |---|---|
//! | [`share`] | a share: a descriptor and its description, held against each other |
//! | [`memfd`] | the memfd route: pages of the CPU's memory that each holder maps and imports |
//! | [`channel`] | two processes that talk: descriptors and messages over a Unix socket |
//! | [`counters`] | order across processes: counters in shared memory, waited for with a futex |
//! | [`ring`] | slots between a producer and a consumer, with back-pressure |
//! | [`broker`] | named shares, who holds them, leases that end with the socket |
//! | [`wire`] | what they say, byte for byte |

#![deny(unsafe_code)]

pub mod broker;
pub mod channel;
pub mod counters;
mod fd;
mod map;
pub mod memfd;
mod peer;
pub mod ring;
pub mod share;
pub mod wire;

pub use channel::{Channel, Listener};
pub use counters::Counters;
pub use map::Mapping;
pub use memfd::Memfd;
pub use peer::{Peer, Peers};
pub use share::{BootId, Description, ObjectId, ObjectKey, SharedBuffer};
