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
    (void)halves;
    if (rows < ROWS) NAME(configure)(rows, STEP);
    NAME(multiply_matrices)(HALVES, rows, left, row_step, STEP * unit_step, (const char *)right,
                            WIDTH * 4, units, (char *)sums, sums_step * 4, adds, next, next_step,
                            (Meanwhile){OWN(do_besides), besides});
    if (rows < ROWS) NAME(configure)(ROWS, STEP);
}

// Of few units, too: a group takes turns with the next panel, which it fetches.
static int64_t OWN(most_tiles)(int64_t units) {
    (void)units;
    return GROUP_TILES;
}

// A turned left side [K, M] is copied to [tiles, pieces of HIGH rows, ROWS, STEP units], so that it is
// read in the order it stands in: a group's columns alone are short pieces far apart, and to wait for them
// took a quarter to a half of the products' time.
enum { OWN(turned_group) = 0, HIGH = 2 * STEP };

// Units from a tile to the next. One piece more than it holds: tiles that are a large power of two apart
// would drive each other out of the cache.
static int64_t OWN(turned_tile)(int64_t units) {
    return ((units + STEP - 1) / STEP + 1) * STEP * ROWS;
}

// The same and, behind it, what is summed of it: each column's numbers by quarters of the HIGH rows.
static int64_t OWN(turned_room)(const Production *to) {
    int64_t units = fewer((to->depth + 1) / 2, BLOCK);
    return OWN(tiles_of)(to) * (OWN(turned_tile)(units) + 4 * ROWS);
}

// Turn eight columns of HIGH rows, `step` numbers apart, to [8, STEP] units, and add what is in them to
// `sums`: of four columns each, of each quarter of the rows. Numbers reach their quarter of a register as
// they are loaded, which costs no shuffle, and their place in it by three.
static inline __attribute__((always_inline)) void OWN(turn_columns)(
    const uint16_t *from, int64_t step, uint32_t *to, Floats sums[2]) {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512i rows[8], units[2][4];
    for (int i = 0; i < 8; i++) {
#define QUARTER(j) _mm_loadu_si128((const __m128i_u *)(from + (i + 8 * (j)) * step))
        rows[i] = _mm512_castsi128_si512(QUARTER(0));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x00f0, QUARTER(1));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x0f00, QUARTER(2));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0xf000, QUARTER(3));
#undef QUARTER
    }
    for (int i = 0; i < 4; i++) {
        units[0][i] = _mm512_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
        units[1][i] = _mm512_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
    }
    for (int half = 0; half < 2; half++, to += 4 * STEP) {
        const __m512i *of = units[half];
        for (int i = 0; i < 4; i++)
            __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums[half]) : "v"(of[i]), "v"(ones));
        __m512i first = _mm512_unpacklo_epi32(of[0], of[1]);
        __m512i second = _mm512_unpackhi_epi32(of[0], of[1]);
        __m512i third = _mm512_unpacklo_epi32(of[2], of[3]);
        __m512i fourth = _mm512_unpackhi_epi32(of[2], of[3]);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(first, third));
        _mm512_storeu_si512(to + STEP, _mm512_unpackhi_epi64(first, third));
        _mm512_storeu_si512(to + 2 * STEP, _mm512_unpacklo_epi64(second, fourth));
        _mm512_storeu_si512(to + 3 * STEP, _mm512_unpackhi_epi64(second, fourth));
    }
}

static float *OWN(turned_sums)(const Multiplying *given, int64_t tile) {
    int64_t behind = OWN(tiles_of)(given->to) * OWN(turned_tile)(given->units);
    return given->room + behind + tile * 4 * ROWS;
}

static void OWN(turn_tiles)(void *data, int64_t first, int64_t stop) {
    const Multiplying *given = data;
    int64_t depth = given->depth, step = given->left.row, size = OWN(turned_tile)(given->units);
    const uint16_t *numbers = given->left.numbers.at;
    memset(OWN(turned_sums)(given, first), 0, (size_t)((stop - first) * 4 * ROWS) * 4);
    for (int64_t k = 0; k < depth; k += HIGH)
        for (int64_t tile = first; tile < stop; tile++) {
            int64_t rows = fewer(HIGH, depth - k), from_step = step;
            int64_t columns = fewer(ROWS, given->to->rows - tile * ROWS);
            const uint16_t *from = numbers + k * step + tile * ROWS;
            uint16_t whole[HIGH * ROWS];
            if (rows < HIGH || columns % 8) {
                memset(whole, 0, sizeof whole);
                for (int64_t i = 0; i < rows; i++)
                    memcpy(whole + i * ROWS, from + i * step, (size_t)columns * 2);
                from = whole;
                from_step = ROWS;
            }
            for (int64_t i = 0; i < rows; i++) fetch(given->left, k + i, (tile + 1) * ROWS);
            uint32_t *to = (uint32_t *)given->room + tile * size + k / HIGH * STEP * ROWS;
            Floats *sums = (Floats *)OWN(turned_sums)(given, tile);
            for (int64_t n = 0; n < columns; n += 8)
                OWN(turn_columns)(from + n, from_step, to + n * STEP, sums + n / 4);
        }
    if (!given->column_sums) return;
    for (int64_t tile = first; tile < stop; tile++) {
        const float *sums = OWN(turned_sums)(given, tile);
        for (int64_t n = 0; n < ROWS && tile * ROWS + n < given->to->rows; n++)
            for (int quarter = 0; quarter < 4; quarter++)
                given->column_sums[tile * ROWS + n] += sums[n / 4 * 16 + quarter * 4 + n % 4];
    }
}

static void OWN(turn_left)(Multiplying *given) {
    OWN(share_columns)(OWN(turn_tiles), given, OWN(tiles_of)(given->to), given->depth);
}

// Some columns of a turned left side, as rows of tiles.
static OWN(Left) OWN(turned_rows)(const Multiplying *given, int64_t start, int64_t end,
                                  uint32_t *room) {
    (void)end, (void)room;
    int64_t size = OWN(turned_tile)(given->units) * 4;
    const char *at = (const char *)given->room + start / ROWS * size;
    return (OWN(Left)){at, STEP * 4, ROWS * 4, size, 1};
}
