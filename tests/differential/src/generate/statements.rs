//! Statements.

use super::{Bool, F32, Generator, I32, Ty, U32, Variable};

impl Generator {
    pub(super) fn digest(&mut self, path: &str, ty: &Ty) {
        match ty {
            Ty::Scalar(U32) => self.line(&format!("note({path});")),
            Ty::Scalar(I32) => self.line(&format!("note(bitcast<u32>({path}));")),
            // Multiplied, so that the sign of zero does not count.
            Ty::Scalar(F32) => self.line(&format!("note(bitcast<u32>(i32({path} * 16.0)));")),
            Ty::Scalar(Bool) => self.line(&format!("note(select(3u, 5u, {path}));")),
            Ty::Vector(scalar, n) => {
                for component in &["x", "y", "z", "w"][..*n] {
                    self.digest(&format!("{path}.{component}"), &Ty::Scalar(*scalar));
                }
            }
            Ty::Matrix(columns, rows) => {
                (0..*columns)
                    .for_each(|column| self.digest(&format!("{path}[{column}]"), &Ty::Vector(F32, *rows)));
            }
            Ty::Array(base, n) => (0..*n).for_each(|index| self.digest(&format!("{path}[{index}]"), base)),
            Ty::Struct(index) => {
                let members = self.structs[*index].clone();
                for (at, member) in members.iter().enumerate() {
                    self.digest(&format!("{path}.m{at}"), member);
                }
            }
        }
    }

    pub(super) fn statements(&mut self, count: usize, depth: usize) {
        let scope = self.scope.len();
        for _ in 0..count {
            if self.budget <= 0 {
                break;
            }
            self.budget -= 1;
            self.statement(depth);
        }
        // Names of nested blocks end with them; those of the outermost live on.
        if self.indent > 1 {
            self.scope.truncate(scope);
        }
    }

    pub(super) fn block(&mut self, depth: usize) {
        self.indent += 1;
        let count = 1 + self.rng.below(3);
        self.statements(count, depth);
        self.indent -= 1;
    }

    pub(super) fn statement(&mut self, depth: usize) {
        let nested = depth > 0;
        match self.rng.below(17) {
            0..=2 => self.declare(),
            3..=6 => self.assign(),
            7 if nested => {
                let condition = self.expression(&Ty::Scalar(Bool), 3);
                self.line(&format!("if {condition} {{"));
                self.block(depth - 1);
                match self.rng.below(3) {
                    0 => {
                        self.line("} else {");
                        self.block(depth - 1);
                    }
                    1 => {
                        let condition = self.expression(&Ty::Scalar(Bool), 2);
                        self.line(&format!("}} else if {condition} {{"));
                        self.block(depth - 1);
                    }
                    _ => {}
                }
                self.line("}");
            }
            8 if nested => {
                let counter = self.name("k");
                let turns = 1 + self.rng.below(4);
                self.line(&format!("for (var {counter} = 0u; {counter} < {turns}u; {counter}++) {{"));
                self.inside_loop(&counter, depth);
                self.line("}");
            }
            9 if nested => {
                let counter = self.name("k");
                let first = self.rng.below(3);
                self.line(&format!("var {counter} = {first}u;"));
                self.line("loop {");
                self.indent += 1;
                self.line(&format!("if {counter} > 4u {{ break; }}"));
                self.indent -= 1;
                let kept = self.name("kept");
                self.line(&format!("    let {kept} = {counter} * 3u + ids.x;"));
                self.inside_loop(&counter, depth);
                self.indent += 1;
                self.line("continuing {");
                self.indent += 1;
                self.in_continuing = true;
                let scope = self.scope.len();
                self.line(&format!("{counter} += 1u;"));
                self.line(&format!("note({kept});"));
                if self.rng.once_in(2) {
                    self.assign();
                }
                if self.rng.once_in(2) {
                    let condition = self.expression(&Ty::Scalar(Bool), 2);
                    self.line(&format!("break if {condition} || {kept} > 9u;"));
                }
                self.in_continuing = false;
                self.scope.truncate(scope);
                self.indent -= 1;
                self.line("}");
                self.indent -= 1;
                self.line("}");
            }
            10 if nested => self.switch(depth),
            11 if self.loops > 0 && !self.in_continuing => {
                let condition = self.expression(&Ty::Scalar(Bool), 2);
                let word = if self.rng.once_in(2) { "break" } else { "continue" };
                self.line(&format!("if {condition} {{ {word}; }}"));
            }
            12 if self.in_function.is_some() && self.rng.once_in(2) => {
                let Some(result) = self.in_function.clone() else { return };
                let condition = self.expression(&Ty::Scalar(Bool), 2);
                let value = self.stored(&result, 2);
                self.line(&format!("if {condition} {{ return {value}; }}"));
            }
            13 | 14 if self.in_function.is_none() => self.call(),
            15 => self.atomic(),
            _ => {
                let scalar = *self.rng.pick(&[I32, U32, F32, Bool]);
                let value = self.stored(&Ty::Scalar(scalar), 3);
                let name = self.name("n");
                self.line(&format!("let {name} = {value};"));
                self.digest(&name, &Ty::Scalar(scalar));
            }
        }
    }

    pub(super) fn inside_loop(&mut self, counter: &str, depth: usize) {
        let scope = self.scope.len();
        self.scope.push(Variable {
            name: counter.to_owned(),
            ty: Ty::Scalar(U32),
            mutable: false,
            buffer: false,
        });
        self.loops += 1;
        self.block(depth - 1);
        self.loops -= 1;
        self.scope.truncate(scope);
    }

    pub(super) fn switch(&mut self, depth: usize) {
        let signed = self.rng.once_in(2);
        let ty = if signed { I32 } else { U32 };
        let selector = self.dynamic(&Ty::Scalar(ty), 2);
        let suffix = if signed { "i" } else { "u" };
        self.line(&format!("switch ({selector}) % 5{suffix} {{"));
        self.indent += 1;
        let cases = if signed { ["0i, 1i", "-1i", "3i"] } else { ["0u, 1u", "2u", "4u"] };
        // A `break` here would leave the switch, and a `continue` the loop: both are wanted.
        for case in cases {
            self.line(&format!("case {case}: {{"));
            self.block(depth - 1);
            self.line("}");
        }
        self.line("default: {");
        self.block(depth - 1);
        self.line("}");
        self.indent -= 1;
        self.line("}");
    }

    pub(super) fn declare(&mut self) {
        let (ty, value) = match self.rng.below(5) {
            0 => {
                let ty = self.memory_type(1);
                let value = self.composite(&ty, 2);
                (ty, value)
            }
            _ => {
                let ty = self.value_type();
                let value = self.stored(&ty, 3);
                (ty, value)
            }
        };
        let name = self.name("v");
        let mutable = !self.rng.once_in(4);
        let text = match mutable {
            true if self.rng.once_in(6) => format!("var {name}: {};", self.type_name(&ty)),
            true => format!("var {name} = {value};"),
            false => format!("let {name} = {value};"),
        };
        self.line(&text);
        self.scope.push(Variable { name, ty, mutable, buffer: false });
    }

    pub(super) fn assign(&mut self) {
        let targets: Vec<Variable> = self.scope.iter().filter(|variable| variable.mutable).cloned().collect();
        if targets.is_empty() {
            return self.declare();
        }
        let target = self.rng.pick(&targets).clone();
        let (path, ty) = self.walk(&target, 6);
        match &ty {
            Ty::Scalar(scalar @ (I32 | U32)) if self.rng.once_in(3) => {
                let op = *self.rng.pick(&["+", "-", "*", "&", "|", "^", "/", "%"]);
                let value = self.dynamic(&Ty::Scalar(*scalar), 2);
                self.line(&format!("{path} {op}= {value};"));
            }
            Ty::Scalar(I32 | U32) if self.rng.once_in(5) => {
                let op = if self.rng.once_in(2) { "++" } else { "--" };
                self.line(&format!("{path}{op};"));
            }
            Ty::Scalar(_) | Ty::Vector(..) => {
                let value = self.stored(&ty, 3);
                self.line(&format!("{path} = {value};"));
            }
            _ => {
                let value = self.composite(&ty, 2);
                self.line(&format!("{path} = {value};"));
            }
        }
    }

    pub(super) fn call(&mut self) {
        if self.functions.is_empty() {
            return self.assign();
        }
        let functions = self.functions.clone();
        let (function, parameters, result) = self.rng.pick(&functions).clone();
        let mut arguments = Vec::new();
        for (ty, pointer) in &parameters {
            if *pointer {
                let value = self.composite(ty, 1);
                let name = self.name("v");
                self.line(&format!("var {name} = {value};"));
                self.scope.push(Variable {
                    name: name.clone(),
                    ty: ty.clone(),
                    mutable: true,
                    buffer: false,
                });
                arguments.push(format!("&{name}"));
            } else {
                arguments.push(self.stored(ty, 2));
            }
        }
        let name = self.name("r");
        self.line(&format!("let {name} = {function}({});", arguments.join(", ")));
        self.scope.push(Variable { name, ty: result, mutable: false, buffer: false });
    }

    pub(super) fn atomic(&mut self) {
        let word = self.rng.below(4);
        let function = ["atomicAdd", "atomicMax", "atomicXor", "atomicMin"][word];
        if self.storage_atomics && self.rng.once_in(2) {
            let value = self.expression(&Ty::Scalar(I32), 2);
            self.line(&format!("{function}(&counters[{word}], {value});"));
        } else {
            let value = self.expression(&Ty::Scalar(U32), 2);
            self.line(&format!("{function}(&tallies[{word}], {value});"));
        }
    }
}
