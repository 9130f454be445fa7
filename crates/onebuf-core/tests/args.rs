//! The check of arguments: each error names the binding and says what it wants.

use onebuf_core::args::{BufferArg, check, check_interface};
use onebuf_core::{Access, Binding, BindingKind, Error, Features, KernelInterface, Limits, Scalar, Slot};
use proptest::prelude::*;

fn limits() -> Limits {
    Limits {
        max_buffer_bytes: 1 << 30,
        max_allocation_bytes: 1 << 30,
        max_storage_binding_bytes: 1 << 20,
        max_uniform_binding_bytes: 1 << 10,
        storage_offset_alignment_bytes: 16,
        uniform_offset_alignment_bytes: 256,
        non_coherent_atom_bytes: 64,
        host_import_alignment_bytes: 4096,
        max_groups: [65_535; 3],
        max_workgroup_size: [256, 256, 64],
        max_workgroup_invocations: 256,
        max_workgroup_bytes: 16 << 10,
        max_immediate_bytes: 128,
        max_bind_groups: 4,
        max_storage_bindings: 3,
        max_uniform_bindings: 1,
        subgroup_size: [4, 4],
    }
}

fn binding(binding: u32, name: &str, kind: BindingKind, access: Access) -> Binding {
    Binding {
        slot: Slot { group: 0, binding },
        name: name.into(),
        ty: "array<u32>".into(),
        kind,
        access,
        min_bytes: 4,
        stride_bytes: Some(4),
        scalar: Some(Scalar::U32),
    }
}

/// `image` is read, `out` is written, `params` is a uniform, and there are 8 bytes of immediate data.
fn blur() -> KernelInterface {
    KernelInterface {
        entry: "blur".into(),
        workgroup_size: [16, 16, 1],
        bindings: vec![
            binding(0, "image", BindingKind::Storage, Access::Read),
            binding(1, "out", BindingKind::Storage, Access::Write),
            Binding {
                ty: "Params".into(),
                min_bytes: 32,
                stride_bytes: None,
                scalar: None,
                ..binding(2, "params", BindingKind::Uniform, Access::Read)
            },
        ],
        immediate_bytes: 8,
        workgroup_bytes: 4096,
        features: Features::default(),
    }
}

fn part(memory: usize, offset_bytes: u64, size_bytes: u64) -> BufferArg {
    BufferArg { memory, offset_bytes, size_bytes, scalar: Some(Scalar::U32), writable: true }
}

/// Three buffers that fit.
fn good() -> Vec<BufferArg> {
    vec![part(1, 0, 4096), part(2, 16, 4096), BufferArg { scalar: Some(Scalar::U8), ..part(3, 256, 32) }]
}

fn message(buffers: &[BufferArg], immediates: &[u8]) -> String {
    check(&blur(), &limits(), buffers, immediates).expect_err("the arguments are wrong").to_string()
}

/// The message for `good` with one buffer changed.
fn changed(index: usize, change: impl FnOnce(&mut BufferArg)) -> String {
    let mut buffers = good();
    change(&mut buffers[index]);
    message(&buffers, &[0; 8])
}

#[test]
fn good_arguments_pass() {
    check(&blur(), &limits(), &good(), &[0; 8]).unwrap();
    let mut buffers = good();
    // One buffer, two parts that touch and do not overlap.
    buffers[0] = part(1, 0, 4096);
    buffers[1] = part(1, 4096, 4096);
    check(&blur(), &limits(), &buffers, &[0; 8]).unwrap();
    // Read twice is no alias; bytes and untyped data pass as anything.
    let mut interface = blur();
    interface.bindings[1].access = Access::Read;
    buffers[1] = buffers[0];
    buffers[0].scalar = Some(Scalar::U8);
    buffers[1].scalar = None;
    check(&interface, &limits(), &buffers, &[0; 8]).unwrap();
    // A binding that says nothing of its scalar takes all.
    interface.bindings[0].scalar = None;
    buffers[0].scalar = Some(Scalar::F64);
    check(&interface, &limits(), &buffers, &[0; 8]).unwrap();
}

#[test]
fn wrong_counts_list_what_is_wanted() {
    assert_eq!(
        message(&good()[..2], &[0; 8]),
        "kernel `blur`, the argument list: 2 buffer(s) given, 3 wanted: image, out, params"
    );
    let mut four = good();
    four.push(part(4, 0, 4));
    assert_eq!(
        message(&four, &[0; 8]),
        "kernel `blur`, the argument list: 4 buffer(s) given, 3 wanted: image, out, params"
    );
}

#[test]
fn wrong_immediates_say_how_many_bytes() {
    assert_eq!(message(&good(), &[]), "kernel `blur`, the `var<immediate>`: 0 byte(s) given, 8 wanted");
    assert_eq!(message(&good(), &[0; 9]), "kernel `blur`, the `var<immediate>`: 9 byte(s) given, 8 wanted");
    let none = KernelInterface { immediate_bytes: 0, ..blur() };
    assert_eq!(
        check(&none, &limits(), &good(), &[0; 4]).unwrap_err().to_string(),
        "kernel `blur`, the `var<immediate>`: 4 byte(s) of immediate data given, the kernel has none"
    );
}

#[test]
fn small_buffers_name_type_and_size() {
    assert_eq!(
        changed(0, |image| image.size_bytes = 3),
        "kernel `blur`, binding `image` @group(0) @binding(0): 3 byte(s) given, `array<u32>` takes at least 4"
    );
    assert_eq!(
        changed(2, |params| params.size_bytes = 31),
        "kernel `blur`, binding `params` @group(0) @binding(2): 31 byte(s) given, `Params` takes at least 32"
    );
    // Even a binding that would take nothing must cover a byte: drivers refuse an empty range.
    let mut interface = blur();
    interface.bindings[0].min_bytes = 0;
    let mut buffers = good();
    buffers[0].size_bytes = 0;
    let error = check(&interface, &limits(), &buffers, &[0; 8]).unwrap_err();
    assert!(error.to_string().contains("`image` @group(0) @binding(0): 0 byte(s) given"), "{error}");
}

#[test]
fn wrong_scalars_are_named() {
    assert_eq!(
        changed(1, |out| out.scalar = Some(Scalar::F32)),
        "kernel `blur`, binding `out` @group(0) @binding(1): the buffer holds f32, `array<u32>` wants u32"
    );
    assert!(changed(0, |image| image.scalar = Some(Scalar::I32)).contains("holds i32"));
}

#[test]
fn wrong_offsets_say_which_multiple() {
    assert_eq!(
        changed(0, |image| image.offset_bytes = 8),
        "kernel `blur`, binding `image` @group(0) @binding(0): it starts at byte 8; the device wants a multiple of 16"
    );
    assert!(changed(2, |params| params.offset_bytes = 16).ends_with("wants a multiple of 256"));
    // A device that takes any offset still gets whole elements.
    let any = Limits { storage_offset_alignment_bytes: 1, ..limits() };
    let mut buffers = good();
    buffers[0].offset_bytes = 2;
    let error = check(&blur(), &any, &buffers, &[0; 8]).unwrap_err();
    assert!(error.to_string().ends_with("it starts at byte 2; the device wants a multiple of 4"), "{error}");
    buffers[0].offset_bytes = 4;
    check(&blur(), &any, &buffers, &[0; 8]).unwrap();
    let zero = Limits { storage_offset_alignment_bytes: 0, ..limits() };
    check(&blur(), &zero, &buffers, &[0; 8]).unwrap();
}

#[test]
fn binding_ranges_are_limits_of_their_own() {
    let mut buffers = good();
    buffers[1].size_bytes = (1 << 20) + 4;
    let error = check(&blur(), &limits(), &buffers, &[0; 8]).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { required: 1_048_580, available: 1_048_576, .. }));
    assert_eq!(
        error.to_string(),
        "kernel `blur`, binding `out` @group(0) @binding(1): size of a storage binding in bytes (bind a slice): \
         asked for 1048580, the device allows 1048576"
    );
    buffers = good();
    buffers[2].size_bytes = 1025;
    let error = check(&blur(), &limits(), &buffers, &[0; 8]).unwrap_err();
    assert!(
        error.to_string().contains("`params` @group(0) @binding(2): size of a uniform binding"),
        "{error}"
    );
    buffers[2].size_bytes = u64::MAX;
    assert!(matches!(
        check(&blur(), &limits(), &buffers, &[0; 8]),
        Err(Error::LimitExceeded { required: u64::MAX, available: 1024, .. })
    ));
}

/// tract issue 2811: say which binding aliases which.
#[test]
fn aliases_name_both_bindings() {
    let mut buffers = good();
    buffers[1] = part(1, 4080, 4096);
    assert_eq!(
        message(&buffers, &[0; 8]),
        "kernel `blur`, binding `image` @group(0) @binding(0): it overlaps binding `out` @group(0) @binding(1) (write) \
         and is itself read; a buffer that is written may be bound once"
    );
}

#[test]
fn ends_past_u64_do_not_hide_an_alias() {
    let everything = Limits { max_storage_binding_bytes: u64::MAX, ..limits() };
    let mut buffers = good();
    let last = u64::MAX - 15;
    buffers[0] = part(1, last, u64::MAX);
    buffers[1] = part(1, last, 64);
    let error = check(&blur(), &everything, &buffers, &[0; 8]).unwrap_err();
    assert!(error.to_string().contains("it overlaps"), "{error}");
}

fn interface_error(change: impl FnOnce(&mut KernelInterface)) -> String {
    let mut interface = blur();
    change(&mut interface);
    check_interface(&interface, &limits(), Features::default()).expect_err("too much").to_string()
}

#[test]
fn kernels_are_checked_against_the_device_once() {
    check_interface(&blur(), &limits(), Features::default()).unwrap();
    let table = [
        (
            interface_error(|k| k.workgroup_size = [1, 1, 65]),
            "kernel `blur`: workgroup size along z: asked for 65, the device allows 64",
        ),
        (
            interface_error(|k| k.workgroup_size = [32, 16, 1]),
            "kernel `blur`: invocations in a workgroup: asked for 512, the device allows 256",
        ),
        (
            interface_error(|k| k.workgroup_bytes = 16_388),
            "kernel `blur`: bytes of workgroup memory: asked for 16388, the device allows 16384",
        ),
        (
            interface_error(|k| k.immediate_bytes = 132),
            "kernel `blur`: bytes of immediate data: asked for 132, the device allows 128",
        ),
        (
            interface_error(|k| k.bindings[0].slot.group = 4),
            "kernel `blur`: bind groups: asked for 5, the device allows 4",
        ),
        (
            interface_error(|k| k.bindings[0].slot.group = u32::MAX),
            "kernel `blur`: bind groups: asked for 4294967296, the device allows 4",
        ),
        (
            interface_error(|k| {
                let extra = binding(3, "extra", BindingKind::Storage, Access::Read);
                k.bindings.extend([extra.clone(), extra]);
            }),
            "kernel `blur`: storage bindings: asked for 4, the device allows 3",
        ),
        (
            interface_error(|k| k.bindings[0].kind = BindingKind::Uniform),
            "kernel `blur`: uniform bindings: asked for 2, the device allows 1",
        ),
        (
            interface_error(|k| k.features = Features { f16: true, subgroups: true, ..Features::default() }),
            "not supported: kernel `blur`: it uses f16, subgroups, which the device does not have",
        ),
    ];
    for (got, want) in table {
        assert_eq!(got, want);
    }
}

#[test]
fn a_workgroup_past_u64_is_refused_not_wrapped() {
    let huge = KernelInterface { workgroup_size: [u32::MAX; 3], ..blur() };
    assert_eq!(huge.invocations(), u64::MAX);
    let boundless = Limits { max_workgroup_size: [u32::MAX; 3], ..limits() };
    let error = check_interface(&huge, &boundless, Features::default()).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { required: u64::MAX, available: 256, .. }), "{error}");
}

const SCALARS: [Scalar; 4] = [Scalar::U32, Scalar::F32, Scalar::U8, Scalar::I64];

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..40u64, (0..70u64).prop_map(|n| n * 256), Just(1 << 20), Just(u64::MAX), any::<u64>()]
}

prop_compose! {
    fn any_part()(
        memory in 0..3usize,
        offset_bytes in any_bytes(),
        size_bytes in any_bytes(),
        scalar in proptest::option::of(proptest::sample::select(SCALARS.to_vec())),
    ) -> BufferArg {
        BufferArg { memory, offset_bytes, size_bytes, scalar, writable: true }
    }
}

prop_compose! {
    fn any_binding()(
        writes in 0..3usize,
        uniform: bool,
        min_bytes in 0..64u64,
        scalar in proptest::option::of(proptest::sample::select(SCALARS.to_vec())),
    ) -> Binding {
        let access = [Access::Read, Access::Write, Access::ReadWrite][writes];
        let kind = if uniform { BindingKind::Uniform } else { BindingKind::Storage };
        Binding { min_bytes, scalar, ..binding(0, "", kind, access) }
    }
}

/// Whether two parts share a byte, in numbers that cannot overflow.
fn share_a_byte(a: &BufferArg, b: &BufferArg) -> bool {
    let end = |part: &BufferArg| u128::from(part.offset_bytes) + u128::from(part.size_bytes);
    let from = a.offset_bytes.max(b.offset_bytes);
    a.memory == b.memory && u128::from(from) < end(a).min(end(b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// `check` says yes to exactly the lists that keep every rule, and a refusal names a binding that breaks one.
    #[test]
    fn check_is_the_rules(
        mut bindings in proptest::collection::vec(any_binding(), 0..4),
        parts in proptest::collection::vec(any_part(), 0..5),
        immediate_bytes in 0..3u32,
        immediates in 0..3usize,
    ) {
        for (index, binding) in bindings.iter_mut().enumerate() {
            binding.slot.binding = index as u32;
            binding.name = format!("b{index}");
        }
        let interface = KernelInterface { bindings, immediate_bytes, ..blur() };
        let limits = limits();
        let keeps = |binding: &Binding, part: &BufferArg| {
            let (alignment, most) = match binding.kind {
                BindingKind::Storage => (16, 1 << 20),
                BindingKind::Uniform => (256, 1 << 10),
            };
            let same = binding.scalar.is_none()
                || part.scalar.is_none()
                || part.scalar == binding.scalar
                || part.scalar == Some(Scalar::U8);
            part.size_bytes >= binding.min_bytes.max(1)
                && part.size_bytes <= most
                && part.offset_bytes.is_multiple_of(alignment)
                && same
        };
        let aliases = |i: usize, j: usize| {
            share_a_byte(&parts[i], &parts[j])
                && (interface.bindings[i].access.writes() || interface.bindings[j].access.writes())
        };
        let counts = parts.len() == interface.bindings.len() && immediates == immediate_bytes as usize;
        let good = counts && interface.bindings.iter().zip(&parts).all(|(binding, part)| keeps(binding, part));
        let pairs = || (0..parts.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let good = good && !pairs().any(|(i, j)| aliases(i, j));
        let answer = check(&interface, &limits, &parts, &vec![0; immediates]);
        prop_assert_eq!(answer.is_ok(), good, "{:?}", answer);
        let Err(error) = answer else { return Ok(()) };
        prop_assert!(matches!(error, Error::BindingMismatch { .. } | Error::LimitExceeded { .. }), "{}", error);
        if counts {
            let text = error.to_string();
            let named = (0..parts.len()).find(|index| text.contains(&format!("binding `b{index}` @group(0)")));
            let named = named.expect("a binding is named");
            let broken = !keeps(&interface.bindings[named], &parts[named])
                || (0..parts.len()).any(|other| other != named && aliases(named, other));
            prop_assert!(broken, "{}", text);
        }
    }
}
