extern "C" __global__ void __launch_bounds__(256)
hand(const float4 *__restrict__ bodies, float4 *__restrict__ velocities, float4 *__restrict__ moved, float dt, float softening, unsigned n) {
    __shared__ float4 tile[256];
    unsigned i = blockIdx.x * 256u + threadIdx.x;
    float4 own = bodies[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (unsigned first = 0; first < n; first += 256) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
        for (unsigned j = 0; j < 256; ++j) {
            float4 other = tile[j];
            float x = other.x - own.x, y = other.y - own.y, z = other.z - own.z;
            float inverse = rsqrtf(x * x + y * y + z * z + softening);
            float s = other.w * inverse * inverse * inverse;
            ax += x * s;
            ay += y * s;
            az += z * s;
        }
        __syncthreads();
    }
    float4 v = velocities[i];
    v.x += ax * dt, v.y += ay * dt, v.z += az * dt, v.w = 0.0f;
    velocities[i] = v;
    moved[i] = make_float4(own.x + v.x * dt, own.y + v.y * dt, own.z + v.z * dt, own.w);
}
