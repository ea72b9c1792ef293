// libextractor_cpu.so: gather_rows on the CPU. Single-threaded on purpose: it runs beside torch's and vLLM's thread
// pools (a second OpenMP runtime would clash with theirs), and one thread already moves data at the speed of memcpy.
#include "gather.h"

#include <cfenv>

#include "row_avx2.h"
#include "row_portable.h"

namespace extractor {
namespace {

struct PortableRow {
    template <Dtype source, Dtype stored, Pair pair>
    static constexpr RowKernel kernel = row_portable<source, stored, pair>;
};
#if defined(__x86_64__)
struct VectorRow {
    template <Dtype source, Dtype stored, Pair pair>
    static constexpr RowKernel kernel = row_avx2<source, stored, pair>;
};
#else
using VectorRow = PortableRow;
#endif

bool vector_path() {
#if defined(__x86_64__)
    static const bool available = has_avx2();
    return available;
#else
    return false;
#endif
}

// Streaming stores are weakly ordered: whoever is told that the rows are there must see them.
void finish_stores() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

template <class Row, Dtype source, Dtype stored>
RowKernel pick_pair(int32_t pair) {
    switch (static_cast<Pair>(pair)) {
        case Pair::none: return Row::template kernel<source, stored, Pair::none>;
        case Pair::rounded: return Row::template kernel<source, stored, Pair::rounded>;
        case Pair::fp32: return Row::template kernel<source, stored, Pair::fp32>;
    }
    return nullptr;
}

template <class Row, Dtype source>
RowKernel pick_stored(int32_t stored, int32_t pair) {
    switch (static_cast<Dtype>(stored)) {
        case Dtype::bf16: return pick_pair<Row, source, Dtype::bf16>(pair);
        case Dtype::fp16: return pick_pair<Row, source, Dtype::fp16>(pair);
        default: return nullptr;
    }
}

template <class Row>
RowKernel pick(const extractor_gather_args& args) {
    switch (static_cast<Dtype>(args.source)) {
        case Dtype::bf16: return pick_stored<Row, Dtype::bf16>(args.stored, args.pair);
        case Dtype::fp16: return pick_stored<Row, Dtype::fp16>(args.stored, args.pair);
        case Dtype::fp32: return pick_stored<Row, Dtype::fp32>(args.stored, args.pair);
    }
    return nullptr;
}

int32_t wanted_rows(const extractor_gather_args& args) {
    if (args.num_rows == nullptr) return args.max_rows;
    return *args.num_rows < 0 ? 0 : *args.num_rows < args.max_rows ? *args.num_rows : args.max_rows;
}

bool rows_in_range(const extractor_gather_args& args, int32_t rows) {
    for (int32_t r = 0; r < rows; ++r) {
        if (args.rows[r] < 0 || args.rows[r] >= args.tokens) return false;
        if (args.owners != nullptr && (args.owners[r] < 0 || args.owners[r] >= args.samples)) return false;
    }
    return true;
}

void merge(const Statistics& seen, int64_t* counts) {
    counts[0] += seen.saturated;
    counts[1] += seen.inf;
    counts[2] += seen.nan;
    if (seen.max_abs > counts[3]) counts[3] = seen.max_abs;
}

const void* row_start(const void* tensor, int64_t stride, int32_t row, int32_t source) {
    const int64_t bytes = static_cast<Dtype>(source) == Dtype::fp32 ? 4 : 2;
    return static_cast<const char*>(tensor) + row * stride * bytes;
}

RowPointers locate(const extractor_gather_args& args, int32_t r, int32_t l) {
    const void* hidden = row_start(args.layers[l], args.layer_strides[l], args.rows[r], args.source);
    if (args.pair == static_cast<int32_t>(Pair::none)) return {hidden, hidden};
    return {hidden, row_start(args.residuals[l], args.residual_strides[l], args.rows[r], args.source)};
}

// Rows outside, layers inside: the output is written front to back.
void gather(const extractor_gather_args& args, RowKernel kernel, int32_t rows) {
    auto* out = static_cast<uint16_t*>(args.out);
    RowPointers next = rows > 0 ? locate(args, 0, 0) : RowPointers{};
    for (int32_t r = 0; r < rows; ++r) {
        const int64_t owner = args.owners == nullptr ? 0 : args.owners[r];
        for (int32_t l = 0; l < args.num_layers; ++l) {
            const RowPointers row = next;
            if (l + 1 < args.num_layers) next = locate(args, r, l + 1);
            else if (r + 1 < rows) next = locate(args, r + 1, 0);
            Statistics seen;
            kernel(row, next, out, args.hidden, seen);
            merge(seen, args.counts + (owner * args.num_layers + l) * 4);
            out += args.hidden;
        }
    }
}

// Sums of pairs are rounded to nearest and keep subnormals, whatever mode the process has set for itself.
struct DefaultFloatMode {
    std::fenv_t before;
    DefaultFloatMode() {
        std::fegetenv(&before);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatMode() { std::fesetenv(&before); }
};

int32_t run(const extractor_gather_args& args, RowKernel kernel) {
    const bool layers_fit = args.num_layers >= 1 && args.num_layers <= EXTRACTOR_MAX_LAYERS;
    if (kernel == nullptr || !layers_fit || args.hidden < 0) return EXTRACTOR_BAD_ARGUMENT;
    const int32_t rows = wanted_rows(args);
    if (!rows_in_range(args, rows)) return EXTRACTOR_BAD_ROW;
    const DefaultFloatMode mode;
    gather(args, kernel, rows);
    finish_stores();
    return EXTRACTOR_OK;
}

}  // namespace
}  // namespace extractor

extern "C" {

int32_t extractor_abi_version(void) { return EXTRACTOR_ABI_VERSION; }

int32_t extractor_args_bytes(void) { return sizeof(extractor_gather_args); }

const char* extractor_path(void) { return extractor::vector_path() ? "avx2" : "portable"; }

const char* extractor_error_string(int32_t code) {
    if (code == EXTRACTOR_BAD_ARGUMENT) return "a dtype, pair mode or number of layers is out of range";
    if (code == EXTRACTOR_BAD_ROW) return "a row or owner is out of range";
    return "no error";
}

int32_t extractor_gather_rows(const extractor_gather_args* args, void*) {
    using namespace extractor;
    return run(*args, vector_path() ? pick<VectorRow>(*args) : pick<PortableRow>(*args));
}

int32_t extractor_gather_rows_portable(const extractor_gather_args* args, void*) {
    return extractor::run(*args, extractor::pick<extractor::PortableRow>(*args));
}
}
