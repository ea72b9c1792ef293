// One row of one layer, in plain C++: the fallback on every processor, and the slow path of the vector code.
#pragma once

#include "convert.h"

namespace extractor {

// Where one row of one layer lies.
struct RowPointers {
    const void* hidden;
    const void* residual;
};

// Converts `n` elements of `row` into `out`. `next` is the row that comes after it, to be fetched ahead.
using RowKernel = void (*)(RowPointers row, RowPointers next, uint16_t* out, int64_t n, Statistics& seen);

template <Dtype source, Dtype stored, Pair pair>
void row_portable(RowPointers row, RowPointers, uint16_t* out, int64_t n, Statistics& seen) {
    using Storage = typename Format<source>::Storage;
    const auto* a = static_cast<const Storage*>(row.hidden);
    const auto* b = pair == Pair::none ? a : static_cast<const Storage*>(row.residual);
    for (int64_t i = 0; i < n; ++i) out[i] = convert<source, stored, pair>(a[i], b[i], seen);
}

}  // namespace extractor
