extern "C" __global__ void __launch_bounds__(256) hand(const float4 *__restrict__ src, float *__restrict__ dst, unsigned n) {
    __shared__ float part[8];
    unsigned t = threadIdx.x;
    float sum = 0.0f;
    for (unsigned i = blockIdx.x * 256u + t; i < n / 4; i += gridDim.x * 256u) {
        float4 v = src[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((t & 31) == 0) part[t >> 5] = sum;
    __syncthreads();
    if (t == 0) {
        float total = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) total += part[i];
        dst[blockIdx.x] = total;
    }
}
