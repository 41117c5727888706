// Attention of short sequences in training, and its gradients: a thread works on one key head of one
// sequence at a time, whose numbers stay in the nearest cache.

#define ATTENTION_MR (LANES == 8 ? 4 : 8)  // rows of a micro-kernel; AVX2 has only 16 registers

// A thread's workspace, in float32. Rows are padded to whole registers and numbers of rows to four,
// with zeros or with what nobody reads.
typedef struct {
    float *keys, *values;                           // [Lk, E]
    float *keys_t, *values_t;                       // [E, Lk'], or bfloat16 pairs [E / 2, Lk']
    float *queries, *grad_out;                      // [Lq', E]; forward, grad_out holds the result
    float *weights, *grad_weights;                  // [Lq', Lk']
    float *grad_queries, *grad_keys, *grad_values;  // [Lq', E], [Lk', E], [Lk', E]
    int64_t *reach;  // [Lq']: keys up to the last one a query sees, rounded up to whole registers
} AttentionBuffers;

// Whether AMX multiplies queries and keys: exact products of bfloat16, summed in float32.
static inline int in_bf16_pairs(const AttentionTraining *args) {
    return HAS_AMX && args->head_width % 32 == 0 && args->q.array.is_bf16 && args->k.array.is_bf16
        && args->v.array.is_bf16 && args->out.array.is_bf16;
}

static inline int64_t score_stride(const AttentionTraining *args) {
    int64_t unit = in_bf16_pairs(args) ? 32 : LANES;
    return ceil_div(args->num_keys, unit) * unit;
}

static inline int64_t round_up_to_4(int64_t count) { return (count + 3) / 4 * 4; }

static int64_t attention_buffers(AttentionBuffers *buffers, float *workspace,
                                 const AttentionTraining *args) {
    int64_t keys = score_stride(args), queries = round_up_to_4(args->num_queries), size = 0;
    int64_t by_key = keys * args->head_width, by_query = queries * args->head_width;
    struct {
        float **buffer;
        int64_t count;
    } parts[] = {
        {&buffers->keys, by_key}, {&buffers->values, by_key}, {&buffers->keys_t, by_key},
        {&buffers->values_t, by_key}, {&buffers->queries, by_query},
        {&buffers->grad_out, by_query}, {&buffers->weights, queries * keys},
        {&buffers->grad_weights, queries * keys}, {&buffers->grad_queries, by_query},
        {&buffers->grad_keys, by_key}, {&buffers->grad_values, by_key},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].buffer = workspace + size;
        size += ceil_div(parts[i].count, 16) * 16;
    }
    buffers->reach = (int64_t *)(workspace + size);
    return size + ceil_div(2 * queries, 16) * 16;
}

static AttentionBuffers thread_buffers(const AttentionTraining *args) {
    AttentionBuffers buffers;
    int64_t size = attention_buffers(&buffers, args->workspace, args);
    attention_buffers(&buffers, args->workspace + thread_index() * size, args);
    return buffers;
}

// How many rows go together if so many are left.
static inline int row_block(int64_t left) { return left > 4 ? ATTENTION_MR : 4; }

// c [count, vectors · LANES] = a · b, added to c if `accumulate`. Number (i, k) of a stands at
// i·a_row + k·a_step.
ALWAYS_INLINE void attention_micro_kernel(const float *a, int64_t a_row, int64_t a_step,
                                          const float *b, int64_t b_row, float *c, int64_t c_row,
                                          int64_t depth, int count, int vectors, int accumulate) {
    Floats sums[ATTENTION_MR][3];
    UNROLL(i, count) UNROLL(r, vectors) sums[i][r] = set1(0.0f);
    if (accumulate)
        UNROLL(i, count) UNROLL(r, vectors) sums[i][r] = load(c + i * c_row + r * LANES);
    for (int64_t k = 0; k < depth; k++, a += a_step, b += b_row) {
        Floats row[3];
        UNROLL(r, vectors) row[r] = load(b + r * LANES);
        UNROLL(i, count) {
            Floats one = set1(a[i * a_row]);
            UNROLL(r, vectors) sums[i][r] += one * row[r];
        }
    }
    UNROLL(i, count) UNROLL(r, vectors) store(c + i * c_row + r * LANES, sums[i][r]);
}

// The same for ATTENTION_MR rows, or four, and any number of whole registers of columns.
static void multiply_rows(const float *a, int64_t a_row, int64_t a_step, const float *b,
                          int64_t b_row, float *c, int64_t c_row, int64_t columns, int64_t depth,
                          int count, int accumulate) {
#define COLUMNS(vectors)                                                                          \
    do {                                                                                          \
        if (count > 4)                                                                            \
            attention_micro_kernel(a, a_row, a_step, b + n, b_row, c + n, c_row, depth,           \
                                   ATTENTION_MR, vectors, accumulate);                            \
        else                                                                                      \
            attention_micro_kernel(a, a_row, a_step, b + n, b_row, c + n, c_row, depth, 4,        \
                                   vectors, accumulate);                                          \
        n += vectors * LANES;                                                                     \
    } while (0)
    int64_t n = 0;
    while (columns - n > 3 * LANES || columns - n == 2 * LANES) COLUMNS(2);
    if (columns - n == 3 * LANES) COLUMNS(3);
    else if (n < columns) COLUMNS(1);
#undef COLUMNS
}

ALWAYS_INLINE void read_rows_as(HeadTensor from, int64_t at, int64_t rows, int64_t width, float *to,
                                int is_bf16) {
    from.array.is_bf16 = is_bf16;
    for (int64_t row = 0; row < rows; row++, at += from.row_stride)
        for (int64_t e = 0; e < width; e += LANES, to += LANES)
            store(to, load_array(from.array, at + e));
    memset(to, 0, (size_t)((round_up_to_4(rows) - rows) * width) * sizeof *to);
}

// Copy a head's rows, their number padded to a multiple of four with zeros.
static void read_rows(HeadTensor from, int64_t head, int64_t rows, int64_t width, float *to) {
    int64_t at = head * from.head_stride;
    if (from.array.is_bf16) read_rows_as(from, at, rows, width, to, 1);
    else read_rows_as(from, at, rows, width, to, 0);
}

// Copy rows [rows, width] as columns, padded to `stride` with zeros: of numbers, or if `pairs` of
// pairs of bfloat16 numbers.
ALWAYS_INLINE void read_transposed_as(HeadTensor from, int64_t at, int64_t rows, int64_t width,
                                      int64_t stride, float *to, int pairs) {
    const uint16_t *bf16 = from.array.data;
    int64_t depth = pairs ? width / 2 : width, end = round_up_to_lanes(rows);
    for (int64_t row = end; row < stride; row += LANES)
        for (int64_t e = 0; e < depth; e++) store(to + e * stride + row, set1(0.0f));
    for (int64_t row = 0; row < end; row += LANES)
        for (int64_t e = 0; e < depth; e += LANES) {
            Bits square[LANES];
            for (int i = 0; i < LANES; i++) {
                int64_t first = at + (row + i) * from.row_stride;
                square[i] = (Bits){0};
                if (row + i >= rows) continue;
                if (pairs) square[i] = (Bits)load((const float *)(bf16 + first) + e);
                else square[i] = (Bits)load_array(from.array, first + e);
            }
            transpose(square);
            for (int i = 0; i < LANES; i++) store(to + (e + i) * stride + row, (Floats)square[i]);
        }
}

static void read_transposed(const AttentionTraining *args, HeadTensor from, int64_t head,
                            float *to) {
    int64_t at = head * from.head_stride, stride = score_stride(args), rows = args->num_keys;
    if (in_bf16_pairs(args)) read_transposed_as(from, at, rows, args->head_width, stride, to, 1);
    else read_transposed_as(from, at, rows, args->head_width, stride, to, 0);
}

// All products [Lq, Lk'] of a head's rows, as many as there are queries, with transposed keys or
// values in bfloat16 pairs.
static void multiply_pairs(const AttentionTraining *args, HeadTensor left, int64_t head,
                           const float *transposed, float *to) {
#if HAS_AMX
    const uint16_t *at = (const uint16_t *)left.array.data + head * left.head_stride;
    int64_t keys = score_stride(args);
    for (int64_t row = 0; row < args->num_queries; row += AMX_MR) {
        int64_t count = min_i64(args->num_queries - row, AMX_MR);
        amx_configure(count, AMX_UNITS);
        for (int64_t s = 0; s < keys; s += AMX_NR)
            amx_micro_kernel(AMX_BF16, count, (const char *)(at + row * left.row_stride),
                             left.row_stride * 2, 4 * AMX_UNITS, (const char *)(transposed + s),
                             keys * 4, args->head_width / 2, (char *)(to + row * keys + s),
                             keys * 4, 0, 0, 0, (Interleaved){0});
    }
    amx_release();
#else
    (void)args, (void)left, (void)head, (void)transposed, (void)to;
#endif
}

// Write a head's rows, row i times factors[i · step].
static void write_rows(HeadTensor to, int64_t head, int64_t rows, int64_t width,
                       const float *factors, int64_t step, const float *from) {
    int64_t at = head * to.head_stride;
    for (int64_t row = 0; row < rows; row++, at += to.row_stride, factors += step)
        for (int64_t e = 0; e < width; e += LANES, from += LANES)
            store_array(to.array, at + e, load(from) * *factors);
}

ALWAYS_INLINE void prefetch_heads(HeadTensor tensor, int64_t head, int64_t heads, int64_t rows,
                                  int64_t width, int for_writing) {
    int64_t size = item_size(tensor.array);
    const char *at = (const char *)tensor.array.data + head * tensor.head_stride * size;
    for (int64_t row = 0; row < rows; row++, at += tensor.row_stride * size)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t byte = 0; byte < width * size; byte += 64) {
                const char *line = at + h * tensor.head_stride * size + byte;
                if (for_writing) __builtin_prefetch(line, 1, 3);
                else __builtin_prefetch(line, 0, 2);
            }
}

static HeadTensor of_sequence(HeadTensor tensor, int64_t batch, const int64_t *starts) {
    tensor.array = offset(tensor.array, starts ? starts[batch] * tensor.row_stride
                                               : batch * tensor.batch_stride);
    return tensor;
}

// The arguments for one sequence alone.
static AttentionTraining sequence_args(const AttentionTraining *all, int64_t batch) {
    AttentionTraining one = *all;
    const int64_t *queries = all->query_starts, *keys = all->key_starts;
    one.q = of_sequence(all->q, batch, queries);
    one.k = of_sequence(all->k, batch, keys);
    one.v = of_sequence(all->v, batch, keys);
    one.out = of_sequence(all->out, batch, queries);
    one.grad_q = of_sequence(all->grad_q, batch, queries);
    one.grad_k = of_sequence(all->grad_k, batch, keys);
    one.grad_v = of_sequence(all->grad_v, batch, keys);
    one.softmax_stats += batch * all->num_heads * 2 * all->num_queries;
    if (all->visible) one.visible += batch * all->visible_batch;
    if (queries) one.num_queries = queries[batch + 1] - queries[batch];
    if (keys) one.num_keys = keys[batch + 1] - keys[batch];
    return one;
}

// Prefetch what will be read for a key head and its queries.
static void prefetch_inputs(const AttentionTraining *all, int64_t number, int backward) {
    AttentionTraining one = sequence_args(all, number / all->num_kv_heads), *args = &one;
    int64_t kv_head = number % args->num_kv_heads, width = args->head_width;
    int64_t group = args->num_heads / args->num_kv_heads, first = kv_head * group;
    prefetch_heads(args->k, kv_head, 1, args->num_keys, width, 0);
    prefetch_heads(args->v, kv_head, 1, args->num_keys, width, 0);
    prefetch_heads(args->q, first, group, args->num_queries, width, 0);
    if (backward) prefetch_heads(args->out, first, group, args->num_queries, width, 0);
}

// A block of queries that go through the keys together.
typedef struct {
    const uint8_t *visible[ATTENTION_MR];  // of each query; null if it sees all keys
    int64_t reach, num_keys;
    int count;
} QueryBlock;

// The queries from `first` on; rows that only pad the block see what the last query sees.
static QueryBlock query_block(const AttentionTraining *args, const AttentionBuffers *buffers,
                              int64_t head, int64_t first) {
    QueryBlock block = {{0}, round_up_to_lanes(args->num_keys), args->num_keys, 0};
    block.count = row_block(args->num_queries - first);
    if (args->visible) {
        const uint8_t *visible = args->visible + head * args->visible_head;
        for (int i = 0; i < block.count; i++) {
            int64_t query = first + i < args->num_queries ? first + i : args->num_queries - 1;
            block.visible[i] = visible + query * args->visible_query;
        }
        int found = 0;
        while (block.reach > 0) {
            int64_t s = block.reach - LANES;
            for (int i = 0; i < block.count; i++)
                found |= any_visible(visible_lanes(block.visible[i] + s, args->num_keys - s));
            if (found) break;
            block.reach = s;
        }
    }
    for (int i = 0; i < block.count; i++) buffers->reach[first + i] = block.reach;
    return block;
}

// Scores of query i with the keys from s on, −∞ for those it does not see.
static inline Floats masked_scores(const QueryBlock *block, int i, int64_t s, const float *products,
                                   float scale) {
    const uint8_t *visible = block->visible[i];
    LaneMask mask = visible_lanes(visible ? visible + s : 0, block->num_keys - s);
    return hide_scores(load(products) * scale, mask);
}

// Forward ----------------------------------------------------------------------------------------

// Softmax in place, not divided by the sum yet: `largest` receives each query's largest score, and
// `share` 1 / sum.
ALWAYS_INLINE void softmax(const QueryBlock *block, float *scores, int64_t stride, float scale,
                           float *largest, float *share, int count) {
    Floats top[ATTENTION_MR], total[ATTENTION_MR];
    UNROLL(i, count) top[i] = set1(-INFINITY);
    for (int64_t s = 0; s < block->reach; s += LANES)
        UNROLL(i, count) {
            float *at = scores + i * stride + s;
            Floats score = masked_scores(block, i, s, at, scale);
            store(at, score);
            top[i] = max_lanes(score, top[i]);
        }
    UNROLL(i, count) {
        largest[i] = reduce_max(top[i]);
        if (largest[i] == -INFINITY) largest[i] = 0.0f;  // a query that sees nothing
        total[i] = set1(0.0f);
    }
    for (int64_t s = 0; s < block->reach; s += LANES)
        UNROLL(i, count) {
            float *at = scores + i * stride + s;
            Floats weight = exp_lanes(load(at) - largest[i]);
            store(at, weight);
            total[i] += weight;
        }
    UNROLL(i, count) {
        float sum = reduce_add(total[i]);
        share[i] = sum > 0.0f ? 1.0f / sum : 0.0f;
    }
}

static void attention_heads(void *data, int64_t first, int64_t stop) {
    const AttentionTraining *all = data;
    AttentionBuffers buffers = thread_buffers(all);
    int64_t width = all->head_width, group = all->num_heads / all->num_kv_heads;
    int pairs = in_bf16_pairs(all);
    for (int64_t number = first; number < stop; number++) {
        AttentionTraining one = sequence_args(all, number / all->num_kv_heads), *args = &one;
        int64_t kv_head = number % args->num_kv_heads, queries = args->num_queries;
        int64_t stride = score_stride(args);
        if (number + 1 < stop) prefetch_inputs(all, number + 1, 0);
        read_transposed(args, args->k, kv_head, buffers.keys_t);
        read_rows(args->v, kv_head, args->num_keys, width, buffers.values);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            float *largest = args->softmax_stats + head * 2 * queries, *shares = largest + queries;
            prefetch_heads(args->out, head, 1, queries, width, 1);
            if (pairs) multiply_pairs(args, args->q, head, buffers.keys_t, buffers.weights);
            else read_rows(args->q, head, queries, width, buffers.queries);
            for (int64_t i = 0; i < queries; i += ATTENTION_MR) {
                QueryBlock block = query_block(args, &buffers, head, i);
                float *weights = buffers.weights + i * stride;
                float tops[ATTENTION_MR], share[ATTENTION_MR];
                if (!pairs)
                    multiply_rows(buffers.queries + i * width, width, 1, buffers.keys_t, stride,
                                  weights, stride, block.reach, width, block.count, 0);
                if (block.count > 4)
                    softmax(&block, weights, stride, args->scale, tops, share, ATTENTION_MR);
                else softmax(&block, weights, stride, args->scale, tops, share, 4);
                for (int q = 0; q < block.count && i + q < queries; q++) {
                    largest[i + q] = tops[q];
                    shares[i + q] = share[q];
                }
                multiply_rows(weights, stride, 1, buffers.values, width,
                              buffers.grad_out + i * width, width, width,
                              min_i64(block.reach, args->num_keys), block.count, 0);
            }
            write_rows(args->out, head, queries, width, shares, 1, buffers.grad_out);
        }
    }
}

// Backward ---------------------------------------------------------------------------------------

// Scores become weights again, and the weights' gradients those of the scores.
ALWAYS_INLINE void softmax_backward(const QueryBlock *block, float *scores, float *grad,
                                    int64_t stride, float scale, const float *largest,
                                    const float *share, int count) {
    Floats products[ATTENTION_MR];
    float sums[ATTENTION_MR];
    UNROLL(i, count) products[i] = set1(0.0f);
    for (int64_t s = 0; s < block->reach; s += LANES)
        UNROLL(i, count) {
            float *at = scores + i * stride + s;
            Floats score = masked_scores(block, i, s, at, scale);
            Floats weight = exp_lanes(score - largest[i]) * share[i];
            store(at, weight);
            products[i] += weight * load(grad + i * stride + s);
        }
    UNROLL(i, count) sums[i] = reduce_add(products[i]);
    for (int64_t s = 0; s < block->reach; s += LANES)
        UNROLL(i, count) {
            float *at = grad + i * stride + s;
            store(at, load(scores + i * stride + s) * (load(at) - sums[i]));
        }
    size_t rest = (size_t)(stride - block->reach) * sizeof(float);
    for (int i = 0; i < count && rest; i++) {
        memset(scores + i * stride + block->reach, 0, rest);
        memset(grad + i * stride + block->reach, 0, rest);
    }
}

static void attention_backward_heads(void *data, int64_t first, int64_t stop) {
    const AttentionTraining *all = data;
    AttentionBuffers buffers = thread_buffers(all);
    int64_t width = all->head_width, group = all->num_heads / all->num_kv_heads;
    int pairs = in_bf16_pairs(all);
    const float one_scale = 1.0f;
    for (int64_t number = first; number < stop; number++) {
        AttentionTraining one = sequence_args(all, number / all->num_kv_heads), *args = &one;
        int64_t kv_head = number % args->num_kv_heads, queries = args->num_queries;
        int64_t stride = score_stride(args), keys = args->num_keys;
        if (number + 1 < stop) prefetch_inputs(all, number + 1, 1);
        prefetch_heads(args->grad_k, kv_head, 1, keys, width, 1);
        prefetch_heads(args->grad_v, kv_head, 1, keys, width, 1);
        read_rows(args->k, kv_head, keys, width, buffers.keys);
        read_transposed(args, args->k, kv_head, buffers.keys_t);
        read_transposed(args, args->v, kv_head, buffers.values_t);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            int accumulate = head > kv_head * group;
            const float *largest = args->softmax_stats + head * 2 * queries;
            const float *shares = largest + queries;
            prefetch_heads(args->grad_q, head, 1, queries, width, 1);
            read_rows(args->q, head, queries, width, buffers.queries);
            read_rows(args->out, head, queries, width, buffers.grad_out);
            if (pairs) {
                multiply_pairs(args, args->q, head, buffers.keys_t, buffers.weights);
                multiply_pairs(args, args->out, head, buffers.values_t, buffers.grad_weights);
            }
            for (int64_t i = 0; i < queries; i += ATTENTION_MR) {
                QueryBlock block = query_block(args, &buffers, head, i);
                float *weights = buffers.weights + i * stride;
                float *grad_weights = buffers.grad_weights + i * stride;
                float tops[ATTENTION_MR] = {0}, share[ATTENTION_MR] = {0};
                for (int q = 0; q < block.count && i + q < queries; q++) {
                    tops[q] = largest[i + q];
                    share[q] = shares[i + q];
                }
                if (!pairs) {
                    multiply_rows(buffers.queries + i * width, width, 1, buffers.keys_t, stride,
                                  weights, stride, block.reach, width, block.count, 0);
                    multiply_rows(buffers.grad_out + i * width, width, 1, buffers.values_t, stride,
                                  grad_weights, stride, block.reach, width, block.count, 0);
                }
                if (block.count > 4)
                    softmax_backward(&block, weights, grad_weights, stride, args->scale, tops,
                                     share, ATTENTION_MR);
                else
                    softmax_backward(&block, weights, grad_weights, stride, args->scale, tops,
                                     share, 4);
                multiply_rows(grad_weights, stride, 1, buffers.keys, width,
                              buffers.grad_queries + i * width, width, width,
                              min_i64(block.reach, keys), block.count, 0);
            }
            write_rows(args->grad_q, head, queries, width, &args->scale, 0, buffers.grad_queries);
            int64_t from = 0;  // queries before it see none of the keys from j on
            for (int64_t j = 0; j < keys; j += ATTENTION_MR) {
                int count = row_block(keys - j);
                while (from < queries && buffers.reach[from] <= j) from++;
                multiply_rows(buffers.weights + from * stride + j, 1, stride,
                              buffers.grad_out + from * width, width,
                              buffers.grad_values + j * width, width, width, queries - from, count,
                              accumulate);
                multiply_rows(buffers.grad_weights + from * stride + j, 1, stride,
                              buffers.queries + from * width, width, buffers.grad_keys + j * width,
                              width, width, queries - from, count, accumulate);
            }
        }
        write_rows(args->grad_k, kv_head, keys, width, &args->scale, 0, buffers.grad_keys);
        write_rows(args->grad_v, kv_head, keys, width, &one_scale, 0, buffers.grad_values);
    }
}

static int64_t attention_workspace(const AttentionTraining *args) {
    AttentionBuffers buffers;
    return num_threads() * attention_buffers(&buffers, 0, args);
}

static void attention(AttentionTraining *args, int backward) {
    int64_t group = args->num_heads / args->num_kv_heads;
    int64_t work = args->num_queries * args->num_keys * args->head_width * group;
    parallel_for(backward ? attention_backward_heads : attention_heads, args,
                 args->batch * args->num_kv_heads, 1 + (1 << 17) / (work + 1));
}
