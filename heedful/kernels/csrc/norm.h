// Norms at inference; in training dropout, residual sum and norm in one pass over a row, and their
// gradients in another. Training reads and writes float32 or bfloat16 and computes in float32.

static void norm(const Norm *norm, const float *x, int64_t rows, int64_t width, float *y) {
    int64_t whole = width / LANES * LANES;
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        float mean = 0.0f;
        Floats sum = {0};
        if (norm->bias) {
            for (int64_t i = 0; i < whole; i += LANES) sum += load(x + i);
            mean = reduce_add(sum);
            for (int64_t i = whole; i < width; i++) mean += x[i];
            mean /= (float)width;
        }
        Floats squares = {0};
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats centered = load(x + i) - mean;
            squares += centered * centered;
        }
        float square = reduce_add(squares);
        for (int64_t i = whole; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
        float rstd = 1.0f / sqrtf(square / (float)width + norm->epsilon);
        for (int64_t i = 0; i < whole; i += LANES) {
            Floats z = (load(x + i) - mean) * rstd * load(norm->weight + i);
            if (norm->bias) z += load(norm->bias + i);
            store(y + i, z);
        }
        for (int64_t i = whole; i < width; i++)
            y[i] = (x[i] - mean) * rstd * norm->weight[i] + (norm->bias ? norm->bias[i] : 0.0f);
    }
}

// All bits of the lanes that dropout keeps. An element's number, mixed with the seed by rounds of
// multiplication and shift, decides: so every thread, and the backward pass, finds the same.
static inline Bits keep_mask(const Dropout *dropout, int64_t number) {
    Bits x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = (uint32_t)lane;
    x += (uint32_t)number;
    x ^= (uint32_t)dropout->seed ^ (uint32_t)((uint64_t)number >> 32) * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ (uint32_t)(dropout->seed >> 32);
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (Bits)(x >= dropout->threshold);
}

typedef struct {
    const ResidualNorm *args;
    const ResidualNormGrad *grad;
    float *partial;  // [GRAD_CHUNKS, 2, D]: gradients of the norm's weight and bias
} ResidualNormCall;

static void residual_norm_rows(void *data, int64_t first, int64_t stop) {
    const ResidualNorm *args = ((const ResidualNormCall *)data)->args;
    const Norm *norm = args->norm;
    int64_t width = args->width;
    int drops = args->dropout.threshold > 0;
    Array sum = args->branch.data ? args->sum : args->x;
    for (int64_t row = first; row < stop; row++) {
        int64_t at = row * width;
        Floats sums = {0}, squares = {0};
        if (args->branch.data) {
            for (int64_t i = at; i < at + width; i += LANES) {
                Floats x = load_array(args->branch, i);
                if (drops)
                    x = (Floats)((Bits)(x * args->dropout.scale) & keep_mask(&args->dropout, i));
                x += load_array(args->x, i);
                store_array(args->sum, i, x);
                sums += x;
            }
        } else {
            for (int64_t i = at; i < at + width; i += LANES) sums += load_array(args->x, i);
        }
        if (!norm) continue;
        float mean = norm->bias ? reduce_add(sums) / (float)width : 0.0f;
        for (int64_t i = at; i < at + width; i += LANES) {
            Floats centered = load_array(sum, i) - mean;
            squares += centered * centered;
        }
        float rstd = 1.0f / sqrtf(reduce_add(squares) / (float)width + norm->epsilon);
        args->stats[2 * row] = mean;
        args->stats[2 * row + 1] = rstd;
        for (int64_t i = 0; i < width; i += LANES) {
            Floats y = (load_array(sum, at + i) - mean) * rstd * load(norm->weight + i);
            if (norm->bias) y += load(norm->bias + i);
            store_array(args->y, at + i, y);
        }
    }
}

static void residual_norm_grad_chunks(void *data, int64_t first_chunk, int64_t stop_chunk) {
    const ResidualNormCall *call = data;
    const ResidualNorm *args = call->args;
    const ResidualNormGrad *grad = call->grad;
    const Norm *norm = args->norm;
    Array sum = args->branch.data ? args->sum : args->x;
    int64_t width = args->width;
    int drops = args->dropout.threshold > 0;
    for (int64_t chunk = first_chunk; chunk < stop_chunk; chunk++) {
        int64_t first = args->rows * chunk / GRAD_CHUNKS;
        int64_t stop = args->rows * (chunk + 1) / GRAD_CHUNKS;
        float *grad_weight = call->partial + 2 * chunk * width, *grad_bias = grad_weight + width;
        if (norm) memset(grad_weight, 0, 2 * (size_t)width * sizeof(float));
        for (int64_t row = first; row < stop; row++) {
            int64_t at = row * width;
            float mean = 0.0f, rstd = 0.0f, mean_dy_unit = 0.0f, mean_dy = 0.0f;
            if (norm) {
                mean = args->stats[2 * row];
                rstd = args->stats[2 * row + 1];
                Floats dy_units = {0}, dys = {0};
                for (int64_t i = 0; i < width; i += LANES) {
                    Floats unit = (load_array(sum, at + i) - mean) * rstd;
                    Floats dy = load_array(grad->y, at + i);
                    store(grad_weight + i, load(grad_weight + i) + dy * unit);
                    store(grad_bias + i, load(grad_bias + i) + dy);
                    dy *= load(norm->weight + i);
                    dy_units += dy * unit;
                    dys += dy;
                }
                mean_dy_unit = reduce_add(dy_units) / (float)width;
                if (norm->bias) mean_dy = reduce_add(dys) / (float)width;
            }
            for (int64_t i = 0; i < width; i += LANES) {
                Floats d = {0};
                if (norm) {
                    Floats unit = (load_array(sum, at + i) - mean) * rstd;
                    Floats dy = load_array(grad->y, at + i) * load(norm->weight + i);
                    d = (dy - mean_dy - unit * mean_dy_unit) * rstd;
                }
                if (grad->sum.data) d += load_array(grad->sum, at + i);
                if (grad->x.data) store_array(grad->x, at + i, d);
                if (!grad->branch.data) continue;
                if (drops)
                    d = (Floats)((Bits)(d * args->dropout.scale)
                                 & keep_mask(&args->dropout, at + i));
                store_array(grad->branch, at + i, d);
            }
        }
    }
}

static void residual_norm(const ResidualNorm *args) {
    ResidualNormCall call = {args, 0, 0};
    parallel_for(residual_norm_rows, &call, args->rows, 1 + 8192 / args->width);
}

static void residual_norm_backward(const ResidualNorm *args, const ResidualNormGrad *grad,
                                   float *partial) {
    ResidualNormCall call = {args, grad, partial};
    int64_t width = args->width;
    parallel_for(residual_norm_grad_chunks, &call, GRAD_CHUNKS,
                 1 + 8192 * GRAD_CHUNKS / (args->rows * width + 1));
    if (!args->norm) return;
    for (int64_t i = 0; i < width; i++) {
        float grad_weight = 0.0f, grad_bias = 0.0f;
        for (int64_t chunk = 0; chunk < GRAD_CHUNKS; chunk++) {
            grad_weight += partial[2 * chunk * width + i];
            grad_bias += partial[(2 * chunk + 1) * width + i];
        }
        grad->weight[i] = grad_weight;
        if (grad->bias) grad->bias[i] = grad_bias;
    }
}
