// Counts the bytes of the words, 256 bins: first in workgroup memory, then into the whole.

@group(0) @binding(0) var<storage> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> bins: array<atomic<u32>, 256>;

var<workgroup> local_bins: array<atomic<u32>, 256>;

@compute @workgroup_size(256)
fn histogram(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    atomicStore(&local_bins[local], 0u);
    workgroupBarrier();
    let count = arrayLength(&words);
    for (var i = id.x; i < count; i += groups.x * 256u) {
        let word = words[i];
        atomicAdd(&local_bins[word & 0xffu], 1u);
        atomicAdd(&local_bins[(word >> 8u) & 0xffu], 1u);
        atomicAdd(&local_bins[(word >> 16u) & 0xffu], 1u);
        atomicAdd(&local_bins[word >> 24u], 1u);
    }
    workgroupBarrier();
    atomicAdd(&bins[local], atomicLoad(&local_bins[local]));
}
