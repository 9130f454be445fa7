//! One entry point with its overrides replaced by values.

use naga::{
    Scalar, ScalarKind, ShaderStage,
    back::{
        PipelineConstants,
        pipeline_constants::{PipelineConstantError, process_overrides},
    },
    compact::{KeepUnused, compact},
    valid::ModuleInfo,
};
use onebuf_core::kernel::{KernelInterface, Override};

use crate::{
    Error,
    error::Diagnostic,
    module::{capabilities, scalar_name, scalar_of, validate},
    reflect, stack, unsupported,
};

/// One compute entry point of a module, with every override replaced by its value and everything it does not use left
/// out.
#[derive(Debug)]
pub struct Specialized {
    pub(crate) ir: naga::Module,
    pub(crate) info: ModuleInfo,
    pub(crate) interface: KernelInterface,
    pub(crate) source: String,
}

impl Specialized {
    /// What a host must bind, and what a device must have.
    pub fn interface(&self) -> &KernelInterface {
        &self.interface
    }

    /// The source text of the module.
    pub fn source(&self) -> &str {
        &self.source
    }
}

pub(crate) fn specialize(
    module: &naga::Module,
    source: &str,
    entry: Option<&str>,
    overrides: &[Override],
) -> Result<Specialized, Error> {
    let index = find_entry(module, entry)?;
    let values = resolve(module, overrides)?;
    stack::run(move || {
        let mut ir = module.clone();
        let entry = ir.entry_points.swap_remove(index);
        let name = entry.name.clone();
        ir.entry_points = vec![entry];
        compact(&mut ir, KeepUnused::No);
        unsupported::check(&ir, source)?;
        let info = validate(&ir, capabilities(), source)?;

        let mut constants = PipelineConstants::default();
        for (_, constant) in ir.overrides.iter() {
            let key = key(constant);
            match values.iter().find(|(known, _)| *known == key) {
                Some((_, value)) => {
                    constants.insert(key, *value);
                }
                None if constant.init.is_none() => {
                    let ty = scalar_of(&ir, constant.ty).map_or("?", scalar_name).to_owned();
                    return Err(Error::MissingOverride { name: display_name(constant), ty });
                }
                None => {}
            }
        }
        let (ir, info) = process_overrides(&ir, &info, Some((ShaderStage::Compute, &name)), &constants)
            .map_err(|error| override_error(error, source))?;
        let (ir, info) = (ir.into_owned(), info.into_owned());
        let interface = reflect::interface(&ir, &info).map_err(Error::Internal)?;
        Ok(Specialized { ir, info, interface, source: source.to_owned() })
    })
}

fn find_entry(module: &naga::Module, asked: Option<&str>) -> Result<usize, Error> {
    let compute = |entry: &naga::EntryPoint| entry.stage == ShaderStage::Compute;
    let available = || -> Vec<String> {
        module.entry_points.iter().filter(|entry| compute(entry)).map(|entry| entry.name.clone()).collect()
    };
    let found = match asked {
        Some(name) => module.entry_points.iter().position(|entry| entry.name == name && compute(entry)),
        None => match available().as_slice() {
            [_] => module.entry_points.iter().position(compute),
            _ => None,
        },
    };
    if let Some(index) = found {
        return Ok(index);
    }
    let other_stage = module.entry_points.iter().find(|entry| Some(entry.name.as_str()) == asked);
    if let Some(other) = other_stage {
        return Err(Error::NotCompute {
            entry: other.name.clone(),
            stage: format!("{:?}", other.stage).to_lowercase(),
        });
    }
    Err(Error::EntryPoint { asked: asked.map(str::to_owned), available: available() })
}

/// The key by which naga knows an override: its id where it has one.
fn key(constant: &naga::Override) -> String {
    match constant.id {
        Some(id) => id.to_string(),
        None => constant.name.clone().unwrap_or_default(),
    }
}

fn display_name(constant: &naga::Override) -> String {
    constant.name.clone().unwrap_or_else(|| key(constant))
}

/// Checks each given value against its constant, and keys it as naga wants.
fn resolve(module: &naga::Module, overrides: &[Override]) -> Result<Vec<(String, f64)>, Error> {
    let mut values: Vec<(String, f64)> = Vec::with_capacity(overrides.len());
    for given in overrides {
        let named = |constant: &naga::Override| {
            constant.name.as_deref() == Some(given.name.as_str())
                || constant.id.is_some_and(|id| id.to_string() == given.name)
        };
        let Some((_, constant)) = module.overrides.iter().find(|(_, constant)| named(constant)) else {
            let available = module.overrides.iter().map(|(_, constant)| display_name(constant)).collect();
            return Err(Error::UnknownOverride { name: given.name.clone(), available });
        };
        check_value(module, constant, given.value)?;
        let key = key(constant);
        if values.iter().any(|(known, _)| *known == key) {
            return Err(Error::DuplicateOverride { name: display_name(constant) });
        }
        values.push((key, given.value));
    }
    Ok(values)
}

fn check_value(module: &naga::Module, constant: &naga::Override, value: f64) -> Result<(), Error> {
    let Some(scalar) = scalar_of(module, constant.ty) else { return Ok(()) };
    let allowed = match allowed_values(scalar) {
        Allowed::Bool if value == 0.0 || value == 1.0 => return Ok(()),
        Allowed::Integers(low, high) if value.fract() == 0.0 && value >= low && value <= high => {
            return Ok(());
        }
        Allowed::Floats(max) if value.is_finite() && value.abs() <= max => return Ok(()),
        Allowed::Bool => "give 0 or 1".to_owned(),
        Allowed::Integers(low, high) => format!("give a whole number from {low} to {high}"),
        Allowed::Floats(max) => format!("give a finite number within ±{max:e}"),
    };
    let ty = scalar_name(scalar).to_owned();
    Err(Error::OverrideValue { name: display_name(constant), ty, value, allowed })
}

enum Allowed {
    Bool,
    Integers(f64, f64),
    Floats(f64),
}

fn allowed_values(scalar: Scalar) -> Allowed {
    /// Past this, neighbouring integers share one f64.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => Allowed::Bool,
        (ScalarKind::Sint, 2) => Allowed::Integers(f64::from(i16::MIN), f64::from(i16::MAX)),
        (ScalarKind::Uint, 2) => Allowed::Integers(0.0, f64::from(u16::MAX)),
        (ScalarKind::Sint, 4) => Allowed::Integers(f64::from(i32::MIN), f64::from(i32::MAX)),
        (ScalarKind::Uint, 4) => Allowed::Integers(0.0, f64::from(u32::MAX)),
        (ScalarKind::Sint, _) => Allowed::Integers(-EXACT, EXACT),
        (ScalarKind::Uint, _) => Allowed::Integers(0.0, EXACT),
        (ScalarKind::Float, 2) => Allowed::Floats(65504.0),
        (ScalarKind::Float, 4) => Allowed::Floats(f64::from(f32::MAX)),
        _ => Allowed::Floats(f64::MAX),
    }
}

fn override_error(error: PipelineConstantError, source: &str) -> Error {
    match error {
        PipelineConstantError::ValidationError(error) => {
            Error::Specialization(Diagnostic::from_with_span(&error, source).to_string())
        }
        other => Error::Specialization(other.to_string()),
    }
}
