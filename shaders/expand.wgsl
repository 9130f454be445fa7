// Turns RGB pixels, as image decoders write them, into RGBA8 words.
//
// @group(0) @binding(0) rgb    read: three bytes a pixel, row by row, without padding; whole words, so up to three bytes
//                              past the last pixel
// @group(0) @binding(1) image  written: a word a pixel, red in the lowest byte, opaque
// groups: [ceil(pixels / 256), 1, 1], in as many rows as the grid needs
//
// A pixel lies in one word or across two. Integers throughout, so the result is the same on every device.

@group(0) @binding(0) var<storage> rgb: array<u32>;
@group(0) @binding(1) var<storage, read_write> image: array<u32>;

@compute @workgroup_size(256)
fn expand(@builtin(global_invocation_id) id: vec3<u32>) {
    let pixel = id.x;
    if pixel >= arrayLength(&image) {
        return;
    }
    let byte = pixel * 3;
    let word = byte / 4;
    let shift = byte % 4 * 8;
    var colour = rgb[word] >> shift;
    if shift > 8 {
        colour |= rgb[word + 1] << (32 - shift);
    }
    image[pixel] = (colour & 0xffffff) | 0xff000000;
}
