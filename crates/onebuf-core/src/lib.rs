//! The contract of onebuf.
pub mod kernel;
