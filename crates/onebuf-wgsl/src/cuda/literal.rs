//! Literals, exactly.

use naga::Literal;

use super::Fault;

/// The literal in C++. Negative numbers stand in parentheses.
pub(super) fn literal(literal: Literal) -> Result<String, Fault> {
    Ok(match literal {
        Literal::Bool(value) => value.to_string(),
        Literal::U16(value) => format!("u16({value})"),
        Literal::U32(value) => format!("{value}u"),
        Literal::U64(value) => format!("u64({value}ull)"),
        Literal::I16(value) => format!("i16({value})"),
        // The lowest number is no literal in C++, but the negation of one too large.
        Literal::I32(i32::MIN) => "(-2147483647 - 1)".to_owned(),
        Literal::I32(value) if value < 0 => format!("({value})"),
        Literal::I32(value) => value.to_string(),
        Literal::I64(i64::MIN) => "i64(-9223372036854775807ll - 1)".to_owned(),
        Literal::I64(value) => format!("i64({value}ll)"),
        Literal::F16(value) => format!("f16::of({:#06x})", value.to_bits()),
        Literal::F32(value) => float(f64::from(value), format!("{value:?}f"), "f"),
        Literal::F64(value) => float(value, format!("{value:?}"), ""),
        Literal::AbstractInt(_) | Literal::AbstractFloat(_) => {
            return Err(Fault("an abstract literal is left in the module".to_owned()));
        }
    })
}

fn float(value: f64, text: String, suffix: &str) -> String {
    if value.is_nan() {
        format!("__builtin_nan{suffix}(\"\")")
    } else if value.is_infinite() {
        let infinity = format!("__builtin_huge_val{suffix}()");
        if value > 0.0 { infinity } else { format!("(-{infinity})") }
    } else if value.is_sign_negative() {
        format!("({text})")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_exact() {
        let text = |value| literal(value).unwrap();
        assert_eq!(text(Literal::F32(-0.0)), "(-0.0f)");
        assert_eq!(text(Literal::F32(1e30)), "1e30f");
        assert_eq!(text(Literal::F32(f32::from_bits(1))), "1e-45f");
        assert_eq!(text(Literal::F32(f32::NEG_INFINITY)), "(-__builtin_huge_valf())");
        assert_eq!(text(Literal::F64(0.1)), "0.1");
        assert_eq!(text(Literal::I32(i32::MIN)), "(-2147483647 - 1)");
        assert_eq!(text(Literal::I32(-1)), "(-1)");
        assert_eq!(text(Literal::U32(u32::MAX)), "4294967295u");
        assert_eq!(text(Literal::I64(i64::MIN)), "i64(-9223372036854775807ll - 1)");
    }
}
