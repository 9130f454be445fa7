@group(0) @binding(0) var<storage> s: array<i32>;
@group(0) @binding(1) var<storage> u: array<u32>;
@group(0) @binding(2) var<storage, read_write> wide: array<vec4<i64>>;
@group(0) @binding(3) var<storage, read_write> unsigned: array<vec2<u64>>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    wide[i] = vec4<i64>(i64(s[i]), i64(u[i]), i64(u64(s[i])), i64(1));
    wide[i + 1u] = vec4<i64>(vec4(u[i], u[i + 1u], u[i + 2u], 7u));
    unsigned[i] = vec2<u64>(vec2(s[i], -1)) + vec2(u64(u[i]));
}
