// The interface of the kernels: every structure and function that Python uses.
//
// `tools/kernel_bindings.py` reads this file and writes `../structs.py`, its mirror in ctypes, and
// `layout.h`, the offsets that both sides compare when the library is loaded. Run it after a change.
//
// Matrices are row-major. Letters: B batch, Lq and Lk queries and keys, D width of the model,
// H heads, E width of a head, V vocabulary; a product is [M, K] · [K, N].

#ifndef HEEDFUL_H
#define HEEDFUL_H

#include <stdint.h>

enum { RELU, SILU, GELU, GELU_TANH, NO_ACTIVATION };
enum { ATTENTION, AVERAGE_ATTENTION, SSRU };  // what mixes the tokens of a layer

// Numbers of a tensor: bfloat16 if `is_bf16`, else float32. `data` is null if there are none.
typedef struct {
    void *data;
    int64_t is_bf16;
} Array;

// A linear layer of a finished model, its weight packed by `heedful_pack_f32` or `heedful_pack_int8`.
typedef struct {
    const void *packed_weight;
    const float *bias;          // [N], or null
    const float *scale;         // [N] of an 8-bit weight: largest of a row / 127²; else null
    const int32_t *correction;  // [N] of an 8-bit weight: 128 · sum of a row
    int64_t in_width;           // K
    int64_t out_width;          // N
} Linear;

typedef struct {
    const float *weight;  // [D]
    const float *bias;    // [D]; null for a root mean square norm
    float epsilon;
} Norm;

typedef struct {
    Linear projection;  // of queries, keys and values; in cross-attention of queries
    Linear output;
    Norm norm;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_width;  // E
    float scale;         // of the scores
} AttentionLayer;

// Average attention, whose state is the sum of its inputs and their number (N = D + 1), or an SSRU, whose
// state is its cell (N = D). A part whose weight is null is left out.
typedef struct {
    Linear value;     // of an SSRU
    Linear up, down;  // of average attention: the network on averages
    Linear gate;      // of an SSRU: the forget gate; of average attention: the shares [2 · D, 2 · D]
    Norm norm;
} RecurrentLayer;

// A block of a finished model.
typedef struct {
    AttentionLayer self;       // unused with another mixer
    RecurrentLayer recurrent;  // unused with attention
    AttentionLayer cross;  // unused if not `has_cross`
    Linear up;
    Linear gate;  // unused if not `gated`
    Linear down;
    Norm norm;
    int64_t width;  // D
    int32_t mixer;
    int32_t norm_first;
    int32_t has_cross;
    int32_t gated;
    int32_t activation;
} Layer;

// Queries, keys and values of attention at inference. Strides count numbers.
typedef struct {
    const float *queries;  // batch b, query i, head h at b·query_batch + i·query_row + h·E
    int64_t query_batch, query_row;
    const float *keys;  // batch b, head h, slot s at b·key_batch + h·key_head + s·key_slot
    int64_t key_batch, key_head, key_slot;
    const float *values;
    int64_t value_batch, value_head, value_slot;
    const uint8_t *visible;  // [B or 1, Lq or 1, Lk]; null if every query sees every key
    int64_t visible_batch, visible_query;
    const float *bias;  // [B or 1, H, Lq, Lk], or null
    int64_t bias_batch, bias_head, bias_query;
    float *weights;  // [B, H, Lq, Lk], written if not null
    int64_t batch, num_queries, num_keys;
    // [B + 1] where each sequence's rows begin, if rows come without padding; or null. Then
    // num_queries and num_keys are the largest numbers of rows.
    const int64_t *query_starts, *key_starts;
    int64_t weights_only;  // nothing after the weights is needed
} AttentionArgs;

// Cosine and sine of the angles that queries and keys are rotated by, [rows, num_pairs] each.
typedef struct {
    const float *cos, *sin;  // null if nothing is rotated
    int64_t num_pairs;
    int64_t interleaved;  // whether a pair's numbers are neighbours, not num_pairs apart
} RotaryTable;

// Texts that a recurrence goes through row by row, and its states of N numbers each.
typedef struct {
    const float *before;       // [num_texts, N]; null at the beginning of the texts
    float *after;              // [num_texts, N], written if not null
    const int64_t *positions;  // [rows], -1 for padding, which leaves a state as it is; null if there is none
    const int64_t *starts;     // [num_texts + 1] where each text's rows begin; null if all have as many
    int64_t num_texts;
} RecurrenceArgs;

// A stack of layers. `self`, `cross` and `recurrence` hold what all layers share: shapes, strides,
// visibility.
typedef struct {
    const Layer *const *layers;
    int64_t num_layers;
    AttentionArgs self, cross;
    float *const *keys, *const *values;  // each layer's cache; null if tokens see this pass alone
    int64_t num_cached;                  // slots of the caches that hold earlier tokens
    RecurrenceArgs recurrence;
    const float *const *states;  // each layer's before this pass; null at the beginning of the texts
    float *const *next_states;   // each layer's after it; null if none is kept
    RotaryTable rotary;
    const float *const *memory_keys, *const *memory_values;  // each layer's, for cross-attention
} StackArgs;

// A tensor [B, heads, rows, E] whose last dimension is contiguous. Strides count numbers.
typedef struct {
    Array array;
    int64_t batch_stride, head_stride, row_stride;
} HeadTensor;

// Attention in training, and its gradients.
typedef struct {
    HeadTensor q, k, v;
    HeadTensor out;  // the result; in the backward pass its gradient
    HeadTensor grad_q, grad_k, grad_v;
    const uint8_t *visible;  // [B or 1, H or 1, Lq, Lk]; null if every query sees every key
    int64_t visible_batch, visible_head, visible_query;
    // [B + 1] where each sequence's rows begin, if rows come without padding; or null. Then
    // num_queries and num_keys are the largest numbers of rows.
    const int64_t *query_starts, *key_starts;
    float *softmax_stats;  // [B, H, 2, Lq]: each query's largest score, and 1 / sum of exponentials
    float *workspace;
    int64_t batch, num_heads, num_kv_heads, num_queries, num_keys, head_width;
    float scale;
} AttentionTraining;

// A linear layer in training, from K to N.
typedef struct {
    const float *weight;  // [N, K]
    const float *bias;    // [N], or null
    float *grad_weight;   // written if not null
    float *grad_bias;
    int64_t in_width, out_width;
} LinearTraining;

// A sub-layer in training: y = norm(x + dropout(second(between(first(input))))), where `between` is
// attention or an activation.
typedef struct {
    LinearTraining first, second;
    Array x;      // [R, D], the residual stream: R rows of B sequences
    void *input;  // [R, K] of the first layer, of the type that is multiplied
    Array sum;    // [R, D], x plus what the sub-layer computed
    Array y;      // [R, D], or null data if there is no norm
    const float *norm_weight, *norm_bias;
    void *saved;      // for the backward pass: `heedful_sublayer_saved` bytes
    void *workspace;  // `heedful_sublayer_workspace` bytes
    Array grad_sum, grad_y;  // given; one may be null
    Array grad_x;            // written if not null
    Array grad_input;        // the memory of grad_x if `input` is computed from x; then float32
    float *grad_norm_weight, *grad_norm_bias;
    // [rows of the memory, 2 · K/V heads · E] keys and values, and their gradient; null in
    // self-attention
    void *memory, *grad_memory;
    const uint8_t *visible;  // this and what follows: as in AttentionTraining
    int64_t visible_batch, visible_head, visible_query;
    const int64_t *query_starts, *key_starts;
    int64_t rows, memory_rows;
    int64_t batch, num_queries, num_keys;
    int64_t num_heads;  // 0 if an activation stands between the layers
    int64_t num_kv_heads;
    uint64_t dropout_seed;
    uint32_t drop_threshold;  // random numbers below it are dropped; 0 drops nothing
    float keep_scale;         // of what is not dropped
    float epsilon;            // of the norm
    float score_scale;
    int32_t is_bf16;  // whether bfloat16 is multiplied
    int32_t activation;
} Sublayer;

typedef struct {
    const char *name;  // of a structure, or of a field with its structure
    int64_t bytes;
} LayoutEntry;

#pragma GCC visibility push(default)

// The library ------------------------------------------------------------------------------------

// Choose the best instruction set the processor has, not above `most`: 3 AMX, 2 AVX-512 VNNI, 1 AVX2
// or NEON, 0 none. Returns which.
int heedful_select(int most);
// The size of each structure and the offset of each field, and how many these are.
const LayoutEntry *heedful_layout(int64_t *count);
const char *heedful_instructions(void);  // the name of the chosen set
const char *heedful_build(void);         // the compiler, and the sets it left out
int heedful_lanes(void);                 // float32 numbers of a vector register
int heedful_has_amx(void);
int heedful_has_fast_bf16(void);  // whether training's bfloat16 products are worth computing here

// Finished models --------------------------------------------------------------------------------

// Numbers (float32) or bytes (8 bits) of a packed weight [N, K].
int64_t heedful_packed_size(int64_t in_width, int64_t out_width, int is_int8);
void heedful_pack_f32(const float *weight, int64_t in_width, int64_t out_width, float *packed);
void heedful_pack_int8(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *packed);

// y [rows, N] = x [rows, K] · weightᵀ + bias, then ReLU if `relu`.
int64_t heedful_linear_workspace(const Linear *layer, int64_t rows);
void heedful_linear(const Linear *layer, const float *x, int64_t rows, float *y, int relu,
                    void *workspace);
// y [rows, D] = norm(x), in place if they are the same.
void heedful_norm(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y);

// A layer in two calls, between which the caller stores keys and values: projected [rows, queries +
// keys + values] from its input x [rows, D], and y [rows, D] by the rest of it.
int64_t heedful_layer_workspace(const Layer *layer, int64_t rows, int64_t num_keys);
void heedful_project(const Layer *layer, const float *x, int64_t rows, float *projected,
                     void *workspace);
void heedful_layer(const Layer *layer, const float *x, int64_t rows, const AttentionArgs *self,
                   const AttentionArgs *cross, float *y, void *workspace);

// y [rows, D] = x through all layers, keys and values stored in the caches.
int64_t heedful_stack_workspace(const StackArgs *stack, int64_t rows);
void heedful_stack(const StackArgs *stack, const float *x, int64_t rows, float *y,
                   void *workspace);

// x [rows, D] = scale · table[ids], plus encodings[first + position] for positions other than -1.
// `encodings` may be null. Returns whether all ids and positions are inside their tables.
int heedful_embed(const int64_t *ids, const int64_t *positions, int64_t rows, const float *table,
                  int64_t num_ids, float scale, const float *encodings, int64_t num_encodings,
                  int64_t first, int64_t width, float *x);
// cos and sin [rows, num_pairs] of position · frequency, times `temperature`.
void heedful_rotary_table(const int64_t *positions, int64_t rows, const float *frequencies,
                          int64_t num_pairs, float temperature, float *cos, float *sin);
// Rotate the first `heads` vectors of `width` numbers in each row, in place.
void heedful_rotate(const RotaryTable *table, float *projected, int64_t rows, int64_t row_stride,
                    int64_t heads, int64_t width);
// visible [B, Lq, Lk]: keys whose position is not -1, if `causal` not after the query's, and where
// `lineage` [B, Lq, Lk] is given, only those it contains. Returns whether everything is visible.
int heedful_visible(const int64_t *query, const int64_t *key, const uint8_t *lineage, int64_t batch,
                    int64_t num_queries, int64_t num_keys, int causal, uint8_t *visible);
// Log-sum-exp of each row of scores [rows, V]; NaN if the row holds one. Returns whether none does.
int heedful_logsumexp(const float *scores, int64_t rows, int64_t size, double *totals);
// The `count` best continuations of each of `batch` sentences over all its hypotheses, best first,
// of equal ones the first. A continuation's total is its hypothesis's `so_far` plus its score
// [B, hypotheses, V] less the row's `log_totals`; missing ones get −∞. `workspace` holds 12 bytes
// for each of min(count, V) candidates of each row.
void heedful_topk(const float *scores, const double *log_totals, const double *so_far,
                  int64_t batch, int64_t hypotheses, int64_t size, int64_t count, double *totals,
                  int64_t *parents, int64_t *tokens, float *token_scores, void *workspace);

// Training ---------------------------------------------------------------------------------------

// sum = x + dropout(branch) and y = norm(sum), [rows, D] each. Without `branch` the sum is x and is
// not written; without `weight` there is no y. `stats` [rows, 2] receives mean and rstd.
void heedful_residual_norm(int64_t rows, int64_t width, void *x, int x_is_bf16, void *branch,
                           int branch_is_bf16, void *sum, void *y, int y_is_bf16,
                           const float *weight, const float *bias, float epsilon, float *stats,
                           int64_t seed, uint32_t drop_threshold, float keep_scale);
// Gradients of x, of `branch` and of the norm, each if not null, from those of the sum (or null) and
// of y (if there is a norm). `workspace` holds 2 · 16 · D numbers.
void heedful_residual_norm_backward(int64_t rows, int64_t width, void *grad_sum,
                                    int grad_sum_is_bf16, void *grad_y, int grad_y_is_bf16,
                                    void *sum, int sum_is_bf16, const float *weight,
                                    const float *bias, float *stats, int64_t seed,
                                    uint32_t drop_threshold, float keep_scale, void *grad_x,
                                    int grad_x_is_bf16, void *grad_branch,
                                    int grad_branch_is_bf16, float *grad_weight, float *grad_bias,
                                    float *workspace);

int64_t heedful_attention_workspace(const AttentionTraining *args);  // in float32 numbers
void heedful_attention(AttentionTraining *args, int backward);

// Pack the right side B [K, N] of a product, whose number (i, j) stands at i·row + j·column. The size
// counts units of four bytes: a float32 number, or two bfloat16 ones.
int64_t heedful_packed_b_size(int64_t depth, int64_t width, int is_bf16);
void heedful_pack_b(void *b, int b_is_bf16, int64_t row_stride, int64_t column_stride,
                    int64_t depth, int64_t width, int is_bf16, uint32_t *packed);
int64_t heedful_gemm_workspace(int64_t rows, int64_t depth, int64_t width, int is_bf16,
                               int out_is_bf16, int transpose_a);  // in float32 numbers
// out = activation(A [M, K] · B + bias); see `Gemm` in runtime.h for `slopes` and `gate`.
void heedful_gemm(void *out, int out_is_bf16, void *a, const uint32_t *packed_b, int64_t rows,
                  int64_t depth, int64_t width, int is_bf16, const float *bias, int activation,
                  void *slopes, int slopes_are_bf16, void *gate, int gate_is_bf16,
                  float *workspace);
// out [M, N] = Aᵀ · B of A [K, M] and B [K, N], added to what `out` holds if `accumulate`;
// `column_sums` [M] of A, or null.
void heedful_gemm_transposed(float *out, void *a, void *b, int64_t rows, int64_t depth,
                             int64_t width, int is_bf16, int accumulate, float *column_sums,
                             float *workspace);

int64_t heedful_sublayer_saved(const Sublayer *args);
int64_t heedful_sublayer_workspace(const Sublayer *args, int backward);
void heedful_sublayer(const Sublayer *args);
void heedful_sublayer_backward(const Sublayer *args);

#pragma GCC visibility pop

#endif
