extern "C" __global__ void __launch_bounds__(256) hand(const unsigned *__restrict__ src, unsigned *__restrict__ bins, unsigned n) {
    __shared__ unsigned own[256];
    unsigned t = threadIdx.x;
    own[t] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * 256u + t; i < n / 4; i += gridDim.x * 256u) {
        unsigned w = src[i];
        atomicAdd(&own[w & 255], 1u);
        atomicAdd(&own[(w >> 8) & 255], 1u);
        atomicAdd(&own[(w >> 16) & 255], 1u);
        atomicAdd(&own[w >> 24], 1u);
    }
    __syncthreads();
    atomicAdd(&bins[t], own[t]);
}
