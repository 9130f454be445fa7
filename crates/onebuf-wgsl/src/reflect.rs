//! The interface of an entry point: what a host must bind, and what a device must have.

use naga::{
    AddressSpace, ArraySize, BuiltIn, Expression, Function, Handle, Scalar, ScalarKind, Statement, Type,
    TypeInner,
    proc::{Layouter, TypeResolution},
    valid::{GlobalUse, ModuleInfo},
};
use onebuf_core::kernel::{self, Access, Binding, BindingKind, Features, KernelInterface, Slot};

use crate::module::type_name;

/// Reflects the only entry point of `ir`.
pub(crate) fn interface(ir: &naga::Module, info: &ModuleInfo) -> Result<KernelInterface, String> {
    let entry = ir.entry_points.first().ok_or("no entry point is left")?;
    let uses = info.get_entry_point(0);
    let mut layouter = Layouter::default();
    layouter.update(ir.to_ctx()).map_err(|error| error.to_string())?;

    let mut bindings = Vec::new();
    let mut immediate_bytes = 0;
    let mut workgroup_bytes = 0u64;
    for (handle, variable) in ir.global_variables.iter() {
        let used = uses[handle];
        if used.is_empty() {
            continue;
        }
        let size_bytes = u64::from(layouter[variable.ty].size);
        let kind = match variable.space {
            AddressSpace::Storage { .. } => BindingKind::Storage,
            AddressSpace::Uniform => BindingKind::Uniform,
            AddressSpace::Immediate => {
                immediate_bytes = layouter[variable.ty].size;
                continue;
            }
            AddressSpace::WorkGroup => {
                let alignment = layouter[variable.ty].alignment;
                let align_up = |bytes: u64| alignment.round_up(bytes as u32);
                workgroup_bytes = u64::from(align_up(workgroup_bytes)) + size_bytes;
                continue;
            }
            _ => continue,
        };
        let binding = variable.binding.ok_or("a buffer without @group and @binding")?;
        let stride_bytes = runtime_stride(ir, variable.ty);
        bindings.push(Binding {
            slot: Slot { group: binding.group, binding: binding.binding },
            name: variable.name.clone().unwrap_or_default(),
            ty: type_name(ir, variable.ty),
            kind,
            access: access(used),
            min_bytes: min_bytes(ir, &layouter, variable.ty),
            stride_bytes,
            scalar: only_scalar(ir, variable.ty).and_then(scalar),
        });
    }
    bindings.sort_by_key(|binding| binding.slot);
    Ok(KernelInterface {
        entry: entry.name.clone(),
        workgroup_size: entry.workgroup_size,
        bindings,
        immediate_bytes,
        workgroup_bytes,
        features: features(ir, info),
    })
}

/// naga marks an atomic operation as a load and a store, and sees through every pointer to a buffer: none can be passed
/// to a function. A variable of which only the length is asked counts as read.
fn access(used: GlobalUse) -> Access {
    match (used.contains(GlobalUse::READ), used.contains(GlobalUse::WRITE)) {
        (true, true) => Access::ReadWrite,
        (false, true) => Access::Write,
        (_, false) => Access::Read,
    }
}

/// Stride of the runtime-sized array that `ty` is or ends with.
pub(crate) fn runtime_stride(ir: &naga::Module, ty: Handle<Type>) -> Option<u32> {
    match ir.types[ty].inner {
        TypeInner::Array { size: ArraySize::Dynamic, stride, .. } => Some(stride),
        TypeInner::Struct { ref members, .. } => runtime_stride(ir, members.last()?.ty),
        _ => None,
    }
}

/// The whole type, with one element of a runtime-sized array.
///
/// naga counts one element of a runtime-sized array in the size of the type already, padding included.
fn min_bytes(ir: &naga::Module, layouter: &Layouter, ty: Handle<Type>) -> u64 {
    match ir.types[ty].inner {
        TypeInner::Array { size: ArraySize::Dynamic, stride, .. } => u64::from(stride),
        TypeInner::Struct { ref members, span } => match members.last() {
            Some(last) if runtime_stride(ir, last.ty).is_some() => {
                u64::from(last.offset) + min_bytes(ir, layouter, last.ty)
            }
            _ => u64::from(span),
        },
        _ => u64::from(layouter[ty].size),
    }
}

/// The one scalar that the whole type is made of.
fn only_scalar(ir: &naga::Module, ty: Handle<Type>) -> Option<Scalar> {
    match ir.types[ty].inner {
        TypeInner::Scalar(scalar)
        | TypeInner::Vector { scalar, .. }
        | TypeInner::Matrix { scalar, .. }
        | TypeInner::Atomic(scalar) => Some(scalar),
        TypeInner::Array { base, .. } => only_scalar(ir, base),
        TypeInner::Struct { ref members, .. } => {
            let mut scalars = members.iter().map(|member| only_scalar(ir, member.ty));
            let first = scalars.next()??;
            scalars.all(|scalar| scalar == Some(first)).then_some(first)
        }
        _ => None,
    }
}

fn scalar(scalar: Scalar) -> Option<kernel::Scalar> {
    use kernel::Scalar as S;
    Some(match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 2) => S::F16,
        (ScalarKind::Float, 4) => S::F32,
        (ScalarKind::Float, 8) => S::F64,
        (ScalarKind::Sint, 2) => S::I16,
        (ScalarKind::Sint, 4) => S::I32,
        (ScalarKind::Sint, 8) => S::I64,
        (ScalarKind::Uint, 2) => S::U16,
        (ScalarKind::Uint, 4) => S::U32,
        (ScalarKind::Uint, 8) => S::U64,
        _ => return None,
    })
}

/// The features that the module uses: by its types, the types of its expressions, its statements and its built-ins.
fn features(ir: &naga::Module, info: &ModuleInfo) -> Features {
    let mut features = Features::default();
    for (_, ty) in ir.types.iter() {
        of_type(&ty.inner, &mut features);
    }
    for (handle, function) in ir.functions.iter() {
        of_function(ir, function, &info[handle], &mut features);
    }
    for (index, entry) in ir.entry_points.iter().enumerate() {
        of_function(ir, &entry.function, info.get_entry_point(index), &mut features);
    }
    features
}

fn of_type(inner: &TypeInner, features: &mut Features) {
    let scalar = match *inner {
        TypeInner::Atomic(scalar) => {
            features.i64_atomics |= scalar.width == 8;
            features.f32_atomics |= scalar.kind == ScalarKind::Float;
            scalar
        }
        TypeInner::Struct { ref members, .. } => {
            for member in members {
                of_binding(member.binding.as_ref(), features);
            }
            return;
        }
        _ => match inner.scalar() {
            Some(scalar) => scalar,
            None => return,
        },
    };
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 2) => features.f16 = true,
        (ScalarKind::Float, 8) => features.f64 = true,
        (ScalarKind::Sint | ScalarKind::Uint, 2) => features.i16 = true,
        (ScalarKind::Sint | ScalarKind::Uint, 8) => features.i64 = true,
        _ => {}
    }
}

fn of_binding(binding: Option<&naga::Binding>, features: &mut Features) {
    use BuiltIn as B;
    if let Some(naga::Binding::BuiltIn(
        B::NumSubgroups | B::SubgroupId | B::SubgroupSize | B::SubgroupInvocationId,
    )) = binding
    {
        features.subgroups = true;
    }
}

fn of_function(
    ir: &naga::Module,
    function: &Function,
    info: &naga::valid::FunctionInfo,
    features: &mut Features,
) {
    for argument in &function.arguments {
        of_binding(argument.binding.as_ref(), features);
    }
    for (handle, expression) in function.expressions.iter() {
        if matches!(expression, Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. })
        {
            features.subgroups = true;
        }
        if let TypeResolution::Value(ref inner) = info[handle].ty {
            of_type(inner, features);
        } else {
            of_type(info[handle].ty.inner_with(&ir.types), features);
        }
    }
    of_block(&function.body, features);
}

fn of_block(block: &naga::Block, features: &mut Features) {
    for statement in block.iter() {
        match *statement {
            Statement::Block(ref block) => of_block(block, features),
            Statement::If { ref accept, ref reject, .. } => {
                of_block(accept, features);
                of_block(reject, features);
            }
            Statement::Switch { ref cases, .. } => {
                cases.iter().for_each(|case| of_block(&case.body, features))
            }
            Statement::Loop { ref body, ref continuing, .. } => {
                of_block(body, features);
                of_block(continuing, features);
            }
            Statement::ControlBarrier(barrier) | Statement::MemoryBarrier(barrier) => {
                features.subgroups |= barrier.contains(naga::Barrier::SUB_GROUP);
            }
            _ => {}
        }
    }
}
