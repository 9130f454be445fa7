// Scalars, vectors and arrays of WGSL, laid out as WGSL lays them out.
//
// Everything here starts with wg_ or is a type name that no translated name can take.

// Generated code keeps the names of the source, whether they are used or not.
#ifdef __CUDACC__
#pragma nv_diag_suppress 111, 128, 177, 186, 550, 940
#endif

// NVRTC before 13.5 does not know this word. There the layout is asserted by sizes alone.
#if defined(__CUDACC_RTC__) && (__CUDACC_VER_MAJOR__ < 13 || (__CUDACC_VER_MAJOR__ == 13 && __CUDACC_VER_MINOR__ < 5))
struct wg_unknown_offset {
    __device__ constexpr bool operator==(int) const { return true; }
};
#define __builtin_offsetof(type, member) wg_unknown_offset{}
#endif

#define WG static __device__ __forceinline__
#define WG_CTOR __device__ __forceinline__ constexpr

typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

template <class A, class B> struct wg_same { static constexpr bool value = false; };
template <class A> struct wg_same<A, A> { static constexpr bool value = true; };

template <class T> struct wg_is_half { static constexpr bool value = false; };

template <class To, class From> WG To wg_bitcast(From x) {
    static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}

// A vec3 is three scalars; only where it is an element does it take the room of four.
template <class T, int N> struct vec;
template <class T> using vec2 = vec<T, 2>;
template <class T> using vec3 = vec<T, 3>;
template <class T> using vec4 = vec<T, 4>;

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    WG_CTOR explicit vec(T s) : x(s), y(s) {}
    WG_CTOR vec(T x, T y) : x(x), y(y) {}
};

template <class T> struct vec<T, 3> {
    T x, y, z;
    vec() = default;
    WG_CTOR explicit vec(T s) : x(s), y(s), z(s) {}
    WG_CTOR vec(T x, T y, T z) : x(x), y(y), z(z) {}
    WG_CTOR vec(vec2<T> a, T z) : x(a.x), y(a.y), z(z) {}
    WG_CTOR vec(T x, vec2<T> b) : x(x), y(b.x), z(b.y) {}
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    T x, y, z, w;
    vec() = default;
    WG_CTOR explicit vec(T s) : x(s), y(s), z(s), w(s) {}
    WG_CTOR vec(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
    WG_CTOR vec(vec2<T> a, T z, T w) : x(a.x), y(a.y), z(z), w(w) {}
    WG_CTOR vec(T x, vec2<T> b, T w) : x(x), y(b.x), z(b.y), w(w) {}
    WG_CTOR vec(T x, T y, vec2<T> c) : x(x), y(y), z(c.x), w(c.y) {}
    WG_CTOR vec(vec2<T> a, vec2<T> c) : x(a.x), y(a.y), z(c.x), w(c.y) {}
    WG_CTOR vec(vec3<T> a, T w) : x(a.x), y(a.y), z(a.z), w(w) {}
    WG_CTOR vec(T x, vec3<T> b) : x(x), y(b.x), z(b.y), w(b.z) {}
};

// Component I, known in advance.
template <int I, class T, int N> WG T wg_component(const vec<T, N> &v) {
    if constexpr (I == 0) return v.x;
    else if constexpr (I == 1) return v.y;
    else if constexpr (I == 2) return v.z;
    else return v.w;
}
template <int A, int B, class T, int N> WG vec2<T> wg_swizzle(const vec<T, N> &v) {
    return vec2<T>(wg_component<A>(v), wg_component<B>(v));
}
template <int A, int B, int C, class T, int N> WG vec3<T> wg_swizzle(const vec<T, N> &v) {
    return vec3<T>(wg_component<A>(v), wg_component<B>(v), wg_component<C>(v));
}
template <int A, int B, int C, int D, class T, int N> WG vec4<T> wg_swizzle(const vec<T, N> &v) {
    return vec4<T>(wg_component<A>(v), wg_component<B>(v), wg_component<C>(v), wg_component<D>(v));
}

// A component of a vector in registers by a dynamic index: a chain of selects, where an address would force the vector
// into memory. An index out of range means the last component.
template <class T> WG T wg_get(const vec2<T> &v, u32 i) { return i == 0 ? v.x : v.y; }
template <class T> WG T wg_get(const vec3<T> &v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : v.z; }
template <class T> WG T wg_get(const vec4<T> &v, u32 i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
template <class T> WG void wg_set(vec2<T> &v, u32 i, T s) {
    v.x = i == 0 ? s : v.x;
    v.y = i != 0 ? s : v.y;
}
template <class T> WG void wg_set(vec3<T> &v, u32 i, T s) {
    v.x = i == 0 ? s : v.x;
    v.y = i == 1 ? s : v.y;
    v.z = i >= 2 ? s : v.z;
}
template <class T> WG void wg_set(vec4<T> &v, u32 i, T s) {
    v.x = i == 0 ? s : v.x;
    v.y = i == 1 ? s : v.y;
    v.z = i == 2 ? s : v.z;
    v.w = i >= 3 ? s : v.w;
}

// A component of a vector in shared or global memory: its own address, since a neighbour may belong to another thread.
template <class T, int N> WG T &wg_at(vec<T, N> &v, u32 i) { return reinterpret_cast<T *>(&v)[i]; }
template <class T, int N> WG const T &wg_at(const vec<T, N> &v, u32 i) {
    return reinterpret_cast<const T *>(&v)[i];
}

// The alignment of T as an element.
template <class T> struct wg_align { static constexpr u32 value = alignof(T); };
template <class T> struct wg_align<vec<T, 3>> { static constexpr u32 value = 4 * sizeof(T); };

template <class T> struct alignas(wg_align<T>::value) wg_slot { T v; };

template <class T, u32 N> struct array {
    wg_slot<T> e[N];
    __device__ __forceinline__ T &operator[](u32 i) { return e[i].v; }
    __device__ __forceinline__ const T &operator[](u32 i) const { return e[i].v; }
};

// An array whose length only the host knows.
template <class T> struct runtime_array {
    wg_slot<T> e[1];
    __device__ __forceinline__ T &operator[](u32 i) { return reinterpret_cast<wg_slot<T> *>(this)[i].v; }
    __device__ __forceinline__ const T &operator[](u32 i) const {
        return reinterpret_cast<const wg_slot<T> *>(this)[i].v;
    }
};

WG u32 wg_clamp_index(u32 i, u32 length) { return i < length ? i : length - 1; }

// The value, or zero where it is not there.
template <class T> WG T wg_if(bool there, T value) { return there ? value : T{}; }

// Zeroes workgroup memory, all threads together. The caller puts a barrier behind it.
template <class T> WG void wg_zero(T &variable, u32 thread, u32 threads) {
    constexpr u32 quads = sizeof(T) / 16;
    constexpr u32 rest = sizeof(T) % 16;
    vec4<u32> *wide = reinterpret_cast<vec4<u32> *>(&variable);
    for (u32 i = thread; i < quads; i += threads) wide[i] = vec4<u32>(0u);
    if constexpr (rest != 0) {
        u8 *bytes = reinterpret_cast<u8 *>(wide + quads);
        for (u32 i = thread; i < rest; i += threads) bytes[i] = 0;
    }
}

// Makes from a scalar function its versions for vectors.
#define WG_LIFT1(NAME)                                                                                                 \
    template <class T> WG auto NAME(const vec2<T> &a) -> vec2<decltype(NAME(a.x))> {                                   \
        return vec2<decltype(NAME(a.x))>(NAME(a.x), NAME(a.y));                                                        \
    }                                                                                                                  \
    template <class T> WG auto NAME(const vec3<T> &a) -> vec3<decltype(NAME(a.x))> {                                   \
        return vec3<decltype(NAME(a.x))>(NAME(a.x), NAME(a.y), NAME(a.z));                                             \
    }                                                                                                                  \
    template <class T> WG auto NAME(const vec4<T> &a) -> vec4<decltype(NAME(a.x))> {                                   \
        return vec4<decltype(NAME(a.x))>(NAME(a.x), NAME(a.y), NAME(a.z), NAME(a.w));                                  \
    }
#define WG_LIFT2(NAME)                                                                                                 \
    template <class T, class U> WG auto NAME(const vec2<T> &a, const vec2<U> &b) -> vec2<decltype(NAME(a.x, b.x))> {   \
        return vec2<decltype(NAME(a.x, b.x))>(NAME(a.x, b.x), NAME(a.y, b.y));                                         \
    }                                                                                                                  \
    template <class T, class U> WG auto NAME(const vec3<T> &a, const vec3<U> &b) -> vec3<decltype(NAME(a.x, b.x))> {   \
        return vec3<decltype(NAME(a.x, b.x))>(NAME(a.x, b.x), NAME(a.y, b.y), NAME(a.z, b.z));                         \
    }                                                                                                                  \
    template <class T, class U> WG auto NAME(const vec4<T> &a, const vec4<U> &b) -> vec4<decltype(NAME(a.x, b.x))> {   \
        return vec4<decltype(NAME(a.x, b.x))>(NAME(a.x, b.x), NAME(a.y, b.y), NAME(a.z, b.z), NAME(a.w, b.w));         \
    }
#define WG_LIFT3(NAME)                                                                                                 \
    template <class T> WG vec2<T> NAME(const vec2<T> &a, const vec2<T> &b, const vec2<T> &c) {                         \
        return vec2<T>(NAME(a.x, b.x, c.x), NAME(a.y, b.y, c.y));                                                      \
    }                                                                                                                  \
    template <class T> WG vec3<T> NAME(const vec3<T> &a, const vec3<T> &b, const vec3<T> &c) {                         \
        return vec3<T>(NAME(a.x, b.x, c.x), NAME(a.y, b.y, c.y), NAME(a.z, b.z, c.z));                                 \
    }                                                                                                                  \
    template <class T> WG vec4<T> NAME(const vec4<T> &a, const vec4<T> &b, const vec4<T> &c) {                         \
        return vec4<T>(NAME(a.x, b.x, c.x), NAME(a.y, b.y, c.y), NAME(a.z, b.z, c.z), NAME(a.w, b.w, c.w));            \
    }
