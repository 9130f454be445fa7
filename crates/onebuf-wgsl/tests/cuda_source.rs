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
