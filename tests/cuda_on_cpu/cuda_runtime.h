// Just enough of CUDA to run csrc/gather.cu on the CPU: the kernel's indexing, owners, tails and merges are proven
// where there is no GPU. A block's threads are fibers of one OS thread, which take turns at barriers and warp
// collectives, so a run is deterministic; blocks follow each other. Speed, memory order and the machine's own rounding
// are not modelled.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gather.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time

struct uint4 {
    uint32_t x, y, z, w;
};
struct dim3 {
    unsigned x;
    explicit dim3(unsigned count = 1) : x(count) {}
};
inline dim3 threadIdx, blockIdx, gridDim;

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor };
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
// One multiprocessor: a few dozen rows already make blocks of several rows.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    return *value = attribute == cudaDevAttrMultiProcessorCount ? 1 : 9, cudaSuccess;
}

template <class T>
T min(T a, T b) {
    return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
    return a > b ? a : b;
}
template <class T>
T __ldcg(const T* at) {
    return *at;
}
template <class T>
void atomicMax(T* at, T value) {
    *at = max(*at, value);
}
template <class T, class V>
void atomicAdd(T* at, V value) {
    *at += static_cast<T>(value);
}

namespace cuda_on_cpu {

constexpr int kWarp = 32;

struct Barrier {
    int arrived = 0, generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(256 << 10);
    bool done = false;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline Barrier block_barrier;
inline std::vector<Barrier> warp_barriers;
inline std::vector<uint32_t> warp_values;
inline void (*kernel)(extractor_gather_args, int);
inline const extractor_gather_args* kernel_args;
inline int kernel_rows;

inline void wait(Barrier& barrier, int size) {
    const int generation = barrier.generation;
    if (++barrier.arrived == size) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

// Every thread of the warp gives a value; all get the same result.
template <class Combine>
uint32_t warp_collective(uint32_t value, Combine combine) {
    const unsigned warp = threadIdx.x / kWarp;
    warp_values[threadIdx.x] = value;
    wait(warp_barriers[warp], kWarp);
    uint32_t result = warp_values[warp * kWarp];
    for (int lane = 1; lane < kWarp; ++lane) result = combine(result, warp_values[warp * kWarp + lane]);
    wait(warp_barriers[warp], kWarp);
    return result;
}

inline void fiber_main() {
    kernel(*kernel_args, kernel_rows);
    fibers[threadIdx.x].done = true;
    swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

inline void run_block(int threads) {
    fibers = std::vector<Fiber>(threads);
    warp_barriers.assign(threads / kWarp, {});
    warp_values.assign(threads, 0);
    block_barrier = {};
    for (auto& fiber : fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        makecontext(&fiber.context, fiber_main, 0);
    }
    for (int running = threads; running > 0;) {
        running = 0;
        for (int thread = 0; thread < threads; ++thread) {
            if (fibers[thread].done) continue;
            ++running;
            threadIdx.x = thread;
            swapcontext(&scheduler, &fibers[thread].context);
        }
    }
}

}  // namespace cuda_on_cpu

inline void __syncthreads() {
    cuda_on_cpu::wait(cuda_on_cpu::block_barrier, static_cast<int>(cuda_on_cpu::fibers.size()));
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
    return cuda_on_cpu::warp_collective(value, [](uint32_t a, uint32_t b) { return max(a, b); });
}
inline uint32_t __reduce_add_sync(unsigned, uint32_t value) {
    return cuda_on_cpu::warp_collective(value, [](uint32_t a, uint32_t b) { return a + b; });
}
inline bool __any_sync(unsigned, uint32_t value) {
    return cuda_on_cpu::warp_collective(value, [](uint32_t a, uint32_t b) { return a | b; }) != 0;
}

inline cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 threads, void** parameters, size_t,
                                    cudaStream_t) {
    using namespace cuda_on_cpu;
    kernel = reinterpret_cast<void (*)(extractor_gather_args, int)>(const_cast<void*>(function));
    kernel_args = static_cast<const extractor_gather_args*>(parameters[0]);
    kernel_rows = *static_cast<int*>(parameters[1]);
    gridDim = grid;
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block(static_cast<int>(threads.x));
    return cudaSuccess;
}
