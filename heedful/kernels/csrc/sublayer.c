// A sub-layer of a block in training, and its gradients, in one call each: with small matrices it takes
// longer to come and go between languages for every step than to compute.

#include "runtime.h"

// What `saved` holds, from the forward to the backward pass.
typedef struct {
    void *between;         // [R, N of the first layer]: queries, keys and values, or activations
    void *slopes;          // [R, N]: derivatives of an activation other than ReLU
    void *mixed;           // [R, K of the second layer]: the heads' results
    float *softmax_stats;
    float *norm_stats;
} Saved;

static Saved saved_buffers(Workspace *space, const Sublayer *args) {
    int64_t size = args->is_bf16 ? 2 : 4, between = args->rows * args->first.out_width * size;
    int has_slopes = !args->num_heads && args->activation != RELU;
    Saved saved;
    saved.between = allocate(space, between);
    saved.slopes = has_slopes ? allocate(space, between) : 0;
    saved.mixed
        = allocate(space, args->num_heads ? args->rows * args->second.in_width * size : 0);
    saved.softmax_stats
        = allocate(space, args->batch * args->num_heads * 2 * args->num_queries * 4);
    saved.norm_stats = allocate(space, args->norm_weight ? args->rows * 2 * 4 : 0);
    return saved;
}

// What `workspace` holds.
typedef struct {
    void *branch;        // [R, D]: what is added to the stream, or its gradient
    void *grad_middle;   // [R, K of the second layer]: gradient of that layer's input
    void *grad_between;  // [R, N of the first layer]
    float *partial;      // of `heedful_residual_norm_backward`
    uint32_t *packed;    // a weight
    float *step;         // workspace of the step at hand
} Buffers;

// Heads of rows `row` numbers long, from head `first` on, of sequences of so many rows.
static HeadTensor heads_at(const Sublayer *args, void *data, int64_t first, int64_t row,
                           int64_t length) {
    int64_t width = args->second.in_width / args->num_heads;
    Array array = {data, args->is_bf16};
    return (HeadTensor){offset(array, first * width), length * row, width, row};
}

// Attention over the first layer's results: queries and, without a memory, keys and values.
static AttentionTraining attention_args(const Sublayer *args, void *between, void *memory,
                                        void *mixed) {
    int64_t width = args->second.in_width / args->num_heads, row = args->first.out_width;
    int64_t queries = args->num_queries, length = queries, first_key = args->num_heads;
    void *keys = between;
    int64_t key_row = row;
    if (args->memory) {
        keys = memory, first_key = 0, length = args->num_keys;
        key_row = 2 * args->num_kv_heads * width;
    }
    return (AttentionTraining){
        .q = heads_at(args, between, 0, row, queries),
        .k = heads_at(args, keys, first_key, key_row, length),
        .v = heads_at(args, keys, first_key + args->num_kv_heads, key_row, length),
        .out = heads_at(args, mixed, 0, args->second.in_width, queries),
        .visible = args->visible, .visible_batch = args->visible_batch,
        .visible_head = args->visible_head, .visible_query = args->visible_query,
        .query_starts = args->query_starts, .key_starts = args->key_starts, .batch = args->batch,
        .num_heads = args->num_heads, .num_kv_heads = args->num_kv_heads, .num_queries = queries,
        .num_keys = args->num_keys, .head_width = width, .scale = args->score_scale,
    };
}

// Set rows that belong to no sequence, and which nothing computes, to zero.
static void clear_unused_rows(const Sublayer *args, const int64_t *starts, int64_t rows,
                              int64_t width, void *data) {
    if (!starts) return;
    int64_t row = width * (args->is_bf16 ? 2 : 4), used = starts[args->batch];
    memset((char *)data + used * row, 0, (size_t)((rows - used) * row));
}

// Float32 numbers of workspace for a linear layer's product, or for those of its gradients.
static int64_t linear_workspace(const Sublayer *args, const LinearTraining *layer, int backward) {
    int64_t in = layer->in_width, out = layer->out_width;
    int is_bf16 = args->is_bf16;
    if (!backward) return heedful_gemm_workspace(args->rows, in, out, is_bf16, is_bf16, 0);
    return max_i64(heedful_gemm_workspace(args->rows, out, in, is_bf16, is_bf16, 0),
                   heedful_gemm_workspace(out, args->rows, in, is_bf16, 0, 1));
}

static int64_t packed_weight_size(const Sublayer *args, const LinearTraining *layer,
                                  int backward) {
    return heedful_packed_b_size(backward ? layer->out_width : layer->in_width,
                                 backward ? layer->in_width : layer->out_width, args->is_bf16);
}

static Buffers workspace_buffers(Workspace *space, const Sublayer *args, int backward) {
    const LinearTraining *first = &args->first, *second = &args->second;
    int64_t row = args->rows * (args->is_bf16 ? 2 : 4), width = second->out_width;
    int64_t step = max_i64(linear_workspace(args, first, backward),
                           linear_workspace(args, second, backward));
    if (args->num_heads) {
        AttentionTraining attention = attention_args(args, 0, args->memory, 0);
        step = max_i64(step, heedful_attention_workspace(&attention));
    }
    Buffers buffers;
    buffers.branch = allocate(space, row * width);
    buffers.grad_middle = allocate(space, backward ? row * second->in_width : 0);
    buffers.grad_between
        = allocate(space, backward && args->num_heads ? row * first->out_width : 0);
    buffers.partial = allocate(space, backward ? 2 * GRAD_CHUNKS * width * 4 : 0);
    buffers.packed = allocate(space, 4 * max_i64(packed_weight_size(args, first, backward),
                                                 packed_weight_size(args, second, backward)));
    buffers.step = allocate(space, step * 4);
    return buffers;
}

int64_t heedful_sublayer_saved(const Sublayer *args) {
    Workspace space = {0};
    saved_buffers(&space, args);
    return (int64_t)space.size;
}

int64_t heedful_sublayer_workspace(const Sublayer *args, int backward) {
    Workspace space = {0};
    workspace_buffers(&space, args, backward);
    return (int64_t)space.size;
}

static void linear_forward(const Sublayer *args, const LinearTraining *layer, void *input,
                           void *out, int activation, void *slopes, Buffers buffers) {
    int64_t in = layer->in_width;
    int is_bf16 = args->is_bf16;
    heedful_pack_b((void *)layer->weight, 0, 1, in, in, layer->out_width, is_bf16, buffers.packed);
    heedful_gemm(out, is_bf16, input, buffers.packed, args->rows, in, layer->out_width, is_bf16,
                 layer->bias, activation, slopes, is_bf16, 0, 0, buffers.step);
}

// Gradients of a layer's parameters and, if it has memory, of its input, where `slopes` and `gate` are
// the derivative of an activation before it.
static void linear_backward(const Sublayer *args, const LinearTraining *layer, void *grad,
                            void *input, Array grad_input, void *slopes, void *gate,
                            int accumulate, Buffers buffers) {
    int64_t in = layer->in_width, out = layer->out_width;
    int is_bf16 = args->is_bf16;
    if (layer->grad_weight)
        heedful_gemm_transposed(layer->grad_weight, grad, input, out, args->rows, in, is_bf16, 0,
                                layer->grad_bias, buffers.step);
    if (!grad_input.data) return;
    heedful_pack_b((void *)layer->weight, 0, in, 1, out, in, is_bf16, buffers.packed);
    Gemm gemm = {
        .out = grad_input, .gate = {gate, is_bf16}, .slopes = {slopes, is_bf16},
        .rows = args->rows, .depth = out, .width = in, .is_bf16 = is_bf16,
        .activation = NO_ACTIVATION, .accumulate = accumulate,
    };
    Matrix a = {{grad, is_bf16}, out, 1};
    kernels.gemm[is_bf16].gemm(&gemm, a, buffers.packed, buffers.step);
}

void heedful_sublayer(const Sublayer *args) {
    Workspace saved_space = {.memory = args->saved}, space = {.memory = args->workspace};
    Saved saved = saved_buffers(&saved_space, args);
    Buffers buffers = workspace_buffers(&space, args, 0);
    void *middle = args->num_heads ? saved.mixed : saved.between;
    linear_forward(args, &args->first, args->input, saved.between,
                   args->num_heads ? NO_ACTIVATION : args->activation, saved.slopes, buffers);
    if (args->num_heads) {
        AttentionTraining attention
            = attention_args(args, saved.between, args->memory, saved.mixed);
        attention.softmax_stats = saved.softmax_stats;
        attention.workspace = buffers.step;
        clear_unused_rows(args, args->query_starts, args->rows, args->second.in_width,
                          saved.mixed);
        heedful_attention(&attention, 0);
    }
    linear_forward(args, &args->second, middle, buffers.branch, NO_ACTIVATION, 0, buffers);
    heedful_residual_norm(args->rows, args->second.out_width, args->x.data, (int)args->x.is_bf16,
                          buffers.branch, args->is_bf16, args->sum.data, args->y.data,
                          (int)args->y.is_bf16, args->norm_weight, args->norm_bias, args->epsilon,
                          saved.norm_stats, (int64_t)args->dropout_seed, args->drop_threshold,
                          args->keep_scale);
}

void heedful_sublayer_backward(const Sublayer *args) {
    Workspace saved_space = {.memory = args->saved}, space = {.memory = args->workspace};
    Saved saved = saved_buffers(&saved_space, args);
    Buffers buffers = workspace_buffers(&space, args, 1);
    // Without dropout the branch's gradient is that of the sum; if types agree it needs no copy.
    Array grad_sum = args->grad_y.data ? args->grad_x : args->grad_sum;
    int same = !args->drop_threshold && grad_sum.data && grad_sum.is_bf16 == args->is_bf16;
    void *grad_branch = same ? grad_sum.data : buffers.branch;
    if (args->grad_x.data || !same)
        heedful_residual_norm_backward(
            args->rows, args->second.out_width, args->grad_sum.data, (int)args->grad_sum.is_bf16,
            args->grad_y.data, (int)args->grad_y.is_bf16, args->sum.data, (int)args->sum.is_bf16,
            args->grad_y.data ? args->norm_weight : 0, args->norm_bias, saved.norm_stats,
            (int64_t)args->dropout_seed, args->drop_threshold, args->keep_scale,
            args->grad_x.data, (int)args->grad_x.is_bf16, same ? 0 : grad_branch, args->is_bf16,
            args->grad_norm_weight, args->grad_norm_bias, buffers.partial);
    Array grad_middle = {buffers.grad_middle, args->is_bf16};
    void *grad_first = buffers.grad_middle;
    if (args->num_heads) {
        grad_first = buffers.grad_between;
        linear_backward(args, &args->second, grad_branch, saved.mixed, grad_middle, 0, 0, 0,
                        buffers);
        AttentionTraining attention
            = attention_args(args, saved.between, args->memory, buffers.grad_middle);
        AttentionTraining grad = attention_args(args, grad_first, args->grad_memory, 0);
        attention.grad_q = grad.q, attention.grad_k = grad.k, attention.grad_v = grad.v;
        attention.softmax_stats = saved.softmax_stats;
        attention.workspace = buffers.step;
        clear_unused_rows(args, args->query_starts, args->rows, args->first.out_width, grad_first);
        if (args->memory)
            clear_unused_rows(args, args->key_starts, args->memory_rows, grad.k.row_stride,
                              args->grad_memory);
        heedful_attention(&attention, 1);
    } else {
        void *gate = args->activation == RELU ? saved.between : 0;
        linear_backward(args, &args->second, grad_branch, saved.between, grad_middle, saved.slopes,
                        gate, 0, buffers);
    }
    int accumulate = args->grad_input.data && args->grad_input.data == args->grad_x.data;
    linear_backward(args, &args->first, grad_first, args->input, args->grad_input, 0, 0,
                    accumulate, buffers);
}
