// One step of a chain on one word: nothing to compute, all to launch.

@group(0) @binding(0) var<storage, read_write> cell: array<u32>;
var<immediate> k: u32;

@compute @workgroup_size(1)
fn step() {
    cell[0] = cell[0] * 3u + k;
}
