// What a block does between its products while it is trained: dropout, sum and norm of a row in one
// pass, and their gradients in another. Read once for each set of instructions, by `level.h`.
// Numbers come and go as float32 or bfloat16; all is computed in float32.

typedef uint16_t NAME(Halves) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t NAME(Bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define Bits NAME(Bits)

// LANES bfloat16 numbers, each in the lower half of a lane.
static inline Bits NAME(widened)(const uint16_t *from) {
#if LANES == 16  // of which GCC 12 otherwise makes two halves of a register
    return (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    return __builtin_convertvector(*(const NAME(Halves) *)from, Bits);
#endif
}

// Numbers i to i + LANES of an array of either kind.
static inline Floats NAME(take)(Numbers from, int64_t i) {
    if (!from.is_half) return NAME(load)((const float *)from.at + i);
    return (Floats)(NAME(widened)((const uint16_t *)from.at + i) << 16);
}

// The bits of the nearest bfloat16 number in the upper half of each lane, ties to the even one; what
// is no number stays none. The lower half is left over.
static inline Bits NAME(rounded_bits)(Floats x) {
    Bits bits = (Bits)x;
    Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
    Bits none = (Bits)(x != x);
    return (none & 0x7fc00000) | (~none & rounded);
}

static inline void NAME(put)(Numbers to, int64_t i, Floats x) {
    if (!to.is_half) {
        NAME(store)((float *)to.at + i, x);
        return;
    }
    Bits upper = NAME(rounded_bits)(x) >> 16;
#if LANES == 16  // for what follows GCC 12 takes an instruction and a table more
    _mm256_storeu_si256((__m256i *)((uint16_t *)to.at + i), _mm512_cvtepi32_epi16((__m512i)upper));
#else
    *(NAME(Halves) *)((uint16_t *)to.at + i) = __builtin_convertvector(upper, NAME(Halves));
#endif
}

// The same of fewer numbers, of which the first `count` are meant.
static inline Floats NAME(take_some)(Numbers from, int64_t i, int64_t count) {
    if (count >= LANES) return NAME(take)(from, i);
    Floats found = {0};
    for (int64_t n = 0; n < count; n++) found[n] = read_one(from, i + n);
    return found;
}

static inline void NAME(put_some)(Numbers to, int64_t i, Floats x, int64_t count) {
    if (count >= LANES) NAME(put)(to, i, x);
    else for (int64_t n = 0; n < count; n++) write_one(to, i + n, x[n]);
}

// Which of LANES elements are kept: all bits of a lane, or none. An element's number decides, mixed
// with the seed by rounds of multiplication and shift, so that any thread finds the same.
static inline Bits NAME(kept)(const Drop *drop, int64_t number) {
    Bits x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = (uint32_t)lane;
    x += (uint32_t)number;
    x ^= (uint32_t)drop->seed ^ (uint32_t)((uint64_t)number >> 32) * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ (uint32_t)(drop->seed >> 32);
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (Bits)(x >= drop->least);
}

typedef struct {
    const Residual *of;
    const ResidualGradients *back;
    float *partial;  // [chunks, 2, D] of the norm's gradients
} NAME(Passing);

static void NAME(residual_rows)(void *data, int64_t first, int64_t stop) {
    const Residual *of = ((const NAME(Passing) *)data)->of;
    const Norm *norm = of->norm;
    int64_t width = of->width;
    int drops = of->drop.least > 0;
    Numbers whole = of->change.at ? of->sum : of->x;
    for (int64_t row = first; row < stop; row++) {
        int64_t at = row * width;
        Floats sums = {0}, squares = {0};
        if (of->change.at) {
            for (int64_t i = at; i < at + width; i += LANES) {
                Floats x = NAME(take)(of->change, i);
                if (drops) x = (Floats)((Bits)(x * of->drop.scale) & NAME(kept)(&of->drop, i));
                x += NAME(take)(of->x, i);
                NAME(put)(of->sum, i, x);
                sums += x;
            }
        } else {
            for (int64_t i = at; i < at + width; i += LANES) sums += NAME(take)(of->x, i);
        }
        if (!norm) continue;
        float mean = norm->bias ? NAME(sum)(sums) / (float)width : 0.0f;
        for (int64_t i = at; i < at + width; i += LANES) {
            Floats apart = NAME(take)(whole, i) - mean;
            squares += apart * apart;
        }
        float factor = 1.0f / sqrtf(NAME(sum)(squares) / (float)width + norm->epsilon);
        of->statistics[2 * row] = mean;
        of->statistics[2 * row + 1] = factor;
        for (int64_t i = 0; i < width; i += LANES) {
            Floats y = (NAME(take)(whole, at + i) - mean) * factor * NAME(load)(norm->weight + i);
            if (norm->bias) y += NAME(load)(norm->bias + i);
            NAME(put)(of->y, at + i, y);
        }
    }
}

// Of sum and y their gradients, of x and change the gradients that are looked for.
static void NAME(residual_chunks)(void *data, int64_t first_chunk, int64_t stop_chunk) {
    const NAME(Passing) *given = data;
    const Residual *of = given->of;
    const ResidualGradients *back = given->back;
    const Norm *norm = of->norm;
    Numbers whole = of->change.at ? of->sum : of->x;
    int64_t width = of->width;
    int drops = of->drop.least > 0;
    for (int64_t chunk = first_chunk; chunk < stop_chunk; chunk++) {
        int64_t first = of->rows * chunk / CHUNKS, stop = of->rows * (chunk + 1) / CHUNKS;
        float *for_weight = given->partial + 2 * chunk * width, *for_bias = for_weight + width;
        if (norm) memset(for_weight, 0, 2 * (size_t)width * sizeof(float));
        for (int64_t row = first; row < stop; row++) {
            int64_t at = row * width;
            float mean = 0.0f, factor = 0.0f, along = 0.0f, level = 0.0f;
            if (norm) {
                mean = of->statistics[2 * row];
                factor = of->statistics[2 * row + 1];
                Floats alongs = {0}, levels = {0};
                for (int64_t i = 0; i < width; i += LANES) {
                    Floats unit = (NAME(take)(whole, at + i) - mean) * factor;
                    Floats dy = NAME(take)(back->y, at + i);
                    NAME(store)(for_weight + i, NAME(load)(for_weight + i) + dy * unit);
                    NAME(store)(for_bias + i, NAME(load)(for_bias + i) + dy);
                    dy *= NAME(load)(norm->weight + i);
                    alongs += dy * unit;
                    levels += dy;
                }
                along = NAME(sum)(alongs) / (float)width;
                if (norm->bias) level = NAME(sum)(levels) / (float)width;
            }
            for (int64_t i = 0; i < width; i += LANES) {
                Floats d = {0};
                if (norm) {
                    Floats unit = (NAME(take)(whole, at + i) - mean) * factor;
                    Floats dy = NAME(take)(back->y, at + i) * NAME(load)(norm->weight + i);
                    d = (dy - level - unit * along) * factor;
                }
                if (back->sum.at) d += NAME(take)(back->sum, at + i);
                if (back->x.at) NAME(put)(back->x, at + i, d);
                if (!back->change.at) continue;
                if (drops)
                    d = (Floats)((Bits)(d * of->drop.scale) & NAME(kept)(&of->drop, at + i));
                NAME(put)(back->change, at + i, d);
            }
        }
    }
}

static void NAME(residual)(const Residual *of) {
    NAME(Passing) given = {of, 0, 0};
    share(NAME(residual_rows), &given, of->rows, 1 + 8192 / of->width);
}

static void NAME(residual_back)(const Residual *of, const ResidualGradients *back,
                                float *partial) {
    NAME(Passing) given = {of, back, partial};
    share(NAME(residual_chunks), &given, CHUNKS, 1 + 8192 * CHUNKS / (of->rows * of->width + 1));
    if (!of->norm) return;
    for (int64_t i = 0; i < of->width; i++) {
        float for_weight = 0.0f, for_bias = 0.0f;
        for (int64_t chunk = 0; chunk < CHUNKS; chunk++) {
            for_weight += partial[2 * chunk * of->width + i];
            for_bias += partial[(2 * chunk + 1) * of->width + i];
        }
        back->weight[i] = for_weight;
        if (back->bias) back->bias[i] = for_bias;
    }
}
