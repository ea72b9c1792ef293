// One row of one layer, in plain C++: the fallback on every processor, and the slow path of the vector code.
#pragma once

#include "convert.h"

namespace extractor {

// Converts `n` elements of `hidden` (+ `residual`) into `out`.
using RowKernel = void (*)(const void* hidden, const void* residual, uint16_t* out, int64_t n, Statistics& seen);

template <Dtype source, Dtype stored, Pair pair>
void row_portable(const void* hidden, const void* residual, uint16_t* out, int64_t n, Statistics& seen) {
    using Storage = typename Format<source>::Storage;
    const auto* a = static_cast<const Storage*>(hidden);
    const auto* b = pair == Pair::none ? a : static_cast<const Storage*>(residual);
    for (int64_t i = 0; i < n; ++i) out[i] = convert<source, stored, pair>(a[i], b[i], seen);
}

}  // namespace extractor
