//! From Vulkan's result codes to errors that a caller can act on.

use ash::vk;
use onebuf_core::Error;

/// The error for a failed `call`. Out-of-memory codes lose their sizes here; allocation paths use [`out_of_memory`].
pub(crate) fn driver(call: &'static str) -> impl FnOnce(vk::Result) -> Error {
    move |code| match code {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost(format!("{call} answered {code:?}")),
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            Error::OutOfMemory { asked_bytes: 0, free_bytes: None, never_fits: false }
        }
        _ => Error::Driver { call, code: format!("{code:?}") },
    }
}

/// The error for a failed allocation of `asked_bytes`.
pub(crate) fn out_of_memory(call: &'static str, asked_bytes: u64) -> impl FnOnce(vk::Result) -> Error {
    move |code| match driver(call)(code) {
        Error::OutOfMemory { .. } => Error::OutOfMemory { asked_bytes, free_bytes: None, never_fits: false },
        // The descriptor behind exportable memory counts against the limit on open files; lavapipe reports it so.
        Error::Driver { code, .. } if code == "ERROR_TOO_MANY_OBJECTS" => Error::Os {
            what: format!("{call} of {asked_bytes} bytes"),
            reason: "too many live allocations; free buffers or raise the limit on open files (ulimit -n)"
                .into(),
        },
        other => other,
    }
}
