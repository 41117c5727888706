// What a processor computes at every step of decoding, in few passes over memory.
//
// One file for all processors: `level.h` holds the functions and is read once for each set of
// instructions; which of them runs is decided when the library is loaded. Matrices are float32 and
// row-major; weights are laid out in panels, see `level.h`.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define BEGIN_TARGET(names) _Pragma("GCC push_options") _Pragma(names)
#define END_TARGET _Pragma("GCC pop_options")
#endif

typedef struct {
    const void *panels;       // the weight, laid out by `pack_float` or `pack_int8`
    const float *bias;        // [N], or null
    const float *scale;       // [N] of an 8-bit weight: largest of a row / 127²; else null
    const int32_t *correction;  // [N] of an 8-bit weight: 128 · sum of a row
    int64_t in_width;         // K
    int64_t out_width;        // N
} Linear;

typedef struct {
    const float *weight;  // [D]
    const float *bias;    // [D]; null for a root mean square norm
    float epsilon;
} Norm;

enum { RELU, SILU, GELU, GELU_TANH, NO_ACTIVATION };

typedef struct {
    Linear projection;   // queries, keys and values; of cross-attention, queries
    Linear output;
    Norm norm;
    int64_t heads;
    int64_t key_heads;
    int64_t head_width;  // E
    float scale;         // of the scores
} AttentionLayer;

typedef struct {
    AttentionLayer self;
    AttentionLayer cross;  // unused where `has_cross` is 0
    Linear up;
    Linear gate;  // unused where `gated` is 0
    Linear down;
    Norm norm;
    int64_t width;  // D
    int32_t norm_first;
    int32_t has_cross;
    int32_t gated;
    int32_t activation;
} Layer;

typedef struct {
    const float *queries;  // the row of batch b, query i and head h begins at b·qb + i·qi + h·E
    int64_t query_batch, query_row;
    const float *keys;  // of batch b, key head h and slot s at b·kb + h·kh + s·ks
    int64_t key_batch, key_head, key_slot;
    const float *values;  // the same
    int64_t value_batch, value_head, value_slot;
    const uint8_t *visible;  // [B or 1, Lq or 1, Lk] by these strides; null where all is seen
    int64_t visible_batch, visible_query;
    const float *bias;  // [B or 1, H, Lq, Lk] by these strides; or null
    int64_t bias_batch, bias_head, bias_query;
    float *weights;  // [B, H, Lq, Lk], to be shown; null where nobody asks
    int64_t batch, num_queries, num_keys;
    // [B + 1] where the rows of each sentence begin, which come without padding and stand for the
    // first of its num_queries or num_keys; or null
    const int64_t *query_rows, *key_rows;
    int64_t weights_suffice;  // whether nothing that comes after them is needed
} Seen;

typedef struct {
    void *at;  // null where there are none
    int64_t is_half;  // bfloat16, not float32
} Numbers;

typedef struct {
    uint64_t seed;
    uint32_t least;  // what a random number below is dropped; 0 drops nothing
    float scale;     // of what is kept
} Drop;

typedef struct {
    Numbers y, sum;  // given
    Numbers x, change;
    float *weight, *bias;  // [D] of the norm
} ResidualGradients;

typedef struct {
    Numbers x, change, sum, y;
    const Norm *norm;
    Drop drop;
    float *statistics;  // [R, 2]: of a row what is taken away, and what it is multiplied with then
    int64_t rows, width;
} Residual;

// A tensor [B, heads, rows, E] whose number e stands at b·batch + h·head + r·row + e.
typedef struct {
    Numbers numbers;
    int64_t batch, head, row;
} Rows;

typedef struct {
    Rows q, k, v;
    Rows out;                   // what is found; of gradients, the gradient of that
    Rows for_q, for_k, for_v;   // gradients
    const uint8_t *visible;     // [B or 1, H or 1, Lq, Lk] by these strides; null where all is seen
    int64_t visible_batch, visible_head, visible_query;
    // [B + 1] where the rows of each sequence begin, if they come without padding: then each has as
    // many as there are up to the next, and num_queries and num_keys are the most; or null
    const int64_t *query_starts, *key_starts;
    // [B, H, 2, Lq]: of queries the largest score, and what exponentials are multiplied with
    float *statistics;
    float *room;
    int64_t batch, heads, key_heads, num_queries, num_keys, width;
    float scale;
} Attended;

// A matrix whose number (i, j) stands at i·row + j·column.
typedef struct {
    Numbers numbers;
    int64_t row, column;
} Matrix;

// What becomes of a product of depth K: out [M, N].
typedef struct {
    Numbers out;
    Numbers gate;       // [M, N]: where it is zero or less, the result is zero; or null
    // [M, N] or null: of the activation, written with it; without one the result is multiplied by them
    Numbers slopes;
    const float *bias;  // [N], or null
    int64_t rows, depth, width;
    int32_t halves;     // whether bfloat16 numbers are multiplied
    int32_t activation;
    int32_t adds;       // to what `out`, in float32, holds already
} Production;

static float read_one(Numbers from, int64_t i) {
    if (!from.is_half) return ((const float *)from.at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)from.at)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline void fetch(Matrix of, int64_t i, int64_t j) {
    int64_t size = of.numbers.is_half ? 2 : 4;
    __builtin_prefetch((const char *)of.numbers.at + (i * of.row + j * of.column) * size);
}

// To the nearest, ties to the even one; what is no number stays none.
static uint32_t half_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static void write_one(Numbers to, int64_t i, float x) {
    if (to.is_half) ((uint16_t *)to.at)[i] = (uint16_t)half_bits(x);
    else ((float *)to.at)[i] = x;
}

// Threads are those of the OpenMP that PyTorch has loaded; without one there is one thread.
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

typedef void (*Work)(void *data, int64_t first, int64_t stop);
typedef struct {
    Work work;
    void *data;
    int64_t count, least, taken;
} Shared;

// Threads take what is left piece by piece, ever smaller ones, so that they end together though one
// may be slower or interrupted.
static void take_shares(void *given) {
    Shared *shared = given;
    int64_t all = omp_get_num_threads();
    int64_t first = __atomic_load_n(&shared->taken, __ATOMIC_RELAXED);
    while (first < shared->count) {
        int64_t left = shared->count - first, size = left / (2 * all);
        if (size < shared->least) size = shared->least;
        if (size > left) size = left;
        if (!__atomic_compare_exchange_n(&shared->taken, &first, first + size, 0, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            continue;
        shared->work(shared->data, first, first + size);
        first = __atomic_load_n(&shared->taken, __ATOMIC_RELAXED);
    }
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t fewer(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t threads(void) {
    return GOMP_parallel && omp_get_max_threads && omp_get_thread_num && omp_get_num_threads
        ? omp_get_max_threads() : 1;
}

// Do `count` pieces of work, at least `least` of them in a thread.
static void share(Work work, void *data, int64_t count, int64_t least) {
    int64_t used = threads();
    if (used > count / least) used = count / least;
    if (used <= 1) {
        work(data, 0, count);
        return;
    }
    Shared shared = {work, data, count, most(least, count / (32 * used)), 0};
    GOMP_parallel(take_shares, &shared, (unsigned)used, 0);
}

// Tiles of a group: as many as `most`, and fewer where each thread can have as many groups of them as
// another.
static int64_t even_tiles(int64_t tiles, int64_t most) {
    int64_t used = threads(), rounds = (tiles + used * most - 1) / (used * most);
    return (tiles + used * rounds - 1) / (used * rounds);
}

// Memory for what passes, which the caller gives: it is freed, counted and may run out as all other
// memory of the caller's does.
typedef struct {
    char *memory;  // null while only the size is wanted
    size_t size;
    float *normed, *mixed, *queries, *inner, *gate, *scores, *largest;
    void *rounded;
} Workspace;

static void *take(Workspace *space, int64_t bytes) {
    char *found = space->memory ? space->memory + space->size : 0;
    space->size += (size_t)(bytes + 63) / 64 * 64;
    return found;
}

#define CHUNKS 16  // of rows whose gradients are summed apart, whatever the number of threads

#define GROUP 4  // queries that go through the keys together

static int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

static int level = -1;  // which set of instructions is used

// Of a linear layer, where the widest input has `width` numbers; two bytes for each without
// instructions for 8 bits.
static void lay_out_rounding(Workspace *space, int is_int8, int64_t rows, int64_t width) {
    space->rounded = take(space, is_int8 ? rows * padded(width) * (level < 2 ? 2 : 1) : 0);
    space->largest = take(space, is_int8 ? rows * 4 : 0);
}

static void lay_out(Workspace *space, const Layer *layer, int64_t rows, int64_t num_keys) {
    int64_t width = layer->width, row = rows * (int64_t)sizeof(float);
    int64_t mixed = most(layer->self.output.in_width,
                         layer->has_cross ? layer->cross.output.in_width : 0);
    int64_t inner = layer->up.out_width;
    space->normed = take(space, layer->norm_first ? row * width : 0);
    space->mixed = take(space, row * mixed);
    space->queries = take(space, layer->has_cross ? row * layer->cross.projection.out_width : 0);
    space->inner = take(space, row * inner);
    space->gate = take(space, layer->gated ? row * inner : 0);
    space->scores = take(space, threads() * GROUP * padded(num_keys) * 4);
    lay_out_rounding(space, layer->up.scale != 0, rows, most(most(width, mixed), inner));
}

// Fetch what will be written, rows of so many bytes, while the sums are not there yet.
static inline void expect(const void *first, int64_t rows, int64_t row_step, int64_t bytes) {
    const char *at = first;
    for (int64_t row = 0; row < rows; row++, at += row_step)
        for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 1, 3);
}

#if defined(__x86_64__) && defined(BEGIN_TARGET)

#if defined(__linux__) && __GNUC__ > 10  // a system that keeps their contents, an assembler
#define WITH_TILES 1
#else
#define WITH_TILES 0
#endif

#define HAS_INT8 1
#define HAS_TILES WITH_TILES
#define LANES 16
#define ROWS 6
#define PANEL 4
#define NAME(name) name##_avx512
BEGIN_TARGET("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma\")")
#include "level.h"
END_TARGET
#undef HAS_TILES
#undef LANES
#undef PANEL
#undef NAME

#define HAS_TILES 0
#define LANES 8
#define PANEL 2
#define NAME(name) name##_avx2
BEGIN_TARGET("GCC target(\"avx2,fma\")")
#include "level.h"
END_TARGET
#undef HAS_INT8
#undef LANES
#undef ROWS
#undef PANEL
#undef NAME

#define CALL(name, arguments) (level >= 2 ? name##_avx512 arguments : name##_avx2 arguments)

#if WITH_TILES
// Whether there are registers for matrices (AMX), and the system keeps them for this process.
static int has_tiles(void) {
    unsigned a, b, c, d = 0, wanted = bit_AMX_TILE | bit_AMX_BF16 | bit_AMX_INT8;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return 0;
    return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* their contents */);
}
#define CALL_PRODUCT(name, halves, arguments) \
    (level < 3 ? CALL(name, arguments)                                                           \
     : (halves) ? tiled_##name##_avx512 arguments : digits_##name##_avx512 arguments)
#else
static int has_tiles(void) { return 0; }
#endif

static int best_level(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vnni"))
        return has_tiles() ? 3 : 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}

static int multiplies_halves(void) {
    return level != 2 || __builtin_cpu_supports("avx512bf16");
}

#elif defined(__aarch64__)

#define HAS_INT8 0
#define HAS_TILES 0
#define LANES 4
#define ROWS 6
#define PANEL 4
#define NAME(name) name##_neon
#include "level.h"
#define CALL(name, arguments) (name##_neon arguments)

static int best_level(void) { return 1; }
static int multiplies_halves(void) { return 0; }

#else
#error "no kernels for this processor or compiler"
#endif

#ifndef CALL_PRODUCT
#define CALL_PRODUCT(name, halves, arguments) CALL(name, arguments)
#endif

// Choose the set of instructions: 3 has registers for matrices, 2 has products of 8 bits, 1 (AVX2 or
// NEON) neither, 0 is none. Not above `most`.
int heedful_begin(int most) {
    int best = best_level();
    level = most < best ? most : best;
    return level;
}

// How many float32 numbers a register holds.
int heedful_lanes(void) { return CALL(lanes, ()); }

// Numbers (float32) or bytes (8 bits) of a weight [N, K] laid out in panels.
int64_t heedful_packed(int64_t in_width, int64_t out_width, int is_int8) {
    return CALL(packed_size, (in_width, out_width, is_int8));
}

void heedful_pack_float(const float *weight, int64_t in_width, int64_t out_width, float *panels) {
    CALL(pack_float, (weight, in_width, out_width, panels));
}

void heedful_pack_int8(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *panels) {
    CALL(pack_int8, (weight, in_width, out_width, panels));
}

// Bytes of workspace for a linear layer, and for either part of a whole layer.
int64_t heedful_linear_room(const Linear *layer, int64_t rows) {
    Workspace space = {.memory = 0};
    lay_out_rounding(&space, layer->scale != 0, rows, layer->in_width);
    return (int64_t)space.size;
}

int64_t heedful_layer_room(const Layer *layer, int64_t rows, int64_t num_keys) {
    Workspace space = {.memory = 0};
    lay_out(&space, layer, rows, num_keys);
    return (int64_t)space.size;
}

// y [rows, N] = x [rows, K] · weightᵀ + bias, then its rectifier if asked for.
void heedful_linear(const Linear *layer, const float *x, int64_t rows, float *y, int rectify,
                    char *workspace) {
    Workspace space = {.memory = workspace};
    lay_out_rounding(&space, layer->scale != 0, rows, layer->in_width);
    CALL(linear, (layer, x, rows, y, rectify, 0, &space));
}

// y [rows, D] of x [rows, D], which it may take the place of.
void heedful_normalise(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y) {
    CALL(normalise, (norm, x, rows, width, y));
}

// projected [rows, queries + keys + values] of a layer's input x [rows, D].
void heedful_project(const Layer *layer, const float *x, int64_t rows, float *projected,
                     char *workspace) {
    Workspace space = {.memory = workspace};
    lay_out(&space, layer, rows, 0);
    CALL(project, (layer, x, rows, projected, &space));
}

// The rest of a layer, after keys and values have found their place: y [rows, D], which holds
// nothing of use where weights suffice.
void heedful_layer(const Layer *layer, const float *x, int64_t rows, const Seen *self,
                   const Seen *cross, float *y, char *workspace) {
    Workspace space = {.memory = workspace};
    lay_out(&space, layer, rows, most(self->num_keys, cross ? cross->num_keys : 0));
    CALL(rest, (layer, x, rows, self, cross, y, &space));
}

// sum = x + dropout(change) and y = norm(sum), of [R, D] each. Without `change` the sum is x and is
// not written; without `weight` there is no y. A pointer is followed by whether it is to bfloat16.
void heedful_residual(int64_t rows, int64_t width, void *x, int x_half, void *change,
                      int change_half, void *sum, void *y, int y_half, const float *weight,
                      const float *bias, float epsilon, float *statistics, int64_t seed,
                      uint32_t least, float scale) {
    Norm norm = {weight, bias, epsilon};
    Residual of = {
        .x = {x, x_half}, .change = {change, change_half}, .sum = {sum, x_half && change_half},
        .y = {y, y_half}, .norm = weight ? &norm : 0, .drop = {(uint64_t)seed, least, scale},
        .statistics = statistics, .rows = rows, .width = width,
    };
    CALL(residual, (&of));
}

// Gradients of x and of `change`, where there is room for them, and of the norm, from that of the sum
// (or null) and, where there is a norm, that of y; `partial` is room for 2 · 16 · D numbers. The sum
// is x where nothing was added.
void heedful_residual_back(int64_t rows, int64_t width, void *for_sum, int for_sum_half,
                           void *for_y, int for_y_half, void *sum, int sum_half,
                           const float *weight, const float *bias, float *statistics,
                           int64_t seed, uint32_t least, float scale, void *x, int x_half,
                           void *change, int change_half, float *for_weight, float *for_bias,
                           float *partial) {
    Norm norm = {weight, bias, 0.0f};
    Residual of = {
        .x = {sum, sum_half}, .norm = weight ? &norm : 0, .drop = {(uint64_t)seed, least, scale},
        .statistics = statistics, .rows = rows, .width = width,
    };
    ResidualGradients back = {
        .y = {for_y, for_y_half}, .sum = {for_sum, for_sum_half}, .x = {x, x_half},
        .change = {change, change_half}, .weight = for_weight, .bias = for_bias,
    };
    CALL(residual_back, (&of, &back, partial));
}

// Numbers of room that attention or its gradients need.
int64_t heedful_attended_room(const Attended *of) { return CALL(attended_room, (of)); }

void heedful_attended(Attended *of, int back) { CALL(attended, (of, back)); }

// Whether products of bfloat16 numbers are worth computing here, and if so by registers for matrices.
int heedful_multiplies_halves(void) { return multiplies_halves(); }
int heedful_has_tiles(void) { return level == 3; }

// Units of four bytes of a right side [K, N] laid out in panels, and laying it out. Its number (i, j)
// stands at i·row + j·column.
int64_t heedful_right_units(int64_t depth, int64_t width, int halves) {
    return CALL_PRODUCT(right_units, halves, (depth, width, halves));
}

void heedful_lay_right(void *right, int is_half, int64_t row, int64_t column, int64_t depth,
                       int64_t width, int halves, uint32_t *panels) {
    Matrix from = {{right, is_half}, row, column};
    CALL_PRODUCT(lay_right, halves, (from, depth, width, halves, panels));
}

// Numbers of room for a product [M, K] · [K, N], or for one whose left side is turned, [K, M].
int64_t heedful_product_room(int64_t rows, int64_t depth, int64_t width, int halves, int out_is_half,
                             int turned) {
    Production to = {
        .out = {0, out_is_half}, .rows = rows, .depth = depth, .width = width, .halves = halves,
    };
    return CALL_PRODUCT(product_room, halves, (&to, turned));
}

// out = left [M, K] · right, laid out in panels, and what follows it: see Production. A pointer is
// followed by whether it is to bfloat16.
void heedful_product(void *out, int out_half, void *left, const uint32_t *panels, int64_t rows,
                     int64_t depth, int64_t width, int halves, const float *bias, int activation,
                     void *slopes, int slopes_half, void *gate, int gate_half, float *room) {
    Production to = {
        .out = {out, out_half}, .gate = {gate, gate_half}, .slopes = {slopes, slopes_half},
        .bias = bias, .rows = rows, .depth = depth, .width = width, .halves = halves,
        .activation = activation,
    };
    Matrix from = {{left, halves}, depth, 1};
    CALL_PRODUCT(product, halves, (&to, from, panels, room));
}

// out [M, N] = leftᵀ · right, of [K, M] and [K, N], or that much more, and sums [M] of the left side's
// columns, or null.
void heedful_turned_product(float *out, void *left, void *right, int64_t rows, int64_t depth,
                            int64_t width, int halves, int adds, float *sums, float *room) {
    Production to = {
        .out = {out, 0}, .rows = rows, .depth = depth, .width = width, .halves = halves,
        .activation = NO_ACTIVATION, .adds = adds,
    };
    Matrix from = {{left, halves}, rows, 1}, other = {{right, halves}, width, 1};
    CALL_PRODUCT(turned_product, halves, (&to, from, other, sums, room));
}

#include "sublayer.h"
#include "step.h"

// What callers must agree on; compare `library.py`.
int heedful_layout(void) {
    return 1000 * (int)sizeof(Layer)
        + (int)(sizeof(Seen) + sizeof(Pass) + sizeof(Attended) + sizeof(Sublayer));
}
