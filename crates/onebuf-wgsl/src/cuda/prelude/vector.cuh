// Operators and built-ins on vectors, and conversions.
WG_LIFT2(wg_add)
WG_LIFT2(wg_sub)
WG_LIFT2(wg_mul)
WG_LIFT2(wg_div)
WG_LIFT2(wg_rem)
WG_LIFT2(wg_and)
WG_LIFT2(wg_or)
WG_LIFT2(wg_xor)
WG_LIFT2(wg_shl)
WG_LIFT2(wg_shr)
#define WG_COMPARE(NAME, OP)                                                                                           \
    template <class T> WG vec2<bool> NAME(const vec2<T> &a, const vec2<T> &b) {                                        \
        return vec2<bool>(a.x OP b.x, a.y OP b.y);                                                                     \
    }                                                                                                                  \
    template <class T> WG vec3<bool> NAME(const vec3<T> &a, const vec3<T> &b) {                                        \
        return vec3<bool>(a.x OP b.x, a.y OP b.y, a.z OP b.z);                                                         \
    }                                                                                                                  \
    template <class T> WG vec4<bool> NAME(const vec4<T> &a, const vec4<T> &b) {                                        \
        return vec4<bool>(a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w);                                             \
    }
WG_COMPARE(wg_eq, ==)
WG_COMPARE(wg_ne, !=)
WG_COMPARE(wg_lt, <)
WG_COMPARE(wg_le, <=)
WG_COMPARE(wg_gt, >)
WG_COMPARE(wg_ge, >=)
WG_LIFT1(wg_neg)
WG_LIFT1(wg_not)
WG_LIFT1(wg_lnot)

#define WG_OPERATOR(OP, NAME)                                                                                          \
    template <class T, int N> WG vec<T, N> operator OP(const vec<T, N> &a, const vec<T, N> &b) { return NAME(a, b); }  \
    template <class T, int N> WG vec<T, N> operator OP(const vec<T, N> &a, T b) { return NAME(a, vec<T, N>(b)); }      \
    template <class T, int N> WG vec<T, N> operator OP(T a, const vec<T, N> &b) { return NAME(vec<T, N>(a), b); }
WG_OPERATOR(+, wg_add)
WG_OPERATOR(-, wg_sub)
WG_OPERATOR(*, wg_mul)
WG_OPERATOR(/, wg_div)
template <class T, int N> WG vec<T, N> operator-(const vec<T, N> &a) { return wg_neg(a); }

WG_LIFT1(wg_abs)
WG_LIFT2(wg_min)
WG_LIFT2(wg_max)
WG_LIFT3(wg_clamp)
WG_LIFT1(wg_saturate)
WG_LIFT1(wg_cos)
WG_LIFT1(wg_cosh)
WG_LIFT1(wg_sin)
WG_LIFT1(wg_sinh)
WG_LIFT1(wg_tan)
WG_LIFT1(wg_tanh)
WG_LIFT1(wg_acos)
WG_LIFT1(wg_asin)
WG_LIFT1(wg_atan)
WG_LIFT2(wg_atan2)
WG_LIFT1(wg_asinh)
WG_LIFT1(wg_acosh)
WG_LIFT1(wg_atanh)
WG_LIFT1(wg_radians)
WG_LIFT1(wg_degrees)
WG_LIFT1(wg_ceil)
WG_LIFT1(wg_floor)
WG_LIFT1(wg_round)
WG_LIFT1(wg_fract)
WG_LIFT1(wg_trunc)
WG_LIFT1(wg_exp)
WG_LIFT1(wg_exp2)
WG_LIFT1(wg_log)
WG_LIFT1(wg_log2)
WG_LIFT2(wg_pow)
WG_LIFT1(wg_sqrt)
WG_LIFT1(wg_rsqrt)
WG_LIFT3(wg_fma)
WG_LIFT3(wg_mix)
template <class T, int N> WG vec<T, N> wg_mix(const vec<T, N> &a, const vec<T, N> &b, T t) {
    return wg_mix(a, b, vec<T, N>(t));
}
WG_LIFT2(wg_step)
WG_LIFT3(wg_smoothstep)
WG_LIFT1(wg_sign)
WG_LIFT2(wg_ldexp)
WG_LIFT1(wg_quantize)
WG_LIFT1(wg_isnan)
WG_LIFT1(wg_isinf)
WG_LIFT1(wg_clz)
WG_LIFT1(wg_ctz)
WG_LIFT1(wg_popcount)
WG_LIFT1(wg_reverse)
WG_LIFT1(wg_first_trailing_bit)
WG_LIFT1(wg_first_leading_bit)

template <class R, class T, int N> WG R wg_modf(const vec<T, N> &x) {
    vec<T, N> whole = wg_trunc(x);
    return R(x - whole, whole);
}
template <class R, class T, int N> WG R wg_frexp(const vec<T, N> &x) {
    vec<T, N> mantissa;
    vec<i32, N> exponent;
    for (u32 i = 0; i < N; ++i) {
        int e = 0;
        wg_at(mantissa, i) = T(frexpf(f32(wg_at(x, i)), &e));
        wg_at(exponent, i) = i32(e);
    }
    return R(mantissa, exponent);
}
template <class R, int N> WG R wg_frexp(const vec<f64, N> &x) {
    vec<f64, N> mantissa;
    vec<i32, N> exponent;
    for (u32 i = 0; i < N; ++i) {
        int e = 0;
        wg_at(mantissa, i) = frexp(wg_at(x, i), &e);
        wg_at(exponent, i) = i32(e);
    }
    return R(mantissa, exponent);
}

WG bool wg_all(bool a) { return a; }
WG bool wg_all(const vec2<bool> &a) { return a.x && a.y; }
WG bool wg_all(const vec3<bool> &a) { return a.x && a.y && a.z; }
WG bool wg_all(const vec4<bool> &a) { return a.x && a.y && a.z && a.w; }
WG bool wg_any(bool a) { return a; }
WG bool wg_any(const vec2<bool> &a) { return a.x || a.y; }
WG bool wg_any(const vec3<bool> &a) { return a.x || a.y || a.z; }
WG bool wg_any(const vec4<bool> &a) { return a.x || a.y || a.z || a.w; }

template <class T> WG vec2<T> wg_select(const vec2<bool> &c, const vec2<T> &yes, const vec2<T> &no) {
    return vec2<T>(c.x ? yes.x : no.x, c.y ? yes.y : no.y);
}
template <class T> WG vec3<T> wg_select(const vec3<bool> &c, const vec3<T> &yes, const vec3<T> &no) {
    return vec3<T>(c.x ? yes.x : no.x, c.y ? yes.y : no.y, c.z ? yes.z : no.z);
}
template <class T> WG vec4<T> wg_select(const vec4<bool> &c, const vec4<T> &yes, const vec4<T> &no) {
    return vec4<T>(c.x ? yes.x : no.x, c.y ? yes.y : no.y, c.z ? yes.z : no.z, c.w ? yes.w : no.w);
}

template <class T> WG T wg_dot(const vec2<T> &a, const vec2<T> &b) { return wg_add(wg_mul(a.x, b.x), wg_mul(a.y, b.y)); }
template <class T> WG T wg_dot(const vec3<T> &a, const vec3<T> &b) {
    return wg_add(wg_add(wg_mul(a.x, b.x), wg_mul(a.y, b.y)), wg_mul(a.z, b.z));
}
template <class T> WG T wg_dot(const vec4<T> &a, const vec4<T> &b) {
    return wg_add(wg_add(wg_add(wg_mul(a.x, b.x), wg_mul(a.y, b.y)), wg_mul(a.z, b.z)), wg_mul(a.w, b.w));
}
template <class T> WG vec3<T> wg_cross(const vec3<T> &a, const vec3<T> &b) {
    return vec3<T>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
WG f32 wg_length(f32 a) { return wg_abs(a); }
WG f64 wg_length(f64 a) { return wg_abs(a); }
#ifdef WG_HALF
WG f16 wg_length(f16 a) { return wg_abs(a); }
#endif
template <class T, int N> WG T wg_length(const vec<T, N> &a) { return wg_sqrt(wg_dot(a, a)); }
template <class V> WG auto wg_distance(const V &a, const V &b) { return wg_length(a - b); }
template <class T, int N> WG vec<T, N> wg_normalize(const vec<T, N> &a) { return a / wg_length(a); }
template <class T, int N>
WG vec<T, N> wg_face_forward(const vec<T, N> &a, const vec<T, N> &b, const vec<T, N> &c) {
    return wg_dot(b, c) < T(0.0f) ? a : -a;
}
template <class T, int N> WG vec<T, N> wg_reflect(const vec<T, N> &a, const vec<T, N> &n) {
    return a - n * (T(2.0f) * wg_dot(n, a));
}
template <class T, int N> WG vec<T, N> wg_refract(const vec<T, N> &a, const vec<T, N> &n, T eta) {
    T d = wg_dot(n, a);
    T k = T(1.0f) - eta * eta * (T(1.0f) - d * d);
    return k < T(0.0f) ? vec<T, N>(T(0.0f)) : a * eta - n * (eta * d + wg_sqrt(k));
}

template <class T> struct wg_is_float { static constexpr bool value = false; };
template <> struct wg_is_float<f32> { static constexpr bool value = true; };
template <> struct wg_is_float<f64> { static constexpr bool value = true; };

// Conversion of value. f16 goes through f32, which holds every f16.
template <class To, class From> WG To wg_cast(From x) {
    if constexpr (wg_same<To, From>::value) {
        return x;
    } else if constexpr (wg_is_half<From>::value) {
        return wg_cast<To>(f32(x));
    } else if constexpr (wg_is_half<To>::value) {
        return To(f32(x));
    } else if constexpr (wg_same<To, bool>::value) {
        return x != From(0);
    } else if constexpr (wg_is_float<From>::value) {
        if constexpr (wg_same<To, i32>::value) return wg_to_i32(x);
        else if constexpr (wg_same<To, u32>::value) return wg_to_u32(x);
        else if constexpr (wg_same<To, i64>::value) return wg_to_i64(x);
        else if constexpr (wg_same<To, u64>::value) return wg_to_u64(x);
        else if constexpr (wg_same<To, i16>::value) return i16(wg_clamp(wg_to_i32(x), -32768, 32767));
        else if constexpr (wg_same<To, u16>::value) return u16(wg_min(wg_to_u32(x), 65535u));
        else return To(x);
    } else {
        return To(x);
    }
}
template <class To, class From> WG vec2<To> wg_cast(const vec2<From> &v) {
    return vec2<To>(wg_cast<To>(v.x), wg_cast<To>(v.y));
}
template <class To, class From> WG vec3<To> wg_cast(const vec3<From> &v) {
    return vec3<To>(wg_cast<To>(v.x), wg_cast<To>(v.y), wg_cast<To>(v.z));
}
template <class To, class From> WG vec4<To> wg_cast(const vec4<From> &v) {
    return vec4<To>(wg_cast<To>(v.x), wg_cast<To>(v.y), wg_cast<To>(v.z), wg_cast<To>(v.w));
}
