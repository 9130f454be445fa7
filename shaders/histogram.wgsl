// Counts the pixels of each brightness.
//
// @group(0) @binding(0) image  read: RGBA8 pixels, red in the lowest byte
// @group(0) @binding(1) bins   added to: 256 counts; set them to zero first
// groups: [any, 1, 1]: each invocation takes every so-manieth pixel
//
// A workgroup counts in shared memory, where atomics are cheap, and adds each of its counts to the buffer once. Brightness
// is that of ITU-R BT.601 in 1/256: integers, so the result is the same on every device.

const BINS: u32 = 256;

@group(0) @binding(0) var<storage> image: array<u32>;
@group(0) @binding(1) var<storage, read_write> bins: array<atomic<u32>, BINS>;

var<workgroup> counts: array<atomic<u32>, BINS>;

fn brightness(pixel: u32) -> u32 {
    return (dot(unpack4xU8(pixel).rgb, vec3(77, 150, 29)) + 128) >> 8;
}

@compute @workgroup_size(BINS)
fn histogram(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    // Shared memory starts as zeros.
    for (var i = id.x; i < arrayLength(&image); i += groups.x * BINS) {
        atomicAdd(&counts[brightness(image[i])], 1);
    }
    workgroupBarrier();
    let count = atomicLoad(&counts[index]);
    if count > 0 {
        atomicAdd(&bins[index], count);
    }
}
