// Matrix products of training, in float32 or of bfloat16 numbers whose sums are float32. Read once
// for each set of instructions, by `level.h`.
//
// Both kinds go through memory in units of four bytes: one float32 number, or two bfloat16 numbers
// that follow each other along the depth, the dimension that is summed over. The right side [K, N] is
// laid out in blocks of the depth, and each block in panels of WIDTH columns, which hold for every
// unit its WIDTH columns side by side; what is missing to whole panels and units is zero. The left
// side [M, K] is read as it is, or from tiles of ROWS rows in which a unit's rows stand side by side.

#define BLOCK 1024      // units of depth that are multiplied at once: their panel stays in the cache
#define GROUP_TILES 16  // tiles of rows that go through all panels together

// Left side times right side.
typedef struct {
    const char *left;  // unit u of row i of tile t: at t·left_tile + i·left_row + u·left_unit bytes
    int64_t left_tile, left_row, left_unit;
    const uint32_t *panels;
    int64_t rows, units, width;
    int adds;  // to what `out` holds already, which is float32 then
    const Production *to;
    float *room;  // sums of a thread's tiles between blocks, where `out` is bfloat16
} NAME(Multiplying);
#define Multiplying NAME(Multiplying)

static inline int64_t NAME(panels_of)(int64_t width) { return (width + WIDTH - 1) / WIDTH; }

static int64_t NAME(right_units)(int64_t depth, int64_t width, int halves) {
    return (halves ? (depth + 1) / 2 : depth) * NAME(panels_of)(width) * WIDTH;
}

static inline uint32_t NAME(unit_at)(Matrix from, int64_t k, int64_t n, int64_t depth, int halves) {
    int64_t at = k * from.row + n * from.column, next = at + from.row;
    uint32_t unit;
    if (from.numbers.is_half) {
        const uint16_t *numbers = from.numbers.at;
        return numbers[at] | (k + 1 < depth ? (uint32_t)numbers[next] << 16 : 0);
    }
    const float *numbers = from.numbers.at;
    if (!halves) {
        memcpy(&unit, numbers + at, 4);
        return unit;
    }
    return half_bits(numbers[at])
        | (k + 1 < depth ? half_bits(numbers[next]) << 16 : 0);
}

// One register of the units of LANES columns that stand side by side.
static inline Bits NAME(units_at)(Matrix from, int64_t k, int64_t n, int64_t depth, int halves) {
    int64_t at = k * from.row + n;
    if (!halves) return (Bits)NAME(load)((const float *)from.numbers.at + at);
    Bits low, high = {0};
    if (from.numbers.is_half) {
        const uint16_t *numbers = from.numbers.at;
        low = __builtin_convertvector(*(const NAME(Halves) *)(numbers + at), Bits);
        if (k + 1 < depth)
            high = __builtin_convertvector(*(const NAME(Halves) *)(numbers + at + from.row), Bits);
        return low | high << 16;
    }
    low = NAME(rounded_bits)(NAME(take)(from.numbers, at));
    if (k + 1 < depth) high = NAME(rounded_bits)(NAME(take)(from.numbers, at + from.row));
    return low >> 16 | (high & 0xffff0000);
}

typedef struct {
    Matrix from;  // [K, N]
    int64_t depth, width;
    int halves;
    uint32_t *to;
} NAME(Laying);

// Up to LANES units, from k on, of all columns of a panel, where numbers stand side by side along the
// depth: they are gathered column by column and written unit by unit.
static void NAME(lay_turned)(Matrix from, int64_t k, int64_t column, int64_t columns, int64_t depth,
                             int halves, int64_t units, uint32_t *to) {
    uint32_t gathered[WIDTH * LANES] __attribute__((aligned(64)));
    int64_t numbers = (halves ? 2 : 1) * LANES;
    int whole = k + numbers <= depth && from.row == 1;
    for (int64_t n = 0; n < columns; n++) {
        uint32_t *own = gathered + n * LANES;
        int64_t at = k + (column + n) * from.column;
        if (whole && from.numbers.is_half) {
            memcpy(own, (const uint16_t *)from.numbers.at + at, 4 * LANES);
        } else if (whole) {
            Numbers out = {own, halves};
            for (int64_t i = 0; i < numbers; i += LANES)
                NAME(put)(out, i, NAME(load)((const float *)from.numbers.at + at + i));
        } else {
            for (int64_t u = 0; u < units; u++)
                own[u] = NAME(unit_at)(from, k + u * (numbers / LANES), column + n, depth, halves);
        }
    }
    for (int64_t u = 0; u < units; u++)
        for (int64_t n = 0; n < columns; n++) to[u * WIDTH + n] = gathered[n * LANES + u];
}

static void NAME(lay_panels)(void *data, int64_t first, int64_t stop) {
    const NAME(Laying) *given = data;
    Matrix from = given->from;
    int halves = given->halves;
    int64_t per_unit = halves ? 2 : 1, depth = given->depth, width = given->width;
    int64_t units = (depth + per_unit - 1) / per_unit, all = NAME(panels_of)(width) * WIDTH;
    // Numbers are read in the order they stand in.
    int64_t step = from.column == 1 ? 1 : LANES;
    for (int64_t block = 0; block < units; block += BLOCK) {
        int64_t held = units - block < BLOCK ? units - block : BLOCK;
        for (int64_t u = 0; u < held; u += step)
            for (int64_t panel = first; panel < stop; panel++) {
                uint32_t *to = given->to + block * all + (panel * held + u) * WIDTH;
                int64_t k = (block + u) * per_unit, column = panel * WIDTH, n = 0;
                int64_t columns = width - column < WIDTH ? width - column : WIDTH;
                int64_t count = held - u < step ? held - u : step;
                if (columns < WIDTH) memset(to, 0, (size_t)(count * WIDTH) * 4);
                if (step > 1) {
                    NAME(lay_turned)(from, k, column, columns, depth, halves, count, to);
                    continue;
                }
                for (; n + LANES <= columns; n += LANES)
                    *(Bits *)(to + n) = NAME(units_at)(from, k, column + n, depth, halves);
                for (; n < columns; n++) to[n] = NAME(unit_at)(from, k, column + n, depth, halves);
            }
    }
}

static void NAME(lay_right)(Matrix from, int64_t depth, int64_t width, int halves, uint32_t *to) {
    NAME(Laying) given = {from, depth, width, halves, to};
    share(NAME(lay_panels), &given, NAME(panels_of)(width), 1 + 4096 / (depth + 1));
}

// What becomes of a tile's sums [rows, WIDTH], which are those of the columns from `column` on.
static void NAME(produce)(const Multiplying *given, const float *sums, int64_t row, int64_t rows,
                          int64_t column) {
    const Production *to = given->to;
    int64_t left = given->width - column, columns = left < WIDTH ? left : WIDTH;
    for (int64_t i = 0; i < rows; i++, row++, sums += WIDTH) {
        int64_t at = row * given->width + column, n = 0;
        for (; n + LANES <= columns; n += LANES) {
            Floats y = NAME(load)(sums + n);
            if (to->bias) y += NAME(load)(to->bias + column + n);
            if (to->rectify) y = NAME(choose)(y < 0.0f, NAME(every)(0.0f), y);
            if (to->gate.at)
                y = NAME(choose)(NAME(take)(to->gate, at + n) <= 0.0f, NAME(every)(0.0f), y);
            NAME(put)(to->out, at + n, y);
        }
        for (; n < columns; n++) {
            float y = sums[n] + (to->bias ? to->bias[column + n] : 0.0f);
            if (to->rectify && y < 0.0f) y = 0.0f;
            if (to->gate.at && read_one(to->gate, at + n) <= 0.0f) y = 0.0f;
            write_one(to->out, at + n, y);
        }
    }
}

#define ADD_ONE(sum, a, b) (sum += a * b)
#if LANES == 16
// As _mm512_dpbf16_ps, for which GCC 12 copies every sum through memory.
#define ADD_PAIRS(sum, a, b) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#endif

typedef float NAME(Unit) __attribute__((aligned(2), may_alias));

// Unrolled before anything else is decided, or the sums would not stay in registers.
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)

// Some units of a tile's rows times those of a panel, added to sums [count, WIDTH].
#define MULTIPLY_TILE(kind, count, ADD)                                                        \
    static void NAME(kind##count)(const char *left, int64_t row_step, int64_t unit_step,       \
                                  const float *right, int64_t units, float *sums) {            \
        Floats held[count][PANEL];                                                             \
        EACH(i, count) EACH(j, PANEL) held[i][j] = NAME(load)(sums + i * WIDTH + j * LANES);   \
        for (int64_t u = 0; u < units; u++, left += unit_step, right += WIDTH) {               \
            Floats row[PANEL];                                                                 \
            EACH(j, PANEL) row[j] = NAME(load)(right + j * LANES);                             \
            EACH(i, count) {                                                                   \
                Floats one = NAME(every)(*(const NAME(Unit) *)(left + i * row_step));          \
                EACH(j, PANEL) ADD(held[i][j], one, row[j]);                                   \
            }                                                                                  \
        }                                                                                      \
        EACH(i, count) EACH(j, PANEL) NAME(store)(sums + i * WIDTH + j * LANES, held[i][j]);   \
    }
#define ALL_TILES(kind, ADD)                                                                  \
    MULTIPLY_TILE(kind, 1, ADD) MULTIPLY_TILE(kind, 2, ADD) MULTIPLY_TILE(kind, 3, ADD)       \
    MULTIPLY_TILE(kind, 4, ADD) MULTIPLY_TILE(kind, 5, ADD) MULTIPLY_TILE(kind, 6, ADD)       \
    static void (*const NAME(kind##_tiles)[])(const char *, int64_t, int64_t, const float *,  \
                                              int64_t, float *)                               \
        = {NAME(kind##1), NAME(kind##2), NAME(kind##3), NAME(kind##4), NAME(kind##5),         \
           NAME(kind##6)};
ALL_TILES(single, ADD_ONE)
#ifdef ADD_PAIRS
ALL_TILES(paired, ADD_PAIRS)
#define TILES_FOR(halves) (halves ? NAME(paired_tiles) : NAME(single_tiles))
#undef ADD_PAIRS
#else
#define TILES_FOR(halves) NAME(single_tiles)
#endif
#undef ADD_ONE
#undef ALL_TILES
#undef MULTIPLY_TILE
#undef EACH

// Sums of a tile [rows, WIDTH] from or to where they wait between blocks, `width` apart there.
static void NAME(move_sums)(float *to, int64_t to_step, const float *from, int64_t from_step,
                            int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_step, from + i * from_step, (size_t)columns * 4);
}

static void NAME(multiply_tiles)(void *data, int64_t first, int64_t stop) {
    const Multiplying *given = data;
    const Production *to = given->to;
    int64_t width = given->width, panels = NAME(panels_of)(width);
    float *room = given->room
        ? given->room + (threads() > 1 ? omp_get_thread_num() : 0) * GROUP_TILES * ROWS * width : 0;
    float sums[ROWS * WIDTH] __attribute__((aligned(64)));
    for (int64_t group = first; group < stop; group += GROUP_TILES) {
        int64_t last = group + GROUP_TILES < stop ? group + GROUP_TILES : stop;
        for (int64_t block = 0; block < given->units; block += BLOCK) {
            int64_t left = given->units - block, units = left < BLOCK ? left : BLOCK;
            const uint32_t *right = given->panels + block * panels * WIDTH;
            for (int64_t panel = 0; panel < panels; panel++, right += units * WIDTH)
                for (int64_t tile = group; tile < last; tile++) {
                    int64_t row = tile * ROWS, column = panel * WIDTH;
                    int64_t rows = given->rows - row < ROWS ? given->rows - row : ROWS;
                    int64_t columns = width - column < WIDTH ? width - column : WIDTH;
                    float *waiting = (room ? room - group * ROWS * width : (float *)to->out.at)
                        + row * width + column;
                    memset(sums, 0, sizeof sums);
                    if (block || given->adds)
                        NAME(move_sums)(sums, WIDTH, waiting, width, rows, columns);
                    TILES_FOR(to->halves)[rows - 1](
                        given->left + tile * given->left_tile + block * given->left_unit,
                        given->left_row, given->left_unit, (const float *)right, units, sums);
                    if (left <= BLOCK) NAME(produce)(given, sums, row, rows, column);
                    else NAME(move_sums)(waiting, width, sums, WIDTH, rows, columns);
                }
        }
    }
}
#undef TILES_FOR

static void NAME(multiply_all)(Multiplying *given) {
    int64_t work = ROWS * given->units * given->width + 1, worth = 1 << 19;
    share(NAME(multiply_tiles), given, (given->rows + ROWS - 1) / ROWS,
          work < worth ? (worth + work - 1) / work : 1);
}

// Numbers of room that `produce` needs.
static int64_t NAME(product_room)(const Production *to) {
    int64_t units = to->halves ? (to->depth + 1) / 2 : to->depth;
    return to->out.is_half && units > BLOCK ? threads() * GROUP_TILES * ROWS * to->width : 0;
}

static void NAME(product)(const Production *to, Matrix left, const uint32_t *panels, float *room) {
    int64_t size = to->halves ? 2 : 4;
    Multiplying given = {
        .left = left.numbers.at, .left_row = left.row * size, .left_tile = ROWS * left.row * size,
        .left_unit = 4, .panels = panels, .rows = to->rows,
        .units = to->halves ? to->depth / 2 : to->depth, .width = to->width, .to = to,
        .adds = to->adds, .room = NAME(product_room)(to) ? room : 0,
    };
    NAME(multiply_all)(&given);
}

// Left side turned: [K, M] --------------------------------------------------------------------------

#define STRIP (ROWS * LANES)  // columns of the left side that are laid out together

typedef struct {
    Matrix from;  // [K, M], of which units from `block` on
    int64_t depth, width, block, held;
    int halves;
    uint32_t *to;
    float *sums;  // [M], or null
} NAME(Turning);

static void NAME(turn_strips)(void *data, int64_t first, int64_t stop) {
    const NAME(Turning) *given = data;
    Matrix from = given->from;
    int64_t per_unit = given->halves ? 2 : 1, tile_size = given->held * ROWS;
    int64_t start = first * STRIP, end = stop * STRIP < given->width ? stop * STRIP : given->width;
    if (given->sums && !given->block)
        memset(given->sums + start, 0, (size_t)(end - start) * sizeof(float));
    for (int64_t begin = 0; begin < given->held; begin += LANES)
        for (int64_t column = start; column < end; column += STRIP) {
            int64_t columns = end - column < STRIP ? end - column : STRIP;
            uint32_t units[STRIP] = {0};
            uint32_t *to = given->to + column / ROWS * tile_size;
            float sums[STRIP] = {0};
            for (int64_t u = begin; u < begin + LANES && u < given->held; u++) {
                int64_t k = (given->block + u) * per_unit, m = 0;
                for (; m + LANES <= columns; m += LANES) {
                    Bits held = NAME(units_at)(from, k, column + m, given->depth, given->halves);
                    *(Bits *)(units + m) = held;
                }
                for (; m < columns; m++)
                    units[m] = NAME(unit_at)(from, k, column + m, given->depth, given->halves);
                for (int64_t tile = 0; tile < LANES; tile++)
                    memcpy(to + tile * tile_size + u * ROWS, units + tile * ROWS, ROWS * 4);
                if (!given->sums) continue;
                for (m = 0; m < STRIP; m += LANES) {
                    Bits held = *(Bits *)(units + m);
                    Floats sum = NAME(load)(sums + m);
                    if (given->halves) sum += (Floats)(held << 16) + (Floats)(held & 0xffff0000);
                    else sum += (Floats)held;
                    NAME(store)(sums + m, sum);
                }
            }
            if (given->sums)
                for (int64_t m = 0; m < columns; m++) given->sums[column + m] += sums[m];
        }
}

static int64_t NAME(turned_room)(const Production *to) {
    int64_t strips = (to->rows + STRIP - 1) / STRIP;
    return BLOCK * (strips * STRIP + NAME(panels_of)(to->width) * WIDTH);
}

static void NAME(turned_product)(const Production *to, Matrix left, Matrix right, float *sums,
                                 float *room) {
    int64_t per_unit = to->halves ? 2 : 1, units = (to->depth + per_unit - 1) / per_unit;
    int64_t strips = (to->rows + STRIP - 1) / STRIP, panels = NAME(panels_of)(to->width);
    uint32_t *turned = (uint32_t *)room, *laid = turned + BLOCK * strips * STRIP;
    for (int64_t block = 0; block < units; block += BLOCK) {
        int64_t held = units - block < BLOCK ? units - block : BLOCK;
        NAME(Turning) turning = {left, to->depth, to->rows, block, held, to->halves, turned, sums};
        share(NAME(turn_strips), &turning, strips, 1);
        Matrix part = right;
        int64_t from = block * per_unit, stop = (block + held) * per_unit;
        part.numbers.at = (char *)part.numbers.at + from * part.row * (part.numbers.is_half ? 2 : 4);
        NAME(Laying) laying = {part, (stop < to->depth ? stop : to->depth) - from, to->width,
                               to->halves, laid};
        share(NAME(lay_panels), &laying, panels, 1);
        Multiplying given = {
            .left = (const char *)turned, .left_tile = held * ROWS * 4, .left_row = 4,
            .left_unit = ROWS * 4, .panels = laid, .rows = to->rows, .units = held,
            .width = to->width, .adds = to->adds || block, .to = to,
        };
        NAME(multiply_all)(&given);
    }
}

#undef STRIP
#undef BLOCK
#undef GROUP_TILES
#undef Multiplying
