@group(0) @binding(0) var<storage, read_write> b: array<u32>;
@group(0) @binding(1) var<storage, read_write> v: array<vec4<f32>>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let p = b[i];
    let f = v[i];
    b[i] = pack4x8snorm(f) ^ pack4x8unorm(f) ^ pack2x16snorm(f.xy) ^ pack2x16unorm(f.zw) ^ pack2x16float(f.xy);
    b[i] ^= pack4xI8(vec4<i32>(f)) ^ pack4xU8(vec4<u32>(f)) ^ pack4xI8Clamp(vec4<i32>(f)) ^ pack4xU8Clamp(vec4<u32>(f));
    v[i] = unpack4x8snorm(p) + unpack4x8unorm(p) + vec4(unpack2x16snorm(p), unpack2x16unorm(p));
    v[i] += vec4(unpack2x16float(p), vec2(0.0)) + vec4<f32>(unpack4xI8(p)) + vec4<f32>(unpack4xU8(p));
}
