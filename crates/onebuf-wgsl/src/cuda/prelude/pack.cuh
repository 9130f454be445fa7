// Packing small numbers into a word. Normalized values are rounded as WGSL says: floor(x + 0.5).
template <int BITS> WG u32 wg_snorm(f32 x, f32 scale) {
    return u32(i32(floorf(0.5f + scale * wg_clamp(x, -1.0f, 1.0f)))) & ((1u << BITS) - 1u);
}
template <int BITS> WG u32 wg_unorm(f32 x, f32 scale) { return u32(floorf(0.5f + scale * wg_clamp(x, 0.0f, 1.0f))); }
WG i32 wg_signed_byte(u32 word, u32 at) { return i32(word << (24u - 8u * at)) >> 24; }

WG u32 wg_pack4x8snorm(const vec4<f32> &v) {
    return wg_snorm<8>(v.x, 127.0f) | wg_snorm<8>(v.y, 127.0f) << 8 | wg_snorm<8>(v.z, 127.0f) << 16 |
           wg_snorm<8>(v.w, 127.0f) << 24;
}
WG u32 wg_pack4x8unorm(const vec4<f32> &v) {
    return wg_unorm<8>(v.x, 255.0f) | wg_unorm<8>(v.y, 255.0f) << 8 | wg_unorm<8>(v.z, 255.0f) << 16 |
           wg_unorm<8>(v.w, 255.0f) << 24;
}
WG u32 wg_pack2x16snorm(const vec2<f32> &v) { return wg_snorm<16>(v.x, 32767.0f) | wg_snorm<16>(v.y, 32767.0f) << 16; }
WG u32 wg_pack2x16unorm(const vec2<f32> &v) { return wg_unorm<16>(v.x, 65535.0f) | wg_unorm<16>(v.y, 65535.0f) << 16; }
WG u32 wg_pack2x16float(const vec2<f32> &v) {
    return u32(wg_float_to_half(v.x)) | u32(wg_float_to_half(v.y)) << 16;
}
WG u32 wg_bytes(u32 x, u32 y, u32 z, u32 w) {
    return (x & 255u) | (y & 255u) << 8 | (z & 255u) << 16 | (w & 255u) << 24;
}
WG u32 wg_pack4xI8(const vec4<i32> &v) { return wg_bytes(u32(v.x), u32(v.y), u32(v.z), u32(v.w)); }
WG u32 wg_pack4xU8(const vec4<u32> &v) { return wg_bytes(v.x, v.y, v.z, v.w); }
WG u32 wg_pack4xI8Clamp(const vec4<i32> &v) { return wg_pack4xI8(wg_clamp(v, vec4<i32>(-128), vec4<i32>(127))); }
WG u32 wg_pack4xU8Clamp(const vec4<u32> &v) { return wg_pack4xU8(wg_min(v, vec4<u32>(255u))); }

WG vec4<i32> wg_unpack4xI8(u32 w) {
    return vec4<i32>(wg_signed_byte(w, 0), wg_signed_byte(w, 1), wg_signed_byte(w, 2), wg_signed_byte(w, 3));
}
WG vec4<u32> wg_unpack4xU8(u32 w) { return vec4<u32>(w & 255u, w >> 8 & 255u, w >> 16 & 255u, w >> 24); }
WG vec4<f32> wg_unpack4x8snorm(u32 w) {
    return wg_max(wg_cast<f32>(wg_unpack4xI8(w)) / 127.0f, vec4<f32>(-1.0f));
}
WG vec4<f32> wg_unpack4x8unorm(u32 w) { return wg_cast<f32>(wg_unpack4xU8(w)) / 255.0f; }
WG vec2<f32> wg_unpack2x16snorm(u32 w) {
    return wg_max(vec2<f32>(f32(i32(w << 16) >> 16), f32(i32(w) >> 16)) / 32767.0f, vec2<f32>(-1.0f));
}
WG vec2<f32> wg_unpack2x16unorm(u32 w) { return vec2<f32>(f32(w & 65535u), f32(w >> 16)) / 65535.0f; }
WG vec2<f32> wg_unpack2x16float(u32 w) {
    return vec2<f32>(wg_half_to_float(u16(w & 65535u)), wg_half_to_float(u16(w >> 16)));
}
