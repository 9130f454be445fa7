//! Kernels: entry points, address spaces, immediates, overrides, bind groups, and what reflection says of them.

use onebuf::{Access, BindingKind, Error, Slot, args};
use onebuf_tests::lab;

#[test]
fn storage_uniform_and_immediates_arrive() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "struct Params { scale: u32, shift: vec2<u32> }
             @group(0) @binding(0) var<storage, read> input: array<u32>;
             @group(0) @binding(1) var<uniform> params: Params;
             @group(0) @binding(2) var<storage, read_write> output: array<u32>;
             var<immediate> add: vec3<u32>;
             @compute @workgroup_size(32)
             fn run(@builtin(global_invocation_id) id: vec3<u32>) {
                 output[id.x] = input[id.x] * params.scale + params.shift.y + add.z;
             }",
        );
        let (input, output) = (subject.buffer(&[5u32; 32]), subject.zeros::<u32>(32));
        let params = subject.buffer(&[3u32, 0, 50, 60]);
        subject.run(&kernel, [1, 1, 1], args![input, params, output, [1u32, 2, 7]]);
        assert_eq!(*output.read().unwrap(), [5 * 3 + 60 + 7; 32]);
        let interface = kernel.interface();
        assert_eq!((interface.entry.as_str(), interface.immediate_bytes), ("run", 12));
        let seen: Vec<(&str, BindingKind, Access)> =
            interface.bindings.iter().map(|b| (b.name.as_str(), b.kind, b.access)).collect();
        let expected = [
            ("input", BindingKind::Storage, Access::Read),
            ("params", BindingKind::Uniform, Access::Read),
            ("output", BindingKind::Storage, Access::Write),
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn an_entry_point_is_chosen_by_name() {
    lab::on_every_device(|subject| {
        let source = "
            @group(0) @binding(0) var<storage, read_write> data: array<u32>;
            @group(0) @binding(1) var<storage, read_write> other: array<u32>;
            @compute @workgroup_size(1) fn one() { data[0] = 1u; }
            @compute @workgroup_size(1) fn two() { data[0] = 2u; other[0] = 2u; }
            @vertex fn shape() -> @builtin(position) vec4<f32> { return vec4(0.0); }";
        let build = |entry: &str| subject.device.kernel(source).unwrap().entry(entry).build();
        let data = subject.zeros::<u32>(1);
        // What an entry point does not use it does not take.
        subject.run(&build("one").unwrap(), [1, 1, 1], args![data]);
        assert_eq!(*data.read().unwrap(), [1]);
        let other = subject.zeros::<u32>(1);
        subject.run(&build("two").unwrap(), [1, 1, 1], args![data, other]);
        assert_eq!((data.read().unwrap()[0], other.read().unwrap()[0]), (2, 2));
        let wrong = [
            subject.device.kernel(source).unwrap().build().err(),
            build("three").err(),
            build("shape").err(),
            build("").err(),
            build("one\0").err(),
        ];
        for (case, error) in wrong.into_iter().enumerate() {
            let Some(Error::InvalidKernel { message, .. }) = error else { panic!("case {case}: {error:?}") };
            assert!(message.contains("one") || message.contains("shape"), "case {case}: {message}");
        }
    });
}

#[test]
fn overrides_of_every_type() {
    lab::on_every_device(|subject| {
        let source = "
            override YES: bool = false;
            override SIGNED: i32 = -1;
            override COUNT: u32 = 4u;
            override REAL: f32 = 0.5;
            @id(17) override NUMBERED: u32;
            override TWICE: u32 = COUNT * 2u;
            override WIDTH: u32 = 8;
            var<workgroup> tile: array<u32, WIDTH * 2u>;
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(WIDTH)
            fn show(@builtin(local_invocation_index) i: u32) {
                tile[i] = i;
                tile[i + WIDTH] = 1u;
                workgroupBarrier();
                if i == WIDTH - 1u {
                    out[0] = select(0u, 1u, YES);
                    out[1] = u32(SIGNED);
                    out[2] = COUNT;
                    out[3] = bitcast<u32>(REAL);
                    out[4] = NUMBERED;
                    out[5] = TWICE;
                    out[6] = tile[WIDTH - 1u] + tile[2u * WIDTH - 1u];
                }
            }";
        let out = subject.zeros::<u32>(7);
        let builder = || subject.device.kernel(source).unwrap();
        let plain = builder().set("NUMBERED", 3u32).build().unwrap();
        subject.run(&plain, [1, 1, 1], args![out]);
        assert_eq!(*out.read().unwrap(), [0, u32::MAX, 4, 0.5f32.to_bits(), 3, 8, 8]);
        let set = builder()
            .set("YES", true)
            .set("SIGNED", i32::MIN)
            .set("COUNT", u32::MAX)
            .set("COUNT", 100u32)
            .set("REAL", -2.25f32)
            .set("17", u32::MAX)
            .set("WIDTH", 32u32);
        let set = set.build().unwrap();
        assert_eq!(set.workgroup_size(), [32, 1, 1]);
        assert_eq!(set.interface().workgroup_bytes, 256);
        subject.run(&set, [1, 1, 1], args![out]);
        let expected = [1, i32::MIN as u32, 100, (-2.25f32).to_bits(), u32::MAX, 200, 32];
        assert_eq!(*out.read().unwrap(), expected);

        let wrong = [
            builder().build(),
            builder().set("NUMBERED", 1u32).set("NOBODY", 1u32).build(),
            builder().set("NUMBERED", 1u32).set("YES", 2u32).build(),
            builder().set("NUMBERED", -1i32).build(),
            builder().set("NUMBERED", 1u32).set("SIGNED", 0.5f32).build(),
            builder().set("NUMBERED", 1u32).set("SIGNED", 3e9f64).build(),
            builder().set("NUMBERED", 1u32).set("REAL", f64::INFINITY).build(),
            builder().set("NUMBERED", 1u32).set("REAL", f32::NAN).build(),
            builder().set("NUMBERED", 1u32).set("17", 2u32).build(),
            builder().set("NUMBERED", 1u32).set("WIDTH", 0u32).build(),
        ];
        for (case, outcome) in wrong.into_iter().enumerate() {
            assert!(matches!(outcome, Err(Error::InvalidKernel { .. })), "case {case}: {outcome:?}");
        }
    });
}

#[test]
fn bind_groups_with_gaps() {
    lab::on_every_device(|subject| {
        if subject.device.info().limits.max_bind_groups < 4 {
            return subject.skip("it has fewer than four bind groups");
        }
        let kernel = subject.kernel(
            "@group(3) @binding(9) var<storage, read_write> d: array<u32>;
             @group(0) @binding(2) var<storage, read> a: array<u32>;
             @group(2) @binding(0) var<uniform> c: vec4<u32>;
             @group(0) @binding(31) var<storage, read> b: array<u32>;
             @group(1) @binding(1) var<storage, read> unused: array<u32>;
             @compute @workgroup_size(1) fn gather() { d[0] = a[0] + b[0] * 10u + c.w * 100u; }",
        );
        let slots: Vec<Slot> = kernel.interface().bindings.iter().map(|binding| binding.slot).collect();
        let expected = [(0, 2), (0, 31), (2, 0), (3, 9)].map(|(group, binding)| Slot { group, binding });
        assert_eq!(slots, expected);
        let (a, b) = (subject.buffer(&[1u32]), subject.buffer(&[2u32]));
        let (c, d) = (subject.buffer(&[0u32, 0, 0, 3]), subject.zeros::<u32>(1));
        subject.run(&kernel, [1, 1, 1], args![a, b, c, d]);
        assert_eq!(*d.read().unwrap(), [321]);
    });
}

#[test]
fn high_binding_numbers_work_or_are_refused() {
    lab::on_every_device(|subject| {
        for binding in [100u32, 999, 1000, 65_535, 1 << 20, u32::MAX] {
            let source = format!(
                "@group(0) @binding({binding}) var<storage, read_write> out: array<u32>;
                 @compute @workgroup_size(1) fn f() {{ out[0] = 7u; }}"
            );
            match subject.device.kernel(&source).unwrap().build() {
                Ok(kernel) => {
                    let out = subject.zeros::<u32>(1);
                    subject.run(&kernel, [1, 1, 1], args![out]);
                    assert_eq!(*out.read().unwrap(), [7], "binding {binding}");
                }
                Err(
                    Error::LimitExceeded { .. } | Error::InvalidKernel { .. } | Error::Unsupported { .. },
                ) => {}
                Err(other) => panic!("binding {binding}: {other}"),
            }
        }
    });
}

#[test]
fn immediates_of_every_shape() {
    lab::on_every_device(|subject| {
        let most = subject.device.info().limits.max_immediate_bytes;
        let source = |words: u32| {
            format!(
                "struct Many {{ words: array<u32, {words}> }}
                 var<immediate> many: Many;
                 @group(0) @binding(0) var<storage, read_write> out: array<u32>;
                 @compute @workgroup_size(1) fn sum() {{
                     var total = 0u;
                     for (var i = 0u; i < {words}u; i++) {{ total = total * 3u + many.words[i]; }}
                     out[0] = total;
                 }}"
            )
        };
        for words in [1u32, 2, 3, 5, 31, most / 4].into_iter().filter(|words| words * 4 <= most) {
            let kernel = subject.kernel(&source(words));
            assert_eq!(kernel.interface().immediate_bytes, words * 4);
            let values: Vec<u32> = (1..=words).collect();
            let out = subject.zeros::<u32>(1);
            let bytes = bytemuck::cast_slice(&values);
            subject.run(&kernel, [1, 1, 1], &[onebuf::Arg::buffer(&out), onebuf::Arg::immediates(bytes)]);
            let expected = values.iter().fold(0u32, |total, word| total.wrapping_mul(3).wrapping_add(*word));
            assert_eq!(*out.read().unwrap(), [expected], "{words} words");
        }
        for words in [most / 4 + 1, 65, 1000, 1 << 29] {
            match subject.kernel_error(&source(words)) {
                Error::LimitExceeded { what, required, available } => {
                    assert!(what.contains("immediate"), "{what}");
                    assert_eq!((required, available), (u64::from(words) * 4, u64::from(most)));
                }
                // More than any device has.
                Error::InvalidKernel { message, .. } => {
                    assert!(message.contains("256") || message.contains("too large"), "{message}");
                }
                other => panic!("{other}"),
            }
        }
    });
}

#[test]
fn kernels_without_arguments_run() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "var<workgroup> w: atomic<u32>;
             @compute @workgroup_size(64) fn nothing() { atomicAdd(&w, 1u); }",
        );
        subject.run(&kernel, [100, 1, 1], args![]);
        let empty = subject.kernel("@compute @workgroup_size(1) fn empty() {}");
        subject.run(&empty, [1, 1, 1], args![]);
        subject.device.wait_idle().unwrap();
    });
}

#[test]
fn reflection_tells_what_is_read_and_written() {
    lab::on_real_devices(|subject| {
        let kernel = subject.kernel(
            "struct Mixed { count: atomic<u32>, rest: array<u32> }
             @group(0) @binding(0) var<storage, read_write> only_read: array<u32>;
             @group(0) @binding(1) var<storage, read_write> only_written: array<u32>;
             @group(0) @binding(2) var<storage, read_write> both: array<u32>;
             @group(0) @binding(3) var<storage, read_write> counted: Mixed;
             @group(0) @binding(4) var<storage, read_write> measured: array<u32>;
             fn helper(i: u32) { only_written[i] = only_read[i]; }
             @compute @workgroup_size(1) fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                 helper(id.x);
                 both[id.x] += arrayLength(&measured);
                 atomicAdd(&counted.count, 1u);
             }",
        );
        let access: Vec<Access> = kernel.interface().bindings.iter().map(|binding| binding.access).collect();
        assert_eq!(access, [Access::Read, Access::Write, Access::ReadWrite, Access::ReadWrite, Access::Read]);
    });
}

#[test]
fn one_buffer_may_be_read_through_several_bindings() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "@group(0) @binding(0) var<storage, read> a: array<u32>;
             @group(0) @binding(1) var<storage, read> b: array<u32>;
             @group(1) @binding(0) var<uniform> c: vec4<u32>;
             @group(1) @binding(1) var<storage, read_write> out: array<u32>;
             @compute @workgroup_size(1) fn f() { out[0] = a[0] + b[1] + c.z; }",
        );
        let (data, out) = (subject.buffer(&[1u32, 20, 300, 4000]), subject.zeros::<u32>(1));
        subject.run(&kernel, [1, 1, 1], args![data, data, data, out]);
        assert_eq!(*out.read().unwrap(), [321]);
    });
}

#[test]
fn parts_of_one_buffer_may_be_read_and_written_side_by_side() {
    lab::on_every_device(|subject| {
        let step = subject.device.info().limits.storage_offset_alignment_bytes.max(4) as usize / 4;
        let kernel = subject.kernel(onebuf_tests::kernels::MIX);
        let words: Vec<u32> = (0..4 * step as u32).collect();
        let data = subject.buffer(&words);
        let part = |i: usize| data.slice(i * step..(i + 1) * step).unwrap();
        subject.run(&kernel, kernel.groups_for([step as u32, 1, 1]), args![part(2), part(1), 5u32]);
        let seen = data.read().unwrap();
        for (i, &word) in seen.iter().enumerate() {
            let i = i as u32;
            let step = step as u32;
            let expected = if i / step == 1 { onebuf_tests::kernels::mix(i, i + step, 5) } else { i };
            assert_eq!(word, expected, "word {i}");
        }
    });
}

#[test]
fn one_kernel_with_hundreds_of_argument_lists() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(onebuf_tests::kernels::MIX);
        let stream = subject.stream();
        let sources: Vec<_> = (0..20u32).map(|i| subject.buffer(&[i; 64])).collect();
        let sums: Vec<_> = (0..20).map(|_| subject.zeros::<u32>(64)).collect();
        let mut model = [0u32; 20];
        // 400 pairs, more than a cache of descriptor sets keeps, twice, and all in flight.
        for round in 0..2u32 {
            for (i, source) in sources.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    stream.launch(&kernel, [1, 1, 1], args![source, sum, round]).unwrap();
                    model[j] = onebuf_tests::kernels::mix(model[j], i as u32, round);
                }
            }
        }
        for (sum, expected) in sums.iter().zip(model) {
            assert_eq!(*sum.read().unwrap(), [expected; 64]);
        }
    });
}

#[test]
fn spirv_runs_with_a_given_interface() {
    lab::on_real_devices(|subject| {
        if subject.device.info().id.backend != "vulkan" {
            return subject.skip("it takes no SPIR-V");
        }
        let source = onebuf_tests::kernels::MIX;
        let kernel = subject.kernel(source);
        let specialized = onebuf_wgsl::Module::parse(source).unwrap().specialize(None, &[]).unwrap();
        let spirv = specialized.to_spirv(&onebuf_wgsl::SpirvOptions::default()).unwrap();
        // SAFETY: the words come from the compiler, and the interface from the same source.
        let builder = unsafe { subject.device.kernel_spirv(&spirv.words, kernel.interface()) }.unwrap();
        let given = builder.build().unwrap();
        let (from, to) = (subject.buffer(&[7u32; 64]), subject.zeros::<u32>(64));
        subject.run(&given, [1, 1, 1], args![from, to, 2u32]);
        assert_eq!(*to.read().unwrap(), [9; 64]);
        let stream = subject.stream();
        let wrong = stream.launch(&given, [1, 1, 1], args![from, to]);
        assert!(matches!(wrong, Err(Error::BindingMismatch { .. })), "{wrong:?}");
        let most = subject.device.info().limits.max_groups[0];
        if let Some(wide) = most.checked_add(1) {
            let wide = stream.launch(&given, [wide, 1, 1], args![from, to, 2u32]);
            assert!(matches!(wide, Err(Error::Unsupported { .. })), "{wide:?}");
        }
        for words in [&[][..], &[0x0302_2307], &[1, 2, 3]] {
            // SAFETY: these are no SPIR-V, which is found before anything reads them.
            let wrong = unsafe { subject.device.kernel_spirv(words, kernel.interface()) };
            assert!(matches!(wrong.err(), Some(Error::InvalidKernel { .. })));
        }
    });
}

#[test]
fn errors_in_a_source_name_the_line() {
    lab::on_every_device(|subject| {
        let source = "\n\n@compute @workgroup_size(1) fn f() {\n    let x: u32 = 1.5;\n}";
        match subject.kernel_error(source) {
            Error::InvalidKernel { line, message } => {
                assert_eq!(line, Some(4), "{message}");
                assert!(message.contains("1.5"), "{message}");
            }
            other => panic!("{other}"),
        }
        for empty in ["", "  \n\t "] {
            assert!(matches!(subject.device.kernel(empty).err(), Some(Error::InvalidKernel { .. })));
        }
        for source in [
            "fn f() {}",
            "@fragment fn f() {}",
            "@compute fn f() {}",
            "@group(0) @binding(0) var t: texture_2d<f32>; @compute @workgroup_size(1) fn f() { _ = textureDimensions(t); }",
            "@group(0) @binding(0) var<storage, read> a: array<u32>; @group(0) @binding(0) var<storage, read> b: array<u32>;
             @compute @workgroup_size(1) fn f() { _ = a[0] + b[0]; }",
            "fn g() { g(); } @compute @workgroup_size(1) fn f() { g(); }",
        ] {
            assert!(matches!(subject.kernel_error(source), Error::InvalidKernel { .. }), "{source}");
        }
    });
}
