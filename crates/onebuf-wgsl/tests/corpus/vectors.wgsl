@group(0) @binding(0) var<storage, read_write> v2: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> v3: array<vec3<i32>>;
@group(0) @binding(2) var<storage, read_write> v4: array<vec4<u32>>;

@compute @workgroup_size(8, 8)
fn main(@builtin(local_invocation_index) i: u32) {
    var a = v2[i] * 2.0 + vec2(v2[i].yx);
    a.x = 3.0;
    a[i] = a[i + 1u] * a.y;
    v2[i] = a / v2[i + 1u] - 1.0;
    v2[i].y = 4.0;
    v2[i][i] = v2[i][i + 1u];
    let b = v3[i].zyx % v3[i + 1u] + vec3(i32(i), v3[i].xy);
    v3[i] = select(b, -b, b < v3[i + 2u]);
    v3[i] = v3[i] * 3 + 2 * v3[i + 1u] / i32(i) - 1;
    let c = vec4(v4[i].xyz, i) << v4[i + 1u];
    v4[i] = vec4(c.wx, c.yz) & ~c | vec4(7u);
    if all(c == v4[i]) || any(b != v3[i]) { v4[i][i] = c[i]; }
    let flags = vec3(true, i > 3u, !(i < 2u));
    v3[i] = vec3<i32>(flags & flags.zyx);
}
