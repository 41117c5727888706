// Tiles of a product whose sums stay in registers for matrices: see `matrices.h`. Read by `product.h`,
// for bfloat16 alone.

static void OWN(begin_tiles)(void) { NAME(configure)(ROWS, STEP); }
static void OWN(end_tiles)(void) { NAME(release)(); }

// The sums [rows, WIDTH] of a tile, `sums_step` apart: see `multiply_matrices`. What is done besides is
// done step by step meanwhile: registers for matrices and those for vectors need not wait for each other.
static void OWN(multiply_rows)(int halves, int64_t rows, const char *left, int64_t row_step,
                               int64_t unit_step, const float *right, int64_t units, float *sums,
                               int64_t sums_step, int adds, const char *next, int64_t next_step,
                               Besides *besides) {
    int64_t steps = (units + STEP - 1) / STEP;
    besides->at_once = (ROWS + steps - 1) / steps;
    (void)halves, (void)unit_step;  // pairs of bfloat16, which stand side by side
    if (rows < ROWS) NAME(configure)(rows, STEP);
    NAME(multiply_matrices)(HALVES, rows, left, row_step, (const char *)right, WIDTH * 4, units,
                            (char *)sums, sums_step * 4, adds, next, next_step,
                            (Meanwhile){OWN(do_besides), besides});
    if (rows < ROWS) NAME(configure)(ROWS, STEP);
}

// Of few units, too: a group takes turns with the next panel, which it fetches.
static int64_t OWN(most_tiles)(int64_t units) {
    (void)units;
    return GROUP_TILES;
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
