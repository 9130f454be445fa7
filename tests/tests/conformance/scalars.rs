//! Arithmetic that WGSL defines to the bit, atomics, and scalars that not every device has.

#![allow(clippy::type_complexity)] // Tables of functions.

use half::f16;
use onebuf::{Error, Features, args};
use onebuf_tests::lab;

/// The same function on the CPU.
type Model<T> = fn(T, T) -> T;

/// A kernel with one function applied to pairs.
fn pairs(ty: &str, enable: &str, expression: &str) -> String {
    format!(
        "{enable}
         @group(0) @binding(0) var<storage, read> a: array<{ty}>;
         @group(0) @binding(1) var<storage, read> b: array<{ty}>;
         @group(0) @binding(2) var<storage, read_write> out: array<{ty}>;
         @compute @workgroup_size(8) fn f(@builtin(global_invocation_id) id: vec3<u32>) {{
             let i = id.x;
             if i < min(arrayLength(&out), min(arrayLength(&a), arrayLength(&b))) {{ out[i] = {expression}; }}
         }}"
    )
}

#[test]
fn integers_wrap_and_divide_as_wgsl_says() {
    lab::on_every_device(|subject| {
        let a = [7i32, -7, i32::MIN, i32::MAX, 5, 0, i32::MIN, 1];
        let b = [2i32, 2, -1, -1, 0, 0, 0, i32::MIN];
        let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<i32>(8));
        let cases: [(&str, Model<i32>); 6] = [
            ("a[i] + b[i]", i32::wrapping_add),
            ("a[i] * b[i]", i32::wrapping_mul),
            // Division by zero and the one overflow give the dividend, a remainder of them 0.
            ("a[i] / b[i]", |a, b| a.checked_div(b).unwrap_or(a)),
            ("a[i] % b[i]", |a, b| a.checked_rem(b).unwrap_or(0)),
            ("a[i] << (u32(b[i]) & 31u)", |a, b| a.wrapping_shl(b as u32)),
            ("a[i] >> (u32(b[i]) & 31u)", |a, b| a.wrapping_shr(b as u32)),
        ];
        for (expression, model) in cases {
            let kernel = subject.kernel(&pairs("i32", "", expression));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            let expected: Vec<i32> = a.iter().zip(b).map(|(&a, b)| model(a, b)).collect();
            assert_eq!(*out.read().unwrap(), expected[..], "{expression}");
        }
    });
}

#[test]
fn unsigned_builtins_match() {
    lab::on_every_device(|subject| {
        let a = [0u32, 1, 0x8000_0000, u32::MAX, 0x00f0_0f00, 12_345, 7, 0x0101_0101];
        let b = [5u32, 0, 3, 0, 31, 32, 1, 9];
        let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<u32>(8));
        let cases: [(&str, Model<u32>); 8] = [
            ("countOneBits(a[i])", |a, _| a.count_ones()),
            ("countLeadingZeros(a[i])", |a, _| a.leading_zeros()),
            ("countTrailingZeros(a[i])", |a, _| a.trailing_zeros()),
            ("reverseBits(a[i])", |a, _| a.reverse_bits()),
            ("a[i] / b[i]", |a, b| a.checked_div(b).unwrap_or(a)),
            ("a[i] % b[i]", |a, b| a.checked_rem(b).unwrap_or(0)),
            ("extractBits(a[i], b[i], 8u)", |a, b| {
                let offset = b.min(32);
                let count = 8.min(32 - offset);
                if count == 0 { 0 } else { (a >> offset) & (u32::MAX >> (32 - count)) }
            }),
            ("min(max(a[i], b[i]), 1000u)", |a, b| a.max(b).min(1000)),
        ];
        for (expression, model) in cases {
            let kernel = subject.kernel(&pairs("u32", "", expression));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            let expected: Vec<u32> = a.iter().zip(b).map(|(&a, b)| model(a, b)).collect();
            assert_eq!(*out.read().unwrap(), expected[..], "{expression}");
        }
    });
}

#[test]
fn atomics_count_every_invocation() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "struct All { add: atomic<u32>, sub: atomic<u32>, max: atomic<u32>, min: atomic<u32>, and: atomic<u32>,
                          or: atomic<u32>, xor: atomic<u32>, swapped: atomic<u32>, won: atomic<u32>, signed: atomic<i32> }
             @group(0) @binding(0) var<storage, read_write> all: All;
             @compute @workgroup_size(64) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                 let i = id.x;
                 atomicAdd(&all.add, i);
                 atomicSub(&all.sub, 1u);
                 atomicMax(&all.max, i);
                 atomicMin(&all.min, 5000u - i);
                 atomicAnd(&all.and, ~(1u << (i % 16u)));
                 atomicOr(&all.or, 1u << (i % 32u));
                 atomicXor(&all.xor, i);
                 atomicExchange(&all.swapped, 77u);
                 if atomicCompareExchangeWeak(&all.won, 0u, i + 1u).exchanged { atomicAdd(&all.won, 100000u); }
                 atomicMin(&all.signed, -i32(i));
             }",
        );
        let all = subject.buffer(&[0u32, 4096, 0, u32::MAX, u32::MAX, 0, 0, 0, 0, 0]);
        subject.run(&kernel, [64, 1, 1], args![all]);
        let seen = all.read().unwrap();
        let xor = (0..4096u32).fold(0, |xor, i| xor ^ i);
        assert_eq!(seen[..8], [4095 * 2048, 0, 4095, 905, 0xffff_0000, u32::MAX, xor, 77]);
        // A weak exchange may fail by chance, but at most one invocation wins.
        assert!(seen[8] == 0 || (100_001..=104_096).contains(&seen[8]), "{}", seen[8]);
        assert_eq!(seen[9] as i32, -4095);
    });
}

#[test]
fn half_floats() {
    lab::on_real_devices(|subject| {
        if !subject.has(Features { f16: true, ..Features::default() }) {
            let error = subject.kernel_error(&pairs("f16", "enable f16;", "a[i] + b[i]"));
            return assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        let values = |from: [f32; 8]| from.map(f16::from_f32);
        let a = values([0.0, 1.0, -2.5, 65504.0, 0.0001, 1024.5, -0.0, 3.0]);
        let b = values([1.0, 0.5, 2.5, 1.0, 0.0002, 0.25, 0.0, -3.0]);
        let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<f16>(8));
        let kernel = subject.kernel(&pairs("f16", "enable f16;", "a[i] + b[i]"));
        subject.run(&kernel, [1, 1, 1], args![x, y, out]);
        for (i, seen) in out.read().unwrap().iter().enumerate() {
            let expected = f16::from_f32(a[i].to_f32() + b[i].to_f32());
            let near = (seen.to_f32() - expected.to_f32()).abs() <= expected.to_f32().abs() / 512.0 + 1e-6;
            assert!(near, "{} + {} = {seen}, {expected} expected", a[i], b[i]);
        }
        // In uniforms, structs, vectors and workgroup memory.
        let kernel = subject.kernel(
            "enable f16;
             struct P { a: f16, b: vec3<f16>, c: f32, d: vec2<f16> }
             @group(0) @binding(0) var<uniform> p: P;
             @group(0) @binding(1) var<storage, read_write> out: array<f16>;
             var<workgroup> tile: array<vec2<f16>, 4>;
             @compute @workgroup_size(4) fn f(@builtin(local_invocation_index) i: u32) {
                 tile[i] = p.d * f16(i);
                 workgroupBarrier();
                 out[i] = p.a + p.b.z + f16(p.c) + tile[3u - i].y;
             }",
        );
        let mut bytes = [0u8; 24];
        let mut put =
            |at: usize, value: f32| bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        put(0, 1.0);
        put(12, 2.0);
        put(22, 8.0);
        bytes[16..20].copy_from_slice(&4.0f32.to_le_bytes());
        let (p, out) = (subject.buffer(&bytes), subject.zeros::<f16>(4));
        subject.run(&kernel, [1, 1, 1], args![p, out]);
        assert_eq!(*out.read().unwrap(), [31.0f32, 23.0, 15.0, 7.0].map(f16::from_f32));
    });
}

#[test]
fn half_floats_in_immediates() {
    lab::on_real_devices(|subject| {
        if !subject.has(Features { f16: true, ..Features::default() }) {
            return;
        }
        for (declare, bytes, read) in [
            ("var<immediate> p: f16;", 2usize, "f32(p)"),
            ("var<immediate> p: vec2<f16>;", 4, "f32(p.x)"),
            ("var<immediate> p: vec3<f16>;", 6, "f32(p.x)"),
            ("struct P { a: f16, b: f16, c: f16 } var<immediate> p: P;", 6, "f32(p.a)"),
            ("struct P { a: f16, b: u32 } var<immediate> p: P;", 8, "f32(p.a)"),
        ] {
            let source = format!(
                "enable f16; {declare}
                 @group(0) @binding(0) var<storage, read_write> out: array<f32>;
                 @compute @workgroup_size(1) fn f() {{ out[0] = {read}; }}"
            );
            // It works, or is refused with a reason. (What it may not do is reach the driver and fail there.)
            let kernel = match subject.device.kernel(&source).unwrap().build() {
                Ok(kernel) => kernel,
                Err(Error::Unsupported { .. } | Error::InvalidKernel { .. }) => continue,
                Err(other) => panic!("{declare}: {other}"),
            };
            let mut data = vec![0u8; kernel.interface().immediate_bytes as usize];
            assert!(data.len() >= bytes);
            data[..2].copy_from_slice(&f16::from_f32(1.5).to_le_bytes());
            let out = subject.zeros::<f32>(1);
            let list = [onebuf::Arg::buffer(&out), onebuf::Arg::immediates(&data)];
            subject.run(&kernel, [1, 1, 1], &list);
            assert_eq!(*out.read().unwrap(), [1.5], "{declare}");
        }
    });
}

#[test]
fn wide_integers_and_doubles() {
    lab::on_real_devices(|subject| {
        if subject.has(Features { i64: true, ..Features::default() }) {
            let a = [0u64, u64::MAX, 1 << 40, 12_345_678_901, 7, 0, 1, u64::MAX];
            let b = [1u64, 2, 3 << 33, 98_765_432_109, 0, 0, u64::MAX, u64::MAX];
            let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<u64>(8));
            let kernel = subject.kernel(&pairs("u64", "", "a[i] * b[i] + (a[i] >> 7u) - (b[i] << 3u)"));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            let expected: Vec<u64> = a
                .iter()
                .zip(b)
                .map(|(&a, b)| a.wrapping_mul(b).wrapping_add(a >> 7).wrapping_sub(b << 3))
                .collect();
            assert_eq!(*out.read().unwrap(), expected[..]);
            let signed = [-5i64, i64::MIN, i64::MAX, 0, 9, -9, 1 << 50, -(1 << 50)];
            let divisor = [2i64, -1, -1, 5, 0, 4, 3, 7];
            let (x, y, out) = (subject.buffer(&signed), subject.buffer(&divisor), subject.zeros::<i64>(8));
            let kernel = subject.kernel(&pairs("i64", "", "a[i] / b[i] + (a[i] % b[i]) * 3li"));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            let model = |a: i64, b: i64| {
                let (quotient, rest) = (a.checked_div(b).unwrap_or(a), a.checked_rem(b).unwrap_or(0));
                quotient.wrapping_add(rest.wrapping_mul(3))
            };
            let expected: Vec<i64> = signed.iter().zip(divisor).map(|(&a, b)| model(a, b)).collect();
            assert_eq!(*out.read().unwrap(), expected[..]);
        } else {
            let error = subject.kernel_error(&pairs("u64", "", "a[i] + b[i]"));
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        if subject.has(Features { f64: true, ..Features::default() }) {
            let a = [0.1f64, 1e300, -2.5, 1.0 / 3.0, 1e-300, 0.0, 7.0, -1.0];
            let b = [0.2f64, 1e-300, 4.0, 3.0, 1e10, -0.0, 1e16, 1.0];
            let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<f64>(8));
            let kernel = subject.kernel(&pairs("f64", "", "a[i] * b[i]"));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            let expected: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
            assert_eq!(*out.read().unwrap(), expected[..]);
        } else {
            let error = subject.kernel_error(&pairs("f64", "", "a[i] + b[i]"));
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
    });
}

#[test]
fn wide_and_float_atomics() {
    lab::on_real_devices(|subject| {
        let wide = "
            @group(0) @binding(0) var<storage, read_write> a: array<atomic<u64>>;
            @compute @workgroup_size(64) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                atomicAdd(&a[0], u64(id.x) << 32u); atomicMax(&a[1], u64(id.x) << 33u); atomicMin(&a[2], u64(id.x) + 5lu);
            }";
        if subject.has(Features { i64: true, i64_atomics: true, ..Features::default() }) {
            let a = subject.buffer(&[0u64, 0, u64::MAX]);
            subject.run(&subject.kernel(wide), [4, 1, 1], args![a]);
            assert_eq!(*a.read().unwrap(), [(255 * 128) << 32, 255 << 33, 5]);
        } else {
            assert!(matches!(subject.kernel_error(wide), Error::Unsupported { .. }));
        }
        let float = "
            @group(0) @binding(0) var<storage, read_write> a: array<atomic<f32>>;
            @compute @workgroup_size(64) fn f() { atomicAdd(&a[0], 0.25); }";
        if subject.has(Features { f32_atomics: true, ..Features::default() }) {
            let a = subject.zeros::<f32>(1);
            subject.run(&subject.kernel(float), [16, 1, 1], args![a]);
            assert_eq!(*a.read().unwrap(), [256.0]);
        } else {
            assert!(matches!(subject.kernel_error(float), Error::Unsupported { .. }));
        }
    });
}

#[test]
fn sixteen_bit_integers() {
    lab::on_real_devices(|subject| {
        for ty in ["i16", "u16"] {
            let source = pairs(ty, "enable wgpu_int16;", "a[i] * b[i]");
            if !subject.has(Features { i16: true, ..Features::default() }) {
                assert!(matches!(subject.kernel_error(&source), Error::Unsupported { .. }));
                continue;
            }
            let kernel = subject.kernel(&source);
            let (a, b) = (subject.buffer(&[1i16, 2, -3, 400]), subject.buffer(&[10i16, 20, 30, 400]));
            let out = subject.zeros::<i16>(4);
            let [a, b, bytes] = [&a, &b, &out].map(|buffer| buffer.cast::<u8>().unwrap());
            subject.run(&kernel, [1, 1, 1], args![a, b, bytes]);
            assert_eq!(*out.read().unwrap(), [10, 40, -90, 400i16.wrapping_mul(400)], "{ty}");
        }
    });
}

#[test]
fn floats_match_within_what_wgsl_allows() {
    lab::on_every_device(|subject| {
        let a = [1.0f32, -2.5, 1e-20, 3.0e38, 0.1, 100.25, -0.0, 16_777_217.0];
        let b = [3.0f32, 0.5, 1e20, 2.0, 0.2, -7.0, 5.0, 1.0];
        let (x, y, out) = (subject.buffer(&a), subject.buffer(&b), subject.zeros::<f32>(8));
        let cases: [(&str, Model<f32>); 5] = [
            ("a[i] + b[i]", |a, b| a + b),
            ("a[i] * b[i]", |a, b| a * b),
            ("floor(a[i]) + ceil(b[i])", |a, b| a.floor() + b.ceil()),
            ("clamp(a[i], -1.0, 1.0)", |a, _| a.clamp(-1.0, 1.0)),
            ("f32(i32(clamp(a[i], -1000.0, 1000.0)))", |a, _| a.clamp(-1000.0, 1000.0) as i32 as f32),
        ];
        for (expression, model) in cases {
            let kernel = subject.kernel(&pairs("f32", "", expression));
            subject.run(&kernel, [1, 1, 1], args![x, y, out]);
            for (i, &seen) in out.read().unwrap().iter().enumerate() {
                let expected = model(a[i], b[i]);
                assert!(
                    seen == expected || expected.is_infinite(),
                    "{expression} of {} and {}: {seen}, {expected} expected",
                    a[i],
                    b[i]
                );
            }
        }
    });
}
