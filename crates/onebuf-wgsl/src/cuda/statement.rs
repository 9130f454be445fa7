//! Statements.

use std::collections::HashSet;

use naga::{
    AtomicFunction, Barrier, Block, CollectiveOperation, Expression, GatherMode, Handle, Statement,
    SwitchValue,
};

use super::{
    Fault, builtins,
    function::{FunctionWriter, temporary},
    operands, unroll,
};

impl FunctionWriter<'_, '_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<(), Fault> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    fn indented(&mut self, block: &Block) -> Result<(), Fault> {
        self.indent += 1;
        let result = self.block(block);
        self.indent -= 1;
        result
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Fault> {
        match *statement {
            Statement::Emit(ref range) => range.clone().try_for_each(|expression| self.emit(expression)),
            Statement::Block(ref block) => {
                self.line("{");
                self.indented(block)?;
                self.line("}");
                Ok(())
            }
            Statement::If { condition, ref accept, ref reject } => {
                let condition = self.value(condition)?;
                if accept.is_empty() {
                    self.line(&format!("if (!{}) {{", parenthesized(&condition)));
                    self.indented(reject)?;
                    self.line("}");
                    return Ok(());
                }
                self.line(&format!("if ({}) {{", unwrapped(&condition)));
                self.indented(accept)?;
                if !reject.is_empty() {
                    self.line("} else {");
                    self.indented(reject)?;
                }
                self.line("}");
                Ok(())
            }
            Statement::Switch { selector, ref cases } => self.switch(selector, cases),
            Statement::Loop { ref body, ref continuing, break_if } => self.r#loop(body, continuing, break_if),
            Statement::Break => {
                self.line("break;");
                Ok(())
            }
            Statement::Continue => {
                self.line("continue;");
                Ok(())
            }
            Statement::Return { value: None } => {
                self.line("return;");
                Ok(())
            }
            Statement::Return { value: Some(value) } => {
                let value = self.value(value)?;
                self.line(&format!("return {};", unwrapped(&value)));
                Ok(())
            }
            Statement::ControlBarrier(barrier) => {
                self.control_barrier(barrier);
                Ok(())
            }
            Statement::MemoryBarrier(barrier) => {
                let fence = if barrier.contains(Barrier::STORAGE) {
                    "__threadfence();"
                } else {
                    "__threadfence_block();"
                };
                self.line(fence);
                Ok(())
            }
            Statement::Store { pointer, value } => self.store(pointer, value),
            Statement::Atomic { pointer, ref fun, value, result } => {
                self.atomic(pointer, *fun, value, result)
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                self.line("__syncthreads();");
                let place = self.place(pointer)?;
                let text = if self.is_atomic(pointer) { format!("wg_atomic_load({place})") } else { place };
                self.define(result, &temporary(result), &text)?;
                self.line("__syncthreads();");
                Ok(())
            }
            Statement::Call { function, ref arguments, result } => self.call(function, arguments, result),
            Statement::SubgroupBallot { result, predicate } => {
                let predicate = predicate.map_or(Ok("true".to_owned()), |predicate| self.value(predicate))?;
                let text = format!("wg_ballot({}, {predicate})", self.mask(result));
                self.define(result, &temporary(result), &text)
            }
            Statement::SubgroupGather { mode, argument, result } => {
                let (mask, argument) = (self.mask(result), self.value(argument)?);
                let text = match mode {
                    GatherMode::BroadcastFirst => format!("wg_broadcast_first({mask}, {argument})"),
                    _ => format!("wg_shuffle({mask}, {argument}, {})", self.gather_lane(mode)?),
                };
                self.define(result, &temporary(result), &text)
            }
            Statement::SubgroupCollectiveOperation { op, collective_op, argument, result } => {
                let (mask, argument) = (self.mask(result), self.value(argument)?);
                let operation = builtins::subgroup_operation(op);
                use naga::SubgroupOperation as S;
                let text = match (op, collective_op) {
                    (S::All | S::Any, _) => format!("{operation}({mask}, {argument})"),
                    (_, CollectiveOperation::Reduce) => format!("wg_reduce<{operation}>({mask}, {argument})"),
                    (_, CollectiveOperation::InclusiveScan) => {
                        format!("wg_inclusive<{operation}>({mask}, {argument})")
                    }
                    (_, CollectiveOperation::ExclusiveScan) => {
                        let ty = self.type_name(result)?;
                        let identity =
                            if op == S::Mul { format!("wg_one<{ty}>()") } else { format!("{ty}{{}}") };
                        format!("wg_exclusive<{operation}>({mask}, {argument}, {identity})")
                    }
                };
                self.define(result, &temporary(result), &text)
            }
            ref other => Err(Fault(format!("no C++ for the statement {other:?}"))),
        }
    }

    /// Names the value of an expression from here on.
    fn define(&mut self, expression: Handle<Expression>, name: &str, text: &str) -> Result<(), Fault> {
        if self.declared.contains(&expression) {
            self.line(&format!("{name} = {};", unwrapped(text)));
        } else {
            let ty = self.type_name(expression)?;
            self.line(&format!("{ty} {name} = {};", unwrapped(text)));
        }
        self.named.insert(expression, name.to_owned());
        Ok(())
    }

    fn emit(&mut self, expression: Handle<Expression>) -> Result<(), Fault> {
        // A name that was declared ahead is already known.
        if self.declared.contains(&expression)
            && let Some(name) = self.named.get(&expression).cloned()
        {
            let text = self.expression(expression)?;
            return self.define(expression, &name, &text);
        }
        if let Some(name) = self.bake_name(expression) {
            let text = self.expression(expression)?;
            self.define(expression, &name, &text)?;
        }
        Ok(())
    }

    fn switch(&mut self, selector: Handle<Expression>, cases: &[naga::SwitchCase]) -> Result<(), Fault> {
        let selector = self.value(selector)?;
        self.line(&format!("switch ({}) {{", unwrapped(&selector)));
        for case in cases {
            let label = match case.value {
                SwitchValue::I32(i32::MIN) => "case (-2147483647 - 1):".to_owned(),
                SwitchValue::I32(value) => format!("case {value}:"),
                SwitchValue::U32(value) => format!("case {value}u:"),
                SwitchValue::Default => "default:".to_owned(),
            };
            if case.fall_through && case.body.is_empty() {
                self.line(&label);
                continue;
            }
            self.line(&format!("{label} {{"));
            self.indented(&case.body)?;
            if !case.fall_through && !case.body.last().is_some_and(Statement::is_terminator) {
                self.indent += 1;
                self.line("break;");
                self.indent -= 1;
            }
            self.line("}");
        }
        self.line("}");
        Ok(())
    }

    /// A loop is `while (true)`. Where nothing continues early, its continuing block simply ends the body. Otherwise it
    /// stands at the head of the body behind a gate that is shut in the first turn, so that `continue` reaches it.
    fn r#loop(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), Fault> {
        let has_end = !continuing.is_empty() || break_if.is_some();
        if !has_end || !continues(body) {
            if break_if.is_none() && unroll::is_worth_unrolling(self.function, body, continuing) {
                self.line("#pragma unroll");
            }
            self.line("while (true) {");
            self.indented(body)?;
            let ended = body.last().is_some_and(Statement::is_terminator);
            if has_end && !ended {
                self.indented(continuing)?;
                self.break_if(break_if)?;
            }
            self.line("}");
            return Ok(());
        }
        // The continuing block may use values of the body, which it now stands before.
        let mut used = HashSet::new();
        operands::visit_block(continuing, &mut |expression| self.reach(expression, &mut used));
        break_if.into_iter().for_each(|expression| self.reach(expression, &mut used));
        for statement in body.iter() {
            for expression in results(statement) {
                if used.contains(&expression) && self.inner(expression).pointer_space().is_none() {
                    let (ty, name) = (self.type_name(expression)?, temporary(expression));
                    self.line(&format!("{ty} {name}{{}};"));
                    self.declared.insert(expression);
                    self.named.insert(expression, name);
                }
            }
        }
        let gate = self.module.names.fresh("again");
        self.line(&format!("bool {gate} = false;"));
        self.line("while (true) {");
        self.indent += 1;
        self.line(&format!("if ({gate}) {{"));
        self.indented(continuing)?;
        self.break_if(break_if)?;
        self.line("}");
        self.line(&format!("{gate} = true;"));
        self.block(body)?;
        self.indent -= 1;
        self.line("}");
        Ok(())
    }

    fn break_if(&mut self, condition: Option<Handle<Expression>>) -> Result<(), Fault> {
        if let Some(condition) = condition {
            let condition = self.value(condition)?;
            self.indent += 1;
            self.line(&format!("if ({}) break;", unwrapped(&condition)));
            self.indent -= 1;
        }
        Ok(())
    }

    /// Adds `expression` and all it is made of to `used`.
    fn reach(&self, expression: Handle<Expression>, used: &mut HashSet<Handle<Expression>>) {
        let mut open = vec![expression];
        while let Some(expression) = open.pop() {
            if used.insert(expression) {
                operands::visit(&self.function.expressions[expression], |operand| open.push(operand));
            }
        }
    }

    fn control_barrier(&mut self, barrier: Barrier) {
        if barrier.contains(Barrier::STORAGE) {
            // naga gives storage barriers the scope of the device.
            self.line("__threadfence();");
        }
        if barrier == Barrier::SUB_GROUP {
            self.line("__syncwarp(__activemask());");
        } else {
            self.line("__syncthreads();");
        }
    }

    fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<(), Fault> {
        let value = self.value(value)?;
        if let Some((vector, index)) = self.register_component(pointer)? {
            self.line(&format!("wg_set({vector}, {index}, {value});"));
            return Ok(());
        }
        let place = self.place(pointer)?;
        let text = if self.is_atomic(pointer) {
            format!("wg_atomic_store({place}, {value});")
        } else if self.is_volatile(pointer) {
            format!("wg_volatile_store({place}, {value});")
        } else {
            format!("{place} = {};", unwrapped(&value))
        };
        let condition = self.condition(pointer)?;
        if condition.is_empty() {
            self.line(&text);
        } else {
            self.line(&format!("if ({condition}) {text}"));
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<(), Fault> {
        let (place, value) = (self.place(pointer)?, self.value(value)?);
        let text = match function {
            AtomicFunction::Add => format!("wg_atomic_add({place}, {value})"),
            AtomicFunction::Subtract => format!("wg_atomic_sub({place}, {value})"),
            AtomicFunction::And => format!("wg_atomic_and({place}, {value})"),
            AtomicFunction::ExclusiveOr => format!("wg_atomic_xor({place}, {value})"),
            AtomicFunction::InclusiveOr => format!("wg_atomic_or({place}, {value})"),
            AtomicFunction::Min => format!("wg_atomic_min({place}, {value})"),
            AtomicFunction::Max => format!("wg_atomic_max({place}, {value})"),
            AtomicFunction::Exchange { compare: None } => format!("wg_atomic_exchange({place}, {value})"),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                let result = result.ok_or_else(|| Fault("a compare exchange without a result".to_owned()))?;
                let (ty, compare) = (self.type_name(result)?, self.value(compare)?);
                format!("wg_atomic_compare_exchange<{ty}>({place}, {compare}, {value})")
            }
        };
        let condition = self.condition(pointer)?;
        match (result, condition.is_empty()) {
            (None, true) => self.line(&format!("{text};")),
            (None, false) => self.line(&format!("if ({condition}) {text};")),
            (Some(result), true) => self.define(result, &temporary(result), &text)?,
            (Some(result), false) => {
                let zero = format!("{}{{}}", self.type_name(result)?);
                let name = temporary(result);
                self.define(result, &name, &zero)?;
                self.line(&format!("if ({condition}) {name} = {text};"));
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        function: Handle<naga::Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
    ) -> Result<(), Fault> {
        let mut texts = Vec::new();
        for argument in arguments {
            let is_pointer = self.inner(*argument).pointer_space().is_some();
            texts.push(if is_pointer { self.place(*argument)? } else { self.value(*argument)? });
        }
        texts.extend(self.module.hidden_arguments(function)?);
        let text = format!("{}({})", self.module.function_name(function), texts.join(", "));
        match result {
            Some(result) => {
                // A call whose value has a name in the source keeps it.
                let name = match self.function.named_expressions.get(&result) {
                    Some(name) if !self.declared.contains(&result) => self.module.names.fresh(name),
                    _ => temporary(result),
                };
                self.define(result, &name, &text)
            }
            None => {
                self.line(&format!("{text};"));
                Ok(())
            }
        }
    }

    /// The threads that take part in a subgroup operation.
    fn mask(&self, result: Handle<Expression>) -> String {
        if self.shared_operations.contains(&result) {
            self.module.full_mask()
        } else {
            "__activemask()".to_owned()
        }
    }
}

/// Whether a `continue` in `block` ends a turn of the loop around it.
fn continues(block: &Block) -> bool {
    block.iter().any(|statement| match *statement {
        Statement::Continue => true,
        Statement::Block(ref block) => continues(block),
        Statement::If { ref accept, ref reject, .. } => continues(accept) || continues(reject),
        Statement::Switch { ref cases, .. } => cases.iter().any(|case| continues(&case.body)),
        _ => false,
    })
}

/// The expressions that a statement itself gives values to.
fn results(statement: &Statement) -> Vec<Handle<Expression>> {
    match *statement {
        Statement::Emit(ref range) => range.clone().collect(),
        Statement::Call { result, .. } | Statement::Atomic { result, .. } => result.into_iter().collect(),
        Statement::WorkGroupUniformLoad { result, .. }
        | Statement::SubgroupBallot { result, .. }
        | Statement::SubgroupGather { result, .. }
        | Statement::SubgroupCollectiveOperation { result, .. } => vec![result],
        _ => Vec::new(),
    }
}

/// As an operand of a unary operator.
fn parenthesized(text: &str) -> String {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_word || unwrapped(text).len() != text.len() { text.to_owned() } else { format!("({text})") }
}

/// Takes off the parentheses around a whole expression.
fn unwrapped(text: &str) -> &str {
    let Some(inside) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) else { return text };
    let mut depth = 0i32;
    for byte in inside.bytes() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return text;
        }
    }
    inside
}
