// Linear layers of finished models: float32, or 8-bit integers scaled row by row.
//
// A micro-kernel holds MR rows and NR columns of the result in registers. The weight [N, K] is packed
// in panels of NR of its rows: for each k their k-th numbers side by side; in 8 bits, for each
// INT8_GROUP k, whose products one instruction adds. Missing rows of the last panel are zero. Each
// row of x goes through the same operations whatever the others are, so its result does not depend
// on the batch.

#define MR 6
#define NR_VECTORS (LANES == 8 ? 2 : 4)  // AVX2 has only 16 registers
#define NR (NR_VECTORS * LANES)

#if LANES == 16
#define INT8_GROUP 4
typedef uint8_t Quantized;  // a number rounded to 8 bits, plus 128
#elif LANES == 8
#define INT8_GROUP 2
typedef int16_t Quantized;  // as wide as AVX2 multiplies without saturation
#else
#define INT8_GROUP 1
#endif
#define HAS_INT8 (INT8_GROUP > 1)

// Groups of the depth, each a lane of 32 bits.
static inline int64_t int8_groups(int64_t in_width) { return ceil_div(in_width, INT8_GROUP); }

static int64_t packed_size(int64_t in_width, int64_t out_width, int is_int8) {
    int64_t depth = is_int8 ? int8_groups(in_width) * INT8_GROUP : in_width;
    return ceil_div(out_width, NR) * NR * depth;
}

static void pack_f32(const float *weight, int64_t in_width, int64_t out_width, float *packed) {
    for (int64_t first = 0; first < out_width; first += NR)
        for (int64_t k = 0; k < in_width; k++)
            for (int64_t n = first; n < first + NR; n++)
                *packed++ = n < out_width ? weight[n * in_width + k] : 0.0f;
}

static void pack_int8(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *packed) {
    for (int64_t first = 0; first < out_width; first += NR)
        for (int64_t k = 0; k < in_width; k += INT8_GROUP)
            for (int64_t n = first; n < first + NR; n++)
                for (int64_t i = k; i < k + INT8_GROUP; i++)
                    *packed++ = n < out_width && i < in_width ? weight[n * in_width + i] : 0;
}

typedef struct {
    const Linear *layer;
    const float *x;             // [rows, K]
    const QuantizedRows *quantized;  // x in 8 bits, or null
    int64_t rows;
    float *y;
    int relu;
    const float *added;  // [rows, N], or null
} LinearCall;

// Bias is in y already: ReLU, what is added, and the store.
static inline void finish(const LinearCall *call, Floats y, int64_t row, int64_t column) {
    const Linear *layer = call->layer;
    int64_t left = layer->out_width - column;
    float *to = call->y + row * layer->out_width + column;
    if (left >= LANES) {
        if (call->relu) y = max_lanes(y, set1(0.0f));
        if (call->added) y += load(call->added + row * layer->out_width + column);
        store(to, y);
        return;
    }
    for (int64_t i = 0; i < left; i++) {
        float one = y[i];
        if (call->relu && !(one > 0.0f)) one = 0.0f;
        if (call->added) one += call->added[row * layer->out_width + column + i];
        to[i] = one;
    }
}

ALWAYS_INLINE void f32_micro_kernel(const LinearCall *call, int64_t row, int64_t panel, int count) {
    const Linear *layer = call->layer;
    int64_t depth = layer->in_width;
    const float *weight = (const float *)layer->packed_weight + panel * depth * NR;
    const float *x = call->x + row * depth;
    Floats sums[MR][NR_VECTORS], results[MR][NR_VECTORS];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) {
            int64_t column = panel * NR + j * LANES;
            Floats zero = {0};
            sums[i][j] = layer->bias && column < layer->out_width
                ? load_tail(layer->bias, column, layer->out_width) : zero;
        }
    for (int64_t k = 0; k < depth; k++, weight += NR) {
        Floats columns[NR_VECTORS];
        for (int j = 0; j < NR_VECTORS; j++) columns[j] = load(weight + j * LANES);
        for (int i = 0; i < count; i++) {
            Floats one = set1(x[i * depth + k]);
            for (int j = 0; j < NR_VECTORS; j++) sums[i][j] += one * columns[j];
        }
    }
    // What has an address is not held in registers: nothing is called with the sums themselves.
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) results[i][j] = sums[i][j];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) {
            int64_t column = panel * NR + j * LANES;
            if (column < layer->out_width) finish(call, results[i][j], row + i, column);
        }
}

#if HAS_INT8
// Sums of integer products as float32.
static inline void dequantize(const LinearCall *call, Ints sums, int64_t row, int64_t column) {
    const Linear *layer = call->layer;
    Ints extra = (Ints)load_tail((const float *)layer->correction, column, layer->out_width);
    Floats y = __builtin_convertvector(sums - extra, Floats), zero = {0};
    Floats bias = layer->bias ? load_tail(layer->bias, column, layer->out_width) : zero;
    y = y * call->quantized->largest[row] * load_tail(layer->scale, column, layer->out_width)
        + bias;
    finish(call, y, row, column);
}

// ADD_INT8_PRODUCTS adds the products of the group of x at `from` and NR columns of the weight. In
// assembly: GCC 12 copies sums through memory, with AVX-512 every one, with AVX2 those that lack a
// register.
typedef int32_t Int8Group __attribute__((aligned(1), may_alias));
#if LANES == 16
typedef __m512i Int8Columns;
static inline Int8Columns load_int8(const int8_t *from) { return _mm512_loadu_si512(from); }
#define ADD_INT8_PRODUCTS(sums, from, columns)                                             \
    __m512i one = _mm512_set1_epi32(*(const Int8Group *)(from));                           \
    for (int j = 0; j < NR_VECTORS; j++)                                                   \
        __asm__("vpdpbusd %2, %1, %0" : "+v"((sums)[j]) : "v"(one), "v"((columns)[j]))
#else
typedef __m256i Int8Columns;
static inline Int8Columns load_int8(const int8_t *from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
}
#define ADD_INT8_PRODUCTS(sums, from, columns)                                             \
    __m256i one, other;                                                                    \
    __asm__("vpbroadcastd %4, %2\n\t"                                                      \
            "vpmaddwd %5, %2, %3\n\t"                                                      \
            "vpmaddwd %6, %2, %2\n\t"                                                      \
            "vpaddd %3, %0, %0\n\t"                                                        \
            "vpaddd %2, %1, %1"                                                            \
            : "+x"((sums)[0]), "+x"((sums)[1]), "=&x"(one), "=&x"(other)                   \
            : "m"(*(const Int8Group *)(from)), "x"((columns)[0]), "x"((columns)[1]))
#endif

ALWAYS_INLINE void int8_micro_kernel(const LinearCall *call, int64_t row, int64_t panel,
                                     int count) {
    const Linear *layer = call->layer;
    int64_t groups = int8_groups(layer->in_width);
    const int8_t *weight
        = (const int8_t *)layer->packed_weight + panel * groups * INT8_GROUP * NR;
    const char *x = (const char *)call->quantized->numbers + row * groups * 4;
    Int8Columns sums[MR][NR_VECTORS];
    Ints results[MR][NR_VECTORS];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) sums[i][j] = (Int8Columns){0};
    for (int64_t k = 0; k < groups; k++, weight += INT8_GROUP * NR) {
        Int8Columns columns[NR_VECTORS];
        for (int j = 0; j < NR_VECTORS; j++) columns[j] = load_int8(weight + INT8_GROUP * j * LANES);
        for (int i = 0; i < count; i++) {
            ADD_INT8_PRODUCTS(sums[i], x + (i * groups + k) * 4, columns);
        }
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) results[i][j] = (Ints)sums[i][j];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < NR_VECTORS; j++) {
            int64_t column = panel * NR + j * LANES;
            if (column < layer->out_width) dequantize(call, results[i][j], row + i, column);
        }
}

// Round rows to 8 bits by the largest magnitude of each.
static void quantize_rows(const float *x, int64_t rows, int64_t width,
                          const QuantizedRows *quantized) {
    typedef Quantized Register __attribute__((vector_size(sizeof(Quantized) * LANES), aligned(1)));
    int64_t depth = int8_groups(width) * INT8_GROUP;
    Quantized *to = quantized->numbers;
    for (int64_t row = 0; row < rows; row++, x += width, to += depth) {
        Floats magnitudes = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            magnitudes = max_lanes(magnitudes, (Floats)((Ints)load(x + i) & INT32_MAX));
        float largest = reduce_max(magnitudes);
        for (; i < width; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        if (largest < 1e-30f) largest = 1e-30f;
        quantized->largest[row] = largest;
        float factor = 127.0f / largest;
        for (i = 0; i + LANES <= width; i += LANES) {
#if LANES == 16  // to nearest, ties to even
            Ints whole = (Ints)_mm512_cvtps_epi32((__m512)(load(x + i) * factor)) + 128;
#else
            Ints whole = (Ints)_mm256_cvtps_epi32((__m256)(load(x + i) * factor)) + 128;
#endif
            *(Register *)(to + i) = __builtin_convertvector(whole & 255, Register);
        }
        for (; i < width; i++) to[i] = (uint8_t)(128 + (int)nearbyintf(x[i] * factor));
        for (; i < depth; i++) to[i] = 128;
    }
}
#else
ALWAYS_INLINE void int8_micro_kernel(const LinearCall *call, int64_t row, int64_t panel,
                                     int count) {
    (void)call, (void)row, (void)panel, (void)count;
}
#endif

#if HAS_AMX
#include "linear_amx.h"
#endif

// All rows times some panels: a panel stays in the cache meanwhile.
ALWAYS_INLINE void multiply_panels(const LinearCall *call, int64_t first, int64_t stop,
                                   int is_int8) {
#define MICRO_KERNEL(count)                                             \
    do {                                                                \
        if (is_int8) int8_micro_kernel(call, row, panel, count);        \
        else f32_micro_kernel(call, row, panel, count);                 \
    } while (0)
    for (int64_t panel = first; panel < stop; panel++) {
        int64_t row = 0;
        for (; row + MR <= call->rows; row += MR) MICRO_KERNEL(MR);
        switch (call->rows - row) {
            case 5: MICRO_KERNEL(5); break;
            case 4: MICRO_KERNEL(4); break;
            case 3: MICRO_KERNEL(3); break;
            case 2: MICRO_KERNEL(2); break;
            case 1: MICRO_KERNEL(1); break;
        }
    }
#undef MICRO_KERNEL
}

static void linear_panels(void *data, int64_t first, int64_t stop) {
    const LinearCall *call = data;
#if HAS_AMX
    if (call->quantized && call->rows >= AMX_MIN_ROWS) {
        multiply_panels_amx(call, first, stop);
        return;
    }
#endif
    if (HAS_INT8 && call->quantized) multiply_panels(call, first, stop, 1);
    else multiply_panels(call, first, stop, 0);
}

static void linear(const Linear *layer, const float *x, int64_t rows, float *y, int relu,
                   const float *added, const QuantizedRows *quantized) {
    LinearCall call = {layer, x, 0, rows, y, relu, added};
#if HAS_INT8
    if (layer->scale) {
        quantize_rows(x, rows, layer->in_width, quantized);
        call.quantized = quantized;
    }
#else
    (void)quantized;
#endif
    int64_t work = rows * layer->in_width * NR + 1;
    parallel_for(linear_panels, &call, ceil_div(layer->out_width, NR), grain_for(work, 1 << 19));
}
