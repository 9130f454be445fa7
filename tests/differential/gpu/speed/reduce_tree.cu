extern "C" __global__ void __launch_bounds__(256) hand(const float *__restrict__ src, float *__restrict__ dst, unsigned n) {
    __shared__ float part[256];
    unsigned t = threadIdx.x;
    float sum = 0.0f;
    for (unsigned i = blockIdx.x * 256u + t; i < n; i += gridDim.x * 256u) sum += src[i];
    part[t] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half >>= 1) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) dst[blockIdx.x] = part[0];
}
