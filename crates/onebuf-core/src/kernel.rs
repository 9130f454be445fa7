//! What a kernel looks like from outside: its entry point, its bindings, its immediates and what it needs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place of a resource in a kernel: `@group(group) @binding(binding)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// Number of the bind group.
    pub group: u32,
    /// Number of the binding in its group.
    pub binding: u32,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@group({}) @binding({})", self.group, self.binding)
    }
}

/// The address space a binding lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindingKind {
    /// `var<storage>`.
    Storage,
    /// `var<uniform>`.
    Uniform,
}

/// What a kernel does with a binding. It is what the entry point *does*, not what the declaration allows:
/// a `read_write` binding that is only loaded from is [`Access::Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Loads only.
    Read,
    /// Stores only.
    Write,
    /// Loads and stores; atomics count as both.
    ReadWrite,
}

impl Access {
    /// True for [`Access::Read`] and [`Access::ReadWrite`].
    pub fn reads(self) -> bool {
        !matches!(self, Access::Write)
    }

    /// True for [`Access::Write`] and [`Access::ReadWrite`].
    pub fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "read-write",
        })
    }
}

/// A scalar type, as an element of a buffer or a member of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Scalar {
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Scalar {
    /// Size in bytes.
    pub fn size_bytes(self) -> u32 {
        match self {
            Scalar::I8 | Scalar::U8 => 1,
            Scalar::F16 | Scalar::I16 | Scalar::U16 => 2,
            Scalar::F32 | Scalar::I32 | Scalar::U32 => 4,
            Scalar::F64 | Scalar::I64 | Scalar::U64 => 8,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scalar::F16 => "f16",
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
            Scalar::I8 => "i8",
            Scalar::I16 => "i16",
            Scalar::I32 => "i32",
            Scalar::I64 => "i64",
            Scalar::U8 => "u8",
            Scalar::U16 => "u16",
            Scalar::U32 => "u32",
            Scalar::U64 => "u64",
        })
    }
}

/// One resource that a kernel's entry point uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Where it is bound.
    pub slot: Slot,
    /// The variable's name in the source, for messages and for binding by name.
    pub name: String,
    /// The type as the source writes it (`array<vec4<f32>>`), for messages.
    pub ty: String,
    /// Its address space.
    pub kind: BindingKind,
    /// What the entry point does with it.
    pub access: Access,
    /// The least number of bytes that may be bound: the whole type, with one element of a runtime-sized array.
    pub min_bytes: u64,
    /// Stride in bytes of the runtime-sized array that the type ends with, if it does.
    pub stride_bytes: Option<u32>,
    /// The one scalar that the whole type is made of, where there is one (`array<vec2<f32>>` gives `f32`).
    pub scalar: Option<Scalar>,
}

/// Optional features of the language that a kernel uses and a device must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// Half-precision floats in arithmetic and in storage buffers.
    pub f16: bool,
    /// Double-precision floats.
    pub f64: bool,
    /// 16-bit integers in arithmetic and in storage buffers.
    pub i16: bool,
    /// 64-bit integers.
    pub i64: bool,
    /// 64-bit integer atomics in storage buffers.
    pub i64_atomics: bool,
    /// `f32` atomic addition in storage buffers.
    pub f32_atomics: bool,
    /// Subgroup operations.
    pub subgroups: bool,
}

impl Features {
    /// Every feature on.
    pub const ALL: Features = Features {
        f16: true,
        f64: true,
        i16: true,
        i64: true,
        i64_atomics: true,
        f32_atomics: true,
        subgroups: true,
    };

    /// The WGSL or field name of each feature with whether it is on.
    pub fn named(self) -> [(&'static str, bool); 7] {
        [
            ("f16", self.f16),
            ("f64", self.f64),
            ("i16", self.i16),
            ("i64", self.i64),
            ("i64-atomics", self.i64_atomics),
            ("f32-atomics", self.f32_atomics),
            ("subgroups", self.subgroups),
        ]
    }

    /// The names that are on in `self` and off in `available`.
    pub fn missing_from(self, available: Features) -> Vec<&'static str> {
        self.named()
            .into_iter()
            .zip(available.named())
            .filter(|((_, needed), (_, have))| *needed && !*have)
            .map(|((name, _), _)| name)
            .collect()
    }
}

/// The interface of one entry point after overrides have been applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInterface {
    /// Name of the entry point.
    pub entry: String,
    /// Invocations in a workgroup along x, y, z.
    pub workgroup_size: [u32; 3],
    /// The resources the entry point uses, sorted by slot. Resources it does not use are not listed.
    pub bindings: Vec<Binding>,
    /// Size in bytes of the `var<immediate>` the entry point uses; 0 without one.
    pub immediate_bytes: u32,
    /// Bytes of workgroup memory that the entry point uses.
    pub workgroup_bytes: u64,
    /// Language features that the module uses.
    pub features: Features,
}

impl KernelInterface {
    /// Invocations in one workgroup; `u64::MAX` where the product is past it.
    pub fn invocations(&self) -> u64 {
        self.workgroup_size.iter().fold(1, |product: u64, &size| product.saturating_mul(u64::from(size)))
    }

    /// Position in [`KernelInterface::bindings`] of the binding with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.bindings.iter().position(|binding| binding.name == name)
    }
}

/// The value of a pipeline-overridable constant. Booleans are 0 and 1; integers are exact up to 2^53.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The constant's name, or its `@id` in decimal digits.
    pub name: String,
    /// Its value.
    pub value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_are_named() {
        let needed = Features { f16: true, subgroups: true, ..Features::default() };
        let available = Features { subgroups: true, ..Features::default() };
        assert_eq!(needed.missing_from(available), ["f16"]);
        assert!(needed.missing_from(Features::ALL).is_empty());
    }

    #[test]
    fn access_is_what_the_kernel_does() {
        assert!(Access::Read.reads() && !Access::Read.writes());
        assert!(Access::Write.writes() && !Access::Write.reads());
        assert!(Access::ReadWrite.reads() && Access::ReadWrite.writes());
    }
}
