//! Every input gets an answer, and the answer says where.

use onebuf_wgsl::{CudaOptions, Error, Module, SpirvOptions};

fn refuse(source: &str) -> Error {
    match Module::parse(source) {
        Err(error) => error,
        Ok(module) => module.specialize(None, &[]).expect_err("it must be refused"),
    }
}

#[test]
fn parse_and_validation_errors_mark_the_line() {
    let error = refuse("@compute @workgroup_size(1)\nfn main() {\n    let é = 1u; let x = é + * 2u;\n}");
    let place = error.location().unwrap();
    assert!(matches!(error, Error::Parse(_)));
    assert_eq!((place.line, place.column), (3, 29));
    let text = error.to_string();
    assert!(
        text.contains("let é = 1u; let x = é + * 2u;") && text.contains('^') && !text.contains('\u{1b}'),
        "{text}"
    );

    let error = refuse(
        "@group(0) @binding(0) var<storage> a: array<u32>;\n@compute @workgroup_size(1) fn main() {\n  a[0] = 1u;\n}",
    );
    assert!(matches!(error, Error::Validation(_) | Error::Parse(_)));
    assert_eq!(error.location().unwrap().line, 3, "{error}");
    assert!(error.to_string().contains("a[0] = 1u;") && error.to_string().contains('^'), "{error}");
}

#[test]
fn what_a_kernel_cannot_have_is_named() {
    let texture = refuse(
        "@group(0) @binding(1) var image: texture_2d<f32>;
         @group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
         @compute @workgroup_size(1) fn main() { out[0] = textureLoad(image, vec2(0, 0), 0); }",
    );
    match &texture {
        Error::Unsupported { construct, diagnostic } => {
            assert_eq!(construct, "texture");
            assert_eq!(diagnostic.location.unwrap().line, 1);
            let text = texture.to_string();
            assert!(text.contains("var image: texture_2d<f32>") && text.contains('^'), "{text}");
        }
        other => panic!("{other}"),
    }
    let both = Module::parse(
        "@group(0) @binding(0) var<storage, read_write> out: array<u32>;
         @vertex fn vertex() -> @builtin(position) vec4<f32> { return vec4(0.0); }
         @compute @workgroup_size(1) fn main() { out[0] = 1u; }",
    )
    .unwrap();
    assert_eq!(both.entry_points().collect::<Vec<_>>(), ["main"]);
    assert!(both.specialize(None, &[]).is_ok());
    assert!(
        matches!(both.specialize(Some("vertex"), &[]), Err(Error::NotCompute { stage, .. }) if stage == "vertex")
    );
}

#[test]
fn entry_points_are_listed_when_the_name_is_wrong() {
    let module =
        Module::parse("@compute @workgroup_size(1) fn one() {} @compute @workgroup_size(1) fn two() {}")
            .unwrap();
    let none = module.specialize(None, &[]).unwrap_err().to_string();
    assert!(none.contains("name one of `one`, `two`"), "{none}");
    let wrong = module.specialize(Some("three"), &[]).unwrap_err().to_string();
    assert!(wrong.contains("no compute entry point `three`; the module has `one`, `two`"), "{wrong}");
    let empty = Module::parse("").unwrap().specialize(None, &[]).unwrap_err();
    assert!(matches!(empty, Error::EntryPoint { available, .. } if available.is_empty()));
}

#[test]
fn hostile_sources_are_refused_or_compiled_but_never_crash() {
    let deep_chain = |n: usize| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> a: array<f32>;
             @compute @workgroup_size(1) fn main() {{ a[0] = a[1]{}; }}",
            " + a[2]".repeat(n)
        )
    };
    // Each term has three tokens that count, so this is just below the limit.
    let module = Module::parse(&deep_chain(3_000)).unwrap();
    module.specialize(None, &[]).unwrap().to_spirv(&SpirvOptions::default()).unwrap();
    assert!(matches!(Module::parse(&deep_chain(100_000)), Err(Error::TooDeep { .. })));

    let elses =
        format!("if a[0] == 0.0 {{ a[0] = 1.0; }} {}", "else if a[1] > 2.0 { a[1] = 3.0; } ".repeat(400));
    let source = format!(
        "@group(0) @binding(0) var<storage, read_write> a: array<f32>;
         @compute @workgroup_size(1) fn main() {{ {elses} }}"
    );
    let module = Module::parse(&source).unwrap();
    module.specialize(None, &[]).unwrap().to_spirv(&SpirvOptions::default()).unwrap();
    drop(module);

    for source in [
        "(".repeat(100_000),
        "fn f() { ".to_owned() + &"{".repeat(100_000),
        "const a = ".to_owned() + &"-".repeat(100_000) + "1;",
        "alias T = ".to_owned() + &"array<".repeat(100_000),
        "fn f(".to_owned(),
        "\u{0}\u{0}\u{feff}".to_owned(),
        "/*".repeat(50_000),
        "@compute @workgroup_size(4294967295, 4294967295, 4294967295) fn main() {}".to_owned(),
        "const x = 1 / 0; @compute @workgroup_size(1) fn main() {}".to_owned(),
        "var<workgroup> big: array<array<array<u32, 65535>, 65535>, 65535>; @compute @workgroup_size(1) fn main() { big[0][0][0] = 1u; }".to_owned(),
    ] {
        let _ = refuse(&source);
    }
}

/// Cut and garbled sources must give an answer as well.
#[test]
fn every_prefix_and_every_garbled_byte_gets_an_answer() {
    let source = "enable f16;
struct S { a: vec3<f32>, @align(32) b: array<u32, 3> }
@group(0) @binding(0) var<storage, read_write> s: array<S>;
fn f(p: ptr<function, u32>, n: i32) -> f16 { *p += u32(n) << 3u; return f16(n); }
@compute @workgroup_size(8) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = id.x; let y = f(&x, 4);
    loop { if x > 9u { break; } continuing { x++; } }
    switch x { case 1u, 2u: { s[x].a.z = f32(y); } default: { s[x].b[x % 3u] = 0x7fu; } }
}";
    let mut accepted = 0;
    let mut answer = |text: &str| {
        if let Ok(module) = Module::parse(text)
            && let Ok(kernel) = module.specialize(None, &[])
        {
            kernel.to_spirv(&SpirvOptions::default()).unwrap();
            accepted += 1;
        }
    };
    answer(source);
    for end in (0..source.len()).filter(|&end| source.is_char_boundary(end)).step_by(3) {
        answer(&source[..end]);
    }
    for (at, replacement) in
        (0..source.len()).step_by(3).zip(["0", "(", "}", "é", ";", "<", "-", "u"].iter().cycle())
    {
        let mut garbled = source.to_owned();
        garbled.replace_range(at..at + 1, replacement);
        answer(&garbled);
    }
    assert!(accepted >= 1);
}

#[test]
fn constants_that_double_at_each_level_are_refused_before_they_fill_the_memory() {
    let source = |levels: u32| {
        let mut text = String::from("const a0 = array<u32, 2>(1, 2);\n");
        for level in 1..=levels {
            text += &format!("const a{level} = array(a{0}, a{0});\n", level - 1);
        }
        let path = "[g.x]".repeat(levels as usize + 1);
        text + &format!(
            "@group(0) @binding(0) var<storage, read_write> o: array<u32>;
             @compute @workgroup_size(1) fn main(@builtin(workgroup_id) g: vec3u) {{
                 var q = a{levels}; o[0] = q{path};
             }}"
        )
    };
    let cuda =
        |levels| Module::parse(&source(levels))?.specialize(None, &[])?.to_cuda(&CudaOptions::default());
    assert!(cuda(8).unwrap().kernel.matches("1u").count() >= 256);
    for levels in [20, 26] {
        let refused = cuda(levels).unwrap_err().to_string();
        assert!(refused.contains("16 MiB") && refused.contains("buffer"), "{refused}");
    }
}
