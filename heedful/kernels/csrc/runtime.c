// Threads, workspaces, and the choice of an instruction set.

#include "runtime.h"

#include "layout.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if HAVE_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

// Threads ------------------------------------------------------------------------------------------

extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

int64_t num_threads(void) {
    return GOMP_parallel && omp_get_max_threads && omp_get_thread_num && omp_get_num_threads
        ? omp_get_max_threads() : 1;
}

int64_t thread_index(void) { return num_threads() > 1 ? omp_get_thread_num() : 0; }

typedef struct {
    LoopBody body;
    void *data;
    int64_t count, grain, taken;
} Loop;

// Threads take ever smaller pieces of what is left, so that they end together though one may be slower
// or interrupted.
static void take_pieces(void *data) {
    Loop *loop = data;
    int64_t threads = omp_get_num_threads();
    int64_t first = __atomic_load_n(&loop->taken, __ATOMIC_RELAXED);
    while (first < loop->count) {
        int64_t left = loop->count - first;
        int64_t size = min_i64(max_i64(left / (2 * threads), loop->grain), left);
        if (!__atomic_compare_exchange_n(&loop->taken, &first, first + size, 0, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED))
            continue;
        loop->body(loop->data, first, first + size);
        first = __atomic_load_n(&loop->taken, __ATOMIC_RELAXED);
    }
}

void parallel_for(LoopBody body, void *data, int64_t count, int64_t grain) {
    int64_t threads = min_i64(num_threads(), count / grain);
    if (threads <= 1) {
        body(data, 0, count);
        return;
    }
    Loop loop = {body, data, count, max_i64(grain, count / (32 * threads)), 0};
    GOMP_parallel(take_pieces, &loop, (unsigned)threads, 0);
}

// Workspaces ---------------------------------------------------------------------------------------

static QuantizedRows quantized_rows(Workspace *space, int is_int8, int64_t rows, int64_t width) {
    int64_t row = ceil_div(width, 16) * 16 * kernels.quantized_size;
    QuantizedRows quantized;
    quantized.numbers = allocate(space, is_int8 ? rows * row : 0);
    quantized.largest = allocate(space, is_int8 ? rows * 4 : 0);
    return quantized;
}

LayerBuffers layer_buffers(Workspace *space, const Layer *layer, int64_t rows, int64_t num_keys) {
    int64_t width = layer->width, row = rows * (int64_t)sizeof(float);
    int64_t mixed = max_i64(layer->self.output.in_width,
                            layer->has_cross ? layer->cross.output.in_width : 0);
    int64_t inner = max_i64(layer->up.out_width, layer->recurrent.up.out_width);
    int64_t gate = max_i64(layer->gated ? layer->up.out_width : 0, layer->recurrent.gate.out_width);
    int64_t joined = layer->mixer == AVERAGE_ATTENTION ? layer->recurrent.gate.in_width : 0;
    int64_t keys = padded_keys(num_keys);
    if (layer->mixer != ATTENTION) mixed = max_i64(mixed, width);
    LayerBuffers buffers;
    buffers.normed = allocate(space, layer->norm_first ? row * width : 0);
    buffers.mixed = allocate(space, row * mixed);
    buffers.queries = allocate(space, layer->has_cross ? row * layer->cross.projection.out_width : 0);
    buffers.inner = allocate(space, row * inner);
    buffers.gate = allocate(space, row * gate);
    buffers.joined = allocate(space, row * joined);
    buffers.scores = allocate(space, num_threads() * QUERY_BLOCK * keys * 4);
    buffers.quantized = quantized_rows(space, layer->up.scale != 0, rows,
                                       max_i64(max_i64(width, mixed), max_i64(inner, joined)));
    return buffers;
}

int64_t heedful_linear_workspace(const Linear *layer, int64_t rows) {
    Workspace space = {0};
    quantized_rows(&space, layer->scale != 0, rows, layer->in_width);
    return (int64_t)space.size;
}

int64_t heedful_layer_workspace(const Layer *layer, int64_t rows, int64_t num_keys) {
    Workspace space = {0};
    layer_buffers(&space, layer, rows, num_keys);
    return (int64_t)space.size;
}

// The instruction set ------------------------------------------------------------------------------

enum { NONE, AVX2_OR_NEON, AVX512, AMX };

struct kernel_table kernels;
static int selected = NONE;

#if HAVE_AMX
// Whether there are matrix registers, and the system keeps them for this process.
static int has_amx(void) {
    unsigned a, b, c, d = 0, features = 1 << 22 | 1 << 24 | 1 << 25;  // bfloat16, tiles, 8 bits
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & features) != features) return 0;
    return !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* the registers */);
}
#endif

static int best_instructions(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vnni")) {
#if HAVE_AMX
        if (has_amx()) return AMX;
#endif
        return AVX512;
    }
#endif
#if HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2_OR_NEON;
#endif
    return NONE;
#else
    return HAVE_NEON ? AVX2_OR_NEON : NONE;
#endif
}

int heedful_select(int most) {
    int best = best_instructions();
    selected = most < best ? most : best;
#if HAVE_AVX2
    if (selected == AVX2_OR_NEON) kernels = kernels_avx2;
#endif
#if HAVE_NEON
    if (selected == AVX2_OR_NEON) kernels = kernels_neon;
#endif
#if HAVE_AVX512
    if (selected == AVX512) kernels = kernels_avx512;
#endif
#if HAVE_AMX
    if (selected == AMX) {
        kernels = kernels_amx;
        kernels.gemm[0] = kernels_avx512.gemm[0];
    }
#endif
    return selected;
}

const char *heedful_instructions(void) { return kernels.name; }
const char *heedful_build(void) { return COMPILER " (" BUILT_SETS ")"; }
int heedful_lanes(void) { return kernels.lanes; }
int heedful_has_amx(void) { return selected == AMX; }

int heedful_has_fast_bf16(void) {
#if defined(__x86_64__)
    return selected != AVX512 || __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

const LayoutEntry *heedful_layout(int64_t *count) {
    *count = sizeof layout / sizeof *layout;
    return layout;
}

// Single kernels -----------------------------------------------------------------------------------

int64_t heedful_packed_size(int64_t in_width, int64_t out_width, int is_int8) {
    return kernels.packed_size(in_width, out_width, is_int8);
}

void heedful_pack_f32(const float *weight, int64_t in_width, int64_t out_width, float *packed) {
    kernels.pack_f32(weight, in_width, out_width, packed);
}

void heedful_pack_int8(const int8_t *weight, int64_t in_width, int64_t out_width, int8_t *packed) {
    kernels.pack_int8(weight, in_width, out_width, packed);
}

void heedful_linear(const Linear *layer, const float *x, int64_t rows, float *y, int relu,
                    void *workspace) {
    Workspace space = {.memory = workspace};
    QuantizedRows quantized = quantized_rows(&space, layer->scale != 0, rows, layer->in_width);
    kernels.linear(layer, x, rows, y, relu, 0, &quantized);
}

void heedful_norm(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y) {
    kernels.norm(norm, x, rows, width, y);
}

void heedful_project(const Layer *layer, const float *x, int64_t rows, float *projected,
                     void *workspace) {
    Workspace space = {.memory = workspace};
    LayerBuffers buffers = layer_buffers(&space, layer, rows, 0);
    kernels.project(layer, x, rows, projected, &buffers);
}

void heedful_layer(const Layer *layer, const float *x, int64_t rows, const AttentionArgs *self,
                   const AttentionArgs *cross, float *y, void *workspace) {
    Workspace space = {.memory = workspace};
    int64_t keys = max_i64(self->num_keys, cross ? cross->num_keys : 0);
    LayerBuffers buffers = layer_buffers(&space, layer, rows, keys);
    kernels.layer(layer, x, rows, self, 0, cross, y, &buffers);
}

void heedful_residual_norm(int64_t rows, int64_t width, void *x, int x_is_bf16, void *branch,
                           int branch_is_bf16, void *sum, void *y, int y_is_bf16,
                           const float *weight, const float *bias, float epsilon, float *stats,
                           int64_t seed, uint32_t drop_threshold, float keep_scale) {
    Norm norm = {weight, bias, epsilon};
    ResidualNorm args = {
        .x = {x, x_is_bf16}, .branch = {branch, branch_is_bf16},
        .sum = {sum, x_is_bf16 && branch_is_bf16}, .y = {y, y_is_bf16}, .norm = weight ? &norm : 0,
        .dropout = {(uint64_t)seed, drop_threshold, keep_scale}, .stats = stats, .rows = rows,
        .width = width,
    };
    kernels.residual_norm(&args);
}

void heedful_residual_norm_backward(int64_t rows, int64_t width, void *grad_sum,
                                    int grad_sum_is_bf16, void *grad_y, int grad_y_is_bf16,
                                    void *sum, int sum_is_bf16, const float *weight,
                                    const float *bias, float *stats, int64_t seed,
                                    uint32_t drop_threshold, float keep_scale, void *grad_x,
                                    int grad_x_is_bf16, void *grad_branch,
                                    int grad_branch_is_bf16, float *grad_weight, float *grad_bias,
                                    float *workspace) {
    Norm norm = {weight, bias, 0.0f};
    ResidualNorm args = {
        .x = {sum, sum_is_bf16}, .norm = weight ? &norm : 0,
        .dropout = {(uint64_t)seed, drop_threshold, keep_scale}, .stats = stats, .rows = rows,
        .width = width,
    };
    ResidualNormGrad grad = {
        .y = {grad_y, grad_y_is_bf16}, .sum = {grad_sum, grad_sum_is_bf16},
        .x = {grad_x, grad_x_is_bf16}, .branch = {grad_branch, grad_branch_is_bf16},
        .weight = grad_weight, .bias = grad_bias,
    };
    kernels.residual_norm_backward(&args, &grad, workspace);
}

int64_t heedful_attention_workspace(const AttentionTraining *args) {
    return kernels.attention_workspace(args);
}

void heedful_attention(AttentionTraining *args, int backward) {
    kernels.attention(args, backward);
}

int64_t heedful_packed_b_size(int64_t depth, int64_t width, int is_bf16) {
    return kernels.gemm[is_bf16].packed_b_size(depth, width, is_bf16);
}

void heedful_pack_b(void *b, int b_is_bf16, int64_t row_stride, int64_t column_stride,
                    int64_t depth, int64_t width, int is_bf16, uint32_t *packed) {
    Matrix matrix = {{b, b_is_bf16}, row_stride, column_stride};
    kernels.gemm[is_bf16].pack_b(matrix, depth, width, is_bf16, packed);
}

int64_t heedful_gemm_workspace(int64_t rows, int64_t depth, int64_t width, int is_bf16,
                               int out_is_bf16, int transpose_a) {
    Gemm gemm = {
        .out = {0, out_is_bf16}, .rows = rows, .depth = depth, .width = width, .is_bf16 = is_bf16,
    };
    return kernels.gemm[is_bf16].workspace(&gemm, transpose_a);
}

void heedful_gemm(void *out, int out_is_bf16, void *a, const uint32_t *packed_b, int64_t rows,
                  int64_t depth, int64_t width, int is_bf16, const float *bias, int activation,
                  void *slopes, int slopes_are_bf16, void *gate, int gate_is_bf16,
                  float *workspace) {
    Gemm gemm = {
        .out = {out, out_is_bf16}, .gate = {gate, gate_is_bf16},
        .slopes = {slopes, slopes_are_bf16}, .bias = bias, .rows = rows, .depth = depth,
        .width = width, .is_bf16 = is_bf16, .activation = activation,
    };
    Matrix matrix = {{a, is_bf16}, depth, 1};
    kernels.gemm[is_bf16].gemm(&gemm, matrix, packed_b, workspace);
}

void heedful_gemm_transposed(float *out, void *a, void *b, int64_t rows, int64_t depth,
                             int64_t width, int is_bf16, int accumulate, float *column_sums,
                             float *workspace) {
    Gemm gemm = {
        .out = {out, 0}, .rows = rows, .depth = depth, .width = width, .is_bf16 = is_bf16,
        .activation = NO_ACTIVATION, .accumulate = accumulate,
    };
    Matrix left = {{a, is_bf16}, rows, 1}, right = {{b, is_bf16}, width, 1};
    kernels.gemm[is_bf16].gemm_transposed(&gemm, left, right, column_sums, workspace);
}
