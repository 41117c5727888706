// What a step of decoding does besides products and attention of single layers: what is read of ids, who
// sees whom, all layers one after the other, and the best of what may come next.

// By what the rows of projected queries and keys are turned, [rows, pairs] each. Pairs are neighbours,
// or as far from each other as there are pairs.
typedef struct {
    const float *cosine, *sine;  // null where nothing is turned
    int64_t pairs, neighbours;
} Turns;

// Layers on top of each other. What each sees is the same but for where its keys and values stand.
typedef struct {
    const Layer *const *layers;
    int64_t count;
    Seen self, cross;
    // Of each layer, what `self` says the strides of: where its keys and values are put, and those of
    // earlier tokens stand. Null where each sees the tokens of this pass alone.
    float *const *keys, *const *values;
    int64_t taken;  // slots of each sentence that hold earlier tokens
    Turns turns;
    const float *const *memory_keys, *const *memory_values;  // of each layer, what `cross` sees
} Pass;

// Who sees whom, [batch, queries, keys]: tokens that are there (whose positions are not −1), where
// `causal` only those at the query's position or before it, and of these what its lineage has, if
// there are any [batch, queries, keys]. Whether all is seen.
int heedful_visible(const int64_t *query, const int64_t *key, const uint8_t *lineage, int64_t batch,
                    int64_t queries, int64_t keys, int causal, uint8_t *visible) {
    uint8_t all = 1;
    for (int64_t b = 0; b < batch; b++, key += keys)
        for (int64_t i = 0; i < queries; i++, query++, visible += keys) {
            int64_t last = *query < 0 ? -1 : causal ? *query : INT64_MAX;
            for (int64_t s = 0; s < keys; s++) visible[s] = key[s] >= 0 && key[s] <= last;
            if (lineage) {
                for (int64_t s = 0; s < keys; s++) visible[s] &= lineage[s];
                lineage += keys;
            }
            for (int64_t s = 0; s < keys; s++) all &= visible[s];
        }
    return all;
}

// x [rows, D] = a row of `table` for each id, times `scale`, and one of `places` for each position that
// is not −1, beginning with row `first` for position 0. Without `places` nothing is added. Whether all
// ids and positions have rows.
int heedful_embed(const int64_t *ids, const int64_t *positions, int64_t rows, const float *table,
                  int64_t ids_known, float scale, const float *places, int64_t places_known,
                  int64_t first, int64_t width, float *x) {
    for (int64_t row = 0; row < rows; row++, x += width) {
        if (ids[row] < 0 || ids[row] >= ids_known) return 0;
        const float *piece = table + ids[row] * width;
        if (!places || positions[row] < 0) {
            for (int64_t i = 0; i < width; i++) x[i] = piece[i] * scale;
            continue;
        }
        if (first + positions[row] >= places_known) return 0;
        const float *place = places + (first + positions[row]) * width;
        for (int64_t i = 0; i < width; i++) x[i] = piece[i] * scale + place[i];
    }
    return 1;
}

// Cosine and sine, [rows, pairs] each, of the angles that pairs of these frequencies are turned by at
// each position, times `temperature`.
void heedful_waves(const int64_t *positions, int64_t rows, const float *frequencies, int64_t pairs,
                   float temperature, float *cosine, float *sine) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < pairs; i++) {
            float angle = (float)positions[row] * frequencies[i];
            *cosine++ = cosf(angle) * temperature;
            *sine++ = sinf(angle) * temperature;
        }
}

// Turn `heads` vectors of `width` numbers each, which begin the rows of `projected`, `step` apart.
void heedful_turn(const Turns *turns, float *projected, int64_t rows, int64_t step, int64_t heads,
                  int64_t width) {
    int64_t pairs = turns->pairs, next = turns->neighbours ? 2 : 1;
    int64_t apart = turns->neighbours ? 1 : pairs;
    for (int64_t row = 0; row < rows; row++, projected += step)
        for (int64_t head = 0; head < heads; head++) {
            const float *cosine = turns->cosine + row * pairs, *sine = turns->sine + row * pairs;
            float *first = projected + head * width, *second = first + apart;
            for (int64_t i = 0; i < pairs; i++, first += next, second += next) {
                float one = *first, two = *second;
                *first = one * cosine[i] - two * sine[i];
                *second = two * cosine[i] + one * sine[i];
            }
        }
}

// Give each layer of a pass its workspace behind what its projections make, which all share.
static float *lay_out_pass(Workspace *space, const Pass *pass, int64_t rows) {
    int64_t widest = 0;
    for (int64_t i = 0; i < pass->count; i++)
        widest = most(widest, pass->layers[i]->self.projection.out_width);
    return take(space, rows * widest * (int64_t)sizeof(float));
}

int64_t heedful_pass_room(const Pass *pass, int64_t rows) {
    Workspace space = {.memory = 0};
    lay_out_pass(&space, pass, rows);
    size_t largest = 0;
    for (int64_t i = 0; i < pass->count; i++) {
        Workspace own = {.memory = 0};
        lay_out(&own, pass->layers[i], rows, most(pass->self.num_keys, pass->cross.num_keys));
        if (own.size > largest) largest = own.size;
    }
    return (int64_t)(space.size + largest);
}

// Put the keys or values of each new token of each sentence, rows `step` apart, into their slots.
static void put_heads(const Seen *self, int64_t taken, const AttentionLayer *attention,
                      const float *from, int64_t step, float *to, int64_t batch_step,
                      int64_t head_step, int64_t slot_step) {
    int64_t width = attention->head_width;
    for (int64_t b = 0; b < self->batch; b++)
        for (int64_t i = 0; i < self->num_queries; i++, from += step)
            for (int64_t h = 0; h < attention->key_heads; h++)
                memcpy(to + b * batch_step + h * head_step + (taken + i) * slot_step,
                       from + h * width, (size_t)width * sizeof(float));
}

// y [rows, D] = x [rows, D] through all layers.
void heedful_pass(const Pass *pass, const float *x, int64_t rows, float *y, char *workspace) {
    Workspace space = {.memory = workspace};
    float *projected = lay_out_pass(&space, pass, rows);
    Seen self = pass->self, cross = pass->cross;
    for (int64_t i = 0; i < pass->count; i++, x = y) {
        const Layer *layer = pass->layers[i];
        const AttentionLayer *attention = &layer->self;
        Workspace own = {.memory = workspace + space.size};
        lay_out(&own, layer, rows, most(self.num_keys, cross.num_keys));
        CALL(project, (layer, x, rows, projected, &own));
        int64_t step = attention->projection.out_width, width = attention->head_width;
        if (pass->turns.cosine)
            heedful_turn(&pass->turns, projected, rows, step,
                         attention->heads + attention->key_heads, width);
        const float *keys = projected + attention->heads * width;
        const float *values = keys + attention->key_heads * width;
        self.queries = projected;
        self.query_row = step;
        self.query_batch = self.num_queries * step;
        if (pass->keys) {
            put_heads(&self, pass->taken, attention, keys, step, pass->keys[i], self.key_batch,
                      self.key_head, self.key_slot);
            put_heads(&self, pass->taken, attention, values, step, pass->values[i],
                      self.value_batch, self.value_head, self.value_slot);
            self.keys = pass->keys[i];
            self.values = pass->values[i];
        } else {
            self.keys = keys;
            self.values = values;
            self.key_batch = self.value_batch = self.query_batch;
            self.key_head = self.value_head = width;
            self.key_slot = self.value_slot = step;
        }
        if (layer->has_cross) {
            cross.keys = pass->memory_keys[i];
            cross.values = pass->memory_values[i];
        }
        CALL(rest, (layer, x, rows, &self, &cross, y, &own));
    }
}

// Logarithms of the sums of exponentials of rows of scores [rows, V]; NaN where a row has one. Whether
// all are numbers.
int heedful_totals(const float *scores, int64_t rows, int64_t size, double *totals) {
    CALL(totals, (scores, rows, size, totals));
    int numbers = 1;
    for (int64_t i = 0; i < rows; i++) numbers &= totals[i] == totals[i];
    return numbers;
}

// The `count` best continuations of each of `batch` sentences by any of its hypotheses, best first; of
// equal ones the first come first. A continuation adds its score [batch, hypotheses, V] less that row's
// excess to the hypothesis's total so far; where there are fewer, totals of −∞ fill the rest. `room` is
// for 12 bytes per row and each of the min(count, V) best of it.
void heedful_candidates(const float *scores, const double *excess, const double *so_far,
                        int64_t batch, int64_t hypotheses, int64_t size, int64_t count,
                        double *totals, int64_t *parents, int64_t *tokens, float *token_scores,
                        char *room) {
    int64_t each = count < size ? count : size, rows = batch * hypotheses;
    int64_t *places = (int64_t *)room;
    float *values = (float *)(places + rows * each);
    CALL(best, (scores, rows, size, each, values, places));
    for (int64_t b = 0; b < batch; b++) {
        int64_t held = 0;
        for (int64_t n = 0; n < hypotheses * each; n++) {
            int64_t parent = n / each, row = b * hypotheses + parent;
            double score = (double)values[row * each + n % each] - excess[row];
            double total = so_far[row] + score;
            if (held == count && !(total > totals[count - 1])) continue;
            int64_t at = held < count ? held++ : count - 1;
            for (; at > 0 && total > totals[at - 1]; at--) {
                totals[at] = totals[at - 1];
                parents[at] = parents[at - 1];
                tokens[at] = tokens[at - 1];
                token_scores[at] = token_scores[at - 1];
            }
            totals[at] = total;
            parents[at] = parent;
            tokens[at] = places[row * each + n % each];
            token_scores[at] = (float)score;
        }
        for (; held < count; held++) {
            totals[held] = -INFINITY;
            parents[held] = tokens[held] = 0;
            token_scores[held] = -INFINITY;
        }
        totals += count;
        parents += count;
        tokens += count;
        token_scores += count;
    }
}
