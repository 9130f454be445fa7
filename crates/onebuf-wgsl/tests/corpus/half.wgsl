enable f16;
@group(0) @binding(0) var<storage, read_write> a: array<f16>;
@group(0) @binding(1) var<storage, read_write> v: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> m: array<mat3x3<f16>>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let x = a[i]; let y = a[i + 1u];
    a[i] = abs(x) + min(x, y) + max(x, y) + clamp(x, y, 1.0h) + saturate(x) + sin(x) + exp(x) + pow(x, y) + sqrt(x);
    a[i] += round(x) + fract(x) + floor(x) + sign(x) + step(x, y) + smoothstep(x, y, 0.5h) + mix(x, y, 0.25h) + fma(x, y, x);
    a[i] += modf(x).fract + frexp(x).fract + ldexp(x, 2) + length(x) + radians(x) + atan2(x, y) + tanh(x);
    v[i] = v[i] * v[i + 1u] + 2.0h - v[i] / 3.0h;
    v[i] += normalize(v[i]) + vec4(dot(v[i], v[i + 1u])) + select(v[i], -v[i], v[i] < v[i + 1u]);
    m[i] = m[i] * m[i + 1u] + transpose(m[i]);
    v[i].x = (m[i] * v[i].xyz).y + determinant(m[i]);
    if x < y || x == y { a[i] = -x; }
}
