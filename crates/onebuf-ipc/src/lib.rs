//! Passing shared buffers between processes.
//!
//! This crate knows no device: it takes what a backend exports, and gives what a backend imports. The crate `onebuf` ties
//! it to devices.
//!
//! | module | what is in it |
//! |---|---|
//! | [`share`] | a share: a descriptor and its description, held against each other |
//! | [`memfd`] | the memfd route: pages of the CPU's memory that each holder maps and imports |

#![deny(unsafe_code)]

mod fd;
mod map;
pub mod memfd;
pub mod share;

pub use map::Mapping;
pub use memfd::Memfd;
pub use share::{BootId, Description, ObjectId, ObjectKey, SharedBuffer};
