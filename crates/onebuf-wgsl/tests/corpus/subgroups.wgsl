enable f16;
@group(0) @binding(0) var<storage, read_write> u: array<u32>;
@group(0) @binding(1) var<storage, read_write> f: array<vec3<f32>>;
@group(0) @binding(2) var<storage, read_write> h: array<f16>;
@group(0) @binding(3) var<storage, read_write> l: array<i64>;

fn sum(x: u32) -> u32 { return subgroupAdd(x); }

@compute @workgroup_size(48)
fn main(
    @builtin(local_invocation_index) i: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) id: u32,
    @builtin(num_subgroups) count: u32,
) {
    u[i] = sum(u[i]) + lane + size * id + count;
    u[i] += subgroupMin(u[i]) ^ subgroupMax(u[i]) ^ subgroupMul(u[i]);
    u[i] += subgroupAnd(u[i]) ^ subgroupOr(u[i]) ^ subgroupXor(u[i]);
    u[i] += subgroupInclusiveAdd(u[i]) + subgroupExclusiveAdd(u[i]) + subgroupInclusiveMul(u[i]) + subgroupExclusiveMul(u[i]);
    f[i] = subgroupAdd(f[i]) + subgroupInclusiveAdd(f[i]) + subgroupExclusiveMul(f[i]);
    h[i] = subgroupMax(h[i]) + subgroupBroadcast(h[i], 3u);
    l[i] = subgroupShuffleXor(l[i], 1u) + subgroupMin(l[i]);
    let b = subgroupBallot(u[i] > 3u);
    if subgroupAll(b.x == 0u) || subgroupAny(b.y == 1u) { u[i] = subgroupBroadcastFirst(u[i]); }
    u[i] += subgroupShuffle(u[i], i) + subgroupShuffleUp(u[i], 1u) + subgroupShuffleDown(u[i], 2u);
    f[i] += quadBroadcast(f[i], 2u) + quadSwapX(f[i]) + quadSwapY(f[i]) + quadSwapDiagonal(f[i]);
    subgroupBarrier();
    for (var k = 0u; k < 4u; k++) { u[i] += subgroupAdd(k + i); }
    if i > 7u { return; }
    u[i] = subgroupAdd(1u);
}
