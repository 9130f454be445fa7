var<immediate> size: vec2<u32>;
@group(0) @binding(0) var<storage> src: array<f32>;
@group(0) @binding(1) var<storage, read_write> dst: array<f32>;
var<workgroup> tile: array<array<f32, 33>, 32>;

@compute @workgroup_size(32, 8)
fn transpose_tiles(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let x = group.x * 32u + local.x;
    let y = group.y * 32u + local.y;
    for (var j = 0u; j < 32u; j += 8u) {
        if x < size.x && y + j < size.y {
            tile[local.y + j][local.x] = src[(y + j) * size.x + x];
        }
    }
    workgroupBarrier();
    let tx = group.y * 32u + local.x;
    let ty = group.x * 32u + local.y;
    for (var j = 0u; j < 32u; j += 8u) {
        if tx < size.y && ty + j < size.x {
            dst[(ty + j) * size.y + tx] = tile[local.x][local.y + j];
        }
    }
}
