// Matrix products of training, in float32 or of bfloat16 numbers whose sums are float32. Read once
// for each set of instructions, by `level.h`.
//
// Both kinds go through memory in units of four bytes: one float32 number, or two bfloat16 numbers
// that follow each other along the depth, the dimension that is summed over. The right side [K, N] is
// laid out in blocks of the depth, and each block in panels of WIDTH columns, which hold for every
// unit its WIDTH columns side by side; what is missing to whole panels and units is zero. The left
// side [M, K] is read as it is; one that is turned, [K, M], is copied some tiles of ROWS rows at a
// time, so that the rows of a unit stand side by side.

#define BLOCK 1024      // units of depth that are multiplied at once: their panel stays in the cache
#define GROUP_TILES 16  // tiles of a whole block that go through all panels together
#define AHEAD 16        // rows or columns: how far ahead is fetched what processors do not foresee

// Left side times right side.
typedef struct {
    const Production *to;
    Matrix left;         // [M, K], or [K, M] if it is turned: of one block then
    const uint32_t *panels;
    int64_t depth, units;  // the first of a turned left side
    int adds;            // to what `out` holds already, which is float32 then
    int turned;
    float *column_sums;  // [M] of a turned left side, which are added to, or null
    float *room;         // of each thread
    int64_t tiles;       // of a group
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

// The same where fewer columns may be left; zeros stand for those that are missing.
static inline Bits NAME(units_left)(Matrix from, int64_t k, int64_t n, int64_t left, int64_t depth,
                                    int halves) {
    if (left >= LANES) return NAME(units_at)(from, k, n, depth, halves);
    uint32_t units[LANES] = {0};
    for (int64_t i = 0; i < left; i++) units[i] = NAME(unit_at)(from, k, n + i, depth, halves);
    return *(Bits *)units;
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
        fetch(from, k, column + n + AHEAD);
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
                int64_t k = (block + u) * per_unit, column = panel * WIDTH;
                int64_t columns = width - column < WIDTH ? width - column : WIDTH;
                if (step > 1) {
                    int64_t count = held - u < step ? held - u : step;
                    if (columns < WIDTH) memset(to, 0, (size_t)(count * WIDTH) * 4);
                    NAME(lay_turned)(from, k, column, columns, depth, halves, count, to);
                    continue;
                }
                for (int64_t n = 0; n < WIDTH; n += LANES) {
                    fetch(from, k + AHEAD, column + n);
                    if (halves) fetch(from, k + AHEAD + 1, column + n);
                    *(Bits *)(to + n)
                        = NAME(units_left)(from, k, column + n, columns - n, depth, halves);
                }
            }
    }
}

static void NAME(lay_right)(Matrix from, int64_t depth, int64_t width, int halves, uint32_t *to) {
    NAME(Laying) given = {from, depth, width, halves, to};
    // Neighbouring panels by one thread, which reads long rows so.
    int64_t panels = NAME(panels_of)(width), even = panels / threads();
    share(NAME(lay_panels), &given, panels, most(1 + 4096 / (depth + 1), even));
}

// What becomes of a tile's sums [rows, WIDTH], which are those of the columns from `column` on.
static void NAME(produce)(const Production *to, const float *sums, int64_t row, int64_t rows,
                          int64_t column) {
    int64_t left = to->width - column, columns = left < WIDTH ? left : WIDTH;
    for (int64_t i = 0; i < rows; i++, row++, sums += WIDTH) {
        int64_t at = row * to->width + column, n = 0;
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

// Some units of a tile's rows times those of a panel: sums of `count` rows `sums_step` apart, which
// start at zero or are added to. Meanwhile a part of what is read next is brought near.
#define MULTIPLY_TILE(kind, count, ADD)                                                          \
    static void NAME(kind##count)(const char *left, int64_t row_step, int64_t unit_step,         \
                                  const float *right, int64_t units, float *sums,                \
                                  int64_t sums_step, int adds, const char *next,                 \
                                  int64_t next_step) {                                           \
        Floats held[count][PANEL];                                                               \
        EACH(i, count) EACH(j, PANEL) held[i][j] = NAME(every)(0.0f);                            \
        if (adds)                                                                                \
            EACH(i, count) EACH(j, PANEL)                                                        \
                held[i][j] = NAME(load)(sums + i * sums_step + j * LANES);                       \
        for (int64_t u = 0; u < units; u++, left += unit_step, right += WIDTH) {                 \
            Floats row[PANEL];                                                                   \
            __builtin_prefetch(next, 0, 2);                                                      \
            next += next_step;                                                                   \
            EACH(j, PANEL) row[j] = NAME(load)(right + j * LANES);                               \
            EACH(i, count) {                                                                     \
                Floats one = NAME(every)(*(const NAME(Unit) *)(left + i * row_step));            \
                EACH(j, PANEL) ADD(held[i][j], one, row[j]);                                     \
            }                                                                                    \
        }                                                                                        \
        EACH(i, count) EACH(j, PANEL)                                                            \
            NAME(store)(sums + i * sums_step + j * LANES, held[i][j]);                           \
    }
#define ALL_TILES(kind, ADD)                                                                  \
    MULTIPLY_TILE(kind, 1, ADD) MULTIPLY_TILE(kind, 2, ADD) MULTIPLY_TILE(kind, 3, ADD)       \
    MULTIPLY_TILE(kind, 4, ADD) MULTIPLY_TILE(kind, 5, ADD) MULTIPLY_TILE(kind, 6, ADD)       \
    static void (*const NAME(kind##_tiles)[])(const char *, int64_t, int64_t, const float *,  \
                                              int64_t, float *, int64_t, int, const char *,   \
                                              int64_t)                                        \
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

// What will be written is fetched while the sums are not there yet.
static void NAME(expect_out)(const Production *to, int64_t row, int64_t rows, int64_t column) {
    int64_t size = to->out.is_half ? 2 : 4;
    const char *at = (const char *)to->out.at + (row * to->width + column) * size;
    for (int64_t i = 0; i < rows; i++, at += to->width * size)
        for (int64_t byte = 0; byte < WIDTH * size; byte += 64) __builtin_prefetch(at + byte, 1, 3);
}

// Units of some columns of a turned left side [K, M]: [units, columns], filled up to whole registers.
static inline __attribute__((always_inline)) void NAME(turn_left)(
    const Multiplying *given, int64_t column, int64_t columns, uint32_t *to, int halves) {
    Matrix left = given->left;
    left.numbers.is_half = halves;
    float *sums = given->column_sums;
    for (int64_t u = 0; u < given->units; u++)
        for (int64_t m = column, end = column + columns; m < end; m += LANES, to += LANES) {
            int64_t k = halves ? 2 * u : u;
            fetch(left, k + AHEAD, m);
            if (halves) fetch(left, k + AHEAD + 1, m);
            Bits units = NAME(units_left)(left, k, m, end - m, given->depth, halves);
            *(Bits *)to = units;
            if (!sums) continue;
            Floats sum = (Floats)units;
            if (halves) sum = (Floats)(units << 16) + (Floats)(units & 0xffff0000);
            if (end - m >= LANES) NAME(store)(sums + m, NAME(load)(sums + m) + sum);
            else for (int64_t i = 0; i < end - m; i++) sums[m + i] += sum[i];
        }
}

static void NAME(turn_columns)(const Multiplying *given, int64_t column, int64_t columns,
                               uint32_t *to) {
    if (given->to->halves) NAME(turn_left)(given, column, columns, to, 1);
    else NAME(turn_left)(given, column, columns, to, 0);
}

// Tiles of a group: so many that the units of a block stay in the cache, and fewer where each thread
// can have as many groups of them as another. A multiple of 8 fills registers.
static int64_t NAME(group_tiles)(int64_t rows, int64_t units) {
    int64_t tiles = (rows + ROWS - 1) / ROWS, used = threads();
    int64_t most = GROUP_TILES * BLOCK / (units < BLOCK ? units : BLOCK) / 8 * 8;
    int64_t rounds = (tiles + used * most - 1) / (used * most);
    return (tiles + used * rounds - 1) / (used * rounds);
}

// Numbers of room that each thread needs: for a group's sums that wait between blocks, where `out`
// cannot hold them, or for a group of a turned left side.
static int64_t NAME(thread_room)(const Production *to, int turned) {
    if (turned) return BLOCK * GROUP_TILES * ROWS;
    int64_t units = to->halves ? (to->depth + 1) / 2 : to->depth;
    return to->out.is_half && units > BLOCK ? GROUP_TILES * ROWS * to->width : 0;
}

// Some rows of a left side as tiles read them: unit u of row i at i·row_step + u·unit_step bytes.
typedef struct {
    const char *at;
    int64_t row_step, unit_step;
} NAME(Left);

static NAME(Left) NAME(left_rows)(const Multiplying *given, int64_t start, int64_t end, float *room) {
    if (given->turned) {
        NAME(turn_columns)(given, start, end - start, (uint32_t *)room);
        return (NAME(Left)){(const char *)room, 4, NAME(filled)(end - start) * 4};
    }
    int64_t row_step = given->left.row * (given->to->halves ? 2 : 4);
    return (NAME(Left)){(const char *)given->left.numbers.at + start * row_step, row_step, 4};
}

// Rows from `start` on times a block of all panels, from unit `block` on. Sums that wait for the next
// block do so in `room`, or, if that is null, in `out`.
static void NAME(multiply_block)(const Multiplying *given, NAME(Left) left, int64_t start, int64_t end,
                                 int64_t block, float *room) {
    const Production *to = given->to;
    int64_t width = to->width, panels = NAME(panels_of)(width), rest = given->units - block;
    int64_t units = rest < BLOCK ? rest : BLOCK;
    int adds = block || given->adds, ends = rest <= BLOCK;
    int is_plain = !to->bias && !to->rectify && !to->gate.at && !to->out.is_half;
    float sums[ROWS * WIDTH] __attribute__((aligned(64))) = {0};
    const uint32_t *right = given->panels + block * panels * WIDTH;
    for (int64_t panel = 0; panel < panels; panel++, right += units * WIDTH) {
        // Together the tiles of a group fetch the next panel; of the first, each the next tile.
        const char *next
            = (const char *)(ends && panel + 1 == panels ? given->panels : right + units * WIDTH);
        int64_t next_step = 4 * WIDTH / given->tiles;
        if (!panel && left.row_step == units * left.unit_step) {
            next = left.at + ROWS * left.row_step;
            next_step = ROWS * left.unit_step;
        }
        int64_t column = panel * WIDTH, columns = width - column < WIDTH ? width - column : WIDTH;
        // Where sums stay as they are, registers are filled from there and written back there.
        int direct = columns == WIDTH && (is_plain || !ends);
        for (int64_t row = start; row < end; row += ROWS, next += units * next_step) {
            int64_t rows = end - row < ROWS ? end - row : ROWS;
            float *waiting = room ? room + (row - start) * width + column
                                  : (float *)to->out.at + row * width + column;
            if (ends || !room) NAME(expect_out)(to, row, rows, column);
            if (adds && !direct) NAME(move_sums)(sums, WIDTH, waiting, width, rows, columns);
            TILES_FOR(to->halves)[rows - 1](
                left.at + (row - start) * left.row_step + block * left.unit_step, left.row_step,
                left.unit_step, (const float *)right, units, direct ? waiting : sums,
                direct ? width : WIDTH, adds, next, next_step);
            if (direct) continue;
            if (ends) NAME(produce)(to, sums, row, rows, column);
            else NAME(move_sums)(waiting, width, sums, WIDTH, rows, columns);
        }
    }
}

static void NAME(multiply_groups)(void *data, int64_t first, int64_t stop) {
    const Multiplying *given = data;
    int64_t size = NAME(thread_room)(given->to, given->turned), rows = given->tiles * ROWS;
    float *room = size ? given->room + (threads() > 1 ? omp_get_thread_num() : 0) * size : 0;
    for (int64_t start = first * rows; start < stop * rows; start += rows) {
        int64_t end = start + rows < given->to->rows ? start + rows : given->to->rows;
        NAME(Left) left = NAME(left_rows)(given, start, end, room);
        for (int64_t block = 0; block < given->units; block += BLOCK)
            NAME(multiply_block)(given, left, start, end, block, given->turned ? 0 : room);
    }
}
#undef TILES_FOR

static void NAME(multiply_all)(Multiplying *given) {
    const Production *to = given->to;
    given->tiles = NAME(group_tiles)(to->rows, given->units);
    int64_t rows = given->tiles * ROWS, groups = (to->rows + rows - 1) / rows;
    int64_t work = rows * given->units * to->width + 1, worth = 1 << 19;
    share(NAME(multiply_groups), given, groups, work < worth ? (worth + work - 1) / work : 1);
}

// Numbers of room that a product needs.
static int64_t NAME(product_room)(const Production *to, int turned) {
    int64_t right = turned ? BLOCK * NAME(panels_of)(to->width) * WIDTH : 0;
    return right + threads() * NAME(thread_room)(to, turned);
}

static void NAME(product)(const Production *to, Matrix left, const uint32_t *panels, float *room) {
    Multiplying given = {
        .to = to, .left = left, .panels = panels, .room = room, .adds = to->adds,
        .units = to->halves ? to->depth / 2 : to->depth,
    };
    NAME(multiply_all)(&given);
}

// Rows of a matrix from one on.
static Matrix NAME(from_row)(Matrix of, int64_t row) {
    of.numbers.at = (char *)of.numbers.at + row * of.row * (of.numbers.is_half ? 2 : 4);
    return of;
}

static void NAME(turned_product)(const Production *to, Matrix left, Matrix right, float *sums,
                                 float *room) {
    int64_t numbers = to->halves ? 2 * BLOCK : BLOCK, panels = NAME(panels_of)(to->width);
    uint32_t *laid = (uint32_t *)room;
    if (sums) memset(sums, 0, (size_t)to->rows * sizeof(float));
    for (int64_t k = 0; k < to->depth; k += numbers) {
        int64_t depth = to->depth - k < numbers ? to->depth - k : numbers;
        NAME(lay_right)(NAME(from_row)(right, k), depth, to->width, to->halves, laid);
        Multiplying given = {
            .to = to, .left = NAME(from_row)(left, k), .depth = depth, .turned = 1,
            .column_sums = sums, .panels = laid, .units = to->halves ? (depth + 1) / 2 : depth,
            .adds = to->adds || k, .room = room + BLOCK * panels * WIDTH,
        };
        NAME(multiply_all)(&given);
    }
}

#undef BLOCK
#undef GROUP_TILES
#undef AHEAD
#undef Multiplying
