//! Which subgroup operations run in flow that all threads of a subgroup share.
//!
//! There the threads that take part are known in advance, and a fixed mask is both right and fast. Elsewhere only the
//! hardware knows who is there. The analysis is on the side of "elsewhere": a value is shared when every thread of a
//! subgroup surely has the same, a local variable when every store to it is of a shared value in shared flow.

use std::collections::HashSet;

use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable, Module, Statement,
    StorageAccess,
};

use super::operands;

/// What is known of one function.
#[derive(Default)]
pub(super) struct Uniformity {
    /// Results of subgroup operations in shared flow.
    pub(super) shared_operations: HashSet<Handle<Expression>>,
    /// Functions that are called in flow that is not shared.
    divergent_calls: HashSet<Handle<Function>>,
}

/// Analyzes the entry point and every function, callers first. The last is the entry point.
pub(super) fn analyze(ir: &Module) -> (Vec<Uniformity>, Uniformity) {
    let entry =
        ir.entry_points.first().map(|entry| of_function(ir, &entry.function, true)).unwrap_or_default();
    let mut divergent: HashSet<Handle<Function>> = entry.divergent_calls.clone();
    // Functions are stored callees first.
    let handles: Vec<Handle<Function>> = ir.functions.iter().map(|(handle, _)| handle).collect();
    let mut functions: Vec<Uniformity> = Vec::new();
    for handle in handles.into_iter().rev() {
        let uniformity = of_function(ir, &ir.functions[handle], !divergent.contains(&handle));
        divergent.extend(uniformity.divergent_calls.iter().copied());
        functions.push(uniformity);
    }
    functions.reverse();
    (functions, entry)
}

fn of_function(ir: &Module, function: &Function, shared_entry: bool) -> Uniformity {
    let mut pass = Pass {
        ir,
        function,
        divergent_locals: HashSet::new(),
        divergent_values: HashSet::new(),
        found: Uniformity::default(),
    };
    loop {
        let before = pass.divergent_locals.len();
        pass.divergent_values.clear();
        pass.found = Uniformity::default();
        let mut flow = Flow { shared: shared_entry, returned: false };
        pass.block(&function.body, &mut flow);
        if pass.divergent_locals.len() == before {
            return pass.found;
        }
    }
}

struct Pass<'a> {
    ir: &'a Module,
    function: &'a Function,
    divergent_locals: HashSet<Handle<LocalVariable>>,
    /// Values seen so far that differ between threads.
    divergent_values: HashSet<Handle<Expression>>,
    found: Uniformity,
}

/// The state of the flow at a statement.
#[derive(Clone, Copy)]
struct Flow {
    /// All threads of the subgroup are here together.
    shared: bool,
    /// Some threads may have returned.
    returned: bool,
}

impl Pass<'_> {
    fn is_shared(&self, expression: Handle<Expression>) -> bool {
        !self.divergent_values.contains(&expression) && self.is_shared_leaf(expression)
    }

    /// For expressions that are not emitted by a statement.
    fn is_shared_leaf(&self, expression: Handle<Expression>) -> bool {
        match self.function.expressions[expression] {
            Expression::FunctionArgument(index) => {
                let binding = self
                    .function
                    .arguments
                    .get(index as usize)
                    .and_then(|argument| argument.binding.as_ref());
                matches!(
                    binding,
                    Some(Binding::BuiltIn(
                        BuiltIn::WorkGroupId
                            | BuiltIn::NumWorkGroups
                            | BuiltIn::WorkGroupSize
                            | BuiltIn::NumSubgroups
                            | BuiltIn::SubgroupSize
                            | BuiltIn::SubgroupId
                    ))
                )
            }
            Expression::CallResult(_) | Expression::AtomicResult { .. } => false,
            _ => true,
        }
    }

    fn operands_shared(&self, expression: Handle<Expression>) -> bool {
        let mut shared = true;
        operands::visit(&self.function.expressions[expression], |operand| shared &= self.is_shared(operand));
        shared
    }

    fn emit(&mut self, expression: Handle<Expression>, flow: &Flow) {
        let shared = match self.function.expressions[expression] {
            Expression::Load { pointer } => self.is_shared(pointer) && self.is_shared_memory(pointer),
            _ => self.operands_shared(expression),
        };
        // A value that only some threads compute has no meaning for the others.
        if !shared || !flow.shared {
            self.divergent_values.insert(expression);
        }
    }

    /// Whether all threads that load through `pointer` surely find the same.
    fn is_shared_memory(&self, mut pointer: Handle<Expression>) -> bool {
        loop {
            match self.function.expressions[pointer] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
                Expression::LocalVariable(variable) => return !self.divergent_locals.contains(&variable),
                Expression::GlobalVariable(variable) => {
                    return match self.ir.global_variables[variable].space {
                        AddressSpace::Uniform | AddressSpace::Immediate => true,
                        AddressSpace::Storage { access } => !access.contains(StorageAccess::STORE),
                        _ => false,
                    };
                }
                _ => return false,
            }
        }
    }

    fn store(&mut self, mut pointer: Handle<Expression>, shared: bool) {
        loop {
            match self.function.expressions[pointer] {
                Expression::Access { base, index } => {
                    if !self.is_shared(index) {
                        return self.store(base, false);
                    }
                    pointer = base;
                }
                Expression::AccessIndex { base, .. } => pointer = base,
                Expression::LocalVariable(variable) => {
                    if !shared {
                        self.divergent_locals.insert(variable);
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    fn subgroup_result(&mut self, result: Handle<Expression>, flow: &Flow, shared_result: bool) {
        if flow.shared && !flow.returned {
            self.found.shared_operations.insert(result);
        }
        if !shared_result || !flow.shared || flow.returned {
            self.divergent_values.insert(result);
        }
    }

    fn block(&mut self, block: &Block, flow: &mut Flow) {
        for statement in block.iter() {
            self.statement(statement, flow);
        }
    }

    /// A part that only the threads with the same `condition` run.
    fn branch(&mut self, block: &Block, shared_condition: bool, flow: &mut Flow) {
        let mut inner = Flow { shared: flow.shared && shared_condition, ..*flow };
        self.block(block, &mut inner);
        flow.returned |= inner.returned;
    }

    fn statement(&mut self, statement: &Statement, flow: &mut Flow) {
        match *statement {
            Statement::Emit(ref range) => range.clone().for_each(|expression| self.emit(expression, flow)),
            Statement::Block(ref block) => self.block(block, flow),
            Statement::If { condition, ref accept, ref reject } => {
                let shared = self.is_shared(condition);
                self.branch(accept, shared, flow);
                self.branch(reject, shared, flow);
            }
            Statement::Switch { selector, ref cases } => {
                let shared = self.is_shared(selector);
                cases.iter().for_each(|case| self.branch(&case.body, shared, flow));
            }
            Statement::Loop { ref body, ref continuing, break_if } => {
                // A first walk finds what leaves the loop; then the walk that counts.
                let mut probe = *flow;
                let found = std::mem::take(&mut self.found);
                let stays_together = self.leaves_together(body, true, &mut probe);
                self.block(continuing, &mut probe);
                let stays_together =
                    stays_together && break_if.is_none_or(|condition| self.is_shared(condition));
                self.found = found;
                let mut inner = Flow { shared: flow.shared && stays_together, ..*flow };
                self.block(body, &mut inner);
                self.block(continuing, &mut inner);
                flow.returned |= inner.returned;
            }
            Statement::Return { .. } if !flow.shared => flow.returned = true,
            Statement::Store { pointer, value } => {
                let shared = flow.shared && !flow.returned && self.is_shared(value);
                self.store(pointer, shared);
            }
            Statement::Atomic { result: Some(result), .. } => {
                self.divergent_values.insert(result);
            }
            Statement::Call { function, ref arguments, result } => {
                for argument in arguments {
                    self.store(*argument, false);
                }
                if !flow.shared || flow.returned {
                    self.found.divergent_calls.insert(function);
                }
                self.divergent_values.extend(result);
            }
            Statement::SubgroupBallot { result, .. } => self.subgroup_result(result, flow, true),
            Statement::SubgroupGather { result, mode, .. } => {
                let shared = match mode {
                    naga::GatherMode::BroadcastFirst => true,
                    naga::GatherMode::Broadcast(lane) => self.is_shared(lane),
                    _ => false,
                };
                self.subgroup_result(result, flow, shared);
            }
            Statement::SubgroupCollectiveOperation { result, collective_op, .. } => {
                self.subgroup_result(result, flow, collective_op == naga::CollectiveOperation::Reduce);
            }
            _ => {}
        }
    }

    /// Whether threads that run `block` of a loop together leave it, or go on with the next turn, together.
    fn leaves_together(&mut self, block: &Block, shared: bool, flow: &mut Flow) -> bool {
        let mut together = true;
        for statement in block.iter() {
            match *statement {
                Statement::Break | Statement::Continue | Statement::Return { .. } => together &= shared,
                Statement::Block(ref block) => together &= self.leaves_together(block, shared, flow),
                Statement::If { condition, ref accept, ref reject } => {
                    let shared = shared && self.is_shared(condition);
                    together &= self.leaves_together(accept, shared, flow);
                    together &= self.leaves_together(reject, shared, flow);
                }
                Statement::Switch { selector, ref cases } => {
                    // A `break` here leaves the switch alone, but counting it costs nothing.
                    let shared = shared && self.is_shared(selector);
                    for case in cases {
                        together &= self.leaves_together(&case.body, shared, flow);
                    }
                }
                Statement::Loop { ref body, .. } => {
                    together &= !returns(body) || shared && self.leaves_together(body, shared, flow);
                    self.statement(statement, flow);
                }
                _ => self.statement(statement, flow),
            }
        }
        together
    }
}

fn returns(block: &Block) -> bool {
    block.iter().any(|statement| match *statement {
        Statement::Return { .. } => true,
        Statement::Block(ref block) => returns(block),
        Statement::If { ref accept, ref reject, .. } => returns(accept) || returns(reject),
        Statement::Switch { ref cases, .. } => cases.iter().any(|case| returns(&case.body)),
        Statement::Loop { ref body, ref continuing, .. } => returns(body) || returns(continuing),
        _ => false,
    })
}
