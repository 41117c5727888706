// The micro-kernel of `gemm.h` in vector registers: MR rows and NR_VECTORS registers of columns.

typedef float Unit __attribute__((aligned(2), may_alias));

// Products of pairs of bfloat16 numbers take BF16_PARTS steps for each unit.
#if LANES == 16
// _mm512_dpbf16_ps in assembly: for the intrinsic GCC 12 copies every sum through memory.
#define BF16_PARTS 1
#define ADD_PRODUCT(sum, a, b)                                                              \
    do {                                                                                    \
        if (is_bf16) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));          \
        else sum += a * b;                                                                  \
    } while (0)
static inline Floats bf16_part(Floats units, int is_bf16, int part) {
    (void)is_bf16, (void)part;
    return units;
}
#else
// Without such an instruction first the lower, then the upper number of each unit, as float32: the
// same products, which are exact, and as many multiplications as float32 takes.
#define BF16_PARTS 2
#define ADD_PRODUCT(sum, a, b) (sum += a * b)
static inline Floats bf16_part(Floats units, int is_bf16, int part) {
    if (!is_bf16) return units;
    return part ? (Floats)((Bits)units & 0xffff0000) : (Floats)((Bits)units << 16);
}
#endif

#define MICRO_KERNEL_ARGS                                                                     \
    const char *a, int64_t row_stride, int64_t unit_stride, const float *b, int64_t units,    \
        float *sums, int64_t sums_stride, int accumulate, const char *next,                   \
        int64_t next_stride

// Some units of `count` rows of A times those of a panel: sums, which start at zero unless
// `accumulate`. Prefetches `next_stride` bytes from `next` on for each unit.
ALWAYS_INLINE void gemm_micro_kernel(MICRO_KERNEL_ARGS, int count, int is_bf16) {
    Floats registers[MR][NR_VECTORS];
    int parts = is_bf16 ? BF16_PARTS : 1;
    UNROLL(i, count) UNROLL(j, NR_VECTORS) registers[i][j] = set1(0.0f);
    if (accumulate)
        UNROLL(i, count) UNROLL(j, NR_VECTORS)
            registers[i][j] = load(sums + i * sums_stride + j * LANES);
    for (int64_t u = 0; u < units; u++, a += unit_stride, b += NR) {
        __builtin_prefetch(next, 0, 2);
        next += next_stride;
        UNROLL(part, parts) {
            Floats row[NR_VECTORS];
            UNROLL(j, NR_VECTORS) row[j] = bf16_part(load(b + j * LANES), is_bf16, part);
            UNROLL(i, count) {
                Floats one = bf16_part(set1(*(const Unit *)(a + i * row_stride)), is_bf16, part);
                UNROLL(j, NR_VECTORS) ADD_PRODUCT(registers[i][j], one, row[j]);
            }
            if (parts > 1) __asm__("" : "+r"(a));  // or all would be kept between parts
        }
    }
    UNROLL(i, count) UNROLL(j, NR_VECTORS)
        store(sums + i * sums_stride + j * LANES, registers[i][j]);
}

// One function for each number of rows and type, so that each has the registers to itself.
#define MICRO_KERNEL(name, count, is_bf16)                                                     \
    static void name(MICRO_KERNEL_ARGS) {                                                      \
        gemm_micro_kernel(a, row_stride, unit_stride, b, units, sums, sums_stride, accumulate, \
                          next, next_stride, count, is_bf16);                                  \
    }
MICRO_KERNEL(f32_1, 1, 0)
MICRO_KERNEL(f32_2, 2, 0)
MICRO_KERNEL(f32_3, 3, 0)
MICRO_KERNEL(f32_4, 4, 0)
MICRO_KERNEL(f32_5, 5, 0)
MICRO_KERNEL(f32_6, 6, 0)
MICRO_KERNEL(bf16_1, 1, 1)
MICRO_KERNEL(bf16_2, 2, 1)
MICRO_KERNEL(bf16_3, 3, 1)
MICRO_KERNEL(bf16_4, 4, 1)
MICRO_KERNEL(bf16_5, 5, 1)
MICRO_KERNEL(bf16_6, 6, 1)
static void (*const micro_kernels[2][MR])(MICRO_KERNEL_ARGS) = {
    {f32_1, f32_2, f32_3, f32_4, f32_5, f32_6},
    {bf16_1, bf16_2, bf16_3, bf16_4, bf16_5, bf16_6},
};

static inline void gemm_tile(int is_bf16, int64_t rows, const char *a, int64_t row_stride,
                             int64_t unit_stride, const float *b, int64_t units, float *sums,
                             int64_t sums_stride, int accumulate, const char *next,
                             int64_t next_stride, Pending *pending) {
    pending->rows_per_call = MR;  // all at once: the same registers do both
    run_pending(pending);
    micro_kernels[is_bf16][rows - 1](a, row_stride, unit_stride, b, units, sums, sums_stride,
                                     accumulate, next, next_stride);
}

// So many that the units of a block stay in the cache, and such that their rows fill registers.
static int64_t max_tiles(int64_t units) { return MC_TILES * KC / min_i64(units, KC) / 8 * 8; }

static void begin_tiles(void) {}
static void end_tiles(void) {}

// A transposed A is packed by each thread, when it comes to it.
#define PACKED_A_PER_THREAD (KC * MC_TILES * MR)
static int64_t packed_a_size(const Gemm *gemm) { return (void)gemm, 0; }
static void pack_all_of_a(GemmCall *call) { (void)call; }

// Pack some columns of a transposed A as [units, columns], padded to whole registers, and add them up
// if their sums are wanted.
ALWAYS_INLINE void pack_a_as(const GemmCall *call, int64_t start, int64_t end, uint32_t *packed,
                             int is_bf16) {
    Matrix a = call->a;
    a.array.is_bf16 = is_bf16;
    for (int64_t u = 0; u < call->units; u++)
        for (int64_t column = start; column < end; column += LANES, packed += LANES) {
            int64_t k = is_bf16 ? 2 * u : u, left = end - column;
            prefetch(a, k + PREFETCH_DISTANCE, column);
            if (is_bf16) prefetch(a, k + PREFETCH_DISTANCE + 1, column);
            Bits units = load_units_tail(a, k, column, left, call->depth, is_bf16);
            *(Bits *)packed = units;
            if (!call->column_sums) continue;
            Floats sum = (Floats)units;
            if (is_bf16) sum = (Floats)(units << 16) + (Floats)(units & 0xffff0000);
            float *sums = call->column_sums + column;
            if (left >= LANES) store(sums, load(sums) + sum);
            else for (int64_t i = 0; i < left; i++) sums[i] += sum[i];
        }
}

static RowsOfA pack_a(const GemmCall *call, int64_t start, int64_t end, uint32_t *packed) {
    if (call->gemm->is_bf16) pack_a_as(call, start, end, packed, 1);
    else pack_a_as(call, start, end, packed, 0);
    return (RowsOfA){(const char *)packed, 4, round_up_to_lanes(end - start) * 4, MR * 4, 0};
}
