// Matrix products of training, in float32, or of bfloat16 numbers with float32 sums.
//
// All goes through memory in units of four bytes: one float32 number, or two bfloat16 numbers that
// follow each other along the depth. B [K, N] is packed in blocks of KC units, and each block in
// panels of GEMM_NR columns: for every unit its columns side by side; missing columns and units are
// zero. A [M, K] is read as it is. A transposed A, [K, M], is packed first: for AMX a whole block, in
// the order it is read in; for vectors some tiles of GEMM_MR rows at a time.
//
// The micro-kernel is in `gemm_vector.h`, or in `gemm_amx.h` for AMX, which multiplies bfloat16 only.

#if LANES == 8
#define KC 512  // a panel of half as many narrow registers fits the nearest cache
#else
#define KC 1024
#endif
#if HAS_AMX
#define GEMM_MR AMX_MR
#define GEMM_NR AMX_NR
#define MC_TILES 4     // tiles of A that go through all panels together
#define PACK_UNITS 16  // units that are packed of one panel before the next
#else
#define GEMM_MR MR
#define GEMM_NR NR
#define MC_TILES 16
#define PACK_UNITS 1
#endif
#define PACK_VECTORS 4           // registers of units that are read at once of a row
#define L2_BYTES (1 << 20)       // what is likely in the second cache when it is written again
#define PREFETCH_DISTANCE 16     // rows or columns ahead, where processors do not foresee the next

typedef struct {
    const Gemm *gemm;
    Matrix a;  // [M, K], or one block [K, M] of a transposed A
    const uint32_t *packed_b;
    int64_t depth, units;  // depth: of a transposed A
    int accumulate;        // add to `out`, which is float32 then
    int transpose_a;
    float *column_sums;  // [M] of a transposed A, added to; or null
    float *workspace;    // of each thread, or for a packed A
    int64_t tiles;       // that go through all panels together
} GemmCall;

static inline int64_t num_panels(int64_t width) { return ceil_div(width, GEMM_NR); }
static inline int64_t num_tiles(const Gemm *gemm) { return ceil_div(gemm->rows, GEMM_MR); }

// From a panel of so many units to the next. One unit more than it holds: panels a large power of two
// apart would drive each other out of the cache while they are packed.
static inline int64_t panel_stride(int64_t units) { return (units + 1) * GEMM_NR; }

// Where the block that begins with unit `block` is packed.
static inline int64_t block_start(int64_t block, int64_t width) {
    return (block + block / KC) * num_panels(width) * GEMM_NR;
}

static int64_t packed_b_size(int64_t depth, int64_t width, int is_bf16) {
    int64_t units = is_bf16 ? (depth + 1) / 2 : depth;
    return (units + ceil_div(units, KC)) * num_panels(width) * GEMM_NR;
}

// Packing B ----------------------------------------------------------------------------------------

static inline uint32_t load_unit(Matrix from, int64_t k, int64_t n, int64_t depth, int is_bf16) {
    int64_t at = k * from.row_stride + n * from.column_stride, next = at + from.row_stride;
    uint32_t unit;
    if (from.array.is_bf16) {
        const uint16_t *numbers = from.array.data;
        return numbers[at] | (k + 1 < depth ? (uint32_t)numbers[next] << 16 : 0);
    }
    const float *numbers = from.array.data;
    if (!is_bf16) {
        memcpy(&unit, numbers + at, 4);
        return unit;
    }
    return bf16_bits(numbers[at]) | (k + 1 < depth ? bf16_bits(numbers[next]) << 16 : 0);
}

#if HAS_AMX
// LANES numbers as bfloat16, by an instruction that processors with AMX have.
static inline __m256i convert_bf16(Floats x) {
    __m256i converted;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(converted) : "v"(x));
    return converted;
}
#endif

// LANES float32 numbers as bfloat16, each in the lower half of a lane.
static inline Bits load_as_bf16(const float *from) {
#if HAS_AMX
    return (Bits)_mm512_cvtepu16_epi32(convert_bf16(load(from)));
#else
    return round_bf16(load(from)) >> 16;
#endif
}

// The units of LANES neighbouring columns.
static inline Bits load_units(Matrix from, int64_t k, int64_t n, int64_t depth, int is_bf16) {
    int64_t at = k * from.row_stride + n;
    if (!is_bf16) return (Bits)load((const float *)from.array.data + at);
    Bits low, high = {0};
    if (from.array.is_bf16) {
        const uint16_t *numbers = from.array.data;
        low = load_bf16(numbers + at);
        if (k + 1 < depth) high = load_bf16(numbers + at + from.row_stride);
        return low | high << 16;
    }
    low = load_as_bf16((const float *)from.array.data + at);
    if (k + 1 < depth) high = load_as_bf16((const float *)from.array.data + at + from.row_stride);
    return low | high << 16;
}

// The same where fewer columns may be left; missing ones are zero.
static inline Bits load_units_tail(Matrix from, int64_t k, int64_t n, int64_t left, int64_t depth,
                                   int is_bf16) {
    if (left >= LANES) return load_units(from, k, n, depth, is_bf16);
    uint32_t units[LANES] = {0};
    for (int64_t i = 0; i < left; i++) units[i] = load_unit(from, k, n + i, depth, is_bf16);
    return *(Bits *)units;
}

typedef struct {
    Matrix b;  // [K, N]
    int64_t depth, width;
    int is_bf16;
    uint32_t *packed;
} PackCall;

// Up to PACK_VECTORS registers of units, from k on, of all columns of a panel, for a B whose columns
// are contiguous: they are gathered column by column and written unit by unit.
static void pack_columns(Matrix b, int64_t k, int64_t column, int64_t columns, int64_t depth,
                         int is_bf16, int64_t units, uint32_t *packed) {
    uint32_t gathered[GEMM_NR][PACK_VECTORS * LANES] __attribute__((aligned(64)));
    int64_t per_unit = is_bf16 ? 2 : 1, numbers = per_unit * units;
    int whole = units == PACK_VECTORS * LANES && k + numbers <= depth && b.row_stride == 1;
    for (int64_t n = 0; n < columns; n++) {
        uint32_t *to = gathered[n];
        int64_t at = k + (column + n) * b.column_stride;
        for (int64_t i = 0; i < numbers; i += b.array.is_bf16 ? 32 : 16)
            prefetch(b, k + i, column + n + PREFETCH_DISTANCE);
        if (whole && b.array.is_bf16) {
            memcpy(to, (const uint16_t *)b.array.data + at, 4 * PACK_VECTORS * LANES);
        } else if (whole) {
            Array out = {to, is_bf16};
            for (int64_t i = 0; i < numbers; i += LANES)
                store_array(out, i, load((const float *)b.array.data + at + i));
        } else {
            for (int64_t u = 0; u < units; u++)
                to[u] = load_unit(b, k + u * per_unit, column + n, depth, is_bf16);
        }
    }
    for (int64_t u = 0; u < units; u += LANES)
        for (int64_t n = 0; n < columns; n += LANES) {
            Bits square[LANES] = {{0}};
            for (int64_t i = 0; i < LANES && n + i < columns; i++)
                square[i] = *(Bits *)(gathered[n + i] + u);
            transpose(square);
            for (int64_t i = 0; i < LANES && u + i < units; i++)
                *(Bits *)(packed + (u + i) * GEMM_NR + n) = square[i];
        }
}

static void pack_b_panels(void *data, int64_t first, int64_t stop) {
    const PackCall *call = data;
    Matrix b = call->b;
    int is_bf16 = call->is_bf16, line = b.array.is_bf16 ? 32 : 16;
    int64_t per_unit = is_bf16 ? 2 : 1, depth = call->depth, width = call->width;
    int64_t units = ceil_div(depth, per_unit);
    // Numbers are read in the order they stand in.
    int64_t step = b.column_stride == 1 ? PACK_UNITS : PACK_VECTORS * LANES;
    for (int64_t block = 0; block < units; block += KC) {
        int64_t in_block = min_i64(units - block, KC);
        uint32_t *packed_block = call->packed + block_start(block, width);
        for (int64_t u = 0; u < in_block; u += step)
            for (int64_t panel = first; panel < stop; panel++) {
                uint32_t *to = packed_block + panel * panel_stride(in_block) + u * GEMM_NR;
                int64_t k = (block + u) * per_unit, column = panel * GEMM_NR;
                int64_t columns = min_i64(width - column, GEMM_NR);
                int64_t count = min_i64(in_block - u, step);
                if (b.column_stride != 1) {
                    if (columns < GEMM_NR) memset(to, 0, (size_t)(count * GEMM_NR) * 4);
                    pack_columns(b, k, column, columns, depth, is_bf16, count, to);
                    continue;
                }
                for (int64_t i = 0; i < count; i++, k += per_unit, to += GEMM_NR) {
                    for (int64_t n = 0; n < GEMM_NR; n += line)
                        for (int64_t row = k; row < k + per_unit; row++)
                            prefetch(b, row + PREFETCH_DISTANCE, column + n);
                    for (int64_t n = 0; n < GEMM_NR; n += LANES)
                        *(Bits *)(to + n)
                            = load_units_tail(b, k, column + n, columns - n, depth, is_bf16);
                }
            }
    }
}

// Run over panels or tiles, neighbouring ones in one thread, which reads long rows so.
static void parallel_for_columns(LoopBody body, void *data, int64_t count, int64_t rows) {
    parallel_for(body, data, count, max_i64(1 + 4096 / (rows + 1), count / num_threads()));
}

static void pack_b(Matrix b, int64_t depth, int64_t width, int is_bf16, uint32_t *packed) {
    PackCall call = {b, depth, width, is_bf16, packed};
    parallel_for_columns(pack_b_panels, &call, num_panels(width), depth);
}

// Epilogue: bias, activation, gate, slopes, store ----------------------------------------------------

static inline int has_epilogue(const Gemm *gemm) {
    return gemm->bias || gemm->activation != NO_ACTIVATION || gemm->gate.data
        || gemm->slopes.data;
}

ALWAYS_INLINE void store_result(Array to, int64_t i, Floats x) {
#if HAS_AMX
    if (to.is_bf16) {
        _mm256_storeu_si256((__m256i *)((uint16_t *)to.data + i), convert_bf16(x));
        return;
    }
#endif
    store_array(to, i, x);
}

// Prefetch the gate or slopes of a tile, which lie in short pieces far apart.
static inline void prefetch_epilogue(const Gemm *gemm, int64_t row, int64_t rows, int64_t column) {
    Array operand
        = gemm->gate.data || gemm->activation != NO_ACTIVATION ? gemm->gate : gemm->slopes;
    if (!operand.data) return;
    Matrix matrix = {operand, gemm->width, 1};
    int64_t line = operand.is_bf16 ? 32 : 16;
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t n = 0; n < GEMM_NR; n += line) prefetch(matrix, i, column + n);
}

// The epilogue for some rows of sums; `whole` says that GEMM_NR columns are left.
ALWAYS_INLINE void epilogue_rows(Gemm gemm, const float *sums, int64_t row, int64_t rows,
                                 int64_t column, int activation, int is_bf16, int whole) {
    int64_t columns = whole ? GEMM_NR : gemm.width - column, at = row * gemm.width + column;
    gemm.out.is_bf16 = gemm.slopes.is_bf16 = is_bf16;
    for (int64_t i = 0; i < rows; i++, sums += GEMM_NR, at += gemm.width)
        for (int64_t n = 0; n < columns; n += LANES) {
            int64_t left = whole ? LANES : columns - n;
            Floats y = load(sums + n), slope;
            if (gemm.bias) y += load_tail(gemm.bias + column, n, columns);
            if (activation == NO_ACTIVATION && gemm.slopes.data)
                y *= load_array_tail(gemm.slopes, at + n, left);
            if (activation != NO_ACTIVATION) y = activate(activation, y, &slope);
            if (gemm.gate.data)
                y = select_lanes(load_array_tail(gemm.gate, at + n, left) <= 0.0f, set1(0.0f), y);
            if (left >= LANES) store_result(gemm.out, at + n, y);
            else store_array_tail(gemm.out, at + n, y, left);
            if (activation == NO_ACTIVATION || activation == RELU) continue;
            if (left >= LANES) store_result(gemm.slopes, at + n, slope);
            else store_array_tail(gemm.slopes, at + n, slope, left);
        }
}

// The epilogue for sums [rows, GEMM_NR] of the columns from `column` on. What is the same for all
// numbers is decided before the loop: deciding takes longer than the rest.
static void epilogue(const Gemm *gemm, const float *sums, int64_t row, int64_t rows,
                     int64_t column) {
#define EPILOGUE(activation, is_bf16)                                                        \
    if (gemm->width - column < GEMM_NR)                                                      \
        epilogue_rows(*gemm, sums, row, rows, column, activation, is_bf16, 0);               \
    else epilogue_rows(*gemm, sums, row, rows, column, activation, is_bf16, 1);              \
    break
#define EPILOGUES(is_bf16)                                   \
    switch (gemm->activation) {                              \
        case RELU: EPILOGUE(RELU, is_bf16);                  \
        case SILU: EPILOGUE(SILU, is_bf16);                  \
        case GELU: EPILOGUE(GELU, is_bf16);                  \
        case GELU_TANH: EPILOGUE(GELU_TANH, is_bf16);        \
        default: EPILOGUE(NO_ACTIVATION, is_bf16);           \
    }
    if (gemm->out.is_bf16) {
        EPILOGUES(1)
    } else {
        EPILOGUES(0)
    }
#undef EPILOGUES
#undef EPILOGUE
}

// A tile of the result: rows from `row` on of the GEMM_NR columns from `column` on.
typedef struct {
    int64_t row, rows, column;
} Tile;

// What is left to do while a tile is multiplied, some rows at a time: the epilogue of the tile before,
// and prefetching where this one's result will stand and what its epilogue reads.
typedef struct {
    const Gemm *gemm;
    Tile previous, current;
    const float *sums;  // [rows, GEMM_NR] of the previous tile
    int prefetch_out, prefetch_operands;
    int64_t done, rows_per_call;
} Pending;

static void run_pending(void *data) {
    Pending *pending = data;
    const Gemm *gemm = pending->gemm;
    Tile previous = pending->previous, current = pending->current;
    int64_t from = pending->done, size = item_size(gemm->out);
    pending->done += pending->rows_per_call;
    int64_t rows = min_i64(pending->done, current.rows) - from;
    if (rows > 0 && pending->prefetch_out) {
        int64_t at = ((current.row + from) * gemm->width + current.column) * size;
        prefetch_rows((const char *)gemm->out.data + at, rows, gemm->width * size, GEMM_NR * size);
    }
    if (rows > 0 && pending->prefetch_operands)
        prefetch_epilogue(gemm, current.row + from, rows, current.column);
    rows = min_i64(pending->done, previous.rows) - from;
    if (rows > 0)
        epilogue(gemm, pending->sums + from * GEMM_NR, previous.row + from, rows, previous.column);
}

// Blocks -------------------------------------------------------------------------------------------

// Some rows of A as the micro-kernel reads them, in bytes: unit u of row i of a tile at
// i·row_stride + u·unit_stride, the next tile `tile_stride` further.
typedef struct {
    const char *at;
    int64_t row_stride, unit_stride, tile_stride;
    int is_contiguous;  // whether nothing stands between the units of a tile
} RowsOfA;

#if HAS_AMX
#include "gemm_amx.h"
#else
#include "gemm_vector.h"
#endif

static RowsOfA rows_of_a(const GemmCall *call, int64_t start, int64_t end, float *workspace) {
    if (call->transpose_a) return pack_a(call, start, end, (uint32_t *)workspace);
    int64_t row_stride = call->a.row_stride * (call->gemm->is_bf16 ? 2 : 4);
    const char *at = (const char *)call->a.array.data + start * row_stride;
    return (RowsOfA){at, row_stride, 4, GEMM_MR * row_stride,
                     row_stride == 4 * call->units && call->units <= KC};
}

// Copy sums of a tile from or to where they wait between blocks.
static void copy_sums(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                      int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)columns * 4);
}

// Numbers each thread needs: for sums that wait between blocks and do not fit `out`, or for a packed A.
static int64_t thread_workspace(const Gemm *gemm, int transpose_a) {
    if (transpose_a) return PACKED_A_PER_THREAD;
    int64_t units = gemm->is_bf16 ? (gemm->depth + 1) / 2 : gemm->depth;
    return gemm->out.is_bf16 && units > KC ? MC_TILES * GEMM_MR * gemm->width : 0;
}

// Rows from `start` on times a block of all panels, from unit `block` on. Sums that wait for the next
// block do so in `waiting_sums`, or if that is null in `out`.
static void multiply_block(const GemmCall *call, RowsOfA a, int64_t start, int64_t end,
                           int64_t block, float *waiting_sums) {
    const Gemm *gemm = call->gemm;
    int64_t width = gemm->width, panels = num_panels(width), rest = call->units - block;
    int64_t units = min_i64(rest, KC);
    int accumulate = block || call->accumulate, ends = rest <= KC;
    int is_plain = !has_epilogue(gemm) && !gemm->out.is_bf16;
    float buffers[2][GEMM_MR * GEMM_NR] __attribute__((aligned(64))) = {{0}}, *sums = buffers[0];
    Pending pending = {.gemm = gemm, .prefetch_operands = ends,
                       .prefetch_out = (ends || !waiting_sums)
                           && gemm->rows * width * item_size(gemm->out) > L2_BYTES};
    const uint32_t *b = call->packed_b + block_start(block, width), *next_panel;
    for (int64_t panel = 0; panel < panels; panel++, b = next_panel) {
        // Together the tiles prefetch the next panel; in the first panel, each the next tile.
        next_panel = b + panel_stride(units);
        const char *next
            = (const char *)(ends && panel + 1 == panels ? call->packed_b : next_panel);
        int64_t next_stride = 4 * GEMM_NR / call->tiles;
        if (!panel && a.is_contiguous) {
            next = a.at + a.tile_stride;
            next_stride = 4 * GEMM_MR;
        }
        int64_t column = panel * GEMM_NR, columns = min_i64(width - column, GEMM_NR);
        // Where sums stay as they are, registers are loaded from there and stored there.
        int direct = columns == GEMM_NR && (is_plain || !ends);
        const char *from = a.at + block * a.unit_stride;
        for (int64_t row = start; row < end;
             row += GEMM_MR, next += units * next_stride, from += a.tile_stride) {
            int64_t rows = min_i64(end - row, GEMM_MR);
            float *waiting = waiting_sums ? waiting_sums + (row - start) * width + column
                                          : (float *)gemm->out.data + row * width + column;
            pending.current = (Tile){row, rows, column};
            pending.done = 0;
            if (accumulate && !direct) copy_sums(sums, GEMM_NR, waiting, width, rows, columns);
            gemm_tile(gemm->is_bf16, rows, from, a.row_stride, a.unit_stride, (const float *)b,
                      units, direct ? waiting : sums, direct ? width : GEMM_NR, accumulate, next,
                      next_stride, &pending);
            if (direct) continue;
            if (!ends) {
                copy_sums(waiting, width, sums, GEMM_NR, rows, columns);
                continue;
            }
            pending.previous = pending.current;
            pending.sums = sums;
            sums = buffers[sums == buffers[0]];
        }
    }
    pending.current.rows = pending.done = 0;
    pending.rows_per_call = GEMM_MR;
    run_pending(&pending);
}

static void gemm_row_blocks(void *data, int64_t first, int64_t stop) {
    const GemmCall *call = data;
    int64_t size = thread_workspace(call->gemm, call->transpose_a), rows = call->tiles * GEMM_MR;
    float *workspace = size ? call->workspace + thread_index() * size : 0;
    begin_tiles();
    for (int64_t start = first * rows; start < stop * rows; start += rows) {
        int64_t end = min_i64(start + rows, call->gemm->rows);
        RowsOfA a = rows_of_a(call, start, end, workspace);
        for (int64_t block = 0; block < call->units; block += KC)
            multiply_block(call, a, start, end, block, call->transpose_a ? 0 : workspace);
    }
    end_tiles();
}

static void multiply(GemmCall *call) {
    const Gemm *gemm = call->gemm;
    // As many tiles together as `max_tiles`, fewer where all threads get the same number of them then.
    int64_t tiles = num_tiles(gemm), threads = num_threads();
    int64_t rounds = ceil_div(tiles, threads * max_tiles(call->units));
    call->tiles = ceil_div(tiles, threads * rounds);
    int64_t rows = call->tiles * GEMM_MR, work = rows * call->units * gemm->width + 1;
    parallel_for(gemm_row_blocks, call, ceil_div(gemm->rows, rows), grain_for(work, 1 << 19));
}

static int64_t gemm_workspace(const Gemm *gemm, int transpose_a) {
    int64_t packed_b = transpose_a ? packed_b_size(KC, gemm->width, 0) : 0;
    return packed_b + num_threads() * thread_workspace(gemm, transpose_a)
        + (transpose_a ? packed_a_size(gemm) : 0);
}

static void gemm(const Gemm *gemm, Matrix a, const uint32_t *packed_b, float *workspace) {
    GemmCall call = {
        .gemm = gemm, .a = a, .packed_b = packed_b, .workspace = workspace,
        .accumulate = gemm->accumulate, .units = gemm->is_bf16 ? gemm->depth / 2 : gemm->depth,
    };
    multiply(&call);
}

static Matrix rows_from(Matrix matrix, int64_t row) {
    matrix.array = offset(matrix.array, row * matrix.row_stride);
    return matrix;
}

static void gemm_transposed(const Gemm *gemm, Matrix a, Matrix b, float *column_sums,
                            float *workspace) {
    int64_t numbers = (gemm->is_bf16 ? 2 : 1) * KC;
    uint32_t *packed = (uint32_t *)workspace;
    if (column_sums) memset(column_sums, 0, (size_t)gemm->rows * sizeof(float));
    for (int64_t k = 0; k < gemm->depth; k += numbers) {
        int64_t depth = min_i64(gemm->depth - k, numbers);
        pack_b(rows_from(b, k), depth, gemm->width, gemm->is_bf16, packed);
        GemmCall call = {
            .gemm = gemm, .a = rows_from(a, k), .depth = depth, .transpose_a = 1,
            .column_sums = column_sums, .packed_b = packed,
            .units = gemm->is_bf16 ? (depth + 1) / 2 : depth, .accumulate = gemm->accumulate || k,
            .workspace = workspace + packed_b_size(KC, gemm->width, 0),
        };
        pack_all_of_a(&call);
        multiply(&call);
    }
}
