//! Integers that become wider ones of the other sign.
//!
//! naga 30 chooses how to widen by the sign of the result: `u64(i32(-1))` would be 2^32 - 1, and `i64(4294967295u)` be -1. Its
//! constants, its other back ends and `onebuf-wgsl`'s CUDA C++ go by the sign of the operand, as C does. So does this rewrite:
//! a signed operand keeps its sign (`OpSConvert`, whose result may be unsigned), and an unsigned one gets zeros
//! (`OpUConvert`, whose result may not be signed, and a bitcast).

use std::collections::HashMap;

use super::words::*;

/// An integer type, or a vector of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Int {
    width: u32,
    signed: bool,
    /// Components, 1 for a scalar.
    count: u32,
}

/// Returns the module with every such conversion by the sign of its operand.
pub(super) fn rewrite(words: Vec<u32>) -> Vec<u32> {
    let mut types: HashMap<u32, Int> = HashMap::new();
    let mut values: HashMap<u32, Int> = HashMap::new();
    let mut needed: Vec<Int> = Vec::new();
    let mut found = false;
    for Instruction { opcode, operands } in instructions(&words) {
        match (opcode, operands) {
            (OP_TYPE_INT, &[id, width, signed]) => {
                types.insert(id, Int { width, signed: signed != 0, count: 1 });
            }
            (OP_TYPE_VECTOR, &[id, component, count]) => {
                if let Some(scalar) = types.get(&component).copied() {
                    types.insert(id, Int { count, ..scalar });
                }
            }
            (_, &[ty, id, ref rest @ ..]) => {
                let Some(to) = types.get(&ty).copied() else { continue };
                values.insert(id, to);
                let from = rest.first().and_then(|value| values.get(value));
                if let Some(from) = from.filter(|from| is_wrong(opcode, **from, to)) {
                    found = true;
                    if !from.signed {
                        needed.extend([Int { signed: false, count: 1, ..to }, Int { signed: false, ..to }]);
                    }
                }
            }
            _ => {}
        }
    }
    if !found {
        return words;
    }
    let mut ids: HashMap<Int, u32> = types.iter().map(|(id, ty)| (*ty, *id)).collect();
    let mut out = words[..HEADER_WORDS].to_vec();
    let mut next_id = words[BOUND_WORD];
    let mut fresh = || {
        next_id += 1;
        next_id - 1
    };
    let mut functions_begun = false;
    for Instruction { opcode, operands } in instructions(&words) {
        if opcode == OP_FUNCTION && !functions_begun {
            functions_begun = true;
            for ty in &needed {
                if ids.contains_key(ty) {
                    continue;
                }
                let id = fresh();
                match ids.get(&Int { count: 1, ..*ty }) {
                    Some(&scalar) if ty.count > 1 => push(&mut out, OP_TYPE_VECTOR, &[id, scalar, ty.count]),
                    _ => push(&mut out, OP_TYPE_INT, &[id, ty.width, 0]),
                }
                ids.insert(*ty, id);
            }
        }
        if let &[ty, id, value] = operands
            && let (Some(&to), Some(&from)) = (types.get(&ty), values.get(&value))
            && is_wrong(opcode, from, to)
        {
            match ids.get(&Int { signed: false, ..to }) {
                Some(&unsigned) if !from.signed => {
                    let zero_extended = fresh();
                    push(&mut out, OP_U_CONVERT, &[unsigned, zero_extended, value]);
                    push(&mut out, OP_BITCAST, &[ty, id, zero_extended]);
                }
                _ => push(&mut out, OP_S_CONVERT, &[ty, id, value]),
            }
        } else {
            push(&mut out, opcode, operands);
        }
    }
    out[BOUND_WORD] = next_id;
    out
}

/// Whether this widens by the sign of the result where the operand has the other.
fn is_wrong(opcode: u16, from: Int, to: Int) -> bool {
    matches!(opcode, OP_U_CONVERT | OP_S_CONVERT)
        && to.width > from.width
        && from.signed != (opcode == OP_S_CONVERT)
}
