struct Push { a: f32, n: u32 }
var<immediate> push: Push;
@group(0) @binding(0) var<storage> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < push.n {
        y[i] = push.a * x[i] + y[i];
    }
}
