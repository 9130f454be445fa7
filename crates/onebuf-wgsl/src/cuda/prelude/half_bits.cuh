// Conversion between f32 and the bits of an f16, to the nearest, ties to even.
#ifdef __CUDACC__
WG f32 wg_half_to_float(u16 bits) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
WG u16 wg_float_to_half(f32 x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif
