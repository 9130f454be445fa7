//! DLPack: how array libraries hand tensors to each other without a copy, as structures in C's layout.
//!
//! - **Export**: [`Managed::export`] gives memory with an owner, a shape and a device to whoever takes it. The owner is
//!   dropped when the taker calls the deleter, on whatever thread that is.
//! - **Import**: [`Managed::import_versioned`] and [`Managed::import_legacy`] take a tensor that came from outside and
//!   believe nothing of it that can be checked: pointers, version, dimensions, strides, overflow.
//!
//! A deleter is called exactly once: by the drop of a [`Managed`], or by who got its raw pointer.
//!
//! | module | what is in it |
//! |---|---|
//! | [`abi`] | the structures and constants of `dlpack.h` |
//! | `consumer` | whose work must wait for the producer's: the streams of Python's protocol |
//! | `dtype` | element types |
//! | `layout` | shapes, strides, and the bytes that they reach |
//! | `managed` | tensors with an owner: export, import |
//!
//! ```
//! use onebuf_dlpack::{DataType, Device, Managed, Tensor};
//!
//! let owner = Box::new(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! let tensor = Tensor::contiguous(owner.as_ptr().cast_mut().cast(), Device::CPU, DataType::of::<f32>(), &[2, 3])?;
//! // SAFETY: the elements are `owner`'s, which moves into the tensor and does not move them.
//! let exported = unsafe { Managed::export(tensor.read_only(), owner) };
//! let raw = exported.into_versioned();
//! // Another library takes it, and this crate could be that library:
//! // SAFETY: the pointer is one that a producer gave, and nobody else has.
//! let imported = unsafe { Managed::import_versioned(raw.as_ptr()) }?;
//! assert_eq!((imported.shape(), imported.strides()), (&[2, 3][..], &[3, 1][..]));
//! # Ok::<(), onebuf_dlpack::Error>(())
//! ```

pub mod abi;
mod consumer;
mod dtype;
mod layout;
mod managed;

pub use abi::Device;
pub use consumer::ConsumerStream;
pub use dtype::{DataType, Element};
pub use layout::{Extent, Tensor};
pub use managed::{CAPSULE_LEGACY, CAPSULE_VERSIONED, Form, Managed, USED_LEGACY, USED_VERSIONED};

/// The result of anything that may fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a tensor was not exported or imported. In Python each is a `BufferError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tensor breaks a rule of DLPack.
    #[error("this is no DLPack tensor: {0}")]
    Malformed(String),
    /// The tensor is of a version, device or type that is not known here.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A tensor that may only be read was asked for in the legacy form, which cannot say so.
    #[error(
        "the tensor may only be read, which the legacy form cannot say; ask for a version (max_version=(1, 0)) or a copy"
    )]
    ReadOnly,
    /// What a consumer gave as its stream is none.
    #[error(
        "{0} is no consumer's stream: it is None or 1 for the legacy default stream, 2 for the thread's, -1 for no order, or a stream's address"
    )]
    Stream(i128),
}
