// Tiles of a product whose sums stay in the registers for matrices that some processors have (AMX): two
// by two registers of 16 rows and 16 columns. Read by `level.h`.
//
// A register holds up to 16 rows of 64 bytes. One of the left side holds 16 units of each row, one of
// the right side 16 columns of each unit, and what they add to 16 columns of each row. A unit is four
// bytes: two bfloat16 numbers, or four integers, unsigned ones on the left. Registers 0 to 3 hold the
// sums, 4 and 5 rows of the left side, 6 and 7 columns of the right side.

#define STEP 16         // units that are multiplied at once
#define TILE_ROWS 32
#define TILE_COLUMNS 32

enum { HALVES, INTEGERS };  // what units are

// Intrinsics of GCC 12 do not say what memory they touch.
#define LOAD_MATRIX(into, from, step)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)(step)) : "memory")
// The same of what is read once in a long while: it does not drive out of the nearest cache what is
// read again and again.
#define LOAD_PASSING(into, from, step)                                                           \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)(step)) : "memory")
#define STORE_MATRIX(from, to, step)                                                             \
    __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" :: "r"(to), "r"((int64_t)(step)) : "memory")
#define CLEAR_MATRIX(which) __asm__ volatile("tilezero %%tmm" #which ::)
#define ADD_MATRICES(sum, left, right)                                                           \
    do {                                                                                         \
        if (kind == HALVES)                                                                      \
            __asm__ volatile("tdpbf16ps %%tmm" #right ", %%tmm" #left ", %%tmm" #sum ::);        \
        else __asm__ volatile("tdpbusd %%tmm" #right ", %%tmm" #left ", %%tmm" #sum ::);         \
    } while (0)

// The registers' sizes, for tiles of so many rows and so many units of a step.
static void NAME(configure)(int64_t rows, int64_t units) {
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

static void NAME(release)(void) { __asm__ volatile("tilerelease" ::); }

// What is done besides, a piece after each step, so that vectors work while matrices are multiplied.
typedef struct {
    void (*piece)(void *);  // or null
    void *of;
} NAME(Meanwhile);
#define Meanwhile NAME(Meanwhile)

// Steps are in bytes; `more` says that there are more than 16 rows.
static inline __attribute__((always_inline)) void NAME(multiply_steps)(
    int kind, int more, const char *left, int64_t row_step, int64_t left_step, const char *right,
    int64_t unit_step, int64_t steps, char *sums, int64_t sums_step, int adds, const char *next,
    int64_t next_step, Meanwhile meanwhile) {
    const char *left_below = left + 16 * row_step;
    char *below = sums + 16 * sums_step;
    if (adds) {
        LOAD_MATRIX(0, sums, sums_step);
        LOAD_MATRIX(1, sums + 64, sums_step);
        if (more) LOAD_MATRIX(2, below, sums_step);
        if (more) LOAD_MATRIX(3, below + 64, sums_step);
    } else {
        CLEAR_MATRIX(0);
        CLEAR_MATRIX(1);
        if (more) CLEAR_MATRIX(2);
        if (more) CLEAR_MATRIX(3);
    }
    for (int64_t step = 0; step < steps; step++) {
        LOAD_PASSING(4, left, row_step);
        LOAD_MATRIX(6, right, unit_step);
        LOAD_MATRIX(7, right + 64, unit_step);
        ADD_MATRICES(0, 4, 6);
        if (more) LOAD_PASSING(5, left_below, row_step);
        ADD_MATRICES(1, 4, 7);
        if (meanwhile.piece) meanwhile.piece(meanwhile.of);
        if (more) {
            ADD_MATRICES(2, 5, 6);
            ADD_MATRICES(3, 5, 7);
        }
        left += left_step;
        left_below += left_step;
        right += STEP * unit_step;
        for (int64_t byte = 0; byte < STEP * next_step; byte += 64)
            __builtin_prefetch(next + byte, 0, 2);
        next += STEP * next_step;
    }
    STORE_MATRIX(0, sums, sums_step);
    STORE_MATRIX(1, sums + 64, sums_step);
    if (more) STORE_MATRIX(2, below, sums_step);
    if (more) STORE_MATRIX(3, below + 64, sums_step);
}

// Some units of up to 32 rows, `row_step` apart, STEP of them `left_step` after those before, times
// those of 32 columns, `unit_step` apart: sums, `sums_step` apart, which start at zero or are added to.
// Meanwhile a part of what is read next is brought near, `next_step` for every unit, and what `meanwhile`
// says is done. All steps are in bytes. Registers are configured for so many rows and whole steps, before
// and after.
static inline __attribute__((always_inline)) void NAME(multiply_matrices)(
    int kind, int64_t rows, const char *left, int64_t row_step, int64_t left_step,
    const char *right, int64_t unit_step, int64_t units, char *sums, int64_t sums_step, int adds,
    const char *next, int64_t next_step, Meanwhile meanwhile) {
    int64_t steps = units / STEP, rest = units % STEP;
#define MULTIPLY(more, steps, adds, next_step)                                                     \
    NAME(multiply_steps)(kind, more, left, row_step, left_step, right, unit_step, steps, sums,     \
                         sums_step, adds, next, next_step, meanwhile)
    if (steps && rows > 16) MULTIPLY(1, steps, adds, next_step);
    else if (steps) MULTIPLY(0, steps, adds, next_step);
    if (!rest) return;
    NAME(configure)(rows, rest);
    left += steps * left_step;
    right += steps * STEP * unit_step;
    if (rows > 16) MULTIPLY(1, 1, adds || steps, 0);
    else MULTIPLY(0, 1, adds || steps, 0);
    NAME(configure)(rows, STEP);
#undef MULTIPLY
}

#undef LOAD_MATRIX
#undef STORE_MATRIX
#undef CLEAR_MATRIX
#undef ADD_MATRICES
