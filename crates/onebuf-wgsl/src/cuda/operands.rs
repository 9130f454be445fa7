//! The expressions that an expression is made of.

use naga::{Block, Expression, Handle, Statement};

/// Calls `visit` on each direct operand.
pub(super) fn visit(expression: &Expression, mut visit: impl FnMut(Handle<Expression>)) {
    match *expression {
        Expression::Compose { ref components, .. } => components.iter().copied().for_each(visit),
        Expression::Access { base, index } => {
            visit(base);
            visit(index);
        }
        Expression::AccessIndex { base, .. } => visit(base),
        Expression::Splat { value, .. } => visit(value),
        Expression::Swizzle { vector, .. } => visit(vector),
        Expression::Load { pointer } => visit(pointer),
        Expression::Unary { expr, .. } | Expression::As { expr, .. } | Expression::ArrayLength(expr) => {
            visit(expr)
        }
        Expression::Binary { left, right, .. } => {
            visit(left);
            visit(right);
        }
        Expression::Select { condition, accept, reject } => {
            visit(condition);
            visit(accept);
            visit(reject);
        }
        Expression::Relational { argument, .. } => visit(argument),
        Expression::Math { arg, arg1, arg2, arg3, .. } => {
            [Some(arg), arg1, arg2, arg3].into_iter().flatten().for_each(visit);
        }
        // The others have no operands, or are not of kernels.
        _ => {}
    }
}

/// Calls `visit` on each expression that a statement of `block` names, at any depth of nesting.
pub(super) fn visit_block(block: &Block, visit: &mut impl FnMut(Handle<Expression>)) {
    for statement in block.iter() {
        match *statement {
            Statement::Emit(ref range) => range.clone().for_each(&mut *visit),
            Statement::Block(ref block) => visit_block(block, visit),
            Statement::If { condition, ref accept, ref reject } => {
                visit(condition);
                visit_block(accept, visit);
                visit_block(reject, visit);
            }
            Statement::Switch { selector, ref cases } => {
                visit(selector);
                cases.iter().for_each(|case| visit_block(&case.body, visit));
            }
            Statement::Loop { ref body, ref continuing, break_if } => {
                visit_block(body, visit);
                visit_block(continuing, visit);
                break_if.into_iter().for_each(&mut *visit);
            }
            Statement::Return { value } => value.into_iter().for_each(&mut *visit),
            Statement::Store { pointer, value } => {
                visit(pointer);
                visit(value);
            }
            Statement::Atomic { pointer, value, ref fun, .. } => {
                visit(pointer);
                visit(value);
                if let naga::AtomicFunction::Exchange { compare: Some(compare) } = *fun {
                    visit(compare);
                }
            }
            Statement::WorkGroupUniformLoad { pointer, .. } => visit(pointer),
            Statement::Call { ref arguments, .. } => arguments.iter().copied().for_each(&mut *visit),
            Statement::SubgroupBallot { predicate, .. } => predicate.into_iter().for_each(&mut *visit),
            Statement::SubgroupGather { argument, mode, .. } => {
                visit(argument);
                use naga::GatherMode as G;
                match mode {
                    G::Broadcast(index)
                    | G::Shuffle(index)
                    | G::ShuffleDown(index)
                    | G::ShuffleUp(index)
                    | G::ShuffleXor(index)
                    | G::QuadBroadcast(index) => visit(index),
                    G::BroadcastFirst | G::QuadSwap(_) => {}
                }
            }
            Statement::SubgroupCollectiveOperation { argument, .. } => visit(argument),
            _ => {}
        }
    }
}
