//! Random programs on which every right implementation agrees to the bit.
//!
//! - Integers are anything: they wrap, divide by zero and shift too far, all of which WGSL defines.
//! - Floats are small multiples of 1/16, so that every sum and product is exact, in whatever order it is computed.
//! - Each invocation writes to places of its own; workgroup memory is exchanged over barriers in uniform flow; atomics
//!   are of one commutative kind for each word, and are read after a barrier.
//! - Indices may be out of range where both ways of running define the same result.
//!
//! A program is a function of its seed.

use std::fmt::Write as _;

use anyhow::Result;

use crate::{case::Case, layout::Layout};

/// A small generator of numbers: xorshift64*.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d);
        rng.next();
        rng
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 |= u64::from(self.0 == 0);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.next() >> 33) as usize) % limit.max(1)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    I32,
    U32,
    F32,
    Bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ty {
    Scalar(Scalar),
    Vector(Scalar, usize),
    Matrix(usize, usize),
    Array(Box<Ty>, usize),
    Struct(usize),
}

use Scalar::{Bool, F32, I32, U32};

const INVOCATIONS: usize = 16;
const NUMERIC: [Scalar; 3] = [I32, U32, F32];

impl Scalar {
    fn name(self) -> &'static str {
        match self {
            I32 => "i32",
            U32 => "u32",
            F32 => "f32",
            Bool => "bool",
        }
    }
}

#[derive(Clone, Debug)]
struct Variable {
    name: String,
    ty: Ty,
    /// It may be stored to.
    mutable: bool,
    /// An index out of range reads zero and drops stores; elsewhere it is clamped.
    buffer: bool,
}

struct Generator {
    rng: Rng,
    out: String,
    structs: Vec<Vec<Ty>>,
    scope: Vec<Variable>,
    functions: Vec<(String, Vec<(Ty, bool)>, Ty)>,
    indent: usize,
    next_name: usize,
    loops: usize,
    /// Statements that may still be made, so that no program grows without end.
    budget: isize,
    storage_atomics: bool,
    in_function: Option<Ty>,
    in_continuing: bool,
}

/// The WGSL of the program of `seed`, whose entry point is `main` with 16 invocations.
pub fn program(seed: u64) -> String {
    let mut rng = Rng::new(seed);
    let storage_atomics = rng.once_in(3);
    let mut generator = Generator {
        rng,
        out: String::new(),
        structs: Vec::new(),
        scope: Vec::new(),
        functions: Vec::new(),
        indent: 0,
        next_name: 0,
        loops: 0,
        budget: 18,
        storage_atomics,
        in_function: None,
        in_continuing: false,
    };
    generator.module();
    generator.out
}

impl Generator {
    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next_name += 1;
        format!("{prefix}{}", self.next_name)
    }

    fn type_name(&self, ty: &Ty) -> String {
        match ty {
            Ty::Scalar(scalar) => scalar.name().to_owned(),
            Ty::Vector(scalar, n) => format!("vec{n}<{}>", scalar.name()),
            Ty::Matrix(columns, rows) => format!("mat{columns}x{rows}<f32>"),
            Ty::Array(base, n) => format!("array<{}, {n}>", self.type_name(base)),
            Ty::Struct(index) => format!("S{index}"),
        }
    }

    fn value_type(&mut self) -> Ty {
        let scalar = *self.rng.pick(&[I32, I32, U32, U32, F32, F32, Bool]);
        if self.rng.once_in(2) { Ty::Scalar(scalar) } else { Ty::Vector(scalar, 2 + self.rng.below(3)) }
    }

    fn memory_type(&mut self, depth: usize) -> Ty {
        let scalar = *self.rng.pick(&NUMERIC);
        match self.rng.below(if depth == 0 { 5 } else { 9 }) {
            0 | 1 => Ty::Scalar(scalar),
            2..=3 => Ty::Vector(scalar, 2 + self.rng.below(3)),
            4 => Ty::Matrix(2 + self.rng.below(3), 2 + self.rng.below(3)),
            5 | 6 => Ty::Array(Box::new(self.memory_type(depth - 1)), 1 + self.rng.below(3)),
            _ if !self.structs.is_empty() => Ty::Struct(self.rng.below(self.structs.len())),
            _ => Ty::Vector(scalar, 3),
        }
    }

    fn module(&mut self) {
        for index in 0..1 + self.rng.below(3) {
            let members: Vec<Ty> = (0..1 + self.rng.below(4)).map(|_| self.memory_type(1)).collect();
            self.line(&format!("struct S{index} {{"));
            for (at, member) in members.iter().enumerate() {
                let attribute = match self.rng.below(8) {
                    0 => "@align(16) ",
                    1 => "@align(32) ",
                    2 if matches!(member, Ty::Scalar(_)) => "@size(20) ",
                    _ => "",
                };
                let text = format!("    {attribute}m{at}: {},", self.type_name(member));
                self.line(&text);
            }
            self.line("}");
            self.structs.push(members);
        }
        let last = self.structs.len() - 1;
        self.line("struct U { a: vec4<i32>, b: mat4x4<f32>, c: vec3<u32>, d: f32, e: array<vec4<f32>, 3> }");
        for (binding, text) in [
            "var<storage, read_write> out: array<u32>;".to_owned(),
            "var<storage> words: array<i32>;".to_owned(),
            format!("var<storage> records: array<S{last}>;"),
            format!("var<storage, read_write> results: array<S{last}>;"),
            "var<uniform> uni: U;".to_owned(),
        ]
        .into_iter()
        .enumerate()
        {
            self.line(&format!("@group(0) @binding({binding}) {text}"));
        }
        if self.storage_atomics {
            self.line("@group(0) @binding(5) var<storage, read_write> counters: array<atomic<i32>, 4>;");
        }
        self.line("var<workgroup> tallies: array<atomic<u32>, 4>;");
        self.line("var<private> digest: u32 = 2166136261u;");
        self.line("var<private> ids: vec3<u32>;");
        let workgroup = Ty::Array(Box::new(self.value_type()), INVOCATIONS);
        let text = format!("var<workgroup> shared_values: {};", self.type_name(&workgroup));
        self.line(&text);
        for index in 0..self.rng.below(3) {
            let ty = if self.rng.once_in(2) { self.value_type() } else { self.memory_type(1) };
            let text = format!("var<private> private{index}: {};", self.type_name(&ty));
            self.line(&text);
            self.scope.push(Variable { name: format!("private{index}"), ty, mutable: true, buffer: false });
        }
        let global = |name: &str, ty, buffer| Variable { name: name.to_owned(), ty, mutable: false, buffer };
        self.scope.push(global("ids", Ty::Vector(U32, 3), false));
        self.scope.push(global("words", Ty::Array(Box::new(Ty::Scalar(I32)), 64), true));
        self.scope.push(global("records", Ty::Array(Box::new(Ty::Struct(last)), INVOCATIONS), true));
        self.scope.push(global("uni.a", Ty::Vector(I32, 4), true));
        self.scope.push(global("uni.b", Ty::Matrix(4, 4), true));
        self.scope.push(global("uni.c", Ty::Vector(U32, 3), true));
        self.scope.push(global("uni.d", Ty::Scalar(F32), true));
        self.scope.push(global("uni.e", Ty::Array(Box::new(Ty::Vector(F32, 4)), 3), true));
        self.line("fn note(x: u32) { digest = (digest ^ x) * 16777619u; }");
        // Small multiples of a quarter.
        self.line("fn q1(x: f32) -> f32 { return round(clamp(x, -32.0, 32.0) * 4.0) * 0.25; }");
        for n in 2..5 {
            self.line(&format!(
                "fn q{n}(x: vec{n}<f32>) -> vec{n}<f32> {{ return round(clamp(x, vec{n}(-32.0), vec{n}(32.0)) * 4.0) * 0.25; }}"
            ));
        }
        for _ in 0..self.rng.below(3) {
            self.function();
        }
        self.entry(&workgroup);
    }

    fn function(&mut self) {
        let name = self.name("fun");
        let mut parameters = Vec::new();
        let globals = self.scope.len();
        let mut texts = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let (ty, pointer) = match self.rng.below(4) {
                0 => (self.memory_type(1), true),
                1 => (self.value_type(), true),
                _ => (self.value_type(), false),
            };
            let parameter = self.name("p");
            if pointer {
                texts.push(format!("{parameter}: ptr<function, {}>", self.type_name(&ty)));
                self.scope.push(Variable {
                    name: format!("(*{parameter})"),
                    ty: ty.clone(),
                    mutable: true,
                    buffer: false,
                });
            } else {
                texts.push(format!("{parameter}: {}", self.type_name(&ty)));
                self.scope.push(Variable { name: parameter, ty: ty.clone(), mutable: false, buffer: false });
            }
            parameters.push((ty, pointer));
        }
        let result = self.value_type();
        let text = format!("fn {name}({}) -> {} {{", texts.join(", "), self.type_name(&result));
        self.line(&text);
        self.indent += 1;
        self.in_function = Some(result.clone());
        let budget = self.budget;
        self.budget = 5;
        let count = 2 + self.rng.below(4);
        self.statements(count, 2);
        self.budget = budget;
        let value = self.stored(&result, 3);
        self.line(&format!("return {value};"));
        self.in_function = None;
        self.indent -= 1;
        self.line("}");
        self.scope.truncate(globals);
        self.functions.push((name, parameters, result));
    }

    fn entry(&mut self, workgroup: &Ty) {
        let last = self.structs.len() - 1;
        self.line("@compute @workgroup_size(4, 2, 2)");
        self.line(
            "fn main(@builtin(local_invocation_index) t: u32, @builtin(local_invocation_id) l: vec3<u32>) {",
        );
        self.indent += 1;
        self.line("ids = l;");
        let globals = self.scope.len();
        self.scope.push(Variable {
            name: "t".to_owned(),
            ty: Ty::Scalar(U32),
            mutable: false,
            buffer: false,
        });
        self.scope.push(Variable {
            name: "results[t]".to_owned(),
            ty: Ty::Struct(last),
            mutable: true,
            buffer: true,
        });
        for _ in 0..1 + self.rng.below(3) {
            let count = 3 + self.rng.below(5);
            self.statements(count, 3);
            if self.rng.once_in(2) {
                let Ty::Array(element, _) = workgroup else { continue };
                let value = self.stored(element, 2);
                self.line(&format!("shared_values[t] = {value};"));
                self.line("workgroupBarrier();");
                let offset = 1 + self.rng.below(INVOCATIONS - 1);
                let name = self.name("got");
                self.line(&format!("var {name} = shared_values[(t + {offset}u) % {INVOCATIONS}u];"));
                let barrier = if self.rng.once_in(3) { "storageBarrier();" } else { "workgroupBarrier();" };
                self.line(barrier);
                // A storage barrier does not order workgroup memory.
                self.line("workgroupBarrier();");
                if self.rng.once_in(3) {
                    let uniform = self.name("same");
                    self.line(&format!("let {uniform} = workgroupUniformLoad(&shared_values[{offset}]);"));
                    self.line(&format!("{name} = {uniform};"));
                }
                self.scope.push(Variable { name, ty: (**element).clone(), mutable: true, buffer: false });
            }
        }
        let variables: Vec<Variable> = self.scope[globals..].to_vec();
        for variable in variables {
            self.digest(&variable.name, &variable.ty);
        }
        self.line("out[t] = digest;");
        self.line("workgroupBarrier();");
        self.line("if t < 4u { out[16u + t] = atomicLoad(&tallies[t]); }");
        self.indent -= 1;
        self.line("}");
        self.scope.truncate(globals);
    }

    /// Notes every scalar of a value.
    fn digest(&mut self, path: &str, ty: &Ty) {
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

    fn statements(&mut self, count: usize, depth: usize) {
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

    fn block(&mut self, depth: usize) {
        self.indent += 1;
        let count = 1 + self.rng.below(3);
        self.statements(count, depth);
        self.indent -= 1;
    }

    fn statement(&mut self, depth: usize) {
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

    fn inside_loop(&mut self, counter: &str, depth: usize) {
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

    fn switch(&mut self, depth: usize) {
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

    fn declare(&mut self) {
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

    /// A value of any type, also one without operators.
    fn composite(&mut self, ty: &Ty, depth: usize) -> String {
        let whole: Vec<String> = self
            .scope
            .iter()
            .filter(|variable| variable.ty == *ty)
            .map(|variable| variable.name.clone())
            .collect();
        if !whole.is_empty() && self.rng.once_in(2) {
            return self.rng.pick(&whole).clone();
        }
        match ty {
            Ty::Scalar(_) | Ty::Vector(..) => self.stored(ty, depth),
            Ty::Matrix(columns, rows) => {
                let columns: Vec<String> =
                    (0..*columns).map(|_| self.stored(&Ty::Vector(F32, *rows), depth.min(1))).collect();
                format!("{}({})", self.type_name(ty), columns.join(", "))
            }
            Ty::Array(base, n) => {
                let elements: Vec<String> =
                    (0..*n).map(|_| self.composite(base, depth.saturating_sub(1))).collect();
                format!("{}({})", self.type_name(ty), elements.join(", "))
            }
            Ty::Struct(index) => {
                let members = self.structs[*index].clone();
                let values: Vec<String> =
                    members.iter().map(|member| self.composite(member, depth.saturating_sub(1))).collect();
                format!("S{index}({})", values.join(", "))
            }
        }
    }

    fn assign(&mut self) {
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

    fn call(&mut self) {
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

    fn atomic(&mut self) {
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

    /// A path from a variable to something inside it, with at most `steps` steps.
    fn walk(&mut self, variable: &Variable, steps: usize) -> (String, Ty) {
        let (mut path, mut ty) = (variable.name.clone(), variable.ty.clone());
        for _ in 0..steps {
            // An array of a buffer has no value as a whole where its length is not in its type.
            let must_go_on = variable.buffer && matches!(ty, Ty::Array(..)) && path == variable.name;
            if !must_go_on && self.rng.once_in(3) {
                break;
            }
            (path, ty) = match ty {
                Ty::Scalar(_) => break,
                Ty::Vector(scalar, n) => {
                    let step = match self.rng.below(3) {
                        0 => format!("[{}]", self.index(n, variable.buffer)),
                        _ => format!(".{}", ["x", "y", "z", "w"][self.rng.below(n)]),
                    };
                    (path + &step, Ty::Scalar(scalar))
                }
                Ty::Matrix(columns, rows) => {
                    (format!("{path}[{}]", self.index(columns, variable.buffer)), Ty::Vector(F32, rows))
                }
                Ty::Array(base, n) => (format!("{path}[{}]", self.index(n, variable.buffer)), *base),
                Ty::Struct(index) => {
                    let at = self.rng.below(self.structs[index].len());
                    (format!("{path}.m{at}"), self.structs[index][at].clone())
                }
            };
        }
        (path, ty)
    }

    fn index(&mut self, length: usize, buffer: bool) -> String {
        match self.rng.below(3) {
            0 => self.rng.below(length).to_string(),
            // Beyond the end, on purpose: where naga clamps for the sake of atomics, that would differ.
            1 if !(buffer && self.storage_atomics) => {
                let value = self.dynamic(&Ty::Scalar(U32), 1);
                format!("{value} % {}u", length + 2)
            }
            _ => {
                let value = self.dynamic(&Ty::Scalar(U32), 1);
                format!("{value} % {length}u")
            }
        }
    }

    /// A value for memory: floats stay small there.
    fn stored(&mut self, ty: &Ty, depth: usize) -> String {
        let value = self.expression(ty, depth);
        match ty {
            Ty::Scalar(F32) => format!("q1({value})"),
            Ty::Vector(F32, n) => format!("q{n}({value})"),
            _ => value,
        }
    }

    /// A value that no compiler can know in advance.
    fn dynamic(&mut self, ty: &Ty, depth: usize) -> String {
        let value = self.expression(ty, depth);
        match ty {
            Ty::Scalar(I32) => format!("({value} + words[ids.x])"),
            Ty::Scalar(U32) => format!("({value} + ids.y)"),
            Ty::Scalar(F32) => format!("({value} + uni.d)"),
            Ty::Vector(I32, n) => format!("({value} + vec{n}(words[ids.z]))"),
            Ty::Vector(U32, n) => format!("({value} + vec{n}(ids.z))"),
            Ty::Vector(F32, n) => format!("({value} - vec{n}(uni.d))"),
            Ty::Scalar(Bool) => format!("({value} != (ids.x > 1u))"),
            Ty::Vector(Bool, n) => format!("({value} != vec{n}(ids.x > 1u))"),
            _ => value,
        }
    }

    fn literal(&mut self, scalar: Scalar) -> String {
        match scalar {
            I32 => match self.rng.below(6) {
                0 => "(-2147483647i - 1i)".to_owned(),
                1 => "2147483647i".to_owned(),
                2 => "-1i".to_owned(),
                3 => format!("{}i", self.rng.below(40)),
                _ => format!("{}i", (self.rng.next() >> 33) as i32),
            },
            U32 => match self.rng.below(5) {
                0 => "4294967295u".to_owned(),
                1 => "2147483648u".to_owned(),
                2 => format!("{}u", self.rng.below(40)),
                _ => format!("{}u", self.rng.next() >> 32),
            },
            F32 => (*self
                .rng
                .pick(&["0.0f", "1.0f", "-1.0f", "0.5f", "2.25f", "-7.75f", "1.5f", "-2.5f", "30.0f"]))
            .to_owned(),
            Bool => (*self.rng.pick(&["true", "false"])).to_owned(),
        }
    }

    /// A leaf of the type: a literal, or something in scope.
    fn leaf(&mut self, ty: &Ty) -> String {
        let scope = self.scope.clone();
        for _ in 0..6 {
            let variable = self.rng.pick(&scope);
            // An index in the path makes expressions itself: those must end.
            let shallow = matches!(variable.ty, Ty::Scalar(_) | Ty::Vector(..) | Ty::Matrix(..));
            if variable.ty == *ty {
                return variable.name.clone();
            }
            if shallow || self.rng.once_in(3) {
                let (path, found) = self.path_without_expressions(variable);
                if found == *ty {
                    return path;
                }
            }
        }
        match ty {
            Ty::Scalar(scalar) => self.literal(*scalar),
            Ty::Vector(scalar, n) => {
                let parts: Vec<String> = (0..*n).map(|_| self.literal(*scalar)).collect();
                format!("vec{n}<{}>({})", scalar.name(), parts.join(", "))
            }
            other => format!("{}()", self.type_name(other)),
        }
    }

    fn path_without_expressions(&mut self, variable: &Variable) -> (String, Ty) {
        let (mut path, mut ty) = (variable.name.clone(), variable.ty.clone());
        let own = *self.rng.pick(&["ids.x", "ids.y", "ids.z"]);
        loop {
            (path, ty) = match ty {
                Ty::Scalar(_) => return (path, ty),
                Ty::Vector(scalar, n) => {
                    if self.rng.once_in(3) {
                        return (path, Ty::Vector(scalar, n));
                    }
                    (format!("{path}.{}", ["x", "y", "z", "w"][self.rng.below(n)]), Ty::Scalar(scalar))
                }
                Ty::Matrix(columns, rows) => {
                    (format!("{path}[{}]", self.rng.below(columns)), Ty::Vector(F32, rows))
                }
                Ty::Array(base, n) if n >= 4 => (format!("{path}[{own}]"), *base),
                Ty::Array(base, n) => (format!("{path}[{}]", self.rng.below(n)), *base),
                Ty::Struct(index) => {
                    let at = self.rng.below(self.structs[index].len());
                    (format!("{path}.m{at}"), self.structs[index][at].clone())
                }
            };
        }
    }

    fn expression(&mut self, ty: &Ty, depth: usize) -> String {
        if depth == 0 || self.rng.once_in(5) {
            return self.leaf(ty);
        }
        match ty {
            Ty::Scalar(scalar) => self.scalar(*scalar, depth),
            Ty::Vector(scalar, n) => self.vector(*scalar, *n, depth),
            other => self.leaf(other),
        }
    }

    fn scalar(&mut self, scalar: Scalar, depth: usize) -> String {
        let d = depth - 1;
        if self.rng.once_in(4) {
            // From a vector.
            let n = 2 + self.rng.below(3);
            let vector = self.dynamic(&Ty::Vector(scalar, n), d);
            return match self.rng.below(3) {
                0 if scalar != Bool => {
                    let other = self.operand(&Ty::Vector(scalar, n), d);
                    let vector = if scalar == F32 { format!("q{n}({vector})") } else { vector };
                    format!("dot({vector}, {other})")
                }
                1 => format!("{vector}[{}]", self.index(n, false)),
                _ => format!("{vector}.{}", ["x", "y", "z", "w"][self.rng.below(n)]),
            };
        }
        let same = Ty::Scalar(scalar);
        match scalar {
            I32 | U32 => self.integer(&same, scalar, depth),
            F32 => self.float(&same, depth),
            Bool => {
                let of = Ty::Scalar(*self.rng.pick(&NUMERIC));
                match self.rng.below(6) {
                    0 => format!("!{}", self.dynamic(&same, d)),
                    1 => {
                        let op = *self.rng.pick(&["&&", "||", "&", "|", "!=", "=="]);
                        let (a, b) = (self.dynamic(&same, d), self.dynamic(&same, d));
                        format!("({a} {op} {b})")
                    }
                    2 => {
                        let n = 2 + self.rng.below(3);
                        let function = if self.rng.once_in(2) { "all" } else { "any" };
                        format!("{function}({})", self.dynamic(&Ty::Vector(Bool, n), d))
                    }
                    _ => {
                        let op = *self.rng.pick(&["<", "<=", ">", ">=", "==", "!="]);
                        let (a, b) = (self.dynamic(&of, d), self.expression(&of, d));
                        format!("({a} {op} {b})")
                    }
                }
            }
        }
    }

    /// An operand of a product: small where it is a float.
    fn operand(&mut self, ty: &Ty, depth: usize) -> String {
        self.stored(ty, depth)
    }

    fn integer(&mut self, ty: &Ty, scalar: Scalar, depth: usize) -> String {
        let d = depth - 1;
        let (n, unsigned) = match ty {
            Ty::Vector(_, n) => (Some(*n), Ty::Vector(U32, *n)),
            _ => (None, Ty::Scalar(U32)),
        };
        let a = self.dynamic(ty, d);
        let of = |scalar: Scalar| match n {
            Some(n) => Ty::Vector(scalar, n),
            None => Ty::Scalar(scalar),
        };
        match self.rng.below(16) {
            0..=3 => {
                let op = *self.rng.pick(&["+", "-", "*", "&", "|", "^"]);
                let b = self.expression(ty, d);
                format!("({a} {op} {b})")
            }
            4 => {
                let op = *self.rng.pick(&["/", "%"]);
                let b = self.dynamic(ty, d);
                format!("({a} {op} {b})")
            }
            5 => {
                let op = *self.rng.pick(&["<<", ">>"]);
                let b = self.dynamic(&unsigned, d);
                format!("({a} {op} {b})")
            }
            6 => match scalar {
                I32 => format!("-{a}"),
                _ => format!("~{a}"),
            },
            7 => {
                let function = *self.rng.pick(&["min", "max"]);
                let b = self.expression(ty, d);
                format!("{function}({a}, {b})")
            }
            8 => {
                let function = *self.rng.pick(&[
                    "abs",
                    "sign",
                    "countOneBits",
                    "countLeadingZeros",
                    "countTrailingZeros",
                    "reverseBits",
                    "firstLeadingBit",
                    "firstTrailingBit",
                ]);
                if scalar == U32 && function == "sign" {
                    format!("abs({a})")
                } else {
                    format!("{function}({a})")
                }
            }
            9 => {
                let (offset, count) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                format!("extractBits({a}, {offset} % 40u, {count} % 40u)")
            }
            10 => {
                let b = self.dynamic(ty, d);
                let (offset, count) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                format!("insertBits({a}, {b}, {offset} % 40u, {count} % 40u)")
            }
            11 => {
                let from = *self.rng.pick(&[F32, Bool, if scalar == I32 { U32 } else { I32 }]);
                let value = self.dynamic(&of(from), d);
                format!("{}({value})", self.type_name(ty))
            }
            12 => {
                let value = self.dynamic(&of(if scalar == I32 { U32 } else { I32 }), d);
                format!("bitcast<{}>({value})", self.type_name(ty))
            }
            13 => {
                let (b, condition) = (self.expression(ty, d), self.expression(&of(Bool), d));
                format!("select({a}, {b}, {condition})")
            }
            14 if n.is_none() => {
                let (x, y) = (self.dynamic(&Ty::Scalar(U32), d), self.dynamic(&Ty::Scalar(U32), d));
                if scalar == I32 {
                    format!("dot4I8Packed({x}, {y})")
                } else {
                    format!("dot4U8Packed({x}, {y})")
                }
            }
            14 if n == Some(4) => {
                let x = self.dynamic(&Ty::Scalar(U32), d);
                if scalar == I32 { format!("unpack4xI8({x})") } else { format!("unpack4xU8({x})") }
            }
            15 if n.is_none() && scalar == U32 => {
                let function = *self.rng.pick(&["pack4xI8", "pack4xI8Clamp", "pack4xU8", "pack4xU8Clamp"]);
                let from = if function.contains('I') { I32 } else { U32 };
                format!("{function}({})", self.dynamic(&Ty::Vector(from, 4), d))
            }
            _ => {
                let b = self.expression(ty, d);
                format!("clamp({a}, min({b}, {a}), max({b}, {a}))")
            }
        }
    }

    fn float(&mut self, ty: &Ty, depth: usize) -> String {
        let d = depth - 1;
        let n = match ty {
            Ty::Vector(_, n) => Some(*n),
            _ => None,
        };
        let of = |scalar: Scalar| match n {
            Some(n) => Ty::Vector(scalar, n),
            None => Ty::Scalar(scalar),
        };
        let constant = |text: &str| match n {
            Some(n) => format!("vec{n}({text})"),
            None => text.to_owned(),
        };
        match self.rng.below(12) {
            0..=2 => {
                let op = *self.rng.pick(&["+", "-"]);
                let (a, b) = (self.dynamic(ty, d.min(2)), self.expression(ty, d.min(2)));
                format!("({a} {op} {b})")
            }
            3 | 4 => {
                let (a, b) = (self.operand(ty, d), self.operand(ty, d));
                format!("({a} * {b})")
            }
            5 => format!(
                "({} / {})",
                self.dynamic(ty, d),
                constant(if self.rng.once_in(2) { "2.0" } else { "0.5" })
            ),
            6 => {
                let function = *self.rng.pick(&["min", "max", "step"]);
                let (a, b) = (self.dynamic(ty, d), self.expression(ty, d));
                format!("{function}({a}, {b})")
            }
            7 => {
                let function =
                    *self.rng.pick(&["abs", "floor", "ceil", "trunc", "round", "fract", "sign", "saturate"]);
                format!("{function}({})", self.dynamic(ty, d))
            }
            8 => {
                let from = *self.rng.pick(&[I32, U32, Bool]);
                let value = self.dynamic(&of(from), d);
                format!("q{}({}({value}))", n.unwrap_or(1), self.type_name(ty))
            }
            9 => {
                let (a, b, condition) =
                    (self.dynamic(ty, d), self.expression(ty, d), self.expression(&of(Bool), d));
                format!("select({a}, {b}, {condition})")
            }
            10 => {
                let (a, b, c) = (self.operand(ty, d), self.operand(ty, d), self.operand(ty, d));
                if n == Some(3) && self.rng.once_in(2) {
                    format!("cross({a}, {b})")
                } else {
                    format!("fma({a}, {b}, {c})")
                }
            }
            _ => format!("(-{})", self.dynamic(ty, d)),
        }
    }

    fn vector(&mut self, scalar: Scalar, n: usize, depth: usize) -> String {
        let d = depth - 1;
        let ty = Ty::Vector(scalar, n);
        match self.rng.below(8) {
            0 => {
                let parts: Vec<String> = (0..n).map(|_| self.expression(&Ty::Scalar(scalar), d)).collect();
                format!("vec{n}<{}>({})", scalar.name(), parts.join(", "))
            }
            1 if n > 2 => {
                let (head, tail) =
                    (self.expression(&Ty::Vector(scalar, n - 1), d), self.expression(&Ty::Scalar(scalar), d));
                format!("vec{n}<{}>({head}, {tail})", scalar.name())
            }
            2 => {
                let m = 2 + self.rng.below(3);
                let pattern: String = (0..n).map(|_| ["x", "y", "z", "w"][self.rng.below(m)]).collect();
                format!("{}.{pattern}", self.dynamic(&Ty::Vector(scalar, m), d))
            }
            3 => format!("vec{n}<{}>({})", scalar.name(), self.expression(&Ty::Scalar(scalar), d)),
            4 if scalar == F32 && self.rng.once_in(2) => {
                let m = 2 + self.rng.below(3);
                let columns: Vec<String> =
                    (0..m).map(|_| self.operand(&Ty::Vector(F32, n), d.min(1))).collect();
                let vector = self.operand(&Ty::Vector(F32, m), d);
                format!("(mat{m}x{n}<f32>({}) * {vector})", columns.join(", "))
            }
            _ => match scalar {
                I32 | U32 => self.integer(&ty, scalar, depth),
                F32 => self.float(&ty, depth),
                Bool => {
                    let of = Ty::Vector(*self.rng.pick(&NUMERIC), n);
                    match self.rng.below(4) {
                        0 => format!("!{}", self.dynamic(&ty, d)),
                        1 => {
                            let op = *self.rng.pick(&["&", "|", "=="]);
                            let (a, b) = (self.dynamic(&ty, d), self.dynamic(&ty, d));
                            format!("({a} {op} {b})")
                        }
                        _ => {
                            let op = *self.rng.pick(&["<", "<=", ">", ">=", "==", "!="]);
                            let (a, b) = (self.dynamic(&of, d), self.expression(&of, d));
                            format!("({a} {op} {b})")
                        }
                    }
                }
            },
        }
    }
}

/// The program of `seed` with the number of each line, for messages.
pub fn numbered(source: &str) -> String {
    let mut text = String::new();
    for (index, line) in source.lines().enumerate() {
        _ = writeln!(text, "{:4} {line}", index + 1);
    }
    text
}

/// The program of `seed` with its inputs.
///
/// # Errors
/// What the compiler says of the program, with its lines: it must never refuse one.
pub fn case(seed: u64) -> Result<Case> {
    let source = program(seed);
    let mut rng = Rng::new(seed ^ 0xabcd_ef01);
    let mut case = Case::new(&format!("seed {seed}"), &source, |binding| {
        let bytes = match binding.name.as_str() {
            "out" => 4 * 24,
            "words" => 4 * 64,
            "records" | "results" => 16 * binding.min_bytes as usize,
            _ => binding.min_bytes as usize,
        };
        vec![0; bytes]
    })
    .map_err(|error| anyhow::anyhow!("{}\n{error:#}", numbered(&source)))?;
    let layout = Layout::of(&source);
    let names: Vec<String> =
        case.kernel.interface().bindings.iter().map(|binding| binding.name.clone()).collect();
    for (name, buffer) in names.iter().zip(&mut case.buffers) {
        if matches!(name.as_str(), "words" | "records" | "results" | "uni") {
            layout.fill(name, buffer, &mut rng);
        }
    }
    Ok(case)
}
