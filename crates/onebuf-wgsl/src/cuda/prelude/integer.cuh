// Integers: arithmetic that wraps, division that never traps, and bit operations.
//
// Signed arithmetic is done in unsigned, because overflow of a signed integer is undefined in C++ and compilers use that.
// W is an unsigned type that does not shrink under C++'s promotion to int.
#define WG_WRAPPING(T, W)                                                                                              \
    WG T wg_sub(T a, T b) { return T(W(a) - W(b)); }                                                                   \
    WG T wg_mul(T a, T b) { return T(W(a) * W(b)); }                                                                   \
    WG T wg_neg(T a) { return T(W(0) - W(a)); }

#define WG_INTEGER(T, W, BITS)                                                                                         \
    WG T wg_add(T a, T b) { return T(W(a) + W(b)); }                                                                   \
    WG T wg_not(T a) { return T(~a); }                                                                                 \
    WG T wg_and(T a, T b) { return T(a & b); }                                                                         \
    WG T wg_or(T a, T b) { return T(a | b); }                                                                          \
    WG T wg_xor(T a, T b) { return T(a ^ b); }                                                                         \
    WG T wg_shl(T a, u32 n) { return T(W(a) << (n & (BITS - 1u))); }                                                   \
    WG T wg_shr(T a, u32 n) { return T(a >> (n & (BITS - 1u))); }                                                      \
    WG T wg_min(T a, T b) { return a < b ? a : b; }                                                                    \
    WG T wg_max(T a, T b) { return a > b ? a : b; }                                                                    \
    WG T wg_clamp(T x, T low, T high) { return wg_min(wg_max(x, low), high); }

#define WG_SIGNED(T, W, BITS)                                                                                          \
    WG_INTEGER(T, W, BITS)                                                                                             \
    WG T wg_lowest(T) { return T(W(1) << (BITS - 1)); }                                                                \
    WG T wg_divisor(T a, T b) { return b == 0 || (b == -1 && a == wg_lowest(a)) ? T(1) : b; }                          \
    WG T wg_div(T a, T b) { return T(a / wg_divisor(a, b)); }                                                          \
    WG T wg_rem(T a, T b) { return T(a % wg_divisor(a, b)); }                                                          \
    WG T wg_abs(T a) { return a < 0 ? wg_neg(a) : a; }                                                                 \
    WG T wg_sign(T a) { return T((a > 0) - (a < 0)); }

#define WG_UNSIGNED(T, W, BITS)                                                                                        \
    WG_INTEGER(T, W, BITS)                                                                                             \
    WG T wg_div(T a, T b) { return T(a / (b == 0 ? T(1) : b)); }                                                       \
    WG T wg_rem(T a, T b) { return T(a % (b == 0 ? T(1) : b)); }                                                       \
    WG T wg_abs(T a) { return a; }                                                                                     \
    WG T wg_sign(T a) { return T(a != 0); }

// What negates an i16, also as 0 - x and x * -1, is hidden from the compiler: ptxas of CUDA 13.0 makes of neg.s16 and a
// widening conversion a negation of the widened value, so that -(-32768) is 32768.
#ifdef __CUDACC__
WG i16 wg_sub(i16 a, i16 b) {
    u32 c;
    asm("sub.s32 %0, %1, %2;" : "=r"(c) : "r"(u32(a)), "r"(u32(b)));
    return i16(c);
}
WG i16 wg_mul(i16 a, i16 b) {
    u32 c;
    asm("mul.lo.s32 %0, %1, %2;" : "=r"(c) : "r"(u32(a)), "r"(u32(b)));
    return i16(c);
}
WG i16 wg_neg(i16 a) { return wg_sub(i16(0), a); }
#else
WG_WRAPPING(i16, u32)
#endif
WG_WRAPPING(i32, u32)
WG_WRAPPING(i64, u64)
WG_WRAPPING(u16, u32)
WG_WRAPPING(u32, u32)
WG_WRAPPING(u64, u64)

WG_SIGNED(i16, u32, 16)
WG_SIGNED(i32, u32, 32)
WG_SIGNED(i64, u64, 64)
WG_UNSIGNED(u16, u32, 16)
WG_UNSIGNED(u32, u32, 32)
WG_UNSIGNED(u64, u64, 64)

WG bool wg_and(bool a, bool b) { return a && b; }
WG bool wg_or(bool a, bool b) { return a || b; }
WG bool wg_xor(bool a, bool b) { return a != b; }
WG bool wg_lnot(bool a) { return !a; }

WG u32 wg_clz(u32 x) { return u32(__clz(i32(x))); }
WG u32 wg_ctz(u32 x) { return x == 0 ? 32u : u32(__ffs(i32(x))) - 1u; }
WG u32 wg_popcount(u32 x) { return u32(__popc(x)); }
WG u32 wg_reverse(u32 x) { return __brev(x); }
WG i32 wg_clz(i32 x) { return i32(wg_clz(u32(x))); }
WG i32 wg_ctz(i32 x) { return i32(wg_ctz(u32(x))); }
WG i32 wg_popcount(i32 x) { return i32(wg_popcount(u32(x))); }
WG i32 wg_reverse(i32 x) { return i32(wg_reverse(u32(x))); }
WG u64 wg_clz(u64 x) { return u64(__clzll(i64(x))); }
WG u64 wg_ctz(u64 x) { return x == 0 ? u64(64) : u64(__ffsll(i64(x))) - 1u; }
WG u64 wg_popcount(u64 x) { return u64(__popcll(x)); }
WG u64 wg_reverse(u64 x) { return __brevll(x); }
WG i64 wg_clz(i64 x) { return i64(wg_clz(u64(x))); }
WG i64 wg_ctz(i64 x) { return i64(wg_ctz(u64(x))); }
WG i64 wg_popcount(i64 x) { return i64(wg_popcount(u64(x))); }
WG i64 wg_reverse(i64 x) { return i64(wg_reverse(u64(x))); }

// The position of the bit, or all ones where there is none. For a signed number, the highest bit that differs from its sign.
WG u32 wg_first_trailing_bit(u32 x) { return u32(__ffs(i32(x))) - 1u; }
WG i32 wg_first_trailing_bit(i32 x) { return i32(wg_first_trailing_bit(u32(x))); }
WG u64 wg_first_trailing_bit(u64 x) { return u64(i64(__ffsll(i64(x))) - 1); }
WG i64 wg_first_trailing_bit(i64 x) { return i64(__ffsll(x)) - 1; }
WG u32 wg_first_leading_bit(u32 x) { return 31u - wg_clz(x); }
WG i32 wg_first_leading_bit(i32 x) { return i32(wg_first_leading_bit(u32(x < 0 ? ~x : x))); }
WG u64 wg_first_leading_bit(u64 x) { return 63u - wg_clz(x); }
WG i64 wg_first_leading_bit(i64 x) { return i64(wg_first_leading_bit(u64(x < 0 ? ~x : x))); }

// The field is clamped into the word first.
WG u32 wg_extract_bits(u32 x, u32 offset, u32 count) {
    u32 o = wg_min(offset, 32u);
    u32 c = wg_min(count, 32u - o);
    return c == 0 ? 0u : (x << (32u - c - o)) >> (32u - c);
}
WG i32 wg_extract_bits(i32 x, u32 offset, u32 count) {
    u32 o = wg_min(offset, 32u);
    u32 c = wg_min(count, 32u - o);
    return c == 0 ? 0 : i32(u32(x) << (32u - c - o)) >> (32u - c);
}
WG u32 wg_insert_bits(u32 x, u32 bits, u32 offset, u32 count) {
    u32 o = wg_min(offset, 32u);
    u32 c = wg_min(count, 32u - o);
    u32 mask = c == 0 ? 0u : (0xffffffffu >> (32u - c)) << o;
    return (x & ~mask) | ((bits << (o & 31u)) & mask);
}
WG i32 wg_insert_bits(i32 x, i32 bits, u32 offset, u32 count) {
    return i32(wg_insert_bits(u32(x), u32(bits), offset, count));
}
#define WG_LIFT_BITS(N, ...)                                                                                           \
    template <class T> WG vec<T, N> wg_extract_bits(const vec<T, N> &x, u32 offset, u32 count) {                       \
        vec<T, N> y;                                                                                                   \
        for (u32 i = 0; i < N; ++i) wg_at(y, i) = wg_extract_bits(wg_at(x, i), offset, count);                         \
        return y;                                                                                                      \
    }                                                                                                                  \
    template <class T> WG vec<T, N> wg_insert_bits(const vec<T, N> &x, const vec<T, N> &b, u32 offset, u32 count) {    \
        vec<T, N> y;                                                                                                   \
        for (u32 i = 0; i < N; ++i) wg_at(y, i) = wg_insert_bits(wg_at(x, i), wg_at(b, i), offset, count);             \
        return y;                                                                                                      \
    }
WG_LIFT_BITS(2)
WG_LIFT_BITS(3)
WG_LIFT_BITS(4)

WG i32 wg_dot4_i8(u32 a, u32 b) { return __dp4a(i32(a), i32(b), 0); }
WG u32 wg_dot4_u8(u32 a, u32 b) { return __dp4a(a, b, 0u); }
