// c = a * b, square matrices, in tiles of 16 x 16 through workgroup memory.

@group(0) @binding(0) var<storage> a: array<f32>;
@group(0) @binding(1) var<storage> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
var<immediate> side: u32;

var<workgroup> tile_a: array<array<f32, 16>, 16>;
var<workgroup> tile_b: array<array<f32, 16>, 16>;

@compute @workgroup_size(16, 16)
fn matmul(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    var sum = 0.0;
    for (var k = 0u; k < side; k += 16u) {
        tile_a[local.y][local.x] = a[id.y * side + k + local.x];
        tile_b[local.y][local.x] = b[(k + local.y) * side + id.x];
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            sum += tile_a[local.y][i] * tile_b[i][local.x];
        }
        workgroupBarrier();
    }
    c[id.y * side + id.x] = sum;
}
