enable f16;
struct Inner { a: vec3<f32>, b: f32, c: vec3<u32> }
struct Outer {
    head: u32,
    @align(32) x: vec2<f32>,
    @size(24) y: f32,
    inner: array<Inner, 3>,
    h: vec3<f16>,
    k: f16,
    m: mat3x3<f32>,
    z: array<vec3<f32>, 2>,
    tail: array<Inner>,
}
@group(0) @binding(0) var<storage, read_write> o: Outer;
@group(0) @binding(1) var<uniform> one: Inner;
@group(1) @binding(4) var<storage> many: array<Inner>;

fn make(x: f32) -> Inner {
    var i = Inner(vec3(x), x + 1.0, vec3(3u));
    i.b *= 2.0;
    return i;
}

@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    o.inner[i] = one;
    o.inner[i].a = many[i].a;
    o.tail[i] = make(o.x.y);
    o.tail[i + 1u].c.z = arrayLength(&o.tail) + arrayLength(&many);
    o.h = vec3<f16>(o.z[i]) * o.k;
    o.m[i] = o.z[i + 1u];
    var copy = o.inner;
    copy[i].b = 1.0;
    o.inner = copy;
    o.y = copy[2].b;
}
