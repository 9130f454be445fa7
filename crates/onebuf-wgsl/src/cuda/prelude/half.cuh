#define WG_HALF

// f16. Sums and products use the hardware's own; everything else is computed in f32 and rounded.
struct f16 {
    u16 bits;
    f16() = default;
    __device__ __forceinline__ explicit f16(f32 x) : bits(wg_float_to_half(x)) {}
    __device__ __forceinline__ explicit operator f32() const { return wg_half_to_float(bits); }
    static WG_CTOR f16 of(u16 bits) { return f16(bits, 0); }

  private:
    WG_CTOR f16(u16 bits, int) : bits(bits) {}
};

template <> struct wg_is_half<f16> { static constexpr bool value = true; };

#ifdef __CUDACC__
#define WG_HALF_OP(NAME, INSTRUCTION, OP)                                                                              \
    WG f16 NAME(f16 a, f16 b) {                                                                                        \
        f16 c;                                                                                                         \
        asm(INSTRUCTION " %0, %1, %2;" : "=h"(c.bits) : "h"(a.bits), "h"(b.bits));                                     \
        return c;                                                                                                      \
    }
#else
#define WG_HALF_OP(NAME, INSTRUCTION, OP)                                                                              \
    WG f16 NAME(f16 a, f16 b) { return f16(f32(a) OP f32(b)); }
#endif
WG_HALF_OP(wg_add, "add.rn.f16", +)
WG_HALF_OP(wg_sub, "sub.rn.f16", -)
WG_HALF_OP(wg_mul, "mul.rn.f16", *)
WG f16 wg_div(f16 a, f16 b) { return f16(f32(a) / f32(b)); }
WG f16 wg_neg(f16 a) { return f16::of(u16(a.bits ^ 0x8000u)); }
WG f16 wg_abs(f16 a) { return f16::of(u16(a.bits & 0x7fffu)); }
WG bool operator==(f16 a, f16 b) { return f32(a) == f32(b); }
WG bool operator!=(f16 a, f16 b) { return f32(a) != f32(b); }
WG bool operator<(f16 a, f16 b) { return f32(a) < f32(b); }
WG bool operator<=(f16 a, f16 b) { return f32(a) <= f32(b); }
WG bool operator>(f16 a, f16 b) { return f32(a) > f32(b); }
WG bool operator>=(f16 a, f16 b) { return f32(a) >= f32(b); }

#define WG_HALF1(NAME)                                                                                                 \
    WG f16 NAME(f16 x) { return f16(NAME(f32(x))); }
#define WG_HALF2(NAME)                                                                                                 \
    WG f16 NAME(f16 x, f16 y) { return f16(NAME(f32(x), f32(y))); }
#define WG_HALF3(NAME)                                                                                                 \
    WG f16 NAME(f16 x, f16 y, f16 z) { return f16(NAME(f32(x), f32(y), f32(z))); }
WG_HALF1(wg_saturate)
WG_HALF1(wg_cos)
WG_HALF1(wg_cosh)
WG_HALF1(wg_sin)
WG_HALF1(wg_sinh)
WG_HALF1(wg_tan)
WG_HALF1(wg_tanh)
WG_HALF1(wg_acos)
WG_HALF1(wg_asin)
WG_HALF1(wg_atan)
WG_HALF1(wg_asinh)
WG_HALF1(wg_acosh)
WG_HALF1(wg_atanh)
WG_HALF1(wg_radians)
WG_HALF1(wg_degrees)
WG_HALF1(wg_ceil)
WG_HALF1(wg_floor)
WG_HALF1(wg_round)
WG_HALF1(wg_fract)
WG_HALF1(wg_trunc)
WG_HALF1(wg_exp)
WG_HALF1(wg_exp2)
WG_HALF1(wg_log)
WG_HALF1(wg_log2)
WG_HALF1(wg_sqrt)
WG_HALF1(wg_rsqrt)
WG_HALF1(wg_sign)
WG_HALF2(wg_rem)
WG_HALF2(wg_min)
WG_HALF2(wg_max)
WG_HALF2(wg_atan2)
WG_HALF2(wg_pow)
WG_HALF2(wg_step)
WG_HALF3(wg_clamp)
WG_HALF3(wg_fma)
WG_HALF3(wg_mix)
WG_HALF3(wg_smoothstep)
WG f16 wg_ldexp(f16 x, i32 e) { return f16(wg_ldexp(f32(x), e)); }
WG bool wg_isnan(f16 x) { return wg_isnan(f32(x)); }
WG bool wg_isinf(f16 x) { return (x.bits & 0x7fffu) == 0x7c00u; }
template <class R> WG R wg_modf(f16 x) {
    f16 whole = wg_trunc(x);
    return R(wg_sub(x, whole), whole);
}
template <class R> WG R wg_frexp(f16 x) {
    int e = 0;
    f32 m = frexpf(f32(x), &e);
    return R(f16(m), i32(e));
}
WG f16 operator+(f16 a, f16 b) { return wg_add(a, b); }
WG f16 operator-(f16 a, f16 b) { return wg_sub(a, b); }
WG f16 operator*(f16 a, f16 b) { return wg_mul(a, b); }
WG f16 operator/(f16 a, f16 b) { return wg_div(a, b); }
WG f16 operator-(f16 a) { return wg_neg(a); }
WG i32 wg_to_i32(f16 x) { return wg_to_i32(f32(x)); }
WG u32 wg_to_u32(f16 x) { return wg_to_u32(f32(x)); }
WG i64 wg_to_i64(f16 x) { return wg_to_i64(f32(x)); }
WG u64 wg_to_u64(f16 x) { return wg_to_u64(f32(x)); }
