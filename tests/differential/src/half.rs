//! The 16-bit floats that a number may be rounded to.
//!
//! WGSL names no rounding mode (section 15.7.2): a number between two 16-bit floats may become either, and a subnormal one may be
//! flushed to zero. Beyond the finite range the result is any.

/// The greatest finite 16-bit float.
const MAX: f64 = 65504.0;
/// The least normal one.
const MIN_POSITIVE: f64 = 6.103_515_625e-5;

/// Whether `result` is a 16-bit float that `value` may be rounded to.
pub fn permits(value: f64, result: f64) -> bool {
    if !value.is_finite() || value.abs() > MAX {
        return true;
    }
    // Of 11 bits, at the exponent of the number, or of the least normal one.
    let exponent = value.abs().max(MIN_POSITIVE).log2().floor();
    let unit = (exponent - 10.0).exp2();
    let neighbours = [(value / unit).floor() * unit, (value / unit).ceil() * unit];
    neighbours.contains(&result)
        || result == 0.0 && neighbours.iter().any(|neighbour| neighbour.abs() < MIN_POSITIVE)
}

/// The number that the bits of a 16-bit float stand for.
pub fn from_bits(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::{from_bits, permits};

    #[test]
    fn either_neighbour_and_nothing_else() {
        let x = f64::from(0.499_999_97_f32);
        assert!(permits(x, 0.5) && permits(x, from_bits(0x37ff)));
        assert!(!permits(x, from_bits(0x37fe)) && !permits(x, from_bits(0x3801)) && !permits(x, 0.0));
        assert!(permits(0.5, 0.5) && !permits(0.5, from_bits(0x37ff)));
        assert!(permits(-3.7, from_bits(0xc366)) && permits(-3.7, from_bits(0xc367)) && !permits(-3.7, -3.7));
        assert!(permits(1e-10, 0.0) && permits(1e-10, 2f64.powi(-24)) && !permits(1e-10, 2f64.powi(-23)));
        assert!(permits(6.1e-5, 0.0) && !permits(6.2e-5, 0.0));
        assert!(permits(65504.0, 65504.0) && !permits(65504.0, f64::INFINITY) && permits(7e4, f64::INFINITY));
    }

    #[test]
    fn bits_are_read_as_they_are_written() {
        assert_eq!([from_bits(0x3c00), from_bits(0xc000), from_bits(0x0001)], [1.0, -2.0, 2f64.powi(-24)]);
        assert_eq!([from_bits(0x7bff), from_bits(0xfc00)], [65504.0, f64::NEG_INFINITY]);
    }
}
