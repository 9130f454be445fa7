// y = a * x + y.

@group(0) @binding(0) var<storage> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<immediate> a: f32;

@compute @workgroup_size(64)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let count = arrayLength(&y);
    for (var i = id.x; i < count; i += groups.x * 64u) {
        y[i] = a * x[i] + y[i];
    }
}
