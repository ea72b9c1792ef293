// One row of one layer on a CUDA device: by 16-byte vectors, or element by element where rows are not aligned.
#pragma once

#include "convert.h"
#include "gather.h"

namespace extractor {

#ifndef EXTRACTOR_THREADS
#define EXTRACTOR_THREADS 256
#endif
constexpr int kThreads = EXTRACTOR_THREADS;
// Blocks that must fit a multiprocessor at once: 48 registers for bf16, 64 for the others, the most that spills nothing
// (ptxas of CUDA 13.0, sm_80 to sm_100); left to itself ptxas takes 40 and spills.
template <Dtype source>
constexpr int kResident = source == Dtype::bf16 ? 5 : 4;

template <Dtype source>
struct alignas(16) Vector {
    typename Format<source>::Storage x[8];
};

// Read once, and not written while the kernel runs: past L1, through the read-only path.
__device__ __forceinline__ uint4 load16(const void* at) {
    uint4 v;
#ifdef __CUDACC__
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
#else  // tests/cuda_on_cpu
    memcpy(&v, at, sizeof v);
#endif
    return v;
}

template <Dtype source>
__device__ __forceinline__ Vector<source> load(const typename Format<source>::Storage* at) {
    constexpr int parts = sizeof(Vector<source>) / 16;
    uint4 loaded[parts];
#pragma unroll
    for (int i = 0; i < parts; ++i) loaded[i] = load16(reinterpret_cast<const uint4*>(at) + i);
    Vector<source> vector;
    memcpy(&vector, loaded, sizeof vector);
    return vector;
}

template <Dtype source, Dtype stored, Pair pair>
struct VectorRow {
    using Storage = typename Format<source>::Storage;
    using In = Vector<source>;
    using Out = Vector<Dtype::fp16>;  // 8 stored elements of 16 bits, of either dtype
    // 16-byte loads that a thread has under way before it converts: 4 of bf16 cover a row of 8,192 elements at once.
    static constexpr int resident = kResident<source>;
    static constexpr int each = 4 / (sizeof(Storage) / 2) / (pair == Pair::none ? 1 : 2);

    static __device__ __forceinline__ uint32_t widened(const In& hidden, const In& residual, int i) {
        if constexpr (pair == Pair::none) return widen<source>(hidden.x[i]);
        else return add<source, pair>(hidden.x[i], residual.x[i]);
    }

    static __device__ __forceinline__ uint32_t largest_of(const In& hidden, const In& residual) {
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = max(largest, widened(hidden, residual, i) & kAbs);
        return largest;
    }

    // 8 finite elements, none beyond the largest stored value.
    static __device__ __forceinline__ Out narrow(const In& hidden, const In& residual) {
        Out out;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if constexpr (pair == Pair::none && source == stored) out.x[i] = hidden.x[i];
            else if constexpr (stored == Dtype::fp16) out.x[i] = fp32_to_fp16(widened(hidden, residual, i));
            else out.x[i] = fp32_to_bf16(widened(hidden, residual, i));
        }
        return out;
    }

    static __device__ __forceinline__ void run(const extractor_gather_args& args, int layer, int row, uint16_t* out,
                                               Statistics& seen) {
        const auto* a = static_cast<const Storage*>(args.layers[layer]) + row * args.layer_strides[layer];
        const Storage* b = a;
        if constexpr (pair != Pair::none)
            b = static_cast<const Storage*>(args.residuals[layer]) + row * args.residual_strides[layer];
        for (int start = threadIdx.x * 8; start < args.hidden; start += each * kThreads * 8) {
            In hidden[each], residual[each];
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const int at = start + i * kThreads * 8;
                if (at < args.hidden) hidden[i] = load<source>(a + at);
                if (pair != Pair::none && at < args.hidden) residual[i] = load<source>(b + at);
            }
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const int at = start + i * kThreads * 8;
                if (at >= args.hidden) continue;
                const uint32_t largest = largest_of(hidden[i], residual[i]);
                if (largest <= Format<stored>::largest) {
                    seen.max_abs = max(seen.max_abs, largest);
                    *reinterpret_cast<Out*>(out + at) = narrow(hidden[i], residual[i]);
                } else {  // rare: read again and count each, which keeps the registers of the common path few
#pragma unroll 1
                    for (int j = at; j < at + 8; ++j) out[j] = convert<source, stored, pair>(a[j], b[j], seen);
                }
            }
        }
    }

    static __device__ __forceinline__ void poison(const extractor_gather_args& args, uint16_t* out, Statistics& seen) {
        for (int i = threadIdx.x; i < args.hidden; i += kThreads) out[i] = Format<stored>::nan_bits, ++seen.nan;
    }
};

// Any alignment, any hidden size, any pair mode: correct rather than fast.
template <Dtype source, Dtype stored>
struct ElementRow {
    using Storage = typename Format<source>::Storage;
    static constexpr int resident = kResident<source>;

    template <Pair pair>
    static __device__ __forceinline__ void run_pair(const extractor_gather_args& args, int layer, int row,
                                                    uint16_t* out, Statistics& seen) {
        const auto* a = static_cast<const Storage*>(args.layers[layer]) + row * args.layer_strides[layer];
        const Storage* b = a;
        if constexpr (pair != Pair::none)
            b = static_cast<const Storage*>(args.residuals[layer]) + row * args.residual_strides[layer];
        for (int i = threadIdx.x; i < args.hidden; i += kThreads)
            out[i] = convert<source, stored, pair>(a[i], b[i], seen);
    }

    static __device__ __forceinline__ void run(const extractor_gather_args& args, int layer, int row, uint16_t* out,
                                               Statistics& seen) {
        if (args.pair == static_cast<int32_t>(Pair::none)) run_pair<Pair::none>(args, layer, row, out, seen);
        else if (args.pair == static_cast<int32_t>(Pair::rounded)) run_pair<Pair::rounded>(args, layer, row, out, seen);
        else run_pair<Pair::fp32>(args, layer, row, out, seen);
    }

    static __device__ __forceinline__ void poison(const extractor_gather_args& args, uint16_t* out, Statistics& seen) {
        VectorRow<source, stored, Pair::none>::poison(args, out, seen);
    }
};

}  // namespace extractor
