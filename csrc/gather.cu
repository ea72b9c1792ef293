// libextractor_cuda.so: gather_rows on a CUDA device, one launch for all layers.
//
// A block takes `rows_per_block` consecutive rows of one layer and keeps its statistics in registers; it merges them
// into `counts` once per run of rows with the same owner, so once per block where samples are long. Row indices and
// the number of rows are read from device memory: the launch can be replayed in a CUDA graph.
#include <cuda_runtime.h>

#include "gather.h"
#include "row_cuda.cuh"

namespace extractor {
namespace {

// Merges the block's statistics of one sample and layer into global memory and clears them. Called by all threads.
__device__ __forceinline__ void flush(Statistics& seen, int64_t* counts) {
    __shared__ uint32_t block[4];
    if (threadIdx.x < 4) block[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t largest = __reduce_max_sync(~0u, seen.max_abs);
    const bool leader = threadIdx.x % 32 == 0;
    if (leader) atomicMax(&block[3], largest);
    if (__any_sync(~0u, seen.saturated | seen.inf | seen.nan)) {
        const uint32_t sums[3] = {__reduce_add_sync(~0u, seen.saturated), __reduce_add_sync(~0u, seen.inf),
                                  __reduce_add_sync(~0u, seen.nan)};
        for (int i = 0; i < 3; ++i)
            if (leader && sums[i] != 0) atomicAdd(&block[i], sums[i]);
    }
    __syncthreads();
    if (threadIdx.x < 3 && block[threadIdx.x] != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(counts + threadIdx.x), block[threadIdx.x]);
    // Most blocks see no new maximum: a plain load spares them the atomic on an address that all blocks share.
    auto* maximum = reinterpret_cast<long long*>(counts + 3);
    if (threadIdx.x == 3 && block[3] > __ldcg(maximum)) atomicMax(maximum, static_cast<long long>(block[3]));
    __syncthreads();
    seen = Statistics{};
}

template <class Row>
__global__ void __launch_bounds__(kThreads, Row::resident)
    gather_kernel(const __grid_constant__ extractor_gather_args args, int rows_per_block) {
    const int rows = args.num_rows == nullptr ? args.max_rows : min(*args.num_rows, args.max_rows);
    const int64_t items = static_cast<int64_t>((rows + rows_per_block - 1) / rows_per_block) * args.num_layers;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int layer = static_cast<int>(item % args.num_layers);
        const int first = static_cast<int>(item / args.num_layers) * rows_per_block;
        const int end = min(first + rows_per_block, rows);
        Statistics seen;
        for (int r = first; r < end; ++r) {
            const int owner = args.owners == nullptr ? 0 : args.owners[r];
            const bool owned = owner >= 0 && owner < args.samples;
            auto* out =
                static_cast<uint16_t*>(args.out) + (static_cast<int64_t>(r) * args.num_layers + layer) * args.hidden;
            if (owned && args.rows[r] >= 0 && args.rows[r] < args.tokens)
                Row::run(args, layer, args.rows[r], out, seen);
            else Row::poison(args, out, seen);
            const bool last = r + 1 == end || (args.owners != nullptr && args.owners[r + 1] != owner);
            if (last && owned) flush(seen, args.counts + (static_cast<int64_t>(owner) * args.num_layers + layer) * 4);
            else if (last) seen = Statistics{};
        }
    }
}

int multiprocessors() {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count > 0 ? count : 1;
}

// Few rows: one each, to fill the device. Many: up to 8, which divides the merges, once the device is filled 4 times
// over at 5 or so resident blocks each.
int rows_for_each_block(const extractor_gather_args& args, int processors) {
    const int64_t share = static_cast<int64_t>(args.max_rows) * args.num_layers / (processors * 20LL);
    return static_cast<int>(share < 1 ? 1 : share > 8 ? 8 : share);
}

int32_t failure(cudaError_t error) { return error == cudaSuccess ? EXTRACTOR_OK : EXTRACTOR_CUDA_ERROR + error; }

template <class Row>
int32_t launch(const extractor_gather_args& args, cudaStream_t stream) {
    int rows_per_block = rows_for_each_block(args, multiprocessors());
    const int64_t items = static_cast<int64_t>((args.max_rows + rows_per_block - 1) / rows_per_block) * args.num_layers;
    const int64_t cap = args.max_blocks > 0 ? args.max_blocks : INT32_MAX;
    const dim3 grid(static_cast<unsigned>(items < cap ? items : cap));
    void* parameters[] = {const_cast<extractor_gather_args*>(&args), &rows_per_block};
    const auto* kernel = reinterpret_cast<const void*>(gather_kernel<Row>);
    return failure(cudaLaunchKernel(kernel, grid, dim3(kThreads), parameters, 0, stream));
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// 16-byte accesses need every row to start on 16 bytes.
bool vectors_fit(const extractor_gather_args& args) {
    bool fit = args.hidden % 8 == 0 && aligned(args.out);
    for (int l = 0; l < args.num_layers; ++l) {
        fit = fit && aligned(args.layers[l]) && args.layer_strides[l] % 8 == 0;
        if (args.pair != 0) fit = fit && aligned(args.residuals[l]) && args.residual_strides[l] % 8 == 0;
    }
    return fit;
}

template <Dtype source, Dtype stored>
int32_t launch_pair(const extractor_gather_args& args, bool vectors, cudaStream_t stream) {
    if (!vectors) return launch<ElementRow<source, stored>>(args, stream);
    switch (static_cast<Pair>(args.pair)) {
        case Pair::none: return launch<VectorRow<source, stored, Pair::none>>(args, stream);
        case Pair::rounded: return launch<VectorRow<source, stored, Pair::rounded>>(args, stream);
        case Pair::fp32: return launch<VectorRow<source, stored, Pair::fp32>>(args, stream);
    }
    return EXTRACTOR_BAD_ARGUMENT;
}

template <Dtype source>
int32_t launch_stored(const extractor_gather_args& args, bool vectors, cudaStream_t stream) {
    switch (static_cast<Dtype>(args.stored)) {
        case Dtype::bf16: return launch_pair<source, Dtype::bf16>(args, vectors, stream);
        case Dtype::fp16: return launch_pair<source, Dtype::fp16>(args, vectors, stream);
        default: return EXTRACTOR_BAD_ARGUMENT;
    }
}

int32_t launch_source(const extractor_gather_args& args, bool vectors, cudaStream_t stream) {
    switch (static_cast<Dtype>(args.source)) {
        case Dtype::bf16: return launch_stored<Dtype::bf16>(args, vectors, stream);
        case Dtype::fp16: return launch_stored<Dtype::fp16>(args, vectors, stream);
        case Dtype::fp32: return launch_stored<Dtype::fp32>(args, vectors, stream);
    }
    return EXTRACTOR_BAD_ARGUMENT;
}

}  // namespace
}  // namespace extractor

extern "C" {

int32_t extractor_abi_version(void) { return EXTRACTOR_ABI_VERSION; }

int32_t extractor_args_bytes(void) { return sizeof(extractor_gather_args); }

const char* extractor_path(void) { return "cuda"; }

const char* extractor_error_string(int32_t code) {
    if (code >= EXTRACTOR_CUDA_ERROR) return cudaGetErrorString(static_cast<cudaError_t>(code - EXTRACTOR_CUDA_ERROR));
    return code == EXTRACTOR_OK ? "no error" : "a dtype, pair mode or number of layers is out of range";
}

int32_t extractor_usable_devices(void) {
    int count = 0, usable = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
    for (int device = 0, major = 0; device < count; ++device)
        usable +=
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 8;
    return usable;
}

int32_t extractor_gather_rows(const extractor_gather_args* args, void* stream) {
    const bool pair_fits = args->pair >= 0 && args->pair <= 2;
    if (args->num_layers < 1 || args->num_layers > EXTRACTOR_MAX_LAYERS || !pair_fits) return EXTRACTOR_BAD_ARGUMENT;
    if (args->max_rows <= 0 || args->hidden <= 0) return EXTRACTOR_OK;
    const bool vectors = extractor::vectors_fit(*args);
    return extractor::launch_source(*args, vectors, static_cast<cudaStream_t>(stream));
}
}
