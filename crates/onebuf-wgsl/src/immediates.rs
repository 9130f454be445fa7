//! A limit on immediate data, checked before validation: naga 30 counts it in 64 slots of 4 bytes, and panics past them.

use naga::{AddressSpace, Module};

use crate::{Error, error::Diagnostic};

/// Bytes of `var<immediate>` that a kernel may declare: no device known has more (NVIDIA's and Mesa's have as many).
pub const MAX_IMMEDIATE_BYTES: u32 = 256;

pub(crate) fn check(ir: &Module, source: &str) -> Result<(), Error> {
    let variables = ir.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::Immediate);
    for (handle, variable) in variables {
        let size = ir.types[variable.ty].inner.try_size(ir.to_ctx());
        if size.is_some_and(|size| size <= MAX_IMMEDIATE_BYTES) {
            continue;
        }
        let size = size.map_or_else(|| "too many".to_owned(), |size| size.to_string());
        let message = format!(
            "the immediate data has {size} bytes, and at most {MAX_IMMEDIATE_BYTES} are supported; use a uniform"
        );
        let span = ir.global_variables.get_span(handle);
        return Err(Error::Validation(Diagnostic::at(span, message, "declared here", source)));
    }
    Ok(())
}
