// Each workgroup reverses its tile through workgroup memory; then counts the values of its tile with atomics there.

override TILE: u32;
override SIZE: u32;

@group(0) @binding(0) var<storage, read_write> words: array<u32>;

var<workgroup> tile: array<u32, TILE>;

@compute @workgroup_size(SIZE)
fn reverse(@builtin(local_invocation_index) me: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let base = group.x * TILE;
    for (var i = me; i < TILE; i += SIZE) {
        tile[i] = words[base + i];
    }
    workgroupBarrier();
    for (var i = me; i < TILE; i += SIZE) {
        words[base + i] = tile[TILE - 1u - i];
    }
}

var<workgroup> bins: array<atomic<u32>, TILE>;

@compute @workgroup_size(SIZE)
fn count(@builtin(local_invocation_index) me: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let base = group.x * TILE;
    for (var i = me; i < TILE; i += SIZE) {
        let word = words[base + i];
        atomicAdd(&bins[word % TILE], 1u);
        // A few bins that everybody wants.
        atomicAdd(&bins[word % 7u], 1u);
    }
    workgroupBarrier();
    for (var i = me; i < TILE; i += SIZE) {
        words[base + i] = atomicLoad(&bins[i]);
    }
}
