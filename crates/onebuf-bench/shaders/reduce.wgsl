// The sum of the words, modulo 2^32: each workgroup folds its part in workgroup memory and adds it to the total.

@group(0) @binding(0) var<storage> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> total: atomic<u32>;

var<workgroup> parts: array<u32, 256>;

@compute @workgroup_size(256)
fn reduce(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let count = arrayLength(&words);
    var sum = 0u;
    for (var i = id.x; i < count; i += groups.x * 256u) {
        sum += words[i];
    }
    parts[local] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if local < half {
            parts[local] += parts[local + half];
        }
        workgroupBarrier();
    }
    if local == 0u {
        atomicAdd(&total, parts[0]);
    }
}
