// A step of decoding besides single layers: embeddings, visibility, rotation, all layers one after the
// other, and the best continuations.

#include "runtime.h"

int heedful_visible(const int64_t *query, const int64_t *key, const uint8_t *lineage, int64_t batch,
                    int64_t num_queries, int64_t num_keys, int causal, uint8_t *visible) {
    uint8_t all = 1;
    for (int64_t b = 0; b < batch; b++, key += num_keys)
        for (int64_t i = 0; i < num_queries; i++, query++, visible += num_keys) {
            int64_t last = *query < 0 ? -1 : causal ? *query : INT64_MAX;
            for (int64_t s = 0; s < num_keys; s++) visible[s] = key[s] >= 0 && key[s] <= last;
            if (lineage) {
                for (int64_t s = 0; s < num_keys; s++) visible[s] &= lineage[s];
                lineage += num_keys;
            }
            for (int64_t s = 0; s < num_keys; s++) all &= visible[s];
        }
    return all;
}

int heedful_embed(const int64_t *ids, const int64_t *positions, int64_t rows, const float *table,
                  int64_t num_ids, float scale, const float *encodings, int64_t num_encodings,
                  int64_t first, int64_t width, float *x) {
    for (int64_t row = 0; row < rows; row++, x += width) {
        if (ids[row] < 0 || ids[row] >= num_ids) return 0;
        const float *embedding = table + ids[row] * width;
        if (!encodings || positions[row] < 0) {
            for (int64_t i = 0; i < width; i++) x[i] = embedding[i] * scale;
            continue;
        }
        if (first + positions[row] >= num_encodings) return 0;
        const float *encoding = encodings + (first + positions[row]) * width;
        for (int64_t i = 0; i < width; i++) x[i] = embedding[i] * scale + encoding[i];
    }
    return 1;
}

void heedful_rotary_table(const int64_t *positions, int64_t rows, const float *frequencies,
                          int64_t num_pairs, float temperature, float *cos, float *sin) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < num_pairs; i++) {
            float angle = (float)positions[row] * frequencies[i];
            *cos++ = cosf(angle) * temperature;
            *sin++ = sinf(angle) * temperature;
        }
}

void heedful_rotate(const RotaryTable *table, float *projected, int64_t rows, int64_t row_stride,
                    int64_t heads, int64_t width) {
    int64_t pairs = table->num_pairs, next = table->interleaved ? 2 : 1;
    int64_t apart = table->interleaved ? 1 : pairs;
    for (int64_t row = 0; row < rows; row++, projected += row_stride)
        for (int64_t head = 0; head < heads; head++) {
            const float *cos = table->cos + row * pairs, *sin = table->sin + row * pairs;
            float *first = projected + head * width, *second = first + apart;
            for (int64_t i = 0; i < pairs; i++, first += next, second += next) {
                float a = *first, b = *second;
                *first = a * cos[i] - b * sin[i];
                *second = b * cos[i] + a * sin[i];
            }
        }
}

// Stacks -------------------------------------------------------------------------------------------

// Queries, keys and values of a layer, which all layers share the memory of.
static float *projection_buffer(Workspace *space, const StackArgs *stack, int64_t rows) {
    int64_t widest = 0;
    for (int64_t i = 0; i < stack->num_layers; i++)
        widest = max_i64(widest, stack->layers[i]->self.projection.out_width);
    return allocate(space, rows * widest * (int64_t)sizeof(float));
}

int64_t heedful_stack_workspace(const StackArgs *stack, int64_t rows) {
    Workspace space = {0};
    projection_buffer(&space, stack, rows);
    size_t largest = 0;
    for (int64_t i = 0; i < stack->num_layers; i++) {
        Workspace layer = {0};
        layer_buffers(&layer, stack->layers[i], rows,
                      max_i64(stack->self.num_keys, stack->cross.num_keys));
        if (layer.size > largest) largest = layer.size;
    }
    return (int64_t)(space.size + largest);
}

// Store the keys or values of each sequence's new tokens in their slots of the cache.
static void store_heads(const AttentionArgs *self, int64_t num_cached,
                        const AttentionLayer *attention, const float *from, int64_t row_stride,
                        float *cache, int64_t batch_stride, int64_t head_stride,
                        int64_t slot_stride) {
    int64_t width = attention->head_width;
    for (int64_t b = 0; b < self->batch; b++)
        for (int64_t i = 0; i < self->num_queries; i++, from += row_stride)
            for (int64_t h = 0; h < attention->num_kv_heads; h++)
                memcpy(cache + b * batch_stride + h * head_stride + (num_cached + i) * slot_stride,
                       from + h * width, (size_t)width * sizeof(float));
}

// Rotate the queries and keys of a layer, and say where attention finds them and the values.
static void place_heads(const StackArgs *stack, int64_t number, float *projected, int64_t rows,
                        AttentionArgs *self) {
    const AttentionLayer *attention = &stack->layers[number]->self;
    int64_t row = attention->projection.out_width, width = attention->head_width;
    if (stack->rotary.cos)
        heedful_rotate(&stack->rotary, projected, rows, row,
                       attention->num_heads + attention->num_kv_heads, width);
    const float *keys = projected + attention->num_heads * width;
    const float *values = keys + attention->num_kv_heads * width;
    self->queries = projected;
    self->query_row = row;
    self->query_batch = self->num_queries * row;
    if (stack->keys) {
        store_heads(self, stack->num_cached, attention, keys, row, stack->keys[number],
                    self->key_batch, self->key_head, self->key_slot);
        store_heads(self, stack->num_cached, attention, values, row, stack->values[number],
                    self->value_batch, self->value_head, self->value_slot);
        self->keys = stack->keys[number];
        self->values = stack->values[number];
    } else {
        self->keys = keys;
        self->values = values;
        self->key_batch = self->value_batch = self->query_batch;
        self->key_head = self->value_head = width;
        self->key_slot = self->value_slot = row;
    }
}

void heedful_stack(const StackArgs *stack, const float *x, int64_t rows, float *y,
                   void *workspace) {
    Workspace space = {.memory = workspace};
    float *projected = projection_buffer(&space, stack, rows);
    AttentionArgs self = stack->self, cross = stack->cross;
    RecurrenceArgs recurrence = stack->recurrence;
    for (int64_t i = 0; i < stack->num_layers; i++, x = y) {
        const Layer *layer = stack->layers[i];
        Workspace own = {.memory = (char *)workspace + space.size};
        LayerBuffers buffers
            = layer_buffers(&own, layer, rows, max_i64(self.num_keys, cross.num_keys));
        if (layer->mixer == ATTENTION) {
            kernels.project(layer, x, rows, projected, &buffers);
            place_heads(stack, i, projected, rows, &self);
        } else {
            recurrence.before = stack->states ? stack->states[i] : 0;
            recurrence.after = stack->next_states ? stack->next_states[i] : 0;
        }
        if (layer->has_cross) {
            cross.keys = stack->memory_keys[i];
            cross.values = stack->memory_values[i];
        }
        kernels.layer(layer, x, rows, &self, &recurrence, &cross, y, &buffers);
    }
}

// Search -------------------------------------------------------------------------------------------

int heedful_logsumexp(const float *scores, int64_t rows, int64_t size, double *totals) {
    kernels.logsumexp(scores, rows, size, totals);
    int no_nan = 1;
    for (int64_t i = 0; i < rows; i++) no_nan &= totals[i] == totals[i];
    return no_nan;
}

void heedful_topk(const float *scores, const double *log_totals, const double *so_far,
                  int64_t batch, int64_t hypotheses, int64_t size, int64_t count, double *totals,
                  int64_t *parents, int64_t *tokens, float *token_scores, void *workspace) {
    int64_t per_row = min_i64(count, size), rows = batch * hypotheses;
    int64_t *indices = (int64_t *)workspace;
    float *values = (float *)(indices + rows * per_row);
    kernels.topk(scores, rows, size, per_row, values, indices);
    for (int64_t b = 0; b < batch; b++) {
        int64_t found = 0;
        for (int64_t n = 0; n < hypotheses * per_row; n++) {
            int64_t parent = n / per_row, row = b * hypotheses + parent;
            double score = (double)values[row * per_row + n % per_row] - log_totals[row];
            double total = so_far[row] + score;
            if (found == count && !(total > totals[count - 1])) continue;
            int64_t at = found < count ? found++ : count - 1;
            for (; at > 0 && total > totals[at - 1]; at--) {
                totals[at] = totals[at - 1];
                parents[at] = parents[at - 1];
                tokens[at] = tokens[at - 1];
                token_scores[at] = token_scores[at - 1];
            }
            totals[at] = total;
            parents[at] = parent;
            tokens[at] = indices[row * per_row + n % per_row];
            token_scores[at] = (float)score;
        }
        for (; found < count; found++) {
            totals[found] = -INFINITY;
            parents[found] = tokens[found] = 0;
            token_scores[found] = -INFINITY;
        }
        totals += count;
        parents += count;
        tokens += count;
        token_scores += count;
    }
}
