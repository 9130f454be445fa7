var<immediate> n: u32;
@group(0) @binding(0) var<storage> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<f32>;
var<workgroup> part: array<f32, 8>;

@compute @workgroup_size(256)
fn reduce_subgroup(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    var sum = 0.0;
    for (var i = group.x * 256u + t; i < n / 4u; i += groups.x * 256u) {
        let v = src[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    let whole = subgroupAdd(sum);
    if lane == 0u { part[subgroup] = whole; }
    workgroupBarrier();
    if t == 0u {
        var total = 0.0;
        for (var i = 0u; i < 8u; i++) { total += part[i]; }
        dst[group.x] = total;
    }
}
