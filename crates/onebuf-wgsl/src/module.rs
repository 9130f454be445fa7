//! Parsing and validating a source.

use std::sync::Arc;

use naga::{
    Expression, Literal, Scalar, ScalarKind, ShaderStage, TypeInner,
    common::DiagnosticDisplay,
    valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
};
use onebuf_core::kernel::Override;

use crate::{Error, Specialized, error::Diagnostic, immediates, nesting, specialize, stack};

/// The capabilities that a kernel on buffers may use. Textures, samplers, ray queries and cooperative matrices are not
/// among them; which of these a device has is checked later, against [`onebuf_core::kernel::Features`].
pub(crate) fn capabilities() -> Capabilities {
    Capabilities::IMMEDIATES
        | Capabilities::FLOAT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SHADER_INT16
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_INT64_ATOMIC_MIN_MAX
        | Capabilities::SHADER_INT64_ATOMIC_ALL_OPS
        | Capabilities::SHADER_FLOAT32_ATOMIC
        | Capabilities::SUBGROUP
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::MEMORY_DECORATION_VOLATILE
}

/// A parsed and validated WGSL module. Clones share it.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Parsed>,
}

#[derive(Debug)]
struct Parsed {
    ir: naga::Module,
    source: String,
}

/// A pipeline-overridable constant of a module.
#[derive(Clone, Debug, PartialEq)]
pub struct OverrideInfo {
    /// Its name in the source.
    pub name: String,
    /// Its `@id`, if it has one; then it can be named by these decimal digits as well.
    pub id: Option<u16>,
    /// Its WGSL type: `bool`, `i32`, `u32`, `f32`, `f16`, ...
    pub ty: &'static str,
    /// What it is without a value.
    pub default: OverrideDefault,
}

/// What an override is when it is given no value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OverrideDefault {
    /// It has no default: a value must be given.
    Required,
    /// This value. Booleans are 0 and 1.
    Value(f64),
    /// Computed from other overrides.
    Computed,
}

impl Module {
    /// Parses and validates `source`.
    ///
    /// # Errors
    /// [`Error::Parse`], [`Error::Validation`] and [`Error::Unsupported`], each with the line marked, and
    /// [`Error::TooDeep`]. Other stages may stand in the module; textures and samplers may too, as long as no compute
    /// entry point that is specialized uses them.
    pub fn parse(source: &str) -> Result<Module, Error> {
        nesting::check(source)?;
        let ir = stack::run(|| {
            let ir = naga::front::wgsl::parse_str(source)
                .map_err(|error| Error::Parse(Diagnostic::from_parse_error(&error, source)))?;
            immediates::check(&ir, source)?;
            // Other entry points may use what a kernel cannot; they are dropped before the strict validation.
            validate(&ir, Capabilities::all(), source)?;
            Ok(ir)
        })?;
        Ok(Module { inner: Arc::new(Parsed { ir, source: source.to_owned() }) })
    }

    /// The source text that was parsed.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// Names of the compute entry points, in the order of the source.
    pub fn entry_points(&self) -> impl Iterator<Item = &str> {
        let entries = self.inner.ir.entry_points.iter();
        entries.filter(|entry| entry.stage == ShaderStage::Compute).map(|entry| entry.name.as_str())
    }

    /// The pipeline-overridable constants, in the order of the source.
    pub fn overrides(&self) -> impl Iterator<Item = OverrideInfo> {
        let ir = &self.inner.ir;
        ir.overrides.iter().map(|(_, constant)| OverrideInfo {
            name: constant.name.clone().unwrap_or_default(),
            id: constant.id,
            ty: scalar_of(ir, constant.ty).map_or("?", scalar_name),
            default: match constant.init.map(|init| &ir.global_expressions[init]) {
                None => OverrideDefault::Required,
                Some(Expression::Literal(literal)) => {
                    literal_value(*literal).map_or(OverrideDefault::Computed, OverrideDefault::Value)
                }
                Some(Expression::ZeroValue(_)) => OverrideDefault::Value(0.0),
                Some(_) => OverrideDefault::Computed,
            },
        })
    }

    /// Chooses an entry point (`None`: the only one) and gives the overrides their values.
    ///
    /// # Errors
    /// [`Error::EntryPoint`], [`Error::NotCompute`], [`Error::UnknownOverride`], [`Error::DuplicateOverride`],
    /// [`Error::MissingOverride`], [`Error::OverrideValue`], [`Error::Specialization`], and [`Error::Unsupported`] for
    /// what this entry point uses.
    pub fn specialize(&self, entry: Option<&str>, overrides: &[Override]) -> Result<Specialized, Error> {
        specialize::specialize(&self.inner.ir, self.source(), entry, overrides)
    }
}

pub(crate) fn validate(
    ir: &naga::Module,
    capabilities: Capabilities,
    source: &str,
) -> Result<ModuleInfo, Error> {
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(ir)
        .map_err(|error| Error::Validation(Diagnostic::from_with_span(&error, source)))
}

pub(crate) fn scalar_of(ir: &naga::Module, ty: naga::Handle<naga::Type>) -> Option<Scalar> {
    match ir.types[ty].inner {
        TypeInner::Scalar(scalar) => Some(scalar),
        _ => None,
    }
}

pub(crate) fn scalar_name(scalar: Scalar) -> &'static str {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => "bool",
        (ScalarKind::Sint, 2) => "i16",
        (ScalarKind::Sint, 4) => "i32",
        (ScalarKind::Sint, 8) => "i64",
        (ScalarKind::Uint, 2) => "u16",
        (ScalarKind::Uint, 4) => "u32",
        (ScalarKind::Uint, 8) => "u64",
        (ScalarKind::Float, 2) => "f16",
        (ScalarKind::Float, 4) => "f32",
        (ScalarKind::Float, 8) => "f64",
        _ => "?",
    }
}

/// A type as the source writes it.
pub(crate) fn type_name(ir: &naga::Module, ty: naga::Handle<naga::Type>) -> String {
    DiagnosticDisplay((ty, ir.to_ctx())).to_string()
}

fn literal_value(literal: Literal) -> Option<f64> {
    Some(match literal {
        Literal::F64(value) => value,
        Literal::F32(value) => f64::from(value),
        Literal::F16(value) => f64::from(value),
        Literal::U16(value) => f64::from(value),
        Literal::I16(value) => f64::from(value),
        Literal::U32(value) => f64::from(value),
        Literal::I32(value) => f64::from(value),
        Literal::U64(value) => value as f64,
        Literal::I64(value) => value as f64,
        Literal::Bool(value) => f64::from(u8::from(value)),
        Literal::AbstractInt(_) | Literal::AbstractFloat(_) => return None,
    })
}
