//! The SPIR-V that is written: its capabilities, its variants, and what `spirv-val` says of it.

use std::{env, fs, process::Command};

use onebuf_wgsl::{Bounds, Module, Spirv, SpirvOptions};

const GRID: &str = "
    @group(0) @binding(0) var<storage, read_write> out: array<vec3<u32>>;
    @compute @workgroup_size(4, 2, 1) fn main(
        @builtin(global_invocation_id) g: vec3<u32>,
        @builtin(workgroup_id) w: vec3<u32>,
        @builtin(num_workgroups) n: vec3<u32>,
        @builtin(local_invocation_id) l: vec3<u32>,
    ) { out[l.x] = g + w * n; }";

const GRID_WITH_IMMEDIATES: &str = "
    struct In { @builtin(global_invocation_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32> }
    struct Push { a: f32, b: vec2<u32>, c: u32 }
    var<immediate> push: Push;
    var<workgroup> tile: array<u32, 64>;
    @group(0) @binding(0) var<storage, read_write> out: array<u32>;
    @compute @workgroup_size(64) fn main(in: In, @builtin(local_invocation_index) i: u32) {
        tile[i] = in.g.x;
        workgroupBarrier();
        out[in.g.x] = tile[63u - i] + push.b.y + push.c + in.n.z;
    }";

const OTHERS: &[&str] = &[
    "@compute @workgroup_size(1) fn main() {}",
    "enable f16;
     @group(0) @binding(0) var<storage, read_write> a: array<vec4<f16>>;
     @compute @workgroup_size(1) fn main(@builtin(workgroup_id) w: vec3<u32>) { a[w.x] = a[w.y] * 2.0h; }",
    "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
     @compute @workgroup_size(32) fn main(@builtin(subgroup_invocation_id) i: u32, @builtin(subgroup_id) s: u32) {
        a[i] = subgroupAdd(a[i]) + subgroupShuffle(a[i], 3u) + u32(subgroupAll(a[i] > 1u)) + s;
     }",
    "@group(0) @binding(0) var<storage, read_write> a: array<u32>;
     @compute @workgroup_size(1) fn main() { a[0] = dot4U8Packed(a[1], a[2]) + pack4xU8(unpack4xU8(a[3])); }",
    "@group(0) @binding(0) var<storage, read_write> a: array<atomic<u64>>;
     @compute @workgroup_size(1) fn main() { atomicAdd(&a[3], 1lu); }",
];

/// Runs `spirv-val`. Where it is missing the module goes unchecked, unless `ONEBUF_REQUIRE` names `spirv-val`.
fn check(spirv: &Spirv, environment: &str) {
    let required =
        env::var("ONEBUF_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "spirv-val"));
    let path = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = spirv.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(path.path(), bytes).unwrap();
    match Command::new("spirv-val").args(["--target-env", environment]).arg(path.path()).output() {
        Ok(output) => {
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr)
            );
        }
        Err(error) => assert!(!required, "spirv-val is required: {error}"),
    }
}

#[test]
fn every_variant_is_valid() {
    for source in [GRID, GRID_WITH_IMMEDIATES].iter().chain(OTHERS) {
        let kernel = Module::parse(source).unwrap().specialize(None, &[]).unwrap();
        for (version, environment) in [((1, 3), "vulkan1.1"), ((1, 5), "vulkan1.2"), ((1, 6), "vulkan1.3")] {
            for bounds in [Bounds::Checked, Bounds::Unchecked] {
                for (wide_grid, debug_names, by_device) in
                    [(false, true, false), (true, false, false), (true, true, true)]
                {
                    let (device_zeroes, device_checks_buffers) = (by_device, by_device);
                    let options = SpirvOptions {
                        bounds,
                        wide_grid,
                        version,
                        debug_names,
                        device_zeroes,
                        device_checks_buffers,
                    };
                    check(&kernel.to_spirv(&options).unwrap(), environment);
                }
            }
        }
    }
}

#[test]
fn the_grid_stands_behind_the_immediates() {
    let offset = |source: &str| {
        let kernel = Module::parse(source).unwrap().specialize(None, &[]).unwrap();
        let wide = kernel.to_spirv(&SpirvOptions { wide_grid: true, ..SpirvOptions::default() }).unwrap();
        let narrow = kernel.to_spirv(&SpirvOptions::default()).unwrap();
        assert_eq!(narrow.grid_offset_bytes, None);
        assert_eq!(narrow.capabilities(), wide.capabilities());
        assert_ne!(narrow.words, wide.words);
        wide.grid_offset_bytes
    };
    assert_eq!(offset(GRID), Some(0));
    assert_eq!(offset(GRID_WITH_IMMEDIATES), Some(32));
}

#[test]
fn capabilities_are_those_in_use() {
    const SHADER: u32 = 1;
    const FLOAT16: u32 = 9;
    let capabilities = |source: &str| {
        let kernel = Module::parse(source).unwrap().specialize(None, &[]).unwrap();
        let options = SpirvOptions { version: (1, 6), ..SpirvOptions::default() };
        kernel.to_spirv(&options).unwrap().capabilities()
    };
    assert_eq!(capabilities(GRID), [SHADER]);
    assert_eq!(capabilities(OTHERS[3]), [SHADER], "packed dot products need no capability");
    assert!(capabilities(OTHERS[1]).contains(&FLOAT16));
}

#[test]
fn subgroups_need_version_1_3() {
    let kernel = Module::parse(OTHERS[2]).unwrap().specialize(None, &[]).unwrap();
    let error = kernel.to_spirv(&SpirvOptions { version: (1, 2), ..SpirvOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("need SPIR-V 1.3"), "{error}");
}
