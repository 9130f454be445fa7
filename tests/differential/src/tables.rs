//! The tables: every operator and built-in on scalars, with the accuracy that WGSL (section 15.7.4) asks for.

use crate::{
    half,
    probe::{Check, Kind, Probe, Table, exact, float, near, permitted},
};

fn signed(values: &[i64]) -> Vec<(f64, u64)> {
    values.iter().map(|&value| (value as f64, value as u64)).collect()
}

fn floats(values: &[f32]) -> Vec<(f64, u64)> {
    values.iter().map(|&value| (f64::from(value), u64::from(value.to_bits()))).collect()
}

/// The end of the range in which WGSL bounds the error of sine and cosine.
const PI: f64 = std::f32::consts::PI as f64;

const I32: &[i64] = &[
    -2147483648,
    -2147483647,
    -65536,
    -129,
    -128,
    -33,
    -2,
    -1,
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    127,
    128,
    255,
    65535,
    0x5555_5555,
    2147483646,
    2147483647,
];
const U32: &[i64] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    40,
    64,
    127,
    128,
    255,
    256,
    65535,
    65536,
    0x8000_0000,
    0x5555_5555,
    0xf0f0_f0f0,
    0xffff_fffe,
    0xffff_ffff,
];
const I64: &[i64] = &[
    i64::MIN,
    i64::MIN + 1,
    -4294967296,
    -2147483648,
    -2,
    -1,
    0,
    1,
    2,
    63,
    64,
    4294967295,
    4294967296,
    i64::MAX - 1,
    i64::MAX,
];
const I16: &[i64] =
    &[-32768, -32767, -256, -181, -129, -2, -1, 0, 1, 2, 7, 15, 16, 127, 255, 182, 0x5555, 32766, 32767];
const F32: &[f32] = &[
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    -1.5,
    2.5,
    -2.5,
    0.49999997,
    -0.49999997,
    0.25,
    -0.75,
    3.7,
    -3.7,
    100.25,
    -100.75,
    8388607.5,
    -8388607.5,
    8388608.0,
    16777217.0,
    2147483520.0,
    2147483648.0,
    -2147483648.0,
    -2147483904.0,
    4294967040.0,
    4294967296.0,
    1e10,
    -1e10,
    9.223372e18,
    1.8446744e19,
    1e20,
    -1e20,
    1e-10,
    -1e-10,
    f32::MIN_POSITIVE,
    f32::MAX,
    -f32::MAX,
    std::f32::consts::PI,
];
/// Values on which functions of one argument have something to say.
const SMOOTH: &[f32] = &[
    0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    0.1,
    -0.1,
    0.9,
    -0.9,
    0.001,
    -0.001,
    1e-6,
    1.5,
    -1.5,
    2.0,
    -2.0,
    2.5,
    3.0,
    -3.0,
    3.1415925,
    -3.1415925,
    std::f32::consts::FRAC_PI_4,
    std::f32::consts::FRAC_PI_2,
    4.0,
    10.0,
    -10.0,
    20.5,
    -20.5,
    50.0,
    87.0,
    -87.0,
    100.0,
    1000.0,
    65504.0,
    1e6,
    1e10,
    1e30,
];
const FEW: &[f32] = &[0.0, 1.0, -1.0, 0.5, -2.25, 3.0, 7.5, 0.125, -100.0, 1e4];

/// The distance between neighbouring floats at `value`.
fn ulp(value: f64) -> f64 {
    let exponent = value.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (exponent - 23.0).exp2()
}

/// A result with an error of some units in the last place, or `None` where it does not fit an f32.
fn within(value: f64, ulps: f64) -> Option<(f64, f64)> {
    (value.is_finite() && value.abs() <= f64::from(f32::MAX)).then(|| (value, ulps * ulp(value)))
}

fn absolute(value: f64, error: f64) -> Option<(f64, f64)> {
    Some((value, error))
}

fn unary_float() -> Vec<Probe> {
    vec![
        near("sin(x)", |a| if a[0].abs() <= PI { absolute(a[0].sin(), 2f64.powi(-11)) } else { None }),
        near("cos(x)", |a| if a[0].abs() <= PI { absolute(a[0].cos(), 2f64.powi(-11)) } else { None }),
        // sin / cos: the error of the sine over the cosine, and the cosine's times the tangent over the cosine.
        near("tan(x)", |a| {
            let (s, c) = (a[0].sin(), a[0].cos());
            let inside = a[0].abs() <= PI && c.abs() > 0.01;
            inside.then(|| {
                (
                    s / c,
                    2f64.powi(-11) * (1.0 + (s / c).abs()) / (c.abs() - 2f64.powi(-11)) + 3.0 * ulp(s / c),
                )
            })
        }),
        near("asin(x)", |a| if a[0].abs() <= 1.0 { absolute(a[0].asin(), 6.81e-5) } else { None }),
        near("acos(x)", |a| if a[0].abs() <= 1.0 { absolute(a[0].acos(), 6.77e-5) } else { None }),
        near("atan(x)", |a| within(a[0].atan(), 4096.0)),
        near("sinh(x)", |a| {
            if a[0].abs() < 20.0 { absolute(a[0].sinh(), 1e-5 * (1.0 + a[0].abs().exp())) } else { None }
        }),
        near("cosh(x)", |a| {
            if a[0].abs() < 20.0 { absolute(a[0].cosh(), 1e-5 * (1.0 + a[0].abs().exp())) } else { None }
        }),
        near("tanh(x)", |a| if a[0].abs() < 20.0 { absolute(a[0].tanh(), 1e-5) } else { None }),
        near("asinh(x)", |a| {
            if a[0].abs() < 1e4 { absolute(a[0].asinh(), 1e-4 * (1.0 + a[0].abs())) } else { None }
        }),
        near("acosh(x)", |a| if a[0] >= 1.0 && a[0] < 1e4 { absolute(a[0].acosh(), 1e-3) } else { None }),
        near("atanh(x)", |a| if a[0].abs() < 0.95 { absolute(a[0].atanh(), 1e-5) } else { None }),
        near("exp(x)", |a| within(a[0].exp(), 3.0 + 2.0 * a[0].abs())),
        near("exp2(x)", |a| within(a[0].exp2(), 3.0 + 2.0 * a[0].abs())),
        near("log(x)", |a| match a[0] {
            x if x <= 0.0 => None,
            x if (0.5..=2.0).contains(&x) => absolute(x.ln(), 2f64.powi(-21)),
            x => within(x.ln(), 3.0),
        }),
        near("log2(x)", |a| match a[0] {
            x if x <= 0.0 => None,
            x if (0.5..=2.0).contains(&x) => absolute(x.log2(), 2f64.powi(-21)),
            x => within(x.log2(), 3.0),
        }),
        near("sqrt(x)", |a| if a[0] >= 0.0 { within(a[0].sqrt(), 5.0) } else { None }),
        near("inverseSqrt(x)", |a| if a[0] > 0.0 { within(1.0 / a[0].sqrt(), 2.0) } else { None }),
        near("radians(x)", |a| within(a[0].to_radians(), 2.0)),
        near("degrees(x)", |a| within(a[0].to_degrees(), 2.0)),
        near("length(x)", |a| within(a[0].abs(), 0.0)),
        near("1.0 / x", |a| if a[0] != 0.0 { within(1.0 / a[0], 2.5) } else { None }),
    ]
}

fn integer_unary() -> [Probe; 11] {
    [
        exact("u32(abs(x))"),
        exact("u32(countOneBits(x))"),
        exact("u32(countLeadingZeros(x))"),
        exact("u32(countTrailingZeros(x))"),
        exact("u32(reverseBits(x))"),
        exact("u32(firstLeadingBit(x))"),
        exact("u32(firstTrailingBit(x))"),
        exact("u32(~x)"),
        exact("select(0u, 1u, bool(x))"),
        float("f32(x)"),
        exact("u32(x)"),
    ]
}

fn integer_binary() -> Vec<Probe> {
    [
        "u32(x + y)",
        "u32(x - y)",
        "u32(x * y)",
        "u32(x / y)",
        "u32(x % y)",
        "u32(x & y)",
        "u32(x | y)",
        "u32(x ^ y)",
        "u32(min(x, y))",
        "u32(max(x, y))",
        "select(0u, 1u, x < y)",
        "select(0u, 1u, x <= y)",
        "select(0u, 1u, x > y)",
        "select(0u, 1u, x >= y)",
        "select(0u, 1u, x == y)",
        "select(0u, 1u, x != y)",
        "u32(x << u32(y))",
        "u32(x >> u32(y))",
        "u32(extractBits(x, u32(y), 5u))",
        "u32(extractBits(x, 3u, u32(y)))",
        "u32(extractBits(x, u32(y), u32(x)))",
        "u32(insertBits(x, y, 4u, 9u))",
        "u32(insertBits(x, y, u32(y), 8u))",
        "u32(insertBits(x, y, 28u, u32(y)))",
        "u32(dot(vec2(x, y), vec2(y, x)))",
        "u32(clamp(x, min(x, y), max(x, y)))",
    ]
    .map(exact)
    .to_vec()
}

/// Every table that needs no optional feature, then those that need one.
pub fn all() -> Vec<Table> {
    let mut i32_unary = integer_unary().to_vec();
    i32_unary.extend(
        [
            "u32(-x)",
            "u32(sign(x))",
            "bitcast<u32>(x)",
            "u32(x << 3u)",
            "u32(x >> 3u)",
            "u32(x / 7)",
            "u32(x % -3)",
            "u32(x + 2147483647)",
        ]
        .map(exact),
    );
    let mut u32_unary = integer_unary().to_vec();
    u32_unary.extend(
        ["u32(i32(x))", "x << 5u", "x >> 5u", "x / 10u", "x % 6u", "u32(unpack4xI8(x).w)", "unpack4xU8(x).z"]
            .map(exact),
    );
    u32_unary.extend(
        ["unpack4x8snorm(x).x", "unpack4x8unorm(x).y", "unpack2x16snorm(x).y", "unpack2x16unorm(x).x"].map(
            |expression| {
                let reference: fn(&[f64]) -> Option<(f64, f64)> = match expression.as_bytes()[6] {
                    b'4' if expression.contains("snorm") => {
                        |a| within((f64::from(a[0] as u32 as u8 as i8) / 127.0).max(-1.0), 3.0)
                    }
                    b'4' => |a| within(f64::from((a[0] as u32 >> 8) as u8) / 255.0, 3.0),
                    _ if expression.contains("snorm") => {
                        |a| within((f64::from((a[0] as u32 >> 16) as u16 as i16) / 32767.0).max(-1.0), 3.0)
                    }
                    _ => |a| within(f64::from(a[0] as u32 as u16) / 65535.0, 3.0),
                };
                near(expression, reference)
            },
        ),
    );
    let mut u32_binary = integer_binary();
    u32_binary.extend(
        [
            "u32(dot4I8Packed(x, y))",
            "dot4U8Packed(x, y)",
            "pack4xU8(vec4(x, y, x, y))",
            "pack4xU8Clamp(vec4(x, y, x, y))",
            "pack4xI8(vec4<i32>(vec4(x, y, x, y)))",
            "pack4xI8Clamp(vec4<i32>(vec4(x, y, x, y)))",
        ]
        .map(exact),
    );
    let f32_unary = vec![
        float("-x"),
        float("abs(x)"),
        float("floor(x)"),
        float("ceil(x)"),
        float("trunc(x)"),
        float("round(x)"),
        float("sign(x)"),
        float("saturate(x)"),
        exact("u32(i32(x))"),
        exact("u32(x)"),
        exact("bitcast<u32>(x)"),
        exact("select(0u, 1u, bool(x))"),
        float("modf(x).whole"),
        float("modf(x).fract"),
        Probe {
            expression: "frexp(x).fract",
            float: true,
            check: Check::ExactWhere(|a| a[0] != 0.0 && a[0].abs() > 1.2e-38),
        },
        Probe {
            expression: "u32(frexp(x).exp)",
            float: false,
            check: Check::ExactWhere(|a| a[0] != 0.0 && a[0].abs() > 1.2e-38),
        },
        Probe {
            expression: "quantizeToF16(x)",
            float: true,
            check: Check::Permitted(|a, bits| half::permits(a[0], f64::from(f32::from_bits(bits)))),
        },
        near("fract(x)", |a| within(a[0] - a[0].floor(), 1.0)),
        float("ldexp(x, 3)"),
        float("ldexp(x, -2)"),
    ];
    let f32_binary = vec![
        float("x + y"),
        float("x - y"),
        float("x * y"),
        float("min(x, y)"),
        float("max(x, y)"),
        float("step(x, y)"),
        exact("select(0u, 1u, x < y)"),
        exact("select(0u, 1u, x <= y)"),
        exact("select(0u, 1u, x == y)"),
        exact("select(0u, 1u, x != y)"),
        near("x / y", |a| {
            let divisor = a[1].abs();
            ((2f64.powi(-126)..=2f64.powi(126)).contains(&divisor))
                .then(|| within(a[0] / a[1], 2.5))
                .flatten()
        }),
    ];
    let few_binary = vec![
        near(
            "atan2(x, y)",
            |a| if a[0] != 0.0 && a[1] != 0.0 { within(a[0].atan2(a[1]), 4096.0) } else { None },
        ),
        // exp2(y * log2(x)): the error of the logarithm grows with y.
        near("pow(x, y)", |a| {
            let value = a[0].powf(a[1]);
            let exponent = a[1] * a[0].log2();
            (a[0] > 0.0 && exponent.abs() < 120.0).then(|| {
                (value, value * (2f64.powi(-20) * (1.0 + a[1].abs()) + exponent.abs() * 1e-6 + 1e-6))
            })
        }),
        near("x % y", |a| {
            let quotient = a[0] / a[1];
            (a[1] != 0.0 && quotient.abs() < 1e5)
                .then(|| (a[0] - a[1] * quotient.trunc(), ulp(a[0]) * 4.0 + ulp(a[1]) * 4.0))
        }),
        near("distance(x, y)", |a| within((a[0] - a[1]).abs(), 8.0)),
        float("ldexp(x, i32(clamp(y, -20.0, 20.0)))"),
        exact("pack4x8unorm(vec4(x, y, x, y) * 0.25)"),
        exact("pack2x16unorm(vec2(x, y))"),
        permitted("pack2x16float(vec2(x, y))", |a, bits| {
            half::permits(a[0], half::from_bits(bits as u16))
                && half::permits(a[1], half::from_bits((bits >> 16) as u16))
        }),
        permitted("bitcast<u32>(unpack2x16float(pack2x16float(vec2(x, y))).y)", |a, bits| {
            half::permits(a[1], f64::from(f32::from_bits(bits)))
        }),
    ];
    let f32_ternary = vec![
        float("clamp(x, min(y, z), max(y, z))"),
        float("select(x, y, z > 0.5)"),
        near("fma(x, y, z)", |a| Some((a[0] * a[1] + a[2], ulp(a[0] * a[1]) + ulp(a[0] * a[1] + a[2])))),
        near("mix(x, y, z)", |a| {
            Some((
                a[0] * (1.0 - a[2]) + a[1] * a[2],
                4.0 * (ulp(a[0] * (1.0 + a[2].abs())) + ulp(a[1] * a[2])),
            ))
        }),
        near("smoothstep(x, y, z)", |a| {
            let t = ((a[2] - a[0]) / (a[1] - a[0])).clamp(0.0, 1.0);
            (a[0] < a[1]).then_some((t * t * (3.0 - 2.0 * t), 1e-5))
        }),
        near("length(vec3(x, y, z))", |a| within((a[0] * a[0] + a[1] * a[1] + a[2] * a[2]).sqrt(), 16.0)),
        near("dot(vec3(x, y, z), vec3(z, x, y))", |a| {
            Some((
                a[0] * a[2] + a[1] * a[0] + a[2] * a[1],
                4.0 * (ulp(a[0] * a[2]) + ulp(a[0] * a[1]) + ulp(a[1] * a[2])),
            ))
        }),
        near("normalize(vec3(x, y, z)).y", |a| {
            let length = (a[0] * a[0] + a[1] * a[1] + a[2] * a[2]).sqrt();
            (length > 0.0).then(|| (a[1] / length, 2e-6))
        }),
        near("cross(vec3(x, y, z), vec3(z, 1.0, x)).x", |a| {
            Some((a[1] * a[0] - a[2], 4.0 * (ulp(a[1] * a[0]) + ulp(a[2]))))
        }),
    ];
    let mut tables = vec![
        Table::new("i32", &[Kind::I32], &signed(I32), i32_unary),
        Table::new("i32, i32", &[Kind::I32; 2], &signed(I32), integer_binary()),
        Table::new("u32", &[Kind::U32], &signed(U32), u32_unary),
        Table::new("u32, u32", &[Kind::U32; 2], &signed(U32), u32_binary),
        Table::new("f32, exact", &[Kind::F32], &floats(F32), f32_unary),
        Table::new("f32, smooth", &[Kind::F32], &floats(SMOOTH), unary_float()),
        Table::new("f32, f32", &[Kind::F32; 2], &floats(F32), f32_binary),
        Table::new("f32, f32, smooth", &[Kind::F32; 2], &floats(FEW), few_binary),
        Table::new("f32, f32, f32", &[Kind::F32; 3], &floats(FEW), f32_ternary),
    ];
    tables.extend(optional());
    tables
}

/// Tables whose types a device may lack.
fn optional() -> Vec<Table> {
    let long = |expression: &'static str| exact(expression);
    let i64_unary = vec![
        long("u32(x)"),
        long("u32(x >> 32u)"),
        long("u32(-x >> 32u)"),
        long("u32(abs(x) >> 32u)"),
        long("u32(sign(x))"),
        long("u32(~x)"),
        long("u32(u64(x) >> 32u)"),
        long("u32(i32(x))"),
        float("f32(x)"),
        long("u32(i64(f32(x)) >> 33u)"),
        // By the sign of what is widened.
        long("u32(u64(i32(x)) >> 32u)"),
        long("u32(i64(u32(x)) >> 32u)"),
        long("u32(i64(i32(x)) >> 32u)"),
        long("u32(u64(u32(x)) >> 32u)"),
        long("u32((vec3<i64>(vec3(u32(x))).z >> 32u))"),
        long("u32((vec2<u64>(vec2(i32(x))).y >> 32u))"),
    ];
    let i64_binary = [
        "u32(x + y)",
        "u32((x + y) >> 32u)",
        "u32((x - y) >> 32u)",
        "u32((x * y) >> 32u)",
        "u32(x / y)",
        "u32((x / y) >> 32u)",
        "u32(x % y)",
        "u32((x % y) >> 32u)",
        "u32(min(x, y))",
        "u32(max(x, y) >> 32u)",
        "u32((x << u32(y)) >> 32u)",
        "u32(x >> u32(y))",
        "select(0u, 1u, x < y)",
        "select(0u, 1u, x == y)",
        "u32((x & y) >> 32u)",
        "u32((x ^ y) >> 32u)",
    ]
    .map(exact)
    .to_vec();
    let u64_binary = i64_binary.clone();
    // Results as a full word, so that bits above the sixteenth would show.
    let i16_binary = [
        "u32(x + y)",
        "u32(x - y)",
        "u32(x * y)",
        "u32(x / y)",
        "u32(x % y)",
        "u32(-x)",
        "u32(-x + y)",
        "u32((x - x) - y)",
        "u32(i16(0) - x)",
        "u32(x * i16(-1))",
        "u32(x / i16(-1))",
        "u32(~x)",
        "u32(x & y)",
        "u32(x | y)",
        "u32(x ^ y)",
        "u32(x << u32(y))",
        "u32(x >> u32(y))",
        "u32(min(x, y))",
        "u32(max(x, y))",
        "u32(clamp(x, min(x, y), max(x, y)))",
        "u32(abs(x))",
        "u32(sign(x))",
        "u32(i32(x))",
        "u32(u16(x))",
        "u32(i16(i32(x) * 77777))",
        "u32(i16(f32(x) * 3.0))",
        "u32(u16(f32(y) * 3.0))",
        "u32(dot(vec2(x, y), vec2(y, x)))",
        "u32((vec3(x) * vec3(y, x, y) - vec3(y)).z)",
        "select(0u, 1u, x < y)",
        "select(0u, 1u, x + y < x)",
        "select(0u, 1u, x == y)",
        "bitcast<u32>(f32(x))",
    ]
    .map(exact)
    .to_vec();
    let unsigned = |probe: &Probe| {
        !["-x", "i16(-1)", "i16(0)", "abs(", "sign("].iter().any(|text| probe.expression.contains(text))
    };
    let u16_binary = i16_binary.iter().filter(|probe| unsigned(probe)).copied().collect();
    let halves: Vec<(f64, u64)> = [
        (0.0, 0x0000u64),
        (-0.0, 0x8000),
        (1.0, 0x3c00),
        (-1.0, 0xbc00),
        (0.5, 0x3800),
        (1.5, 0x3e00),
        (-2.5, 0xc100),
        (3.1406, 0x4248),
        (100.25, 0x5644),
        (2048.0, 0x6800),
        (-2050.0, 0xe801),
        (65504.0, 0x7bff),
        (0.0999756, 0x2e66),
        (6.1035e-5, 0x0400),
    ]
    .to_vec();
    let f16_binary = vec![
        float("f32(x + y)"),
        float("f32(x - y)"),
        float("f32(x * y)"),
        float("f32(min(x, y))"),
        float("f32(max(x, y))"),
        exact("select(0u, 1u, x < y)"),
        exact("select(0u, 1u, x == y)"),
        float("f32(floor(x))"),
        float("f32(ceil(x))"),
        float("f32(round(x))"),
        float("f32(-x)"),
        float("f32(abs(x))"),
        exact("u32(i32(x))"),
        float("f32(f16(f32(x)))"),
        float("f32(f16(i32(x)))"),
        float("f32(trunc(y))"),
        float("f32(sign(x))"),
        exact("u32(x)"),
        float("f32(select(x, y, x < y))"),
        float("f32(clamp(x, -1.0h, 2.0h))"),
    ];
    let doubles = floats(F32);
    let f64_binary = vec![
        float("f32(x + y)"),
        float("f32(x - y)"),
        float("f32(x * y)"),
        exact("select(0u, 1u, x < y)"),
        exact("u32(i32(x))"),
        exact("u32(x)"),
        float("f32(min(x, y))"),
        float("f32(floor(x))"),
        float("f32(abs(x))"),
        float("f32(-x)"),
        float("f32(f64(i32(f32(y))))"),
        Probe { expression: "f32(x / y)", float: true, check: Check::ExactWhere(|a| a[1] != 0.0) },
    ];
    vec![
        Table::new("i64", &[Kind::I64], &signed(I64), i64_unary),
        Table::new("i64, i64", &[Kind::I64; 2], &signed(I64), i64_binary),
        Table::new("u64, u64", &[Kind::U64; 2], &signed(I64), u64_binary),
        Table::new("i16, i16", &[Kind::I16; 2], &signed(I16), i16_binary),
        Table::new("u16, u16", &[Kind::U16; 2], &signed(I16), u16_binary),
        Table::new("f16, f16", &[Kind::F16; 2], &halves, f16_binary),
        Table::new("f64, f64", &[Kind::F64; 2], &doubles, f64_binary),
    ]
}
