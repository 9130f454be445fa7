// Adds up all words of a buffer: each invocation writes the sum of what it read. Nothing but reads takes time.

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
var<immediate> count: u32; // in vectors

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    var sum = vec4<u32>();
    for (var i = id.x; i < count; i += groups.x * 64u) {
        sum += words[i];
    }
    sums[id.x] = sum.x + sum.y + sum.z + sum.w;
}
