struct signed { and: f32, or: u32, int: vec2<f32>, x_: f32 }
struct array_ { vec: u32 }
@group(0) @binding(0) var<storage, read_write> long: array<signed>;
@group(0) @binding(1) var<storage, read_write> threadIdx: array<u32>;
@group(0) @binding(2) var<uniform> π: f32;
var<private> printf: u32;
var<workgroup> float: u32;
const linux = 3u;
override bitand: f32 = 1.5;

fn min3(not: f32, xor: f32) -> f32 { return min(not, xor); }
fn sinf(x: f32) -> f32 { return sin(x); }
fn dot2(a: vec2<f32>) -> f32 { return dot(a, a); }
fn reserved_no(wg_add: u32) -> u32 { return wg_add + 1u; }
fn kernel_main(kernel: u32) -> u32 { return kernel + printf; }

@compute @workgroup_size(1)
fn double(@builtin(global_invocation_id) blockIdx: vec3<u32>) {
    let 变量 = blockIdx.x;
    let e1 = long[变量].and * π;
    let _e2 = e1 + bitand;
    long[变量].or = kernel_main(reserved_no(linux)) + array_(4u).vec;
    long[变量].int = vec2(sinf(e1), min3(_e2, dot2(long[变量].int)));
    long[变量].x_ = e1;
    threadIdx[变量] = float;
    printf = 2u;
    var short = 1u;
    short += threadIdx[变量];
    threadIdx[变量] = short;
}
