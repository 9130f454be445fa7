//! The prelude: what printed kernels build on, in parts so that a kernel carries only what it needs.

use onebuf_core::kernel::Features;

macro_rules! part {
    ($name:literal) => {
        (concat!("prelude/", $name), include_str!(concat!("prelude/", $name)))
    };
}

/// The parts that the printed `body` needs, in order.
pub(super) fn assemble(body: &str, features: Features) -> String {
    let uses = |marks: &[&str]| marks.iter().any(|mark| body.contains(mark));
    join([
        (true, part!("core.cuh")),
        (true, part!("half_bits.cuh")),
        (true, part!("integer.cuh")),
        (true, part!("float.cuh")),
        (features.f16, part!("half.cuh")),
        (true, part!("vector.cuh")),
        (uses(&["mat<", "wg_mat(", "wg_outer", "wg_transpose"]), part!("matrix.cuh")),
        (uses(&["wg_pack", "wg_unpack"]), part!("pack.cuh")),
        (uses(&["atomic<", "wg_volatile"]), part!("atomic.cuh")),
        (features.subgroups, part!("subgroup.cuh")),
    ])
}

/// Every part.
pub(super) fn whole() -> String {
    assemble("mat< wg_pack atomic<", Features::ALL)
}

fn join(parts: [(bool, (&str, &str)); 10]) -> String {
    let mut prelude = String::new();
    for (wanted, (name, text)) in parts {
        if wanted {
            prelude.push_str("// ");
            prelude.push_str(name);
            prelude.push('\n');
            prelude.push_str(text);
            prelude.push('\n');
        }
    }
    prelude
}
