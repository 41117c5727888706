// Float32 products by registers for matrices, which know 8-bit integers but no float32: Ozaki's scheme
// (Ozaki et al. 2012; with integers, Ootomo, Ozaki and Yokota 2024). Read by `level.h` after
// `product.h`, whose last reading produces what is summed here.
//
// SPAN numbers that follow each other along the depth are integers of 24 bits times a common scale,
// and those are digits of base 256 from -128 to 127, the first of which counts most. Of the nine
// products of digits the six that count as much as a float32's last bit are summed, exactly, those
// of one order together; spans are summed in float32. So a product errs by less than 2^-22 of the
// largest numbers of each span, and by sums of float32 that are SPAN times fewer than usual.
//
// Both sides are laid out in pieces of SIDE rows (of the left side) or columns (of the right one) and
// a span: DIGITS planes as registers want them, and a scale for each row or column. Where a row or
// column holds what is infinite its scale is, too; where it holds what is no number, none either.

#define SPAN 64
#define SIDE 16
#define DIGITS 3
#define PLANE (SIDE * SPAN)
#define PIECE (DIGITS * PLANE + 4 * SIDE)
#define MOST_TILES 4  // of a group, which takes turns with ACROSS pieces: they stay in the nearest cache
#define ACROSS 8

#define LOAD_PLANE(into, from)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)SPAN) : "memory")
#define STORE_SUMS(from, to)                                                                     \
    __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" :: "r"(to), "r"((int64_t)64) : "memory")
#define CLEAR_SUMS(which) __asm__ volatile("tilezero %%tmm" #which ::)
#define ADD_DIGITS(sum, left, right)                                                             \
    __asm__ volatile("tdpbssd %%tmm" #right ", %%tmm" #left ", %%tmm" #sum ::)

typedef struct {
    Bits planes[DIGITS][SIDE];
    Floats scales;
} NAME(Piece);
#define Piece NAME(Piece)

#define INFINITE 0x7f800000  // its bits

// What numbers of spans are multiplied by so that they become integers, and what digits of the first
// order are to be multiplied by afterwards; from the largest bits of each span without their signs.
static inline Floats NAME(factor_of)(Bits largest, Floats *scale) {
    Bits special = (Bits)(largest >= INFINITE), none = (Bits)(largest > INFINITE);
    Floats most = (Floats)((special & 0x3f800000) | (~special & largest));
    most = NAME(larger)(most, NAME(every)(0x1p-100f));
    // Below 0x7f7f7f, from which on the first digit would be 128. Of few bits, so that what undoes it
    // is as exact as can be.
    Floats factor = (Floats)((Bits)(0x7f7f00 / most) & 0xffff0000);
    Bits undone = (Bits)(65536 / factor);
    *scale = (Floats)((special & INFINITE) | (~special & undone) | (none & 0x7fc00000));
    return factor;
}

// Where something is infinite, it alone counts in its span.
static inline Floats NAME(infinite_alone)(Floats x) {
    Bits bits = (Bits)x, infinite = (Bits)((bits & 0x7fffffff) == INFINITE);
    return (Floats)(infinite & ((bits & 0x80000000) | 0x3f800000));
}

// Numbers as digits, of which each lane holds one in each of its lower bytes, the last one lowest.
static inline Bits NAME(digits_of)(Floats x, Floats factor) {
    Bits whole = (Bits)_mm512_cvtps_epi32((__m512)(x * factor));
    return (whole + 0x808080) ^ 0x808080;
}

// Up to SIDE vectors from `start` on, of which `count` are there, whose numbers stand side by side
// along the depth: a plane holds each one's digits.
static void NAME(along)(Matrix from, int64_t start, int64_t count, int64_t k, int64_t depth,
                        Piece *to) {
    Floats x[SIDE][SPAN / 16], factors;
    uint32_t largest[SIDE] = {0};
    for (int64_t i = 0; i < count; i++) {
        const float *numbers = (const float *)from.numbers.at + (start + i) * from.row + k;
        Bits most = {0};
        for (int64_t n = 0; n < SPAN / 16; n++) {
            int64_t left = fewer(depth - k - n * 16, 16);
            __mmask16 there = (__mmask16)(left < 0 ? 0 : (1 << left) - 1);
            x[i][n] = (Floats)_mm512_maskz_loadu_ps(there, numbers + n * 16);
            most = (Bits)_mm512_max_epu32((__m512i)most, (__m512i)((Bits)x[i][n] & 0x7fffffff));
        }
        largest[i] = _mm512_reduce_max_epu32((__m512i)most);
        for (int64_t n = 0; largest[i] >= INFINITE && n < SPAN / 16; n++)
            x[i][n] = NAME(infinite_alone)(x[i][n]);
    }
    factors = NAME(factor_of)(*(Bits *)largest, &to->scales);
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t n = 0; n < SPAN / 16; n++) {
            Floats factor = NAME(every)(factors[i]);
            __m512i digits = (__m512i)(i < count ? NAME(digits_of)(x[i][n], factor) : (Bits){0});
            for (int digit = DIGITS - 1; digit >= 0; digit--) {
                ((__m128i *)&to->planes[digit][i])[n] = _mm512_cvtepi32_epi8(digits);
                digits = _mm512_srli_epi32(digits, 8);
            }
        }
}

// The same of vectors that stand side by side: a plane holds for every four numbers of the depth those
// of each vector. Adds what they sum up to, if it is wanted. Meanwhile those of a span from `next_k`
// on are fetched, from vector `next` on: a line of each row, which processors do not foresee.
static void NAME(across)(Matrix from, int64_t start, int64_t count, int64_t k, int64_t depth,
                         Piece *to, Floats *sum, int64_t next_k, int64_t next) {
    Floats x[SPAN];
    Bits largest = {0};
    __mmask16 there = (__mmask16)(count < 16 ? (1 << count) - 1 : 0xffff);
    for (int64_t i = 0; i < SPAN; i++) {
        const float *numbers = (const float *)from.numbers.at + (k + i) * from.row + start;
        fetch(from, next_k + i, next);
        x[i] = (Floats)_mm512_maskz_loadu_ps(k + i < depth ? there : 0, numbers);
        largest = (Bits)_mm512_max_epu32((__m512i)largest, (__m512i)((Bits)x[i] & 0x7fffffff));
        if (sum) *sum += x[i];
    }
    __mmask16 special = _mm512_cmpge_epu32_mask((__m512i)largest, _mm512_set1_epi32(INFINITE));
    for (int64_t i = 0; special && i < SPAN; i++)
        x[i] = (Floats)_mm512_mask_mov_ps((__m512)x[i], special,
                                          (__m512)NAME(infinite_alone)(x[i]));
    Floats factor = NAME(factor_of)(largest, &to->scales);
    for (int64_t i = 0; i < SPAN; i += 4) {
        Bits a = NAME(digits_of)(x[i], factor), b = NAME(digits_of)(x[i + 1], factor);
        Bits c = NAME(digits_of)(x[i + 2], factor), d = NAME(digits_of)(x[i + 3], factor);
        for (int digit = DIGITS - 1; digit >= 0; digit--) {
            to->planes[digit][i / 4]
                = (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | d << 24;
            a >>= 8, b >>= 8, c >>= 8, d >>= 8;
        }
    }
}

static void NAME(turn_planes)(Piece *piece) {
    for (int digit = 0; digit < DIGITS; digit++) NAME(transpose)(piece->planes[digit]);
}

static int64_t NAME(spans)(int64_t depth) { return (depth + SPAN - 1) / SPAN; }
static int64_t NAME(pieces)(int64_t width) { return (width + SIDE - 1) / SIDE; }

typedef struct {
    Matrix from;  // [K, N]
    int64_t depth, width;
    char *to;     // [spans, pieces of a span]
} NAME(Digitizing);

static void NAME(lay_digits)(void *data, int64_t first, int64_t stop) {
    const NAME(Digitizing) *given = data;
    Matrix from = given->from;
    for (int64_t span = 0; span < NAME(spans)(given->depth); span++)
        for (int64_t piece = first; piece < stop; piece++) {
            Piece *to = (Piece *)(given->to + (span * NAME(pieces)(given->width) + piece) * PIECE);
            int64_t start = piece * SIDE, count = fewer(given->width - start, SIDE);
            if (from.column == 1) {
                int64_t k = span * SPAN, ends = piece + 1 == stop;
                NAME(across)(from, start, count, k, given->depth, to, 0, ends ? k + SPAN : k,
                             (ends ? first : piece + 1) * SIDE);
            } else {
                Matrix turned = {from.numbers, from.column, from.row};
                NAME(along)(turned, start, count, span * SPAN, given->depth, to);
                NAME(turn_planes)(to);
            }
        }
}

static int64_t NAME(digits_right_units)(int64_t depth, int64_t width, int halves) {
    (void)halves;
    return NAME(spans)(depth) * NAME(pieces)(width) * PIECE / 4;
}

static void NAME(digits_lay_right)(Matrix from, int64_t depth, int64_t width, int halves,
                                   uint32_t *to) {
    (void)halves;
    NAME(Digitizing) given = {from, depth, width, (char *)to};
    int64_t pieces = NAME(pieces)(width), even = pieces / threads();
    share(NAME(lay_digits), &given, pieces, most(1 + 4096 / (depth + 1), even));
}

// Some rows of the sums of a span: of each order [SIDE, SIDE], the first counting most.
static inline __attribute__((always_inline)) void NAME(add_orders)(
    const int32_t *orders, const float *left_scales, const float *right_scales, int64_t row,
    int64_t stop, float *sums) {
    Floats column = NAME(load)(right_scales);
    for (int64_t i = row; i < stop; i++) {
        Floats x = {0};
        for (int order = DIGITS - 1; order >= 0; order--) {
            const int32_t *from = orders + order * SIDE * SIDE + i * SIDE;
            x = x * (1.0f / 256) + (Floats)_mm512_cvtepi32_ps(_mm512_loadu_si512(from));
        }
        float *to = sums + i * 2 * SIDE;
        NAME(store)(to, NAME(load)(to) + x * column * left_scales[i]);
    }
}

// A piece of the left side times pieces of the right one that follow each other: added to sums, of
// which those of two pieces stand beside each other, `pair_step` from two to the next.
static void NAME(multiply_piece)(const Piece *left, const Piece *right, int64_t count, float *sums,
                                 int64_t pair_step) {
    int32_t rooms[2][DIGITS * SIDE * SIDE] __attribute__((aligned(64))), *orders = rooms[0];
    const int32_t *before = 0;
    const float *own = (const float *)&left->scales;
    LOAD_PLANE(3, left->planes[0]);
    LOAD_PLANE(4, left->planes[1]);
    LOAD_PLANE(5, left->planes[2]);
    float *to = 0;
#define ADD_SOME(row, stop)                                                                      \
    if (before) NAME(add_orders)(before, own, (const float *)&right[n - 1].scales, row, stop, to)
    for (int64_t n = 0; n < count; n++) {
        CLEAR_SUMS(0);
        CLEAR_SUMS(1);
        CLEAR_SUMS(2);
        LOAD_PLANE(6, right[n].planes[0]);
        ADD_DIGITS(0, 3, 6);
        LOAD_PLANE(7, right[n].planes[1]);
        ADD_DIGITS(1, 4, 6);
        ADD_SOME(0, 5);
        ADD_DIGITS(2, 5, 6);
        ADD_DIGITS(1, 3, 7);
        LOAD_PLANE(6, right[n].planes[2]);
        ADD_SOME(5, 11);
        ADD_DIGITS(2, 4, 7);
        ADD_DIGITS(2, 3, 6);
        ADD_SOME(11, 16);
        STORE_SUMS(0, orders);
        STORE_SUMS(1, orders + SIDE * SIDE);
        STORE_SUMS(2, orders + 2 * SIDE * SIDE);
        before = orders;
        to = sums + n / 2 * pair_step + n % 2 * SIDE;
        orders = rooms[orders == rooms[0]];
    }
    int64_t n = count;
    ADD_SOME(0, SIDE);
#undef ADD_SOME
}

// Left side times right side.
typedef struct {
    const Production *to;
    Matrix left;  // [M, K], or [K, M] if it is turned
    const char *right;
    int64_t depth;
    int adds, turned;    // to what `out` holds already
    float *column_sums;  // [M] of a turned left side, which are added to, or null
    char *room;          // of each thread
    int64_t tiles;       // of a group
} NAME(OfDigits);

static int64_t NAME(digits_room)(int64_t depth) { return MOST_TILES * NAME(spans)(depth) * PIECE; }

// Rows of the left side from `start` on, which are those of a tile, as pieces.
static void NAME(digitize_left)(const NAME(OfDigits) *given, int64_t start, Piece *to) {
    int64_t count = fewer(given->to->rows - start, SIDE), depth = given->depth;
    Floats sum = {0};
    for (int64_t k = 0; k < depth; k += SPAN, to++) {
        if (given->turned) {
            NAME(across)(given->left, start, count, k, depth, to, &sum, k + SPAN, start);
            NAME(turn_planes)(to);
        } else {
            NAME(along)(given->left, start, count, k, depth, to);
        }
    }
    if (given->column_sums)
        for (int64_t i = 0; i < count; i++) given->column_sums[start + i] += sum[i];
}

static void NAME(multiply_digits)(void *data, int64_t first, int64_t stop) {
    const NAME(OfDigits) *given = data;
    const Production *to = given->to;
    int64_t spans = NAME(spans)(given->depth), pieces = NAME(pieces)(to->width);
    Piece *left = (Piece *)(given->room
                            + (threads() > 1 ? omp_get_thread_num() : 0)
                                * NAME(digits_room)(given->depth));
    float sums[ACROSS / 2][MOST_TILES * SIDE][2 * SIDE] __attribute__((aligned(64)));
    NAME(configure)(2 * SIDE, SIDE);
    for (int64_t group = first; group < stop; group++) {
        int64_t start = group * given->tiles * SIDE;
        int64_t rows = fewer(to->rows - start, given->tiles * SIDE), tiles = NAME(pieces)(rows);
        for (int64_t tile = 0; tile < tiles; tile++)
            NAME(digitize_left)(given, start + tile * SIDE, left + tile * spans);
        for (int64_t piece = 0; piece < pieces; piece += ACROSS) {
            int64_t count = fewer(pieces - piece, ACROSS), pairs = (count + 1) / 2;
            memset(sums, 0, sizeof sums);
            for (int64_t pair = 0; given->adds && pair < pairs; pair++) {
                int64_t column = (piece + 2 * pair) * SIDE;
                const float *from = (const float *)to->out.at + start * to->width + column;
                OWN(move_sums)(sums[pair][0], 2 * SIDE, from, to->width, rows,
                               fewer(to->width - column, 2 * SIDE));
            }
            for (int64_t span = 0; span < spans; span++) {
                const Piece *right = (const Piece *)given->right + span * pieces + piece;
                for (int64_t tile = 0; tile < tiles; tile++)
                    NAME(multiply_piece)(left + tile * spans + span, right, count,
                                         sums[0][tile * SIDE], sizeof sums[0] / 4);
            }
            for (int64_t pair = 0; pair < pairs; pair++)
                OWN(produce)(to, sums[pair][0], start, rows, (piece + 2 * pair) * SIDE);
        }
    }
    NAME(release)();
}

static void NAME(multiply_all_digits)(NAME(OfDigits) *given) {
    const Production *to = given->to;
    given->tiles = even_tiles(NAME(pieces)(to->rows), MOST_TILES);
    int64_t rows = given->tiles * SIDE, groups = (to->rows + rows - 1) / rows;
    int64_t work = rows * given->depth * to->width + 1, worth = 1 << 19;
    share(NAME(multiply_digits), given, groups, work < worth ? (worth + work - 1) / work : 1);
}

#define TURNED_DEPTH 2048  // of which pieces of both sides are made at once

// Numbers of room that a product needs.
static int64_t NAME(digits_product_room)(const Production *to, int turned) {
    int64_t depth = turned ? fewer(to->depth, TURNED_DEPTH) : to->depth;
    int64_t right = turned ? NAME(digits_right_units)(depth, to->width, 0) : 0;
    return right + threads() * NAME(digits_room)(depth) / 4;
}

static void NAME(digits_product)(const Production *to, Matrix left, const uint32_t *panels,
                                 float *room) {
    NAME(OfDigits) given = {
        .to = to, .left = left, .right = (const char *)panels, .depth = to->depth,
        .adds = to->adds, .room = (char *)room,
    };
    NAME(multiply_all_digits)(&given);
}

static void NAME(digits_turned_product)(const Production *to, Matrix left, Matrix right,
                                        float *sums, float *room) {
    uint32_t *laid = (uint32_t *)room;
    int64_t units = NAME(digits_right_units)(fewer(to->depth, TURNED_DEPTH), to->width, 0);
    if (sums) memset(sums, 0, (size_t)to->rows * sizeof(float));
    for (int64_t k = 0; k < to->depth; k += TURNED_DEPTH) {
        int64_t depth = fewer(to->depth - k, TURNED_DEPTH);
        NAME(digits_lay_right)(OWN(from_row)(right, k), depth, to->width, 0, laid);
        NAME(OfDigits) given = {
            .to = to, .left = OWN(from_row)(left, k), .right = (const char *)laid, .depth = depth,
            .turned = 1, .adds = to->adds || k, .column_sums = sums, .room = (char *)(laid + units),
        };
        NAME(multiply_all_digits)(&given);
    }
}

#undef SPAN
#undef INFINITE
#undef SIDE
#undef DIGITS
#undef PLANE
#undef PIECE
#undef MOST_TILES
#undef ACROSS
#undef LOAD_PLANE
#undef STORE_SUMS
#undef CLEAR_SUMS
#undef ADD_DIGITS
#undef TURNED_DEPTH
#undef Piece
