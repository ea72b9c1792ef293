/* The C ABI of both libraries: raw pointers and a stream, so that no version of Python or torch can break it. */
#pragma once

#include <stdint.h>

/* Raise with every change of extractor_gather_args; extractor/native.py refuses another one. */
#define EXTRACTOR_ABI_VERSION 1
/* 96 layers keep the struct under the 4 KiB that CUDA passes by value. */
#define EXTRACTOR_MAX_LAYERS 96

#if defined(__GNUC__)
#define EXTRACTOR_EXPORT __attribute__((visibility("default")))
#else
#define EXTRACTOR_EXPORT __declspec(dllexport)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* out[r, l] = convert(layers[l][rows[r]]); extractor/kernels/gather_ref.py is the definition.
 * Strides count elements. Dtypes and pair are the values of Dtype and Pair in convert.h. */
typedef struct {
    const void* layers[EXTRACTOR_MAX_LAYERS];    /* [tokens, hidden] each */
    const void* residuals[EXTRACTOR_MAX_LAYERS]; /* the same, read when pair != 0 */
    int64_t layer_strides[EXTRACTOR_MAX_LAYERS];
    int64_t residual_strides[EXTRACTOR_MAX_LAYERS];
    const int32_t* rows;     /* [max_rows] */
    const int32_t* owners;   /* [max_rows] or null: all rows belong to sample 0 */
    const int32_t* num_rows; /* [1] or null: how many of max_rows are wanted; read when the work runs */
    void* out;               /* [max_rows, num_layers, hidden], 16-bit elements */
    int64_t* counts;         /* [samples, num_layers, 4]: saturated, inf, nan, max |x| as fp32 bits */
    int32_t max_rows, num_layers, hidden, tokens, samples;
    int32_t source, stored, pair;
    int32_t max_blocks; /* CUDA only: cap of the grid, 0 = none */
} extractor_gather_args;

/* What extractor_gather_rows returns. The CUDA library returns CUDA's own error number + EXTRACTOR_CUDA_ERROR. */
enum {
    EXTRACTOR_OK = 0,
    EXTRACTOR_BAD_ARGUMENT = 1, /* dtype, pair, or number of layers out of range */
    EXTRACTOR_BAD_ROW = 2,      /* CPU only: a wanted row or owner is out of range; nothing was written */
    EXTRACTOR_CUDA_ERROR = 1000
};

EXTRACTOR_EXPORT int32_t extractor_abi_version(void);
EXTRACTOR_EXPORT int32_t extractor_args_bytes(void);
/* Which code runs here: "avx2", "portable", "cuda". */
EXTRACTOR_EXPORT const char* extractor_path(void);
EXTRACTOR_EXPORT const char* extractor_error_string(int32_t code);
/* `stream` is a cudaStream_t, and null on the CPU. */
EXTRACTOR_EXPORT int32_t extractor_gather_rows(const extractor_gather_args* args, void* stream);
/* CPU only: the same without vector instructions, for machines without them and for tests. */
EXTRACTOR_EXPORT int32_t extractor_gather_rows_portable(const extractor_gather_args* args, void* stream);
/* CUDA only: devices of compute capability 8.0 and up that this library can drive; 0 without a driver. Never fails. */
EXTRACTOR_EXPORT int32_t extractor_usable_devices(void);

#ifdef __cplusplus
}
#endif
