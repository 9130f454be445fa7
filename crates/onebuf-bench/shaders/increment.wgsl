// Adds one to every word.

@group(0) @binding(0) var<storage, read_write> words: array<u32>;

@compute @workgroup_size(64)
fn increment(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = arrayLength(&words);
    for (var i = id.x; i < count; i += groups.x * 64u) {
        words[i] += 1u;
    }
}
