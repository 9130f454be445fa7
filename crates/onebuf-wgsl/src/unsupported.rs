//! What WGSL has and a kernel on buffers cannot have.

use naga::{AddressSpace, Module, Span, Type, TypeInner};

use crate::{Error, error::Diagnostic};

/// The construct that `ty` is, if kernels cannot have it.
fn construct(ty: &Type) -> Option<&'static str> {
    Some(match ty.inner {
        TypeInner::Image { .. } => "texture",
        TypeInner::Sampler { .. } => "sampler",
        TypeInner::AccelerationStructure { .. } => "acceleration structure",
        TypeInner::RayQuery { .. } => "ray query",
        TypeInner::BindingArray { .. } => "binding array",
        TypeInner::CooperativeMatrix { .. } => "cooperative matrix",
        _ => return None,
    })
}

fn error(construct: &str, span: Span, source: &str) -> Error {
    let message = format!("a kernel works on buffers alone: {construct} is not supported");
    Error::Unsupported {
        construct: construct.to_owned(),
        diagnostic: Diagnostic::at(span, message, &format!("{construct} used here"), source),
    }
}

/// Refuses a module that uses any such construct. Call it on a module that holds one entry point and what it needs.
pub(crate) fn check(module: &Module, source: &str) -> Result<(), Error> {
    for (handle, variable) in module.global_variables.iter() {
        let span = module.global_variables.get_span(handle);
        if let Some(construct) = construct(&module.types[variable.ty]) {
            return Err(error(construct, span, source));
        }
        match variable.space {
            AddressSpace::TaskPayload => return Err(error("task payload", span, source)),
            AddressSpace::RayPayload | AddressSpace::IncomingRayPayload => {
                return Err(error("ray payload", span, source));
            }
            _ => {}
        }
    }
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    for function in module.functions.iter().map(|(_, function)| function).chain(entries) {
        for (handle, variable) in function.local_variables.iter() {
            if let Some(construct) = construct(&module.types[variable.ty]) {
                return Err(error(construct, function.local_variables.get_span(handle), source));
            }
        }
    }
    for (handle, ty) in module.types.iter() {
        if let Some(construct) = construct(ty) {
            return Err(error(construct, module.types.get_span(handle), source));
        }
    }
    Ok(())
}
