//! Accesses out of range: reads give zero or an element of the same binding, writes stay within it, and no neighbour
//! changes, at every edge of what is bound.

use onebuf::{Buffer, BufferSlice, Kernel, args};
use onebuf_tests::{Subject, lab};

/// What stands around every part that is bound. No kernel here may read it, or write over it.
const CANARY: u32 = 0xdead_c0de;
/// What kernels write.
const MARK: u32 = 0x0bad_0bad;

/// A way to reach an element by a computed index.
struct Style {
    /// The type that is bound.
    ty: &'static str,
    /// Declarations that the type needs.
    declare: &'static str,
    /// Statements that write at `i`.
    write: &'static str,
    /// An expression of type `u32` that reads at `i`.
    read: &'static str,
    /// Bytes from one `i` to the next, and before the first.
    stride: usize,
    header: usize,
}

const fn style(ty: &'static str, write: &'static str, read: &'static str, stride: usize) -> Style {
    Style { ty, declare: "", write, read, stride, header: 0 }
}

const STYLES: [Style; 14] = [
    style("array<u32>", "data[i] = mark;", "data[i]", 4),
    style("array<i32>", "data[i32(i)] = i32(mark);", "u32(data[i32(i)])", 4),
    style("array<u32>", "data[i] += mark;", "data[i] + data[i + 1u] * 0u", 4),
    style("array<u32>", "let p = &data[i]; *p = mark;", "(*(&data[i]))", 4),
    style("array<vec2<u32>>", "data[i].y = mark;", "data[i].x | data[i].y", 8),
    style("array<vec3<u32>>", "data[i] = vec3(mark);", "data[i].x | data[i].z", 16),
    style("array<vec4<u32>>", "data[i] = vec4(mark);", "data[i].x | data[i].w", 16),
    style("array<vec4<u32>>", "data[0][i] = mark;", "data[0][i]", 4),
    style("array<mat2x2<f32>>", "data[i][i] = vec2(bitcast<f32>(mark));", "bitcast<u32>(data[i][1].x)", 16),
    style("array<array<u32, 5>>", "data[i][i] = mark;", "data[i][4] | data[0][i]", 20),
    style("array<atomic<u32>>", "atomicAdd(&data[i], mark);", "atomicLoad(&data[i])", 4),
    Style {
        ty: "array<Item>",
        declare: "struct Item { a: u32, b: array<vec2<u32>, 3> }",
        write: "data[i].b[i].y = mark; data[i] = Item(mark, array<vec2<u32>, 3>());",
        read: "data[i].a | data[i].b[2].y | data[0].b[i].x",
        stride: 32,
        header: 0,
    },
    Style {
        ty: "Tail",
        declare: "struct Tail { head: array<u32, 4>, rest: array<u32> }",
        write: "data.rest[i] = mark; data.head[i] = mark;",
        read: "data.rest[i] | data.head[i]",
        stride: 4,
        header: 16,
    },
    Style {
        ty: "Atoms",
        declare: "struct Atoms { head: atomic<u32>, rest: array<vec2<u32>> }",
        write: "data.rest[i].x = mark; atomicMax(&data.head, 1u);",
        read: "data.rest[i].y | data.rest[i].x",
        stride: 8,
        header: 8,
    },
];

impl Style {
    fn kernel(&self, body: &str, more: &str) -> String {
        let Style { ty, declare, .. } = self;
        format!(
            "{declare}
             @group(0) @binding(0) var<storage, read_write> data: {ty};
             {more}
             const mark = {MARK}u;
             struct Params {{ base: u32, sink: u32 }}
             var<immediate> params: Params;
             @compute @workgroup_size(64)
             fn reach(@builtin(local_invocation_index) local: u32) {{
                 let i = params.base + local;
                 {body}
             }}"
        )
    }

    /// First indices of runs of 64 that begin at the end of `bytes`, far behind it, or where an address wraps.
    fn bases(&self, bytes: usize) -> Vec<u32> {
        let len = ((bytes - self.header) / self.stride) as u32;
        let mut bases = vec![len, len + 1, len + 1000, 1 << 20, u32::MAX - 63, (1 << 31) - 32, 1 << 31];
        for shift in [2, 3, 4, 5] {
            bases.extend([u32::MAX >> shift, 1 << (32 - shift), (1 << (31 - shift)) - 1]);
        }
        bases
    }
}

/// A buffer with a part in its middle and canaries on both sides.
struct Arena {
    words: Buffer<u32>,
    bytes: Buffer<u8>,
    first: usize,
    len: usize,
}

impl Arena {
    /// A part of `bytes` that begins at an offset the device can bind.
    fn new(subject: &Subject, bytes: usize, fill: u32) -> Arena {
        let step = subject.device.info().limits.storage_offset_alignment_bytes.max(4) as usize / 4;
        let first = step * 64usize.div_ceil(step).max(1);
        let len = bytes / 4;
        let mut words = vec![CANARY; first + len + 4096];
        words[first..first + len].fill(fill);
        let words = subject.buffer(&words);
        Arena { bytes: words.cast().unwrap(), words, first, len }
    }

    /// The part as untyped bytes, which fit every binding.
    fn part(&self) -> BufferSlice<'_, u8> {
        self.bytes.slice(self.first * 4..(self.first + self.len) * 4).unwrap()
    }

    fn check(&self, what: &str) {
        let words = self.words.read().unwrap();
        let outside = |i: &usize| !(self.first..self.first + self.len).contains(i);
        for i in (0..words.len()).filter(outside) {
            let at = i as i64 - self.first as i64;
            assert_eq!(words[i], CANARY, "word {at} of a part of {}: {what}", self.len);
        }
    }
}

/// Sizes in bytes of a part: whole elements of every style, and some that end within one.
fn sizes(style: &Style, kernel: &Kernel) -> Vec<usize> {
    let whole = |n: usize| style.header + n * style.stride;
    let mut sizes = vec![whole(1), whole(3), whole(64), whole(3) + 4, whole(2) + style.stride / 8 * 4];
    let least = kernel.interface().bindings[0].min_bytes as usize;
    sizes.retain(|size| size % 4 == 0 && *size >= least);
    sizes.dedup();
    sizes
}

#[test]
fn writes_out_of_range_touch_no_neighbour() {
    lab::on_real_devices(|subject| {
        for style in &STYLES {
            let kernel = subject.kernel(&style.kernel(style.write, ""));
            for bytes in sizes(style, &kernel) {
                let arena = Arena::new(subject, bytes, 0);
                for base in style.bases(bytes) {
                    subject.run(&kernel, [1, 1, 1], args![arena.part(), [base, 0u32]]);
                }
                arena.check(&format!("{} of {bytes} bytes by `{}`", style.ty, style.write));
            }
        }
    });
}

#[test]
fn reads_out_of_range_give_zero_or_an_element() {
    lab::on_real_devices(|subject| {
        for style in &STYLES {
            let more = "@group(0) @binding(1) var<storage, read_write> seen: array<u32>;";
            let body = format!("seen[local] = {};", style.read);
            let kernel = subject.kernel(&style.kernel(&body, more));
            for bytes in sizes(style, &kernel) {
                // The bits of an element, so that any mix of elements and zeros is told from a canary.
                let arena = Arena::new(subject, bytes, 0x0101_0101);
                let seen = subject.zeros::<u32>(64);
                for base in style.bases(bytes) {
                    seen.write().unwrap().fill(0xffff_ffff);
                    subject.run(&kernel, [1, 1, 1], args![arena.part(), seen, [base, 0u32]]);
                    for &word in seen.read().unwrap().iter() {
                        let told =
                            format!("{} of {bytes} bytes at {base} + 0..64 by `{}`", style.ty, style.read);
                        assert!(word == 0 || word == 0x0101_0101, "{word:#x} read: {told}");
                    }
                }
                arena.check(style.read);
            }
        }
    });
}

#[test]
fn accesses_in_range_are_untouched_by_the_checks() {
    lab::on_real_devices(|subject| {
        let source = "
            @group(0) @binding(0) var<storage, read_write> data: array<vec3<u32>>;
            @compute @workgroup_size(64)
            fn mark_all(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] = vec3(id.x, 1u, 2u); }";
        let checked = subject.kernel(source);
        // SAFETY: the grid below has one invocation an element.
        let unchecked = unsafe { subject.device.kernel(source).unwrap().unchecked() }.build().unwrap();
        for kernel in [checked, unchecked] {
            let arena = Arena::new(subject, 64 * 16, 9);
            subject.run(&kernel, [1, 1, 1], args![arena.part()]);
            let words = arena.words.read().unwrap();
            for i in 0..64 {
                assert_eq!(words[arena.first + 4 * i..][..4], [i as u32, 1, 2, 9], "element {i}");
            }
            drop(words);
            arena.check("in range");
        }
    });
}

#[test]
fn the_length_of_an_array_is_that_of_the_part() {
    lab::on_real_devices(|subject| {
        let kernel = subject.kernel(
            "struct Tail { head: vec3<u32>, rest: array<vec2<u32>> }
             @group(0) @binding(0) var<storage, read> words: array<u32>;
             @group(0) @binding(1) var<storage, read> vectors: array<vec3<u32>>;
             @group(0) @binding(2) var<storage, read> tail: Tail;
             @group(0) @binding(3) var<storage, read_write> out: array<u32>;
             @compute @workgroup_size(1) fn lengths() {
                 out[0] = arrayLength(&words); out[1] = arrayLength(&vectors); out[2] = arrayLength(&tail.rest);
             }",
        );
        for bytes in [24usize, 28, 32, 36, 40, 100, 4096] {
            let arena = Arena::new(subject, bytes, 0);
            let out = subject.zeros::<u32>(3);
            subject.run(&kernel, [1, 1, 1], args![arena.part(), arena.part(), arena.part(), out]);
            let expected = [bytes / 4, bytes / 16, (bytes - 16) / 8].map(|n| n as u32);
            assert_eq!(*out.read().unwrap(), expected, "{bytes} bytes");
        }
    });
}

#[test]
fn neighbouring_buffers_are_safe_from_each_other() {
    lab::on_real_devices(|subject| {
        let kernel = subject.kernel(
            "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
             var<immediate> base: u32;
             @compute @workgroup_size(64)
             fn write_past(@builtin(global_invocation_id) id: vec3<u32>) { data[base + id.x] = 0x0bad0badu; }",
        );
        for words in [1usize, 63, 64, 65, 1000] {
            let buffers: Vec<Buffer<u32>> = (0..24).map(|_| subject.buffer(&vec![CANARY; words])).collect();
            for buffer in buffers.iter().step_by(2) {
                for base in [words as u32, words as u32 + 1, u32::MAX - 4095, 0xffff_ff00 >> 2] {
                    subject.run(&kernel, [64, 1, 1], args![buffer, base]);
                }
            }
            for (i, buffer) in buffers.iter().enumerate().skip(1).step_by(2) {
                assert!(
                    buffer.read().unwrap().iter().all(|&word| word == CANARY),
                    "buffer {i} of {words} words"
                );
            }
        }
    });
}

#[test]
fn uniforms_private_and_workgroup_arrays_are_bounded() {
    lab::on_real_devices(|subject| {
        let kernel = subject.kernel(
            "@group(0) @binding(0) var<uniform> table: array<vec4<u32>, 4>;
             @group(0) @binding(1) var<storage, read_write> out: array<u32>;
             var<immediate> base: u32;
             var<private> mine: array<u32, 4> = array(5u, 5u, 5u, 5u);
             var<workgroup> before: array<u32, 8>;
             var<workgroup> middle: array<u32, 8>;
             var<workgroup> behind: array<u32, 8>;
             @compute @workgroup_size(8)
             fn reach(@builtin(local_invocation_index) local: u32) {
                 before[local] = 1u; middle[local] = 2u; behind[local] = 3u;
                 workgroupBarrier();
                 let i = base + local;
                 var own = array(6u, 6u, 6u, 6u);
                 middle[i] = 2u; mine[i] = 5u; own[i] = 6u;
                 workgroupBarrier();
                 out[local] = table[i].x;
                 out[8u + local] = mine[i];
                 out[16u + local] = own[i];
                 out[24u + local] = before[local] * 100u + middle[i] * 10u + behind[local];
             }",
        );
        let mut words = [0xdeadu32; 4096];
        words[..16].fill(4);
        let table = subject.buffer(&words);
        let out = subject.zeros::<u32>(32);
        for base in [4u32, 8, 100, 1 << 20, (1 << 28) - 4, 1 << 30, u32::MAX - 7, (1 << 31) - 4] {
            subject.run(&kernel, [1, 1, 1], args![table.slice(..16).unwrap(), out, base]);
            let out = out.read().unwrap();
            let any = |range: std::ops::Range<usize>, element: u32| {
                out[range].iter().all(|&word| word == 0 || word == element)
            };
            assert!(any(0..8, 4) && any(8..16, 5) && any(16..24, 6), "{base}: {:?}", &out[..]);
            assert!(out[24..].iter().all(|&word| word == 123 || word == 103), "{base}: {:?}", &out[24..]);
        }
    });
}
