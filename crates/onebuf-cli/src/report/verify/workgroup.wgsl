// Each workgroup reverses its tile through workgroup memory, and counts the tile's values there with atomics.

override TILE: u32;
override SIZE: u32;
const BINS = 256u;

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;

var<workgroup> tile: array<u32, TILE>;
var<workgroup> bins: array<atomic<u32>, BINS>; // WGSL: zero at first

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) me: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let base = group.x * TILE;
    for (var i = me; i < TILE; i += SIZE) {
        let word = words[base + i];
        tile[i] = word;
        atomicAdd(&bins[word % BINS], 1u);
        // A few bins that everybody wants.
        atomicAdd(&bins[word % 7u], 1u);
    }
    workgroupBarrier();
    for (var i = me; i < TILE; i += SIZE) {
        words[base + i] = tile[TILE - 1u - i];
    }
    for (var i = me; i < BINS; i += SIZE) {
        counts[group.x * BINS + i] = atomicLoad(&bins[i]);
    }
}
