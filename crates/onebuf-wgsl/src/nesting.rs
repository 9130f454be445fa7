//! A limit on how deep a source nests, checked before parsing.
//!
//! The parser bounds brackets and braces itself, but not `a + a + a + ...` or `else if` chains, which become just as
//! deep trees. This pass over the bytes counts, for each open bracket, what may have nested so far in the current
//! statement or argument, and refuses a source whose sum passes [`LIMIT`]. It errs on the safe side: it never counts
//! less than the true depth.

use crate::Error;

/// The deepest tree that is accepted, in operators.
pub(crate) const LIMIT: u32 = 10_000;

/// An `else` holds a whole statement, whose passes need more stack than those of an operator.
const ELSE_WEIGHT: u32 = 10;

pub(crate) fn check(source: &str) -> Result<(), Error> {
    let bytes = source.as_bytes();
    let mut line = 1;
    // The count of each open bracket, the innermost last, and their sum.
    let mut open: Vec<u32> = vec![0];
    let mut sum = 0u32;
    let mut at = 0;
    let reset = |open: &mut Vec<u32>, sum: &mut u32| {
        if let Some(top) = open.last_mut() {
            *sum -= *top;
            *top = 0;
        }
    };
    while let Some(&byte) = bytes.get(at) {
        let mut weight = 0;
        match byte {
            b'\n' => line += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while bytes.get(at + 1).is_some_and(|&byte| byte != b'\n') {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                // Comments nest in WGSL.
                let mut depth = 0u32;
                while at < bytes.len() {
                    match (bytes[at], bytes.get(at + 1)) {
                        (b'/', Some(b'*')) => {
                            depth += 1;
                            at += 1;
                        }
                        (b'*', Some(b'/')) => {
                            depth -= 1;
                            at += 1;
                        }
                        (b'\n', _) => line += 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                    at += 1;
                }
            }
            b';' | b',' => reset(&mut open, &mut sum),
            b'(' | b'[' | b'{' => {
                weight = 1;
                if byte == b'{' {
                    // A body does not nest inside the expressions before it, but inside what holds them.
                    open.push(0);
                }
            }
            b'}' => {
                if open.len() > 1 {
                    reset(&mut open, &mut sum);
                    open.pop();
                }
                if !next_word_is_else(&bytes[at + 1..]) {
                    reset(&mut open, &mut sum);
                }
            }
            b'e' if bytes[at..].starts_with(b"else") => weight = ELSE_WEIGHT,
            b'+' | b'-' | b'*' | b'/' | b'%' | b'&' | b'|' | b'^' | b'<' | b'>' | b'=' | b'!' | b'~'
            | b'.' => weight = 1,
            _ => {}
        }
        if let Some(top) = open.last_mut() {
            *top += weight;
            sum += weight;
        }
        if sum > LIMIT {
            return Err(Error::TooDeep { line, limit: LIMIT });
        }
        if byte == b'(' || byte == b'[' {
            open.push(0);
        } else if (byte == b')' || byte == b']') && open.len() > 1 {
            reset(&mut open, &mut sum);
            open.pop();
        }
        at += 1;
    }
    Ok(())
}

fn next_word_is_else(rest: &[u8]) -> bool {
    let word = rest.iter().position(|byte| !byte.is_ascii_whitespace()).map_or(rest, |at| &rest[at..]);
    // A comment may stand before the word; then the chain is taken to go on.
    word.starts_with(b"else") || word.starts_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sources_of_shallow_code_pass() {
        let function = |n: usize| {
            format!(
                "fn f{n}(a: f32, b: f32) -> f32 {{ if a < b {{ return a + b; }} return a * b - f32({n}); }}\n"
            )
        };
        let source: String = (0..20_000).map(function).collect();
        assert!(check(&source).is_ok());
        let table: String = (0..50_000).map(|n| format!("-{n}.5, ")).collect();
        assert!(check(&format!("const t = array<f32, 50000>({table});")).is_ok());
    }

    #[test]
    fn deep_chains_are_refused_with_their_line() {
        let chain = format!("fn f() -> f32 {{\nreturn 1.0{};\n}}", " + 1.0".repeat(20_000));
        assert!(matches!(check(&chain), Err(Error::TooDeep { line: 2, .. })));
        let nested_calls =
            format!("fn f() -> f32 {{\nreturn {}1.0{};\n}}", "sin(".repeat(20_000), ")".repeat(20_000));
        assert!(matches!(check(&nested_calls), Err(Error::TooDeep { .. })));
        let elses = format!("fn f() {{ if a {{ x; }} {} }}", "else if b { y; } ".repeat(2_000));
        assert!(matches!(check(&elses), Err(Error::TooDeep { .. })));
        assert!(check("/* /* */ */ // + + +\n]]]}}}").is_ok());
    }
}
