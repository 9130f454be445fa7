// One pass of a separable Gaussian blur: `horizontal`, then `vertical` on its result.
//
// @group(0) @binding(0) image    read: RGBA8 pixels, row by row, red in the lowest byte
// @group(0) @binding(1) out      written: the same layout
// @group(0) @binding(2) weights  read: RADIUS + 1 of them from the centre outwards, in 1/65536;
//                                weights[0] + 2 (weights[1] + ... + weights[RADIUS]) = 65536
// immediate             size     width and height in pixels
// override              RADIUS   pixels to each side
// groups: [ceil(width / 16), ceil(height / 16), 1]
//
// A workgroup loads its 16 by 16 pixels and RADIUS more at both ends into shared memory, so each pixel is read from
// the buffer about once and not 2 RADIUS + 1 times. Pixels beyond the border repeat it. All sums are of integers
// below 2^24 + 2^15, so the result is the same on every device.

override RADIUS: u32 = 4;

const SIDE: u32 = 16;

@group(0) @binding(0) var<storage> image: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<storage> weights: array<u32>;

var<immediate> size: vec2<u32>;

var<workgroup> tile: array<u32, SIDE * (SIDE + 2 * RADIUS)>;

@compute @workgroup_size(SIDE, SIDE)
fn horizontal(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    blur(group.xy * SIDE, local.xy, vec2(1, 0));
}

@compute @workgroup_size(SIDE, SIDE)
fn vertical(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    blur(group.xy * SIDE, local.xy, vec2(0, 1));
}

// Blurs the pixel at `corner + local` along `direction`, which is one of the two axes.
fn blur(corner: vec2<u32>, local: vec2<u32>, direction: vec2<u32>) {
    let length = SIDE + 2 * RADIUS;
    let along = select(local.x, local.y, direction.y == 1);
    let line = select(local.y, local.x, direction.y == 1) * length;
    let first = corner + local * (1 - direction);
    for (var i = along; i < length; i += SIDE) {
        // RADIUS is taken off last, so that nothing goes below zero.
        let pixel = max(first + direction * i, direction * RADIUS) - direction * RADIUS;
        let inside = min(pixel, size - 1);
        tile[line + i] = image[inside.y * size.x + inside.x];
    }
    workgroupBarrier();

    let pixel = corner + local;
    if any(pixel >= size) {
        return;
    }
    let centre = line + along + RADIUS;
    var sum = weights[0] * unpack4xU8(tile[centre]);
    for (var i = 1u; i <= RADIUS; i++) {
        sum += weights[i] * (unpack4xU8(tile[centre - i]) + unpack4xU8(tile[centre + i]));
    }
    out[pixel.y * size.x + pixel.x] = pack4xU8((sum + 0x8000) >> vec4(16));
}
