// Changes each word of a range in a way that depends on the word, its place and the round.

struct Params {
    count: u32,
    salt: u32,
}

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < params.count; i += groups.x * 64u) {
        words[i] = words[i] * 2654435761u + (i ^ params.salt);
    }
}
