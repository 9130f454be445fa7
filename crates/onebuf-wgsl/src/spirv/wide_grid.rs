//! The variant of a kernel for grids wider than one dispatch.
//!
//! Vulkan promises no more than 65,535 workgroups along each axis of a dispatch, so a larger grid is dispatched in
//! parts. The kernel must still see one grid. This rewrite appends `base` and `groups`, two `vec3<u32>`, to the
//! push constants, and after each load of a built-in it puts the whole grid's value in its place:
//!
//! - `WorkgroupId + base`
//! - `GlobalInvocationId + base * workgroup_size`
//! - `groups` for `NumWorkgroups`
//!
//! The loaded id is kept for the new value, so that nothing behind the load changes. naga wraps the type of the
//! immediate variable in a struct that nothing else uses, and members can be appended to it safely.

use super::words::*;

/// Distance of `groups` from `base`.
const GROUPS_OFFSET_BYTES: u32 = 16;

/// Returns the rewritten module and the offset of `base` in the push constants.
pub(super) fn rewrite(
    words: &[u32],
    workgroup_size: [u32; 3],
    immediate_bytes: u32,
) -> Result<(Vec<u32>, u32), String> {
    let found = Found::scan(words)?;
    let base_offset = immediate_bytes.next_multiple_of(16);
    let mut next_id = words[BOUND_WORD];
    let mut fresh = || {
        next_id += 1;
        next_id - 1
    };
    let uint = found.uint.unwrap_or_else(&mut fresh);
    let uvec3 = found.uvec3.unwrap_or_else(&mut fresh);
    let (block, block_members, variable) = match &found.push_constants {
        Some(known) => (known.block, known.members, known.variable),
        None => (fresh(), 0, fresh()),
    };
    let pointer_to_uvec3 = fresh();
    let size_constants = [fresh(), fresh(), fresh()];
    let size_vector = fresh();
    let base_index = fresh();
    let groups_index = fresh();

    let mut out = words[..HEADER_WORDS].to_vec();
    let mut types_begun = false;
    let mut functions_begun = false;
    for Instruction { opcode, operands } in instructions(words) {
        if !types_begun && (OP_TYPE_VOID..=OP_TYPE_FORWARD_POINTER).contains(&opcode) {
            types_begun = true;
            for (member, offset) in [(0, base_offset), (1, base_offset + GROUPS_OFFSET_BYTES)] {
                push(
                    &mut out,
                    OP_MEMBER_DECORATE,
                    &[block, block_members + member, DECORATION_OFFSET, offset],
                );
            }
            if found.push_constants.is_none() {
                push(&mut out, OP_DECORATE, &[block, DECORATION_BLOCK]);
            }
            push(&mut out, OP_TYPE_INT, &[uint, 32, 0]);
            push(&mut out, OP_TYPE_VECTOR, &[uvec3, uint, 3]);
        }
        if !functions_begun && opcode == OP_FUNCTION {
            functions_begun = true;
            if found.push_constants.is_none() {
                let pointer_to_block = fresh();
                push(&mut out, OP_TYPE_STRUCT, &[block, uvec3, uvec3]);
                push(&mut out, OP_TYPE_POINTER, &[pointer_to_block, STORAGE_PUSH_CONSTANT, block]);
                push(&mut out, OP_VARIABLE, &[pointer_to_block, variable, STORAGE_PUSH_CONSTANT]);
            }
            push(&mut out, OP_TYPE_POINTER, &[pointer_to_uvec3, STORAGE_PUSH_CONSTANT, uvec3]);
            for (id, size) in size_constants.iter().zip(workgroup_size) {
                push(&mut out, OP_CONSTANT, &[uint, *id, size]);
            }
            let [x, y, z] = size_constants;
            push(&mut out, OP_CONSTANT_COMPOSITE, &[uvec3, size_vector, x, y, z]);
            push(&mut out, OP_CONSTANT, &[uint, base_index, block_members]);
            push(&mut out, OP_CONSTANT, &[uint, groups_index, block_members + 1]);
        }
        match (opcode, operands) {
            // These two now stand at the head of the types.
            (OP_TYPE_INT, [id, ..]) if *id == uint => {}
            (OP_TYPE_VECTOR, [id, ..]) if *id == uvec3 => {}
            (OP_TYPE_STRUCT, [id, members @ ..]) if *id == block => {
                let mut all = vec![*id];
                all.extend_from_slice(members);
                all.extend([uvec3, uvec3]);
                push(&mut out, OP_TYPE_STRUCT, &all);
            }
            // From SPIR-V 1.4 on, an entry point lists every global variable it uses.
            (OP_ENTRY_POINT, _) if found.push_constants.is_none() && words[1] >= 0x0001_0400 => {
                let mut all = operands.to_vec();
                all.push(variable);
                push(&mut out, OP_ENTRY_POINT, &all);
            }
            (OP_LOAD, [result_type, result, pointer, ..]) if found.built_in(*pointer).is_some() => {
                let load_member = |out: &mut Vec<u32>, index: u32, address: u32, id: u32| {
                    push(out, OP_ACCESS_CHAIN, &[pointer_to_uvec3, address, variable, index]);
                    push(out, OP_LOAD, &[uvec3, id, address]);
                };
                if *result_type != uvec3 {
                    return Err("a grid built-in is not a vec3<u32>".to_owned());
                }
                match found.built_in(*pointer) {
                    Some(BUILT_IN_NUM_WORKGROUPS) => load_member(&mut out, groups_index, fresh(), *result),
                    Some(BUILT_IN_WORKGROUP_ID) => {
                        let (part, address, base) = (fresh(), fresh(), fresh());
                        push(&mut out, OP_LOAD, &[uvec3, part, *pointer]);
                        load_member(&mut out, base_index, address, base);
                        push(&mut out, OP_I_ADD, &[uvec3, *result, part, base]);
                    }
                    _ => {
                        let (part, address, base, scaled) = (fresh(), fresh(), fresh(), fresh());
                        push(&mut out, OP_LOAD, &[uvec3, part, *pointer]);
                        load_member(&mut out, base_index, address, base);
                        push(&mut out, OP_I_MUL, &[uvec3, scaled, base, size_vector]);
                        push(&mut out, OP_I_ADD, &[uvec3, *result, part, scaled]);
                    }
                }
            }
            _ => push(&mut out, opcode, operands),
        }
    }
    out[BOUND_WORD] = next_id;
    Ok((out, base_offset))
}

struct PushConstants {
    variable: u32,
    block: u32,
    members: u32,
}

/// What the rewrite needs to know of the module.
struct Found {
    uint: Option<u32>,
    uvec3: Option<u32>,
    push_constants: Option<PushConstants>,
    /// Input variables that hold a built-in of the grid, with the built-in.
    inputs: Vec<(u32, u32)>,
}

impl Found {
    fn scan(words: &[u32]) -> Result<Found, String> {
        if words.len() < HEADER_WORDS {
            return Err("the SPIR-V module has no header".to_owned());
        }
        let mut found = Found { uint: None, uvec3: None, push_constants: None, inputs: Vec::new() };
        let mut structs = Vec::new();
        let mut pointers = Vec::new();
        for instruction in instructions(words) {
            match (instruction.opcode, instruction.operands) {
                (OP_FUNCTION, _) => break,
                (OP_DECORATE, &[target, DECORATION_BUILT_IN, built_in]) => {
                    if matches!(
                        built_in,
                        BUILT_IN_NUM_WORKGROUPS | BUILT_IN_WORKGROUP_ID | BUILT_IN_GLOBAL_INVOCATION_ID
                    ) {
                        found.inputs.push((target, built_in));
                    }
                }
                (OP_TYPE_INT, &[id, 32, 0]) => found.uint = Some(id),
                (OP_TYPE_VECTOR, &[id, component, 3]) if Some(component) == found.uint => {
                    found.uvec3 = Some(id)
                }
                (OP_TYPE_STRUCT, &[id, ref members @ ..]) => structs.push((id, members.len() as u32)),
                (OP_TYPE_POINTER, &[id, STORAGE_PUSH_CONSTANT, pointee]) => pointers.push((id, pointee)),
                (OP_VARIABLE, &[ty, id, STORAGE_PUSH_CONSTANT, ..]) => {
                    let lookup = |table: &[(u32, u32)], id: u32| {
                        table.iter().find(|(known, _)| *known == id).map(|(_, value)| *value)
                    };
                    let block = lookup(&pointers, ty).ok_or("the push constants have no pointer type")?;
                    let members = lookup(&structs, block).ok_or("the push constants are not a struct")?;
                    found.push_constants = Some(PushConstants { variable: id, block, members });
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn built_in(&self, variable: u32) -> Option<u32> {
        self.inputs.iter().find(|(known, _)| *known == variable).map(|(_, built_in)| *built_in)
    }
}
