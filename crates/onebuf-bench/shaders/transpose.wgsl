// Transposes a square matrix in tiles of 16 x 16, through workgroup memory.

@group(0) @binding(0) var<storage> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> turned: array<f32>;
var<immediate> side: u32;

// One column more than the tile, so that a column's elements lie in different banks.
var<workgroup> tile: array<array<f32, 17>, 16>;

@compute @workgroup_size(16, 16)
fn transpose(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let here = group.xy * 16u + local.xy;
    tile[local.y][local.x] = source[here.y * side + here.x];
    workgroupBarrier();
    let there = group.yx * 16u + local.xy;
    turned[there.y * side + there.x] = tile[local.x][local.y];
}
