//! Limits are checked before a driver sees them: each check names the quantity, what was asked and what is allowed.
//! The simulated device notes every call that comes through although it is past a limit.

use onebuf::{Buffer, Error, Limits, args};
use onebuf_tests::Subject;
use onebuf_tests::lab::{self, Variant};

/// Checks a quantity at its limit and one past it.
fn edge(subject: &Subject, quantity: &str, most: u64, build: impl Fn(u64) -> Result<(), Error>) {
    build(most).unwrap_or_else(|error| panic!("{quantity} of {most} on {}: {error}", subject.name));
    match build(most + 1) {
        Err(Error::LimitExceeded { what, required, available }) => {
            assert!(what.contains(quantity), "`{quantity}` is not in: {what}");
            assert!(required > most && available == most, "{what}: {required}, {available}");
        }
        other => panic!("{quantity} of {} on {}: {other:?}", most + 1, subject.name),
    }
}

fn kernel(subject: &Subject, source: String) -> Result<(), Error> {
    subject.device.kernel(&source)?.build().map(drop)
}

fn limits(subject: &Subject) -> Limits {
    subject.device.info().limits.clone()
}

const DEVICES: [Variant; 2] = [Variant::Real, Variant::Tight];

#[test]
fn of_kernels() {
    lab::on(&DEVICES, |subject| {
        let limits = limits(subject);
        let sized = |x: u64, y: u64, z: u64| {
            kernel(subject, format!("@compute @workgroup_size({x}, {y}, {z}) fn f() {{}}"))
        };
        let invocations = u64::from(limits.max_workgroup_invocations);
        let [x, y, z] = limits.max_workgroup_size.map(u64::from);
        if x <= invocations {
            edge(subject, "workgroup size along x", x, |n| sized(n, 1, 1));
        }
        if y <= invocations {
            edge(subject, "workgroup size along y", y, |n| sized(1, n, 1));
        }
        if z <= invocations {
            edge(subject, "workgroup size along z", z, |n| sized(1, 1, n));
        }
        if let Some(wide) = (2..=x).rev().find(|wide| invocations % wide == 0 && invocations / wide < y) {
            let rows = invocations / wide;
            sized(wide, rows, 1).unwrap();
            match sized(wide, rows + 1, 1) {
                Err(Error::LimitExceeded { what, required, available }) => {
                    assert!(what.contains("invocations"), "{what}");
                    assert_eq!((required, available), (wide * (rows + 1), invocations));
                }
                other => panic!("{other:?}"),
            }
        }
        let words = |n: u64| {
            let source = format!(
                "var<workgroup> tile: array<u32, {n}>; @compute @workgroup_size(1) fn f() {{ tile[{n} - 1] = 1u; }}"
            );
            kernel(subject, source)
        };
        words(limits.max_workgroup_bytes / 4).unwrap();
        match words(limits.max_workgroup_bytes / 4 + 1) {
            Err(Error::LimitExceeded { what, required, available }) => {
                assert!(what.contains("bytes of workgroup memory"), "{what}");
                assert!(required > available && available == limits.max_workgroup_bytes);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn of_bindings() {
    lab::on(&DEVICES, |subject| {
        let limits = limits(subject);
        let bindings = |kind: &str, ty: &str, read: &str, n: u64| {
            let declare = |i| format!("@group(0) @binding({i}) var<{kind}> b{i}: {ty};\n");
            let sum = |i| format!("sum += b{i}{read};\n");
            let declarations: String = (0..n).map(declare).collect();
            let body: String = (0..n).map(sum).collect();
            kernel(
                subject,
                format!(
                    "{declarations} var<workgroup> w: u32;
                     @compute @workgroup_size(1) fn f() {{ var sum = 0u; {body} w = sum; }}"
                ),
            )
        };
        let storage = u64::from(limits.max_storage_bindings);
        // Devices may have a million: what is past those is not worth compiling.
        if storage <= 64 {
            edge(subject, "storage bindings", storage, |n| bindings("storage", "array<u32>", "[0]", n));
        }
        let uniform = u64::from(limits.max_uniform_bindings);
        if uniform <= 64 {
            edge(subject, "uniform bindings", uniform, |n| bindings("uniform", "vec4<u32>", ".x", n));
        }
        let group = |n: u64| {
            let source = format!(
                "@group({}) @binding(0) var<storage, read_write> b: array<u32>; @compute @workgroup_size(1) fn f() {{ b[0] = 1u; }}",
                n - 1
            );
            kernel(subject, source)
        };
        edge(subject, "bind groups", u64::from(limits.max_bind_groups), group);
        let number = |n: u64| {
            let source = format!(
                "@group(0) @binding({n}) var<storage, read_write> b: array<u32>; @compute @workgroup_size(1) fn f() {{ b[0] = 1u; }}"
            );
            kernel(subject, source)
        };
        edge(subject, "number of binding", 999, number);
    });
}

#[test]
fn of_what_is_bound() {
    lab::on(&DEVICES, |subject| {
        let limits = limits(subject);
        let stream = subject.stream();
        let source = |kind: &str, ty: &str| {
            format!(
                "@group(0) @binding(0) var<{kind}> data: {ty}; @group(0) @binding(1) var<storage, read_write> out: array<u32>;
                 @compute @workgroup_size(1) fn f() {{ out[0] = data[0].x; }}"
            )
        };
        let cases = [
            (
                "storage",
                "array<vec4<u32>>",
                limits.max_storage_binding_bytes,
                limits.storage_offset_alignment_bytes,
            ),
            (
                "uniform",
                "array<vec4<u32>, 2>",
                limits.max_uniform_binding_bytes,
                limits.uniform_offset_alignment_bytes,
            ),
        ];
        for (kind, ty, most, alignment) in cases {
            let kernel = subject.kernel(&source(kind, ty));
            let out = subject.zeros::<u32>(1);
            if most + alignment <= limits.max_buffer_bytes.min(64 << 20) {
                let data = subject.zeros::<u8>((most + alignment) as usize);
                let launch = |bytes: u64| {
                    let part = data.slice(..bytes as usize).unwrap();
                    stream.launch(&kernel, [1, 1, 1], args![part, out]).map(drop)
                };
                launch(most).unwrap();
                match launch(most + 4) {
                    Err(Error::LimitExceeded { what, required, available }) => {
                        assert!(what.contains("`data`") && what.contains(kind), "{what}");
                        assert_eq!((required, available), (most + 4, most));
                    }
                    other => panic!("{other:?}"),
                }
            }
            let data = subject.zeros::<u8>(4 * alignment as usize + 64);
            for offset in (0..3 * alignment).step_by(4) {
                let part = data.slice(offset as usize..offset as usize + 64).unwrap();
                match stream.launch(&kernel, [1, 1, 1], args![part, out]) {
                    Ok(_) => assert!(offset.is_multiple_of(alignment), "{kind} at {offset}"),
                    Err(Error::BindingMismatch { problem, .. }) => {
                        assert!(!offset.is_multiple_of(alignment), "{kind} at {offset}: {problem}");
                        assert!(
                            problem.contains(&alignment.to_string()) && problem.contains(&offset.to_string())
                        );
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
}

#[test]
fn of_buffers() {
    lab::on(&[Variant::Tight], |subject| {
        let most = limits(subject).max_buffer_bytes;
        edge(subject, "buffer size in bytes", most, |n| {
            subject.device.buffer::<u8>(n as usize).build().map(drop)
        });
        edge(subject, "buffer size in bytes", most / 8, |n| {
            let built = subject.device.buffer::<u64>(n as usize).zeroed().build();
            built.map(drop).map_err(|error| match error {
                Error::LimitExceeded { what, required, available } => {
                    Error::LimitExceeded { what, required: required / 8, available: available / 8 }
                }
                other => other,
            })
        });
    });
    // A size that is only past the limit when it is rounded to whole words.
    let options = || onebuf_sim::Options::tight().with_limits(|limits| limits.max_buffer_bytes = 1022);
    lab::on_simulation("a limit within a word", options, |subject| {
        subject.device.buffer::<u8>(1020).build().unwrap();
        for size in [1021, 1022, 1023] {
            let error = subject.device.buffer::<u8>(size).build().unwrap_err();
            assert!(matches!(error, Error::LimitExceeded { .. }), "{size}: {error}");
        }
    });
}

#[test]
fn of_a_device_with_little_memory() {
    let options = || onebuf_sim::Options::discrete().with_memory_bytes(8 << 20);
    lab::on_simulation("8 MiB", options, |subject| {
        let device = &subject.device;
        let before = device.memory();
        match device.buffer::<u8>((8 << 20) + 1).build().unwrap_err() {
            Error::OutOfMemory { asked_bytes, free_bytes, never_fits } => {
                assert_eq!((asked_bytes, free_bytes, never_fits), ((8 << 20) + 4, Some(8 << 20), true));
            }
            other => panic!("{other}"),
        }
        let mut kept = Vec::new();
        let error = loop {
            match device.buffer::<u8>(1 << 20).build() {
                Ok(buffer) => kept.push(buffer),
                Err(error) => break error,
            }
        };
        assert!((7..=8).contains(&kept.len()), "{} buffers of 1 MiB", kept.len());
        match error {
            Error::OutOfMemory { asked_bytes, free_bytes, never_fits } => {
                assert!(asked_bytes >= 1 << 20 && !never_fits);
                assert!(free_bytes.is_none_or(|free| free < 1 << 20), "{free_bytes:?}");
            }
            other => panic!("{other}"),
        }
        // What is there works, and what is freed can be had again, in another size, too.
        subject.run(&subject.kernel(onebuf_tests::kernels::INCREMENT), [1, 1, 1], args![kept[0]]);
        // The CPU's copy of a part wants memory too.
        let part = |kept: &[Buffer<u8>]| kept[0].slice(..4).unwrap().read_to_vec();
        assert!(matches!(part(&kept), Err(Error::OutOfMemory { .. })));
        kept.truncate(2);
        part(&kept).unwrap();
        drop(device.buffer::<u8>(4 << 20).build().unwrap());
        kept.clear();
        drop(device.buffer::<u8>(7 << 20).build().unwrap());
        let after = device.memory();
        assert_eq!((after.live_bytes, after.buffers), (before.live_bytes, before.buffers));
    });
}
