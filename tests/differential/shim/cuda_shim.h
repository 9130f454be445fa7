// CUDA C++ on one thread of a CPU: as much of it as translated kernels use.
//
// The threads of a block are fibers. A barrier or a warp operation switches to the next fiber, until all that it waits for
// are there. Blocks run one after another, so that __shared__ is plain static memory and atomics are plain operations.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(n)

struct shim_dim { unsigned x, y, z; };
static shim_dim threadIdx, blockIdx, gridDim;

namespace shim {

enum class Wait { None, Block, Warp, Active, Done };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    void *fake_stack = nullptr;
    shim_dim index;
    unsigned thread;
    Wait wait = Wait::None;
    unsigned mask = 0;     // of the warp operation, or found by activemask
    int line = 0;          // of activemask
    unsigned long long word = 0;
};

static std::vector<Fiber> fibers;
static Fiber *current = nullptr;
static ucontext_t scheduler;
static const void *scheduler_stack = nullptr;
static size_t scheduler_stack_size = 0;
static void (*body)(void *) = nullptr;
static void *body_argument = nullptr;

[[noreturn]] static void fail(const char *what) {
    std::fprintf(stderr, "shim: %s\n", what);
    std::abort();
}

static void to_scheduler(bool ends) {
    Fiber *self = current;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? nullptr : &self->fake_stack, scheduler_stack, scheduler_stack_size);
#endif
    swapcontext(&self->context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_stack_size);
#endif
}

static void wait(Wait what) {
    if (current == nullptr) fail("a barrier in a kernel that was said to have none");
    current->wait = what;
    to_scheduler(false);
}

static void entry() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
    body(body_argument);
    current->wait = Wait::Done;
    to_scheduler(true);
}

static void resume(Fiber &fiber) {
    current = &fiber;
    threadIdx = fiber.index;
    fiber.wait = Wait::None;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.data(), fiber.stack.size());
#endif
    swapcontext(&scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    current = nullptr;
}

// Lets go whoever of the warp can: those whose partners have all arrived, or those that ask who is there.
static bool release_warp(unsigned first, unsigned end) {
    for (unsigned i = first; i < end; ++i) {
        Fiber &fiber = fibers[i];
        if (fiber.wait != Wait::Warp) continue;
        bool all = true;
        for (unsigned lane = 0; lane < 32 && all; ++lane) {
            if (!(fiber.mask >> lane & 1u)) continue;
            all = first + lane < end && fibers[first + lane].wait == Wait::Warp && fibers[first + lane].mask == fiber.mask;
        }
        if (!all) continue;
        unsigned mask = fiber.mask;
        for (unsigned lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1u) resume(fibers[first + lane]);
        return true;
    }
    int line = 0;
    unsigned mask = 0;
    for (unsigned i = first; i < end; ++i) {
        if (fibers[i].wait != Wait::Active) continue;
        if (mask == 0 || fibers[i].line < line) line = fibers[i].line, mask = 0;
        if (fibers[i].line == line) mask |= 1u << (i - first);
    }
    if (mask == 0) return false;
    for (unsigned i = first; i < end; ++i)
        if (mask >> (i - first) & 1u) fibers[i].mask = mask;
    for (unsigned i = first; i < end; ++i)
        if (mask >> (i - first) & 1u) resume(fibers[i]);
    return true;
}

static void run_block(shim_dim block, bool switches) {
    unsigned count = block.x * block.y * block.z;
    if (!switches) {
        for (unsigned i = 0; i < count; ++i) {
            threadIdx = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
            body(body_argument);
        }
        return;
    }
    if (fibers.size() < count) fibers.resize(count);
    for (unsigned i = 0; i < count; ++i) {
        Fiber &fiber = fibers[i];
        if (fiber.stack.empty()) fiber.stack.resize(256 << 10);
        fiber.index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        fiber.thread = i;
        fiber.wait = Wait::None;
        fiber.fake_stack = nullptr;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, entry, 0);
    }
    for (unsigned i = 0; i < count; ++i) resume(fibers[i]);
    while (true) {
        bool moved = false;
        for (unsigned first = 0; first < count; first += 32) {
            unsigned end = first + 32 < count ? first + 32 : count;
            while (release_warp(first, end)) moved = true;
        }
        unsigned at_barrier = 0, done = 0;
        for (unsigned i = 0; i < count; ++i) {
            at_barrier += fibers[i].wait == Wait::Block;
            done += fibers[i].wait == Wait::Done;
        }
        if (done == count) return;
        // Threads that have ended count as arrived, as they do on the hardware.
        if (at_barrier + done == count) {
            for (unsigned i = 0; i < count; ++i)
                if (fibers[i].wait == Wait::Block) resume(fibers[i]);
            moved = true;
        }
        if (!moved) fail("the block is stuck");
    }
}

// Each thread of the mask gives a word, and reads that of another.
static unsigned long long exchange(unsigned mask, unsigned long long word, unsigned source) {
    unsigned lane = current->thread & 31u;
    if (!(mask >> lane & 1u)) fail("a thread outside of its own mask");
    current->word = word;
    current->mask = mask;
    wait(Wait::Warp);
    Fiber *self = current;
    unsigned from = mask >> source & 1u ? source : lane;
    unsigned long long result = fibers[(self->thread & ~31u) + from].word;
    self->mask = mask;
    wait(Wait::Warp);
    return result;
}

template <class T> static T shuffle(unsigned mask, T value, int source) {
    unsigned long long word = 0;
    std::memcpy(&word, &value, sizeof value);
    word = exchange(mask, word, unsigned(source));
    std::memcpy(&value, &word, sizeof value);
    return value;
}

static unsigned ballot(unsigned mask, bool predicate) {
    current->word = predicate;
    current->mask = mask;
    wait(Wait::Warp);
    unsigned result = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1u) result |= unsigned(fibers[(current->thread & ~31u) + lane].word != 0) << lane;
    current->mask = mask;
    wait(Wait::Warp);
    return result;
}

static unsigned active(int line) {
    current->line = line;
    wait(Wait::Active);
    return current->mask;
}

// Parameters as cuLaunchKernel takes them: pointers to the values.
template <class... P> struct Call {
    void (*kernel)(P...);
    void **values;
    template <size_t... I> void apply(std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_const_t<P> *>(values[I])...);
    }
};
template <class... P> static void launch(void (*kernel)(P...), void **values, shim_dim grid, shim_dim block, bool switches) {
    Call<P...> call{kernel, values};
    body = [](void *argument) { static_cast<Call<P...> *>(argument)->apply(std::index_sequence_for<P...>()); };
    body_argument = &call;
    gridDim = grid;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = {x, y, z};
                run_block(block, switches);
            }
}

} // namespace shim

static inline void __syncthreads() { shim::wait(shim::Wait::Block); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __syncwarp(unsigned mask) { shim::ballot(mask, true); }
#define __activemask() shim::active(__LINE__)
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source) { return shim::shuffle(mask, value, source); }
static inline unsigned __ballot_sync(unsigned mask, bool p) { return shim::ballot(mask, p); }
static inline int __all_sync(unsigned mask, bool p) { return shim::ballot(mask, p) == mask; }
static inline int __any_sync(unsigned mask, bool p) { return shim::ballot(mask, p) != 0; }

template <class T> static inline T atomicAdd(T *a, T v) { T old = *a; if constexpr (std::is_floating_point_v<T>) *a = old + v; else *a = T((unsigned long long)old + (unsigned long long)v); return old; }
template <class T> static inline T atomicAnd(T *a, T v) { T old = *a; *a = old & v; return old; }
template <class T> static inline T atomicOr(T *a, T v) { T old = *a; *a = old | v; return old; }
template <class T> static inline T atomicXor(T *a, T v) { T old = *a; *a = old ^ v; return old; }
template <class T> static inline T atomicMin(T *a, T v) { T old = *a; *a = v < old ? v : old; return old; }
template <class T> static inline T atomicMax(T *a, T v) { T old = *a; *a = v > old ? v : old; return old; }
template <class T> static inline T atomicExch(T *a, T v) { T old = *a; *a = v; return old; }
template <class T> static inline T atomicCAS(T *a, T expected, T v) { T old = *a; if (old == expected) *a = v; return old; }

static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long y = 0;
    for (int i = 0; i < 64; ++i) y = y << 1 | (x >> i & 1u);
    return y;
}
static inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i));
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
    return c;
}

// The hardware's conversions: toward zero, clamped, and with a NaN as PTX has it.
template <class I, class F> static I shim_convert(F x, I low, I high, I nan) {
    if (x != x) return nan;
    if (x <= F(low)) return low;
    if (x >= F(high)) return high;
    return I(x);
}
static inline int __float2int_rz(float x) { return shim_convert<int>(x, -2147483647 - 1, 2147483647, 0); }
static inline unsigned __float2uint_rz(float x) { return shim_convert<unsigned>(x, 0u, 4294967295u, 0u); }
static inline long long __float2ll_rz(float x) { return shim_convert<long long>(x, -9223372036854775807ll - 1, 9223372036854775807ll, -9223372036854775807ll - 1); }
static inline unsigned long long __float2ull_rz(float x) { return shim_convert<unsigned long long>(x, 0ull, 18446744073709551615ull, 1ull << 63); }
static inline int __double2int_rz(double x) { return shim_convert<int>(x, -2147483647 - 1, 2147483647, -2147483647 - 1); }
static inline unsigned __double2uint_rz(double x) { return shim_convert<unsigned>(x, 0u, 4294967295u, 0u); }
static inline long long __double2ll_rz(double x) { return shim_convert<long long>(x, -9223372036854775807ll - 1, 9223372036854775807ll, -9223372036854775807ll - 1); }
static inline unsigned long long __double2ull_rz(double x) { return shim_convert<unsigned long long>(x, 0ull, 18446744073709551615ull, 1ull << 63); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }

static inline float wg_half_to_float(unsigned short bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return float(h);
}
static inline unsigned short wg_float_to_half(float x) {
    _Float16 h = _Float16(x);
    unsigned short bits;
    std::memcpy(&bits, &h, 2);
    return bits;
}
static inline unsigned wg_lane() { return shim::current == nullptr ? 0u : shim::current->thread & 31u; }
