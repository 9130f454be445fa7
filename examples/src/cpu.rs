//! What the kernels compute, on the CPU. Results are equal bit by bit, except where a kernel's header says that a device
//! may round otherwise.
//!
//! Pixels are words: RGBA, 8 bits each, red in the lowest byte. Images are rows of `width` pixels.

/// The four channels of a pixel.
fn channels(pixel: u32) -> [u32; 4] {
    pixel.to_le_bytes().map(u32::from)
}

/// `expand.wgsl`: RGB bytes to opaque pixels.
pub fn expand(rgb: &[u8]) -> Vec<u32> {
    rgb.chunks_exact(3).map(|p| u32::from_le_bytes([p[0], p[1], p[2], 255])).collect()
}

/// The brightness of a pixel after ITU-R BT.601, from 0 to 255.
pub fn brightness(pixel: u32) -> u32 {
    let [r, g, b, _] = channels(pixel);
    (77 * r + 150 * g + 29 * b + 128) >> 8
}

/// The weights that `blur.wgsl` takes: `radius + 1` from the centre outwards, in 1/65536, of a Gaussian whose standard
/// deviation is half the radius. With both sides counted, their sum is 65536.
pub fn blur_weights(radius: u32) -> Vec<u32> {
    let deviation = f64::from(radius.max(1)) / 2.0;
    let gaussian: Vec<f64> =
        (0..=radius).map(|i| (-0.5 * (f64::from(i) / deviation).powi(2)).exp()).collect();
    let total = gaussian[0] + 2.0 * gaussian[1..].iter().sum::<f64>();
    let mut weights: Vec<u32> =
        gaussian.iter().map(|value| (value / total * 65_536.0).round() as u32).collect();
    // What rounding lost or gained goes to the centre, so that a flat image stays as it is.
    weights[0] = 65_536 - 2 * weights[1..].iter().sum::<u32>();
    weights
}

/// One pass of `blur.wgsl`, along a row or, where `vertical`, along a column.
fn blur_pass(image: &[u32], width: usize, weights: &[u32], vertical: bool) -> Vec<u32> {
    let height = image.len() / width.max(1);
    let radius = weights.len() as isize - 1;
    let blurred = |at: usize| {
        let (x, y) = (at % width, at / width);
        let mut sum = [0x8000; 4];
        for offset in -radius..=radius {
            let move_by =
                |position: usize, length: usize| (position as isize + offset).clamp(0, length as isize - 1);
            let from = if vertical {
                move_by(y, height) as usize * width + x
            } else {
                y * width + move_by(x, width) as usize
            };
            for (sum, channel) in sum.iter_mut().zip(channels(image[from])) {
                *sum += weights[offset.unsigned_abs()] * channel;
            }
        }
        u32::from_le_bytes(sum.map(|sum: u32| (sum >> 16) as u8))
    };
    (0..image.len()).map(blurred).collect()
}

/// `blur.wgsl`: `horizontal`, then `vertical`. `weights` is what [`blur_weights`] gives.
pub fn blur(image: &[u32], width: usize, weights: &[u32]) -> Vec<u32> {
    blur_pass(&blur_pass(image, width, weights, false), width, weights, true)
}

/// `edges.wgsl`.
pub fn edges(image: &[u32], width: usize, shift: u32) -> Vec<u32> {
    let height = image.len() / width.max(1);
    let at = |x: usize, y: usize, dx: isize, dy: isize| {
        let clamped =
            |position: usize, by: isize, length: usize| position.saturating_add_signed(by).min(length - 1);
        brightness(image[clamped(y, dy, height) * width + clamped(x, dx, width)]) as i32
    };
    let magnitude = |index: usize| {
        let (x, y) = (index % width, index / width);
        let difference = |dx: [isize; 2], dy: [isize; 2]| at(x, y, dx[1], dy[1]) - at(x, y, dx[0], dy[0]);
        let gx =
            difference([-1, 1], [-1, -1]) + 2 * difference([-1, 1], [0, 0]) + difference([-1, 1], [1, 1]);
        let gy =
            difference([-1, -1], [-1, 1]) + 2 * difference([0, 0], [-1, 1]) + difference([1, 1], [-1, 1]);
        let grey = ((gx.unsigned_abs() + gy.unsigned_abs()) >> shift).min(255);
        (grey * 0x01_01_01) | 0xff00_0000
    };
    (0..image.len()).map(magnitude).collect()
}

/// `histogram.wgsl`, from zero.
pub fn histogram(image: &[u32]) -> [u32; 256] {
    let mut bins = [0; 256];
    for &pixel in image {
        bins[brightness(pixel) as usize] += 1;
    }
    bins
}

/// `reduce.wgsl`, from zero.
pub fn reduce(input: &[u32]) -> u32 {
    input.iter().fold(0, |sum, value| sum.wrapping_add(*value))
}

/// `saxpy.wgsl`, with the product and the sum each rounded.
pub fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `transpose.wgsl`.
pub fn transpose<T: Copy>(input: &[T], width: usize) -> Vec<T> {
    (0..width).flat_map(|column| input.iter().skip(column).step_by(width).copied()).collect()
}

/// `matmul.wgsl`, with every product and every sum rounded. `a` has rows of `k`, `b` has rows of `n`.
pub fn matmul(a: &[f32], b: &[f32], n: usize, k: usize) -> Vec<f32> {
    let cell = |row: &[f32], column: usize| {
        row.iter().enumerate().fold(0.0, |sum, (i, value)| sum + value * b[i * n + column])
    };
    a.chunks_exact(k).flat_map(|row| (0..n).map(move |column| cell(row, column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up() {
        assert_eq!(blur_weights(0), [65_536]);
        for radius in 0..64 {
            let weights = blur_weights(radius);
            assert_eq!(weights.len(), radius as usize + 1);
            assert_eq!(weights[0] + 2 * weights[1..].iter().sum::<u32>(), 65_536, "{radius}");
            assert!(weights[1..].is_sorted_by(|a, b| a >= b), "{weights:?}");
            // The centre gives half a unit to each of the others at most, on both sides.
            assert!(weights.get(1).is_none_or(|next| weights[0] + radius >= *next), "{weights:?}");
        }
    }

    #[test]
    fn a_flat_image_stays_and_has_no_edges() {
        let image = [0x40_80_c0_ff; 7 * 5];
        assert_eq!(blur(&image, 7, &blur_weights(3)), image);
        assert_eq!(edges(&image, 7, 0), [0xff00_0000; 35]);
    }

    #[test]
    fn a_point_spreads_by_the_products_of_the_weights() {
        let mut image = [0; 9 * 9];
        image[4 * 9 + 4] = 255;
        let weights = blur_weights(2);
        let blurred = blur(&image, 9, &weights);
        for (index, pixel) in blurred.iter().enumerate() {
            let (dx, dy) = ((index % 9).abs_diff(4), (index / 9).abs_diff(4));
            let weight = |d: usize| weights.get(d).map_or(0.0, |&weight| f64::from(weight) / 65_536.0);
            let exact = 255.0 * weight(dx) * weight(dy);
            assert!((f64::from(*pixel) - exact).abs() <= 1.0, "{dx} {dy}: {pixel} for {exact}");
        }
    }

    #[test]
    fn a_step_is_an_edge_where_it_is() {
        let image: Vec<u32> = (0..6 * 3).map(|i| if i % 6 < 3 { 0 } else { 0xff_ff_ff }).collect();
        let row = [0u32, 0, 255, 255, 0, 0].map(|grey| (grey * 0x01_01_01) | 0xff00_0000);
        assert_eq!(edges(&image, 6, 2), [row, row, row].concat());
        let turned = transpose(&image, 6);
        assert_eq!(edges(&turned, 3, 2), transpose(&edges(&image, 6, 2), 6));
    }

    #[test]
    fn small_cases_by_hand() {
        assert_eq!(brightness(0x00ff_ffff), 255);
        assert_eq!(brightness(0xff00_0000), 0);
        assert_eq!(brightness(0x0000_00ff), 77);
        let bins = histogram(&[0, 0x00ff_ffff, 0xffff_ffff]);
        assert_eq!((bins[0], bins[255], bins.iter().sum::<u32>()), (1, 2, 3));
        assert_eq!(reduce(&[u32::MAX, 2, 3]), 4);
        assert_eq!(transpose(&[1, 2, 3, 4, 5, 6], 3), [1, 4, 2, 5, 3, 6]);
        assert_eq!(matmul(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], 2, 2), [19.0, 22.0, 43.0, 50.0]);
        let mut y = [1.0, 2.0];
        saxpy(2.0, &[10.0, 20.0], &mut y);
        assert_eq!(y, [21.0, 42.0]);
    }
}
