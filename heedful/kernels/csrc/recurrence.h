// Mixers of finished models that keep the state of a recurrence in the place of keys and values: average
// attention and SSRU. Their linear maps are of all rows at once; then each text is gone through row by
// row, a register of its state at a time.

typedef struct {
    const Layer *layer;
    const RecurrenceArgs *args;
    const float *input;  // [rows, D], what the mixer reads
    const float *x;      // [rows, D], the residual stream
    const float *gate;   // [rows, N of the gate], before its sigmoid; or null
    int64_t rows;
    float *mixed;  // [rows, D]: the values of an SSRU; the averages, or what the network made of them
    float *y;      // [rows, D]
} RecurrenceCall;

// The rows of a text, and its state; `before` and `after` may be null.
typedef struct {
    int64_t first, stop;
    const float *before;
    float *after;
} Text;

static inline Text text_at(const RecurrenceCall *call, int64_t number, int64_t state_width) {
    const RecurrenceArgs *args = call->args;
    int64_t length = call->rows / args->num_texts;
    Text text = {number * length, (number + 1) * length, 0, 0};
    if (args->starts) text.first = args->starts[number], text.stop = args->starts[number + 1];
    if (args->before) text.before = args->before + number * state_width;
    if (args->after) text.after = args->after + number * state_width;
    return text;
}

static inline int is_padding(const RecurrenceCall *call, int64_t row) {
    return call->args->positions && call->args->positions[row] < 0;
}

// c = f · c + (1 - f) · v and y = x + max(c, 0).
static void ssru_texts(void *data, int64_t first, int64_t stop) {
    const RecurrenceCall *call = data;
    int64_t width = call->layer->width;
    for (int64_t number = first; number < stop; number++) {
        Text text = text_at(call, number, width);
        for (int64_t i = 0; i < width; i += LANES) {
            Floats cell = {0};
            if (text.before) cell = load_tail(text.before, i, width);
            for (int64_t row = text.first; row < text.stop; row++) {
                int64_t at = row * width;
                if (!is_padding(call, row)) {
                    Floats forget = sigmoid(load_tail(call->gate + at, i, width));
                    Floats value = load_tail(call->mixed + at, i, width);
                    cell = forget * cell + (1.0f - forget) * value;
                }
                Floats x = load_tail(call->x + at, i, width);
                store_tail(call->y + at, i, width, x + activate(RELU, cell, 0));
            }
            if (text.after) store_tail(text.after, i, width, cell);
        }
    }
}

// The average of each row and those before it.
static void average_texts(void *data, int64_t first, int64_t stop) {
    const RecurrenceCall *call = data;
    int64_t width = call->layer->width;
    for (int64_t number = first; number < stop; number++) {
        Text text = text_at(call, number, width + 1);
        float count = 0.0f;
        for (int64_t i = 0; i < width; i += LANES) {
            Floats sum = {0};
            count = 0.0f;
            if (text.before) {
                sum = load_tail(text.before, i, width);
                count = text.before[width];
            }
            for (int64_t row = text.first; row < text.stop; row++) {
                if (!is_padding(call, row)) {
                    sum += load_tail(call->input + row * width, i, width);
                    count += 1.0f;
                }
                store_tail(call->mixed + row * width, i, width, sum / (count < 1.0f ? 1.0f : count));
            }
            if (text.after) store_tail(text.after, i, width, sum);
        }
        if (text.after) text.after[width] = count;
    }
}

// y = x plus the shares of token and average, or plus the average where there is no gate.
static void add_shares(void *data, int64_t first, int64_t stop) {
    const RecurrenceCall *call = data;
    int64_t width = call->layer->width;
    for (int64_t row = first; row < stop; row++)
        for (int64_t i = 0, at = row * width; i < width; i += LANES) {
            Floats added = load_tail(call->mixed + at, i, width);
            if (call->gate) {
                const float *gates = call->gate + 2 * at;
                added *= sigmoid(load_tail(gates + width, i, width));
                added += sigmoid(load_tail(gates, i, width)) * load_tail(call->input + at, i, width);
            }
            store_tail(call->y + at, i, width, load_tail(call->x + at, i, width) + added);
        }
}

// y [rows, D] = x plus what the mixer makes of `input`, which is x or its norm.
static void recur(const Layer *layer, const float *input, const float *x, int64_t rows,
                  const RecurrenceArgs *args, float *y, const LayerBuffers *buffers) {
    const RecurrentLayer *parts = &layer->recurrent;
    const QuantizedRows *quantized = &buffers->quantized;
    RecurrenceCall call = {layer, args, input, x, 0, rows, buffers->mixed, y};
    if (!rows) return;
    int64_t width = layer->width, length = ceil_div(rows, args->num_texts);
    int64_t grain = grain_for(32 * length * width, 1 << 17);
    if (parts->gate.packed_weight) call.gate = buffers->gate;
    if (layer->mixer == SSRU) {
        linear(&parts->value, input, rows, buffers->mixed, 0, 0, quantized);
        linear(&parts->gate, input, rows, buffers->gate, 0, 0, quantized);
        parallel_for(ssru_texts, &call, args->num_texts, grain);
        return;
    }
    parallel_for(average_texts, &call, args->num_texts, grain);
    if (parts->up.packed_weight) {
        linear(&parts->up, buffers->mixed, rows, buffers->inner, 1, 0, quantized);
        linear(&parts->down, buffers->inner, rows, buffers->mixed, 0, 0, quantized);
    }
    if (call.gate) {
        float *joined = buffers->joined;
        size_t bytes = (size_t)width * sizeof(float);
        for (int64_t row = 0; row < rows; row++, joined += 2 * width) {
            memcpy(joined, input + row * width, bytes);
            memcpy(joined + width, buffers->mixed + row * width, bytes);
        }
        linear(&parts->gate, buffers->joined, rows, buffers->gate, 0, 0, quantized);
    }
    parallel_for(add_shares, &call, rows, grain_for(32 * width, 1 << 17));
}
