// Attention of short sequences while it is trained, and its gradients: a thread works on one key head
// of one sentence at a time, whose numbers stay in the fastest memory. Read once for each set of
// instructions, after `residual.h`.

// Room for one thread: all are float32, rows filled up to whole registers with zeros.
typedef struct {
    float *keys, *values;                // [Lk, E]
    float *turned_keys, *turned_values;  // [E, Lk']
    float *queries, *up;                 // [Lq, E]
    float *weights, *down;               // [Lq, Lk']
    float *for_queries, *for_keys, *for_values;
    int64_t *reach;                      // [Lq]: keys up to the last that a query sees, filled up
} NAME(Desk);

static int64_t NAME(lay_desk)(NAME(Desk) *desk, float *room, const Attended *of) {
    int64_t keys = NAME(filled)(of->num_keys), size = 0;
    int64_t by_key = of->num_keys * of->width, turned = keys * of->width;
    int64_t by_query = of->num_queries * of->width, scores = of->num_queries * keys;
#define LAY(name, count) desk->name = room + size, size += ((count) + 15) / 16 * 16
    LAY(keys, by_key);
    LAY(values, by_key);
    LAY(turned_keys, turned);
    LAY(turned_values, turned);
    LAY(queries, by_query);
    LAY(up, by_query);
    LAY(weights, scores);
    LAY(down, scores);
    LAY(for_queries, by_query);
    LAY(for_keys, by_key);
    LAY(for_values, by_key);
#undef LAY
    desk->reach = (int64_t *)(room + size);
    return size + 2 * of->num_queries;
}

// This thread's.
static NAME(Desk) NAME(own_desk)(const Attended *of) {
    NAME(Desk) desk;
    int64_t size = NAME(lay_desk)(&desk, 0, of);
    NAME(lay_desk)(&desk, of->room + (threads() > 1 ? omp_get_thread_num() : 0) * size, of);
    return desk;
}

// c [count, registers · LANES] = a · b, or more of it where `add` is set. a is read at a[i·ar + k·ak].
static inline __attribute__((always_inline)) void NAME(corner)(
    const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,
    int64_t c_row, int64_t depth, int count, int registers, int add) {
    Floats sums[4][4];
    for (int i = 0; i < count; i++)
        for (int r = 0; r < registers; r++)
            sums[i][r] = add ? NAME(load)(c + i * c_row + r * LANES) : NAME(every)(0.0f);
    for (int64_t k = 0; k < depth; k++, a += a_step, b += b_row) {
        Floats row[4];
        for (int r = 0; r < registers; r++) row[r] = NAME(load)(b + r * LANES);
        for (int i = 0; i < count; i++) {
            Floats one = NAME(every)(a[i * a_row]);
            for (int r = 0; r < registers; r++) sums[i][r] += one * row[r];
        }
    }
    for (int i = 0; i < count; i++)
        for (int r = 0; r < registers; r++) NAME(store)(c + i * c_row + r * LANES, sums[i][r]);
}

// The same for up to four rows and any number of registers' columns.
static void NAME(band)(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                       float *c, int64_t c_row, int64_t columns, int64_t depth, int count, int add) {
#define CORNER(rows, registers) \
    NAME(corner)(a, a_row, a_step, b + n, b_row, c + n, c_row, depth, rows, registers, add)
#define ROWS_OF(registers)                      \
    switch (count) {                            \
        case 4: CORNER(4, registers); break;    \
        case 3: CORNER(3, registers); break;    \
        case 2: CORNER(2, registers); break;    \
        default: CORNER(1, registers);          \
    }
    int64_t n = 0;
    for (; n + 4 * LANES <= columns; n += 4 * LANES) ROWS_OF(4)
    for (; n + 2 * LANES <= columns; n += 2 * LANES) ROWS_OF(2)
    for (; n < columns; n += LANES) ROWS_OF(1)
#undef ROWS_OF
#undef CORNER
}

// Rows of a tensor, each times `factor`.
static void NAME(fetch)(Rows from, int64_t batch, int64_t head, int64_t rows, int64_t width,
                        float factor, float *to) {
    int64_t at = batch * from.batch + head * from.head;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = 0; e < width; e += LANES)
            NAME(store)(to + row * width + e,
                        NAME(take)(from.numbers, at + row * from.row + e) * factor);
}

// Rows [rows, width] as columns, filled up with zeros to whole registers.
static void NAME(turn)(const float *from, int64_t rows, int64_t width, float *to) {
    int64_t filled = NAME(filled)(rows);
#if defined(__clang__)
    for (int64_t e = 0; e < width; e++)
        for (int64_t row = 0; row < filled; row++)
            to[e * filled + row] = row < rows ? from[row * width + e] : 0.0f;
#else
    // Squares: halves of two rows change places, then quarters, and so on.
    Ints low[5], high[5];
    int steps = 0;
    for (int half = LANES / 2; half; half /= 2, steps++)
        for (int lane = 0; lane < LANES; lane++) {
            low[steps][lane] = lane & half ? LANES + lane - half : lane;
            high[steps][lane] = lane & half ? LANES + lane : lane + half;
        }
    for (int64_t row = 0; row < filled; row += LANES)
        for (int64_t e = 0; e < width; e += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++)
                square[i] = row + i < rows ? NAME(load)(from + (row + i) * width + e)
                                           : NAME(every)(0.0f);
#pragma GCC unroll 4
            for (int step = 0; step < (LANES == 16 ? 4 : LANES == 8 ? 3 : 2); step++) {
                int half = LANES / 2 >> step;
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) {
                    if (i & half) continue;
                    Floats a = square[i], b = square[i + half];
                    square[i] = __builtin_shuffle(a, b, low[step]);
                    square[i + half] = __builtin_shuffle(a, b, high[step]);
                }
            }
            for (int i = 0; i < LANES; i++)
                NAME(store)(to + (e + i) * filled + row, square[i]);
        }
#endif
}

static void NAME(give)(Rows to, int64_t batch, int64_t head, int64_t rows, int64_t width,
                       float factor, const float *from) {
    int64_t at = batch * to.batch + head * to.head;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = 0; e < width; e += LANES)
            NAME(put)(to.numbers, at + row * to.row + e, NAME(load)(from + row * width + e) * factor);
}

// Of a head: how far its queries see, and their scores, −∞ where they do not see.
static void NAME(weigh)(const Attended *of, const NAME(Desk) *desk, int64_t batch, int64_t head) {
    int64_t keys = NAME(filled)(of->num_keys);
    const uint8_t *visible = of->visible;
    if (visible) visible += batch * of->visible_batch + head * of->visible_head;
    for (int64_t i = 0; i < of->num_queries; i += 4) {
        int count = (int)(of->num_queries - i < 4 ? of->num_queries - i : 4);
        int64_t reach = 0;
        for (int q = 0; q < count; q++) {
            int64_t last = of->num_keys;
            if (visible)
                while (last > 0 && !visible[(i + q) * of->visible_query + last - 1]) last--;
            reach = most(reach, last);
        }
        reach = NAME(filled)(reach);
        float *weights = desk->weights + i * keys;
        NAME(band)(desk->queries + i * of->width, of->width, 1, desk->turned_keys, keys, weights,
                   keys, reach, of->width, count, 0);
        for (int q = 0; q < count; q++) {
            float *row = weights + q * keys;
            desk->reach[i + q] = reach;
            if (visible) {
                const uint8_t *seen = visible + (i + q) * of->visible_query;
                int64_t end = reach < of->num_keys ? reach : of->num_keys;
                for (int64_t s = 0; s < end; s++) row[s] = seen[s] ? row[s] : -INFINITY;
            }
            for (int64_t s = of->num_keys; s < reach; s++) row[s] = -INFINITY;
            for (int64_t s = reach; s < keys; s++) row[s] = 0.0f;
        }
    }
}

static void NAME(attended_heads)(void *data, int64_t first, int64_t stop) {
    const Attended *of = data;
    NAME(Desk) desk = NAME(own_desk)(of);
    int64_t keys = NAME(filled)(of->num_keys), width = of->width;
    int64_t group = of->heads / of->key_heads;
    for (int64_t number = first; number < stop; number++) {
        int64_t batch = number / of->key_heads, key_head = number % of->key_heads;
        NAME(fetch)(of->k, batch, key_head, of->num_keys, width, 1.0f, desk.keys);
        NAME(fetch)(of->v, batch, key_head, of->num_keys, width, 1.0f, desk.values);
        NAME(turn)(desk.keys, of->num_keys, width, desk.turned_keys);
        for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
            NAME(fetch)(of->q, batch, head, of->num_queries, width, of->scale, desk.queries);
            NAME(weigh)(of, &desk, batch, head);
            float *sums = of->sums + (batch * of->heads + head) * of->num_queries;
            for (int64_t i = 0; i < of->num_queries; i++) {
                float *row = desk.weights + i * keys;
                Floats top = NAME(every)(-INFINITY), total = {0};
                for (int64_t s = 0; s < desk.reach[i]; s += LANES)
                    top = NAME(larger)(NAME(load)(row + s), top);
                float largest = NAME(largest)(top);
                if (largest == -INFINITY) largest = 0.0f;  // a query that sees nothing
                for (int64_t s = 0; s < desk.reach[i]; s += LANES) {
                    Floats weight = NAME(exponential)(NAME(load)(row + s) - largest);
                    NAME(store)(row + s, weight);
                    total += weight;
                }
                float all = NAME(sum)(total), share = all > 0.0f ? 1.0f / all : 0.0f;
                for (int64_t s = 0; s < desk.reach[i]; s += LANES)
                    NAME(store)(row + s, NAME(load)(row + s) * share);
                sums[i] = all > 0.0f ? largest + logf(all) : INFINITY;
            }
            for (int64_t i = 0; i < of->num_queries; i += 4)
                NAME(band)(desk.weights + i * keys, keys, 1, desk.values, width,
                           desk.up + i * width, width, width,
                           desk.reach[i] < of->num_keys ? desk.reach[i] : of->num_keys,
                           (int)(of->num_queries - i < 4 ? of->num_queries - i : 4), 0);
            NAME(give)(of->out, batch, head, of->num_queries, width, 1.0f, desk.up);
        }
    }
}

static void NAME(attended_back)(void *data, int64_t first, int64_t stop) {
    const Attended *of = data;
    NAME(Desk) desk = NAME(own_desk)(of);
    int64_t keys = NAME(filled)(of->num_keys), width = of->width;
    int64_t group = of->heads / of->key_heads, queries = of->num_queries;
    for (int64_t number = first; number < stop; number++) {
        int64_t batch = number / of->key_heads, key_head = number % of->key_heads;
        NAME(fetch)(of->k, batch, key_head, of->num_keys, width, 1.0f, desk.keys);
        NAME(fetch)(of->v, batch, key_head, of->num_keys, width, 1.0f, desk.values);
        NAME(turn)(desk.keys, of->num_keys, width, desk.turned_keys);
        NAME(turn)(desk.values, of->num_keys, width, desk.turned_values);
        for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
            int add = head > key_head * group;
            NAME(fetch)(of->q, batch, head, queries, width, of->scale, desk.queries);
            NAME(fetch)(of->out, batch, head, queries, width, 1.0f, desk.up);
            NAME(weigh)(of, &desk, batch, head);
            const float *sums = of->sums + (batch * of->heads + head) * queries;
            for (int64_t i = 0; i < queries; i += 4) {
                int count = (int)(queries - i < 4 ? queries - i : 4);
                int64_t reach = desk.reach[i], seen = reach < of->num_keys ? reach : of->num_keys;
                NAME(band)(desk.up + i * width, width, 1, desk.turned_values, keys,
                           desk.down + i * keys, keys, reach, width, count, 0);
                for (int64_t q = i; q < i + count; q++) {
                    float *weights = desk.weights + q * keys, *down = desk.down + q * keys;
                    Floats along = {0};
                    for (int64_t s = 0; s < reach; s += LANES) {
                        Floats weight = NAME(exponential)(NAME(load)(weights + s) - sums[q]);
                        NAME(store)(weights + s, weight);
                        along += weight * NAME(load)(down + s);
                    }
                    float level = NAME(sum)(along);
                    for (int64_t s = 0; s < reach; s += LANES)
                        NAME(store)(down + s,
                                    NAME(load)(weights + s) * (NAME(load)(down + s) - level));
                    for (int64_t s = reach; s < keys; s++) down[s] = 0.0f;
                }
                NAME(band)(desk.down + i * keys, keys, 1, desk.keys, width,
                           desk.for_queries + i * width, width, width, seen, count, 0);
            }
            NAME(give)(of->for_q, batch, head, queries, width, of->scale, desk.for_queries);
            for (int64_t j = 0; j < of->num_keys; j += 4) {
                int count = (int)(of->num_keys - j < 4 ? of->num_keys - j : 4);
                int64_t from = 0;  // queries before see none of these keys
                while (from < queries && desk.reach[from] <= j) from++;
                NAME(band)(desk.weights + from * keys + j, 1, keys, desk.up + from * width, width,
                           desk.for_values + j * width, width, width, queries - from, count, add);
                NAME(band)(desk.down + from * keys + j, 1, keys, desk.queries + from * width, width,
                           desk.for_keys + j * width, width, width, queries - from, count, add);
            }
        }
        NAME(give)(of->for_k, batch, key_head, of->num_keys, width, 1.0f, desk.for_keys);
        NAME(give)(of->for_v, batch, key_head, of->num_keys, width, 1.0f, desk.for_values);
    }
}

static int64_t NAME(attended_room)(const Attended *of) {
    NAME(Desk) desk;
    return threads() * NAME(lay_desk)(&desk, 0, of);
}

static void NAME(attended)(Attended *of, int back) {
    int64_t work = of->num_queries * of->num_keys * of->width * (of->heads / of->key_heads);
    share(back ? NAME(attended_back) : NAME(attended_heads), of, of->batch * of->key_heads,
          1 + (1 << 17) / (work + 1));
}
