struct S { a: array<i32, 4>, b: vec4<f32> }
var<private> state: S;
var<private> counter: u32 = 7u;
@group(0) @binding(0) var<storage, read_write> out: array<i32>;

fn bump(p: ptr<function, i32>, by: i32) -> i32 { let old = *p; *p += by; return old; }
fn fill(p: ptr<function, array<i32, 4>>, v: i32) { for (var i = 0u; i < 4u; i++) { (*p)[i] = v + i32(i); } }
fn poke(p: ptr<private, S>, i: u32) { (*p).a[i] = 9; (*p).b[i] = 2.5; }
fn next() -> u32 { counter = counter * 1664525u + 1013904223u; return counter; }

@compute @workgroup_size(2)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = 5;
    var list = array<i32, 4>();
    fill(&list, 3);
    out[0] = bump(&x, 2) + x;
    poke(&state, id.x);
    let p = &list[id.x];
    *p = *p + 1;
    let q = &out[id.x + 1u];
    *q = list[id.y] + state.a[id.x] + i32(state.b[id.y]);
    out[3] = i32(next() ^ next());
}
