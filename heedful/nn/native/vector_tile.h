// Tiles of a product whose sums stay in vector registers: ROWS rows and PANEL registers of columns.
// Read once for each set of instructions, by `product.h`.

typedef float OWN(Unit) __attribute__((aligned(2), may_alias));

#define WHOLE(units, part) (units)
#define ADD_ONE(sum, a, b) (sum += a * b)
#if LANES == 16
// As _mm512_dpbf16_ps, for which GCC 12 copies every sum through memory.
#define ADD_PAIRS(sum, a, b) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#define ALL_PAIRS ALL_TILES(paired, 1, WHOLE, ADD_PAIRS)
#else
// Without an instruction for pairs, first the lower and then the upper number of each unit, as float32
// ones: the same products, which are exact, and as many multiplications as float32 takes.
static inline Floats OWN(half)(Floats units, int upper) {
    return upper ? (Floats)((Bits)units & 0xffff0000) : (Floats)((Bits)units << 16);
}
#define ALL_PAIRS ALL_TILES(paired, 2, OWN(half), ADD_ONE)
#endif

// Unrolled before anything else is decided, or the sums would not stay in registers.
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)

// Some units of a tile's rows times those of a panel: sums of `count` rows `sums_step` apart, which
// start at zero or are added to. Meanwhile a part of what is read next is brought near.
#define MULTIPLY_TILE(kind, count, PARTS, PART, ADD)                                             \
    static void OWN(kind##count)(const char *left, int64_t row_step, int64_t unit_step,         \
                                  const float *right, int64_t units, float *sums,                \
                                  int64_t sums_step, int adds, const char *next,                 \
                                  int64_t next_step) {                                           \
        Floats held[count][PANEL];                                                               \
        EACH(i, count) EACH(j, PANEL) held[i][j] = NAME(every)(0.0f);                            \
        if (adds)                                                                                \
            EACH(i, count) EACH(j, PANEL)                                                        \
                held[i][j] = NAME(load)(sums + i * sums_step + j * LANES);                       \
        for (int64_t u = 0; u < units; u++, left += unit_step, right += WIDTH) {                 \
            __builtin_prefetch(next, 0, 2);                                                      \
            next += next_step;                                                                   \
            EACH(part, PARTS) {                                                                  \
                Floats row[PANEL];                                                               \
                EACH(j, PANEL) row[j] = PART(NAME(load)(right + j * LANES), part);               \
                EACH(i, count) {                                                                 \
                    Floats one = NAME(every)(*(const OWN(Unit) *)(left + i * row_step));        \
                    one = PART(one, part);                                                       \
                    EACH(j, PANEL) ADD(held[i][j], one, row[j]);                                 \
                }                                                                                \
                if (PARTS > 1) __asm__("" : "+r"(left)); /* or all would be kept between parts */ \
            }                                                                                    \
        }                                                                                        \
        EACH(i, count) EACH(j, PANEL)                                                            \
            NAME(store)(sums + i * sums_step + j * LANES, held[i][j]);                           \
    }
#define ALL_TILES(kind, ...)                                                                  \
    MULTIPLY_TILE(kind, 1, __VA_ARGS__) MULTIPLY_TILE(kind, 2, __VA_ARGS__)                   \
    MULTIPLY_TILE(kind, 3, __VA_ARGS__) MULTIPLY_TILE(kind, 4, __VA_ARGS__)                   \
    MULTIPLY_TILE(kind, 5, __VA_ARGS__) MULTIPLY_TILE(kind, 6, __VA_ARGS__)                   \
    static void (*const OWN(kind##_tiles)[])(const char *, int64_t, int64_t, const float *,  \
                                              int64_t, float *, int64_t, int, const char *,   \
                                              int64_t)                                        \
        = {OWN(kind##1), OWN(kind##2), OWN(kind##3), OWN(kind##4), OWN(kind##5),         \
           OWN(kind##6)};
ALL_TILES(single, 1, WHOLE, ADD_ONE)
ALL_PAIRS
#undef ALL_PAIRS
#undef ADD_PAIRS
#undef ADD_ONE
#undef WHOLE
#undef ALL_TILES
#undef MULTIPLY_TILE
#undef EACH

// The sums [rows, WIDTH] of a tile, `sums_step` apart: see MULTIPLY_TILE.
static inline void OWN(multiply_rows)(int halves, int64_t rows, const char *left, int64_t row_step,
                                      int64_t unit_step, const float *right, int64_t units,
                                      float *sums, int64_t sums_step, int adds, const char *next,
                                      int64_t next_step, Besides *besides) {
    besides->at_once = ROWS;  // the same registers multiply and produce
    OWN(do_besides)(besides);
    (halves ? OWN(paired_tiles) : OWN(single_tiles))[rows - 1](
        left, row_step, unit_step, right, units, sums, sums_step, adds, next, next_step);
}

// So many that the units of a block stay in the cache, and such that their rows fill registers.
static int64_t OWN(most_tiles)(int64_t units) {
    return GROUP_TILES * BLOCK / (units < BLOCK ? units : BLOCK) / 8 * 8;
}

static void OWN(begin_tiles)(void) {}
static void OWN(end_tiles)(void) {}

// A turned left side is copied group by group.
enum { OWN(turned_group) = BLOCK * GROUP_TILES * ROWS };
static int64_t OWN(turned_room)(const Production *to) { return (void)to, 0; }
static void OWN(turn_left)(Multiplying *given) { (void)given; }

// A register of units of a turned left side [K, M], of row u and the columns from `column` to `end`.
static inline __attribute__((always_inline)) Bits OWN(turned_units)(
    const Multiplying *given, int64_t u, int64_t column, int64_t end, int halves) {
    Matrix left = given->left;
    left.numbers.is_half = halves;
    int64_t k = halves ? 2 * u : u;
    fetch(left, k + AHEAD, column);
    if (halves) fetch(left, k + AHEAD + 1, column);
    return OWN(units_left)(left, k, column, end - column, given->depth, halves);
}

static inline Floats OWN(sum_of)(Bits units, int halves) {
    if (!halves) return (Floats)units;
    return (Floats)(units << 16) + (Floats)(units & 0xffff0000);
}

// To the sums of a turned left side's columns, if they are wanted.
static inline void OWN(add_sums)(const Multiplying *given, int64_t column, int64_t end, Floats sum) {
    float *sums = given->column_sums;
    if (!sums) return;
    if (end - column >= LANES) NAME(store)(sums + column, NAME(load)(sums + column) + sum);
    else for (int64_t i = 0; i < end - column; i++) sums[column + i] += sum[i];
}

// Some columns of a turned left side as rows of tiles, copied to [units, columns], filled up to whole
// registers.
static inline __attribute__((always_inline)) void OWN(turn_group)(
    const Multiplying *given, int64_t start, int64_t end, uint32_t *to, int halves) {
    for (int64_t u = 0; u < given->units; u++)
        for (int64_t column = start; column < end; column += LANES, to += LANES) {
            Bits units = OWN(turned_units)(given, u, column, end, halves);
            *(Bits *)to = units;
            OWN(add_sums)(given, column, end, OWN(sum_of)(units, halves));
        }
}

static OWN(Left) OWN(turned_rows)(const Multiplying *given, int64_t start, int64_t end,
                                  uint32_t *room) {
    if (given->to->halves) OWN(turn_group)(given, start, end, room, 1);
    else OWN(turn_group)(given, start, end, room, 0);
    return (OWN(Left)){(const char *)room, 4, NAME(filled)(end - start) * 4, ROWS * 4, 0};
}
