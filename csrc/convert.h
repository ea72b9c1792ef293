// The one conversion of hidden states, for host and device: floats are handled as their bits, so that no compiler
// flag, flush-to-zero mode or NaN convention of a machine can change a stored byte.
//
// A finite |x| beyond the largest finite stored value, before rounding, saturates and is counted; inf is kept; a NaN
// becomes one canonical pattern. Equal dtypes are copied bit for bit, and looked at for the counts only.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define EXTRACTOR_HD __host__ __device__ __forceinline__
#else
#define EXTRACTOR_HD inline
#endif

namespace extractor {

enum class Dtype : int32_t { bf16 = 0, fp16 = 1, fp32 = 2 };
// none: one tensor; rounded: hidden + residual rounded to their dtype, as torch adds; fp32: the sum as it is.
enum class Pair : int32_t { none = 0, rounded = 1, fp32 = 2 };

constexpr uint32_t kAbs = 0x7FFFFFFF;
constexpr uint32_t kInf = 0x7F800000;

template <Dtype>
struct Format;
template <>
struct Format<Dtype::bf16> {
    using Storage = uint16_t;
    static constexpr uint32_t largest = 0x7F7F0000;  // as fp32 bits: 3.3895e38
    static constexpr uint16_t largest_bits = 0x7F7F, nan_bits = 0x7FC0;
};
template <>
struct Format<Dtype::fp16> {
    using Storage = uint16_t;
    static constexpr uint32_t largest = 0x477FE000;  // as fp32 bits: 65,504
    static constexpr uint16_t largest_bits = 0x7BFF, nan_bits = 0x7E00;
};
template <>
struct Format<Dtype::fp32> {
    using Storage = uint32_t;
};

// What was seen of one row of one layer. Fits 32 bits: a row has fewer than 2^31 elements.
struct Statistics {
    uint32_t saturated = 0, inf = 0, nan = 0;
    uint32_t max_abs = 0;  // fp32 bits of the largest finite |x|; bits of non-negative floats sort like the floats
};

EXTRACTOR_HD float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

EXTRACTOR_HD uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Exact; a NaN stays some NaN.
EXTRACTOR_HD uint32_t fp16_to_fp32(uint16_t half) {
#ifdef __CUDA_ARCH__
    return as_bits(__half2float(__ushort_as_half(half)));
#else
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7FFF;
    if (magnitude >= 0x7C00) return sign | kInf | (magnitude & 0x3FF) << 13;
    if (magnitude < 0x0400) return sign | as_bits(static_cast<float>(magnitude) * 0x1p-24f);  // exact
    return sign | ((magnitude << 13) + (112u << 23));
#endif
}

// Round to nearest even; overflows to inf, as hardware does. NaN must be handled before.
EXTRACTOR_HD uint16_t fp32_to_fp16(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __half_as_ushort(__float2half_rn(as_float(bits)));
#else
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & kAbs;
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);  // 65,536 and more
    if (magnitude < 0x33000000) return static_cast<uint16_t>(sign);            // below half the smallest subnormal
    if (magnitude < 0x38800000) {                                              // subnormal: in units of 2^-24
        const uint32_t shift = 126 - (magnitude >> 23), mantissa = (magnitude & 0x7FFFFF) | 0x800000;
        const uint32_t half_unit = 1u << (shift - 1), odd = mantissa >> shift & 1;
        return static_cast<uint16_t>(sign | (mantissa + half_unit - 1 + odd) >> shift);
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xFFF + odd) >> 13);
#endif
}

// Round to nearest even; overflows to inf. NaN must be handled before.
EXTRACTOR_HD uint16_t fp32_to_bf16(uint32_t bits) {
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <Dtype source>
EXTRACTOR_HD uint32_t widen(typename Format<source>::Storage value) {
    if constexpr (source == Dtype::bf16) return static_cast<uint32_t>(value) << 16;
    if constexpr (source == Dtype::fp16) return fp16_to_fp32(value);
    if constexpr (source == Dtype::fp32) return value;
}

template <Dtype stored>
EXTRACTOR_HD uint16_t round_to(uint32_t bits) {
    if ((bits & kAbs) > kInf) return Format<stored>::nan_bits;
    if constexpr (stored == Dtype::fp16) return fp32_to_fp16(bits);
    if constexpr (stored == Dtype::bf16) return fp32_to_bf16(bits);
}

// hidden + residual as fp32 bits; `rounded` passes through the source's dtype, overflow to inf included.
template <Dtype source, Pair pair>
EXTRACTOR_HD uint32_t add(typename Format<source>::Storage hidden, typename Format<source>::Storage residual) {
    const uint32_t sum = as_bits(as_float(widen<source>(hidden)) + as_float(widen<source>(residual)));
    if constexpr (pair == Pair::rounded && source != Dtype::fp32) return widen<source>(round_to<source>(sum));
    return sum;
}

EXTRACTOR_HD void record(uint32_t bits, uint32_t largest, Statistics& seen) {
    const uint32_t magnitude = bits & kAbs;
    seen.nan += magnitude > kInf;
    seen.inf += magnitude == kInf;
    seen.saturated += magnitude > largest && magnitude < kInf;
    if (magnitude < kInf && magnitude > seen.max_abs) seen.max_abs = magnitude;
}

template <Dtype stored>
EXTRACTOR_HD uint16_t saturate(uint32_t bits) {
    const uint32_t magnitude = bits & kAbs;
    if (magnitude > Format<stored>::largest && magnitude < kInf)
        return static_cast<uint16_t>((bits >> 16 & 0x8000) | Format<stored>::largest_bits);
    return round_to<stored>(bits);
}

// One element on its way from `source` to `stored`. `residual` is ignored without a pair.
template <Dtype source, Dtype stored, Pair pair>
EXTRACTOR_HD uint16_t convert(typename Format<source>::Storage hidden, typename Format<source>::Storage residual,
                              Statistics& seen) {
    uint32_t bits;
    if constexpr (pair == Pair::none) bits = widen<source>(hidden);
    else bits = add<source, pair>(hidden, residual);
    record(bits, Format<stored>::largest, seen);
    if constexpr (pair == Pair::none && source == stored) return hidden;
    return saturate<stored>(bits);
}

}  // namespace extractor
