//! Runs compiler passes on a thread with a large stack, and turns a panic in them into an error.
//!
//! The passes recurse over expressions and nested blocks, so the depth they need is set by the source. With the
//! limit that [`crate::nesting`] puts on it, [`STACK_BYTES`] is always enough; the pages are only taken when touched.

use std::{any::Any, thread};

use crate::Error;

const STACK_BYTES: usize = 512 << 20;

/// Runs `work` on a fresh thread with a large stack. A panic becomes [`Error::Internal`].
pub(crate) fn run<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("onebuf-wgsl".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::Internal(format!("no thread to compile on: {error}")))?;
        thread.join().unwrap_or_else(|panic| Err(Error::Internal(panic_message(panic.as_ref()))))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "panic".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let result = run::<()>(|| panic!("of course"));
        assert!(matches!(result, Err(Error::Internal(text)) if text.contains("of course")));
    }
}
