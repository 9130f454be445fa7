// Matrices: C columns of R rows, each column laid out as an element of an array.
template <class T, int C, int R> struct mat {
    wg_slot<vec<T, R>> c[C];
    __device__ __forceinline__ vec<T, R> &operator[](u32 i) { return c[i].v; }
    __device__ __forceinline__ const vec<T, R> &operator[](u32 i) const { return c[i].v; }
};

template <class T, int R> WG mat<T, 2, R> wg_mat(const vec<T, R> &a, const vec<T, R> &b) {
    mat<T, 2, R> m;
    m[0] = a, m[1] = b;
    return m;
}
template <class T, int R> WG mat<T, 3, R> wg_mat(const vec<T, R> &a, const vec<T, R> &b, const vec<T, R> &c) {
    mat<T, 3, R> m;
    m[0] = a, m[1] = b, m[2] = c;
    return m;
}
template <class T, int R>
WG mat<T, 4, R> wg_mat(const vec<T, R> &a, const vec<T, R> &b, const vec<T, R> &c, const vec<T, R> &d) {
    mat<T, 4, R> m;
    m[0] = a, m[1] = b, m[2] = c, m[3] = d;
    return m;
}

#define WG_EACH_COLUMN(C) _Pragma("unroll") for (u32 i = 0; i < C; ++i)

template <class T, int C, int R> WG mat<T, C, R> operator+(const mat<T, C, R> &a, const mat<T, C, R> &b) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = a[i] + b[i];
    return m;
}
template <class T, int C, int R> WG mat<T, C, R> operator-(const mat<T, C, R> &a, const mat<T, C, R> &b) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = a[i] - b[i];
    return m;
}
template <class T, int C, int R> WG mat<T, C, R> operator-(const mat<T, C, R> &a) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = -a[i];
    return m;
}
template <class T, int C, int R> WG mat<T, C, R> operator*(const mat<T, C, R> &a, T s) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = a[i] * s;
    return m;
}
template <class T, int C, int R> WG mat<T, C, R> operator*(T s, const mat<T, C, R> &a) { return a * s; }
template <class T, int C, int R> WG vec<T, R> operator*(const mat<T, C, R> &m, const vec<T, C> &v) {
    vec<T, R> sum = m[0] * v.x + m[1] * v.y;
    if constexpr (C > 2) sum = sum + m[2] * v.z;
    if constexpr (C > 3) sum = sum + m[3] * v.w;
    return sum;
}
template <class T, int C, int R> WG vec<T, C> operator*(const vec<T, R> &v, const mat<T, C, R> &m) {
    if constexpr (C == 2) return vec<T, C>(wg_dot(v, m[0]), wg_dot(v, m[1]));
    else if constexpr (C == 3) return vec<T, C>(wg_dot(v, m[0]), wg_dot(v, m[1]), wg_dot(v, m[2]));
    else return vec<T, C>(wg_dot(v, m[0]), wg_dot(v, m[1]), wg_dot(v, m[2]), wg_dot(v, m[3]));
}
template <class T, int K, int C, int R> WG mat<T, C, R> operator*(const mat<T, K, R> &a, const mat<T, C, K> &b) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = a * b[i];
    return m;
}
template <class T, int C, int R> WG mat<T, C, R> wg_outer(const vec<T, R> &a, const vec<T, C> &b) {
    mat<T, C, R> m;
    WG_EACH_COLUMN(C) m[i] = a * wg_get(b, i);
    return m;
}
template <class T, int C, int R> WG mat<T, R, C> wg_transpose(const mat<T, C, R> &a) {
    mat<T, R, C> m;
    _Pragma("unroll") for (u32 r = 0; r < R; ++r) {
        _Pragma("unroll") for (u32 c = 0; c < C; ++c) wg_at(m[r], c) = wg_at(a[c], r);
    }
    return m;
}
template <class T> WG T wg_determinant(const mat<T, 2, 2> &m) { return m[0].x * m[1].y - m[0].y * m[1].x; }
template <class T> WG T wg_determinant(const mat<T, 3, 3> &m) { return wg_dot(m[0], wg_cross(m[1], m[2])); }
template <class T> WG T wg_determinant(const mat<T, 4, 4> &m) {
    // Laplace's expansion along the first two columns.
    T s0 = m[0].x * m[1].y - m[1].x * m[0].y;
    T s1 = m[0].x * m[1].z - m[1].x * m[0].z;
    T s2 = m[0].x * m[1].w - m[1].x * m[0].w;
    T s3 = m[0].y * m[1].z - m[1].y * m[0].z;
    T s4 = m[0].y * m[1].w - m[1].y * m[0].w;
    T s5 = m[0].z * m[1].w - m[1].z * m[0].w;
    T c5 = m[2].z * m[3].w - m[3].z * m[2].w;
    T c4 = m[2].y * m[3].w - m[3].y * m[2].w;
    T c3 = m[2].y * m[3].z - m[3].y * m[2].z;
    T c2 = m[2].x * m[3].w - m[3].x * m[2].w;
    T c1 = m[2].x * m[3].z - m[3].x * m[2].z;
    T c0 = m[2].x * m[3].y - m[3].x * m[2].y;
    return s0 * c5 - s1 * c4 + s2 * c3 + s3 * c2 - s4 * c1 + s5 * c0;
}
template <class To, class From, int C, int R> WG mat<To, C, R> wg_cast(const mat<From, C, R> &a) {
    mat<To, C, R> m;
    WG_EACH_COLUMN(C) m[i] = wg_cast<To>(a[i]);
    return m;
}
