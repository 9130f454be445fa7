enable f16;
@group(0) @binding(0) var<storage, read_write> i: array<i32>;
@group(0) @binding(1) var<storage, read_write> u: array<u32>;
@group(0) @binding(2) var<storage, read_write> f: array<f32>;
@group(0) @binding(3) var<storage, read_write> h: array<f16>;
@group(0) @binding(4) var<storage, read_write> l: array<i64>;
@group(0) @binding(5) var<storage, read_write> d: array<f64>;
const TABLE = array<i32, 4>(-2147483648, -1, 0, 2147483647);
const POINTS = array<vec3<f32>, 2>(vec3(1.0, 2.0, 3.0), vec3(-0.0));

@compute @workgroup_size(1)
fn main() {
    i[0] = -2147483648;
    i[1] = 2147483647;
    i[2] = TABLE[u[0]];
    u[1] = 4294967295u;
    f[0] = -0.0;
    f[1] = 3.40282347e+38;
    f[2] = 1.0e-45;
    f[3] = 0.1;
    f[4] = POINTS[u[0]].y;
    h[0] = 65504.0h;
    h[1] = -0.0h;
    h[2] = 0.1h;
    l[0] = -9223372036854775807li - 1li;
    d[0] = 0.1lf;
    d[1] = -4.9e-324lf;
}
