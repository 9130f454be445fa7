//! Types: their names in C++, and the structs laid out as naga lays them out.

use std::fmt::Write as _;

use naga::{
    ArraySize, Handle, Module, Scalar, Type, TypeInner,
    proc::{IndexableLength, Layouter, NameKey, TypeResolution},
};

use super::{Fault, names::Names};
use crate::module::scalar_name;

pub(super) struct Types<'a> {
    ir: &'a Module,
    names: &'a Names,
    layouter: Layouter,
}

impl<'a> Types<'a> {
    pub(super) fn new(ir: &'a Module, names: &'a Names) -> Result<Types<'a>, Fault> {
        let mut layouter = Layouter::default();
        layouter.update(ir.to_ctx()).map_err(|error| Fault(error.to_string()))?;
        Ok(Types { ir, names, layouter })
    }

    pub(super) fn size_bytes(&self, ty: Handle<Type>) -> u32 {
        self.layouter[ty].size
    }

    pub(super) fn alignment_bytes(&self, ty: Handle<Type>) -> u32 {
        self.layouter[ty].alignment.round_up(1)
    }

    /// The name of `ty` in C++.
    pub(super) fn name(&self, ty: Handle<Type>) -> Result<String, Fault> {
        match self.ir.types[ty].inner {
            TypeInner::Struct { .. } => Ok(self.names.get(NameKey::Type(ty)).to_owned()),
            ref inner => self.inner_name(inner),
        }
    }

    pub(super) fn resolution_name(&self, ty: &TypeResolution) -> Result<String, Fault> {
        match *ty {
            TypeResolution::Handle(handle) => self.name(handle),
            TypeResolution::Value(ref inner) => self.inner_name(inner),
        }
    }

    pub(super) fn inner_name(&self, inner: &TypeInner) -> Result<String, Fault> {
        Ok(match *inner {
            TypeInner::Scalar(scalar) => scalar_name(scalar).to_owned(),
            TypeInner::Vector { size, scalar } => format!("vec{}<{}>", size as u8, scalar_name(scalar)),
            TypeInner::Matrix { columns, rows, scalar } => {
                format!("mat<{}, {}, {}>", scalar_name(scalar), columns as u8, rows as u8)
            }
            TypeInner::Atomic(scalar) => format!("atomic<{}>", scalar_name(scalar)),
            // Sizes by override stay as they are in naga's module, and resolve to its values.
            TypeInner::Array { base, size, .. } => match size.resolve(self.ir.to_ctx()) {
                Ok(IndexableLength::Known(length)) => format!("array<{}, {length}>", self.name(base)?),
                Ok(IndexableLength::Dynamic) => format!("runtime_array<{}>", self.name(base)?),
                Err(error) => return Err(Fault(error.to_string())),
            },
            _ => return Err(Fault(format!("no C++ for the type {inner:?}"))),
        })
    }

    /// True for types that end with a runtime-sized array or hold atomics: they have no values.
    fn is_memory_only(&self, ty: Handle<Type>) -> bool {
        match self.ir.types[ty].inner {
            TypeInner::Atomic(_) | TypeInner::Array { size: ArraySize::Dynamic, .. } => true,
            TypeInner::Array { base, .. } => self.is_memory_only(base),
            TypeInner::Struct { ref members, .. } => {
                members.iter().any(|member| self.is_memory_only(member.ty))
            }
            _ => false,
        }
    }

    fn is_runtime_sized(&self, ty: Handle<Type>) -> bool {
        self.ir.types[ty].inner.is_dynamically_sized(&self.ir.types)
    }

    /// The alignment that C++ gives to the type: as in WGSL, but for a vec3, which is three scalars.
    fn cpp_alignment(&self, ty: Handle<Type>) -> u32 {
        match self.ir.types[ty].inner {
            TypeInner::Vector { size: naga::VectorSize::Tri, scalar: Scalar { width, .. } } => {
                u32::from(width)
            }
            _ => self.alignment_bytes(ty),
        }
    }

    /// Whether a value of the type can be written as a constant initializer: matrices are made by code, and so are structs
    /// with padding, which is left as it is.
    pub(super) fn is_constant_initializer(&self, ty: Handle<Type>) -> bool {
        match self.ir.types[ty].inner {
            TypeInner::Scalar(_) | TypeInner::Vector { .. } => true,
            TypeInner::Array { base, .. } => self.is_constant_initializer(base),
            TypeInner::Struct { ref members, span } => {
                let bytes: u32 = members.iter().map(|member| self.size_bytes(member.ty)).sum();
                bytes == span && members.iter().all(|member| self.is_constant_initializer(member.ty))
            }
            _ => false,
        }
    }

    /// Prints every struct of the module, with explicit padding and an assertion on each offset.
    pub(super) fn write_structs(&self, out: &mut String) -> Result<(), Fault> {
        for (handle, ty) in self.ir.types.iter() {
            if let TypeInner::Struct { ref members, span } = ty.inner {
                self.write_struct(handle, members, span, out)?;
            }
        }
        Ok(())
    }

    fn write_struct(
        &self,
        handle: Handle<Type>,
        members: &[naga::StructMember],
        span: u32,
        out: &mut String,
    ) -> Result<(), Fault> {
        let name = self.names.get(NameKey::Type(handle));
        let alignment = self.alignment_bytes(handle);
        // The results of `modf` and `frexp` are never in memory that is shared, and naga does not round their size.
        let span = span.next_multiple_of(alignment.max(1));
        let mut end = 0u32;
        let mut paddings = 0;
        let mut asserts = String::new();
        let mut parameters = Vec::new();
        let mut initializers = Vec::new();
        let mut body = String::new();
        for (index, member) in members.iter().enumerate() {
            let member_name = self.names.get(NameKey::StructMember(handle, index as u32));
            let member_type = self.name(member.ty)?;
            let natural = end.next_multiple_of(self.cpp_alignment(member.ty).max(1));
            if natural != member.offset {
                let bytes = member
                    .offset
                    .checked_sub(end)
                    .ok_or_else(|| Fault(format!("`{name}` overlaps itself")))?;
                _ = writeln!(body, "    u8 wg_pad{paddings}[{bytes}];");
                paddings += 1;
            }
            _ = writeln!(body, "    {member_type} {member_name};");
            _ = writeln!(
                asserts,
                "static_assert(__builtin_offsetof({name}, {member_name}) == {}, \"layout\");",
                member.offset
            );
            parameters.push(format!("{member_type} {member_name}"));
            initializers.push(format!("{member_name}({member_name})"));
            end = member.offset + self.size_bytes(member.ty);
        }
        let runtime_sized = self.is_runtime_sized(handle);
        if !runtime_sized {
            if end.next_multiple_of(alignment) != span {
                let bytes = span
                    .checked_sub(end)
                    .ok_or_else(|| Fault(format!("`{name}` is larger than its size")))?;
                _ = writeln!(body, "    u8 wg_pad{paddings}[{bytes}];");
            }
            _ = writeln!(asserts, "static_assert(sizeof({name}) == {span}, \"layout\");");
        }
        _ = writeln!(out, "struct alignas({alignment}) {name} {{\n{body}");
        if !self.is_memory_only(handle) && !members.is_empty() {
            // The rest of the lines of the struct.
            out.truncate(out.trim_end().len());
            let explicit = if members.len() == 1 { "explicit " } else { "" };
            let constructor =
                if self.is_constant_initializer(handle) { "WG_CTOR" } else { "__device__ __forceinline__" };
            _ = writeln!(
                out,
                "\n    {name}() = default;\n    {constructor} {explicit}{name}({}) : {} {{}}",
                parameters.join(", "),
                initializers.join(", ")
            );
        } else {
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        _ = writeln!(out, "}};\n{asserts}");
        Ok(())
    }
}
