// out[x][y] = input[y][x], for words of 32 bits of any meaning.
//
// @group(0) @binding(0) input  read: row by row
// @group(0) @binding(1) out    written: row by row, `height` words a row
// immediate             size   width and height of the input
// groups: [ceil(width / 16), ceil(height / 16), 1]
//
// A tile goes through shared memory, so that neighbours read and write neighbours on both sides; the odd pitch keeps a
// column's words in different banks (Ruetsch and Micikevicius, "Optimizing Matrix Transpose in CUDA", 2009).

const SIDE: u32 = 16;
const PITCH: u32 = SIDE + 1;

@group(0) @binding(0) var<storage> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

var<immediate> size: vec2<u32>;

var<workgroup> tile: array<u32, SIDE * PITCH>;

@compute @workgroup_size(SIDE, SIDE)
fn transpose_words(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let corner = group.xy * SIDE;
    let here = corner + local.xy;
    if all(here < size) {
        tile[local.y * PITCH + local.x] = input[here.y * size.x + here.x];
    }
    workgroupBarrier();
    // The invocation now takes the mirrored place in the tile, so that neighbours write neighbours.
    let mirrored = corner + local.yx;
    if all(mirrored < size) {
        out[mirrored.x * size.y + mirrored.y] = tile[local.x * PITCH + local.y];
    }
}
