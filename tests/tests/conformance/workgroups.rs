//! Workgroup memory, barriers, workgroup sizes up to the limit, and subgroups.

use onebuf::{Error, Features, args};
use onebuf_tests::lab;

#[test]
fn workgroup_memory_is_zero_at_first() {
    lab::on_every_device(|subject| {
        // Dirties the memory, then looks at it, in turn, so that what one workgroup leaves the next would see.
        let dirty = subject.kernel(
            "var<workgroup> tile: array<vec4<u32>, 250>;
             @group(0) @binding(0) var<storage, read_write> out: array<u32>;
             @compute @workgroup_size(64) fn f(@builtin(local_invocation_index) i: u32) {
                 for (var j = i; j < 250u; j += 64u) { tile[j] = vec4(0xffffffffu); }
                 workgroupBarrier();
                 out[i] = tile[249u - i].w;
             }",
        );
        let look = subject.kernel(
            "struct S { a: atomic<u32>, b: array<u32, 7>, c: vec3<f32>, d: bool }
             var<workgroup> tile: array<u32, 900>;
             var<workgroup> s: S;
             @group(0) @binding(0) var<storage, read_write> out: array<atomic<u32>>;
             @compute @workgroup_size(64) fn f(@builtin(local_invocation_index) i: u32) {
                 var seen = atomicLoad(&s.a) | s.b[i % 7u] | bitcast<u32>(s.c.y) | u32(s.d);
                 for (var j = i; j < 900u; j += 64u) { seen |= tile[j]; }
                 workgroupBarrier();
                 tile[i] = 0xffu; s.b[i % 7u] = 0xffu;
                 atomicOr(&out[0], seen);
                 atomicAdd(&out[1], 1u);
             }",
        );
        let (scratch, out) = (subject.zeros::<u32>(64), subject.zeros::<u32>(2));
        for _ in 0..4 {
            subject.run(&dirty, [16, 1, 1], args![scratch]);
            subject.run(&look, [32, 1, 1], args![out]);
        }
        assert_eq!(*scratch.read().unwrap(), [u32::MAX; 64]);
        assert_eq!(*out.read().unwrap(), [0, 4 * 32 * 64]);
    });
}

#[test]
fn workgroup_memory_goes_up_to_the_limit_and_no_further() {
    lab::on_every_device(|subject| {
        let most = subject.device.info().limits.max_workgroup_bytes;
        let source = |words: u64| {
            format!(
                "var<workgroup> tile: array<u32, {words}>;
                 @group(0) @binding(0) var<storage, read_write> out: array<u32>;
                 @compute @workgroup_size(32) fn f(@builtin(local_invocation_index) i: u32) {{
                     for (var j = i; j < {words}u; j += 32u) {{ tile[j] = j * 3u; }}
                     workgroupBarrier();
                     var sum = 0u;
                     for (var j = i; j < {words}u; j += 32u) {{ sum += tile[{words}u - 1u - j]; }}
                     out[i] = sum;
                 }}"
            )
        };
        let words = most / 4;
        let kernel = subject.kernel(&source(words));
        assert_eq!(kernel.interface().workgroup_bytes, words * 4);
        let out = subject.zeros::<u32>(32);
        subject.run(&kernel, [2, 1, 1], args![out]);
        let total = out.read().unwrap().iter().fold(0u32, |sum, &word| sum.wrapping_add(word));
        let expected = (0..words as u32).fold(0u32, |sum, j| sum.wrapping_add(j * 3));
        assert_eq!(total, expected);
        match subject.kernel_error(&source(words + 1)) {
            Error::LimitExceeded { what, required, available } => {
                assert!(what.contains("workgroup memory"), "{what}");
                assert_eq!((required, available), (words * 4 + 4, most));
            }
            other => panic!("{other}"),
        }
        // Sizes that do not fit 32 bits.
        let huge = "var<workgroup> a: array<u32, 1073741823>; var<workgroup> b: array<u32, 1073741823>;
                    @compute @workgroup_size(1) fn f() { a[0] = 1u; b[0] = a[0]; }";
        let error = subject.kernel_error(huge);
        assert!(matches!(error, Error::LimitExceeded { .. } | Error::InvalidKernel { .. }), "{error}");
    });
}

#[test]
fn workgroup_sizes_go_up_to_the_limits_and_no_further() {
    lab::on_every_device(|subject| {
        let limits = subject.device.info().limits.clone();
        let source = |[x, y, z]: [u32; 3]| {
            format!(
                "@group(0) @binding(0) var<storage, read_write> count: atomic<u32>;
                 @compute @workgroup_size({x}, {y}, {z}) fn f() {{ atomicAdd(&count, 1u); }}"
            )
        };
        let most = limits.max_workgroup_invocations;
        let [x, y, z] = limits.max_workgroup_size;
        let mut fitting = vec![[1, 1, 1], [x.min(most), 1, 1], [1, y.min(most), 1], [1, 1, z.min(most)]];
        fitting.push([(most / 4).min(x), 2.min(y), 2.min(z)]);
        for size in fitting {
            let (count, kernel) = (subject.zeros::<u32>(1), subject.kernel(&source(size)));
            subject.run(&kernel, [3, 1, 1], args![count]);
            assert_eq!(*count.read().unwrap(), [3 * size.iter().product::<u32>()], "{size:?}");
        }
        let mut past = vec![[x + 1, 1, 1], [1, y + 1, 1], [1, 1, z + 1], [u32::MAX, 1, 1], [u32::MAX; 3]];
        if u64::from(x) * u64::from(y) > u64::from(most) {
            past.push([x, y, 1]);
        }
        // A product that is small again after 32 bits.
        past.push([1 << 16, 1 << 16, 1]);
        for size in past {
            let error = subject.kernel_error(&source(size));
            assert!(
                matches!(error, Error::LimitExceeded { .. } | Error::InvalidKernel { .. }),
                "{size:?}: {error}"
            );
        }
        for zero in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
            assert!(matches!(subject.kernel_error(&source(zero)), Error::InvalidKernel { .. }));
        }
    });
}

#[test]
fn barriers_order_workgroup_and_storage_memory() {
    lab::on_every_device(|subject| {
        let kernel = subject.kernel(
            "var<workgroup> tile: array<u32, 64>;
             var<workgroup> flag: u32;
             @group(0) @binding(0) var<storage, read_write> data: array<u32>;
             @compute @workgroup_size(64)
             fn scan(@builtin(local_invocation_index) i: u32, @builtin(workgroup_id) group: vec3<u32>) {
                 let base = group.x * 64u;
                 tile[i] = data[base + i];
                 for (var step = 1u; step < 64u; step *= 2u) {
                     workgroupBarrier();
                     var add = 0u;
                     if i >= step { add = tile[i - step]; }
                     workgroupBarrier();
                     tile[i] += add;
                 }
                 workgroupBarrier();
                 if i == 0u { flag = tile[63]; }
                 let total = workgroupUniformLoad(&flag);
                 data[base + i] = tile[i];
                 storageBarrier();
                 let next = data[base + (i + 1u) % 64u];
                 storageBarrier();
                 data[base + i] = next + total;
             }",
        );
        let words: Vec<u32> = (0..640).map(|i| i * i % 101).collect();
        let data = subject.buffer(&words);
        subject.run(&kernel, [10, 1, 1], args![data]);
        let seen = data.read().unwrap();
        for group in 0..10 {
            let part = &words[group * 64..][..64];
            let sums: Vec<u32> = part
                .iter()
                .scan(0u32, |sum, word| {
                    *sum += word;
                    Some(*sum)
                })
                .collect();
            for i in 0..64 {
                assert_eq!(
                    seen[group * 64 + i],
                    sums[(i + 1) % 64] + sums[63],
                    "element {i} of group {group}"
                );
            }
        }
    });
}

#[test]
fn subgroup_operations_agree_with_the_cpu() {
    lab::on_real_devices(|subject| {
        let source = "
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(64)
            fn f(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32,
                 @builtin(subgroup_invocation_id) lane: u32) {
                let value = i * 3u + 1u;
                let o = i * 14u;
                out[o] = size;
                out[o + 1u] = lane;
                out[o + 2u] = subgroupBroadcastFirst(i);
                out[o + 3u] = subgroupAdd(value);
                out[o + 4u] = subgroupMax(value);
                out[o + 5u] = subgroupMin(value);
                out[o + 6u] = subgroupExclusiveAdd(value);
                out[o + 7u] = subgroupInclusiveAdd(value);
                out[o + 8u] = u32(subgroupAny(lane == 1u)) * 2u + u32(subgroupAll(lane < 128u));
                out[o + 9u] = countOneBits(subgroupBallot(lane % 2u == 0u).x);
                out[o + 10u] = subgroupShuffle(value, lane ^ 1u);
                out[o + 11u] = subgroupShuffleXor(value, 1u);
                out[o + 12u] = subgroupXor(value);
                out[o + 13u] = subgroupBroadcast(value, 2u);
            }";
        if !subject.has(Features { subgroups: true, ..Features::default() }) {
            return assert!(matches!(subject.kernel_error(source), Error::Unsupported { .. }));
        }
        let out = subject.compute::<u32>(source, [1, 1, 1], 64 * 14);
        let [smallest, largest] = subject.device.info().limits.subgroup_size;
        let row = |i: usize| &out[i * 14..][..14];
        // Subgroups are told apart by their first invocation.
        for i in 0..64 {
            let peers: Vec<usize> = (0..64).filter(|&j| row(j)[2] == row(i)[2]).collect();
            let values: Vec<u32> = peers.iter().map(|&j| j as u32 * 3 + 1).collect();
            let lane = peers.iter().position(|&j| j == i).unwrap();
            let size = row(i)[0];
            assert!((smallest..=largest).contains(&size) && peers.len() <= size as usize, "size {size}");
            assert_eq!(row(i)[1] as usize, lane, "lane of {i}");
            let sum: u32 = values.iter().sum();
            assert_eq!(row(i)[3..6], [sum, *values.iter().max().unwrap(), *values.iter().min().unwrap()]);
            let before: u32 = values[..lane].iter().sum();
            assert_eq!(row(i)[6..8], [before, before + values[lane]]);
            assert_eq!(row(i)[8], u32::from(peers.len() > 1) * 2 + 1);
            assert_eq!(row(i)[9] as usize, peers.len().min(32).div_ceil(2));
            if lane ^ 1 < peers.len() {
                assert_eq!(row(i)[10..12], [values[lane ^ 1]; 2], "shuffle of {i}");
            }
            assert_eq!(row(i)[12], values.iter().fold(0, |xor, value| xor ^ value));
            if peers.len() > 2 {
                assert_eq!(row(i)[13], values[2]);
            }
        }
    });
}

#[test]
fn quad_operations_work_or_are_refused() {
    lab::on_real_devices(|subject| {
        let source = "
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @compute @workgroup_size(64)
            fn f(@builtin(local_invocation_index) i: u32, @builtin(subgroup_invocation_id) lane: u32) {
                out[i * 3u] = quadBroadcast(lane, 2u);
                out[i * 3u + 1u] = quadSwapX(lane);
                out[i * 3u + 2u] = lane;
            }";
        match subject.device.kernel(source).unwrap().build() {
            Ok(kernel) => {
                let out = subject.zeros::<u32>(192);
                subject.run(&kernel, [1, 1, 1], args![out]);
                for row in out.read().unwrap().chunks(3) {
                    assert_eq!(row[..2], [row[2] / 4 * 4 + 2, row[2] ^ 1], "lane {}", row[2]);
                }
            }
            Err(Error::Unsupported { .. } | Error::InvalidKernel { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    });
}
