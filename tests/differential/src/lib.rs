//! The same WGSL, twice: as CUDA C++ compiled for the CPU, and through onebuf on a device: as SPIR-V on a Vulkan driver, or as
//! CUDA C++ on an NVIDIA GPU.
//!
//! | module | what it does |
//! |---|---|
//! | [`case`] | a kernel with its inputs |
//! | [`batch`] | many kernels as one source |
//! | [`host`] | compiles printed CUDA C++ with g++ and a shim, under UBSan and ASan, and runs it |
//! | [`device`] | runs the same source on a device, through onebuf |
//! | [`compare`] | random programs both ways |
//! | [`record`] | which programs have run |
//! | [`generate`] | random programs that both must agree on |
//! | [`probe`], [`tables`] | operators and built-ins on edge values |
//! | [`half`] | the 16-bit floats that a number may be rounded to |
//! | [`layout`] | which bytes of a buffer are data and which are padding |

pub mod batch;
pub mod case;
pub mod compare;
pub mod device;
pub mod generate;
pub mod half;
pub mod host;
pub mod layout;
pub mod probe;
pub mod record;
pub mod rng;
pub mod tables;

/// Whether `ONEBUF_REQUIRE` names `what`, so that its absence is a failure.
pub fn required(what: &str) -> bool {
    std::env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name.trim() == what))
}
