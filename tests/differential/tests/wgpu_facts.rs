//! The facts that wgpu's own GPU tests check (struct_layout, numeric_builtins, data_builtins, zero_init_workgroup_mem,
//! array_size_overrides, subgroup_operations), checked of printed CUDA C++ on the CPU, and of SPIR-V on the Vulkan device.
//!
//! `ONEBUF_SHADERS` may name a checkout of wgpu, whose subgroup shader then runs as it is.

use std::io::Write as _;
use std::{env, fs, path::Path};

use onebuf_core::kernel::Override;
use onebuf_differential::{
    case::Case,
    device::Runner,
    host::{self, Sanitize},
    required,
};
use onebuf_wgsl::Module;

/// Expressions in `data`, which holds the words 0, 1, 2, ..., each with the value it must have.
struct Fact {
    name: String,
    header: String,
    members: String,
    expressions: Vec<(String, u32)>,
}

fn fact(name: &str, header: &str, members: &str, expressions: Vec<(String, u32)>) -> Fact {
    Fact { name: name.to_owned(), header: header.to_owned(), members: members.to_owned(), expressions }
}

fn bits(path: &str, word: u32) -> (String, u32) {
    (format!("bitcast<u32>({path})"), word)
}

const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];

fn layout_facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    for scalar in ["f32", "u32", "i32"] {
        for n in 2..5usize {
            let paths =
                |base: &str| (0..n).map(|c| bits(&format!("{base}.{}", COMPONENTS[c]), c as u32)).collect();
            facts.push(fact(
                &format!("vec{n}<{scalar}>"),
                "",
                &format!("m: vec{n}<{scalar}>"),
                paths("data.m"),
            ));
            facts.push(fact(
                &format!("vec{n}<{scalar}>, loaded"),
                "",
                &format!("m: vec{n}<{scalar}>"),
                paths("loaded.m"),
            ));
        }
        facts.push(fact(
            "a scalar behind a vec3",
            "",
            &format!("v: vec3<{scalar}>, s: {scalar}"),
            vec![bits("data.s", 3)],
        ));
        for columns in 2..5 {
            let members = format!("m: mat{columns}x3<f32>, s: {scalar}");
            facts.push(fact("a scalar behind a matrix", "", &members, vec![bits("data.s", columns * 4)]));
        }
        let inner = format!("struct Inner {{ v: vec3<{scalar}>, s: u32, t: u32 }}");
        let paths = [
            ("[0].v.x", 0),
            ("[0].v.z", 2),
            ("[0].s", 3),
            ("[0].t", 4),
            ("[1].v.x", 8),
            ("[1].v.y", 9),
            ("[1].s", 11),
            ("[1].t", 12),
        ];
        let paths = paths.iter().map(|(path, word)| bits(&format!("data.a{path}"), *word)).collect();
        facts.push(fact("a struct of 20 bytes takes 32", &inner, "a: array<Inner, 2>", paths));
    }
    for columns in 2..5usize {
        for rows in 2..5usize {
            let stride = if rows == 3 { 4 } else { rows };
            for base in ["data.m", "loaded.m"] {
                let cells = (0..columns).flat_map(|c| (0..rows).map(move |r| (c, r)));
                let paths = cells
                    .map(|(c, r)| bits(&format!("{base}[{c}].{}", COMPONENTS[r]), (c * stride + r) as u32))
                    .collect();
                facts.push(fact(
                    &format!("mat{columns}x{rows}, {base}"),
                    "",
                    &format!("m: mat{columns}x{rows}<f32>"),
                    paths,
                ));
            }
        }
    }
    let nested = [
        ("inner.s", 0),
        ("inner.m[0].x", 4),
        ("inner.m[0].z", 6),
        ("inner.m[1].x", 8),
        ("inner.m[1].y", 9),
        ("inner.t", 12),
        ("u", 16),
        ("v.x", 20),
        ("v.z", 22),
        ("w", 23),
    ];
    facts.push(fact(
        "nested",
        "struct Inner { s: f32, m: array<vec3<f32>, 2>, t: f32 }",
        "inner: Inner, u: f32, v: vec3<f32>, w: f32",
        nested.iter().map(|(path, word)| bits(&format!("data.{path}"), *word)).collect(),
    ));
    let low = |path: &str, word| (format!("u32(data.{path} & 0xffffffff)"), word);
    let high = |path: &str, word| (format!("u32((data.{path} >> 32u) & 0xffffffff)"), word);
    facts.push(fact(
        "64-bit, nested",
        "struct Inner { s: u64, t: u32, m: array<vec3<u64>, 2> }",
        "inner: Inner",
        vec![
            low("inner.s", 0),
            high("inner.s", 1),
            bits("data.inner.t", 2),
            low("inner.m[0].x", 8),
            high("inner.m[0].z", 13),
            low("inner.m[1].x", 16),
            high("inner.m[1].z", 21),
        ],
    ));
    facts.push(fact(
        "64-bit, between 32-bit",
        "struct Inner { s: u32, t: u64, u: u32 }",
        "inner: Inner, v: vec3<i64>",
        vec![
            bits("data.inner.s", 0),
            low("inner.t", 2),
            high("inner.t", 3),
            bits("data.inner.u", 4),
            low("v.x", 8),
            high("v.z", 13),
        ],
    ));
    facts
}

/// Built-ins on constants that no compiler folds: `data.zero` is 0.
fn builtin_facts() -> Vec<Fact> {
    let float = |expression: &str, value: f32| (format!("bitcast<u32>({expression})"), value.to_bits());
    let plain = |expression: &str, value: u32| (expression.to_owned(), value);
    let expressions = vec![
        float("clamp(20.0 + f32(data.zero), 0.0, 10.0)", 10.0),
        float("clamp(-10.0 + f32(data.zero), 0.0, 10.0)", 0.0),
        float("clamp(5.0 + f32(data.zero), 0.0, 10.0)", 5.0),
        plain("unpack4xU8(0xAABBCCDDu + data.zero).x", 0xdd),
        plain("unpack4xU8(0xAABBCCDDu + data.zero).w", 0xaa),
        plain("u32(unpack4xI8(0x11223344u + data.zero).y)", 0x33),
        plain("u32(unpack4xI8(0xFFu + data.zero).x)", 0xffff_ffff),
        plain("u32(unpack4xI8(0xFFu + data.zero).y)", 0),
        plain("pack4xU8(vec4(0xDDu, 0xCCu, 0xBBu, 0xAAu) + data.zero)", 0xaabb_ccdd),
        plain("pack4xI8(vec4(0x44, 0x33, 0x22, 0x11) + i32(data.zero))", 0x1122_3344),
        plain("pack4xI8(vec4(-188, -205, -222, -239) + i32(data.zero))", 0x1122_3344),
        plain("pack4xU8Clamp(vec4(300u, 255u, 3u, 0u) + data.zero)", 0x0003_ffff),
        plain("pack4xI8Clamp(vec4(300, -300, 5, 0) + i32(data.zero))", 0x0005_807f),
    ];
    vec![fact("built-ins", "", "zero: u32", expressions)]
}

fn case_of(fact: &Fact, space: &str) -> Case {
    let stores: String = fact
        .expressions
        .iter()
        .enumerate()
        .map(|(index, (expression, _))| format!("    out[{index}] = {expression};\n"))
        .collect();
    let source = format!(
        "{}\nstruct Data {{ {} }}\n@group(0) @binding(0) var<{space}> data: Data;\n\
         @group(0) @binding(1) var<storage, read_write> out: array<u32>;\n\
         @compute @workgroup_size(1) fn main() {{\n    let loaded = data;\n{stores}}}",
        fact.header, fact.members
    );
    Case::new(&fact.name, &source, |binding| match binding.name.as_str() {
        "data" => (0..binding.min_bytes as u32 / 4).flat_map(u32::to_le_bytes).collect(),
        _ => vec![0xee; 4 * fact.expressions.len()],
    })
    .unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn layout_and_builtins_are_as_wgpu_expects() {
    let facts: Vec<Fact> = layout_facts().into_iter().chain(builtin_facts()).collect();
    let cases: Vec<Case> = facts.iter().map(|fact| case_of(fact, "storage")).collect();
    let all: Vec<&Case> = cases.iter().collect();
    let host = host::run(&all, Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
    let mut outcomes = vec![("CPU", host.into_iter().map(Some).collect())];
    if let Some(runner) = Runner::open().unwrap_or_else(|error| panic!("{error:#}")) {
        outcomes.push(("device", runner.run(&all).unwrap_or_else(|error| panic!("{error:#}"))));
    }
    let mut checked = 0;
    for (device, outcomes) in &outcomes {
        for ((fact, case), outcome) in facts.iter().zip(&cases).zip(outcomes) {
            let Some(outcome) = outcome else { continue };
            let out = &outcome[case.kernel.interface().position("out").unwrap()];
            for ((expression, expected), word) in fact.expressions.iter().zip(out.chunks_exact(4)) {
                let got = u32::from_le_bytes(word.try_into().unwrap());
                assert_eq!(got, *expected, "{device}: {}: {expression}", fact.name);
                checked += 1;
            }
        }
    }
    println!("{} facts, {checked} values", facts.len());
}

#[test]
fn uniform_layouts_are_the_same() {
    let facts: Vec<Fact> = layout_facts().into_iter().filter(|fact| !fact.name.contains("64")).collect();
    let cases: Vec<Case> = facts.iter().map(|fact| case_of(fact, "uniform")).collect();
    let outcomes = host::run(&cases.iter().collect::<Vec<_>>(), Sanitize::Arithmetic)
        .unwrap_or_else(|error| panic!("{error:#}"));
    for ((fact, case), outcome) in facts.iter().zip(&cases).zip(outcomes) {
        let out = &outcome[case.kernel.interface().position("out").unwrap()];
        for ((expression, expected), word) in fact.expressions.iter().zip(out.chunks_exact(4)) {
            assert_eq!(
                u32::from_le_bytes(word.try_into().unwrap()),
                *expected,
                "{}: {expression}",
                fact.name
            );
        }
    }
}

/// Workgroup memory is zero at the start of every workgroup, also where one before it has written there; arrays of it are as
/// long as their override says.
#[test]
fn workgroup_memory_starts_as_zero_and_follows_overrides() {
    let source = "
        override n: u32 = 4;
        struct W { list: array<u32, 512>, count: atomic<u32> }
        var<workgroup> w: W;
        var<workgroup> more: array<u32, n + 3>;
        @group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(n) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {
            var sum = atomicLoad(&w.count);
            for (var i = 0u; i < 512u; i++) { sum |= w.list[i]; }
            for (var i = 0u; i < n + 3u; i++) { sum |= more[i]; }
            workgroupBarrier();
            for (var i = 0u; i < 512u; i++) { w.list[i] = i + 1u; }
            more[n + 2u] = 9u;
            atomicStore(&w.count, 3u);
            workgroupBarrier();
            out[g.x * n + t] = 100u + sum + n + more[n + 2u];
        }";
    let module = Module::parse(source).unwrap();
    for n in [4u32, 24] {
        let overrides = vec![Override { name: "n".to_owned(), value: f64::from(n) }];
        let kernel = module.specialize(None, &overrides).unwrap();
        let case = Case {
            name: format!("n = {n}"),
            source: source.to_owned(),
            overrides,
            kernel,
            buffers: vec![vec![0xff; 4 * 5 * n as usize]],
            immediates: Vec::new(),
            grid: [5, 1, 1],
        };
        let mut outcomes = host::run(&[&case], Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
        if let Some(runner) = Runner::open().unwrap_or_else(|error| panic!("{error:#}")) {
            let device = runner.run(&[&case]).unwrap_or_else(|error| panic!("{error:#}"));
            outcomes.extend(device.into_iter().map(|outcome| outcome.expect("a device with u32")));
        }
        for outcome in outcomes {
            assert!(
                outcome[0].chunks_exact(4).all(|word| word == (109 + n).to_le_bytes()),
                "{:?}",
                outcome[0]
            );
        }
    }
}

/// The shuffles behind a `||` that the neighbour has left: what they read is indeterminate in WGSL.
const OF_ABSENT_NEIGHBOURS: u32 = 1 << 24 | 1 << 25;

/// wgpu's own subgroup shader counts what went well in the bits of a word.
#[test]
fn the_subgroup_shader_of_wgpu_passes() {
    let Some(folder) = env::var_os("ONEBUF_SHADERS") else {
        assert!(!required("shaders"), "ONEBUF_REQUIRE names shaders, and ONEBUF_SHADERS is not set");
        let _ = writeln!(std::io::stderr(), "not run: ONEBUF_SHADERS is not set");
        return;
    };
    let places = [
        "tests/tests/subgroup_operations/shader.wgsl",
        "tests/tests/wgpu-gpu/subgroup_operations/shader.wgsl",
    ];
    let source = places.iter().find_map(|place| fs::read_to_string(Path::new(&folder).join(place)).ok());
    let source = source.expect("a checkout of wgpu in ONEBUF_SHADERS");
    let case = Case::new("wgpu's subgroup operations", &source, |_| vec![0; 4 * 128]).unwrap();
    let outcome = host::run(&[&case], Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
    for (i, word) in outcome[0][0].chunks_exact(4).enumerate() {
        assert_eq!(
            u32::from_le_bytes(word.try_into().unwrap()) | OF_ABSENT_NEIGHBOURS,
            u32::MAX,
            "thread {i}"
        );
    }
}
