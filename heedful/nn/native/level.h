// Kernels for one set of instructions: see `kernels.c`, which defines LANES (float32 numbers of a
// register), ROWS and PANEL (rows and registers of columns of a product that are held in registers),
// HAS_INT8 and NAME. A panel holds PANEL · LANES rows of a weight [N, K]: for every k, their k-th
// numbers side by side; in 8 bits, for every AT_ONCE k, whose products one instruction adds. What is
// missing to a whole panel is zero.

typedef float NAME(Floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(Ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define Floats NAME(Floats)
#define Ints NAME(Ints)
#define WIDTH (PANEL * LANES)
#if HAS_INT8
#if LANES == 16
#define AT_ONCE 4
typedef uint8_t NAME(Rounded);  // 128 more than a number rounded to 8 bits
#else
#define AT_ONCE 2
typedef int16_t NAME(Rounded);  // the same, as wide as these processors multiply without saturation
#endif
#define Rounded NAME(Rounded)
typedef int32_t NAME(Some) __attribute__((aligned(1), may_alias));  // AT_ONCE of them
#else
#define AT_ONCE 1
#endif

static inline Floats NAME(load)(const float *from) { return *(const Floats *)from; }
static inline void NAME(store)(float *to, Floats x) { *(Floats *)to = x; }
static inline Floats NAME(every)(float x) {
    Floats zero = {0};
    return x - zero;  // which is x whatever its sign, so that compilers only copy it to all lanes
}
static inline Floats NAME(choose)(Ints where, Floats a, Floats b) {
    return (Floats)((where & (Ints)a) | (~where & (Ints)b));
}
// The larger of two, and b where either is no number.
#if LANES == 16
static inline Floats NAME(larger)(Floats a, Floats b) {
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
}
#else
static inline Floats NAME(larger)(Floats a, Floats b) { return NAME(choose)(a > b, a, b); }
#endif
#if LANES == 16
static inline float NAME(sum)(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float NAME(largest)(Floats x) { return _mm512_reduce_max_ps((__m512)x); }
#else
static inline float NAME(sum)(Floats x) {
    float each[LANES];
    memcpy(each, &x, sizeof each);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) each[i] += each[i + half];
    return each[0];
}
static inline float NAME(largest)(Floats x) {
    float found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
}
#endif

// eˣ to about 1e-7 of itself, of x from −87.3 to 88.3.
static inline Floats NAME(power)(Floats x) {
    const float magic = 12582912.0f;  // adding it rounds to an integer
    Floats shifted = x * 1.44269504f + magic;
    Floats n = shifted - magic;
    Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = NAME(every)(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (Floats)(((Ints)shifted - (Ints)NAME(every)(magic) + 127) << 23);
}

// The same of any x; 0 below the smallest normal number.
static inline Floats NAME(exponential)(Floats x) {
    Floats tiny = NAME(every)(-87.3f), huge = NAME(every)(88.3f);
    Ints under = x < tiny;
    x = NAME(choose)(under, tiny, x);
    x = NAME(choose)(x > huge, huge, x);
    return (Floats)((Ints)NAME(power)(x) & ~under);
}

// About 1 / x, to float32's last digit or two; of x at least one.
static inline Floats NAME(inverse)(Floats x) {
#if LANES == 16
    Floats near = (Floats)_mm512_rcp14_ps((__m512)x);
    __mmask16 nearer = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(INFINITY), _CMP_NEQ_UQ);
    return (Floats)_mm512_mask_mov_ps((__m512)near, nearer,
                                      (__m512)(near + near * (1.0f - x * near)));
#else
    return 1.0f / x;
#endif
}

// An activation, and its slope where there is room for it; the rectifier's is not given. What is no
// number stays none.
static inline Floats NAME(activate)(int kind, Floats x, Floats *slope) {
    if (kind == RELU) return NAME(larger)(NAME(every)(0.0f), x);
    if (kind == GELU) {  // x · Φ(x) = ½x(1 + erf(x/√2)), erf by Abramowitz and Stegun 7.1.26
        Floats a = (Floats)((Ints)x & INT32_MAX);
        Floats bell = NAME(power)(NAME(larger)(NAME(every)(-87.0f), a * a * -0.5f));
        Floats t = NAME(inverse)(1.0f + a * 0.23164189f);
        Floats p = NAME(every)(0.5307027145f);
        p = p * t - 0.7265760135f;
        p = p * t + 0.7107068705f;
        p = p * t - 0.142248368f;
        p = (p * t + 0.1274147960f) * t * bell;  // Φ(−|x|)
        Floats below = 0.5f + (Floats)(((Ints)x & INT32_MIN) | (Ints)(0.5f - p));
        if (slope) *slope = below + x * bell * 0.39894228f;
        return x * below;
    }
    // x / (1 + e^−u): the first u is x, the other's is 2√(2/π)(x + 0.044715x³)
    Floats squared = x * x, u = x;
    if (kind == GELU_TANH) u = x * (1.0f + squared * 0.044715f) * 1.5957691f;
    Floats part = NAME(inverse)(1.0f + NAME(exponential)(-u)), y = x * part;
    if (slope) {
        Floats steep = y - y * part;
        if (kind == GELU_TANH) steep *= (1.0f + squared * 0.134145f) * 1.5957691f;
        *slope = part + steep;
    }
    return y;
}

// To the nearest integers, ties to the even one.
#if LANES == 16
static inline Ints NAME(nearest)(Floats x) { return (Ints)_mm512_cvtps_epi32((__m512)x); }
#elif LANES == 8
static inline Ints NAME(nearest)(Floats x) { return (Ints)_mm256_cvtps_epi32((__m256)x); }
#endif

static int NAME(lanes)(void) { return LANES; }

// Up to whole registers.
static int64_t NAME(filled)(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// In how many steps products of 8 bits go through a row.
static inline int64_t NAME(steps)(int64_t in_width) { return (in_width + AT_ONCE - 1) / AT_ONCE; }

static int64_t NAME(packed_size)(int64_t in_width, int64_t out_width, int is_int8) {
    int64_t depth = is_int8 ? NAME(steps)(in_width) * AT_ONCE : in_width;
    return (out_width + WIDTH - 1) / WIDTH * WIDTH * depth;
}

static void NAME(pack_float)(const float *weight, int64_t in_width, int64_t out_width, float *to) {
    for (int64_t first = 0; first < out_width; first += WIDTH)
        for (int64_t k = 0; k < in_width; k++)
            for (int64_t n = first; n < first + WIDTH; n++)
                *to++ = n < out_width ? weight[n * in_width + k] : 0.0f;
}

static void NAME(pack_int8)(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *to) {
    for (int64_t first = 0; first < out_width; first += WIDTH)
        for (int64_t k = 0; k < in_width; k += AT_ONCE)
            for (int64_t n = first; n < first + WIDTH; n++)
                for (int64_t i = k; i < k + AT_ONCE; i++)
                    *to++ = n < out_width && i < in_width ? weight[n * in_width + i] : 0;
}

// Products of linear layers ---------------------------------------------------------------------

typedef struct {
    const Linear *layer;
    const float *x;          // [rows, K]
    const void *rounded;     // [rows, K'] of 8 bits, as `Rounded`
    const float *largest;    // [rows] of 8 bits
    int64_t rows;
    float *y;
    int rectify;
    const float *added;  // [rows, N], or null
} NAME(Product);
#define Product NAME(Product)

// What becomes of one register of products: bias, rectifier, what is to be added.
static inline void NAME(finish)(const Product *given, Floats y, int64_t row, int64_t column) {
    const Linear *layer = given->layer;
    int64_t left = layer->out_width - column;
    float *to = given->y + row * layer->out_width + column;
    if (left >= LANES) {
        if (given->rectify) y = NAME(larger)(y, NAME(every)(0.0f));
        if (given->added) y += NAME(load)(given->added + row * layer->out_width + column);
        NAME(store)(to, y);
        return;
    }
    for (int64_t i = 0; i < left; i++) {
        float one = y[i];
        if (given->rectify && !(one > 0.0f)) one = 0.0f;
        if (given->added) one += given->added[row * layer->out_width + column + i];
        to[i] = one;
    }
}

static inline Floats NAME(piece)(const float *of, int64_t column, int64_t size) {
    if (size - column >= LANES) return NAME(load)(of + column);
    Floats found = {0};
    for (int64_t i = 0; i < size - column; i++) found[i] = of[column + i];
    return found;
}

// The end of a tile: every register of columns that there are goes through `finish`. What has an
// address is not held in registers, so the sums are copied out before anything is called with them.
#define TAKE_OUT(Register, finish, count)                                            \
    Register done[count][PANEL];                                                     \
    for (int i = 0; i < count; i++)                                                  \
        for (int j = 0; j < PANEL; j++) done[i][j] = (Register)held[i][j];           \
    for (int i = 0; i < count; i++)                                                  \
        for (int j = 0; j < PANEL; j++) {                                            \
            int64_t column = panel * WIDTH + j * LANES;                              \
            if (column < layer->out_width)                                           \
                NAME(finish)(given, done[i][j], row + i, column);                    \
        }

#define FLOAT_TILE(count)                                                                        \
    static inline __attribute__((always_inline)) void NAME(float_tile##count)(                   \
        const Product *given, int64_t row, int64_t panel) {                                      \
        const Linear *layer = given->layer;                                                      \
        int64_t depth = layer->in_width;                                                         \
        const float *weight = (const float *)layer->panels + panel * depth * WIDTH;              \
        const float *x = given->x + row * depth;                                                 \
        Floats held[count][PANEL];                                                               \
        for (int i = 0; i < count; i++)                                                          \
            for (int j = 0; j < PANEL; j++) {                                                    \
                int64_t column = panel * WIDTH + j * LANES;                                      \
                Floats zero = {0};                                                               \
                held[i][j] = layer->bias && column < layer->out_width                            \
                    ? NAME(piece)(layer->bias, column, layer->out_width) : zero;                 \
            }                                                                                    \
        for (int64_t k = 0; k < depth; k++, weight += WIDTH) {                                   \
            Floats columns[PANEL];                                                               \
            for (int j = 0; j < PANEL; j++) columns[j] = NAME(load)(weight + j * LANES);         \
            for (int i = 0; i < count; i++) {                                                    \
                Floats one = NAME(every)(x[i * depth + k]);                                      \
                for (int j = 0; j < PANEL; j++) held[i][j] += one * columns[j];                  \
            }                                                                                    \
        }                                                                                        \
        TAKE_OUT(Floats, finish, count)                                                          \
    }
FLOAT_TILE(1) FLOAT_TILE(2) FLOAT_TILE(3) FLOAT_TILE(4) FLOAT_TILE(5) FLOAT_TILE(6)
#undef FLOAT_TILE

#if HAS_INT8
// Integer products as numbers again.
static inline void NAME(scale_back)(const Product *given, Ints products, int64_t row,
                                    int64_t column) {
    const Linear *layer = given->layer;
    Ints extra = (Ints)NAME(piece)((const float *)layer->correction, column, layer->out_width);
    Floats y = __builtin_convertvector(products - extra, Floats), zero = {0};
    Floats bias = layer->bias ? NAME(piece)(layer->bias, column, layer->out_width) : zero;
    y = y * given->largest[row] * NAME(piece)(layer->scale, column, layer->out_width) + bias;
    NAME(finish)(given, y, row, column);
}

// Add products of the AT_ONCE numbers at `from` and those of the columns. Compilers are not asked: GCC
// 12 copies sums through memory, with 8 bits every one, with 16 those that want for a register.
#if LANES == 16
#define Codes __m512i
static inline Codes NAME(codes)(const int8_t *from) { return _mm512_loadu_si512(from); }
#define ADD_PRODUCTS(sums, from, columns)                                                  \
    __m512i one = _mm512_set1_epi32(*(const NAME(Some) *)(from));                          \
    for (int j = 0; j < PANEL; j++)                                                        \
        __asm__("vpdpbusd %2, %1, %0" : "+v"((sums)[j]) : "v"(one), "v"((columns)[j]))
#else
#define Codes __m256i
static inline Codes NAME(codes)(const int8_t *from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
}
#define ADD_PRODUCTS(sums, from, columns)                                                  \
    __m256i one, other;                                                                    \
    __asm__("vpbroadcastd %4, %2\n\t"                                                      \
            "vpmaddwd %5, %2, %3\n\t"                                                      \
            "vpmaddwd %6, %2, %2\n\t"                                                      \
            "vpaddd %3, %0, %0\n\t"                                                        \
            "vpaddd %2, %1, %1"                                                            \
            : "+x"((sums)[0]), "+x"((sums)[1]), "=&x"(one), "=&x"(other)                   \
            : "m"(*(const NAME(Some) *)(from)), "x"((columns)[0]), "x"((columns)[1]))
#endif

#define INT8_TILE(count)                                                                         \
    static inline __attribute__((always_inline)) void NAME(int8_tile##count)(                    \
        const Product *given, int64_t row, int64_t panel) {                                      \
        const Linear *layer = given->layer;                                                      \
        int64_t steps = NAME(steps)(layer->in_width);                                            \
        const int8_t *weight =                                                                   \
            (const int8_t *)layer->panels + panel * steps * AT_ONCE * WIDTH;                     \
        const char *x = (const char *)given->rounded + row * steps * 4;                          \
        Codes held[count][PANEL];                                                                \
        for (int i = 0; i < count; i++)                                                          \
            for (int j = 0; j < PANEL; j++) held[i][j] = (Codes){0};                             \
        for (int64_t k = 0; k < steps; k++, weight += AT_ONCE * WIDTH) {                         \
            Codes columns[PANEL];                                                                \
            for (int j = 0; j < PANEL; j++)                                                      \
                columns[j] = NAME(codes)(weight + AT_ONCE * j * LANES);                          \
            for (int i = 0; i < count; i++) {                                                    \
                ADD_PRODUCTS(held[i], x + (i * steps + k) * 4, columns);                         \
            }                                                                                    \
        }                                                                                        \
        TAKE_OUT(Ints, scale_back, count)                                                        \
    }
INT8_TILE(1) INT8_TILE(2) INT8_TILE(3) INT8_TILE(4) INT8_TILE(5) INT8_TILE(6)
#undef INT8_TILE
#undef ADD_PRODUCTS
#undef Codes
#endif

#undef TAKE_OUT

#if HAS_TILES
#include "matrices.h"

#define FEWEST_ROWS 8  // with fewer, sums wait for each other longer than in vectors

// Where integer products of a tile belong: those of some rows with some columns.
typedef struct {
    int64_t row, rows, column, columns;
} NAME(IntegerTile);

// What is done besides multiplying a tile: see `Besides` of product.h.
typedef struct {
    const Product *given;
    NAME(IntegerTile) before, now;
    const int32_t *sums;    // [rows, TILE_COLUMNS] of the tile before
    int64_t done, at_once;  // rows
    const char *next;       // units of the columns after these, which are fetched
    int64_t units, units_at_once;
} NAME(BesidesIntegers);

// Where the units of a tile's columns are, each WIDTH of them from the next.
static const char *NAME(columns_at)(const Linear *layer, int64_t column) {
    int64_t fours = NAME(steps)(layer->in_width);
    return (const char *)layer->panels + (column / WIDTH * fours * WIDTH + column % WIDTH) * 4;
}

static void NAME(do_besides_integers)(void *data) {
    NAME(BesidesIntegers) *of = data;
    const Product *given = of->given;
    NAME(IntegerTile) before = of->before, now = of->now;
    int64_t from = of->done, width = given->layer->out_width;
    of->done += of->at_once;
    int64_t rows = fewer(of->done, now.rows) - from;
    int64_t units = fewer(of->units, of->units_at_once);
    of->units -= units;
    for (; units; units--, of->next += WIDTH * 4)
        for (int64_t byte = 0; byte < TILE_COLUMNS * 4; byte += 64)
            __builtin_prefetch(of->next + byte, 0, 2);
    expect(given->y + (now.row + from) * width + now.column, rows, width * 4, now.columns * 4);
    for (int64_t i = from; i < fewer(of->done, before.rows); i++)
        for (int64_t n = 0; n < before.columns; n += LANES)
            NAME(scale_back)(given, *(const Ints *)(of->sums + i * TILE_COLUMNS + n),
                             before.row + i, before.column + n);
}

// Integer products of some panels with all rows.
static void NAME(multiply_integers)(const Product *given, int64_t first, int64_t stop) {
    const Linear *layer = given->layer;
    int64_t fours = NAME(steps)(layer->in_width), rows = given->rows;
    int64_t steps = (fours + STEP - 1) / STEP, height = fewer(rows, TILE_ROWS);
    int64_t end = fewer(stop * WIDTH, layer->out_width);
    int32_t rooms[2][TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64))), *sums = rooms[0];
    int64_t pieces = (rows + height - 1) / height * steps;
    NAME(BesidesIntegers) besides = {
        .given = given,
        .at_once = (height + steps - 1) / steps,
        .units_at_once = (fours + pieces - 1) / pieces,
    };
    Meanwhile meanwhile = {NAME(do_besides_integers), &besides};
    NAME(configure)(height, STEP);
    for (int64_t tile = first * WIDTH; tile < end; tile += TILE_COLUMNS) {
        int64_t columns = fewer(layer->out_width - tile, TILE_COLUMNS);
        besides.next = NAME(columns_at)(layer, tile + TILE_COLUMNS);
        besides.units = tile + TILE_COLUMNS < end ? fours : 0;
        for (int64_t row = 0; row < rows; row += height) {
            int64_t count = fewer(rows - row, height);
            if (count < height) NAME(configure)(count, STEP);
            besides.now = (NAME(IntegerTile)){row, count, tile, columns};
            besides.done = 0;
            NAME(multiply_matrices)(
                INTEGERS, count, (const char *)given->rounded + row * fours * 4, fours * 4, 4 * STEP,
                NAME(columns_at)(layer, tile), WIDTH * 4, fours, (char *)sums, TILE_COLUMNS * 4, 0,
                0, 0, meanwhile);
            besides.before = besides.now;
            besides.sums = sums;
            sums = rooms[sums == rooms[0]];
            if (count < height) NAME(configure)(height, STEP);
        }
    }
    besides.now.rows = besides.done = 0;
    besides.at_once = height;
    NAME(do_besides_integers)(&besides);
    NAME(release)();
}
#endif

// The products of some panels with all rows: a panel stays in the cache meanwhile.
static void NAME(multiply)(void *data, int64_t first, int64_t stop) {
    const Product *given = data;
#define ALL_ROWS(tile)                                                        \
    for (int64_t panel = first; panel < stop; panel++) {                      \
        int64_t row = 0;                                                      \
        for (; row + ROWS <= given->rows; row += ROWS) NAME(tile##6)(given, row, panel); \
        switch (given->rows - row) {                                          \
            case 5: NAME(tile##5)(given, row, panel); break;                  \
            case 4: NAME(tile##4)(given, row, panel); break;                  \
            case 3: NAME(tile##3)(given, row, panel); break;                  \
            case 2: NAME(tile##2)(given, row, panel); break;                  \
            case 1: NAME(tile##1)(given, row, panel); break;                  \
        }                                                                     \
    }
#if HAS_TILES
    if (given->rounded && level == 3 && given->rows >= FEWEST_ROWS) {
        NAME(multiply_integers)(given, first, stop);
        return;
    }
#endif
#if HAS_INT8
    if (given->rounded) {
        ALL_ROWS(int8_tile)
        return;
    }
#endif
    ALL_ROWS(float_tile)
#undef ALL_ROWS
}

#if HAS_INT8
// Round rows to 8 bits by the largest number of each.
static void NAME(round_rows)(const float *x, int64_t rows, int64_t width, Rounded *to,
                             float *largest) {
    typedef Rounded Register __attribute__((vector_size(sizeof(Rounded) * LANES), aligned(1)));
    int64_t depth = NAME(steps)(width) * AT_ONCE;
    for (int64_t row = 0; row < rows; row++, x += width, to += depth) {
        Floats most = {0};
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            most = NAME(larger)(most, (Floats)((Ints)NAME(load)(x + i) & INT32_MAX));
        float found = NAME(largest)(most);
        for (; i < width; i++) found = fabsf(x[i]) > found ? fabsf(x[i]) : found;
        if (found < 1e-30f) found = 1e-30f;
        largest[row] = found;
        float factor = 127.0f / found;
        for (i = 0; i + LANES <= width; i += LANES) {
            Ints whole = NAME(nearest)(NAME(load)(x + i) * factor) + 128;
            *(Register *)(to + i) = __builtin_convertvector(whole & 255, Register);
        }
        for (; i < width; i++) to[i] = (uint8_t)(128 + (int)nearbyintf(x[i] * factor));
        for (; i < depth; i++) to[i] = 128;
    }
}
#endif

static void NAME(linear)(const Linear *layer, const float *x, int64_t rows, float *y, int rectify,
                         const float *added, const Workspace *space) {
    Product given = {layer, x, 0, 0, rows, y, rectify, added};
#if HAS_INT8
    if (layer->scale) {
        NAME(round_rows)(x, rows, layer->in_width, space->rounded, space->largest);
        given.rounded = space->rounded;
        given.largest = space->largest;
    }
#else
    (void)space;
#endif
    int64_t panels = (layer->out_width + WIDTH - 1) / WIDTH;
    // A thread is woken in some microseconds, in which a core multiplies this much.
    int64_t work = rows * layer->in_width * WIDTH + 1, worth = 1 << 19;
    int64_t least = work < worth ? (worth + work - 1) / work : 1;
    share(NAME(multiply), &given, panels, least);
}

// Norms -----------------------------------------------------------------------------------------

static void NAME(normalise)(const Norm *norm, const float *x, int64_t rows, int64_t width,
                            float *y) {
    int64_t whole = width / LANES * LANES;
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        float mean = 0.0f;
        Floats sum = {0};
        if (norm->bias) {
            for (int64_t i = 0; i < whole; i += LANES) sum += NAME(load)(x + i);
            mean = NAME(sum)(sum);
            for (int64_t i = whole; i < width; i++) mean += x[i];
            mean /= (float)width;
        }
        Floats squares = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats apart = NAME(load)(x + i) - mean;
            squares += apart * apart;
        }
        float square = NAME(sum)(squares);
        for (int64_t i = whole; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
        float factor = 1.0f / sqrtf(square / (float)width + norm->epsilon);
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats z = (NAME(load)(x + i) - mean) * factor * NAME(load)(norm->weight + i);
            if (norm->bias) z += NAME(load)(norm->bias + i);
            NAME(store)(y + i, z);
        }
        for (int64_t i = whole; i < width; i++)
            y[i] = (x[i] - mean) * factor * norm->weight[i] + (norm->bias ? norm->bias[i] : 0.0f);
    }
}

// Attention -------------------------------------------------------------------------------------

typedef struct {
    const AttentionLayer *layer;
    const Seen *sight;
    float *mixed;   // [B · Lq, H · E]
    float *scores;  // [threads, GROUP, room of a row]
} NAME(Mixing);

// One head of one sentence.
typedef struct {
    int64_t batch, head, num_keys;
    int64_t mixed_row;     // of its first query among those of all sentences
    const float *queries;  // the first
    const float *keys, *values;
    float *scores;         // [GROUP, room]
    int64_t room;
} NAME(Head);

// Some queries of a head over its keys. `chunks` registers hold a key.
static inline __attribute__((always_inline)) void NAME(mix)(
    const NAME(Mixing) *given, const NAME(Head) *of, int64_t first, int count, int chunks) {
    const AttentionLayer *layer = given->layer;
    const Seen *sight = given->sight;
    int64_t batch = of->batch, head = of->head, num_keys = of->num_keys, room_of_row = of->room;
    int64_t width = layer->head_width;
    const float *keys = of->keys, *values = of->values;
    float *scores = of->scores;
    const float *query[GROUP];
    for (int i = 0; i < count; i++) query[i] = of->queries + (first + i) * sight->query_row;
    for (int64_t s = 0; s < num_keys; s++, keys += sight->key_slot) {
        Floats agree[GROUP];
        for (int i = 0; i < count; i++) agree[i] = NAME(every)(0.0f);
        for (int c = 0; c < chunks; c++) {
            Floats key = NAME(load)(keys + c * LANES);
            for (int i = 0; i < count; i++) agree[i] += key * NAME(load)(query[i] + c * LANES);
        }
        for (int i = 0; i < count; i++)
            scores[i * room_of_row + s] = NAME(sum)(agree[i]) * layer->scale;
    }
    float share_of[GROUP];
    for (int i = 0; i < count; i++) {
        float *row = scores + i * room_of_row;
        if (sight->bias) {
            const float *bias = sight->bias + batch * sight->bias_batch + head * sight->bias_head
                + (first + i) * sight->bias_query;
            for (int64_t s = 0; s < num_keys; s++) row[s] += bias[s];
        }
        if (sight->visible) {
            const uint8_t *visible = sight->visible + batch * sight->visible_batch
                + (first + i) * sight->visible_query;
            for (int64_t s = 0; s < num_keys; s++) row[s] = visible[s] ? row[s] : -INFINITY;
        }
        for (int64_t s = num_keys; s < room_of_row; s++) row[s] = -INFINITY;
        Floats most = NAME(load)(row);
        for (int64_t s = LANES; s < room_of_row; s += LANES)
            most = NAME(larger)(NAME(load)(row + s), most);
        float top = NAME(largest)(most);
        if (top == -INFINITY) top = 0.0f;  // a query that sees nothing
        Floats total = {0};
        for (int64_t s = 0; s < room_of_row; s += LANES) {
            Floats weight = NAME(exponential)(NAME(load)(row + s) - top);
            NAME(store)(row + s, weight);
            total += weight;
        }
        float all = NAME(sum)(total);
        share_of[i] = all > 0.0f ? 1.0f / all : 0.0f;
        if (sight->weights) {
            float *shown = sight->weights
                + ((batch * layer->heads + head) * sight->num_queries + first + i)
                    * sight->num_keys;
            for (int64_t s = 0; s < num_keys; s++) shown[s] = row[s] * share_of[i];
        }
    }
    if (sight->weights_suffice) return;
    for (int c = 0; c < chunks; c++) {
        Floats mixed[GROUP];
        for (int i = 0; i < count; i++) mixed[i] = NAME(every)(0.0f);
        const float *value = values + c * LANES;
        for (int64_t s = 0; s < num_keys; s++, value += sight->value_slot) {
            Floats one = NAME(load)(value);
            for (int i = 0; i < count; i++) mixed[i] += one * scores[i * room_of_row + s];
        }
        for (int i = 0; i < count; i++) {
            float *to = given->mixed + ((of->mixed_row + first + i) * layer->heads + head) * width;
            NAME(store)(to + c * LANES, mixed[i] * share_of[i]);
        }
    }
}

static void NAME(mix_heads)(void *data, int64_t begin, int64_t stop) {
    const NAME(Mixing) *given = data;
    const AttentionLayer *layer = given->layer;
    const Seen *sight = given->sight;
    int64_t thread = threads() > 1 ? omp_get_thread_num() : 0;
    float *scores = given->scores + thread * GROUP * padded(sight->num_keys);
    int chunks = (int)(layer->head_width / LANES);
#define MIX(count, chunks) NAME(mix)(given, &of, first, count, chunks)
#define OF_WIDTH(chunks)                                                   \
    do {                                                                   \
        for (; first + GROUP <= queries; first += GROUP) MIX(GROUP, chunks); \
        switch (queries - first) {                                         \
            case 3: MIX(3, chunks); break;                                 \
            case 2: MIX(2, chunks); break;                                 \
            case 1: MIX(1, chunks); break;                                 \
        }                                                                  \
    } while (0)
    for (int64_t number = begin; number < stop; number++) {
        int64_t batch = number / layer->heads, head = number % layer->heads, first = 0;
        int64_t key_head = head / (layer->heads / layer->key_heads);
        int64_t queries = sight->num_queries, query_at = batch * sight->query_batch;
        int64_t key_at = batch * sight->key_batch, value_at = batch * sight->value_batch;
        NAME(Head) of = {batch, head, sight->num_keys, batch * queries, .scores = scores};
        if (sight->query_rows) {
            of.mixed_row = sight->query_rows[batch];
            queries = sight->query_rows[batch + 1] - of.mixed_row;
            query_at = of.mixed_row * sight->query_row;
        }
        if (sight->key_rows) {
            int64_t row = sight->key_rows[batch];
            of.num_keys = sight->key_rows[batch + 1] - row;
            key_at = row * sight->key_slot;
            value_at = row * sight->value_slot;
        }
        of.queries = sight->queries + query_at + head * layer->head_width;
        of.keys = sight->keys + key_at + key_head * sight->key_head;
        of.values = sight->values + value_at + key_head * sight->value_head;
        of.room = NAME(filled)(of.num_keys);
        switch (chunks) {
            case 1: OF_WIDTH(1); break;
            case 2: OF_WIDTH(2); break;
            case 4: OF_WIDTH(4); break;
            default: OF_WIDTH(chunks);
        }
    }
#undef OF_WIDTH
#undef MIX
}

// What the heads of a layer find: [B · Lq, H · E].
static void NAME(attend)(const AttentionLayer *layer, const Seen *sight, const Workspace *space) {
    NAME(Mixing) given = {layer, sight, space->mixed, space->scores};
    int64_t work = 2 * sight->num_queries * sight->num_keys * layer->head_width, worth = 1 << 17;
    int64_t least = work < worth ? (worth + work) / (work + 1) : 1;
    share(NAME(mix_heads), &given, sight->batch * layer->heads, least);
}

// Layers ----------------------------------------------------------------------------------------

// What a sub-layer reads: x [rows, D], normed where norms come first.
static const float *NAME(read)(const Layer *layer, const Norm *norm, const float *x, int64_t rows,
                               const Workspace *space) {
    if (!layer->norm_first) return x;
    NAME(normalise)(norm, x, rows, layer->width, space->normed);
    return space->normed;
}

static void NAME(project)(const Layer *layer, const float *x, int64_t rows, float *projected,
                          const Workspace *space) {
    x = NAME(read)(layer, &layer->self.norm, x, rows, space);
    NAME(linear)(&layer->self.projection, x, rows, projected, 0, 0, space);
}

// y = x + what a sub-layer makes of `inner`, normed where norms come last.
static void NAME(add)(const Layer *layer, const Linear *linear, const Norm *norm, const float *inner,
                      const float *x, int64_t rows, float *y, const Workspace *space) {
    NAME(linear)(linear, inner, rows, y, 0, x, space);
    if (!layer->norm_first) NAME(normalise)(norm, y, rows, layer->width, y);
}

typedef struct {
    const Layer *layer;
    float *inner;       // [rows, inner width]: of `up`, then what `down` takes
    const float *gate;  // [rows, inner width], or null
} NAME(Inner);

static void NAME(activate_rows)(void *data, int64_t first, int64_t stop) {
    const NAME(Inner) *given = data;
    int kind = given->layer->activation;
    int64_t width = given->layer->up.out_width;
    float *inner = given->inner;
    for (int64_t i = first * width; i < stop * width; i += LANES) {
        int64_t left = stop * width - i;
        Floats up = {0}, gate = {0};
        size_t bytes = (size_t)(left < LANES ? left : LANES) * sizeof(float);
        memcpy(&up, inner + i, bytes);
        if (given->gate) {
            memcpy(&gate, given->gate + i, bytes);
            up *= NAME(activate)(kind, gate, 0);
        } else {
            up = NAME(activate)(kind, up, 0);
        }
        memcpy(inner + i, &up, bytes);
    }
}

static void NAME(feed)(const Layer *layer, const float *x, int64_t rows, float *y,
                       const Workspace *space) {
    const float *read = NAME(read)(layer, &layer->norm, x, rows, space);
    int rectify = !layer->gated && layer->activation == RELU;
    NAME(linear)(&layer->up, read, rows, space->inner, rectify, 0, space);
    if (layer->gated) NAME(linear)(&layer->gate, read, rows, space->gate, 0, 0, space);
    if (!rectify) {
        NAME(Inner) given = {layer, space->inner, layer->gated ? space->gate : 0};
        share(NAME(activate_rows), &given, rows, 32);
    }
    NAME(add)(layer, &layer->down, &layer->norm, space->inner, x, rows, y, space);
}

static void NAME(rest)(const Layer *layer, const float *x, int64_t rows, const Seen *self,
                       const Seen *cross, float *y, const Workspace *space) {
    const AttentionLayer *attention = &layer->self;
    NAME(attend)(attention, self, space);
    if (self->weights_suffice) return;
    NAME(add)(layer, &attention->output, &attention->norm, space->mixed, x, rows, y, space);
    if (layer->has_cross) {
        attention = &layer->cross;
        const float *read = NAME(read)(layer, &attention->norm, y, rows, space);
        NAME(linear)(&attention->projection, read, rows, space->queries, 0, 0, space);
        Seen sight = *cross;
        sight.queries = space->queries;
        sight.query_row = attention->projection.out_width;
        sight.query_batch = sight.num_queries * sight.query_row;
        NAME(attend)(attention, &sight, space);
        if (cross->weights_suffice) return;
        NAME(add)(layer, &attention->output, &attention->norm, space->mixed, y, rows, y, space);
    }
    NAME(feed)(layer, y, rows, y, space);
}

// The best of many ------------------------------------------------------------------------------

typedef struct {
    const float *scores;  // [rows, size]
    int64_t size, count;
    float *values;    // [rows, count]
    int64_t *places;  // [rows, count]
    double *totals;   // [rows]
} NAME(Choice);

static void NAME(total_rows)(void *data, int64_t first, int64_t stop) {
    const NAME(Choice) *given = data;
    int64_t size = given->size, whole = size / LANES * LANES;
    for (int64_t row = first; row < stop; row++) {
        const float *scores = given->scores + row * size;
        Floats most = NAME(every)(-INFINITY);
        for (int64_t i = 0; i < whole; i += LANES)
            most = NAME(larger)(NAME(load)(scores + i), most);
        float top = NAME(largest)(most);
        for (int64_t i = whole; i < size; i++) top = scores[i] > top ? scores[i] : top;
        Floats sums[2] = {{0}};  // one alone would wait for itself
        int64_t i = 0;
        for (; i + 2 * LANES <= whole; i += 2 * LANES) {
            sums[0] += NAME(exponential)(NAME(load)(scores + i) - top);
            sums[1] += NAME(exponential)(NAME(load)(scores + i + LANES) - top);
        }
        for (; i < whole; i += LANES) sums[0] += NAME(exponential)(NAME(load)(scores + i) - top);
        float all = NAME(sum)(sums[0] + sums[1]);
        for (; i < size; i++) all += expf(scores[i] - top);
        given->totals[row] = (double)top + log((double)all);
    }
}

static void NAME(totals)(const float *scores, int64_t rows, int64_t size, double *totals) {
    NAME(Choice) given = {scores, size, 0, 0, 0, totals};
    share(NAME(total_rows), &given, rows, 1 + 30000 / size);
}

static inline int NAME(any)(Ints where) {
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#else
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= where[i];
    return found;
#endif
}

static void NAME(best_rows)(void *data, int64_t first, int64_t stop) {
    const NAME(Choice) *given = data;
    int64_t size = given->size, count = given->count;
    for (int64_t row = first; row < stop; row++) {
        const float *scores = given->scores + row * size;
        float *values = given->values + row * count;
        int64_t *places = given->places + row * count, held = 0;
        float bar = -INFINITY;  // what a score must exceed once `count` are held
        for (int64_t i = 0; i < size; i += LANES) {
            int64_t end = size - i < LANES ? size : i + LANES;
            if (held == count && end - i == LANES
                && !NAME(any)(NAME(load)(scores + i) > NAME(every)(bar)))
                continue;
            for (int64_t n = i; n < end; n++) {
                float score = scores[n];
                if (held == count && !(score > bar)) continue;
                int64_t at = held < count ? held++ : count - 1;
                for (; at > 0 && score > values[at - 1]; at--) {
                    values[at] = values[at - 1];
                    places[at] = places[at - 1];
                }
                values[at] = score;
                places[at] = n;
                if (held == count) bar = values[count - 1];
            }
        }
    }
}

static void NAME(best)(const float *scores, int64_t rows, int64_t size, int64_t count, float *values,
                       int64_t *places) {
    NAME(Choice) given = {scores, size, count, values, places, 0};
    share(NAME(best_rows), &given, rows, 1 + 30000 / size);
}

#include "residual.h"
#include "attention.h"

// Rows become columns.
static inline __attribute__((always_inline)) void NAME(transpose)(Bits rows[LANES]) {
#if LANES == 16
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    // The quarters of b[4 i + j] are columns j, 4 + j, 8 + j and 12 + j of rows 4 i to 4 i + 3.
    for (int j = 0; j < 4; j++) {
        __m512i even = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i even_below = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i odd_below = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        rows[j] = (Bits)_mm512_shuffle_i32x4(even, even_below, 0x88);
        rows[4 + j] = (Bits)_mm512_shuffle_i32x4(odd, odd_below, 0x88);
        rows[8 + j] = (Bits)_mm512_shuffle_i32x4(even, even_below, 0xdd);
        rows[12 + j] = (Bits)_mm512_shuffle_i32x4(odd, odd_below, 0xdd);
    }
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            uint32_t one = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = one;
        }
#endif
}

#define OWN(name) NAME(name)
#define TILED 0
#include "product.h"
#undef OWN
#undef TILED

#if HAS_TILES
#pragma push_macro("ROWS")
#pragma push_macro("PANEL")
#undef ROWS
#undef PANEL
#define OWN(name) NAME(tiled_##name)
#define TILED 1
#define ROWS TILE_ROWS
#define PANEL (TILE_COLUMNS / LANES)
#include "product.h"
#include "digits.h"
#undef OWN
#undef TILED
#pragma pop_macro("ROWS")
#pragma pop_macro("PANEL")
#undef STEP
#undef TILE_ROWS
#undef TILE_COLUMNS
#undef FEWEST_ROWS
#endif

#undef Bits

#undef Product
#undef Floats
#undef Ints
#undef WIDTH
#undef AT_ONCE
#undef Rounded
