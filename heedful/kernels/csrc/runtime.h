// What all kernels share, whatever the instruction set: memory, threads, and the table of functions
// that each set fills.

#ifndef RUNTIME_H
#define RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "heedful.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define GRAD_CHUNKS 16  // row blocks whose gradients are summed apart, whatever the number of threads
#define QUERY_BLOCK 4   // queries that go through the keys together at inference

static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// bfloat16 ---------------------------------------------------------------------------------------

// Round to nearest, ties to even; NaN stays NaN.
static inline uint32_t bf16_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline int64_t item_size(Array array) { return array.is_bf16 ? 2 : 4; }

static inline Array offset(Array array, int64_t numbers) {
    if (array.data) array.data = (char *)array.data + numbers * item_size(array);
    return array;
}

static inline float load_one(Array from, int64_t i) {
    if (!from.is_bf16) return ((const float *)from.data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)from.data)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline void store_one(Array to, int64_t i, float x) {
    if (to.is_bf16) ((uint16_t *)to.data)[i] = (uint16_t)bf16_bits(x);
    else ((float *)to.data)[i] = x;
}

// Matrices ---------------------------------------------------------------------------------------

// A matrix whose number (i, j) stands at i·row_stride + j·column_stride.
typedef struct {
    Array array;
    int64_t row_stride, column_stride;
} Matrix;

static inline void prefetch(Matrix from, int64_t i, int64_t j) {
    int64_t at = i * from.row_stride + j * from.column_stride;
    __builtin_prefetch((const char *)from.array.data + at * item_size(from.array));
}

// Prefetch rows of so many bytes that are about to be written.
static inline void prefetch_rows(const void *first, int64_t rows, int64_t stride, int64_t bytes) {
    const char *at = first;
    for (int64_t row = 0; row < rows; row++, at += stride)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 1, 3);
}

// A product of depth K and what follows it: out [M, N].
typedef struct {
    Array out;
    Array gate;  // [M, N]: the result is zero where it is zero or less; or null
    // [M, N] or null: receives the activation's derivative. Without an activation the result is
    // multiplied by it.
    Array slopes;
    const float *bias;  // [N], or null
    int64_t rows, depth, width;  // M, K, N
    int32_t is_bf16;             // whether bfloat16 is multiplied
    int32_t activation;
    int32_t accumulate;  // add to what `out`, in float32, holds already
} Gemm;

// Training's residual sum and norm -----------------------------------------------------------------

typedef struct {
    uint64_t seed;
    uint32_t threshold;  // random numbers below it are dropped; 0 drops nothing
    float scale;         // of what is kept
} Dropout;

typedef struct {
    Array x, branch, sum, y;
    const Norm *norm;
    Dropout dropout;
    float *stats;  // [rows, 2]: mean and rstd
    int64_t rows, width;
} ResidualNorm;

typedef struct {
    Array y, sum;         // gradients that are given
    Array x, branch;      // gradients that are computed
    float *weight, *bias;  // [D], of the norm
} ResidualNormGrad;

// Workspace ----------------------------------------------------------------------------------------

// Memory for intermediate results, which the caller allocates: so it is freed, counted and limited
// like the rest of the caller's memory. With null memory only the size is counted.
typedef struct {
    char *memory;
    size_t size;
} Workspace;

static inline void *allocate(Workspace *space, int64_t bytes) {
    char *at = space->memory ? space->memory + space->size : 0;
    space->size += (size_t)(bytes + 63) / 64 * 64;
    return at;
}

// Rows of 8-bit numbers, and the largest magnitude of each row before rounding.
typedef struct {
    void *numbers;
    float *largest;
} QuantizedRows;

typedef struct {
    float *normed, *mixed, *queries, *inner, *gate, *joined, *scores;
    QuantizedRows quantized;
} LayerBuffers;

static inline int64_t padded_keys(int64_t count) { return ceil_div(count, 16) * 16; }

// Threads ------------------------------------------------------------------------------------------

// The threads of the OpenMP that PyTorch has loaded; one thread if there is none.
int64_t num_threads(void);
int64_t thread_index(void);

typedef void (*LoopBody)(void *data, int64_t first, int64_t stop);
// Run body over [0, count), at least `grain` iterations in a thread.
void parallel_for(LoopBody body, void *data, int64_t count, int64_t grain);

// How many iterations of so much work are worth a thread, which takes microseconds to wake.
static inline int64_t grain_for(int64_t work, int64_t worth) {
    return work < worth ? ceil_div(worth, work) : 1;
}

// The kernels of an instruction set ------------------------------------------------------------------

struct gemm_kernels {
    int64_t (*packed_b_size)(int64_t depth, int64_t width, int is_bf16);
    void (*pack_b)(Matrix b, int64_t depth, int64_t width, int is_bf16, uint32_t *packed);
    int64_t (*workspace)(const Gemm *gemm, int transpose_a);
    void (*gemm)(const Gemm *gemm, Matrix a, const uint32_t *packed_b, float *workspace);
    void (*gemm_transposed)(const Gemm *gemm, Matrix a, Matrix b, float *column_sums,
                            float *workspace);
};

struct kernel_table {
    const char *name;
    int lanes;           // float32 numbers of a register
    int quantized_size;  // bytes of an 8-bit number as it is multiplied; 0 without such products
    int64_t (*packed_size)(int64_t in_width, int64_t out_width, int is_int8);
    void (*pack_f32)(const float *weight, int64_t in_width, int64_t out_width, float *packed);
    void (*pack_int8)(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *packed);
    void (*linear)(const Linear *layer, const float *x, int64_t rows, float *y, int relu,
                   const float *added, const QuantizedRows *quantized);
    void (*norm)(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y);
    void (*project)(const Layer *layer, const float *x, int64_t rows, float *projected,
                    const LayerBuffers *buffers);
    void (*layer)(const Layer *layer, const float *x, int64_t rows, const AttentionArgs *self,
                  const RecurrenceArgs *recurrence, const AttentionArgs *cross, float *y,
                  const LayerBuffers *buffers);
    void (*logsumexp)(const float *scores, int64_t rows, int64_t size, double *totals);
    void (*topk)(const float *scores, int64_t rows, int64_t size, int64_t count, float *values,
                 int64_t *indices);
    void (*residual_norm)(const ResidualNorm *args);
    void (*residual_norm_backward)(const ResidualNorm *args, const ResidualNormGrad *grad,
                                   float *partial);
    int64_t (*attention_workspace)(const AttentionTraining *args);
    void (*attention)(AttentionTraining *args, int backward);
    struct gemm_kernels gemm[2];  // of float32 and of bfloat16
};

extern const struct kernel_table kernels_avx2, kernels_avx512, kernels_amx, kernels_neon;
extern struct kernel_table kernels;  // those in use

// Places for the intermediate results of a layer.
LayerBuffers layer_buffers(Workspace *space, const Layer *layer, int64_t rows, int64_t num_keys);

#endif
