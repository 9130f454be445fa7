// Floating point: WGSL's built-ins on CUDA's functions of the same accuracy or better.
#define WG_FLOAT(T, S)                                                                                                 \
    WG T wg_add(T a, T b) { return a + b; }                                                                            \
    WG T wg_sub(T a, T b) { return a - b; }                                                                            \
    WG T wg_mul(T a, T b) { return a * b; }                                                                            \
    WG T wg_div(T a, T b) { return a / b; }                                                                            \
    WG T wg_neg(T a) { return -a; }                                                                                    \
    WG T wg_rem(T a, T b) { return a - b * trunc##S(a / b); }                                                          \
    WG T wg_abs(T a) { return fabs##S(a); }                                                                            \
    WG T wg_min(T a, T b) { return fmin##S(a, b); }                                                                    \
    WG T wg_max(T a, T b) { return fmax##S(a, b); }                                                                    \
    WG T wg_clamp(T x, T low, T high) { return fmin##S(fmax##S(x, low), high); }                                       \
    WG T wg_saturate(T x) { return fmin##S(fmax##S(x, T(0)), T(1)); }                                                  \
    WG T wg_cos(T x) { return cos##S(x); }                                                                             \
    WG T wg_cosh(T x) { return cosh##S(x); }                                                                           \
    WG T wg_sin(T x) { return sin##S(x); }                                                                             \
    WG T wg_sinh(T x) { return sinh##S(x); }                                                                           \
    WG T wg_tan(T x) { return tan##S(x); }                                                                             \
    WG T wg_tanh(T x) { return tanh##S(x); }                                                                           \
    WG T wg_acos(T x) { return acos##S(x); }                                                                           \
    WG T wg_asin(T x) { return asin##S(x); }                                                                           \
    WG T wg_atan(T x) { return atan##S(x); }                                                                           \
    WG T wg_atan2(T y, T x) { return atan2##S(y, x); }                                                                 \
    WG T wg_asinh(T x) { return asinh##S(x); }                                                                         \
    WG T wg_acosh(T x) { return acosh##S(x); }                                                                         \
    WG T wg_atanh(T x) { return atanh##S(x); }                                                                         \
    WG T wg_radians(T x) { return x * T(0.017453292519943295); }                                                       \
    WG T wg_degrees(T x) { return x * T(57.295779513082321); }                                                         \
    WG T wg_ceil(T x) { return ceil##S(x); }                                                                           \
    WG T wg_floor(T x) { return floor##S(x); }                                                                         \
    WG T wg_round(T x) { return rint##S(x); }                                                                          \
    WG T wg_fract(T x) { return x - floor##S(x); }                                                                     \
    WG T wg_trunc(T x) { return trunc##S(x); }                                                                         \
    WG T wg_exp(T x) { return exp##S(x); }                                                                             \
    WG T wg_exp2(T x) { return exp2##S(x); }                                                                           \
    WG T wg_log(T x) { return log##S(x); }                                                                             \
    WG T wg_log2(T x) { return log2##S(x); }                                                                           \
    WG T wg_pow(T x, T y) { return pow##S(x, y); }                                                                     \
    WG T wg_sqrt(T x) { return sqrt##S(x); }                                                                           \
    WG T wg_rsqrt(T x) { return rsqrt##S(x); }                                                                         \
    WG T wg_fma(T a, T b, T c) { return fma##S(a, b, c); }                                                             \
    WG T wg_mix(T a, T b, T t) { return a * (T(1) - t) + b * t; }                                                      \
    WG T wg_step(T edge, T x) { return edge <= x ? T(1) : T(0); }                                                      \
    WG T wg_smoothstep(T low, T high, T x) {                                                                           \
        T t = wg_saturate((x - low) / (high - low));                                                                   \
        return t * t * (T(3) - T(2) * t);                                                                              \
    }                                                                                                                  \
    WG T wg_sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0); }                                            \
    WG T wg_ldexp(T x, i32 e) { return ldexp##S(x, e); }                                                               \
    WG T wg_ldexp(T x, i64 e) { return ldexp##S(x, i32(wg_clamp(e, i64(-100000), i64(100000)))); }                     \
    WG bool wg_isnan(T x) { return x != x; }                                                                           \
    WG bool wg_isinf(T x) { return fabs##S(x) > wg_largest(x); }                                                       \
    template <class R> WG R wg_modf(T x) {                                                                             \
        T whole = trunc##S(x);                                                                                         \
        return R(x - whole, whole);                                                                                    \
    }                                                                                                                  \
    template <class R> WG R wg_frexp(T x) {                                                                            \
        int e = 0;                                                                                                     \
        T m = frexp##S(x, &e);                                                                                         \
        return R(m, i32(e));                                                                                           \
    }

WG f32 wg_largest(f32) { return 3.40282347e38f; }
WG f64 wg_largest(f64) { return 1.7976931348623157e308; }

WG_FLOAT(f32, f)
WG_FLOAT(f64, )

// f32 that holds only values of f16.
WG f32 wg_quantize(f32 x) { return wg_half_to_float(wg_float_to_half(x)); }

// The greatest float below the first that does not fit is the limit, and a NaN becomes 0.
WG i32 wg_to_i32(f32 x) { return wg_min(__float2int_rz(x), 2147483520); }
WG u32 wg_to_u32(f32 x) { return wg_min(__float2uint_rz(x), 4294967040u); }
WG i64 wg_to_i64(f32 x) { return x != x ? i64(0) : wg_min(__float2ll_rz(x), i64(9223371487098961920ll)); }
WG u64 wg_to_u64(f32 x) { return x != x ? u64(0) : wg_min(__float2ull_rz(x), u64(18446742974197923840ull)); }
WG i32 wg_to_i32(f64 x) { return x != x ? 0 : __double2int_rz(x); }
WG u32 wg_to_u32(f64 x) { return x != x ? 0u : __double2uint_rz(x); }
WG i64 wg_to_i64(f64 x) { return x != x ? i64(0) : wg_min(__double2ll_rz(x), i64(9223372036854774784ll)); }
WG u64 wg_to_u64(f64 x) { return x != x ? u64(0) : wg_min(__double2ull_rz(x), u64(18446744073709549568ull)); }
