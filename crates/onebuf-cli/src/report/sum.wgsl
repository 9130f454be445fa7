// Adds up all words of a buffer: each workgroup writes the sum of what it read.

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
var<immediate> count: u32; // in vectors

var<workgroup> parts: array<u32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) me: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var sum = vec4<u32>();
    for (var i = group.x * 256u + me; i < count; i += groups.x * 256u) {
        sum += words[i];
    }
    parts[me] = sum.x + sum.y + sum.z + sum.w;
    workgroupBarrier();
    if me == 0u {
        var total = 0u;
        for (var i = 0u; i < 256u; i++) {
            total += parts[i];
        }
        sums[group.x] = total;
    }
}
