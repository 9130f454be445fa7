//! What integers can be at most, so that indices which are surely in range are not checked.
//!
//! A bound says that a value, read as an unsigned number, is not above it. Bounds come from literals, from the place in the
//! workgroup, from the counters of loops with a literal limit, and from arithmetic on these that cannot wrap.

use naga::{
    BinaryOperator as Op, Binding, Block, BuiltIn, Expression, Function, Handle, Literal, LocalVariable,
    MathFunction, Scalar, ScalarKind, Statement, TypeInner, valid::FunctionInfo,
};

use super::unroll::{guard, is_local, literal, loaded, step};

/// The bounds of a function's expressions.
pub(super) struct Ranges(Vec<Option<u32>>);

impl Ranges {
    /// The bounds in `function`, run by workgroups of `size`.
    pub(super) fn of(
        module: &naga::Module,
        function: &Function,
        info: &FunctionInfo,
        size: [u32; 3],
    ) -> Ranges {
        let mut bounds: Vec<Option<u32>> = vec![None; function.expressions.len()];
        counters(function, &function.body, &mut bounds);
        for (handle, expression) in function.expressions.iter() {
            let of = |operand: Handle<Expression>| bounds[operand.index()];
            let TypeInner::Scalar(Scalar { kind: kind @ (ScalarKind::Uint | ScalarKind::Sint), width: 4 }) =
                *info[handle].ty.inner_with(&module.types)
            else {
                continue;
            };
            // What is above this would be negative.
            let largest = if kind == ScalarKind::Sint { i32::MAX as u32 } else { u32::MAX };
            let bound = match *expression {
                Expression::Literal(Literal::U32(value)) => Some(value),
                Expression::Literal(Literal::I32(value)) => u32::try_from(value).ok(),
                Expression::FunctionArgument(index) => match function.arguments[index as usize].binding {
                    Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex)) => size
                        .iter()
                        .try_fold(1u32, |product, &axis| product.checked_mul(axis))
                        .map(|all| all - 1),
                    Some(Binding::BuiltIn(BuiltIn::SubgroupInvocationId)) => Some(31),
                    _ => None,
                },
                Expression::AccessIndex { base, index } => match function.expressions[base] {
                    Expression::FunctionArgument(argument) => {
                        match function.arguments[argument as usize].binding {
                            Some(Binding::BuiltIn(BuiltIn::LocalInvocationId)) => {
                                size.get(index as usize).and_then(|size| size.checked_sub(1))
                            }
                            _ => None,
                        }
                    }
                    _ => None,
                },
                Expression::Binary { op, left, right } => match (op, of(left), of(right)) {
                    (Op::Add, Some(a), Some(b)) => a.checked_add(b),
                    (Op::Multiply, Some(a), Some(b)) => a.checked_mul(b),
                    (Op::And, a, b) => [a, b].into_iter().flatten().min(),
                    // A divisor of zero gives the dividend, and a remainder of zero.
                    (Op::Divide, Some(a), Some(_)) => Some(a / literal(function, right).unwrap_or(1).max(1)),
                    (Op::Divide, Some(a), None) if kind == ScalarKind::Uint => Some(a),
                    (Op::Modulo, Some(a), Some(b)) => Some(a.min(b.saturating_sub(1))),
                    (Op::Modulo, Some(a), None) if kind == ScalarKind::Uint => Some(a),
                    (Op::Modulo, None, Some(b)) if kind == ScalarKind::Uint => Some(b.saturating_sub(1)),
                    (Op::ShiftRight, Some(a), _) => Some(a >> (literal(function, right).unwrap_or(0) & 31)),
                    _ => None,
                },
                Expression::Select { accept, reject, .. } => match (of(accept), of(reject)) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                },
                Expression::Math { fun: MathFunction::Min, arg, arg1: Some(other), .. } => {
                    match (of(arg), of(other)) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (one, other) if kind == ScalarKind::Uint => one.or(other),
                        _ => None,
                    }
                }
                Expression::As {
                    expr,
                    kind: ScalarKind::Uint | ScalarKind::Sint,
                    convert: Some(4) | None,
                } => of(expr),
                // Found by what stands around it.
                Expression::Load { .. } => of(handle),
                _ => None,
            };
            bounds[handle.index()] = bound.filter(|&bound| bound <= largest);
        }
        Ranges(bounds)
    }

    /// Whether the value of `expression` is surely below `length`.
    pub(super) fn is_below(&self, expression: Handle<Expression>, length: u32) -> bool {
        self.0.get(expression.index()).copied().flatten().is_some_and(|bound| bound < length)
    }
}

/// Notes what loads of counters give: inside of `loop { if !(variable < LITERAL) { break; } ... }`, where nothing but
/// `continuing` stores to the variable, it is below the literal.
fn counters(function: &Function, block: &Block, bounds: &mut [Option<u32>]) {
    for statement in block {
        if let Statement::Loop { ref body, ref continuing, .. } = *statement
            && let Some((place, variable, limit)) = guard(function, body)
            && limit > 0
            && is_fresh(function, body, place)
            && !stores(function, body, variable)
            && let Some(bound) = last(function, continuing, variable, limit)
                .or_else(|| is_unsigned(function, body, place).then_some(limit - 1))
        {
            for statement in body.iter().skip(place + 1) {
                note(function, statement, variable, bound, bounds);
            }
        }
        inner_blocks(statement).into_iter().for_each(|block| counters(function, block, bounds));
    }
}

/// Gives the loads of `variable` in a statement their bound.
fn note(
    function: &Function,
    statement: &Statement,
    variable: Handle<LocalVariable>,
    bound: u32,
    bounds: &mut [Option<u32>],
) {
    if let Statement::Emit(ref range) = *statement {
        for expression in range.clone().filter(|&expression| loaded(function, expression) == Some(variable)) {
            bounds[expression.index()] = Some(bound);
        }
    }
    for block in inner_blocks(statement) {
        block.iter().for_each(|statement| note(function, statement, variable, bound, bounds));
    }
}

/// Whether the counter that stands in the condition at `place` has been loaded in the same turn of the loop.
fn is_fresh(function: &Function, body: &Block, place: usize) -> bool {
    let Some(Statement::If { condition, .. }) = body.get(place) else { return false };
    let Expression::Binary { left, .. } = function.expressions[*condition] else { return false };
    body.iter().take(place).any(|statement| match *statement {
        Statement::Emit(ref range) => range.clone().any(|expression| expression == left),
        _ => false,
    })
}

/// Whether anything in `block` may store to `variable`.
fn stores(function: &Function, block: &Block, variable: Handle<LocalVariable>) -> bool {
    block.iter().any(|statement| {
        let here = match *statement {
            Statement::Store { pointer, .. } => is_local(function, pointer, variable),
            Statement::Call { ref arguments, .. } => {
                arguments.iter().any(|&argument| is_local(function, argument, variable))
            }
            _ => false,
        };
        here || inner_blocks(statement).into_iter().any(|block| stores(function, block, variable))
    })
}

/// The most that a counter is inside of its loop, below `limit`: where it is only ever set to literals, and grows by a literal
/// in `continuing` alone, the last number on its way.
fn last(function: &Function, continuing: &Block, variable: Handle<LocalVariable>, limit: u32) -> Option<u32> {
    let mut values = Vec::new();
    if !written(function, &function.body, variable, &mut values) {
        return None;
    }
    let (mut starts, mut steps) = (vec![0], Vec::new());
    if let Some(init) = function.local_variables[variable].init {
        starts = vec![literal(function, init)?];
    }
    for value in values {
        match literal(function, value) {
            Some(start) => starts.push(start),
            None => steps.push((value, step(function, value, variable)?)),
        }
    }
    let [(value, step)] = steps[..] else { return None };
    let here = continuing.iter().any(|statement| match *statement {
        Statement::Store { value: stored, .. } => stored == value,
        _ => false,
    });
    if !here || step.checked_add(limit)? > i32::MAX as u32 {
        return None;
    }
    starts.iter().filter_map(|start| Some(start + (limit - 1).checked_sub(*start)? / step * step)).max()
}

/// Collects what is stored to `variable`. False where something else may be.
fn written(
    function: &Function,
    block: &Block,
    variable: Handle<LocalVariable>,
    values: &mut Vec<Handle<Expression>>,
) -> bool {
    block.iter().all(|statement| {
        let known = match *statement {
            Statement::Store { pointer, value } if is_local(function, pointer, variable) => {
                values.push(value);
                true
            }
            Statement::Call { ref arguments, .. } => {
                !arguments.iter().any(|&argument| is_local(function, argument, variable))
            }
            _ => true,
        };
        known && inner_blocks(statement).into_iter().all(|block| written(function, block, variable, values))
    })
}

/// Whether the condition at `place` compares with a literal that has no sign.
fn is_unsigned(function: &Function, body: &Block, place: usize) -> bool {
    let Some(Statement::If { condition, .. }) = body.get(place) else { return false };
    let Expression::Binary { right, .. } = function.expressions[*condition] else { return false };
    matches!(function.expressions[right], Expression::Literal(Literal::U32(_)))
}

fn inner_blocks(statement: &Statement) -> Vec<&Block> {
    match *statement {
        Statement::Block(ref block) => vec![block],
        Statement::If { ref accept, ref reject, .. } => vec![accept, reject],
        Statement::Switch { ref cases, .. } => cases.iter().map(|case| &case.body).collect(),
        Statement::Loop { ref body, ref continuing, .. } => vec![body, continuing],
        _ => Vec::new(),
    }
}
