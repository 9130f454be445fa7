//! Reading SPIR-V word by word: as much of the binary form (SPIR-V specification, section 2.3) as a rewrite needs.

pub(crate) const HEADER_WORDS: usize = 5;
pub(crate) const BOUND_WORD: usize = 3;

pub(crate) const OP_ENTRY_POINT: u16 = 15;
pub(crate) const OP_CAPABILITY: u16 = 17;
pub(crate) const OP_TYPE_VOID: u16 = 19;
pub(crate) const OP_TYPE_INT: u16 = 21;
pub(crate) const OP_TYPE_VECTOR: u16 = 23;
pub(crate) const OP_TYPE_STRUCT: u16 = 30;
pub(crate) const OP_TYPE_POINTER: u16 = 32;
pub(crate) const OP_TYPE_FORWARD_POINTER: u16 = 39;
pub(crate) const OP_CONSTANT: u16 = 43;
pub(crate) const OP_CONSTANT_COMPOSITE: u16 = 44;
pub(crate) const OP_FUNCTION: u16 = 54;
pub(crate) const OP_VARIABLE: u16 = 59;
pub(crate) const OP_LOAD: u16 = 61;
pub(crate) const OP_ACCESS_CHAIN: u16 = 65;
pub(crate) const OP_DECORATE: u16 = 71;
pub(crate) const OP_MEMBER_DECORATE: u16 = 72;
pub(crate) const OP_U_CONVERT: u16 = 113;
pub(crate) const OP_S_CONVERT: u16 = 114;
pub(crate) const OP_BITCAST: u16 = 124;
pub(crate) const OP_I_ADD: u16 = 128;
pub(crate) const OP_I_MUL: u16 = 132;

pub(crate) const DECORATION_BLOCK: u32 = 2;
pub(crate) const DECORATION_BUILT_IN: u32 = 11;
pub(crate) const DECORATION_OFFSET: u32 = 35;
pub(crate) const STORAGE_PUSH_CONSTANT: u32 = 9;
pub(crate) const BUILT_IN_NUM_WORKGROUPS: u32 = 24;
pub(crate) const BUILT_IN_WORKGROUP_ID: u32 = 26;
pub(crate) const BUILT_IN_GLOBAL_INVOCATION_ID: u32 = 28;

/// One instruction: its opcode and the words after the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction<'a> {
    pub(crate) opcode: u16,
    pub(crate) operands: &'a [u32],
}

/// The instructions of a module, in order. Stops at a word count that is 0 or runs past the end.
pub(crate) fn instructions(words: &[u32]) -> impl Iterator<Item = Instruction<'_>> {
    let mut rest = words.get(HEADER_WORDS..).unwrap_or_default();
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let count = (first >> 16) as usize;
        let operands = rest.get(1..count)?;
        rest = &rest[count..];
        Some(Instruction { opcode: first as u16, operands })
    })
}

/// Appends an instruction to `words`.
pub(crate) fn push(words: &mut Vec<u32>, opcode: u16, operands: &[u32]) {
    words.push(((operands.len() as u32 + 1) << 16) | u32::from(opcode));
    words.extend_from_slice(operands);
}
