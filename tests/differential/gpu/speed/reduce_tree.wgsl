var<immediate> n: u32;
@group(0) @binding(0) var<storage> src: array<f32>;
@group(0) @binding(1) var<storage, read_write> dst: array<f32>;
var<workgroup> part: array<f32, 256>;

@compute @workgroup_size(256)
fn reduce_tree(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var sum = 0.0;
    for (var i = group.x * 256u + t; i < n; i += groups.x * 256u) {
        sum += src[i];
    }
    part[t] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if t < half { part[t] += part[t + half]; }
        workgroupBarrier();
    }
    if t == 0u { dst[group.x] = part[0]; }
}
