// One row of one layer with AVX2 and F16C, 32 elements at a time; compiled in always, called only where the
// processor has both. Elements beyond the largest stored value, inf and NaN are rare: a line that holds one goes
// through the portable code, so the common path is a compare, a maximum and a conversion.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include "row_portable.h"

#define EXTRACTOR_AVX2 __attribute__((target("avx2,f16c")))
#define EXTRACTOR_AVX2_INLINE __attribute__((target("avx2,f16c"), always_inline)) inline

namespace extractor {

// By cpuid itself: what __builtin_cpu_supports answers depends on the compiler's runtime being linked in.
inline bool has_avx2() {
    unsigned a, b, c, d;
    constexpr unsigned needed = bit_OSXSAVE | bit_AVX | bit_F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & needed) != needed) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return false;
    unsigned saved, upper;
    __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    return (saved & 6) == 6;  // the system saves the wide registers
}

// 16 elements as fp32 bits. bf16 splits into the even and the odd ones, which costs two operations, not four; the
// others into the first and the last eight.
struct Wide {
    __m256i low, high;
};
template <Dtype source>
constexpr bool kEvenOdd = source == Dtype::bf16;

template <Dtype source>
EXTRACTOR_AVX2_INLINE Wide load(const void* row, int64_t i) {
    if constexpr (source == Dtype::fp32) {
        const auto* at = reinterpret_cast<const __m256i*>(static_cast<const uint32_t*>(row) + i);
        return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
    } else if constexpr (source == Dtype::fp16) {
        const auto* at = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(row) + i);
        const __m256 low = _mm256_cvtph_ps(_mm_loadu_si128(at)), high = _mm256_cvtph_ps(_mm_loadu_si128(at + 1));
        return {_mm256_castps_si256(low), _mm256_castps_si256(high)};
    } else {
        const __m256i both =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row) + i));
        return {_mm256_slli_epi32(both, 16), _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)))};
    }
}

// fp32 bits -> bf16 in the upper half of each lane; round to nearest even, no NaN among them.
EXTRACTOR_AVX2_INLINE __m256i round_bf16(__m256i bits) {
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)));
}

// A NaN may come out as any NaN or as inf here; the caller then takes the portable code for the line.
template <Dtype source, Pair pair>
EXTRACTOR_AVX2_INLINE __m256i add(__m256i hidden, __m256i residual) {
    const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(hidden), _mm256_castsi256_ps(residual));
    if constexpr (pair == Pair::rounded && source == Dtype::bf16) return round_bf16(_mm256_castps_si256(sum));
    if constexpr (pair == Pair::rounded && source == Dtype::fp16)
        return _mm256_castps_si256(_mm256_cvtph_ps(_mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT)));
    return _mm256_castps_si256(sum);
}

// 16 finite elements, none beyond the largest stored value -> 16 stored ones, in order.
template <Dtype source, Dtype stored>
EXTRACTOR_AVX2_INLINE __m256i narrow(Wide x) {
    if constexpr (stored == Dtype::fp16) {
        __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(x.low), _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(_mm256_castsi256_ps(x.high), _MM_FROUND_TO_NEAREST_INT);
        if constexpr (kEvenOdd<source>) {
            const __m128i first = _mm_unpacklo_epi16(low, high);
            high = _mm_unpackhi_epi16(low, high), low = first;
        }
        return _mm256_set_m128i(high, low);
    }
    const __m256i low = _mm256_srli_epi32(round_bf16(x.low), 16), high = round_bf16(x.high);
    if constexpr (kEvenOdd<source>) return _mm256_or_si256(low, high);
    const __m256i mixed = _mm256_packus_epi32(low, _mm256_srli_epi32(high, 16));
    return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

EXTRACTOR_AVX2_INLINE uint32_t largest_lane(__m256i lanes) {
    alignas(32) uint32_t values[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(values), lanes);
    uint32_t largest = 0;
    for (const uint32_t value : values) largest = value > largest ? value : largest;
    return largest;
}

template <Dtype source, Dtype stored, Pair pair>
struct Avx2Row {
    using Storage = typename Format<source>::Storage;
    const Storage *a, *b, *next_a, *next_b;
    uint16_t* out;
    bool stream;  // streaming stores spare reading the output into the cache first
    __m256i largest;

    EXTRACTOR_AVX2_INLINE Wide state(int64_t i) const {
        const Wide x = load<source>(a, i);
        if constexpr (pair == Pair::none) return x;
        const Wide y = load<source>(b, i);
        return {add<source, pair>(x.low, y.low), add<source, pair>(x.high, y.high)};
    }

    EXTRACTOR_AVX2_INLINE void store(int64_t i, Wide x) const {
        auto* to = reinterpret_cast<__m256i*>(out + i);
        if (stream) _mm256_stream_si256(to, narrow<source, stored>(x));
        else _mm256_storeu_si256(to, narrow<source, stored>(x));
    }

    // 32 elements at `i`: a cache line of the output, while the same place of the next row is fetched.
    EXTRACTOR_AVX2_INLINE void line(int64_t i, Statistics& seen) {
        for (size_t offset = 0; offset < 32; offset += 64 / sizeof(Storage)) {
            _mm_prefetch(reinterpret_cast<const char*>(next_a + i + offset), _MM_HINT_T0);
            if (pair != Pair::none) _mm_prefetch(reinterpret_cast<const char*>(next_b + i + offset), _MM_HINT_T0);
        }
        const Wide x = state(i), y = state(i + 16);
        const __m256i absolute = _mm256_set1_epi32(kAbs), limit = _mm256_set1_epi32(Format<stored>::largest);
        const __m256i first = _mm256_max_epi32(_mm256_and_si256(x.low, absolute), _mm256_and_si256(x.high, absolute));
        const __m256i last = _mm256_max_epi32(_mm256_and_si256(y.low, absolute), _mm256_and_si256(y.high, absolute));
        const __m256i all = _mm256_max_epi32(first, last), beyond = _mm256_cmpgt_epi32(all, limit);
        if (__builtin_expect(!_mm256_testz_si256(beyond, beyond), 0)) {  // inf and NaN included
            row_portable<source, stored, pair>({a + i, b + i}, {}, out + i, 32, seen);
            return;
        }
        largest = _mm256_max_epi32(largest, all);
        store(i, x);
        store(i + 16, y);
    }
};

// The halves of a row are taken in turn: two streams, and the next row fetched ahead, turn 6.3 GB/s of output into 11
// (Xeon with AMX, one thread, [4096, 3, 7168] bf16 -> fp16; memcpy: 11).
template <Dtype source, Dtype stored, Pair pair>
EXTRACTOR_AVX2 void row_avx2(RowPointers row, RowPointers next, uint16_t* out, int64_t n, Statistics& seen) {
    using Storage = typename Format<source>::Storage;
    const auto at = [](const void* pointer) { return static_cast<const Storage*>(pointer); };
    const Storage *a = at(row.hidden), *b = pair == Pair::none ? a : at(row.residual);
    const bool stream = reinterpret_cast<uintptr_t>(out) % 32 == 0;
    Avx2Row<source, stored, pair> work{a, b, at(next.hidden), at(next.residual), out, stream, _mm256_setzero_si256()};
    const int64_t half = n / 64 * 32;
    for (int64_t i = 0; i < half; i += 32) {
        work.line(i, seen);
        work.line(half + i, seen);
    }
    int64_t i = 2 * half;
    for (; i + 32 <= n; i += 32) work.line(i, seen);
    row_portable<source, stored, pair>({a + i, b + i}, {}, out + i, n - i, seen);
    const uint32_t found = largest_lane(work.largest);
    if (found > seen.max_abs) seen.max_abs = found;
}

}  // namespace extractor
#endif
