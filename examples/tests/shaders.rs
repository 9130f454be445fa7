//! Every kernel of `shaders/` is valid, and takes what its header says.

use std::collections::BTreeSet;
use std::path::Path;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use onebuf_core::{Access, KernelInterface, Limits, Override, Scalar};
use onebuf_examples::shaders;
use onebuf_wgsl::{Bounds, Module, SpirvOptions};

/// What Vulkan guarantees on every device, as far as a kernel can ask for more.
fn least() -> Limits {
    Limits {
        max_buffer_bytes: 1 << 27,
        max_allocation_bytes: 1 << 27,
        max_storage_binding_bytes: 1 << 27,
        max_uniform_binding_bytes: 1 << 14,
        storage_offset_alignment_bytes: 256,
        uniform_offset_alignment_bytes: 256,
        non_coherent_atom_bytes: 256,
        host_import_alignment_bytes: 0,
        max_groups: [65_535; 3],
        max_workgroup_size: [256, 256, 64],
        max_workgroup_invocations: 256,
        max_workgroup_bytes: 16 << 10,
        max_immediate_bytes: 128,
        max_bind_groups: 4,
        max_storage_bindings: 4,
        max_uniform_bindings: 12,
        subgroup_size: [1, 1],
    }
}

fn interface(source: &str, entry: &str, overrides: &[(&str, f64)]) -> KernelInterface {
    let overrides: Vec<Override> =
        overrides.iter().map(|&(name, value)| Override { name: name.into(), value }).collect();
    let module = Module::parse(source).unwrap_or_else(|error| panic!("{entry}: {error}"));
    let kernel =
        module.specialize(Some(entry), &overrides).unwrap_or_else(|error| panic!("{entry}: {error}"));
    for bounds in [Bounds::Checked, Bounds::Unchecked] {
        let options = SpirvOptions { bounds, ..SpirvOptions::default() };
        kernel.to_spirv(&options).unwrap_or_else(|error| panic!("{entry}: {error}"));
    }
    kernel.interface().clone()
}

#[test]
fn every_file_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("the folder shaders/")
        .map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = shaders::ALL.iter().map(|(name, ..)| format!("{name}.wgsl")).collect();
    assert_eq!(files, listed);
}

#[test]
fn naga_accepts_every_kernel() {
    for (name, source, entries) in shaders::ALL {
        let module = naga::front::wgsl::parse_str(source).unwrap_or_else(|error| {
            panic!("{name}: {}", error.emit_to_string(source));
        });
        // Immediates are the one capability beyond core WGSL that the kernels use.
        Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(source)));
        let found: Vec<&str> = module.entry_points.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(found, entries, "{name}");
    }
}

#[test]
fn every_kernel_runs_on_the_least_device() {
    for (name, source, entries) in shaders::ALL {
        for entry in entries {
            let interface = interface(source, entry, &[]);
            onebuf_core::args::check_interface(&interface, &least(), onebuf_core::Features::default())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// Bindings with what a kernel does to each, and bytes of immediates: what hosts bind by.
#[test]
fn kernels_take_what_their_headers_say() {
    use Access::{Read, ReadWrite, Write};
    use Scalar::{F32, U32};
    type Bindings = &'static [(&'static str, Access, Scalar)];
    let table: [(&str, &str, Bindings, u32); 9] = [
        (shaders::FILL, "fill", &[("out", Write, U32)], 4),
        (shaders::SAXPY, "saxpy", &[("x", Read, F32), ("y", ReadWrite, F32)], 4),
        (
            shaders::BLUR,
            "horizontal",
            &[("image", Read, U32), ("out", Write, U32), ("weights", Read, U32)],
            8,
        ),
        (shaders::BLUR, "vertical", &[("image", Read, U32), ("out", Write, U32), ("weights", Read, U32)], 8),
        (shaders::EDGES, "edges", &[("image", Read, U32), ("out", Write, U32)], 8),
        (shaders::HISTOGRAM, "histogram", &[("image", Read, U32), ("bins", ReadWrite, U32)], 0),
        (shaders::REDUCE, "reduce", &[("input", Read, U32), ("sum", ReadWrite, U32)], 0),
        (shaders::TRANSPOSE, "transpose_words", &[("input", Read, U32), ("out", Write, U32)], 8),
        (shaders::MATMUL, "matmul", &[("a", Read, F32), ("b", Read, F32), ("c", Write, F32)], 12),
    ];
    for (source, entry, bindings, immediate_bytes) in table {
        let interface = interface(source, entry, &[]);
        let found: Vec<(&str, Access, Scalar)> = interface
            .bindings
            .iter()
            .map(|b| (b.name.as_str(), b.access, b.scalar.expect("one scalar")))
            .collect();
        assert_eq!(found, bindings, "{entry}");
        assert_eq!(interface.immediate_bytes, immediate_bytes, "{entry}");
    }
}

#[test]
fn overrides_change_what_they_say() {
    assert_eq!(interface(shaders::FILL, "fill", &[("SIZE", 256.0)]).workgroup_size, [256, 1, 1]);
    assert_eq!(interface(shaders::SAXPY, "saxpy", &[("SIZE", 8.0)]).workgroup_size, [8, 1, 1]);
    for radius in [0u32, 1, 4, 33, 100] {
        let interface = interface(shaders::BLUR, "vertical", &[("RADIUS", f64::from(radius))]);
        assert_eq!(interface.workgroup_bytes, u64::from(16 * (16 + 2 * radius) * 4));
    }
    interface(shaders::EDGES, "edges", &[("SHIFT", 3.0)]);
}
