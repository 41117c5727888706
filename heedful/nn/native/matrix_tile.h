// Tiles of a product whose sums stay in the registers for matrices that some processors have (AMX): two
// by two registers of 16 rows and 16 columns. Read by `product.h`, for bfloat16 alone.
//
// A register holds up to 16 rows of 64 bytes. One of the left side holds 16 units of each row, one of
// the right side 16 columns of each unit, and what they add to 16 columns of each row. Registers 0 to
// 3 hold the sums, 4 and 5 rows of the left side, 6 and 7 columns of the right side.

#define STEP 16  // units that are multiplied at once

// Intrinsics of GCC 12 do not say what memory they touch.
#define LOAD_MATRIX(into, from, step)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)(step)) : "memory")
#define STORE_MATRIX(from, to, step)                                                             \
    __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" :: "r"(to), "r"((int64_t)(step)) : "memory")
#define CLEAR_MATRIX(which) __asm__ volatile("tilezero %%tmm" #which ::)
#define ADD_MATRICES(sum, left, right)                                                           \
    __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum ::)

// The registers' sizes, for so many rows of a tile and units of a step.
static void OWN(configure)(int64_t rows, int64_t units) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    int64_t upper = rows < 16 ? rows : 16, lower = rows - upper;
    for (int i = 0; i < 6; i++) {
        int is_lower = i == 2 || i == 3 || i == 5;
        sizes.rows[i] = (uint8_t)(is_lower ? lower : upper);
        sizes.bytes[i] = (uint16_t)(sizes.rows[i] ? i < 4 ? 64 : units * 4 : 0);
    }
    for (int i = 6; i < 8; i++) {
        sizes.rows[i] = (uint8_t)units;
        sizes.bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" :: "m"(sizes));
}

static void OWN(begin_tiles)(void) { OWN(configure)(ROWS, STEP); }

static void OWN(end_tiles)(void) { __asm__ volatile("tilerelease" ::); }

// Of a tile of up to 16 rows, or of more.
static inline __attribute__((always_inline)) void OWN(multiply_steps)(
    int more, const char *left, int64_t row_step, const float *right, int64_t steps, float *sums,
    int64_t sums_step, int adds, const char *next, int64_t next_step) {
    const char *left_below = left + 16 * row_step;
    float *below = sums + 16 * sums_step;
    if (adds) {
        LOAD_MATRIX(0, sums, sums_step * 4);
        LOAD_MATRIX(1, sums + 16, sums_step * 4);
        if (more) LOAD_MATRIX(2, below, sums_step * 4);
        if (more) LOAD_MATRIX(3, below + 16, sums_step * 4);
    } else {
        CLEAR_MATRIX(0);
        CLEAR_MATRIX(1);
        if (more) CLEAR_MATRIX(2);
        if (more) CLEAR_MATRIX(3);
    }
    for (int64_t step = 0; step < steps; step++, left += 64, left_below += 64, right += STEP * WIDTH) {
        LOAD_MATRIX(6, right, WIDTH * 4);
        LOAD_MATRIX(4, left, row_step);
        ADD_MATRICES(0, 4, 6);
        LOAD_MATRIX(7, right + 16, WIDTH * 4);
        ADD_MATRICES(1, 4, 7);
        if (more) {
            LOAD_MATRIX(5, left_below, row_step);
            ADD_MATRICES(2, 5, 6);
            ADD_MATRICES(3, 5, 7);
        }
        for (int64_t i = 0; i < (more ? 32 : 16); i++)
            __builtin_prefetch(left + 64 + i * row_step, 0, 3);
        for (int64_t byte = 0; byte < STEP * next_step; byte += 64)
            __builtin_prefetch(next + byte, 0, 2);
        next += STEP * next_step;
    }
    STORE_MATRIX(0, sums, sums_step * 4);
    STORE_MATRIX(1, sums + 16, sums_step * 4);
    if (more) STORE_MATRIX(2, below, sums_step * 4);
    if (more) STORE_MATRIX(3, below + 16, sums_step * 4);
}

// The sums [rows, WIDTH] of a tile, `sums_step` apart, which start at zero or are added to. Meanwhile
// a part of what is read next is brought near.
static void OWN(multiply_rows)(int halves, int64_t rows, const char *left, int64_t row_step,
                               int64_t unit_step, const float *right, int64_t units, float *sums,
                               int64_t sums_step, int adds, const char *next, int64_t next_step) {
    (void)halves, (void)unit_step;  // pairs of bfloat16, which stand side by side
    int64_t steps = units / STEP, rest = units % STEP;
    if (rows < ROWS) OWN(configure)(rows, STEP);
    if (steps && rows > 16)
        OWN(multiply_steps)(1, left, row_step, right, steps, sums, sums_step, adds, next, next_step);
    else if (steps)
        OWN(multiply_steps)(0, left, row_step, right, steps, sums, sums_step, adds, next, next_step);
    if (rest) {
        OWN(configure)(rows, rest);
        left += steps * 64;
        right += steps * STEP * WIDTH;
        if (rows > 16)
            OWN(multiply_steps)(1, left, row_step, right, 1, sums, sums_step, adds || steps, next, 0);
        else OWN(multiply_steps)(0, left, row_step, right, 1, sums, sums_step, adds || steps, next, 0);
    }
    if (rest || rows < ROWS) OWN(configure)(ROWS, STEP);
}

// Units from a row to the next where a turned left side is copied to: rows that are a large power of
// two apart would drive each other out of the cache.
static int64_t OWN(turned_row)(int64_t units) { return NAME(filled)(units) + 16; }

// Some columns of a turned left side as rows of tiles, copied to [columns, units], filled up to whole
// registers either way.
static OWN(Left) OWN(turned_rows)(const Multiplying *given, int64_t start, int64_t end,
                                  uint32_t *room) {
    int64_t row = OWN(turned_row)(given->units);
    for (int64_t u = 0; u < given->units; u += LANES)
        for (int64_t column = start; column < end; column += LANES) {
            Bits units[LANES];
            Floats sum = {0};
            for (int i = 0; i < LANES; i++) {
                units[i] = OWN(turned_units)(given, u + i, column, end, 1);
                sum += OWN(sum_of)(units[i], 1);
            }
            OWN(add_sums)(given, column, end, sum);
            NAME(transpose)(units);
            for (int i = 0; i < LANES; i++) *(Bits *)(room + (column - start + i) * row + u) = units[i];
        }
    return (OWN(Left)){(const char *)room, row * 4, 4};
}

#undef STEP
#undef LOAD_MATRIX
#undef STORE_MATRIX
#undef CLEAR_MATRIX
#undef ADD_MATRICES
