// Products in the matrix registers of AMX: sums of 2 × 2 registers of 16 rows and 16 columns.
//
// A register holds up to 16 rows of 64 bytes. One of A holds 16 units of each row, one of B 16
// columns of each unit, and their product is added to 16 columns of each row. A unit is four bytes:
// two bfloat16 numbers, or four 8-bit integers, unsigned in A. Registers 0 to 3 hold the sums, 4 and
// 5 rows of A, 6 and 7 columns of B.

#define AMX_UNITS 16  // units of depth that are multiplied at once
#define AMX_MR 32
#define AMX_NR 32

typedef enum { AMX_BF16, AMX_INT8 } AmxType;

// In assembly: the intrinsics of GCC 12 do not say what memory they touch. TILE_LOAD_ONCE is for what
// is not read again soon, and does not drive anything else out of the nearest cache.
#define TILE_LOAD(into, from, stride)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)(stride))     \
                     : "memory")
#define TILE_LOAD_ONCE(into, from, stride)                                                       \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #into :: "r"(from), "r"((int64_t)(stride))   \
                     : "memory")
#define TILE_STORE(from, to, stride)                                                             \
    __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" :: "r"(to), "r"((int64_t)(stride))   \
                     : "memory")
#define TILE_ZERO(which) __asm__ volatile("tilezero %%tmm" #which ::)
#define TILE_MULTIPLY(sum, a, b)                                                                 \
    do {                                                                                         \
        if (type == AMX_BF16)                                                                    \
            __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::);               \
        else __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::);                \
    } while (0)

// Set the registers' shapes for so many rows of A and so many units of depth.
static void amx_configure(int64_t rows, int64_t units) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    int64_t upper = rows < 16 ? rows : 16, lower = rows - upper;
    for (int i = 0; i < 6; i++) {
        int is_lower = i == 2 || i == 3 || i == 5;
        shapes.rows[i] = (uint8_t)(is_lower ? lower : upper);
        shapes.bytes[i] = (uint16_t)(shapes.rows[i] ? i < 4 ? 64 : units * 4 : 0);
    }
    for (int i = 6; i < 8; i++) {
        shapes.rows[i] = (uint8_t)units;
        shapes.bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" :: "m"(shapes));
}

static void amx_release(void) { __asm__ volatile("tilerelease" ::); }

// Work for the vector units, called after each step while the matrix unit multiplies.
typedef struct {
    void (*run)(void *);  // or null
    void *data;
} Interleaved;

// Strides are in bytes; `more` says that there are more than 16 rows.
ALWAYS_INLINE void amx_steps(AmxType type, int more, const char *a, int64_t row_stride,
                             int64_t a_step, const char *b, int64_t unit_stride, int64_t steps,
                             char *sums, int64_t sums_stride, int accumulate, const char *next,
                             int64_t next_stride, Interleaved interleaved) {
    const char *a_below = a + 16 * row_stride;
    char *below = sums + 16 * sums_stride;
    if (accumulate) {
        TILE_LOAD(0, sums, sums_stride);
        TILE_LOAD(1, sums + 64, sums_stride);
        if (more) TILE_LOAD(2, below, sums_stride);
        if (more) TILE_LOAD(3, below + 64, sums_stride);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (more) TILE_ZERO(2);
        if (more) TILE_ZERO(3);
    }
    for (int64_t step = 0; step < steps; step++) {
        TILE_LOAD_ONCE(4, a, row_stride);
        TILE_LOAD(6, b, unit_stride);
        TILE_LOAD(7, b + 64, unit_stride);
        TILE_MULTIPLY(0, 4, 6);
        if (more) TILE_LOAD_ONCE(5, a_below, row_stride);
        TILE_MULTIPLY(1, 4, 7);
        if (interleaved.run) interleaved.run(interleaved.data);
        if (more) {
            TILE_MULTIPLY(2, 5, 6);
            TILE_MULTIPLY(3, 5, 7);
        }
        a += a_step;
        a_below += a_step;
        b += AMX_UNITS * unit_stride;
        for (int64_t byte = 0; byte < AMX_UNITS * next_stride; byte += 64)
            __builtin_prefetch(next + byte, 0, 2);
        next += AMX_UNITS * next_stride;
    }
    TILE_STORE(0, sums, sums_stride);
    TILE_STORE(1, sums + 64, sums_stride);
    if (more) TILE_STORE(2, below, sums_stride);
    if (more) TILE_STORE(3, below + 64, sums_stride);
}

// Up to 32 rows of A, whose units are `a_step` apart from one group of AMX_UNITS to the next, times 32
// columns of B: sums, which start at zero unless `accumulate`. Prefetches `next_stride` bytes from
// `next` on for each unit. All strides are in bytes. The registers must be configured for so many rows
// and AMX_UNITS units, and are again afterwards.
ALWAYS_INLINE void amx_micro_kernel(AmxType type, int64_t rows, const char *a, int64_t row_stride,
                                    int64_t a_step, const char *b, int64_t unit_stride,
                                    int64_t units, char *sums, int64_t sums_stride, int accumulate,
                                    const char *next, int64_t next_stride,
                                    Interleaved interleaved) {
    int64_t steps = units / AMX_UNITS, rest = units % AMX_UNITS;
#define STEPS(more, steps, accumulate, next_stride)                                             \
    amx_steps(type, more, a, row_stride, a_step, b, unit_stride, steps, sums, sums_stride,      \
              accumulate, next, next_stride, interleaved)
    if (steps && rows > 16) STEPS(1, steps, accumulate, next_stride);
    else if (steps) STEPS(0, steps, accumulate, next_stride);
    if (!rest) return;
    amx_configure(rows, rest);
    a += steps * a_step;
    b += steps * AMX_UNITS * unit_stride;
    if (rows > 16) STEPS(1, 1, accumulate || steps, 0);
    else STEPS(0, 1, accumulate || steps, 0);
    amx_configure(rows, AMX_UNITS);
#undef STEPS
}

#undef TILE_LOAD
#undef TILE_LOAD_ONCE
#undef TILE_STORE
#undef TILE_ZERO
#undef TILE_MULTIPLY
