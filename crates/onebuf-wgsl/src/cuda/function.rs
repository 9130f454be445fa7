//! What the printing of one function knows: names so far, what is baked, and the module around it.

use std::collections::{HashMap, HashSet};

use naga::{
    AddressSpace, Expression, Function, GlobalVariable, Handle, LocalVariable, TypeInner,
    proc::{
        BoundsCheckPolicy, IndexableLength, NameKey,
        index::{GuardedIndex, access_needs_check},
    },
    valid::FunctionInfo,
};

use super::{Fault, module::ModuleWriter, operands, ranges::Ranges};
use crate::Bounds;

/// Which function is printed.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Function(Handle<Function>),
    Entry,
}

/// Expressions nested deeper than this are given names, so that no compiler sees a deep tree.
const DEEPEST: u32 = 12;

pub(super) struct FunctionWriter<'a, 'm> {
    pub(super) module: &'m ModuleWriter<'a>,
    pub(super) function: &'a Function,
    pub(super) info: &'a FunctionInfo,
    pub(super) which: Which,
    /// Results of subgroup operations in flow that the whole subgroup shares.
    pub(super) shared_operations: HashSet<Handle<Expression>>,
    /// Values that have a name.
    pub(super) named: HashMap<Handle<Expression>, String>,
    /// Names declared before the statement that gives them their value.
    pub(super) declared: HashSet<Handle<Expression>>,
    depth: HashMap<Handle<Expression>, u32>,
    /// Indices that are compared before they are used.
    guarded: HashSet<Handle<Expression>>,
    ranges: Ranges,
    pub(super) out: String,
    pub(super) indent: usize,
}

impl<'a, 'm> FunctionWriter<'a, 'm> {
    pub(super) fn new(
        module: &'m ModuleWriter<'a>,
        function: &'a Function,
        info: &'a FunctionInfo,
        which: Which,
        shared_operations: HashSet<Handle<Expression>>,
    ) -> Self {
        let mut writer = FunctionWriter {
            module,
            function,
            info,
            which,
            shared_operations,
            named: HashMap::new(),
            declared: HashSet::new(),
            depth: HashMap::new(),
            guarded: HashSet::new(),
            ranges: Ranges::of(module.ir, function, info, module.interface().workgroup_size),
            out: String::new(),
            indent: 1,
        };
        for (handle, expression) in function.expressions.iter() {
            if let Expression::Access { index, .. } = *expression
                && writer
                    .check(handle)
                    .is_some_and(|check| check.policy == BoundsCheckPolicy::ReadZeroSkipWrite)
            {
                writer.guarded.insert(index);
            }
        }
        writer
    }

    /// Writes one line.
    pub(super) fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    pub(super) fn inner(&self, expression: Handle<Expression>) -> &'a TypeInner {
        self.info[expression].ty.inner_with(&self.module.ir.types)
    }

    pub(super) fn type_name(&self, expression: Handle<Expression>) -> Result<String, Fault> {
        self.module.types.resolution_name(&self.info[expression].ty)
    }

    pub(super) fn local_name(&self, variable: Handle<LocalVariable>) -> &str {
        self.module.names.get(match self.which {
            Which::Function(function) => NameKey::FunctionLocal(function, variable),
            Which::Entry => NameKey::EntryPointLocal(0, variable),
        })
    }

    pub(super) fn argument_name(&self, index: u32) -> &str {
        self.module.names.get(match self.which {
            Which::Function(function) => NameKey::FunctionArgument(function, index),
            Which::Entry => NameKey::EntryPointArgument(0, index),
        })
    }

    /// The name under which an emitted expression is to be kept; `None` where it is printed at its use.
    pub(super) fn bake_name(&mut self, expression: Handle<Expression>) -> Option<String> {
        let kept = &self.function.expressions[expression];
        if self.inner(expression).pointer_space().is_some() {
            // What a pointer points to is printed at each use.
            return None;
        }
        let mut deepest = 0;
        operands::visit(kept, |operand| {
            if !self.named.contains_key(&operand) {
                deepest = deepest.max(self.depth.get(&operand).copied().unwrap_or(0));
            }
        });
        if let Some(name) = self.function.named_expressions.get(&expression) {
            return Some(self.module.names.fresh(name));
        }
        let references = self.info[expression].ref_count;
        // A load happens where it is emitted, whatever is stored before its value is used.
        let is_load = matches!(kept, Expression::Load { .. });
        let is_access = matches!(kept, Expression::Access { .. } | Expression::AccessIndex { .. });
        if is_load && references >= 1
            || !is_access && references >= 2
            || self.guarded.contains(&expression)
            || self.declared.contains(&expression)
            || deepest >= DEEPEST
        {
            return Some(temporary(expression));
        }
        self.depth.insert(expression, deepest + 1);
        None
    }

    /// The check that `Access` and `AccessIndex` expressions need, if any.
    pub(super) fn check(&self, access: Handle<Expression>) -> Option<Check> {
        if self.module.options.bounds == Bounds::Unchecked {
            return None;
        }
        let (base, index) = match self.function.expressions[access] {
            Expression::Access { base, index } => (base, GuardedIndex::Expression(index)),
            Expression::AccessIndex { base, index } => (base, GuardedIndex::Known(index)),
            _ => return None,
        };
        let pointee = match *self.inner(base) {
            TypeInner::Pointer { base, .. } => &self.module.ir.types[base].inner,
            ref inner => inner,
        };
        if let TypeInner::Struct { .. } = *pointee {
            return None;
        }
        // The host makes sure of one element.
        if let GuardedIndex::Known(0) = index {
            return None;
        }
        let length = access_needs_check(base, index, self.module.ir, &self.function.expressions, self.info)?;
        if let (GuardedIndex::Expression(index), &IndexableLength::Known(length)) = (index, &length)
            && self.ranges.is_below(index, length)
        {
            return None;
        }
        let policy = match self.inner(base).pointer_space() {
            Some(AddressSpace::Storage { .. } | AddressSpace::Uniform) => {
                BoundsCheckPolicy::ReadZeroSkipWrite
            }
            _ => BoundsCheckPolicy::Restrict,
        };
        Some(Check { index, length, policy })
    }

    /// The global variable that a pointer starts from.
    pub(super) fn global_of(&self, mut pointer: Handle<Expression>) -> Option<Handle<GlobalVariable>> {
        loop {
            match self.function.expressions[pointer] {
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => pointer = base,
                Expression::GlobalVariable(variable) => return Some(variable),
                _ => return None,
            }
        }
    }
}

/// How an access is kept in bounds.
pub(super) struct Check {
    pub(super) index: GuardedIndex,
    pub(super) length: IndexableLength,
    pub(super) policy: BoundsCheckPolicy,
}

/// The name of a value that the source gives none.
pub(super) fn temporary(expression: Handle<Expression>) -> String {
    format!("_e{}", expression.index())
}
