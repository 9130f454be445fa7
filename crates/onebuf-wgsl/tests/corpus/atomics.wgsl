struct C { n: atomic<u32>, list: array<atomic<i32>> }
@group(0) @binding(0) var<storage, read_write> c: C;
@group(0) @binding(1) var<storage, read_write> l: array<atomic<u64>>;
@group(0) @binding(2) var<storage, read_write> s: array<atomic<i64>, 4>;
@group(0) @binding(3) var<storage, read_write> f: atomic<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;
var<workgroup> w: array<atomic<u32>, 16>;

@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) i: u32) {
    let old = atomicAdd(&c.n, 2u);
    atomicSub(&c.list[i], 1);
    atomicMin(&c.list[i], -5);
    atomicMax(&c.list[old], 5);
    atomicAnd(&w[i], 3u);
    atomicOr(&w[i], 8u);
    atomicXor(&w[i], old);
    let x = atomicExchange(&w[i & 7u], 4u);
    let r = atomicCompareExchangeWeak(&c.n, x, x + 1u);
    if r.exchanged { out[i] = r.old_value; }
    atomicStore(&w[3], atomicLoad(&c.n));
    atomicAdd(&l[i], 5lu);
    atomicMax(&l[i], 7lu);
    atomicMin(&s[i], -7li);
    atomicSub(&s[1], 3li);
    let y = atomicCompareExchangeWeak(&s[2], 1li, 2li);
    out[1] = u32(y.old_value);
    atomicAdd(&f, 1.5);
    atomicSub(&f, 0.5);
    out[2] = u32(atomicExchange(&f, 2.0));
}
