// Edges of an image: the Sobel operator on its brightness (Sobel and Feldman, 1968).
//
// @group(0) @binding(0) image  read: RGBA8 pixels, row by row, red in the lowest byte
// @group(0) @binding(1) out    written: the same layout, grey and opaque
// immediate             size   width and height in pixels
// override              SHIFT  the magnitude is divided by 2^SHIFT and clamped to 255
// groups: [ceil(width / 16), ceil(height / 16), 1]
//
// Brightness is that of ITU-R BT.601 in 1/256. The magnitude is |gx| + |gy|: integers throughout, so the result is the
// same on every device. A workgroup keeps its 16 by 16 pixels and a border of one in shared memory.

override SHIFT: u32 = 1;

const SIDE: u32 = 16;
const PITCH: u32 = SIDE + 2;

@group(0) @binding(0) var<storage> image: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

var<immediate> size: vec2<u32>;

var<workgroup> tile: array<i32, PITCH * PITCH>;

fn brightness(pixel: u32) -> u32 {
    return (dot(unpack4xU8(pixel).rgb, vec3(77, 150, 29)) + 128) >> 8;
}

@compute @workgroup_size(SIDE, SIDE)
fn edges(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let corner = group.xy * SIDE;
    for (var i = index; i < PITCH * PITCH; i += SIDE * SIDE) {
        // Pixels beyond the border repeat it.
        let pixel = min(max(corner + vec2(i % PITCH, i / PITCH), vec2(1)) - 1, size - 1);
        tile[i] = i32(brightness(image[pixel.y * size.x + pixel.x]));
    }
    workgroupBarrier();

    let pixel = corner + local.xy;
    if any(pixel >= size) {
        return;
    }
    let above = local.y * PITCH + local.x;
    let here = above + PITCH;
    let below = here + PITCH;
    let gx = tile[above + 2] - tile[above] + 2 * (tile[here + 2] - tile[here]) + tile[below + 2] - tile[below];
    let gy = tile[below] - tile[above] + 2 * (tile[below + 1] - tile[above + 1]) + tile[below + 2] - tile[above + 2];
    let magnitude = min(u32(abs(gx) + abs(gy)) >> SHIFT, 255);
    out[pixel.y * size.x + pixel.x] = magnitude * 0x010101 | 0xff000000;
}
