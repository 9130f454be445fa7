//! Loops that are worth unrolling whole: short, with a length known here.
//!
//! A local array can only live in registers when every index into it is known, and NVRTC unrolls the loops around it
//! reluctantly. So loops of the form `for (var i = ...; i < LITERAL; i += LITERAL)` say so, while what they grow to is
//! small.

use naga::{BinaryOperator as Op, Block, Expression, Function, Handle, Literal, LocalVariable, Statement};

/// The most statements that a loop may be unrolled to.
const LARGEST: u32 = 2048;

/// Whether a loop should carry `#pragma unroll`.
pub(super) fn is_worth_unrolling(function: &Function, body: &Block, continuing: &Block) -> bool {
    turns(function, body, continuing)
        .is_some_and(|turns| turns.saturating_mul(statements(function, body)) <= LARGEST)
}

/// The most turns that the loop can take, if that is plain to see.
fn turns(function: &Function, body: &Block, continuing: &Block) -> Option<u32> {
    let (_, variable, limit) = guard(function, body)?;
    let step = continuing.iter().find_map(|statement| match *statement {
        Statement::Store { pointer, value } if is_local(function, pointer, variable) => {
            step(function, value, variable)
        }
        _ => None,
    })?;
    Some(limit.div_ceil(step))
}

/// `if !(variable < literal) { break; }` in the body of a loop: its place there, the variable and the first number that is
/// not below.
pub(super) fn guard(function: &Function, body: &Block) -> Option<(usize, Handle<LocalVariable>, u32)> {
    body.iter().enumerate().find_map(|(place, statement)| match *statement {
        Statement::If { condition, ref accept, ref reject } if accept.is_empty() => match reject.as_ref() {
            [Statement::Break] => {
                limit(function, condition).map(|(variable, limit)| (place, variable, limit))
            }
            _ => None,
        },
        _ => None,
    })
}

/// `variable < literal`, as the variable and the first number that is not below.
fn limit(function: &Function, condition: Handle<Expression>) -> Option<(Handle<LocalVariable>, u32)> {
    let Expression::Binary { op, left, right } = function.expressions[condition] else { return None };
    let limit = literal(function, right)?;
    let limit = match op {
        Op::Less => limit,
        Op::LessEqual => limit.checked_add(1)?,
        _ => return None,
    };
    Some((loaded(function, left)?, limit))
}

/// `variable + literal`, as the literal.
pub(super) fn step(
    function: &Function,
    value: Handle<Expression>,
    variable: Handle<LocalVariable>,
) -> Option<u32> {
    match function.expressions[value] {
        Expression::Binary { op: Op::Add, left, right } if loaded(function, left) == Some(variable) => {
            literal(function, right).filter(|&step| step > 0)
        }
        _ => None,
    }
}

pub(super) fn literal(function: &Function, expression: Handle<Expression>) -> Option<u32> {
    match function.expressions[expression] {
        Expression::Literal(Literal::U32(value)) => Some(value),
        Expression::Literal(Literal::I32(value)) => u32::try_from(value).ok(),
        _ => None,
    }
}

pub(super) fn loaded(function: &Function, expression: Handle<Expression>) -> Option<Handle<LocalVariable>> {
    let Expression::Load { pointer } = function.expressions[expression] else { return None };
    match function.expressions[pointer] {
        Expression::LocalVariable(variable) => Some(variable),
        _ => None,
    }
}

pub(super) fn is_local(
    function: &Function,
    pointer: Handle<Expression>,
    variable: Handle<LocalVariable>,
) -> bool {
    matches!(function.expressions[pointer], Expression::LocalVariable(found) if found == variable)
}

/// How many statements run, where loops of a known length count as often as they turn.
fn statements(function: &Function, block: &Block) -> u32 {
    let of = |statement: &Statement| match *statement {
        Statement::Emit(_) => 0,
        Statement::Block(ref block) => statements(function, block),
        Statement::If { ref accept, ref reject, .. } => {
            statements(function, accept).saturating_add(statements(function, reject)).saturating_add(1)
        }
        Statement::Switch { ref cases, .. } => {
            cases.iter().fold(1u32, |sum, case| sum.saturating_add(statements(function, &case.body)))
        }
        Statement::Loop { ref body, ref continuing, .. } => {
            statements(function, body).saturating_mul(turns(function, body, continuing).unwrap_or(1).max(1))
        }
        // What is called is not looked into; it is taken to be of some size.
        Statement::Call { .. } => 8,
        _ => 1,
    };
    block.iter().fold(0u32, |sum, statement| sum.saturating_add(of(statement)))
}
