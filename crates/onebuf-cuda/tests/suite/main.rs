//! The backend alone, on every CUDA device present. Without one the tests say that they tested nothing, and fail where
//! `ONEBUF_REQUIRE` has `cuda`. One program, since each carries the whole backend to machines that have a GPU.

#![allow(clippy::print_stderr)] // A test that had nothing to run on says so.

mod capacity;
mod contract;
mod kernels;
mod memory;
mod support;
