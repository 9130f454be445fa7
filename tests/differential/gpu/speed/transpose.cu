extern "C" __global__ void __launch_bounds__(256) hand(const float *__restrict__ src, float *__restrict__ dst, unsigned w, unsigned h) {
    __shared__ float tile[32][33];
    unsigned x = blockIdx.x * 32u + threadIdx.x;
    unsigned y = blockIdx.y * 32u + threadIdx.y;
#pragma unroll
    for (unsigned j = 0; j < 32; j += 8)
        if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = src[(y + j) * w + x];
    __syncthreads();
    unsigned tx = blockIdx.y * 32u + threadIdx.x;
    unsigned ty = blockIdx.x * 32u + threadIdx.y;
#pragma unroll
    for (unsigned j = 0; j < 32; j += 8)
        if (tx < h && ty + j < w) dst[(ty + j) * h + tx] = tile[threadIdx.x][threadIdx.y + j];
}
