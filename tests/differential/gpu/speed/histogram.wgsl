var<immediate> n: u32;
@group(0) @binding(0) var<storage> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> bins: array<atomic<u32>>;
var<workgroup> own: array<atomic<u32>, 256>;

@compute @workgroup_size(256)
fn histogram(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    for (var i = group.x * 256u + t; i < n / 4u; i += groups.x * 256u) {
        let w = src[i];
        atomicAdd(&own[w & 255u], 1u);
        atomicAdd(&own[(w >> 8u) & 255u], 1u);
        atomicAdd(&own[(w >> 16u) & 255u], 1u);
        atomicAdd(&own[w >> 24u], 1u);
    }
    workgroupBarrier();
    atomicAdd(&bins[t], atomicLoad(&own[t]));
}
