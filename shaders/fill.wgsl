// Sets every word of a buffer.
//
// @group(0) @binding(0) out   written, all of it
// immediate             word  what it is set to
// override              SIZE  invocations in a workgroup
// groups: [ceil(words / SIZE), 1, 1]

override SIZE: u32 = 64;

@group(0) @binding(0) var<storage, read_write> out: array<u32>;

var<immediate> word: u32;

@compute @workgroup_size(SIZE)
fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&out) {
        out[id.x] = word;
    }
}
