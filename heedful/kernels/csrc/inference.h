// Attention and whole layers of finished models.

typedef struct {
    const AttentionLayer *layer;
    const AttentionArgs *args;
    float *mixed;   // [B · Lq, H · E]
    float *scores;  // [threads, QUERY_BLOCK, padded keys]
} AttentionCall;

// One head of one sequence.
typedef struct {
    int64_t batch, head, num_keys;
    int64_t mixed_row;  // of its first query among the rows of all sequences
    const float *queries, *keys, *values;
    float *scores;         // [QUERY_BLOCK, score_stride]
    int64_t score_stride;  // num_keys, rounded up to whole registers
} Head;

// Softmax weights are at most 1 and summed as integers, in units of 2⁻²⁴: such a sum is the same in any
// order. Which hidden keys lie between the visible ones (other beams, padding) depends on the batch, and
// would decide which lane of a sum of floats a weight is added to.
#define WEIGHT_ONE (1 << 24)
#define WEIGHTS_OF_A_LANE 64  // fit in 32 bits

// Scores and softmax of query i of the block, not divided by the sum yet; returns 1 / sum.
static inline float softmax_row(const AttentionCall *call, const Head *head, int64_t query,
                                float *row) {
    const AttentionArgs *args = call->args;
    int64_t num_keys = head->num_keys, stride = head->score_stride;
    if (args->bias) {
        const float *bias = args->bias + head->batch * args->bias_batch
            + head->head * args->bias_head + query * args->bias_query;
        for (int64_t s = 0; s < num_keys; s++) row[s] += bias[s];
    }
    const uint8_t *visible = args->visible;
    if (visible) visible += head->batch * args->visible_batch + query * args->visible_query;
    Floats largest = set1(-INFINITY);
    for (int64_t s = 0; s < stride; s += LANES) {
        LaneMask mask = visible_lanes(visible ? visible + s : 0, num_keys - s);
        Floats scores = hide_scores(load(row + s), mask);
        store(row + s, scores);
        largest = max_lanes(scores, largest);
    }
    float top = reduce_max(largest);
    if (top == -INFINITY) top = 0.0f;  // a query that sees nothing
    int64_t sum = 0;
    for (int64_t s = 0; s < stride;) {
        Ints total = {0};
        for (int i = 0; i < WEIGHTS_OF_A_LANE && s < stride; i++, s += LANES) {
            Floats weight = exp_lanes(load(row + s) - top);
            store(row + s, weight);
            total += __builtin_convertvector(weight * WEIGHT_ONE + 0.5f, Ints);
        }
        for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    }
    float share = sum ? (float)WEIGHT_ONE / (float)sum : 0.0f;
    if (args->weights) {
        float *weights = args->weights
            + ((head->batch * call->layer->num_heads + head->head) * args->num_queries + query)
                * args->num_keys;
        for (int64_t s = 0; s < num_keys; s++) weights[s] = row[s] * share;
    }
    return share;
}

// `count` queries of a head over its keys; `vectors` registers hold a key.
ALWAYS_INLINE void attend_block(const AttentionCall *call, const Head *head, int64_t first,
                                int count, int vectors) {
    const AttentionLayer *layer = call->layer;
    const AttentionArgs *args = call->args;
    int64_t num_keys = head->num_keys, stride = head->score_stride, width = layer->head_width;
    const float *keys = head->keys, *values = head->values;
    float *scores = head->scores, shares[QUERY_BLOCK];
    const float *query[QUERY_BLOCK];
    for (int i = 0; i < count; i++) query[i] = head->queries + (first + i) * args->query_row;
    for (int64_t s = 0; s < num_keys; s++, keys += args->key_slot) {
        Floats sums[QUERY_BLOCK];
        for (int i = 0; i < count; i++) sums[i] = set1(0.0f);
        for (int c = 0; c < vectors; c++) {
            Floats key = load(keys + c * LANES);
            for (int i = 0; i < count; i++) sums[i] += key * load(query[i] + c * LANES);
        }
        for (int i = 0; i < count; i++)
            scores[i * stride + s] = reduce_add(sums[i]) * layer->scale;
    }
    for (int i = 0; i < count; i++)
        shares[i] = softmax_row(call, head, first + i, scores + i * stride);
    if (args->weights_only) return;
    for (int c = 0; c < vectors; c++) {
        Floats sums[QUERY_BLOCK];
        for (int i = 0; i < count; i++) sums[i] = set1(0.0f);
        const float *value = values + c * LANES;
        for (int64_t s = 0; s < num_keys; s++, value += args->value_slot) {
            Floats one = load(value);
            for (int i = 0; i < count; i++) sums[i] += one * scores[i * stride + s];
        }
        for (int i = 0; i < count; i++) {
            float *to = call->mixed
                + ((head->mixed_row + first + i) * layer->num_heads + head->head) * width;
            store(to + c * LANES, sums[i] * shares[i]);
        }
    }
}

ALWAYS_INLINE void attend_queries(const AttentionCall *call, const Head *head, int64_t queries,
                                  int vectors) {
    int64_t first = 0;
    for (; first + QUERY_BLOCK <= queries; first += QUERY_BLOCK)
        attend_block(call, head, first, QUERY_BLOCK, vectors);
    switch (queries - first) {
        case 3: attend_block(call, head, first, 3, vectors); break;
        case 2: attend_block(call, head, first, 2, vectors); break;
        case 1: attend_block(call, head, first, 1, vectors); break;
    }
}

static void attend_heads(void *data, int64_t begin, int64_t stop) {
    const AttentionCall *call = data;
    const AttentionLayer *layer = call->layer;
    const AttentionArgs *args = call->args;
    float *scores = call->scores + thread_index() * QUERY_BLOCK * padded_keys(args->num_keys);
    int vectors = (int)(layer->head_width / LANES);
    for (int64_t number = begin; number < stop; number++) {
        int64_t batch = number / layer->num_heads, head_number = number % layer->num_heads;
        int64_t kv_head = head_number / (layer->num_heads / layer->num_kv_heads);
        int64_t queries = args->num_queries, query_at = batch * args->query_batch;
        int64_t key_at = batch * args->key_batch, value_at = batch * args->value_batch;
        Head head = {batch, head_number, args->num_keys, batch * queries, .scores = scores};
        if (args->query_starts) {
            head.mixed_row = args->query_starts[batch];
            queries = args->query_starts[batch + 1] - head.mixed_row;
            query_at = head.mixed_row * args->query_row;
        }
        if (args->key_starts) {
            int64_t row = args->key_starts[batch];
            head.num_keys = args->key_starts[batch + 1] - row;
            key_at = row * args->key_slot;
            value_at = row * args->value_slot;
        }
        head.queries = args->queries + query_at + head_number * layer->head_width;
        head.keys = args->keys + key_at + kv_head * args->key_head;
        head.values = args->values + value_at + kv_head * args->value_head;
        head.score_stride = round_up_to_lanes(head.num_keys);
        switch (vectors) {  // usual widths, so that loops over registers unroll
            case 1: attend_queries(call, &head, queries, 1); break;
            case 2: attend_queries(call, &head, queries, 2); break;
            case 4: attend_queries(call, &head, queries, 4); break;
            default: attend_queries(call, &head, queries, vectors);
        }
    }
}

static void attend(const AttentionLayer *layer, const AttentionArgs *args,
                   const LayerBuffers *buffers) {
    AttentionCall call = {layer, args, buffers->mixed, buffers->scores};
    int64_t work = 2 * args->num_queries * args->num_keys * layer->head_width + 1;
    parallel_for(attend_heads, &call, args->batch * layer->num_heads, grain_for(work, 1 << 17));
}

// Layers -----------------------------------------------------------------------------------------

// The input of a sub-layer: x, normed if norms come first.
static const float *sublayer_input(const Layer *layer, const Norm *weights, const float *x,
                                   int64_t rows, const LayerBuffers *buffers) {
    if (!layer->norm_first) return x;
    norm(weights, x, rows, layer->width, buffers->normed);
    return buffers->normed;
}

// y = x + linear(inner), normed if norms come last.
static void add_output(const Layer *layer, const Linear *weights, const Norm *norm_weights,
                       const float *inner, const float *x, int64_t rows, float *y,
                       const LayerBuffers *buffers) {
    linear(weights, inner, rows, y, 0, x, &buffers->quantized);
    if (!layer->norm_first) norm(norm_weights, y, rows, layer->width, y);
}

static void project(const Layer *layer, const float *x, int64_t rows, float *projected,
                    const LayerBuffers *buffers) {
    x = sublayer_input(layer, &layer->self.norm, x, rows, buffers);
    linear(&layer->self.projection, x, rows, projected, 0, 0, &buffers->quantized);
}

typedef struct {
    const Layer *layer;
    float *inner;       // [rows, width of `up`]: its result, then the input of `down`
    const float *gate;  // [rows, width of `up`], or null
} ActivationCall;

static void activate_rows(void *data, int64_t first, int64_t stop) {
    const ActivationCall *call = data;
    int kind = call->layer->activation;
    int64_t width = call->layer->up.out_width;
    float *inner = call->inner;
    for (int64_t i = first * width; i < stop * width; i += LANES) {
        int64_t left = stop * width - i;
        Floats up = {0}, gate = {0};
        size_t bytes = (size_t)(left < LANES ? left : LANES) * sizeof(float);
        memcpy(&up, inner + i, bytes);
        if (call->gate) {
            memcpy(&gate, call->gate + i, bytes);
            up *= activate(kind, gate, 0);
        } else {
            up = activate(kind, up, 0);
        }
        memcpy(inner + i, &up, bytes);
    }
}

static void feedforward(const Layer *layer, const float *x, int64_t rows, float *y,
                        const LayerBuffers *buffers) {
    const float *input = sublayer_input(layer, &layer->norm, x, rows, buffers);
    int relu = !layer->gated && layer->activation == RELU;
    linear(&layer->up, input, rows, buffers->inner, relu, 0, &buffers->quantized);
    if (layer->gated) linear(&layer->gate, input, rows, buffers->gate, 0, 0, &buffers->quantized);
    if (!relu) {
        ActivationCall call = {layer, buffers->inner, layer->gated ? buffers->gate : 0};
        parallel_for(activate_rows, &call, rows, 32);
    }
    add_output(layer, &layer->down, &layer->norm, buffers->inner, x, rows, y, buffers);
}

// A layer; one with self-attention after `project`, with keys and values in their places.
static void rest_of_layer(const Layer *layer, const float *x, int64_t rows,
                          const AttentionArgs *self, const RecurrenceArgs *recurrence,
                          const AttentionArgs *cross, float *y, const LayerBuffers *buffers) {
    const AttentionLayer *attention = &layer->self;
    if (layer->mixer == ATTENTION) {
        attend(attention, self, buffers);
        if (self->weights_only) return;
        add_output(layer, &attention->output, &attention->norm, buffers->mixed, x, rows, y,
                   buffers);
    } else {
        const Norm *weights = &layer->recurrent.norm;
        recur(layer, sublayer_input(layer, weights, x, rows, buffers), x, rows, recurrence, y,
              buffers);
        if (!layer->norm_first) norm(weights, y, rows, layer->width, y);
    }
    if (layer->has_cross) {
        attention = &layer->cross;
        const float *input = sublayer_input(layer, &attention->norm, y, rows, buffers);
        linear(&attention->projection, input, rows, buffers->queries, 0, 0, &buffers->quantized);
        AttentionArgs args = *cross;
        args.queries = buffers->queries;
        args.query_row = attention->projection.out_width;
        args.query_batch = args.num_queries * args.query_row;
        attend(attention, &args, buffers);
        if (cross->weights_only) return;
        add_output(layer, &attention->output, &attention->norm, buffers->mixed, y, rows, y,
                   buffers);
    }
    feedforward(layer, y, rows, y, buffers);
}
