//! Thousands of sources: random bytes, random tokens, and kernels with something changed.

use std::time::Duration;

use fastrand::Rng;
use onebuf::{Error, Result};
use onebuf_tests::{Subject, kernels, lab, seeds};

/// Kernels to mutate, which use most of the language.
const SEEDS: [&str; 6] = [
    kernels::MIX,
    kernels::SLOW,
    "struct Item { a: vec3<f32>, b: array<u32, 4> }
     override N: u32 = 4u;
     @group(0) @binding(0) var<storage, read_write> items: array<Item>;
     @group(0) @binding(1) var<uniform> m: mat3x3<f32>;
     var<workgroup> tile: array<f32, N * 8u>;
     fn turn(v: vec3<f32>, p: ptr<function, f32>) -> vec3<f32> { *p += 1.0; return m * v; }
     @compute @workgroup_size(N, 2)
     fn main(@builtin(local_invocation_index) i: u32, @builtin(global_invocation_id) id: vec3<u32>) {
         var sum = 0.0;
         tile[i] = items[id.x].a.y;
         workgroupBarrier();
         for (var j = 0u; j < N; j++) { if j == 3u { continue; } sum += tile[(i + j) % (N * 2u)]; }
         items[id.x].a = turn(items[id.x].a, &sum);
         switch i { case 0u, 1u { items[id.x].b[i] = u32(sum); } default { items[id.x].b[i % 4u] |= 1u << i; } }
     }",
    "enable f16;
     @group(0) @binding(0) var<storage, read_write> data: array<vec2<f16>>;
     var<immediate> k: vec4<f32>;
     @compute @workgroup_size(16)
     fn half_way(@builtin(global_invocation_id) id: vec3<u32>) {
         let v = vec2<f32>(data[id.x]);
         data[id.x] = vec2<f16>(select(v.yx, pow(abs(v), vec2(0.5)), v > vec2(0.0)) * k.xy + sin(k.zw));
     }",
    "struct C { n: atomic<u32>, m: atomic<i32>, bins: array<atomic<u32>, 16> }
     @group(1) @binding(3) var<storage, read_write> c: C;
     @group(0) @binding(1) var<storage, read> bytes: array<u32>;
     var<private> seen: array<i32, 3>;
     @compute @workgroup_size(8, 4, 2)
     fn count(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
              @builtin(local_invocation_id) l: vec3<u32>) {
         let word = bytes[g.x * 64u + l.x];
         var i: i32 = -1;
         loop { if i > 3 { break; } seen[u32(i + 1) % 3u] = i; continuing { i += 1; break if i == 9; } }
         atomicAdd(&c.bins[word & 15u], 1u);
         atomicMax(&c.m, seen[1] - i32(n.y));
         _ = atomicCompareExchangeWeak(&c.n, 0u, extractBits(word, 3u, 4u));
     }",
    "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
     @compute @workgroup_size(64)
     fn groups(@builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32,
               @builtin(local_invocation_index) i: u32) {
         out[i] = subgroupAdd(i) + subgroupShuffleXor(lane, 1u) + countOneBits(subgroupBallot(lane < size / 2u).x);
         if subgroupAny(i == 3u) { out[i] = subgroupBroadcastFirst(i); }
     }",
];

/// Words and signs of WGSL.
const TOKENS: [&str; 64] = [
    "fn",
    "let",
    "var",
    "const",
    "override",
    "struct",
    "if",
    "else",
    "for",
    "loop",
    "while",
    "switch",
    "case",
    "default",
    "break",
    "continue",
    "return",
    "array",
    "vec3<f32>",
    "vec4<u32>",
    "mat4x4<f32>",
    "u32",
    "i32",
    "f32",
    "f16",
    "i64",
    "f64",
    "bool",
    "atomic<u32>",
    "ptr<function, u32>",
    "@compute",
    "@workgroup_size(1)",
    "@group(0)",
    "@binding(0)",
    "@builtin(global_invocation_id)",
    "var<storage>",
    "var<workgroup>",
    "var<private>",
    "var<uniform>",
    "var<immediate>",
    "true",
    "0u",
    "-1",
    "4294967295u",
    "1e39",
    "0x1p-200",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ":",
    "=",
    "+",
    "&",
    "*",
    "<",
    ">",
    "->",
    "alias",
    "texture_2d<f32>",
];

fn mutate(rng: &mut Rng, source: &str) -> String {
    let mut bytes = source.as_bytes().to_vec();
    for _ in 0..rng.usize(1..3) {
        let at = rng.usize(0..bytes.len());
        let end = (at + rng.usize(1..30)).min(bytes.len());
        match rng.u32(0..14) {
            0 => bytes[at] = rng.u8(32..127),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let part = bytes[at..end].to_vec();
                let to = rng.usize(0..bytes.len());
                bytes.splice(to..to, part);
            }
            3 | 4 => {
                let token = TOKENS[rng.usize(0..TOKENS.len())];
                bytes.splice(at..at, token.bytes());
            }
            5 => {
                // A number becomes another one.
                if let Some(digit) = bytes.iter().skip(at).position(u8::is_ascii_digit).map(|i| at + i) {
                    let number = ["0", "1", "7", "64", "1000", "65536", "4294967295", "4294967296"];
                    bytes.splice(digit..=digit, number[rng.usize(0..number.len())].bytes());
                }
            }
            6 => bytes.truncate(at.max(1)),
            // The rest keeps the grammar, mostly, so that more of it reaches the driver.
            7..=9 => {
                const SIGNS: [&str; 12] =
                    [" + ", " - ", " * ", " / ", " % ", " & ", " | ", " ^ ", " < ", " > ", " == ", " << "];
                bytes = swap(rng, &bytes, &SIGNS);
            }
            10..=11 => {
                const CALLS: [&str; 12] = [
                    "sin(",
                    "pow(",
                    "abs(",
                    "select(",
                    "subgroupAdd(",
                    "subgroupAny(",
                    "countOneBits(",
                    "atomicAdd(",
                    "atomicMax(",
                    "extractBits(",
                    "u32(",
                    "min(",
                ];
                bytes = swap(rng, &bytes, &CALLS);
            }
            _ => {
                let words = [
                    "u32",
                    "i32",
                    "f32",
                    "vec3",
                    "vec4",
                    "read_write",
                    "read",
                    "storage",
                    "uniform",
                    "workgroup",
                ];
                let (old, new) = (words[rng.usize(0..words.len())], words[rng.usize(0..words.len())]);
                let text = String::from_utf8_lossy(&bytes).replacen(old, new, 1 + rng.usize(0..2));
                bytes = text.into_bytes();
            }
        }
        if bytes.is_empty() {
            bytes.push(b' ');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Puts one of `words` in the place of another, once.
fn swap(rng: &mut Rng, bytes: &[u8], words: &[&str]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let places: Vec<(usize, &str)> = words.iter().flat_map(|word| text.match_indices(word)).collect();
    if places.is_empty() {
        return bytes.to_vec();
    }
    let (at, old) = places[rng.usize(0..places.len())];
    let mut text = text.clone().into_owned();
    text.replace_range(at..at + old.len(), words[rng.usize(0..words.len())]);
    text.into_bytes()
}

fn build(subject: &Subject, source: &str) -> Result<onebuf::Kernel> {
    subject.device.kernel(source)?.build()
}

/// Builds a source, and complains of every outcome but a kernel or an error that a source may give.
fn try_source(subject: &Subject, source: &str) -> bool {
    let outcome = build(subject, source);
    let complaints = lab::complaints();
    assert!(complaints.is_empty(), "{}\nfor {source}", complaints.join("\n"));
    match outcome {
        Ok(_) => true,
        Err(Error::InvalidKernel { message, .. }) => {
            assert!(!message.is_empty() && !message.contains("this is a bug"), "{message}\nfor {source}");
            false
        }
        Err(Error::LimitExceeded { .. } | Error::Unsupported { .. }) => false,
        Err(other) => panic!("{other}\nfor {source}"),
    }
}

#[test]
fn random_bytes_are_no_kernels() {
    lab::without_cache();
    lab::on_real_devices(|subject| {
        seeds::each(1000, |rng| {
            let bytes: Vec<u8> = (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect();
            assert!(!try_source(subject, &String::from_utf8_lossy(&bytes)));
        });
    });
}

#[test]
fn random_tokens_are_no_kernels_or_good_ones() {
    lab::without_cache();
    lab::on_real_devices(|subject| {
        seeds::each(1500, |rng| {
            let words: Vec<&str> =
                (0..rng.usize(1..60)).map(|_| TOKENS[rng.usize(0..TOKENS.len())]).collect();
            try_source(subject, &words.join(" "));
        });
    });
}

#[test]
fn mutated_kernels_build_or_say_why_not() {
    lab::without_cache();
    lab::on_real_devices(|subject| {
        for source in SEEDS {
            match build(subject, source) {
                Ok(_) | Err(Error::Unsupported { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        let mut built = 0;
        // NVRTC takes a tenth of a second for a kernel.
        let limit = match &*subject.device.info().id.backend {
            "cuda" => Duration::from_secs(20),
            _ => Duration::MAX,
        };
        let tried = seeds::each_within(4000, limit, |rng| {
            let source = SEEDS[rng.usize(0..SEEDS.len())];
            built += u32::from(try_source(subject, &mutate(rng, source)));
        });
        lab::say(&format!("{built} of {tried} mutated kernels build on {}", subject.name));
    });
}

#[test]
fn hostile_sources_end_in_an_error() {
    lab::without_cache();
    lab::on_real_devices(|subject| {
        let repeat = |text: &str, count: usize| text.repeat(count);
        let entry = "@compute @workgroup_size(1) fn f() { _ = x; }";
        let sources = [
            repeat("(", 100_000),
            repeat("{", 100_000),
            format!("const x = {}1{};{entry}", repeat("(", 5000), repeat(")", 5000)),
            format!("const x = 1{};{entry}", repeat("+1", 50_000)),
            format!("const x = {}1;{entry}", repeat("-", 50_000)),
            format!("const x = {}true;{entry}", repeat("!", 50_000)),
            format!("@compute @workgroup_size(1) fn f() {{ {} }}", repeat("if true {", 3000)),
            format!("@compute @workgroup_size(1) fn f() {{ {} {{}} }}", repeat("if true {} else ", 10_000)),
            format!("alias A = {}u32{};{entry}", repeat("array<", 2000), repeat(", 2>", 2000)),
            format!("var<workgroup> x: {}u32{};{entry}", repeat("array<", 40), repeat(", 2>", 40)),
            format!("var<private> x: array<u32, 1000000000>;{entry}"),
            format!("var<workgroup> x: array<mat4x4<f32>, 0x7fffffff>;{entry}"),
            format!("const x = array<u32, 100000000>();{entry}"),
            "@compute @workgroup_size(1) fn f() { f(); }".to_owned(),
            "struct S { s: S } @group(0) @binding(0) var<storage> s: S; @compute @workgroup_size(1) fn f() { _ = s.s; }".to_owned(),
            "const a = b; const b = a; @compute @workgroup_size(a) fn f() {}".to_owned(),
            "override a = b; override b = a; @compute @workgroup_size(a) fn f() {}".to_owned(),
            "const x = 1 / 0; @compute @workgroup_size(1) fn f() { _ = x; }".to_owned(),
            "override z: i32 = 0; @compute @workgroup_size(1) fn f() { _ = 1 / z; }".to_owned(),
            "override z: u32 = 40; @compute @workgroup_size(1) fn f() { _ = 1u << z; }".to_owned(),
            "@compute @workgroup_size(1, 1, 0xffffffff) fn f() {}".to_owned(),
            "@group(4294967295) @binding(0) var<storage, read_write> a: u32; @compute @workgroup_size(1) fn f() { a = 1; }".to_owned(),
            "@group(0) @binding(4294967295) var<storage, read_write> a: u32; @compute @workgroup_size(1) fn f() { a = 1; }".to_owned(),
            "@id(65536) override a: u32 = 1; @compute @workgroup_size(a) fn f() {}".to_owned(),
            format!("@compute @workgroup_size(1) fn {}() {{}}", repeat("x", 100_000)),
            format!("/*{}", repeat("/*", 100_000)),
            format!("// {}\n", repeat("\u{202e}é", 10_000)),
            "\u{feff}@compute @workgroup_size(1) fn f() {}".to_owned(),
            "@compute @workgroup_size(1) fn f() { loop {} }\0".to_owned(),
        ];
        for source in &sources {
            let start = std::time::Instant::now();
            try_source(subject, source);
            let took = start.elapsed();
            let head: String = source.chars().take(60).collect();
            assert!(took < std::time::Duration::from_secs(20), "{took:?} for {head}");
        }
    });
}
