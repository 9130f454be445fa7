//! What the conformance suite is made of. The cases are in `tests/`, one file a topic, in three programs:
//!
//! | program | cases |
//! |---|---|
//! | `conformance` | what a device does, in this process |
//! | `hostile` | generated bad input: argument lists, sources |
//! | `processes` | what needs another process: sharing, caches, broken environments, resources |
//!
//! Each case runs on every device of every backend, and many on simulated devices around those as well: see
//! [`lab::on_real_devices`] and [`lab::on_every_device`]. Cases of a program run one after the other, whatever the test
//! harness says, so that a message of the validation layer, a file descriptor or a thread has one case to answer for it.
//!
//! | variable | meaning |
//! |---|---|
//! | `ONEBUF_REQUIRE=cuda,vulkan` | a missing backend is a failure, not a skip |
//! | `ONEBUF_TEST_BACKENDS=cuda` | only these backends |
//! | `ONEBUF_TEST_SIMULATED=0` | no simulated devices, for runs under a tool that slows everything down |
//! | `ONEBUF_VALIDATION=1` | the Khronos validation layer is on, and any message fails its case |
//! | `ONEBUF_TEST_SEED=N` | generated cases run for this seed alone |
//! | `ONEBUF_TEST_TIMES=1` | how long each case took on each device is printed |
//!
//! To add a backend, add it to `backends` in `lab.rs`.

pub mod kernels;
pub mod lab;
pub mod process;
pub mod resources;
pub mod seeds;
mod subject;

pub use subject::{Slow, Subject};
