//! The CUDA C++ that is printed: a snapshot of each kernel of the corpus, and what a host is told of it.

mod support;

use onebuf_wgsl::{Bounds, CudaOptions, CudaParam, Error, Module};

#[test]
fn snapshots() {
    for (name, kernel) in support::corpus() {
        let source = kernel.to_cuda(&CudaOptions::default()).unwrap();
        insta::assert_snapshot!(name, source.kernel);
    }
}

#[test]
fn parameters_are_described_in_order() {
    let module = Module::parse(
        "
        struct S { n: u32, list: array<vec2<f32>> }
        @group(1) @binding(0) var<storage, read_write> s: S;
        @group(0) @binding(2) var<uniform> scale: vec4<f32>;
        var<immediate> push: vec3<f32>;
        var<workgroup> tile: array<f32, 13>;
        @compute @workgroup_size(32) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            s.list[id.x] = scale.xy * push.z + tile[id.y];
        }",
    )
    .unwrap();
    let kernel = module.specialize(None, &[]).unwrap();
    let source = kernel.to_cuda(&CudaOptions { wide_grid: true, ..CudaOptions::default() }).unwrap();
    assert_eq!(
        source.params,
        [
            CudaParam::Buffer { binding: 0 },
            CudaParam::Buffer { binding: 1 },
            CudaParam::Length { binding: 1 },
            CudaParam::Immediates { size_bytes: 12 },
            CudaParam::GridBase,
            CudaParam::GridGroups,
        ]
    );
    assert_eq!(source.kernel_name, "kernel_main");
    assert_eq!((source.static_shared_bytes, source.dynamic_shared_bytes), (64, 0));
    let unchecked =
        kernel.to_cuda(&CudaOptions { bounds: Bounds::Unchecked, ..CudaOptions::default() }).unwrap();
    assert!(source.kernel.contains("< s_length") && !unchecked.kernel.contains("< s_length"));
}

#[test]
fn large_workgroup_memory_is_given_at_launch() {
    let (_, kernel) = support::corpus().into_iter().find(|(name, _)| name == "workgroup_large").unwrap();
    let source = kernel.to_cuda(&CudaOptions::default()).unwrap();
    assert_eq!((source.static_shared_bytes, source.dynamic_shared_bytes), (0, 4 * 16384 + 16));
}

#[test]
fn what_cuda_cannot_have_is_said() {
    let module = Module::parse("@compute @workgroup_size(2048) fn main() {}").unwrap();
    let error = module.specialize(None, &[]).unwrap().to_cuda(&CudaOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::Write { target: "CUDA C++", .. }), "{error}");
    assert!(error.to_string().contains("2048 x 1 x 1"), "{error}");
}

/// Indices that are surely in range carry no check; those that only look so do.
#[test]
fn what_is_surely_in_range_is_not_checked() {
    let source = "
        var<workgroup> w: array<u32, 16>;
        @group(0) @binding(0) var<storage, read_write> x: u32;
        fn change(i: ptr<function, u32>) { *i = 99u; }
        @compute @workgroup_size(4, 2, 2)
        fn main(@builtin(local_invocation_id) l: vec3<u32>, @builtin(local_invocation_index) t: u32) {
            INDEX
        }";
    let clamped = |body: &str| {
        let module =
            Module::parse(&source.replace("INDEX", body)).unwrap_or_else(|error| panic!("{body}: {error}"));
        let kernel = module.specialize(None, &[]).unwrap_or_else(|error| panic!("{body}: {error}"));
        let cuda = kernel.to_cuda(&CudaOptions::default()).unwrap_or_else(|error| panic!("{body}: {error}"));
        cuda.kernel.contains("wg_clamp_index")
    };
    for body in [
        "w[t] = 1u;",
        "w[l.x + 4u * l.y + 8u * l.z] = 1u;",
        "w[x % 16u] = 1u;",
        "w[x & 15u] = 1u;",
        "w[(x & 255u) / 16u] = 1u;",
        "w[(x & 255u) >> 4u] = 1u;",
        "w[min(x, 15u)] = 1u;",
        "for (var i = 0u; i < 16u; i++) { w[i] = 1u; }",
        "for (var i = 0; i < 16; i++) { w[i] = 1u; }",
        "for (var i = 1; i <= 15; i += 2) { w[i] = 1u; }",
        "for (var i = 0u; i < 16u; i += 4u) { w[l.x + i] = 1u; }",
        "for (var i = 0u; i < 16u; i++) { if x == 3u { continue; } for (var j = 0u; j < 2u; j++) { w[i] = j; } }",
    ] {
        assert!(!clamped(body), "{body}");
    }
    for body in [
        "w[t + 1u] = 1u;",
        "w[l.x * 4u + l.y * 4u] = 1u;",
        "w[x % 17u] = 1u;",
        "w[i32(x) % 16] = 1u;",
        "w[min(i32(x), 15)] = 1u;",
        "w[t - 1u] = 1u;",
        "w[t * 0x10000001u] = 1u;",
        "for (var i = 0u; i < 17u; i++) { w[i] = 1u; }",
        "for (var i = -1; i < 16; i++) { w[i] = 1u; }",
        "for (var i = 0u; i < 16u; i++) { i = x; w[i] = 1u; }",
        "for (var i = 0u; i < 16u; i++) { change(&i); w[i] = 1u; }",
        "for (var i = 0u; i < 16u; i++) { x = i; } var i = x; w[i] = 1u;",
        "var i = 0u; for (; i < 16u; i++) { x = i; } w[i] = 1u;",
        "for (var i = 2u; i < 16u; i += 4u) { w[l.x + i] = 1u; }",
        "var i = 0; for (; i < 16; i++) { w[i] = 1u; } i = i32(x); loop { if !(i < 16) { break; } w[i] = 1u; continuing { i++; } }",
        "var i = x; let small = i < 16u; loop { if !small { break; } w[i] = 1u; continuing { i++; } }",
    ] {
        assert!(clamped(body), "{body}");
    }
}
