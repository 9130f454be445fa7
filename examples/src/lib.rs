//! What the examples, the demo and the tests share: the kernels of `shaders/`, and the same on the CPU.
//!
//! | module | what is in it |
//! |---|---|
//! | [`shaders`] | the WGSL sources |
//! | [`cpu`] | what each of them computes, in plain Rust |

#![forbid(unsafe_code)]

pub mod cpu;
pub mod shaders;
