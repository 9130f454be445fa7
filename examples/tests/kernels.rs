//! The kernels of `shaders/` on every device present, against the same on the CPU, bit by bit.

use std::sync::Arc;

use onebuf::{Arg, Buffer, Device, HostAccess, Kernel, Registry, args};
use onebuf_examples::{cpu, shaders};
use onebuf_vulkan::{Vulkan, VulkanOptions};

/// Runs `test` on every usable device, and fails on any message of the validation layer.
fn on_every_device(test: impl Fn(&Device)) {
    let required =
        std::env::var("ONEBUF_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "vulkan"));
    let vulkan = match Vulkan::new(VulkanOptions { validation: true }) {
        Ok(vulkan) => Arc::new(vulkan),
        Err(error) if required => panic!("{error}"),
        Err(error) => return println!("no Vulkan here, nothing was tested: {error}"),
    };
    let registry = Registry::with(vec![vulkan.clone()]);
    let adapters = registry.adapters().adapters;
    let usable: Vec<_> = adapters.iter().filter(|adapter| adapter.rejected.is_none()).collect();
    assert!(!usable.is_empty() || !required, "no usable device: {adapters:?}");
    for adapter in usable {
        println!("on {} ({})", adapter.info.name, adapter.info.driver);
        test(&registry.open(&adapter.info.id.to_string()).unwrap());
    }
    assert_eq!(vulkan.validation_messages(), Vec::<String>::new());
}

fn buffer<T: bytemuck::Pod>(device: &Device, elements: &[T]) -> Buffer<T> {
    device.buffer(elements.len()).host(HostAccess::ReadWrite).init(elements).unwrap()
}

fn kernel(device: &Device, source: &str, entry: &str, overrides: &[(&str, u32)]) -> Kernel {
    let builder = device.kernel(source).unwrap().entry(entry);
    overrides.iter().fold(builder, |builder, &(name, value)| builder.set(name, value)).build().unwrap()
}

/// Runs a kernel once.
fn run(device: &Device, kernel: &Kernel, groups: [u32; 3], args: &[Arg<'_>]) {
    device.default_stream().unwrap().launch(kernel, groups, args).unwrap();
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
const SIZES: [[usize; 2]; 7] = [[1, 1], [1, 40], [40, 1], [16, 16], [17, 15], [64, 48], [101, 77]];

fn tiles([width, height]: [usize; 2]) -> [u32; 3] {
    [width.div_ceil(16) as u32, height.div_ceil(16) as u32, 1]
}

#[test]
fn expand_takes_three_bytes_a_pixel() {
    on_every_device(|device| {
        let expand = kernel(device, shaders::EXPAND, "expand", &[]);
        for pixels in [1usize, 2, 3, 4, 5, 255, 256, 257, 4001] {
            let rgb = noise((pixels * 3).div_ceil(4), pixels as u64);
            let (input, out) = (buffer(device, &rgb), buffer(device, &vec![POISON; pixels + 16]));
            let part = out.slice(..pixels).unwrap();
            run(device, &expand, [pixels.div_ceil(256) as u32, 1, 1], args![&input, part]);
            let bytes: Vec<u8> = rgb.iter().flat_map(|word| word.to_le_bytes()).take(pixels * 3).collect();
            assert_eq!(*out.read().unwrap(), [cpu::expand(&bytes), vec![POISON; 16]].concat());
        }
    });
}

#[test]
fn fill_sets_every_word_and_no_other() {
    on_every_device(|device| {
        let fill = kernel(device, shaders::FILL, "fill", &[]);
        for count in [1, 63, 64, 65, 10_000] {
            let out = buffer(device, &vec![POISON; count + 16]);
            let part = out.slice(..count).unwrap();
            run(device, &fill, [count.div_ceil(64) as u32 + 1, 1, 1], args![part, 0x0123_4567u32]);
            let expected = [vec![0x0123_4567; count], vec![POISON; 16]].concat();
            assert_eq!(*out.read().unwrap(), expected);
        }
    });
}

#[test]
fn saxpy_is_exact_where_products_are() {
    on_every_device(|device| {
        let small =
            |seed| noise(1000, seed).into_iter().map(|word| (word >> 20) as f32).collect::<Vec<f32>>();
        let (x, mut y) = (small(1), small(2));
        let (gx, gy) = (buffer(device, &x), buffer(device, &y));
        let saxpy = kernel(device, shaders::SAXPY, "saxpy", &[("SIZE", 32)]);
        run(device, &saxpy, [32, 1, 1], args![gx, gy, 2.5f32]);
        cpu::saxpy(2.5, &x, &mut y);
        assert_eq!(*gy.read().unwrap(), y);
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
            for size @ [width, height] in SIZES {
                let image = noise(width * height, 3);
                let poison = vec![POISON; image.len()];
                let input = buffer(device, &image);
                let (middle, out) = (buffer(device, &poison), buffer(device, &poison));
                run(device, &horizontal, tiles(size), args![input, middle, kept, size.map(|n| n as u32)]);
                run(device, &vertical, tiles(size), args![middle, out, kept, size.map(|n| n as u32)]);
                let expected = cpu::blur(&image, width, &weights);
                assert_eq!(*out.read().unwrap(), expected, "{width} x {height}, radius {radius}");
            }
        }
    });
}

#[test]
fn edges_are_the_same_to_the_bit() {
    on_every_device(|device| {
        for shift in [0, 1, 3] {
            let edges = kernel(device, shaders::EDGES, "edges", &[("SHIFT", shift)]);
            for size @ [width, height] in SIZES {
                let image = noise(width * height, 4);
                let (input, out) = (buffer(device, &image), buffer(device, &vec![POISON; image.len()]));
                run(device, &edges, tiles(size), args![input, out, size.map(|n| n as u32)]);
                let expected = cpu::edges(&image, width, shift);
                assert_eq!(*out.read().unwrap(), expected, "{width} x {height}, shift {shift}");
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
                let bins = buffer(device, &[0u32; 256]);
                run(device, &histogram, [groups, 1, 1], args![input, bins]);
                assert_eq!(*bins.read().unwrap(), cpu::histogram(&image), "{count}, {groups}");
                let sum = buffer(device, &[0u32; 1]);
                run(device, &reduce, [groups, 1, 1], args![input, sum]);
                assert_eq!(*sum.read().unwrap(), [cpu::reduce(&image)], "{count}, {groups}");
            }
        }
    });
}

#[test]
fn transposes_turn_every_shape() {
    on_every_device(|device| {
        let transpose = kernel(device, shaders::TRANSPOSE, "transpose_words", &[]);
        for size @ [width, height] in SIZES {
            let matrix = noise(width * height, 6);
            let (input, out) = (buffer(device, &matrix), buffer(device, &vec![POISON; matrix.len()]));
            run(device, &transpose, tiles(size), args![input, out, size.map(|n| n as u32)]);
            assert_eq!(*out.read().unwrap(), cpu::transpose(&matrix, width), "{width} x {height}");
        }
    });
}

#[test]
fn products_of_small_integers_are_exact() {
    on_every_device(|device| {
        let matmul = kernel(device, shaders::MATMUL, "matmul", &[]);
        for [m, n, k] in [[1, 1, 1], [16, 16, 16], [5, 40, 33], [33, 17, 64], [3, 3, 0]] {
            let small = |count, seed| -> Vec<f32> {
                noise(count, seed).into_iter().map(|word| (word >> 27) as f32 - 16.0).collect()
            };
            // A binding covers a byte at least, so an empty matrix has an element that nobody reads.
            let (a, b) = (small((m * k).max(1), 7), small((k * n).max(1), 8));
            let (ga, gb) = (buffer(device, &a), buffer(device, &b));
            let gc = buffer(device, &vec![f32::NAN; m * n]);
            run(device, &matmul, tiles([n, m]), args![ga, gb, gc, [m as u32, n as u32, k as u32]]);
            let expected = if k == 0 { vec![0.0; m * n] } else { cpu::matmul(&a, &b, n, k) };
            assert_eq!(*gc.read().unwrap(), expected, "{m} {n} {k}");
        }
    });
}
