struct M {
    a: mat2x2<f32>, b: mat2x3<f32>, c: mat2x4<f32>,
    d: mat3x2<f32>, e: mat3x3<f32>, f: mat3x4<f32>,
    g: mat4x2<f32>, h: mat4x3<f32>, i: mat4x4<f32>,
}
@group(0) @binding(0) var<storage, read_write> m: M;
@group(0) @binding(1) var<uniform> u: M;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    m.a = u.a * 2.0 + m.a - 0.5 * u.a;
    m.e = m.e * u.e;
    m.i = transpose(m.i) * u.i;
    m.b = transpose(u.d);
    m.h = u.e * m.h;
    let v = m.h * vec4(1.0, 2.0, 3.0, 4.0);
    let w = v * m.e;
    out[0] = determinant(m.a) + determinant(m.e) + determinant(m.i) + dot(v, w);
    m.f[id.x] = m.f[id.y] * 2.0;
    m.f[id.x][id.y] = m.g[id.z].x;
    m.c[1] = u.c[id.x];
    var local = m.i;
    local[id.x].z = local[2][id.y];
    m.i = local;
    m.d = mat3x2<f32>(vec2(1.0), vec2(2.0), vec2(3.0));
}
