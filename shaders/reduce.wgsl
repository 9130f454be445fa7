// Adds up a buffer, modulo 2^32.
//
// @group(0) @binding(0) input  read
// @group(0) @binding(1) sum    added to: one word; set it to zero first
// groups: [any, 1, 1]: each invocation takes every so-manieth element
//
// Each invocation adds up its elements, a workgroup halves its partial sums until one is left (Harris, "Optimizing
// Parallel Reduction in CUDA", 2007), and adds that to the buffer. Addition modulo 2^32 has no order, so the result is the
// same on every device.

const SIZE: u32 = 256;

@group(0) @binding(0) var<storage> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> sum: atomic<u32>;

var<workgroup> partial: array<u32, SIZE>;

@compute @workgroup_size(SIZE)
fn reduce(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var mine = 0u;
    for (var i = id.x; i < arrayLength(&input); i += groups.x * SIZE) {
        mine += input[i];
    }
    partial[index] = mine;
    for (var half = SIZE / 2; half > 0; half /= 2) {
        workgroupBarrier();
        if index < half {
            partial[index] += partial[index + half];
        }
    }
    if index == 0 {
        atomicAdd(&sum, partial[0]);
    }
}
