// y = a x + y, the map of the BLAS of that name (Lawson and others, 1979).
//
// @group(0) @binding(0) x     read
// @group(0) @binding(1) y     read and written, as long as the shorter of the two
// immediate             a     the factor
// override              SIZE  invocations in a workgroup
// groups: [ceil(elements / SIZE), 1, 1]
//
// A device may fuse the product and the sum, so the last bit differs between vendors unless both are exact.

override SIZE: u32 = 64;

@group(0) @binding(0) var<storage> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

var<immediate> a: f32;

@compute @workgroup_size(SIZE)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < min(arrayLength(&x), arrayLength(&y)) {
        y[id.x] += a * x[id.x];
    }
}
