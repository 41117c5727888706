// Matrix products of training, in float32 or of bfloat16 numbers whose sums are float32. Read once
// for each set of instructions, by `level.h`, which names what is in it by OWN, and once more for
// processors that have registers for matrices (TILED).
//
// Both kinds go through memory in units of four bytes: one float32 number, or two bfloat16 numbers
// that follow each other along the depth, the dimension that is summed over. The right side [K, N] is
// laid out in blocks of the depth, and each block in panels of WIDTH columns, which hold for every
// unit its WIDTH columns side by side; what is missing to whole panels and units is zero. The left
// side [M, K] is read as it is; one that is turned, [K, M], is copied before: for registers of matrices
// a block as a whole, in the order it stands in; for those of vectors some tiles of ROWS rows at a time,
// so that the rows of a unit stand side by side.

// BLOCK is how many units of depth are multiplied at once: their panel stays in the cache. GROUP_TILES
// are the tiles of a whole block that go through all panels together; TOGETHER is how many units are
// laid out of one panel before the next. A panel of half as many narrow registers fits the nearest cache.
#if LANES == 8
#define BLOCK 512
#else
#define BLOCK 1024
#endif
#if TILED
#define TOGETHER 16
#define GROUP_TILES 4
#else
#define TOGETHER 1
#define GROUP_TILES 16
#endif
#define DEEP 4    // registers of units that are read at once of a row
#define NEAR (1 << 20)  // bytes that are likely in the second cache when they are written again
#define AHEAD 16  // rows or columns: how far ahead is fetched what processors do not foresee

// Left side times right side.
typedef struct {
    const Production *to;
    Matrix left;         // [M, K], or [K, M] if it is turned: of one block then
    const uint32_t *panels;
    int64_t depth, units;  // the first of a turned left side
    int adds;            // to what `out` holds already, which is float32 then
    int turned;
    float *column_sums;  // [M] of a turned left side, which are added to, or null
    float *room;         // of each thread, or where a turned left side is copied to
    int64_t tiles;       // of a group
} OWN(Multiplying);
#define Multiplying OWN(Multiplying)

static inline int64_t OWN(panels_of)(int64_t width) { return (width + WIDTH - 1) / WIDTH; }
static inline int64_t OWN(tiles_of)(const Production *to) { return (to->rows + ROWS - 1) / ROWS; }

// From a panel of so many units to the next. One unit more than it holds: panels that are a large
// power of two apart would drive each other out of the cache while they are laid out.
static inline int64_t OWN(panel_size)(int64_t units) { return (units + 1) * WIDTH; }

// Where the block begins that begins with unit `block`.
static inline int64_t OWN(block_start)(int64_t block, int64_t width) {
    return (block + block / BLOCK) * OWN(panels_of)(width) * WIDTH;
}

static int64_t OWN(right_units)(int64_t depth, int64_t width, int halves) {
    int64_t units = halves ? (depth + 1) / 2 : depth;
    return (units + (units + BLOCK - 1) / BLOCK) * OWN(panels_of)(width) * WIDTH;
}

static inline uint32_t OWN(unit_at)(Matrix from, int64_t k, int64_t n, int64_t depth, int halves) {
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

#if TILED
// LANES numbers as bfloat16, by an instruction that processors with such tiles have.
static inline __m256i OWN(halves)(Floats x) {
    __m256i halves;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(x));
    return halves;
}
#endif

// LANES float32 numbers as bfloat16, each in the lower half of a lane.
static inline Bits OWN(half_units)(const float *from) {
#if TILED
    return (Bits)_mm512_cvtepu16_epi32(OWN(halves)(NAME(load)(from)));
#else
    return NAME(rounded_bits)(NAME(load)(from)) >> 16;
#endif
}

// One register of the units of LANES columns that stand side by side.
static inline Bits OWN(units_at)(Matrix from, int64_t k, int64_t n, int64_t depth, int halves) {
    int64_t at = k * from.row + n;
    if (!halves) return (Bits)NAME(load)((const float *)from.numbers.at + at);
    Bits low, high = {0};
    if (from.numbers.is_half) {
        const uint16_t *numbers = from.numbers.at;
        low = NAME(widened)(numbers + at);
        if (k + 1 < depth) high = NAME(widened)(numbers + at + from.row);
        return low | high << 16;
    }
    low = OWN(half_units)((const float *)from.numbers.at + at);
    if (k + 1 < depth) high = OWN(half_units)((const float *)from.numbers.at + at + from.row);
    return low | high << 16;
}

// The same where fewer columns may be left; zeros stand for those that are missing.
static inline Bits OWN(units_left)(Matrix from, int64_t k, int64_t n, int64_t left, int64_t depth,
                                    int halves) {
    if (left >= LANES) return OWN(units_at)(from, k, n, depth, halves);
    uint32_t units[LANES] = {0};
    for (int64_t i = 0; i < left; i++) units[i] = OWN(unit_at)(from, k, n + i, depth, halves);
    return *(Bits *)units;
}

typedef struct {
    Matrix from;  // [K, N]
    int64_t depth, width;
    int halves;
    uint32_t *to;
} OWN(Laying);

// Up to DEEP registers of units, from k on, of all columns of a panel, where numbers stand side by side
// along the depth: they are gathered column by column and written unit by unit.
static void OWN(lay_turned)(Matrix from, int64_t k, int64_t column, int64_t columns, int64_t depth,
                             int halves, int64_t units, uint32_t *to) {
    uint32_t gathered[WIDTH][DEEP * LANES] __attribute__((aligned(64)));
    int64_t per_unit = halves ? 2 : 1, numbers = per_unit * units;
    int whole = units == DEEP * LANES && k + numbers <= depth && from.row == 1;
    for (int64_t n = 0; n < columns; n++) {
        uint32_t *own = gathered[n];
        int64_t at = k + (column + n) * from.column;
        for (int64_t i = 0; i < numbers; i += from.numbers.is_half ? 32 : 16)
            fetch(from, k + i, column + n + AHEAD);
        if (whole && from.numbers.is_half) {
            memcpy(own, (const uint16_t *)from.numbers.at + at, 4 * DEEP * LANES);
        } else if (whole) {
            Numbers out = {own, halves};
            for (int64_t i = 0; i < numbers; i += LANES)
                NAME(put)(out, i, NAME(load)((const float *)from.numbers.at + at + i));
        } else {
            for (int64_t u = 0; u < units; u++)
                own[u] = OWN(unit_at)(from, k + u * per_unit, column + n, depth, halves);
        }
    }
    for (int64_t u = 0; u < units; u += LANES)
        for (int64_t n = 0; n < columns; n += LANES) {
            Bits of_columns[LANES] = {{0}};
            for (int64_t i = 0; i < LANES && n + i < columns; i++)
                of_columns[i] = *(Bits *)(gathered[n + i] + u);
            NAME(transpose)(of_columns);
            for (int64_t i = 0; i < LANES && u + i < units; i++)
                *(Bits *)(to + (u + i) * WIDTH + n) = of_columns[i];
        }
}

static void OWN(lay_panels)(void *data, int64_t first, int64_t stop) {
    const OWN(Laying) *given = data;
    Matrix from = given->from;
    int halves = given->halves;
    int64_t per_unit = halves ? 2 : 1, depth = given->depth, width = given->width;
    int64_t units = (depth + per_unit - 1) / per_unit;
    // Numbers are read in the order they stand in.
    int64_t step = from.column == 1 ? TOGETHER : DEEP * LANES;
    for (int64_t block = 0; block < units; block += BLOCK) {
        int64_t held = units - block < BLOCK ? units - block : BLOCK;
        uint32_t *of_block = given->to + OWN(block_start)(block, width);
        for (int64_t u = 0; u < held; u += step)
            for (int64_t panel = first; panel < stop; panel++) {
                uint32_t *to = of_block + panel * OWN(panel_size)(held) + u * WIDTH;
                int64_t k = (block + u) * per_unit, column = panel * WIDTH;
                int64_t columns = width - column < WIDTH ? width - column : WIDTH;
                int64_t count = held - u < step ? held - u : step;
                if (from.column != 1) {
                    if (columns < WIDTH) memset(to, 0, (size_t)(count * WIDTH) * 4);
                    OWN(lay_turned)(from, k, column, columns, depth, halves, count, to);
                    continue;
                }
                for (int64_t i = 0; i < count; i++, k += per_unit, to += WIDTH) {
                    for (int64_t n = 0; n < WIDTH; n += from.numbers.is_half ? 32 : 16)
                        for (int64_t row = k; row < k + per_unit; row++)
                            fetch(from, row + AHEAD, column + n);
                    for (int64_t n = 0; n < WIDTH; n += LANES)
                        *(Bits *)(to + n)
                            = OWN(units_left)(from, k, column + n, columns - n, depth, halves);
                }
            }
    }
}

// Work on so many panels or tiles of rows: neighbouring ones by one thread, which reads long rows so.
static void OWN(share_columns)(Work work, void *data, int64_t count, int64_t rows) {
    share(work, data, count, most(1 + 4096 / (rows + 1), count / threads()));
}

static void OWN(lay_right)(Matrix from, int64_t depth, int64_t width, int halves, uint32_t *to) {
    OWN(Laying) given = {from, depth, width, halves, to};
    OWN(share_columns)(OWN(lay_panels), &given, OWN(panels_of)(width), depth);
}

// As `put`.
static inline __attribute__((always_inline)) void OWN(write)(Numbers to, int64_t i, Floats x) {
#if TILED
    if (to.is_half) {
        _mm256_storeu_si256((__m256i *)((uint16_t *)to.at + i), OWN(halves)(x));
        return;
    }
#endif
    NAME(put)(to, i, x);
}

// Whether sums need no more than to be written.
static inline int OWN(is_plain)(const Production *to) {
    return !to->bias && to->activation == NO_ACTIVATION && !to->gate.at && !to->slopes.at;
}

// Fetch what a tile's sums will meet, which lies in short pieces far apart.
static inline void OWN(fetch_beside)(const Production *to, int64_t row, int64_t rows,
                                     int64_t column) {
    Numbers beside = to->gate.at || to->activation != NO_ACTIVATION ? to->gate : to->slopes;
    if (!beside.at) return;
    Matrix of = {beside, to->width, 1};
    int64_t line = beside.is_half ? 32 : 16;
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t n = 0; n < WIDTH; n += line) fetch(of, i, column + n);
}

// What becomes of some rows of sums; `whole` says that each fills a tile's WIDTH.
static inline __attribute__((always_inline)) void OWN(produce_rows)(
    Production to, const float *sums, int64_t row, int64_t rows, int64_t column, int activation,
    int is_half, int whole) {
    int64_t columns = whole ? WIDTH : to.width - column, at = row * to.width + column;
    to.out.is_half = to.slopes.is_half = is_half;
    for (int64_t i = 0; i < rows; i++, sums += WIDTH, at += to.width)
        for (int64_t n = 0; n < columns; n += LANES) {
            int64_t left = whole ? LANES : columns - n;
            Floats y = NAME(load)(sums + n), slope;
            if (to.bias) y += NAME(piece)(to.bias + column, n, columns);
            if (activation == NO_ACTIVATION && to.slopes.at)
                y *= NAME(take_some)(to.slopes, at + n, left);
            if (activation != NO_ACTIVATION) y = NAME(activate)(activation, y, &slope);
            if (to.gate.at)
                y = NAME(choose)(NAME(take_some)(to.gate, at + n, left) <= 0.0f,
                                 NAME(every)(0.0f), y);
            if (left >= LANES) OWN(write)(to.out, at + n, y);
            else NAME(put_some)(to.out, at + n, y, left);
            if (activation == NO_ACTIVATION || activation == RELU) continue;
            if (left >= LANES) OWN(write)(to.slopes, at + n, slope);
            else NAME(put_some)(to.slopes, at + n, slope, left);
        }
}

// What becomes of a tile's sums [rows, WIDTH], which are those of the columns from `column` on.
static void OWN(produce)(const Production *to, const float *sums, int64_t row, int64_t rows,
                          int64_t column) {
#define PRODUCE(is_half, activation)                                                              \
    if (to->width - column < WIDTH)                                                               \
        OWN(produce_rows)(*to, sums, row, rows, column, activation, is_half, 0);                  \
    else OWN(produce_rows)(*to, sums, row, rows, column, activation, is_half, 1);                 \
    break
#define PRODUCE_EACH(is_half)                                                                     \
    switch (to->activation) {                                                                     \
        case RELU: PRODUCE(is_half, RELU);                                                        \
        case SILU: PRODUCE(is_half, SILU);                                                        \
        case GELU: PRODUCE(is_half, GELU);                                                        \
        case GELU_TANH: PRODUCE(is_half, GELU_TANH);                                              \
        default: PRODUCE(is_half, NO_ACTIVATION);                                                 \
    }
    // What is the same of all numbers is decided before, or deciding it takes longer than the rest.
    if (to->out.is_half) {
        PRODUCE_EACH(1)
    } else {
        PRODUCE_EACH(0)
    }
#undef PRODUCE_EACH
#undef PRODUCE
}

// Rows from `row` on of the columns of a panel, from `column` on.
typedef struct {
    int64_t row, rows, column;
} OWN(Tile);

// What is done besides multiplying a tile, row by row: the sums of the tile before are produced, and
// where this one's will stand is fetched, with what they will meet.
typedef struct {
    const Production *to;
    OWN(Tile) before, now;
    const float *sums;      // [rows, WIDTH] of the tile before
    int expects, meets;     // what is fetched
    int64_t done, at_once;  // rows
} OWN(Besides);
#define Besides OWN(Besides)

static void OWN(do_besides)(void *data) {
    Besides *given = data;
    const Production *to = given->to;
    OWN(Tile) before = given->before, now = given->now;
    int64_t from = given->done, size = to->out.is_half ? 2 : 4;
    given->done += given->at_once;
    int64_t rows = fewer(given->done, now.rows) - from;
    if (rows > 0 && given->expects) {
        int64_t at = ((now.row + from) * to->width + now.column) * size;
        expect((const char *)to->out.at + at, rows, to->width * size, WIDTH * size);
    }
    if (rows > 0 && given->meets) OWN(fetch_beside)(to, now.row + from, rows, now.column);
    rows = fewer(given->done, before.rows) - from;
    if (rows > 0)
        OWN(produce)(to, given->sums + from * WIDTH, before.row + from, rows, before.column);
}

// Some rows of a left side as tiles read them, in bytes: unit u of row i of a tile at
// i·row_step + u·unit_step, the next tile `tile_step` further.
typedef struct {
    const char *at;
    int64_t row_step, unit_step, tile_step;
    int is_whole;  // whether nothing stands between the units of a tile
} OWN(Left);

#if TILED
#include "matrix_tile.h"
#else
#include "vector_tile.h"
#endif

static OWN(Left) OWN(left_rows)(const Multiplying *given, int64_t start, int64_t end, float *room) {
    if (given->turned) return OWN(turned_rows)(given, start, end, (uint32_t *)room);
    int64_t row_step = given->left.row * (given->to->halves ? 2 : 4);
    const char *at = (const char *)given->left.numbers.at + start * row_step;
    return (OWN(Left)){at, row_step, 4, ROWS * row_step,
                       row_step == 4 * given->units && given->units <= BLOCK};
}

// Sums of a tile [rows, WIDTH] from or to where they wait between blocks, `width` apart there.
static void OWN(move_sums)(float *to, int64_t to_step, const float *from, int64_t from_step,
                           int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_step, from + i * from_step, (size_t)columns * 4);
}

// Numbers of room that each thread needs: for a group's sums that wait between blocks, where `out`
// cannot hold them, or for what it copies of a turned left side.
static int64_t OWN(thread_room)(const Production *to, int turned) {
    if (turned) return OWN(turned_group);
    int64_t units = to->halves ? (to->depth + 1) / 2 : to->depth;
    return to->out.is_half && units > BLOCK ? GROUP_TILES * ROWS * to->width : 0;
}

// Rows from `start` on times a block of all panels, from unit `block` on. Sums that wait for the
// next block do so in `room`, or, if that is null, in `out`.
static void OWN(multiply_block)(const Multiplying *given, OWN(Left) left, int64_t start,
                                int64_t end, int64_t block, float *room) {
    const Production *to = given->to;
    int64_t width = to->width, panels = OWN(panels_of)(width), rest = given->units - block;
    int64_t units = rest < BLOCK ? rest : BLOCK, size = to->out.is_half ? 2 : 4;
    int adds = block || given->adds, ends = rest <= BLOCK;
    int is_plain = OWN(is_plain)(to) && !to->out.is_half;
    float rooms[2][ROWS * WIDTH] __attribute__((aligned(64))) = {{0}}, *sums = rooms[0];
    Besides besides = {.to = to, .meets = ends,
                       .expects = (ends || !room) && to->rows * width * size > NEAR};
    const uint32_t *right = given->panels + OWN(block_start)(block, width), *after;
    for (int64_t panel = 0; panel < panels; panel++, right = after) {
        // Together the tiles of a group fetch the next panel; of the first, each the next tile.
        after = right + OWN(panel_size)(units);
        const char *next = (const char *)(ends && panel + 1 == panels ? given->panels : after);
        int64_t next_step = 4 * WIDTH / given->tiles;
        if (!panel && left.is_whole) {
            next = left.at + left.tile_step;
            next_step = 4 * ROWS;
        }
        int64_t column = panel * WIDTH, columns = width - column < WIDTH ? width - column : WIDTH;
        // Where sums stay as they are, registers are filled from there and written back there.
        int direct = columns == WIDTH && (is_plain || !ends);
        const char *from = left.at + block * left.unit_step;
        for (int64_t row = start; row < end;
             row += ROWS, next += units * next_step, from += left.tile_step) {
            int64_t rows = end - row < ROWS ? end - row : ROWS;
            float *waiting = room ? room + (row - start) * width + column
                                  : (float *)to->out.at + row * width + column;
            besides.now = (OWN(Tile)){row, rows, column};
            besides.done = 0;
            if (adds && !direct) OWN(move_sums)(sums, WIDTH, waiting, width, rows, columns);
            OWN(multiply_rows)(to->halves, rows, from, left.row_step, left.unit_step,
                               (const float *)right, units, direct ? waiting : sums,
                               direct ? width : WIDTH, adds, next, next_step, &besides);
            if (direct) continue;
            if (!ends) {
                OWN(move_sums)(waiting, width, sums, WIDTH, rows, columns);
                continue;
            }
            besides.before = besides.now;
            besides.sums = sums;
            sums = rooms[sums == rooms[0]];
        }
    }
    besides.now.rows = besides.done = 0;
    besides.at_once = ROWS;
    OWN(do_besides)(&besides);
}

static void OWN(multiply_groups)(void *data, int64_t first, int64_t stop) {
    const Multiplying *given = data;
    int64_t size = OWN(thread_room)(given->to, given->turned), rows = given->tiles * ROWS;
    float *room = size ? given->room + (threads() > 1 ? omp_get_thread_num() : 0) * size : 0;
    OWN(begin_tiles)();
    for (int64_t start = first * rows; start < stop * rows; start += rows) {
        int64_t end = start + rows < given->to->rows ? start + rows : given->to->rows;
        OWN(Left) left = OWN(left_rows)(given, start, end, room);
        for (int64_t block = 0; block < given->units; block += BLOCK)
            OWN(multiply_block)(given, left, start, end, block, given->turned ? 0 : room);
    }
    OWN(end_tiles)();
}

static void OWN(multiply_all)(Multiplying *given) {
    const Production *to = given->to;
    given->tiles = even_tiles(OWN(tiles_of)(to), OWN(most_tiles)(given->units));
    int64_t rows = given->tiles * ROWS, groups = (to->rows + rows - 1) / rows;
    int64_t work = rows * given->units * to->width + 1, worth = 1 << 19;
    share(OWN(multiply_groups), given, groups, work < worth ? (worth + work - 1) / work : 1);
}

// Numbers of room that a product needs.
static int64_t OWN(product_room)(const Production *to, int turned) {
    int64_t right = turned ? OWN(right_units)(BLOCK, to->width, 0) : 0;
    return right + threads() * OWN(thread_room)(to, turned) + (turned ? OWN(turned_room)(to) : 0);
}

static void OWN(product)(const Production *to, Matrix left, const uint32_t *panels, float *room) {
    Multiplying given = {
        .to = to, .left = left, .panels = panels, .room = room, .adds = to->adds,
        .units = to->halves ? to->depth / 2 : to->depth,
    };
    OWN(multiply_all)(&given);
}

// Rows of a matrix from one on.
static Matrix OWN(from_row)(Matrix of, int64_t row) {
    of.numbers.at = (char *)of.numbers.at + row * of.row * (of.numbers.is_half ? 2 : 4);
    return of;
}

static void OWN(turned_product)(const Production *to, Matrix left, Matrix right, float *sums,
                                 float *room) {
    int64_t numbers = (to->halves ? 2 : 1) * BLOCK;
    uint32_t *laid = (uint32_t *)room;
    if (sums) memset(sums, 0, (size_t)to->rows * sizeof(float));
    for (int64_t k = 0; k < to->depth; k += numbers) {
        int64_t depth = to->depth - k < numbers ? to->depth - k : numbers;
        OWN(lay_right)(OWN(from_row)(right, k), depth, to->width, to->halves, laid);
        Multiplying given = {
            .to = to, .left = OWN(from_row)(left, k), .depth = depth, .turned = 1,
            .column_sums = sums, .panels = laid, .units = to->halves ? (depth + 1) / 2 : depth,
            .adds = to->adds || k, .room = room + OWN(right_units)(BLOCK, to->width, 0),
        };
        OWN(turn_left)(&given);
        OWN(multiply_all)(&given);
    }
}

#undef BLOCK
#undef GROUP_TILES
#undef AHEAD
#undef NEAR
#undef TOGETHER
#undef DEEP
#undef Multiplying
#undef Besides
