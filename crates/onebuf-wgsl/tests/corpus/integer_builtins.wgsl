@group(0) @binding(0) var<storage, read_write> a: array<i32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<i32>>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let x = a[i]; let y = a[i + 1u]; let p = b[i]; let q = b[i + 1u];
    a[i] = abs(x) + min(x, y) + max(x, y) + clamp(x, y, 9) + sign(x) + dot(c[i], c[i + 1u]);
    a[i] += countTrailingZeros(x) + countLeadingZeros(x) + countOneBits(x) + reverseBits(x);
    a[i] += extractBits(x, p, q) + insertBits(x, y, p, q) + firstTrailingBit(x) + firstLeadingBit(x);
    b[i] = min(p, q) + max(p, q) + countTrailingZeros(p) + countLeadingZeros(p) + countOneBits(p) + reverseBits(p);
    b[i] += extractBits(p, q, 3u) + insertBits(p, q, 3u, p) + firstTrailingBit(p) + firstLeadingBit(p);
    c[i] = abs(c[i]) + extractBits(c[i], p, q) + insertBits(c[i], c[i + 1u], p, q) + firstLeadingBit(c[i]);
    a[i] += dot4I8Packed(p, q);
    b[i] += dot4U8Packed(p, q);
}
