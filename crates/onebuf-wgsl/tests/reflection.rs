//! What `Specialized::interface` says of kernels.

use onebuf_core::kernel::{Access, BindingKind, Features, Override, Scalar, Slot};
use onebuf_wgsl::{Error, Module, OverrideDefault};

fn set(name: &str, value: f64) -> Override {
    Override { name: name.to_owned(), value }
}

#[test]
fn access_is_what_the_entry_point_does() {
    let module = Module::parse(
        "
        @group(0) @binding(0) var<storage, read_write> loaded: array<u32>;
        @group(0) @binding(1) var<storage, read_write> stored: array<u32>;
        @group(1) @binding(0) var<storage, read_write> both: array<u32>;
        @group(1) @binding(3) var<storage, read_write> counted: atomic<u32>;
        @group(2) @binding(0) var<storage, read_write> measured: array<vec4<f32>>;
        @group(2) @binding(1) var<storage, read_write> unused: array<u32>;
        @group(2) @binding(2) var<uniform> scale: u32;

        fn put(i: u32, v: u32) { let p = &stored[i]; *p = v; }
        fn put_twice(i: u32, v: u32) { put(i, v); put(i, v + 1u); }
        fn add_one(p: ptr<function, u32>) { *p += 1u; }
        fn bump(i: u32) { var v = both[i]; add_one(&v); let p = &both; (*p)[i] = v; }
        fn count() { atomicAdd(&counted, 1u); }

        @compute @workgroup_size(8, 4)
        fn main(@builtin(local_invocation_index) i: u32) {
            put_twice(i, loaded[i] * scale);
            bump(i);
            count();
            if arrayLength(&measured) == 0u { return; }
        }
        @compute @workgroup_size(1) fn other() { unused[0] = 1u; }
        ",
    )
    .unwrap();
    let kernel = module.specialize(Some("main"), &[]).unwrap();
    let interface = kernel.interface();
    assert_eq!(interface.workgroup_size, [8, 4, 1]);
    let seen: Vec<_> = interface.bindings.iter().map(|b| (b.name.as_str(), b.access, b.kind)).collect();
    assert_eq!(
        seen,
        [
            ("loaded", Access::Read, BindingKind::Storage),
            ("stored", Access::Write, BindingKind::Storage),
            ("both", Access::ReadWrite, BindingKind::Storage),
            ("counted", Access::ReadWrite, BindingKind::Storage),
            ("measured", Access::Read, BindingKind::Storage),
            ("scale", Access::Read, BindingKind::Uniform),
        ]
    );
    assert_eq!(interface.bindings[3].slot, Slot { group: 1, binding: 3 });
    assert_eq!(interface.bindings[4].ty, "array<vec4<f32>>");
    assert_eq!(interface.bindings[4].scalar, Some(Scalar::F32));
    assert_eq!(interface.features, Features::default());
    assert_eq!(module.specialize(Some("other"), &[]).unwrap().interface().bindings.len(), 1);
}

#[test]
fn sizes_strides_and_scalars() {
    let module = Module::parse(
        "
        struct Particle { position: vec3<f32>, mass: f32, velocity: vec3<f32> }
        struct World { count: u32, particles: array<Particle> }
        struct Mixed { a: u32, b: f32 }
        @group(0) @binding(0) var<storage, read_write> world: World;
        @group(0) @binding(1) var<uniform> mixed: Mixed;
        @group(0) @binding(2) var<storage> points: array<vec3<f32>>;
        @group(0) @binding(3) var<storage> fixed: array<vec2<i32>, 5>;
        struct Push { a: vec3<f32>, b: u32, c: u32 }
        var<immediate> push: Push;
        var<workgroup> tile: array<f32, 33>;
        var<workgroup> tile2: array<vec4<f32>, 2>;
        @compute @workgroup_size(1) fn main() {
            world.particles[0].mass = f32(mixed.a) + points[1].x + f32(fixed[2].x) + push.a.x + tile[3] + tile2[0].x;
        }",
    )
    .unwrap();
    let kernel = module.specialize(None, &[]).unwrap();
    let interface = kernel.interface();
    let seen: Vec<_> = interface.bindings.iter().map(|b| (b.min_bytes, b.stride_bytes, b.scalar)).collect();
    assert_eq!(
        seen,
        [
            (16 + 32, Some(32), None),
            (8, None, None),
            (16, Some(16), Some(Scalar::F32)),
            (40, None, Some(Scalar::I32)),
        ]
    );
    assert_eq!(interface.immediate_bytes, 32);
    assert_eq!(interface.workgroup_bytes, 33 * 4 + 12 + 32);
}

#[test]
fn features_are_those_that_the_entry_point_uses() {
    let module = Module::parse(
        "
        enable f16;
        @group(0) @binding(0) var<storage, read_write> h: array<f16>;
        @group(0) @binding(1) var<storage, read_write> d: array<f64>;
        @group(0) @binding(2) var<storage, read_write> l: atomic<i64>;
        @group(0) @binding(3) var<storage, read_write> f: atomic<f32>;
        @group(0) @binding(4) var<storage, read_write> u: array<u32>;
        @compute @workgroup_size(1) fn half() { h[0] = 1.0h; }
        @compute @workgroup_size(1) fn double() { d[0] = 1.0lf; }
        @compute @workgroup_size(1) fn long() { u[0] = u32(i64(u[1]) * 3li); }
        @compute @workgroup_size(1) fn long_atomic() { atomicMax(&l, 1li); }
        @compute @workgroup_size(1) fn float_atomic() { atomicAdd(&f, 1.0); }
        @compute @workgroup_size(1) fn subgroup() { u[0] = subgroupAdd(u[1]); }
        @compute @workgroup_size(1) fn lane(@builtin(subgroup_size) n: u32) { u[0] = n; }
        @compute @workgroup_size(1) fn plain() { u[0] = 1u; }
        ",
    )
    .unwrap();
    let names = |entry: &str| -> Vec<&str> {
        let features = module.specialize(Some(entry), &[]).unwrap().interface().features;
        features.named().into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    };
    assert_eq!(names("half"), ["f16"]);
    assert_eq!(names("double"), ["f64"]);
    assert_eq!(names("long"), ["i64"]);
    assert_eq!(names("long_atomic"), ["i64", "i64-atomics"]);
    assert_eq!(names("float_atomic"), ["f32-atomics"]);
    assert_eq!(names("subgroup"), ["subgroups"]);
    assert_eq!(names("lane"), ["subgroups"]);
    assert!(names("plain").is_empty());
}

const WITH_OVERRIDES: &str = "
    override width: u32;
    override scale: f32 = 2.5;
    override twice: u32 = width * 2;
    @id(7) override flag: bool = true;
    override unused: i32;
    var<workgroup> tile: array<f32, twice>;
    @group(0) @binding(0) var<storage, read_write> out: array<f32>;
    @compute @workgroup_size(width, 2) fn main(@builtin(local_invocation_index) i: u32) {
        tile[i] = select(0.0, scale, flag);
        workgroupBarrier();
        out[i] = tile[width - 1u - i % width];
    }";

#[test]
fn overrides_are_listed_and_applied() {
    let module = Module::parse(WITH_OVERRIDES).unwrap();
    let listed: Vec<_> = module.overrides().map(|o| (o.name, o.id, o.ty, o.default)).collect();
    assert_eq!(
        listed,
        [
            ("width".to_owned(), None, "u32", OverrideDefault::Required),
            ("scale".to_owned(), None, "f32", OverrideDefault::Value(2.5)),
            ("twice".to_owned(), None, "u32", OverrideDefault::Computed),
            ("flag".to_owned(), Some(7), "bool", OverrideDefault::Value(1.0)),
            ("unused".to_owned(), None, "i32", OverrideDefault::Required),
        ]
    );
    let kernel = module.specialize(None, &[set("width", 32.0), set("7", 0.0), set("unused", 1.0)]).unwrap();
    assert_eq!(kernel.interface().workgroup_size, [32, 2, 1]);
    assert_eq!(kernel.interface().workgroup_bytes, 64 * 4);
    assert!(module.specialize(None, &[set("width", 32.0), set("flag", 0.0)]).is_ok());
}

#[test]
fn wrong_overrides_are_refused_by_name() {
    let module = Module::parse(WITH_OVERRIDES).unwrap();
    let fail = |overrides: &[Override]| module.specialize(None, overrides).unwrap_err();
    assert!(matches!(fail(&[]), Error::MissingOverride { name, .. } if name == "width"));
    let unknown = fail(&[set("width", 1.0), set("hight", 1.0)]);
    assert!(
        unknown.to_string().contains("no override `hight`; the module has `width`, `scale`"),
        "{unknown}"
    );
    for bad in [-1.0, 0.5, 4294967296.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(fail(&[set("width", bad)]), Error::OverrideValue { .. }), "{bad}");
    }
    assert!(matches!(fail(&[set("width", 1.0), set("flag", 2.0)]), Error::OverrideValue { .. }));
    assert!(matches!(fail(&[set("width", 1.0), set("scale", 1e39)]), Error::OverrideValue { .. }));
    assert!(matches!(
        fail(&[set("width", 1.0), set("7", 1.0), set("flag", 1.0)]),
        Error::DuplicateOverride { .. }
    ));
    assert!(matches!(fail(&[set("width", 0.0)]), Error::Specialization(_)));
}
