// The micro-kernel of `gemm.h` in matrix registers: see `amx.h`. Multiplies bfloat16 only.

static void begin_tiles(void) { amx_configure(GEMM_MR, AMX_UNITS); }
static void end_tiles(void) { amx_release(); }

// What is pending is done step by step meanwhile: matrix and vector registers need not wait for each
// other.
static void gemm_tile(int is_bf16, int64_t rows, const char *a, int64_t row_stride,
                      int64_t unit_stride, const float *b, int64_t units, float *sums,
                      int64_t sums_stride, int accumulate, const char *next, int64_t next_stride,
                      Pending *pending) {
    int64_t steps = ceil_div(units, AMX_UNITS);
    pending->rows_per_call = (GEMM_MR + steps - 1) / steps;
    (void)is_bf16;
    if (rows < GEMM_MR) amx_configure(rows, AMX_UNITS);
    amx_micro_kernel(AMX_BF16, rows, a, row_stride, AMX_UNITS * unit_stride, (const char *)b,
                     GEMM_NR * 4, units, (char *)sums, sums_stride * 4, accumulate, next,
                     next_stride, (Interleaved){run_pending, pending});
    if (rows < GEMM_MR) amx_configure(GEMM_MR, AMX_UNITS);
}

static int64_t max_tiles(int64_t units) {
    (void)units;
    return MC_TILES;
}

// A transposed A [K, M] is packed as [tiles, blocks of PACK_ROWS rows, GEMM_MR, AMX_UNITS units], so
// that it is read in order: a tile's columns alone are short pieces far apart, and waiting for them
// took a quarter to a half of the products' time.
#define PACKED_A_PER_THREAD 0
#define PACK_ROWS (2 * AMX_UNITS)

// Units from a tile to the next. One block more than it holds: tiles a large power of two apart would
// drive each other out of the cache.
static int64_t packed_tile_stride(int64_t units) {
    return (ceil_div(units, AMX_UNITS) + 1) * AMX_UNITS * GEMM_MR;
}

// The packed tiles and, behind them, each column's sums over quarters of the PACK_ROWS rows.
static int64_t packed_a_size(const Gemm *gemm) {
    int64_t units = min_i64((gemm->depth + 1) / 2, KC);
    return num_tiles(gemm) * (packed_tile_stride(units) + 4 * GEMM_MR);
}

// Pack eight columns of PACK_ROWS rows as [8, AMX_UNITS] units, and add what is in them to `sums`, of
// four columns each, by quarters of the rows. Numbers reach their quarter of a register as they are
// loaded, which costs no shuffle, and their place in it by three.
ALWAYS_INLINE void pack_eight_columns(const uint16_t *from, int64_t stride, uint32_t *to,
                                      Floats sums[2]) {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512i rows[8], units[2][4];
    for (int i = 0; i < 8; i++) {
#define QUARTER(j) _mm_loadu_si128((const __m128i_u *)(from + (i + 8 * (j)) * stride))
        rows[i] = _mm512_castsi128_si512(QUARTER(0));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x00f0, QUARTER(1));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x0f00, QUARTER(2));
        rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0xf000, QUARTER(3));
#undef QUARTER
    }
    for (int i = 0; i < 4; i++) {
        units[0][i] = _mm512_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
        units[1][i] = _mm512_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
    }
    for (int half = 0; half < 2; half++, to += 4 * AMX_UNITS) {
        const __m512i *of = units[half];
        for (int i = 0; i < 4; i++)
            __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums[half]) : "v"(of[i]), "v"(ones));
        __m512i first = _mm512_unpacklo_epi32(of[0], of[1]);
        __m512i second = _mm512_unpackhi_epi32(of[0], of[1]);
        __m512i third = _mm512_unpacklo_epi32(of[2], of[3]);
        __m512i fourth = _mm512_unpackhi_epi32(of[2], of[3]);
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(first, third));
        _mm512_storeu_si512(to + AMX_UNITS, _mm512_unpackhi_epi64(first, third));
        _mm512_storeu_si512(to + 2 * AMX_UNITS, _mm512_unpacklo_epi64(second, fourth));
        _mm512_storeu_si512(to + 3 * AMX_UNITS, _mm512_unpackhi_epi64(second, fourth));
    }
}

static float *quarter_sums(const GemmCall *call, int64_t tile) {
    int64_t behind = num_tiles(call->gemm) * packed_tile_stride(call->units);
    return call->workspace + behind + tile * 4 * GEMM_MR;
}

static void pack_a_tiles(void *data, int64_t first, int64_t stop) {
    const GemmCall *call = data;
    int64_t depth = call->depth, stride = call->a.row_stride;
    int64_t tile_stride = packed_tile_stride(call->units);
    const uint16_t *numbers = call->a.array.data;
    memset(quarter_sums(call, first), 0, (size_t)((stop - first) * 4 * GEMM_MR) * 4);
    for (int64_t k = 0; k < depth; k += PACK_ROWS)
        for (int64_t tile = first; tile < stop; tile++) {
            int64_t rows = min_i64(PACK_ROWS, depth - k), from_stride = stride;
            int64_t columns = min_i64(GEMM_MR, call->gemm->rows - tile * GEMM_MR);
            const uint16_t *from = numbers + k * stride + tile * GEMM_MR;
            uint16_t padded[PACK_ROWS * GEMM_MR];
            if (rows < PACK_ROWS || columns % 8) {
                memset(padded, 0, sizeof padded);
                for (int64_t i = 0; i < rows; i++)
                    memcpy(padded + i * GEMM_MR, from + i * stride, (size_t)columns * 2);
                from = padded;
                from_stride = GEMM_MR;
            }
            for (int64_t i = 0; i < rows; i++) prefetch(call->a, k + i, (tile + 1) * GEMM_MR);
            uint32_t *to = (uint32_t *)call->workspace + tile * tile_stride
                + k / PACK_ROWS * AMX_UNITS * GEMM_MR;
            Floats *sums = (Floats *)quarter_sums(call, tile);
            for (int64_t n = 0; n < columns; n += 8)
                pack_eight_columns(from + n, from_stride, to + n * AMX_UNITS, sums + n / 4);
        }
    if (!call->column_sums) return;
    for (int64_t tile = first; tile < stop; tile++) {
        const float *sums = quarter_sums(call, tile);
        for (int64_t n = 0; n < GEMM_MR && tile * GEMM_MR + n < call->gemm->rows; n++)
            for (int quarter = 0; quarter < 4; quarter++)
                call->column_sums[tile * GEMM_MR + n] += sums[n / 4 * 16 + quarter * 4 + n % 4];
    }
}

static void pack_all_of_a(GemmCall *call) {
    parallel_for_columns(pack_a_tiles, call, num_tiles(call->gemm), call->depth);
}

static RowsOfA pack_a(const GemmCall *call, int64_t start, int64_t end, uint32_t *packed) {
    (void)end, (void)packed;
    int64_t tile_stride = packed_tile_stride(call->units) * 4;
    const char *at = (const char *)call->workspace + start / GEMM_MR * tile_stride;
    return (RowsOfA){at, AMX_UNITS * 4, GEMM_MR * 4, tile_stride, 1};
}
