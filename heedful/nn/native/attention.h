// Attention of short sequences while it is trained, and its gradients: a thread works on one key head
// of one sentence at a time, whose numbers stay in the fastest memory. Read once for each set of
// instructions, after `residual.h`.

#define HEIGHT (LANES == 8 ? 4 : 8)  // rows of a tile; AVX2 has but 16 registers for its sums
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)

// Room for one thread: all are float32. Rows are filled up to whole registers and numbers of rows to
// four, with zeros or with what nobody reads.
typedef struct {
    float *keys, *values;                // [Lk, E]
    float *turned_keys, *turned_values;  // [E, Lk'], or pairs of bfloat16 numbers [E / 2, Lk']
    float *queries, *up;                 // [Lq', E]
    float *weights, *down;               // [Lq', Lk']
    float *for_queries;                  // [Lq', E]
    float *for_keys, *for_values;        // [Lk', E]
    int64_t *reach;                      // [Lq']: keys up to the last that a query sees, filled up
} NAME(Desk);

// Whether scores are multiplied by registers for matrices: exact products of bfloat16 numbers, whose
// sums are float32.
static inline int NAME(in_pairs)(const Attended *of) {
    return HAS_TILES && level == 3 && of->width % 32 == 0 && of->q.numbers.is_half
        && of->k.numbers.is_half && of->v.numbers.is_half && of->out.numbers.is_half;
}

// Numbers from a row of scores to the next: whole registers of either kind.
static inline int64_t NAME(score_row)(const Attended *of) {
    int64_t unit = NAME(in_pairs)(of) ? 32 : LANES;
    return (of->num_keys + unit - 1) / unit * unit;
}

static inline int64_t NAME(fours)(int64_t count) { return (count + 3) / 4 * 4; }

static int64_t NAME(lay_desk)(NAME(Desk) *desk, float *room, const Attended *of) {
    int64_t keys = NAME(score_row)(of), queries = NAME(fours)(of->num_queries), size = 0;
    int64_t by_key = keys * of->width, by_query = queries * of->width, scores = queries * keys;
#define LAY(name, count) desk->name = room + size, size += ((count) + 15) / 16 * 16
    LAY(keys, by_key);
    LAY(values, by_key);
    LAY(turned_keys, by_key);
    LAY(turned_values, by_key);
    LAY(queries, by_query);
    LAY(up, by_query);
    LAY(weights, scores);
    LAY(down, scores);
    LAY(for_queries, by_query);
    LAY(for_keys, by_key);
    LAY(for_values, by_key);
#undef LAY
    desk->reach = (int64_t *)(room + size);
    return size + (2 * queries + 15) / 16 * 16;
}

// This thread's.
static NAME(Desk) NAME(own_desk)(const Attended *of) {
    NAME(Desk) desk;
    int64_t size = NAME(lay_desk)(&desk, 0, of);
    NAME(lay_desk)(&desk, of->room + (threads() > 1 ? omp_get_thread_num() : 0) * size, of);
    return desk;
}

// Rows that go together where so many are left: those of a tile, or four.
static inline int NAME(height)(int64_t left) { return left > 4 ? HEIGHT : 4; }

// c [count, registers · LANES] = a · b, or more of it where `add` is set. a is read at a[i·ar + k·ak].
static inline __attribute__((always_inline)) void NAME(corner)(
    const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,
    int64_t c_row, int64_t depth, int count, int registers, int add) {
    Floats sums[HEIGHT][3];
    EACH(i, count) EACH(r, registers) sums[i][r] = NAME(every)(0.0f);
    if (add) EACH(i, count) EACH(r, registers) sums[i][r] = NAME(load)(c + i * c_row + r * LANES);
    for (int64_t k = 0; k < depth; k++, a += a_step, b += b_row) {
        Floats row[3];
        EACH(r, registers) row[r] = NAME(load)(b + r * LANES);
        EACH(i, count) {
            Floats one = NAME(every)(a[i * a_row]);
            EACH(r, registers) sums[i][r] += one * row[r];
        }
    }
    EACH(i, count) EACH(r, registers) NAME(store)(c + i * c_row + r * LANES, sums[i][r]);
}

// The same for a tile's rows, or four, and any number of registers' columns.
static void NAME(band)(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                       float *c, int64_t c_row, int64_t columns, int64_t depth, int count, int add) {
#define CORNER(rows, registers) \
    NAME(corner)(a, a_row, a_step, b + n, b_row, c + n, c_row, depth, rows, registers, add)
#define CORNERS(registers)                              \
    do {                                                \
        if (count > 4) CORNER(HEIGHT, registers);       \
        else CORNER(4, registers);                      \
        n += registers * LANES;                         \
    } while (0)
    int64_t n = 0;
    while (columns - n > 3 * LANES || columns - n == 2 * LANES) CORNERS(2);
    if (columns - n == 3 * LANES) CORNERS(3);
    else if (n < columns) CORNERS(1);
#undef CORNERS
#undef CORNER
}

static inline __attribute__((always_inline)) void NAME(fetch_kind)(
    Rows from, int64_t at, int64_t rows, int64_t width, float *to, int half) {
    from.numbers.is_half = half;
    for (int64_t row = 0; row < rows; row++, at += from.row)
        for (int64_t e = 0; e < width; e += LANES, to += LANES)
            NAME(store)(to, NAME(take)(from.numbers, at + e));
    memset(to, 0, (size_t)((NAME(fours)(rows) - rows) * width) * sizeof *to);
}

// Rows of a head, filled up to fours with zeros.
static void NAME(fetch)(Rows from, int64_t head, int64_t rows, int64_t width, float *to) {
    int64_t at = head * from.head;
    if (from.numbers.is_half) NAME(fetch_kind)(from, at, rows, width, to, 1);
    else NAME(fetch_kind)(from, at, rows, width, to, 0);
}

// Rows [rows, width] of a tensor as columns, filled up with zeros to `filled`: of numbers, or where
// `pairs` is set, of pairs of bfloat16 numbers.
static inline __attribute__((always_inline)) void NAME(turn_kind)(
    Rows from, int64_t at, int64_t rows, int64_t width, int64_t filled, float *to, int pairs) {
#if defined(__clang__)
    (void)pairs;
    for (int64_t e = 0; e < width; e++)
        for (int64_t row = 0; row < filled; row++)
            to[e * filled + row]
                = row < rows ? read_one(from.numbers, at + row * from.row + e) : 0.0f;
#else
    // Squares: halves of two rows change places, then quarters, and so on.
    Ints low[5], high[5];
    int steps = 0;
    for (int half = LANES / 2; half; half /= 2, steps++)
        for (int lane = 0; lane < LANES; lane++) {
            low[steps][lane] = lane & half ? LANES + lane - half : lane;
            high[steps][lane] = lane & half ? LANES + lane : lane + half;
        }
    const uint16_t *halves = from.numbers.at;
    int64_t depth = pairs ? width / 2 : width, end = NAME(filled)(rows);
    for (int64_t row = end; row < filled; row += LANES)
        for (int64_t e = 0; e < depth; e++)
            NAME(store)(to + e * filled + row, NAME(every)(0.0f));
    for (int64_t row = 0; row < end; row += LANES)
        for (int64_t e = 0; e < depth; e += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++) {
                int64_t first = at + (row + i) * from.row;
                square[i] = NAME(every)(0.0f);
                if (row + i >= rows) continue;
                if (pairs) square[i] = NAME(load)((const float *)(halves + first) + e);
                else square[i] = NAME(take)(from.numbers, first + e);
            }
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

static void NAME(turn)(const Attended *of, Rows from, int64_t head, float *to) {
    int64_t at = head * from.head, row = NAME(score_row)(of);
    if (NAME(in_pairs)(of)) NAME(turn_kind)(from, at, of->num_keys, of->width, row, to, 1);
    else NAME(turn_kind)(from, at, of->num_keys, of->width, row, to, 0);
}

// All products of a head's rows, of as many as there are queries, with turned ones: [Lq, Lk'].
static void NAME(multiply_pairs)(const Attended *of, Rows left, int64_t head, const float *turned,
                                 float *to) {
#if HAS_TILES
    const uint16_t *at = (const uint16_t *)left.numbers.at + head * left.head;
    int64_t keys = NAME(score_row)(of);
    for (int64_t row = 0; row < of->num_queries; row += TILE_ROWS) {
        int64_t count = of->num_queries - row < TILE_ROWS ? of->num_queries - row : TILE_ROWS;
        NAME(configure)(count, STEP);
        for (int64_t s = 0; s < keys; s += TILE_COLUMNS)
            NAME(multiply_matrices)(
                HALVES, count, (const char *)(at + row * left.row), left.row * 2, 4 * STEP,
                (const char *)(turned + s), keys * 4, of->width / 2, (char *)(to + row * keys + s),
                keys * 4, 0, 0, 0, (Meanwhile){0});
    }
    NAME(release)();
#else
    (void)of, (void)left, (void)head, (void)turned, (void)to;
#endif
}

// Row i times factors[i · step].
static void NAME(give)(Rows to, int64_t head, int64_t rows, int64_t width, const float *factors,
                       int64_t step, const float *from) {
    int64_t at = head * to.head;
    for (int64_t row = 0; row < rows; row++, at += to.row, factors += step)
        for (int64_t e = 0; e < width; e += LANES, from += LANES)
            NAME(put)(to.numbers, at + e, NAME(load)(from) * *factors);
}

// Rows of `heads` heads are brought near, to be read or to be written.
static inline __attribute__((always_inline)) void NAME(approach)(
    Rows to, int64_t head, int64_t heads, int64_t rows, int64_t width, int writes) {
    int64_t size = to.numbers.is_half ? 2 : 4;
    const char *at = (const char *)to.numbers.at + head * to.head * size;
    for (int64_t row = 0; row < rows; row++, at += to.row * size)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t byte = 0; byte < width * size; byte += 64) {
                const char *line = at + h * to.head * size + byte;
                if (writes) __builtin_prefetch(line, 1, 3);
                else __builtin_prefetch(line, 0, 2);
            }
}

static Rows NAME(moved)(Rows of, int64_t batch, const int64_t *starts) {
    int64_t by = starts ? starts[batch] * of.row : batch * of.batch;
    if (of.numbers.at) of.numbers.at = (char *)of.numbers.at + by * (of.numbers.is_half ? 2 : 4);
    return of;
}

// One sequence alone.
static Attended NAME(alone)(const Attended *of, int64_t batch) {
    Attended one = *of;
    const int64_t *queries = of->query_starts, *keys = of->key_starts;
    one.q = NAME(moved)(of->q, batch, queries);
    one.k = NAME(moved)(of->k, batch, keys);
    one.v = NAME(moved)(of->v, batch, keys);
    one.out = NAME(moved)(of->out, batch, queries);
    one.for_q = NAME(moved)(of->for_q, batch, queries);
    one.for_k = NAME(moved)(of->for_k, batch, keys);
    one.for_v = NAME(moved)(of->for_v, batch, keys);
    one.statistics += batch * of->heads * 2 * of->num_queries;
    if (of->visible) one.visible += batch * of->visible_batch;
    if (queries) one.num_queries = queries[batch + 1] - queries[batch];
    if (keys) one.num_keys = keys[batch + 1] - keys[batch];
    return one;
}

// What will be read of a key head and its queries.
static void NAME(approach_read)(const Attended *all, int64_t number, int back) {
    Attended own = NAME(alone)(all, number / all->key_heads), *of = &own;
    int64_t key_head = number % of->key_heads;
    int64_t group = of->heads / of->key_heads, width = of->width;
    NAME(approach)(of->k, key_head, 1, of->num_keys, width, 0);
    NAME(approach)(of->v, key_head, 1, of->num_keys, width, 0);
    NAME(approach)(of->q, key_head * group, group, of->num_queries, width, 0);
    if (back) NAME(approach)(of->out, key_head * group, group, of->num_queries, width, 0);
}

// Which of LANES keys, of which `left` are there, are seen: `visible` says it of each, or is null
// where all are.
#if LANES == 16
typedef __mmask16 NAME(Seen);
static inline NAME(Seen) NAME(seen)(const uint8_t *visible, int64_t left) {
    __mmask16 there = (__mmask16)(left < 16 ? (1 << left) - 1 : 0xffff);
    if (!visible) return there;
    __m128i bytes = _mm_maskz_loadu_epi8(there, visible);
    return _mm_test_epi8_mask(bytes, bytes);
}
static inline int NAME(some)(NAME(Seen) seen) { return seen != 0; }
static inline Floats NAME(hide)(Floats scores, NAME(Seen) seen) {
    return (Floats)_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, (__m512)scores);
}
#else
typedef uint8_t NAME(Seen) __attribute__((vector_size(LANES)));
static inline NAME(Seen) NAME(seen)(const uint8_t *visible, int64_t left) {
    NAME(Seen) seen = {0};
    if (visible && left >= LANES) memcpy(&seen, visible, LANES);
    else for (int i = 0; i < LANES && i < left; i++) seen[i] = visible ? visible[i] : 1;
    return seen;
}
static inline int NAME(some)(NAME(Seen) seen) {
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= seen[i];
    return found;
}
static inline Floats NAME(hide)(Floats scores, NAME(Seen) seen) {
    return NAME(choose)(__builtin_convertvector(seen, Ints) != 0, scores, NAME(every)(-INFINITY));
}
#endif

// What the queries of a band see.
typedef struct {
    const uint8_t *visible[HEIGHT];  // by each; null where all is seen
    int64_t first, reach, num_keys;
    int count;
} NAME(Sight);

// Of queries from `first` on: rows that are filled up see what the last query sees.
static NAME(Sight) NAME(look)(const Attended *of, const NAME(Desk) *desk, int64_t head,
                              int64_t first) {
    NAME(Sight) sight = {{0}, first, NAME(filled)(of->num_keys), of->num_keys, 0};
    sight.count = NAME(height)(of->num_queries - first);
    if (of->visible) {
        const uint8_t *visible = of->visible + head * of->visible_head;
        for (int i = 0; i < sight.count; i++) {
            int64_t query = first + i < of->num_queries ? first + i : of->num_queries - 1;
            sight.visible[i] = visible + query * of->visible_query;
        }
        int found = 0;
        while (sight.reach > 0) {
            int64_t s = sight.reach - LANES;
            for (int i = 0; i < sight.count; i++)
                found |= NAME(some)(NAME(seen)(sight.visible[i] + s, of->num_keys - s));
            if (found) break;
            sight.reach = s;
        }
    }
    for (int i = 0; i < sight.count; i++) desk->reach[first + i] = sight.reach;
    return sight;
}

// Scores of query i of a band with keys from s on, −∞ where it does not see them.
static inline Floats NAME(load_score)(const NAME(Sight) *sight, int i, int64_t s, const float *at,
                                      float scale) {
    const uint8_t *visible = sight->visible[i];
    NAME(Seen) seen = NAME(seen)(visible ? visible + s : 0, sight->num_keys - s);
    return NAME(hide)(NAME(load)(at) * scale, seen);
}

// Scores of a band become weights that are not divided by their sum yet. Of each query it keeps the
// largest score and what the weights are to be multiplied with.
static inline __attribute__((always_inline)) void NAME(soften)(
    const NAME(Sight) *sight, float *scores, int64_t row, float scale, float *largest, float *share,
    int count) {
    Floats top[HEIGHT], total[HEIGHT];
    EACH(i, count) top[i] = NAME(every)(-INFINITY);
    for (int64_t s = 0; s < sight->reach; s += LANES)
        EACH(i, count) {
            float *at = scores + i * row + s;
            Floats score = NAME(load_score)(sight, i, s, at, scale);
            NAME(store)(at, score);
            top[i] = NAME(larger)(score, top[i]);
        }
    EACH(i, count) {
        largest[i] = NAME(largest)(top[i]);
        if (largest[i] == -INFINITY) largest[i] = 0.0f;  // a query that sees nothing
        total[i] = NAME(every)(0.0f);
    }
    for (int64_t s = 0; s < sight->reach; s += LANES)
        EACH(i, count) {
            float *at = scores + i * row + s;
            Floats weight = NAME(exponential)(NAME(load)(at) - largest[i]);
            NAME(store)(at, weight);
            total[i] += weight;
        }
    EACH(i, count) {
        float all = NAME(sum)(total[i]);
        share[i] = all > 0.0f ? 1.0f / all : 0.0f;
    }
}

static void NAME(attended_heads)(void *data, int64_t first, int64_t stop) {
    const Attended *all = data;
    NAME(Desk) desk = NAME(own_desk)(all);
    int64_t width = all->width, group = all->heads / all->key_heads;
    int pairs = NAME(in_pairs)(all);
    for (int64_t number = first; number < stop; number++) {
        Attended own = NAME(alone)(all, number / all->key_heads), *of = &own;
        int64_t key_head = number % of->key_heads, queries = of->num_queries;
        int64_t keys = NAME(score_row)(of);
        if (number + 1 < stop) NAME(approach_read)(all, number + 1, 0);
        NAME(turn)(of, of->k, key_head, desk.turned_keys);
        NAME(fetch)(of->v, key_head, of->num_keys, width, desk.values);
        for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
            float *largest = of->statistics + head * 2 * queries;
            float *shares = largest + queries;
            NAME(approach)(of->out, head, 1, queries, width, 1);
            if (pairs) NAME(multiply_pairs)(of, of->q, head, desk.turned_keys, desk.weights);
            else NAME(fetch)(of->q, head, queries, width, desk.queries);
            for (int64_t i = 0; i < queries; i += HEIGHT) {
                NAME(Sight) sight = NAME(look)(of, &desk, head, i);
                float *weights = desk.weights + i * keys, tops[HEIGHT], share[HEIGHT];
                if (!pairs)
                    NAME(band)(desk.queries + i * width, width, 1, desk.turned_keys, keys, weights,
                               keys, sight.reach, width, sight.count, 0);
                if (sight.count > 4)
                    NAME(soften)(&sight, weights, keys, of->scale, tops, share, HEIGHT);
                else NAME(soften)(&sight, weights, keys, of->scale, tops, share, 4);
                for (int q = 0; q < sight.count && i + q < queries; q++) {
                    largest[i + q] = tops[q];
                    shares[i + q] = share[q];
                }
                NAME(band)(weights, keys, 1, desk.values, width, desk.up + i * width, width, width,
                           sight.reach < of->num_keys ? sight.reach : of->num_keys, sight.count, 0);
            }
            NAME(give)(of->out, head, queries, width, shares, 1, desk.up);
        }
    }
}

// Scores of a band become weights again, and the gradients `down` of weights those of scores.
static inline __attribute__((always_inline)) void NAME(harden)(
    const NAME(Sight) *sight, float *scores, float *down, int64_t row, float scale,
    const float *largest, const float *share, int count) {
    Floats along[HEIGHT];
    float level[HEIGHT];
    EACH(i, count) along[i] = NAME(every)(0.0f);
    for (int64_t s = 0; s < sight->reach; s += LANES)
        EACH(i, count) {
            float *at = scores + i * row + s;
            Floats score = NAME(load_score)(sight, i, s, at, scale);
            Floats weight = NAME(exponential)(score - largest[i]) * share[i];
            NAME(store)(at, weight);
            along[i] += weight * NAME(load)(down + i * row + s);
        }
    EACH(i, count) level[i] = NAME(sum)(along[i]);
    for (int64_t s = 0; s < sight->reach; s += LANES)
        EACH(i, count) {
            float *at = down + i * row + s;
            NAME(store)(at, NAME(load)(scores + i * row + s) * (NAME(load)(at) - level[i]));
        }
    size_t rest = (size_t)(row - sight->reach) * sizeof(float);
    for (int i = 0; i < count && rest; i++) {
        memset(scores + i * row + sight->reach, 0, rest);
        memset(down + i * row + sight->reach, 0, rest);
    }
}

static void NAME(attended_back)(void *data, int64_t first, int64_t stop) {
    const Attended *all = data;
    NAME(Desk) desk = NAME(own_desk)(all);
    int64_t width = all->width, group = all->heads / all->key_heads;
    int pairs = NAME(in_pairs)(all);
    const float one = 1.0f;
    for (int64_t number = first; number < stop; number++) {
        Attended own = NAME(alone)(all, number / all->key_heads), *of = &own;
        int64_t key_head = number % of->key_heads, queries = of->num_queries;
        int64_t keys = NAME(score_row)(of);
        if (number + 1 < stop) NAME(approach_read)(all, number + 1, 1);
        NAME(approach)(of->for_k, key_head, 1, of->num_keys, width, 1);
        NAME(approach)(of->for_v, key_head, 1, of->num_keys, width, 1);
        NAME(fetch)(of->k, key_head, of->num_keys, width, desk.keys);
        NAME(turn)(of, of->k, key_head, desk.turned_keys);
        NAME(turn)(of, of->v, key_head, desk.turned_values);
        for (int64_t head = key_head * group; head < (key_head + 1) * group; head++) {
            int add = head > key_head * group;
            const float *largest = of->statistics + head * 2 * queries;
            const float *shares = largest + queries;
            NAME(approach)(of->for_q, head, 1, queries, width, 1);
            NAME(fetch)(of->q, head, queries, width, desk.queries);
            NAME(fetch)(of->out, head, queries, width, desk.up);
            if (pairs) {
                NAME(multiply_pairs)(of, of->q, head, desk.turned_keys, desk.weights);
                NAME(multiply_pairs)(of, of->out, head, desk.turned_values, desk.down);
            }
            for (int64_t i = 0; i < queries; i += HEIGHT) {
                NAME(Sight) sight = NAME(look)(of, &desk, head, i);
                float *weights = desk.weights + i * keys, *down = desk.down + i * keys;
                float tops[HEIGHT] = {0}, share[HEIGHT] = {0};
                for (int q = 0; q < sight.count && i + q < queries; q++) {
                    tops[q] = largest[i + q];
                    share[q] = shares[i + q];
                }
                if (!pairs) {
                    NAME(band)(desk.queries + i * width, width, 1, desk.turned_keys, keys, weights,
                               keys, sight.reach, width, sight.count, 0);
                    NAME(band)(desk.up + i * width, width, 1, desk.turned_values, keys, down, keys,
                               sight.reach, width, sight.count, 0);
                }
                if (sight.count > 4)
                    NAME(harden)(&sight, weights, down, keys, of->scale, tops, share, HEIGHT);
                else NAME(harden)(&sight, weights, down, keys, of->scale, tops, share, 4);
                NAME(band)(down, keys, 1, desk.keys, width, desk.for_queries + i * width, width,
                           width, sight.reach < of->num_keys ? sight.reach : of->num_keys,
                           sight.count, 0);
            }
            NAME(give)(of->for_q, head, queries, width, &of->scale, 0, desk.for_queries);
            int64_t from = 0;  // queries before see none of the keys from j on
            for (int64_t j = 0; j < of->num_keys; j += HEIGHT) {
                int count = NAME(height)(of->num_keys - j);
                while (from < queries && desk.reach[from] <= j) from++;
                NAME(band)(desk.weights + from * keys + j, 1, keys, desk.up + from * width, width,
                           desk.for_values + j * width, width, width, queries - from, count, add);
                NAME(band)(desk.down + from * keys + j, 1, keys, desk.queries + from * width, width,
                           desk.for_keys + j * width, width, width, queries - from, count, add);
            }
        }
        NAME(give)(of->for_k, key_head, of->num_keys, width, &of->scale, 0, desk.for_keys);
        NAME(give)(of->for_v, key_head, of->num_keys, width, &one, 0, desk.for_values);
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

#undef HEIGHT
#undef EACH
