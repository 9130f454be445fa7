//! How values lie in memory: structs, vectors of three, matrices, arrays, in storage, uniform and immediate memory.

use onebuf::args;
use onebuf_tests::lab;

#[test]
fn structs_lie_as_wgsl_says() {
    lab::on_every_device(|subject| {
        // Offsets: a 0, b 16, c 28, d 32, e 40, f 48 (stride 16), g 80, size 96.
        let kernel = subject.kernel(
            "struct All { a: u32, b: vec3<u32>, c: u32, d: vec2<u32>, e: u32, f: array<vec3<u32>, 2>, g: u32 }
             @group(0) @binding(0) var<storage, read> input: array<All>;
             @group(0) @binding(1) var<storage, read_write> output: array<All>;
             @compute @workgroup_size(1) fn copy(@builtin(global_invocation_id) id: vec3<u32>) {
                 let i = input[id.x];
                 output[id.x] = All(i.a + 1u, i.b + 2u, i.c + 3u, i.d + 4u, i.e + 5u, i.f, i.g + 7u);
                 output[id.x].f[1].z += 6u;
             }",
        );
        let binding = &kernel.interface().bindings[0];
        assert_eq!((binding.min_bytes, binding.stride_bytes), (96, Some(96)));
        let words: Vec<u32> = (0..48).map(|i| i * 1000).collect();
        let (input, output) = (subject.buffer(&words), subject.buffer(&[0xffu32; 48]));
        subject.run(&kernel, [2, 1, 1], args![input, output]);
        let seen = output.read().unwrap();
        // Word in the struct and what is added there; other words are padding.
        let members = [
            (0, 1),
            (4, 2),
            (5, 2),
            (6, 2),
            (7, 3),
            (8, 4),
            (9, 4),
            (10, 5),
            (12, 0),
            (13, 0),
            (14, 0),
            (16, 0),
            (17, 0),
            (18, 6),
            (20, 7),
        ];
        for element in [0, 24] {
            for (word, add) in members {
                assert_eq!(seen[element + word], words[element + word] + add, "word {word}");
            }
            for padding in [1, 2, 3, 11, 21, 22, 23] {
                assert_eq!(seen[element + padding], 0xff, "padding {padding}");
            }
        }
    });
}

#[test]
fn vectors_of_three_are_sixteen_bytes_apart() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "@group(0) @binding(0) var<storage, read_write> data: array<vec3<f32>>;
             @compute @workgroup_size(1) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                 data[id.x] = data[id.x].zyx * 2.0;
             }",
        );
        let values: Vec<[f32; 4]> = (0..50).map(|i| [i as f32, 100.0 + i as f32, 200.0, -1.0]).collect();
        let data = subject.buffer(&values);
        subject.run(&kernel, [50, 1, 1], args![data]);
        for (i, seen) in data.read().unwrap().iter().enumerate() {
            let i = i as f32;
            assert_eq!(*seen, [400.0, 200.0 + 2.0 * i, 2.0 * i, -1.0]);
        }
    });
}

#[test]
fn matrices_are_columns() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "struct Both { m: mat3x3<f32>, n: mat4x2<f32> }
             @group(0) @binding(0) var<uniform> both: Both;
             @group(0) @binding(1) var<storage, read_write> out: array<f32>;
             @compute @workgroup_size(1) fn f() {
                 let v = both.m * vec3(1.0, 10.0, 100.0);
                 let w = both.n * vec4(1.0, 10.0, 100.0, 1000.0);
                 out[0] = v.x; out[1] = v.y; out[2] = v.z; out[3] = w.x; out[4] = w.y;
                 out[5] = both.m[2][1];
             }",
        );
        // Three columns of three at a stride of 16 bytes, then four columns of two.
        let mut words = vec![1.0f32, 2.0, 3.0, -9.0, 4.0, 5.0, 6.0, -9.0, 7.0, 8.0, 9.0, -9.0];
        words.extend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let (both, out) = (subject.buffer(&words), subject.zeros::<f32>(6));
        subject.run(&kernel, [1, 1, 1], args![both, out]);
        assert_eq!(*out.read().unwrap(), [741.0, 852.0, 963.0, 7531.0, 8642.0, 8.0]);
    });
}

#[test]
fn nested_pointers_and_functions_reach_the_same_bytes() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "struct Inner { x: array<vec2<u32>, 3> }
             struct Outer { head: u32, inner: array<Inner, 2> }
             @group(0) @binding(0) var<storage, read_write> data: array<Outer>;
             fn bump(p: ptr<function, Inner>, by: u32) { (*p).x[1].y += by; }
             fn at(i: u32, j: u32) -> u32 { return data[i].inner[j].x[2].x; }
             @compute @workgroup_size(1) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                 let outer = &data[id.x];
                 let inner = &(*outer).inner[1];
                 (*inner).x[0].x += 1u;
                 var copy = (*outer).inner[0];
                 bump(&copy, 10u);
                 (*outer).inner[0] = copy;
                 (*outer).head = at(id.x, 1u);
             }",
        );
        // 8 bytes of head with padding, two inners of 24.
        let words: Vec<u32> = (0..28).collect();
        let data = subject.buffer(&words);
        subject.run(&kernel, [2, 1, 1], args![data]);
        let seen = data.read().unwrap();
        for outer in [0usize, 14] {
            for (i, word) in seen[outer..outer + 14].iter().enumerate() {
                let old = (outer + i) as u32;
                let expected = match i {
                    0 => outer as u32 + 12,
                    5 => old + 10,
                    8 => old + 1,
                    _ => old,
                };
                // The second word is padding, which a copy need not keep but may not need to touch either.
                assert!(i == 1 || *word == expected, "word {i} of {outer}: {word}, {expected} expected");
            }
        }
    });
}

#[test]
fn immediates_lie_as_structs_do() {
    lab::on_real_devices(|subject| {
        let kernel = subject.kernel(
            "struct P { a: f32, b: vec3<f32>, c: f32, d: vec2<f32>, e: mat2x2<f32> }
             var<immediate> p: P;
             @group(0) @binding(0) var<storage, read_write> out: array<f32>;
             @compute @workgroup_size(1) fn f() {
                 out[0] = p.a; out[1] = p.b.y; out[2] = p.c; out[3] = p.d.y; out[4] = p.e[1].x;
             }",
        );
        assert_eq!(kernel.interface().immediate_bytes, 64);
        let mut words = [0f32; 16];
        (words[0], words[5], words[7], words[9], words[12]) = (1.0, 2.0, 3.0, 4.0, 5.0);
        let out = subject.zeros::<f32>(5);
        subject.run(&kernel, [1, 1, 1], args![out, words]);
        assert_eq!(*out.read().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    });
}
