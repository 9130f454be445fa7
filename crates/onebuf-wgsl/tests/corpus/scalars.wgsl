enable f16;
@group(0) @binding(0) var<storage, read_write> a: array<i32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> d: array<f16>;
@group(0) @binding(4) var<storage, read_write> e: array<i64>;
@group(0) @binding(5) var<storage, read_write> f: array<u64>;
@group(0) @binding(6) var<storage, read_write> g: array<f64>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    a[i] = -((a[i] + a[i + 1]) * a[i + 2] - a[i + 3]) / a[i + 4] % a[i + 5];
    a[i + 6] = (a[i] & a[i + 1]) | (a[i + 2] ^ ~a[i + 3]);
    a[i + 7] = (a[i] << b[i]) >> b[i + 1];
    b[i] = ((b[i] + b[i + 1]) * b[i + 2] - b[i + 3]) / b[i + 4] % b[i + 5];
    b[i + 6] = (b[i] << 3u) >> b[i + 1];
    c[i] = -((c[i] + c[i + 1]) * c[i + 2] - c[i + 3]) / c[i + 4] % c[i + 5];
    d[i] = -((d[i] + d[i + 1]) * d[i + 2] - d[i + 3]) / d[i + 4] % d[i + 5];
    e[i] = -((e[i] + e[i + 1]) * e[i + 2] - e[i + 3]) / e[i + 4] % e[i + 5] << b[i];
    f[i] = ((f[i] + f[i + 1]) * f[i + 2] - f[i + 3]) / f[i + 4] % f[i + 5] >> b[i];
    g[i] = -((g[i] + g[i + 1]) * g[i + 2] - g[i + 3]) / g[i + 4] % g[i + 5];
    let p = a[i] < a[i + 1] && b[i] >= b[i + 1] || c[i] != c[i + 1];
    let q = !(d[i] <= d[i + 1]) != (e[i] == e[i + 1]);
    if p | q { a[i + 8] = select(1, 2, p & q); }
}
