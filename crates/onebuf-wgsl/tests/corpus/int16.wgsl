enable wgpu_int16;
@group(0) @binding(0) var<storage, read_write> a: array<i16>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<u16>>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let x = a[i]; let y = a[i + 1u];
    a[i] = -(x * y) + x / y - x % y;
    a[i] += min(x, y) + abs(x) + (x & ~y) + i16(u32(x) >> 3u);
    b[i] = b[i] * b[i + 1u] + b[i] / b[i + 2u];
    if x < y { a[i] = i16(f32(b[i].x)); }
}
