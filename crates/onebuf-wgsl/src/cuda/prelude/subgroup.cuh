// Subgroups: the 32 threads of a warp. `mask` names the threads that take part.
WG u32 wg_mask_of(u32 thread, u32 threads) {
    u32 first = thread & ~31u;
    return threads - first >= 32u ? 0xffffffffu : (1u << (threads - first)) - 1u;
}

#ifdef __CUDACC__
WG u32 wg_lane() {
    u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
#endif

template <class T> WG T wg_shuffle_word(u32 mask, T v, u32 lane) { return __shfl_sync(mask, v, i32(lane & 31u)); }

// Each kind of value as words that a shuffle can carry.
#define WG_SHUFFLE(T, TO, FROM)                                                                                        \
    WG T wg_shuffle(u32 mask, T v, u32 lane) { return FROM(wg_shuffle_word(mask, TO(v), lane)); }
WG_SHUFFLE(i32, i32, i32)
WG_SHUFFLE(u32, u32, u32)
WG_SHUFFLE(f32, f32, f32)
WG_SHUFFLE(i64, i64, i64)
WG_SHUFFLE(u64, u64, u64)
WG_SHUFFLE(f64, f64, f64)
WG_SHUFFLE(bool, u32, bool)
WG_SHUFFLE(i16, i32, i16)
WG_SHUFFLE(u16, u32, u16)
#ifdef WG_HALF
WG f16 wg_shuffle(u32 mask, f16 v, u32 lane) { return f16::of(u16(wg_shuffle_word(mask, u32(v.bits), lane))); }
#endif
template <class T> WG vec2<T> wg_shuffle(u32 mask, const vec2<T> &v, u32 lane) {
    return vec2<T>(wg_shuffle(mask, v.x, lane), wg_shuffle(mask, v.y, lane));
}
template <class T> WG vec3<T> wg_shuffle(u32 mask, const vec3<T> &v, u32 lane) {
    return vec3<T>(wg_shuffle(mask, v.x, lane), wg_shuffle(mask, v.y, lane), wg_shuffle(mask, v.z, lane));
}
template <class T> WG vec4<T> wg_shuffle(u32 mask, const vec4<T> &v, u32 lane) {
    return vec4<T>(wg_shuffle(mask, v.x, lane), wg_shuffle(mask, v.y, lane), wg_shuffle(mask, v.z, lane),
                   wg_shuffle(mask, v.w, lane));
}

WG vec4<u32> wg_ballot(u32 mask, bool p) { return vec4<u32>(__ballot_sync(mask, p), 0u, 0u, 0u); }
WG bool wg_subgroup_all(u32 mask, bool p) { return __all_sync(mask, p) != 0; }
WG bool wg_subgroup_any(u32 mask, bool p) { return __any_sync(mask, p) != 0; }
template <class T> WG T wg_broadcast_first(u32 mask, const T &v) { return wg_shuffle(mask, v, u32(__ffs(i32(mask))) - 1u); }

#define WG_OPERATION(NAME, FUNCTION)                                                                                   \
    struct NAME {                                                                                                      \
        template <class T> __device__ __forceinline__ T operator()(const T &a, const T &b) const {                     \
            return FUNCTION(a, b);                                                                                     \
        }                                                                                                              \
    };
WG_OPERATION(wg_op_add, wg_add)
WG_OPERATION(wg_op_mul, wg_mul)
WG_OPERATION(wg_op_min, wg_min)
WG_OPERATION(wg_op_max, wg_max)
WG_OPERATION(wg_op_and, wg_and)
WG_OPERATION(wg_op_or, wg_or)
WG_OPERATION(wg_op_xor, wg_xor)

template <class Op, class T> WG T wg_reduce_by_shuffles(u32 mask, T v) {
    if (mask == 0xffffffffu) {
        u32 lane = wg_lane();
        _Pragma("unroll") for (u32 d = 16; d > 0; d >>= 1) v = Op()(v, wg_shuffle(mask, v, lane ^ d));
        return v;
    }
    u32 rest = mask & (mask - 1u);
    T sum = wg_broadcast_first(mask, v);
    for (; rest != 0; rest &= rest - 1u) sum = Op()(sum, wg_shuffle(mask, v, u32(__ffs(i32(rest))) - 1u));
    return sum;
}
template <class Op, class T> struct wg_reducer {
    WG T reduce(u32 mask, const T &v) { return wg_reduce_by_shuffles<Op>(mask, v); }
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define WG_REDUCER(OP, T, FUNCTION)                                                                                    \
    template <> struct wg_reducer<OP, T> {                                                                             \
        WG T reduce(u32 mask, const T &v) { return T(FUNCTION(mask, v)); }                                             \
    };
WG_REDUCER(wg_op_add, i32, __reduce_add_sync)
WG_REDUCER(wg_op_add, u32, __reduce_add_sync)
WG_REDUCER(wg_op_min, i32, __reduce_min_sync)
WG_REDUCER(wg_op_min, u32, __reduce_min_sync)
WG_REDUCER(wg_op_max, i32, __reduce_max_sync)
WG_REDUCER(wg_op_max, u32, __reduce_max_sync)
WG_REDUCER(wg_op_and, u32, __reduce_and_sync)
WG_REDUCER(wg_op_or, u32, __reduce_or_sync)
WG_REDUCER(wg_op_xor, u32, __reduce_xor_sync)
#endif
template <class Op, class T> WG T wg_reduce(u32 mask, const T &v) { return wg_reducer<Op, T>::reduce(mask, v); }

// Threads take part from the lowest lane up without a gap: then each step doubles the reach.
template <class Op, class T> WG T wg_inclusive(u32 mask, T v) {
    u32 lane = wg_lane();
    if ((mask & (mask + 1u)) == 0) {
        _Pragma("unroll") for (u32 d = 1; d < 32; d <<= 1) {
            T below = wg_shuffle(mask, v, lane >= d ? lane - d : lane);
            v = lane >= d ? Op()(below, v) : v;
        }
        return v;
    }
    T sum = wg_broadcast_first(mask, v);
    for (u32 rest = mask & (mask - 1u); rest != 0; rest &= rest - 1u) {
        u32 source = u32(__ffs(i32(rest))) - 1u;
        T next = wg_shuffle(mask, v, source);
        sum = source <= lane ? Op()(sum, next) : sum;
    }
    return sum;
}
template <class Op, class T> WG T wg_exclusive(u32 mask, const T &v, const T &identity) {
    T sum = wg_inclusive<Op>(mask, v);
    u32 below = mask & ((1u << wg_lane()) - 1u);
    T shifted = wg_shuffle(mask, sum, below == 0 ? wg_lane() : 31u - wg_clz(below));
    return below == 0 ? identity : shifted;
}

template <class T> struct wg_unit {
    WG T value() { return T(1); }
};
template <class T, int N> struct wg_unit<vec<T, N>> {
    WG vec<T, N> value() { return vec<T, N>(wg_unit<T>::value()); }
};
template <class T> WG T wg_one() { return wg_unit<T>::value(); }
