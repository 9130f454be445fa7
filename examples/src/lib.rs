//! What the examples, the demo and the tests share: the kernels of `shaders/`, and the same on the CPU.
//!
//! | module | what is in it |
//! |---|---|
//! | [`shaders`] | the WGSL sources |
//! | [`cpu`] | what each of them computes, in plain Rust |

#![forbid(unsafe_code)]

pub mod cpu;
pub mod shaders;

/// The programs in `docs/`, compiled as the pages have them.
#[cfg(doctest)]
mod pages {
    macro_rules! pages {
        ($($page:literal)*) => { $(#[doc = include_str!(concat!("../../docs/semantics/", $page))] const _: () = ();)* };
    }
    pages!("api.md" "framework.md" "host-atomics.md" "host-import.md" "host-mapped.md" "peer.md" "process.md" "system.md"
        "uma.md" "unified.md" "workgroup.md");

    #[doc = include_str!("../../README.md")]
    const _: () = ();
}
