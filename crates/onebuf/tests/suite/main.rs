//! The crate against a device in memory that runs work late, and in any order that the tickets leave open.

mod arguments;
mod fake;
mod graphs;
mod guards;
mod host_memory;
mod kernels;
mod order;
mod pool;
mod registry;
mod schedules;
mod threads;

use std::sync::Arc;

use fake::{FakeDevice, Options};
use onebuf::Device;

/// A device with one memory for CPU and GPU.
fn uma() -> (Device, Arc<FakeDevice>) {
    Options::uma().open()
}

/// A device whose memory the CPU cannot see.
fn discrete() -> (Device, Arc<FakeDevice>) {
    Options::discrete().open()
}
