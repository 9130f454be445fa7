extern "C" __global__ void __launch_bounds__(256)
hand(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, unsigned n) {
    __shared__ float tile_a[16][65];
    __shared__ float tile_b[16][64];
    unsigned row = blockIdx.y * 64u, column = blockIdx.x * 64u, t = threadIdx.y * 16u + threadIdx.x;
    float sums[4][4] = {};
    for (unsigned k = 0; k < n; k += 16) {
#pragma unroll
        for (unsigned s = 0; s < 4; ++s) {
            unsigned e = s * 256u + t;
            tile_a[e % 16][e / 16] = a[(row + e / 16) * n + k + e % 16];
            tile_b[e / 64][e % 64] = b[(k + e / 64) * n + column + e % 64];
        }
        __syncthreads();
#pragma unroll
        for (unsigned kk = 0; kk < 16; ++kk) {
            float left[4], right[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                left[i] = tile_a[kk][threadIdx.y * 4 + i];
                right[i] = tile_b[kk][threadIdx.x + i * 16];
            }
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
#pragma unroll
                for (unsigned j = 0; j < 4; ++j) sums[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) c[(row + threadIdx.y * 4 + i) * n + column + threadIdx.x + j * 16] = sums[i][j];
}
