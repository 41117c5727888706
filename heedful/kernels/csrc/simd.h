// Vectors of LANES float32 numbers, in the compiler's own vector types; intrinsics only where GCC 12
// makes worse code without them.

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// Unroll before anything else is decided, or arrays of vectors would not stay in registers.
#if defined(__clang__)
#define UNROLL(i, count) _Pragma("unroll") for (int i = 0; i < count; i++)
#else
#define UNROLL(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)
#endif

static inline int64_t round_up_to_lanes(int64_t count) { return ceil_div(count, LANES) * LANES; }

static inline Floats load(const float *from) { return *(const Floats *)from; }
static inline void store(float *to, Floats x) { *(Floats *)to = x; }

static inline Floats load_tail(const float *from, int64_t column, int64_t size) {
    if (size - column >= LANES) return load(from + column);
    Floats x = {0};
    for (int64_t i = 0; i < size - column; i++) x[i] = from[column + i];
    return x;
}

static inline void store_tail(float *to, int64_t column, int64_t size, Floats x) {
    if (size - column >= LANES) store(to + column, x);
    else for (int64_t i = 0; i < size - column; i++) to[column + i] = x[i];
}

static inline Floats set1(float x) {
    Floats zero = {0};
    return x - zero;  // x whatever its sign, so compilers only broadcast it
}

static inline Floats select_lanes(Ints where, Floats a, Floats b) {
    return (Floats)((where & (Ints)a) | (~where & (Ints)b));
}

// max_lanes gives b where either is NaN.
#if LANES == 16
static inline Floats max_lanes(Floats a, Floats b) {
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
}
static inline float reduce_add(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float reduce_max(Floats x) { return _mm512_reduce_max_ps((__m512)x); }
static inline int any_lane(Ints where) {
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
}
#else
static inline Floats max_lanes(Floats a, Floats b) { return select_lanes(a > b, a, b); }
static inline float reduce_add(Floats x) {
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}
static inline float reduce_max(Floats x) {
    float largest = x[0];
    for (int i = 1; i < LANES; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}
static inline int any_lane(Ints where) {
    int any = 0;
    for (int i = 0; i < LANES; i++) any |= where[i];
    return any;
}
#endif

// Visibility -------------------------------------------------------------------------------------

// visible_lanes says which of LANES keys, of which `left` exist, a query sees: `visible` has a byte
// for each, or is null if it sees all.
#if LANES == 16
typedef __mmask16 LaneMask;
static inline LaneMask visible_lanes(const uint8_t *visible, int64_t left) {
    __mmask16 exist = (__mmask16)(left < 16 ? (1 << left) - 1 : 0xffff);
    if (!visible) return exist;
    __m128i bytes = _mm_maskz_loadu_epi8(exist, visible);
    return _mm_test_epi8_mask(bytes, bytes);
}
static inline int any_visible(LaneMask mask) { return mask != 0; }
static inline Floats hide_scores(Floats scores, LaneMask mask) {
    return (Floats)_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), mask, (__m512)scores);
}
#else
typedef uint8_t LaneMask __attribute__((vector_size(LANES)));
static inline LaneMask visible_lanes(const uint8_t *visible, int64_t left) {
    LaneMask mask = {0};
    if (visible && left >= LANES) memcpy(&mask, visible, LANES);
    else for (int i = 0; i < LANES && i < left; i++) mask[i] = visible ? visible[i] : 1;
    return mask;
}
static inline int any_visible(LaneMask mask) {
    int any = 0;
    for (int i = 0; i < LANES; i++) any |= mask[i];
    return any;
}
static inline Floats hide_scores(Floats scores, LaneMask mask) {
    return select_lanes(__builtin_convertvector(mask, Ints) != 0, scores, set1(-INFINITY));
}
#endif

// Exponential and activations ------------------------------------------------------------------

// eˣ to a relative error of about 1e-7, for x from −87.3 to 88.3.
static inline Floats exp_in_range(Floats x) {
    const float magic = 12582912.0f;  // adding it rounds to an integer
    Floats shifted = x * 1.44269504f + magic;
    Floats n = shifted - magic;
    Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = set1(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (Floats)(((Ints)shifted - (Ints)set1(magic) + 127) << 23);
}

// The same for any x; 0 below the smallest normal number.
static inline Floats exp_lanes(Floats x) {
    Floats smallest = set1(-87.3f), largest = set1(88.3f);
    Ints under = x < smallest;
    x = select_lanes(under, smallest, x);
    x = select_lanes(x > largest, largest, x);
    return (Floats)((Ints)exp_in_range(x) & ~under);
}

// About 1 / x, to the last digit or two of float32, for x of at least one.
static inline Floats reciprocal(Floats x) {
#if LANES == 16
    Floats near = (Floats)_mm512_rcp14_ps((__m512)x);
    __mmask16 finite = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(INFINITY), _CMP_NEQ_UQ);
    return (Floats)_mm512_mask_mov_ps((__m512)near, finite,
                                      (__m512)(near + near * (1.0f - x * near)));
#else
    return 1.0f / x;
#endif
}

static inline Floats sigmoid(Floats x) { return reciprocal(1.0f + exp_lanes(-x)); }

// An activation, and its derivative if `slope` is not null (not for ReLU). NaN stays NaN.
static inline Floats activate(int kind, Floats x, Floats *slope) {
    if (kind == RELU) return max_lanes(set1(0.0f), x);
    if (kind == GELU) {  // x · Φ(x) = ½x(1 + erf(x/√2)), erf by Abramowitz and Stegun 7.1.26
        Floats a = (Floats)((Ints)x & INT32_MAX);
        Floats bell = exp_in_range(max_lanes(set1(-87.0f), a * a * -0.5f));
        Floats t = reciprocal(1.0f + a * 0.23164189f);
        Floats p = set1(0.5307027145f);
        p = p * t - 0.7265760135f;
        p = p * t + 0.7107068705f;
        p = p * t - 0.142248368f;
        p = (p * t + 0.1274147960f) * t * bell;  // Φ(−|x|)
        Floats phi = 0.5f + (Floats)(((Ints)x & INT32_MIN) | (Ints)(0.5f - p));
        if (slope) *slope = phi + x * bell * 0.39894228f;
        return x * phi;
    }
    // x / (1 + e^−u): u is x for SiLU, and 2√(2/π)(x + 0.044715x³) for the tanh form of GELU
    Floats squared = x * x, u = x;
    if (kind == GELU_TANH) u = x * (1.0f + squared * 0.044715f) * 1.5957691f;
    Floats share = sigmoid(u), y = x * share;
    if (slope) {
        Floats rest = y - y * share;
        if (kind == GELU_TANH) rest *= (1.0f + squared * 0.134145f) * 1.5957691f;
        *slope = share + rest;
    }
    return y;
}

// bfloat16 -------------------------------------------------------------------------------------

// LANES bfloat16 numbers, each in the lower half of a lane.
static inline Bits load_bf16(const uint16_t *from) {
#if LANES == 16  // GCC 12 splits the register otherwise
    return (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    return __builtin_convertvector(*(const Shorts *)from, Bits);
#endif
}

// The nearest bfloat16 number in the upper half of each lane, ties to even; NaN stays NaN. The lower
// half holds leftovers.
static inline Bits round_bf16(Floats x) {
    Bits bits = (Bits)x;
    Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
    Bits nan = (Bits)(x != x);
    return (nan & 0x7fc00000) | (~nan & rounded);
}

static inline Floats load_array(Array from, int64_t i) {
    if (!from.is_bf16) return load((const float *)from.data + i);
    return (Floats)(load_bf16((const uint16_t *)from.data + i) << 16);
}

static inline void store_array(Array to, int64_t i, Floats x) {
    if (!to.is_bf16) {
        store((float *)to.data + i, x);
        return;
    }
    Bits upper = round_bf16(x) >> 16;
#if LANES == 16  // GCC 12 takes an instruction and a table more otherwise
    _mm256_storeu_si256((__m256i *)((uint16_t *)to.data + i),
                        _mm512_cvtepi32_epi16((__m512i)upper));
#else
    *(Shorts *)((uint16_t *)to.data + i) = __builtin_convertvector(upper, Shorts);
#endif
}

// The same for the first `count` lanes.
static inline Floats load_array_tail(Array from, int64_t i, int64_t count) {
    if (count >= LANES) return load_array(from, i);
    Floats x = {0};
    for (int64_t n = 0; n < count; n++) x[n] = load_one(from, i + n);
    return x;
}

static inline void store_array_tail(Array to, int64_t i, Floats x, int64_t count) {
    if (count >= LANES) store_array(to, i, x);
    else for (int64_t n = 0; n < count; n++) store_one(to, i + n, x[n]);
}

// Transposition of a square --------------------------------------------------------------------

#if LANES == 16
ALWAYS_INLINE void transpose(Bits rows[LANES]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    // The quarters of b[4 i + j] are columns j, 4 + j, 8 + j and 12 + j of rows 4 i to 4 i + 3.
    for (int j = 0; j < 4; j++) {
        __m512i even = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i even_below = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i odd_below = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        rows[j] = (Bits)_mm512_shuffle_i32x4(even, even_below, 0x88);
        rows[4 + j] = (Bits)_mm512_shuffle_i32x4(odd, odd_below, 0x88);
        rows[8 + j] = (Bits)_mm512_shuffle_i32x4(even, even_below, 0xdd);
        rows[12 + j] = (Bits)_mm512_shuffle_i32x4(odd, odd_below, 0xdd);
    }
}
#else
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif
// Swap what lies off the diagonal of blocks: halves of two rows, then quarters, and so on.
#define SWAP(distance, low, high)                                  \
    for (int i = 0; i < LANES; i++) {                              \
        if (i & distance) continue;                                \
        Bits a = rows[i], b = rows[i + distance];                  \
        rows[i] = SHUFFLE(a, b, low);                              \
        rows[i + distance] = SHUFFLE(a, b, high);                  \
    }
#define LANES_OF(...) __VA_ARGS__
ALWAYS_INLINE void transpose(Bits rows[LANES]) {
#if LANES == 8
    SWAP(4, LANES_OF(0, 1, 2, 3, 8, 9, 10, 11), LANES_OF(4, 5, 6, 7, 12, 13, 14, 15))
    SWAP(2, LANES_OF(0, 1, 8, 9, 4, 5, 12, 13), LANES_OF(2, 3, 10, 11, 6, 7, 14, 15))
    SWAP(1, LANES_OF(0, 8, 2, 10, 4, 12, 6, 14), LANES_OF(1, 9, 3, 11, 5, 13, 7, 15))
#else
    SWAP(2, LANES_OF(0, 1, 4, 5), LANES_OF(2, 3, 6, 7))
    SWAP(1, LANES_OF(0, 4, 2, 6), LANES_OF(1, 5, 3, 7))
#endif
}
#undef SWAP
#undef SHUFFLE
#undef LANES_OF
#endif
