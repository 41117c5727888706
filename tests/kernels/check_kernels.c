// Compares every kernel with a plain loop over the same numbers. Compiled with the kernels' own
// sources, natively or for another processor, and run there: see `test_instruction_sets.py`.
//
// The argument is the most that `heedful_select` may choose. Prints the instruction set.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heedful.h"

static int failures = 0;
static uint32_t state = 1;

static float uniform(void) {  // in [-1, 1)
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static void *room(int64_t bytes) { return aligned_alloc(64, (size_t)(bytes / 64 + 2) * 64); }

static float *numbers(int64_t count) {
    float *x = room(count * 4);
    for (int64_t i = 0; i < count; i++) x[i] = uniform();
    return x;
}

// Numbers of either type, and the same as float32.
static void *typed(float *x, int64_t count, int is_bf16) {
    if (!is_bf16) return x;
    uint16_t *y = room(count * 2);
    for (int64_t i = 0; i < count; i++) {
        y[i] = to_bf16(x[i]);
        x[i] = from_bf16(y[i]);
    }
    return y;
}

static float read(const void *x, int64_t i, int is_bf16) {
    return is_bf16 ? from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static void compare(const char *what, double is, double expected, double tolerance) {
    if (fabs(is - expected) <= tolerance * (1 + fabs(expected))) return;
    if (failures++ < 20) printf("%s: %g, expected %g\n", what, is, expected);
}

static double activated(int kind, double x) {
    switch (kind) {
        case RELU: return x > 0 ? x : 0;
        case SILU: return x / (1 + exp(-x));
        case GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
        case GELU_TANH: return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
        default: return x;
    }
}

static void check_linear(int64_t rows, int64_t in, int64_t out, int is_int8) {
    float *x = numbers(rows * in), *w = numbers(out * in), *bias = numbers(out);
    float *y = room(rows * out * 4), *scale = room(out * 4);
    int8_t *rounded = room(out * in);
    int32_t *correction = room(out * 4);
    void *packed = room(heedful_packed_size(in, out, is_int8) * 4);
    Linear layer = {packed, bias, 0, 0, in, out};
    if (is_int8) {
        for (int64_t n = 0; n < out; n++) {
            float largest = 0;
            for (int64_t k = 0; k < in; k++) largest = fmaxf(largest, fabsf(w[n * in + k]));
            scale[n] = largest / (127.0f * 127.0f);
            correction[n] = 0;
            for (int64_t k = 0; k < in; k++) {
                rounded[n * in + k] = (int8_t)lrintf(w[n * in + k] * 127.0f / largest);
                correction[n] += 128 * rounded[n * in + k];
            }
        }
        heedful_pack_int8(rounded, in, out, packed);
        layer.scale = scale, layer.correction = correction;
    } else {
        heedful_pack_f32(w, in, out, packed);
    }
    void *workspace = room(heedful_linear_workspace(&layer, rows));
    heedful_linear(&layer, x, rows, y, 1, workspace);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t n = 0; n < out; n++) {
            double sum = bias[n];
            for (int64_t k = 0; k < in; k++) sum += (double)x[i * in + k] * w[n * in + k];
            compare(is_int8 ? "8-bit linear" : "linear", y[i * out + n], activated(RELU, sum),
                    is_int8 ? 0.05 : 1e-5);
        }
}

static void check_norms(int64_t rows, int64_t width, int is_bf16, int has_bias) {
    int64_t count = rows * width;
    float *x = numbers(count), *branch = numbers(count), *weight = numbers(width);
    float *bias = has_bias ? numbers(width) : 0, *stats = room(rows * 8);
    void *px = typed(x, count, is_bf16), *pb = typed(branch, count, is_bf16);
    float *sum = room(count * 4), *y = room(count * 4);
    float tolerance = is_bf16 ? 2e-2f : 1e-5f;
    heedful_residual_norm(rows, width, px, is_bf16, pb, is_bf16, sum, y, 0, weight, bias, 1e-5f,
                          stats, 7, 0, 1.0f);
    float *dy = numbers(count), *dx = room(count * 4), *dw = room(width * 4);
    float *db = room(width * 4), *workspace = room(32 * width * 4);
    heedful_residual_norm_backward(rows, width, 0, 0, dy, 0, sum, is_bf16, weight, bias, stats, 7,
                                   0, 1.0f, dx, 0, 0, 0, dw, has_bias ? db : 0, workspace);
    double *expected_dw = calloc((size_t)width, 8);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, square = 0, along = 0, level = 0;
        const int64_t at = r * width;
        for (int64_t i = at; i < at + width; i++) {
            compare("residual sum", read(sum, i, is_bf16), x[i] + branch[i], tolerance);
            mean += has_bias ? (double)read(sum, i, is_bf16) / width : 0;
        }
        for (int64_t i = at; i < at + width; i++) {
            double centered = read(sum, i, is_bf16) - mean;
            square += centered * centered / width;
        }
        double rstd = 1 / sqrt(square + 1e-5);
        for (int64_t i = 0; i < width; i++) {
            double unit = (read(sum, at + i, is_bf16) - mean) * rstd;
            compare("norm", y[at + i], unit * weight[i] + (has_bias ? bias[i] : 0), tolerance);
            along += dy[at + i] * weight[i] * unit / width;
            level += has_bias ? (double)dy[at + i] * weight[i] / width : 0;
            expected_dw[i] += dy[at + i] * unit;
        }
        for (int64_t i = 0; i < width; i++) {
            double unit = (read(sum, at + i, is_bf16) - mean) * rstd;
            double d = (dy[at + i] * weight[i] - level - unit * along) * rstd;
            compare("norm's gradient", dx[at + i], d, tolerance);
        }
    }
    for (int64_t i = 0; i < width; i++)
        compare("norm weight's gradient", dw[i], expected_dw[i], tolerance);
    Norm norm = {weight, bias, 1e-5f};
    if (is_bf16) return;
    float *z = room(count * 4);
    heedful_norm(&norm, sum, rows, width, z);
    for (int64_t i = 0; i < count; i++) compare("norm at inference", z[i], y[i], tolerance);
}

static void check_gemm(int64_t m, int64_t k, int64_t n, int is_bf16, int activation, int turned) {
    float *a = numbers(m * k), *b = numbers(k * n), *bias = numbers(n), *out = room(m * n * 4);
    float *slopes = room(m * n * 4), *sums = room(m * 4);
    void *pa = typed(a, m * k, is_bf16), *pb = typed(b, k * n, is_bf16);
    void *workspace = room(heedful_gemm_workspace(m, k, n, is_bf16, 0, turned) * 4);
    const char *what = is_bf16 ? "bfloat16 product" : "float32 product";
    double tolerance = 2e-6 * sqrt((double)k);
    if (turned) {
        heedful_gemm_transposed(out, pa, pb, m, k, n, is_bf16, 0, sums, workspace);
    } else {
        uint32_t *packed = room(heedful_packed_b_size(k, n, is_bf16) * 4);
        heedful_pack_b(pb, is_bf16, n, 1, k, n, is_bf16, packed);
        void *derivative = activation == NO_ACTIVATION ? 0 : slopes;
        heedful_gemm(out, 0, pa, packed, m, k, n, is_bf16, bias, activation, derivative, 0, 0, 0,
                     workspace);
    }
    for (int64_t i = 0; i < m; i++) {
        double column = 0;
        for (int64_t j = 0; j < n; j++) {
            double sum = turned ? 0 : bias[j];
            for (int64_t l = 0; l < k; l++)
                sum += (double)(turned ? a[l * m + i] : a[i * k + l]) * b[l * n + j];
            compare(what, out[i * n + j], turned ? sum : activated(activation, sum), tolerance);
            double h = 1e-4;
            double slope = (activated(activation, sum + h) - activated(activation, sum - h)) / 2 / h;
            if (!turned && activation != NO_ACTIVATION && activation != RELU)
                compare("slope", slopes[i * n + j], slope, 1e-4);
        }
        for (int64_t l = 0; turned && l < k; l++) column += a[l * m + i];
        if (turned) compare("column sums", sums[i], column, 1e-5);
    }
}

// Attention in training, of 2 sequences and 4 heads over 2 key heads; every fifth key is hidden.
static void check_attention(int64_t queries, int64_t keys, int64_t width, int is_bf16) {
    enum { BATCH = 2, HEADS = 4, KV = 2 };
    int64_t nq = BATCH * HEADS * queries * width, nk = BATCH * KV * keys * width;
    float *q = numbers(nq), *k = numbers(nk), *v = numbers(nk), *up = numbers(nq);
    uint8_t *visible = room(queries * keys);
    for (int64_t i = 0; i < queries * keys; i++) visible[i] = i % 5 != 3;
    double tolerance = is_bf16 ? 4e-2 : 2e-5, *dk = calloc((size_t)nk, 8), *dv = calloc((size_t)nk, 8);
    AttentionTraining args = {
        .visible = visible, .visible_query = keys, .softmax_stats = room(BATCH * HEADS * 8 * queries),
        .batch = BATCH, .num_heads = HEADS, .num_kv_heads = KV, .num_queries = queries,
        .num_keys = keys, .head_width = width, .scale = 0.3f,
    };
#define HEAD_TENSOR(numbers, heads, rows) \
    {{numbers, is_bf16}, (heads) * (rows) * width, (rows) * width, width}
    args.q = (HeadTensor)HEAD_TENSOR(typed(q, nq, is_bf16), HEADS, queries);
    args.k = (HeadTensor)HEAD_TENSOR(typed(k, nk, is_bf16), KV, keys);
    args.v = (HeadTensor)HEAD_TENSOR(typed(v, nk, is_bf16), KV, keys);
    args.out = (HeadTensor)HEAD_TENSOR(room(nq * 4), HEADS, queries);
    args.grad_q = (HeadTensor)HEAD_TENSOR(room(nq * 4), HEADS, queries);
    args.grad_k = (HeadTensor)HEAD_TENSOR(room(nk * 4), KV, keys);
    args.grad_v = (HeadTensor)HEAD_TENSOR(room(nk * 4), KV, keys);
#undef HEAD_TENSOR
    args.workspace = room(heedful_attention_workspace(&args) * 4);
    heedful_attention(&args, 0);
    void *out = args.out.array.data;
    args.out.array.data = typed(up, nq, is_bf16);
    heedful_attention(&args, 1);
    double *weights = calloc((size_t)keys, 8), *grad = calloc((size_t)keys, 8);
    for (int64_t head = 0; head < BATCH * HEADS; head++)
        for (int64_t i = 0; i < queries; i++) {
            int64_t at = (head * queries + i) * width, kv = head / (HEADS / KV) * keys * width;
            double total = 0, along = 0;
            for (int64_t s = 0; s < keys; s++) {
                double score = 0;
                for (int64_t e = 0; e < width; e++) score += (double)q[at + e] * k[kv + s * width + e];
                weights[s] = visible[i * keys + s] ? exp(score * 0.3) : 0;
                total += weights[s];
            }
            for (int64_t s = 0; s < keys; s++) {
                weights[s] = total > 0 ? weights[s] / total : 0;
                grad[s] = 0;
                for (int64_t e = 0; e < width; e++) {
                    grad[s] += (double)up[at + e] * v[kv + s * width + e];
                    dv[kv + s * width + e] += weights[s] * up[at + e];
                }
                along += weights[s] * grad[s];
            }
            for (int64_t e = 0; e < width; e++) {
                double y = 0, dq = 0;
                for (int64_t s = 0; s < keys; s++) {
                    double d = 0.3 * weights[s] * (grad[s] - along);
                    y += weights[s] * v[kv + s * width + e];
                    dq += d * k[kv + s * width + e];
                    dk[kv + s * width + e] += d * q[at + e];
                }
                compare("attention", read(out, at + e, is_bf16), y, tolerance);
                compare("queries' gradient", read(args.grad_q.array.data, at + e, is_bf16), dq,
                        tolerance);
            }
        }
    for (int64_t i = 0; i < nk; i++) {
        compare("keys' gradient", read(args.grad_k.array.data, i, is_bf16), dk[i], tolerance);
        compare("values' gradient", read(args.grad_v.array.data, i, is_bf16), dv[i], tolerance);
    }
}

// A layer of a finished model whose linear maps are the identity: attention alone shows.
static void check_layer(int64_t width, int64_t heads, int64_t tokens) {
    float *identity = numbers(width * width), *zero = numbers(width * width);
    float *three = numbers(3 * width * width), *x = numbers(tokens * width);
    for (int64_t i = 0; i < width * width; i++) {
        identity[i] = i / width == i % width;
        zero[i] = 0;
        for (int part = 0; part < 3; part++) three[part * width * width + i] = identity[i];
    }
    void *packed[3];
    const float *weights[] = {three, identity, zero};
    for (int i = 0; i < 3; i++) {
        int64_t out = i ? width : 3 * width;
        packed[i] = room(heedful_packed_size(width, out, 0) * 4);
        heedful_pack_f32(weights[i], width, out, packed[i]);
    }
    float *ones = numbers(width);
    for (int64_t i = 0; i < width; i++) ones[i] = 1;
    Norm norm = {ones, 0, 1e-5f};
    Linear up = {packed[2], 0, 0, 0, width, width};
    Layer layer = {
        .self = {{packed[0], 0, 0, 0, width, 3 * width}, {packed[1], 0, 0, 0, width, width}, norm,
                 heads, heads, width / heads, 0.25f},
        .up = up, .down = up, .norm = norm, .width = width, .norm_first = 1, .activation = SILU,
    };
    const Layer *layers[] = {&layer};
    StackArgs stack = {.layers = layers, .num_layers = 1};
    stack.self.batch = 1, stack.self.num_queries = stack.self.num_keys = tokens;
    float *y = room(tokens * width * 4), *normed = room(tokens * width * 4);
    heedful_stack(&stack, x, tokens, y, room(heedful_stack_workspace(&stack, tokens)));
    heedful_norm(&norm, x, tokens, width, normed);
    int64_t head_width = width / heads;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t h = 0; h < heads; h++) {
            double total = 0, weight[64];
            for (int64_t s = 0; s < tokens; s++) {
                double score = 0;
                for (int64_t e = h * head_width; e < (h + 1) * head_width; e++)
                    score += (double)normed[i * width + e] * normed[s * width + e];
                total += weight[s] = exp(score * 0.25);
            }
            for (int64_t e = h * head_width; e < (h + 1) * head_width; e++) {
                double sum = x[i * width + e];
                for (int64_t s = 0; s < tokens; s++)
                    sum += weight[s] / total * normed[s * width + e];
                compare("layer", y[i * width + e], sum, 2e-5);
            }
        }
}

static Linear packed_linear(const float *weight, int64_t in, int64_t out) {
    float *packed = room(heedful_packed_size(in, out, 0) * 4);
    heedful_pack_f32(weight, in, out, packed);
    return (Linear){packed, 0, 0, 0, in, out};
}

static double dot(const float *weight, const double *x, int64_t count) {
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += weight[k] * x[k];
    return sum;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// A layer with a recurrence and a network of zeros, over texts whose first token is padding.
static void check_recurrence(int mixer, int64_t width, int64_t texts, int64_t length) {
    enum { INNER = 20 };
    int64_t rows = texts * length, state = mixer == SSRU ? width : width + 1;
    float *w = numbers(width * width), *up = numbers(INNER * width), *down = numbers(width * INNER);
    float *gate = numbers(4 * width * width), *zero = calloc((size_t)(width * width), 4);
    float *x = numbers(rows * width), *before = numbers(texts * state), *y = room(rows * width * 4);
    float *after = room(texts * state * 4), *normed = room(rows * width * 4), *ones = numbers(width);
    int64_t *positions = room(rows * 8);
    for (int64_t i = 0; i < width; i++) ones[i] = 1;
    for (int64_t i = 0; i < rows; i++) positions[i] = i % length - 1;
    for (int64_t i = 0; i < texts && mixer != SSRU; i++) before[i * state + width] = (float)i;
    Norm norm = {ones, 0, 1e-5f};
    Linear none = packed_linear(zero, width, width);
    Layer layer = {
        .recurrent = {.norm = norm}, .up = none, .down = none, .norm = norm, .width = width,
        .mixer = mixer, .norm_first = 1, .activation = RELU,
    };
    if (mixer == SSRU) {
        layer.recurrent.value = packed_linear(w, width, width);
        layer.recurrent.gate = packed_linear(gate, width, width);
    } else {
        layer.recurrent.up = packed_linear(up, width, INNER);
        layer.recurrent.down = packed_linear(down, INNER, width);
        layer.recurrent.gate = packed_linear(gate, 2 * width, 2 * width);
    }
    const Layer *layers[] = {&layer};
    const float *states[] = {before};
    float *next_states[] = {after};
    StackArgs stack = {
        .layers = layers, .num_layers = 1, .states = states, .next_states = next_states,
        .recurrence = {.positions = positions, .num_texts = texts},
    };
    heedful_stack(&stack, x, rows, y, room(heedful_stack_workspace(&stack, rows)));
    heedful_norm(&norm, x, rows, width, normed);
    double *h = calloc((size_t)(2 * width), 8), *inner = calloc(INNER, 8);
    double *s = calloc((size_t)state, 8);
    for (int64_t row = 0; row < rows; row++) {
        int64_t text = row / length, pads = positions[row] < 0;
        for (int64_t i = 0; i < state && row % length == 0; i++) s[i] = before[text * state + i];
        for (int64_t i = 0; i < width; i++) h[i] = normed[row * width + i];
        if (mixer != SSRU && !pads) s[width] += 1;
        double count = mixer != SSRU && s[width] > 1 ? s[width] : 1;
        for (int64_t i = 0; i < width && !pads; i++) {
            double share = mixer == SSRU ? sigmoid(dot(gate + i * width, h, width)) : 1;
            double value = mixer == SSRU ? dot(w + i * width, h, width) : h[i];
            s[i] = share * s[i] + (mixer == SSRU ? 1 - share : 1) * value;
        }
        for (int64_t i = 0; i < width; i++) h[width + i] = s[i] / count;
        for (int64_t i = 0; i < INNER; i++)
            inner[i] = activated(RELU, dot(up + i * width, h + width, width));
        for (int64_t i = 0; i < width; i++) h[width + i] = dot(down + i * INNER, inner, INNER);
        for (int64_t i = 0; i < width; i++) {
            double added = activated(RELU, s[i]);
            if (mixer != SSRU)
                added = sigmoid(dot(gate + i * 2 * width, h, 2 * width)) * h[i]
                    + sigmoid(dot(gate + (width + i) * 2 * width, h, 2 * width)) * h[width + i];
            compare("recurrence", y[row * width + i], x[row * width + i] + added, 2e-5);
        }
        for (int64_t i = 0; i < state && row % length == length - 1; i++)
            compare("state of a recurrence", after[text * state + i], s[i], 2e-5);
    }
}

static void check_search(int64_t rows, int64_t size, int64_t count) {
    float *scores = numbers(rows * size), *token_scores = room(rows * count * 4);
    double *logs = room(rows * 8), *so_far = room(rows * 8), *totals = room(rows * count * 8);
    int64_t *parents = room(rows * count * 8), *tokens = room(rows * count * 8);
    if (!heedful_logsumexp(scores, rows, size, logs)) failures++;
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < size; i++) sum += exp(scores[r * size + i]);
        compare("log-sum-exp", logs[r], log(sum), 1e-6);
        so_far[r] = -(double)r;
    }
    heedful_topk(scores, logs, so_far, rows, 1, size, count, totals, parents, tokens, token_scores,
                 room(12 * rows * count));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < count; n++) {
            float score = scores[r * size + tokens[r * count + n]];
            int64_t better = 0;
            for (int64_t i = 0; i < size; i++) better += scores[r * size + i] > score;
            compare("rank of a candidate", (double)better, (double)n, 0);
            compare("total", totals[r * count + n], so_far[r] + score - logs[r], 1e-9);
        }
}

int main(int count, char **arguments) {
    if (!heedful_select(count > 1 ? atoi(arguments[1]) : 3)) return 2;
    printf("%s\n", heedful_instructions());
    for (int64_t rows = 1; rows <= 15; rows += 2) {
        check_linear(rows, 37, 50, 0);
        if (heedful_lanes() >= 8) check_linear(rows, 37, 50, 1);
    }
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        check_norms(5, 48, is_bf16, 0);
        check_norms(5, 48, is_bf16, 1);
        check_attention(5, 9, 16, is_bf16);
        check_attention(33, 40, 32, is_bf16);
        for (int activation = RELU; activation <= NO_ACTIVATION; activation++)
            check_gemm(35, 46, 70, is_bf16, activation, 0);
        check_gemm(7, 2100, 33, is_bf16, NO_ACTIVATION, 0);
        check_gemm(35, 45, 70, is_bf16, NO_ACTIVATION, 1);
        check_gemm(9, 2100, 33, is_bf16, NO_ACTIVATION, 1);
    }
    check_layer(64, 4, 11);
    check_layer(96, 2, 6);
    for (int mixer = AVERAGE_ATTENTION; mixer <= SSRU; mixer++) {
        check_recurrence(mixer, 50, 3, 1);
        check_recurrence(mixer, 32, 2, 7);
    }
    check_search(3, 100, 7);
    if (failures) printf("%d numbers differ\n", failures);
    return failures != 0;
}
