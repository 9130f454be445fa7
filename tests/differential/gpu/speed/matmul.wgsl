// C = A * B, all row-major and square; tiles of 64 x 64, each invocation has 4 x 4 sums in registers.
var<immediate> n: u32;
@group(0) @binding(0) var<storage> a: array<f32>;
@group(0) @binding(1) var<storage> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
var<workgroup> tile_a: array<array<f32, 65>, 16>;
var<workgroup> tile_b: array<array<f32, 64>, 16>;

@compute @workgroup_size(16, 16)
fn matmul(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let row = group.y * 64u;
    let column = group.x * 64u;
    var sums: array<array<f32, 4>, 4>;
    for (var k = 0u; k < n; k += 16u) {
        for (var s = 0u; s < 4u; s++) {
            let e = s * 256u + t;
            tile_a[e % 16u][e / 16u] = a[(row + e / 16u) * n + k + e % 16u];
            tile_b[e / 64u][e % 64u] = b[(k + e / 64u) * n + column + e % 64u];
        }
        workgroupBarrier();
        for (var kk = 0u; kk < 16u; kk++) {
            var left: array<f32, 4>;
            var right: array<f32, 4>;
            for (var i = 0u; i < 4u; i++) {
                left[i] = tile_a[kk][local.y * 4u + i];
                right[i] = tile_b[kk][local.x + i * 16u];
            }
            for (var i = 0u; i < 4u; i++) {
                for (var j = 0u; j < 4u; j++) {
                    sums[i][j] += left[i] * right[j];
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            c[(row + local.y * 4u + i) * n + column + local.x + j * 16u] = sums[i][j];
        }
    }
}
