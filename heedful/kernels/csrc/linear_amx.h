// 8-bit linear layers on AMX: see `linear.h`, which includes this.

#define AMX_MIN_ROWS 8  // with fewer, sums wait for each other longer than in vectors

// A tile of the result, and what is done for the one before while it is multiplied: scaling sums back
// takes nearly as long as making them.
typedef struct {
    int64_t row, rows, column, columns;
} Int8Tile;

typedef struct {
    const LinearCall *call;
    Int8Tile previous, current;
    const int32_t *sums;          // [rows, AMX_NR] of the previous tile
    int64_t done, rows_per_call;
    const char *next;             // units of the columns after these, to be prefetched
    int64_t units, units_per_call;
} Int8Pending;

// Where the units of a tile's columns are, NR units from one to the next.
static const char *int8_columns(const Linear *layer, int64_t column) {
    int64_t groups = int8_groups(layer->in_width);
    return (const char *)layer->packed_weight + (column / NR * groups * NR + column % NR) * 4;
}

static void run_int8_pending(void *data) {
    Int8Pending *pending = data;
    const LinearCall *call = pending->call;
    Int8Tile previous = pending->previous, current = pending->current;
    int64_t from = pending->done, width = call->layer->out_width;
    pending->done += pending->rows_per_call;
    int64_t rows = min_i64(pending->done, current.rows) - from;
    int64_t units = min_i64(pending->units, pending->units_per_call);
    pending->units -= units;
    for (; units; units--, pending->next += NR * 4)
        for (int64_t byte = 0; byte < AMX_NR * 4; byte += 64)
            __builtin_prefetch(pending->next + byte, 0, 2);
    prefetch_rows(call->y + (current.row + from) * width + current.column, rows, width * 4,
                  current.columns * 4);
    for (int64_t i = from; i < min_i64(pending->done, previous.rows); i++)
        for (int64_t n = 0; n < previous.columns; n += LANES)
            dequantize(call, *(const Ints *)(pending->sums + i * AMX_NR + n), previous.row + i,
                       previous.column + n);
}

static void multiply_panels_amx(const LinearCall *call, int64_t first, int64_t stop) {
    const Linear *layer = call->layer;
    int64_t groups = int8_groups(layer->in_width), rows = call->rows;
    int64_t steps = ceil_div(groups, AMX_UNITS), height = min_i64(rows, AMX_MR);
    int64_t end = min_i64(stop * NR, layer->out_width);
    int32_t buffers[2][AMX_MR * AMX_NR] __attribute__((aligned(64))), *sums = buffers[0];
    int64_t calls = ceil_div(rows, height) * steps;
    Int8Pending pending = {
        .call = call,
        .rows_per_call = ceil_div(height, steps),
        .units_per_call = ceil_div(groups, calls),
    };
    Interleaved interleaved = {run_int8_pending, &pending};
    amx_configure(height, AMX_UNITS);
    for (int64_t tile = first * NR; tile < end; tile += AMX_NR) {
        int64_t columns = min_i64(layer->out_width - tile, AMX_NR);
        pending.next = int8_columns(layer, tile + AMX_NR);
        pending.units = tile + AMX_NR < end ? groups : 0;
        for (int64_t row = 0; row < rows; row += height) {
            int64_t count = min_i64(rows - row, height);
            if (count < height) amx_configure(count, AMX_UNITS);
            pending.current = (Int8Tile){row, count, tile, columns};
            pending.done = 0;
            amx_micro_kernel(AMX_INT8, count,
                             (const char *)call->quantized->numbers + row * groups * 4, groups * 4,
                             4 * AMX_UNITS, int8_columns(layer, tile), NR * 4, groups,
                             (char *)sums, AMX_NR * 4, 0, 0, 0, interleaved);
            pending.previous = pending.current;
            pending.sums = sums;
            sums = buffers[sums == buffers[0]];
            if (count < height) amx_configure(height, AMX_UNITS);
        }
    }
    pending.current.rows = pending.done = 0;
    pending.rows_per_call = height;
    run_int8_pending(&pending);
    amx_release();
}
