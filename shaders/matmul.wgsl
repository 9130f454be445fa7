// c = a b, for matrices of f32, row by row.
//
// @group(0) @binding(0) a      read: `m` rows of `k`
// @group(0) @binding(1) b      read: `k` rows of `n`
// @group(0) @binding(2) c      written: `m` rows of `n`
// immediate             shape  m, n, k
// groups: [ceil(n / 16), ceil(m / 16), 1]
//
// Tiles of 16 by 16 go through shared memory, so each element is read from its buffer once for 16 products (CUDA C++
// Programming Guide, "Shared Memory"). Sums run from the first product to the last; a device may fuse product and sum, so
// the last bit differs between vendors unless all of them are exact.

const SIDE: u32 = 16;

struct Shape {
    m: u32,
    n: u32,
    k: u32,
}

@group(0) @binding(0) var<storage> a: array<f32>;
@group(0) @binding(1) var<storage> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;

var<immediate> shape: Shape;

var<workgroup> tile_a: array<f32, SIDE * SIDE>;
var<workgroup> tile_b: array<f32, SIDE * SIDE>;

@compute @workgroup_size(SIDE, SIDE)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let row = group.y * SIDE + local.y;
    let column = group.x * SIDE + local.x;
    let here = local.y * SIDE + local.x;
    var sum = 0.0;
    for (var first = 0u; first < shape.k; first += SIDE) {
        let ka = first + local.x;
        let kb = first + local.y;
        // What lies outside adds nothing.
        tile_a[here] = 0;
        tile_b[here] = 0;
        if row < shape.m && ka < shape.k {
            tile_a[here] = a[row * shape.k + ka];
        }
        if kb < shape.k && column < shape.n {
            tile_b[here] = b[kb * shape.n + column];
        }
        workgroupBarrier();
        for (var i = 0u; i < SIDE; i++) {
            sum += tile_a[local.y * SIDE + i] * tile_b[i * SIDE + local.x];
        }
        workgroupBarrier();
    }
    if row < shape.m && column < shape.n {
        c[row * shape.n + column] = sum;
    }
}
