//! What the machine says of itself, whatever devices it has.

mod container;
mod host;

pub(crate) use container::signs;
pub(crate) use host::host;
