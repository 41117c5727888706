// All kernels for one instruction set. A file that includes this defines LANES (float32 numbers of a
// register), HAS_AMX, KERNELS (the name of its table) and KERNELS_NAME (for people).

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime.h"

#include "simd.h"
#if HAS_AMX
#include "amx.h"
#endif
#include "linear.h"
#include "norm.h"
#include "recurrence.h"
#include "inference.h"
#include "topk.h"
#include "attention.h"
#include "gemm.h"

#define GEMM_KERNELS {packed_b_size, pack_b, gemm_workspace, gemm, gemm_transposed}

const struct kernel_table KERNELS = {
    .name = KERNELS_NAME,
    .lanes = LANES,
    .quantized_size = HAS_INT8 ? 4 / INT8_GROUP : 0,
    .packed_size = packed_size,
    .pack_f32 = pack_f32,
    .pack_int8 = pack_int8,
    .linear = linear,
    .norm = norm,
    .project = project,
    .layer = rest_of_layer,
    .logsumexp = logsumexp,
    .topk = topk,
    .residual_norm = residual_norm,
    .residual_norm_backward = residual_norm_backward,
    .attention_workspace = attention_workspace,
    .attention = attention,
    .gemm = {
#if !HAS_AMX  // whose float32 products are AVX-512's
        GEMM_KERNELS,
#else
        {0},
#endif
        GEMM_KERNELS,
    },
};
