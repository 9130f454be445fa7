// Atomics: relaxed, of device scope. A wrapped value can not be touched by a plain access.
template <class T> struct atomic { T value; };

// Volatile accesses of a word are single and are never kept in a register, so that a spin loop sees a store.
template <class T> WG T wg_atomic_load(const atomic<T> &a) { return *const_cast<const volatile T *>(&a.value); }
template <class T> WG void wg_atomic_store(atomic<T> &a, T v) { *const_cast<volatile T *>(&a.value) = v; }

template <class T> WG T wg_atomic_add(atomic<T> &a, T v) { return atomicAdd(&a.value, v); }
template <class T> WG T wg_atomic_sub(atomic<T> &a, T v) { return atomicAdd(&a.value, wg_neg(v)); }
template <class T> WG T wg_atomic_and(atomic<T> &a, T v) { return atomicAnd(&a.value, v); }
template <class T> WG T wg_atomic_or(atomic<T> &a, T v) { return atomicOr(&a.value, v); }
template <class T> WG T wg_atomic_xor(atomic<T> &a, T v) { return atomicXor(&a.value, v); }
template <class T> WG T wg_atomic_min(atomic<T> &a, T v) { return atomicMin(&a.value, v); }
template <class T> WG T wg_atomic_max(atomic<T> &a, T v) { return atomicMax(&a.value, v); }
template <class T> WG T wg_atomic_exchange(atomic<T> &a, T v) { return atomicExch(&a.value, v); }
template <class R, class T> WG R wg_atomic_compare_exchange(atomic<T> &a, T expected, T v) {
    T old = atomicCAS(&a.value, expected, v);
    return R(old, old == expected);
}

// CUDA has these for unsigned long long alone; in two's complement they are the same.
#define WG_ATOMIC_I64(NAME, FUNCTION)                                                                                  \
    WG i64 NAME(atomic<i64> &a, i64 v) {                                                                               \
        return i64(FUNCTION(reinterpret_cast<u64 *>(&a.value), u64(v)));                                               \
    }
WG_ATOMIC_I64(wg_atomic_add, atomicAdd)
WG_ATOMIC_I64(wg_atomic_and, atomicAnd)
WG_ATOMIC_I64(wg_atomic_or, atomicOr)
WG_ATOMIC_I64(wg_atomic_xor, atomicXor)
WG_ATOMIC_I64(wg_atomic_exchange, atomicExch)
WG i64 wg_atomic_sub(atomic<i64> &a, i64 v) { return wg_atomic_add(a, wg_neg(v)); }
template <class R> WG R wg_atomic_compare_exchange(atomic<i64> &a, i64 expected, i64 v) {
    i64 old = i64(atomicCAS(reinterpret_cast<u64 *>(&a.value), u64(expected), u64(v)));
    return R(old, old == expected);
}

// Plain accesses to a variable that is declared coherent or volatile: never kept in a register.
template <class T> WG T wg_volatile_load(const T &x) {
    static_assert(sizeof(T) % 4 == 0, "whole words");
    T y;
    for (u32 i = 0; i < sizeof(T) / 4; ++i)
        reinterpret_cast<u32 *>(&y)[i] = reinterpret_cast<const volatile u32 *>(&x)[i];
    return y;
}
template <class T> WG void wg_volatile_store(T &x, T y) {
    static_assert(sizeof(T) % 4 == 0, "whole words");
    for (u32 i = 0; i < sizeof(T) / 4; ++i)
        reinterpret_cast<volatile u32 *>(&x)[i] = reinterpret_cast<const u32 *>(&y)[i];
}
