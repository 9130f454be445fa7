enable f16;
@group(0) @binding(0) var<storage, read_write> i: array<i32>;
@group(0) @binding(1) var<storage, read_write> u: array<u32>;
@group(0) @binding(2) var<storage, read_write> f: array<f32>;
@group(0) @binding(3) var<storage, read_write> h: array<f16>;
@group(0) @binding(4) var<storage, read_write> l: array<i64>;
@group(0) @binding(5) var<storage, read_write> m: array<u64>;
@group(0) @binding(6) var<storage, read_write> d: array<f64>;
@group(0) @binding(7) var<storage, read_write> v: array<vec3<f32>>;
@group(0) @binding(8) var<storage, read_write> w: array<vec3<u32>>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let k = id.x;
    i[k] = i32(f[k]) + i32(u[k]) + i32(h[k]) + i32(l[k]) + i32(d[k]) + i32(f[k] > 0.0) + bitcast<i32>(f[k]);
    u[k] = u32(f[k]) + u32(i[k]) + u32(h[k]) + u32(m[k]) + u32(d[k]) + u32(f[k] > 0.0) + bitcast<u32>(i[k]);
    f[k] = f32(i[k]) + f32(u[k]) + f32(h[k]) + f32(l[k]) + f32(m[k]) + f32(d[k]) + f32(i[k] > 0) + bitcast<f32>(u[k]);
    h[k] = f16(i[k]) + f16(u[k]) + f16(f[k]) + f16(d[k]) + f16(i[k] > 0);
    l[k] = i64(f[k]) + i64(i[k]) + i64(u[k]) + i64(m[k]) + i64(d[k]);
    m[k] = u64(f[k]) + u64(i[k]) + u64(u[k]) + u64(l[k]) + u64(d[k]);
    d[k] = f64(f[k]) + f64(i[k]) + f64(u[k]) + f64(l[k]);
    v[k] = vec3<f32>(w[k]) + bitcast<vec3<f32>>(w[k + 1u]) + vec3<f32>(w[k] != vec3(0u));
    w[k] = vec3<u32>(v[k]) + bitcast<vec3<u32>>(v[k + 1u]) + vec3(select(0u, 1u, bool(f[k]) != bool(u[k])));
}
