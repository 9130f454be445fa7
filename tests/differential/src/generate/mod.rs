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

mod expressions;
mod statements;

use crate::{case::Case, layout::Layout, rng::Rng};

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

/// A function's name, its parameters with whether each is a pointer, and its result.
type Signature = (String, Vec<(Ty, bool)>, Ty);

struct Generator {
    rng: Rng,
    out: String,
    structs: Vec<Vec<Ty>>,
    scope: Vec<Variable>,
    functions: Vec<Signature>,
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
