//! The kernels of `shaders/` on every device present, against the same on the CPU, bit by bit.

use std::sync::Arc;
use std::time::Duration;

use onebuf_core::backend::{
    Allocation, Backend, Bounds, Device, Kernel, KernelRequest, KernelSource, Launch, Memory, Part, Work,
};
use onebuf_core::{HostAccess, Intent, Override, placement};
use onebuf_examples::{cpu, shaders};
use onebuf_vulkan::{Vulkan, VulkanOptions};

/// Runs `test` on every usable device, and fails on any message of the validation layer.
fn on_every_device(test: impl Fn(&dyn Device)) {
    let required =
        std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "vulkan"));
    let vulkan = match Vulkan::new(VulkanOptions { validation: true }) {
        Ok(vulkan) => vulkan,
        Err(error) if required => panic!("{error}"),
        Err(error) => return println!("no Vulkan here, nothing was tested: {error}"),
    };
    let adapters = vulkan.adapters().unwrap();
    let usable: Vec<_> = adapters.iter().filter(|adapter| adapter.rejected.is_none()).collect();
    assert!(!usable.is_empty() || !required, "no usable device: {adapters:?}");
    for adapter in usable {
        println!("on {} ({})", adapter.info.name, adapter.info.driver);
        test(&*vulkan.open(adapter.info.id.ordinal).unwrap());
    }
    assert_eq!(vulkan.validation_messages(), Vec::<String>::new());
}

/// A mapped buffer with these words in it.
fn buffer(device: &dyn Device, words: &[u32]) -> Arc<dyn Memory> {
    let size_bytes = size_of_val(words) as u64;
    let profile = device.profile();
    let intent = Intent { size_bytes, host: HostAccess::ReadWrite, ..Intent::default() };
    let ranking = placement::rank(&profile, &intent).unwrap();
    let kind = ranking.candidates.iter().find(|candidate| candidate.staging.is_none()).unwrap().kind;
    let memory = device.allocate(&Allocation { kind, size_bytes, exportable: false, mapped: true }).unwrap();
    let pointer = memory.host_pointer().unwrap().cast::<u32>();
    // SAFETY: the memory is mapped for its size, and no work uses it yet.
    unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), words.len()) }.copy_from_slice(words);
    memory.flush(0, size_bytes).unwrap();
    memory
}

fn words(memory: &Arc<dyn Memory>, count: usize) -> Vec<u32> {
    memory.invalidate(0, count as u64 * 4).unwrap();
    let pointer = memory.host_pointer().unwrap().cast::<u32>();
    // SAFETY: the memory is mapped for its size, and `run` has waited for the work.
    unsafe { std::slice::from_raw_parts(pointer.as_ptr(), count) }.to_vec()
}

fn kernel(device: &dyn Device, source: &str, entry: &str, overrides: &[(&str, u32)]) -> Arc<dyn Kernel> {
    let overrides: Vec<Override> =
        overrides.iter().map(|&(name, value)| Override { name: name.into(), value: value.into() }).collect();
    let sources = [KernelSource::Wgsl(source)];
    let bounds = Bounds::Checked;
    let request = KernelRequest { sources: &sources, entry: Some(entry), overrides: &overrides, bounds };
    device.compile(&request).unwrap()
}

/// Runs a kernel once, on buffers of these numbers of words, and waits.
fn run(
    device: &dyn Device,
    kernel: &Arc<dyn Kernel>,
    buffers: &[(&Arc<dyn Memory>, usize)],
    immediates: &[u32],
    groups: [u32; 3],
) {
    let bindings: Vec<Part<'_>> = buffers
        .iter()
        .map(|&(memory, count)| Part { memory, offset_bytes: 0, size_bytes: count as u64 * 4 })
        .collect();
    let launch = Launch { kernel, bindings: &bindings, immediates: bytemuck::cast_slice(immediates), groups };
    let stream = device.create_stream().unwrap();
    let ticket = stream.submit(Work::Launch(launch), &[]).unwrap();
    device.wait(&[ticket], Some(Duration::from_secs(60))).unwrap();
}

/// Words without a pattern: a linear congruential generator (Knuth's MMIX constants), upper half.
fn noise(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// What outputs hold before a kernel writes them.
const POISON: u32 = 0xdead_beef;

/// Sizes of images: one pixel, thin ones, whole tiles, and tiles cut on both sides.
const SIZES: [(usize, usize); 7] = [(1, 1), (1, 40), (40, 1), (16, 16), (17, 15), (64, 48), (101, 77)];

fn tiles(width: usize, height: usize) -> [u32; 3] {
    [width.div_ceil(16) as u32, height.div_ceil(16) as u32, 1]
}

#[test]
fn fill_sets_every_word_and_no_other() {
    on_every_device(|device| {
        let fill = kernel(device, shaders::FILL, "fill", &[]);
        for count in [1, 63, 64, 65, 10_000] {
            let out = buffer(device, &vec![POISON; count + 16]);
            run(device, &fill, &[(&out, count)], &[0x0123_4567], [count.div_ceil(64) as u32 + 1, 1, 1]);
            let expected = [vec![0x0123_4567; count], vec![POISON; 16]].concat();
            assert_eq!(words(&out, count + 16), expected);
        }
    });
}

#[test]
fn saxpy_is_exact_where_products_are() {
    on_every_device(|device| {
        let count = 1000;
        let small =
            |seed| noise(count, seed).into_iter().map(|word| (word >> 20) as f32).collect::<Vec<f32>>();
        let (x, mut y) = (small(1), small(2));
        let (gx, gy) = (buffer(device, bytemuck::cast_slice(&x)), buffer(device, bytemuck::cast_slice(&y)));
        let saxpy = kernel(device, shaders::SAXPY, "saxpy", &[("SIZE", 32)]);
        run(device, &saxpy, &[(&gx, count), (&gy, count)], &[2.5f32.to_bits()], [32, 1, 1]);
        cpu::saxpy(2.5, &x, &mut y);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&words(&gy, count)), y);
    });
}

#[test]
fn blur_is_the_same_to_the_bit() {
    on_every_device(|device| {
        for radius in [0, 1, 4, 20] {
            let weights = cpu::blur_weights(radius);
            let kept = buffer(device, &weights);
            let pass = |entry| kernel(device, shaders::BLUR, entry, &[("RADIUS", radius)]);
            let (horizontal, vertical) = (pass("horizontal"), pass("vertical"));
            for (width, height) in SIZES {
                let count = width * height;
                let image = noise(count, 3);
                let poison = vec![POISON; count];
                let (input, middle, out) =
                    (buffer(device, &image), buffer(device, &poison), buffer(device, &poison));
                let size = [width as u32, height as u32];
                for (pass, read, written) in [(&horizontal, &input, &middle), (&vertical, &middle, &out)] {
                    let buffers = [(read, count), (written, count), (&kept, weights.len())];
                    run(device, pass, &buffers, &size, tiles(width, height));
                }
                let expected = cpu::blur(&image, width, &weights);
                assert_eq!(words(&out, count), expected, "{width} x {height}, radius {radius}");
            }
        }
    });
}

#[test]
fn edges_are_the_same_to_the_bit() {
    on_every_device(|device| {
        for shift in [0, 1, 3] {
            let edges = kernel(device, shaders::EDGES, "edges", &[("SHIFT", shift)]);
            for (width, height) in SIZES {
                let count = width * height;
                let image = noise(count, 4);
                let (input, out) = (buffer(device, &image), buffer(device, &vec![POISON; count]));
                let size = [width as u32, height as u32];
                run(device, &edges, &[(&input, count), (&out, count)], &size, tiles(width, height));
                let expected = cpu::edges(&image, width, shift);
                assert_eq!(words(&out, count), expected, "{width} x {height}, shift {shift}");
            }
        }
    });
}

#[test]
fn histograms_and_sums_agree_for_any_number_of_groups() {
    on_every_device(|device| {
        let histogram = kernel(device, shaders::HISTOGRAM, "histogram", &[]);
        let reduce = kernel(device, shaders::REDUCE, "reduce", &[]);
        for count in [1, 255, 256, 257, 50_000] {
            let image = noise(count, 5);
            let input = buffer(device, &image);
            for groups in [1, 2, 300] {
                let bins = buffer(device, &[0; 256]);
                run(device, &histogram, &[(&input, count), (&bins, 256)], &[], [groups, 1, 1]);
                assert_eq!(words(&bins, 256), cpu::histogram(&image), "{count}, {groups}");
                let sum = buffer(device, &[0; 4]);
                run(device, &reduce, &[(&input, count), (&sum, 1)], &[], [groups, 1, 1]);
                assert_eq!(words(&sum, 2), [cpu::reduce(&image), 0], "{count}, {groups}");
            }
        }
    });
}

#[test]
fn transposes_turn_every_shape() {
    on_every_device(|device| {
        let transpose = kernel(device, shaders::TRANSPOSE, "transpose_words", &[]);
        for (width, height) in SIZES {
            let count = width * height;
            let matrix = noise(count, 6);
            let (input, out) = (buffer(device, &matrix), buffer(device, &vec![POISON; count]));
            let size = [width as u32, height as u32];
            run(device, &transpose, &[(&input, count), (&out, count)], &size, tiles(width, height));
            assert_eq!(words(&out, count), cpu::transpose(&matrix, width), "{width} x {height}");
        }
    });
}

#[test]
fn products_of_small_integers_are_exact() {
    on_every_device(|device| {
        let matmul = kernel(device, shaders::MATMUL, "matmul", &[]);
        for (m, n, k) in [(1, 1, 1), (16, 16, 16), (5, 40, 33), (33, 17, 64), (3, 3, 0)] {
            let small = |count, seed| -> Vec<f32> {
                noise(count, seed).into_iter().map(|word| (word >> 27) as f32 - 16.0).collect()
            };
            // A binding covers a byte at least, so an empty matrix has an element that nobody reads.
            let (a, b) = (small((m * k).max(1), 7), small((k * n).max(1), 8));
            let (ga, gb) =
                (buffer(device, bytemuck::cast_slice(&a)), buffer(device, bytemuck::cast_slice(&b)));
            let gc = buffer(device, &vec![POISON; m * n]);
            let buffers = [(&ga, a.len()), (&gb, b.len()), (&gc, m * n)];
            run(device, &matmul, &buffers, &[m as u32, n as u32, k as u32], tiles(n, m));
            let expected = if k == 0 { vec![0.0; m * n] } else { cpu::matmul(&a, &b, n, k) };
            assert_eq!(bytemuck::cast_slice::<u32, f32>(&words(&gc, m * n)), expected, "{m} {n} {k}");
        }
    });
}
