struct Params { n: u32, k: vec3<f32>, list: array<vec4<f32>, 3> }
@group(0) @binding(3) var<uniform> params: Params;
@group(1) @binding(0) var<storage> ro: array<vec4<f32>>;
@group(2) @binding(7) var<storage, read_write> fixed: array<f32, 9>;
@group(3) @binding(0) var<storage, read_write> single: vec3<f32>;
@group(3) @binding(1) var<storage, read_write> unused: array<f32>;
struct Push { a: vec3<f32>, b: f32, c: mat2x2<f32>, d: array<u32, 3> }
var<immediate> push: Push;

fn read(i: u32) -> vec4<f32> { return ro[i] + params.list[i] + push.a.xyzx * push.b; }

@compute @workgroup_size(2, 3, 4)
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>, @builtin(local_invocation_index) i: u32) {
    fixed[i] = read(g.x).y + params.k[l.y] + (push.c * vec2(1.0, 2.0)).x;
    single[g.z] = f32(push.d[l.x]);
    fixed[8] = f32(params.n + arrayLength(&ro));
}
