//! Expressions: values, and the places that pointers point to.

use naga::{
    AddressSpace, Arena, BinaryOperator as Op, Expression, GatherMode, Handle, Literal, MathFunction,
    RelationalFunction, Scalar, ScalarKind, SwizzleComponent, TypeInner, UnaryOperator,
    proc::{BoundsCheckPolicy, IndexableLength, NameKey, index::GuardedIndex},
};

use super::{Fault, builtins, function::FunctionWriter, literal::literal, module::ModuleWriter};

const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];

/// Whether C++'s arithmetic operators on the value mean what WGSL's mean: so they do for floats and for integers of 32 and
/// 64 bits without a sign, and the prelude has operators for vectors and matrices.
fn has_plain_arithmetic(inner: &TypeInner) -> bool {
    match *inner {
        TypeInner::Scalar(Scalar { kind: ScalarKind::Uint, width }) => width >= 4,
        TypeInner::Scalar(scalar) => scalar.kind == ScalarKind::Float,
        TypeInner::Vector { scalar, .. } => scalar.kind != ScalarKind::Bool,
        TypeInner::Matrix { .. } => true,
        _ => false,
    }
}

/// At most this many bytes of CUDA C++ in composed values, each counted with what it is composed of.
const MOST_COMPOSED_BYTES: usize = 16 << 20;

impl<'a> ModuleWriter<'a> {
    /// Counts the text of a composed value. It is written out wherever it stands, and a kilobyte of WGSL can say gigabytes
    /// of it: an array of two arrays of two arrays.
    fn count_composed(&self, bytes: usize) -> Result<(), Fault> {
        self.composed_bytes.set(self.composed_bytes.get().saturating_add(bytes));
        if self.composed_bytes.get() > MOST_COMPOSED_BYTES {
            return Err(Fault(format!(
                "composed values of more than {} MiB of text; put large tables in a buffer",
                MOST_COMPOSED_BYTES >> 20
            )));
        }
        Ok(())
    }

    /// A constant expression of the module.
    pub(super) fn constant_expression(&self, handle: Handle<Expression>) -> Result<String, Fault> {
        let arena = &self.ir.global_expressions;
        self.constant_form(handle, arena, &|operand| self.constant_expression(operand), &|handle| {
            Ok(naga_type_of_constant(self, handle, arena))
        })
        .unwrap_or_else(|| {
            Err(Fault(format!("the constant expression {:?} is not evaluated", arena[handle])))
        })
    }

    /// The forms that constants and other expressions share; `None` for the others.
    fn constant_form(
        &self,
        handle: Handle<Expression>,
        arena: &Arena<Expression>,
        operand: &dyn Fn(Handle<Expression>) -> Result<String, Fault>,
        type_of: &dyn Fn(Handle<Expression>) -> Result<Option<Scalar>, Fault>,
    ) -> Option<Result<String, Fault>> {
        let form = || -> Result<Option<String>, Fault> {
            Ok(Some(match arena[handle] {
                Expression::Literal(value) => literal(value)?,
                Expression::Constant(constant) => match self.tables.contains(&constant) {
                    true => self.names.get(NameKey::Constant(constant)).to_owned(),
                    false => self.constant_expression(self.ir.constants[constant].init)?,
                },
                Expression::ZeroValue(ty) => format!("{}{{}}", self.types.name(ty)?),
                Expression::Compose { ty, ref components } => {
                    let values = components
                        .iter()
                        .map(|component| operand(*component))
                        .collect::<Result<Vec<_>, _>>()?;
                    let name = self.types.name(ty)?;
                    let text = match self.ir.types[ty].inner {
                        TypeInner::Array { .. } => format!("{name}{{{{{{{}}}}}}}", values.join("}, {")),
                        TypeInner::Matrix { .. } => format!("wg_mat({})", values.join(", ")),
                        TypeInner::Struct { .. } if values.is_empty() => format!("{name}{{}}"),
                        _ => format!("{name}({})", values.join(", ")),
                    };
                    self.count_composed(text.len())?;
                    text
                }
                Expression::Splat { size, value } => {
                    let text = operand(value)?;
                    match type_of(value)? {
                        Some(scalar) => {
                            format!("{}({text})", self.types.inner_name(&TypeInner::Vector { size, scalar })?)
                        }
                        None => return Err(Fault("a splat of no scalar".to_owned())),
                    }
                }
                _ => return Ok(None),
            }))
        };
        form().transpose()
    }
}

/// The scalar type of a constant, where it is one.
fn naga_type_of_constant(
    writer: &ModuleWriter<'_>,
    handle: Handle<Expression>,
    arena: &Arena<Expression>,
) -> Option<Scalar> {
    match arena[handle] {
        Expression::Literal(value) => Some(value.scalar()),
        Expression::ZeroValue(ty) => writer.ir.types[ty].inner.scalar(),
        Expression::Constant(constant) => writer.ir.types[writer.ir.constants[constant].ty].inner.scalar(),
        _ => None,
    }
}

impl FunctionWriter<'_, '_> {
    /// The value of an expression: its name where it has one.
    pub(super) fn value(&self, handle: Handle<Expression>) -> Result<String, Fault> {
        match self.named.get(&handle) {
            Some(name) => Ok(name.clone()),
            None => self.expression(handle),
        }
    }

    /// The expression itself.
    pub(super) fn expression(&self, handle: Handle<Expression>) -> Result<String, Fault> {
        let arena = &self.function.expressions;
        let shared = self.module.constant_form(handle, arena, &|operand| self.value(operand), &|handle| {
            Ok(self.inner(handle).scalar())
        });
        if let Some(text) = shared {
            return text;
        }
        match arena[handle] {
            Expression::FunctionArgument(index) => Ok(self.argument_name(index).to_owned()),
            Expression::Access { base, index } => {
                let text = self.value(base)?;
                match *self.inner(base) {
                    TypeInner::Vector { .. } => Ok(format!("wg_get({text}, {})", self.index(index)?)),
                    _ => Ok(format!("{text}[{}]", self.checked_index(handle, index)?)),
                }
            }
            Expression::AccessIndex { base, index } => self.member(&self.value(base)?, base, index),
            Expression::Swizzle { size, vector, pattern } => {
                let components: Vec<String> = pattern[..size as usize]
                    .iter()
                    .map(|component: &SwizzleComponent| (*component as u8).to_string())
                    .collect();
                Ok(format!("wg_swizzle<{}>({})", components.join(", "), self.value(vector)?))
            }
            Expression::Load { pointer } => self.load(pointer),
            Expression::Unary { op, expr } => self.unary(op, expr),
            Expression::Binary { op, left, right } => self.binary(op, left, right),
            Expression::Select { condition, accept, reject } => {
                let (condition_text, accept, reject) =
                    (self.value(condition)?, self.value(accept)?, self.value(reject)?);
                Ok(match *self.inner(condition) {
                    TypeInner::Vector { .. } => format!("wg_select({condition_text}, {accept}, {reject})"),
                    _ => format!("({condition_text} ? {accept} : {reject})"),
                })
            }
            Expression::Relational { fun, argument } => {
                let function = match fun {
                    RelationalFunction::All => "wg_all",
                    RelationalFunction::Any => "wg_any",
                    RelationalFunction::IsNan => "wg_isnan",
                    RelationalFunction::IsInf => "wg_isinf",
                };
                Ok(format!("{function}({})", self.value(argument)?))
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let arguments = [Some(arg), arg1, arg2, arg3]
                    .into_iter()
                    .flatten()
                    .map(|argument| self.value(argument))
                    .collect::<Result<Vec<_>, _>>()?
                    .join(", ");
                let function = builtins::math(fun)?;
                Ok(match fun {
                    MathFunction::Modf | MathFunction::Frexp => {
                        format!("{function}<{}>({arguments})", self.type_name(handle)?)
                    }
                    _ => format!("{function}({arguments})"),
                })
            }
            Expression::As { expr, kind, convert } => self.cast(handle, expr, kind, convert),
            Expression::ArrayLength(pointer) => self.array_length(pointer),
            ref other => Err(Fault(format!("no C++ for the expression {other:?}"))),
        }
    }

    fn unary(&self, op: UnaryOperator, operand: Handle<Expression>) -> Result<String, Fault> {
        let text = self.value(operand)?;
        let inner = self.inner(operand);
        Ok(match op {
            UnaryOperator::Negate => match *inner {
                TypeInner::Scalar(Scalar { kind: ScalarKind::Sint, .. }) => format!("wg_neg({text})"),
                _ => format!("(-{text})"),
            },
            UnaryOperator::LogicalNot => match *inner {
                TypeInner::Vector { .. } => format!("wg_lnot({text})"),
                _ => format!("(!{text})"),
            },
            UnaryOperator::BitwiseNot => format!("wg_not({text})"),
        })
    }

    fn binary(&self, op: Op, left: Handle<Expression>, right: Handle<Expression>) -> Result<String, Fault> {
        let (left_text, right_text) = (self.value(left)?, self.value(right)?);
        let (left_inner, right_inner) = (self.inner(left), self.inner(right));
        let scalars = matches!((left_inner, right_inner), (TypeInner::Scalar(_), TypeInner::Scalar(_)));
        let (left_plain, right_plain) = (has_plain_arithmetic(left_inner), has_plain_arithmetic(right_inner));
        // Of a vector and a scalar, the vector decides.
        let plain_arithmetic = if scalars { left_plain && right_plain } else { left_plain || right_plain };
        let is_float = left_inner.scalar_kind() == Some(ScalarKind::Float);
        let symbol = match op {
            Op::Add if plain_arithmetic => "+",
            Op::Subtract if plain_arithmetic => "-",
            Op::Multiply if plain_arithmetic => "*",
            Op::Divide if plain_arithmetic && (is_float || !scalars) => "/",
            Op::Equal if scalars => "==",
            Op::NotEqual if scalars => "!=",
            Op::Less if scalars => "<",
            Op::LessEqual if scalars => "<=",
            Op::Greater if scalars => ">",
            Op::GreaterEqual if scalars => ">=",
            Op::LogicalAnd if scalars => "&&",
            Op::LogicalOr if scalars => "||",
            Op::And if scalars && plain_arithmetic => "&",
            Op::ExclusiveOr if scalars && plain_arithmetic => "^",
            Op::InclusiveOr if scalars && plain_arithmetic => "|",
            Op::ShiftLeft | Op::ShiftRight
                if scalars && plain_arithmetic && self.is_shift_within(left_inner, right) =>
            {
                if op == Op::ShiftLeft { "<<" } else { ">>" }
            }
            _ => return Ok(format!("{}({left_text}, {right_text})", builtins::operator_function(op))),
        };
        Ok(format!("({left_text} {symbol} {right_text})"))
    }

    /// Whether the amount is a literal below the width, so that it needs no mask.
    fn is_shift_within(&self, shifted: &TypeInner, amount: Handle<Expression>) -> bool {
        let bits = u32::from(shifted.scalar_width().unwrap_or(0)) * 8;
        matches!(self.function.expressions[amount], Expression::Literal(Literal::U32(amount)) if amount < bits)
    }

    fn cast(
        &self,
        result: Handle<Expression>,
        operand: Handle<Expression>,
        kind: ScalarKind,
        convert: Option<u8>,
    ) -> Result<String, Fault> {
        let text = self.value(operand)?;
        let from = self.inner(operand).scalar();
        let Some(width) = convert else {
            return Ok(if from.is_some_and(|scalar| scalar.kind == kind) {
                text
            } else {
                format!("wg_bitcast<{}>({text})", self.type_name(result)?)
            });
        };
        let to = Scalar { kind, width };
        if from == Some(to) {
            return Ok(text);
        }
        Ok(format!("wg_cast<{}>({text})", crate::module::scalar_name(to)))
    }

    fn array_length(&self, pointer: Handle<Expression>) -> Result<String, Fault> {
        let variable = self.global_of(pointer).ok_or_else(|| Fault("the length of no buffer".to_owned()))?;
        self.module.length_name(variable)
    }

    /// An index as `u32`.
    pub(super) fn index(&self, index: Handle<Expression>) -> Result<String, Fault> {
        let text = self.value(index)?;
        if let Expression::Literal(literal) = self.function.expressions[index]
            && let Literal::I32(value) = literal
            && value >= 0
        {
            return Ok(format!("{value}u"));
        }
        Ok(match self.inner(index).scalar_kind() {
            Some(ScalarKind::Uint) => text,
            _ => format!("u32({text})"),
        })
    }

    /// The index of the access `access`, clamped where that is how it is kept in bounds.
    fn checked_index(&self, access: Handle<Expression>, index: Handle<Expression>) -> Result<String, Fault> {
        let text = self.index(index)?;
        match self.check(access) {
            Some(check) if check.policy == BoundsCheckPolicy::Restrict => match check.length {
                IndexableLength::Known(length) => Ok(format!("wg_clamp_index({text}, {length}u)")),
                IndexableLength::Dynamic => {
                    Err(Fault("a runtime-sized array outside of a buffer".to_owned()))
                }
            },
            _ => Ok(text),
        }
    }

    /// A constant member of a value or place.
    fn member(&self, base_text: &str, base: Handle<Expression>, index: u32) -> Result<String, Fault> {
        let ty = match self.info[base].ty {
            naga::proc::TypeResolution::Handle(handle) => Some(handle),
            naga::proc::TypeResolution::Value(_) => None,
        };
        let (ty, inner) = match *self.inner(base) {
            TypeInner::Pointer { base, .. } => (Some(base), &self.module.ir.types[base].inner),
            ref inner => (ty, inner),
        };
        Ok(match *inner {
            TypeInner::Struct { .. } => {
                let ty = ty.ok_or_else(|| Fault("a struct without a type".to_owned()))?;
                format!("{base_text}.{}", self.module.names.get(NameKey::StructMember(ty, index)))
            }
            TypeInner::Vector { .. } | TypeInner::ValuePointer { .. } => {
                let component =
                    COMPONENTS.get(index as usize).ok_or_else(|| Fault("a fifth component".to_owned()))?;
                format!("{base_text}.{component}")
            }
            _ => format!("{base_text}[{index}u]"),
        })
    }

    /// The place that a pointer points to.
    pub(super) fn place(&self, pointer: Handle<Expression>) -> Result<String, Fault> {
        self.place_with(pointer, false)
    }

    /// The place that a pointer points to; with `clamp`, a place inside of the buffer whatever the indices are.
    fn place_with(&self, pointer: Handle<Expression>, clamp: bool) -> Result<String, Fault> {
        if clamp && let Some((index, length)) = self.compared(pointer)? {
            let (Expression::Access { base, .. } | Expression::AccessIndex { base, .. }) =
                self.function.expressions[pointer]
            else {
                return Err(Fault("an index without an access".to_owned()));
            };
            let (text, index) = (self.place_with(base, clamp)?, format!("wg_clamp_index({index}, {length})"));
            return Ok(if self.is_vector(base) {
                format!("wg_at({text}, {index})")
            } else {
                format!("{text}[{index}]")
            });
        }
        match self.function.expressions[pointer] {
            Expression::GlobalVariable(variable) => Ok(self.module.global_place(variable)),
            Expression::LocalVariable(variable) => Ok(self.local_name(variable).to_owned()),
            Expression::FunctionArgument(index) => Ok(self.argument_name(index).to_owned()),
            Expression::AccessIndex { base, index } => {
                self.member(&self.place_with(base, clamp)?, base, index)
            }
            Expression::Access { base, index } => {
                let (text, index) = (self.place_with(base, clamp)?, self.checked_index(pointer, index)?);
                Ok(if self.is_vector(base) {
                    format!("wg_at({text}, {index})")
                } else {
                    format!("{text}[{index}]")
                })
            }
            ref other => Err(Fault(format!("no place for the pointer {other:?}"))),
        }
    }

    /// Whether `pointer` points to a vector.
    fn is_vector(&self, pointer: Handle<Expression>) -> bool {
        match *self.inner(pointer) {
            TypeInner::Pointer { base, .. } => {
                matches!(self.module.ir.types[base].inner, TypeInner::Vector { .. })
            }
            TypeInner::ValuePointer { size: Some(_), .. } => true,
            _ => false,
        }
    }

    /// The vector in registers and the dynamic index, where `pointer` is such a component.
    pub(super) fn register_component(
        &self,
        pointer: Handle<Expression>,
    ) -> Result<Option<(String, String)>, Fault> {
        let Expression::Access { base, index } = self.function.expressions[pointer] else { return Ok(None) };
        let in_registers =
            matches!(self.inner(base).pointer_space(), Some(AddressSpace::Function | AddressSpace::Private));
        if !self.is_vector(base) || !in_registers {
            return Ok(None);
        }
        Ok(Some((self.place(base)?, self.index(index)?)))
    }

    /// The condition under which every index on the way to `pointer` is in range; empty where it always holds.
    pub(super) fn condition(&self, mut pointer: Handle<Expression>) -> Result<String, Fault> {
        let mut conditions = Vec::new();
        while let Expression::Access { base, .. } | Expression::AccessIndex { base, .. } =
            self.function.expressions[pointer]
        {
            if let Some((index, length)) = self.compared(pointer)? {
                conditions.push(format!("{index} < {length}"));
            }
            pointer = base;
        }
        conditions.reverse();
        Ok(conditions.join(" && "))
    }

    /// The index and the length that an access to a buffer compares.
    fn compared(&self, access: Handle<Expression>) -> Result<Option<(String, String)>, Fault> {
        let Some(check) = self.check(access) else { return Ok(None) };
        let (Expression::Access { base, .. } | Expression::AccessIndex { base, .. }) =
            self.function.expressions[access]
        else {
            return Ok(None);
        };
        if check.policy != BoundsCheckPolicy::ReadZeroSkipWrite {
            return Ok(None);
        }
        let index = match check.index {
            GuardedIndex::Known(index) => format!("{index}u"),
            GuardedIndex::Expression(index) => self.index(index)?,
        };
        let length = match check.length {
            IndexableLength::Known(length) => format!("{length}u"),
            IndexableLength::Dynamic => self.array_length(base)?,
        };
        Ok(Some((index, length)))
    }

    /// Whether `pointer` points to an atomic.
    pub(super) fn is_atomic(&self, pointer: Handle<Expression>) -> bool {
        self.inner(pointer).is_atomic_pointer(&self.module.ir.types)
    }

    /// Whether plain accesses through `pointer` must reach memory each time.
    pub(super) fn is_volatile(&self, pointer: Handle<Expression>) -> bool {
        self.global_of(pointer)
            .is_some_and(|variable| !self.module.ir.global_variables[variable].memory_decorations.is_empty())
    }

    fn load(&self, pointer: Handle<Expression>) -> Result<String, Fault> {
        if let Some((vector, index)) = self.register_component(pointer)? {
            return Ok(format!("wg_get({vector}, {index})"));
        }
        let condition = self.condition(pointer)?;
        let is_plain = !self.is_atomic(pointer) && !self.is_volatile(pointer);
        if !condition.is_empty() && is_plain && self.is_small(pointer) {
            // From a place inside of the buffer, so that no branch stands before the load, and what is not there is dropped
            // behind it: loads that follow one another then wait together.
            return Ok(format!("wg_if({condition}, {})", self.place_with(pointer, true)?));
        }
        let place = self.place(pointer)?;
        let text = if self.is_atomic(pointer) {
            format!("wg_atomic_load({place})")
        } else if self.is_volatile(pointer) {
            format!("wg_volatile_load({place})")
        } else {
            place
        };
        if condition.is_empty() {
            return Ok(text);
        }
        Ok(format!("({condition} ? {text} : {}{{}})", self.pointee_name(pointer)?))
    }

    /// Whether a scalar or a vector is behind `pointer`.
    fn is_small(&self, pointer: Handle<Expression>) -> bool {
        match *self.inner(pointer) {
            TypeInner::Pointer { base, .. } => {
                matches!(self.module.ir.types[base].inner, TypeInner::Scalar(_) | TypeInner::Vector { .. })
            }
            TypeInner::ValuePointer { .. } => true,
            _ => false,
        }
    }

    /// The type of the value behind `pointer`.
    pub(super) fn pointee_name(&self, pointer: Handle<Expression>) -> Result<String, Fault> {
        match *self.inner(pointer) {
            TypeInner::Pointer { base, .. } => match self.module.ir.types[base].inner {
                TypeInner::Atomic(scalar) => self.module.types.inner_name(&TypeInner::Scalar(scalar)),
                _ => self.module.types.name(base),
            },
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                self.module.types.inner_name(&TypeInner::Vector { size, scalar })
            }
            TypeInner::ValuePointer { size: None, scalar, .. } => {
                self.module.types.inner_name(&TypeInner::Scalar(scalar))
            }
            ref other => Err(Fault(format!("{other:?} is no pointer"))),
        }
    }

    /// The lane that a gather reads.
    pub(super) fn gather_lane(&self, mode: GatherMode) -> Result<String, Fault> {
        use naga::Direction;
        Ok(match mode {
            GatherMode::BroadcastFirst => String::new(),
            GatherMode::Broadcast(lane) | GatherMode::Shuffle(lane) => self.index(lane)?,
            GatherMode::ShuffleDown(delta) => format!("wg_lane() + {}", self.index(delta)?),
            GatherMode::ShuffleUp(delta) => format!("wg_lane() - {}", self.index(delta)?),
            GatherMode::ShuffleXor(mask) => format!("wg_lane() ^ {}", self.index(mask)?),
            GatherMode::QuadBroadcast(lane) => format!("(wg_lane() & ~3u) | ({} & 3u)", self.index(lane)?),
            GatherMode::QuadSwap(Direction::X) => "wg_lane() ^ 1u".to_owned(),
            GatherMode::QuadSwap(Direction::Y) => "wg_lane() ^ 2u".to_owned(),
            GatherMode::QuadSwap(Direction::Diagonal) => "wg_lane() ^ 3u".to_owned(),
        })
    }
}
