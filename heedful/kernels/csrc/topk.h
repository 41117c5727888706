// Log-sum-exp and the largest scores of long rows.

typedef struct {
    const float *scores;  // [rows, size]
    int64_t size, count;
    float *values;     // [rows, count]
    int64_t *indices;  // [rows, count]
    double *totals;    // [rows]
} RowsCall;

static void logsumexp_rows(void *data, int64_t first, int64_t stop) {
    const RowsCall *call = data;
    int64_t size = call->size, whole = size / LANES * LANES;
    for (int64_t row = first; row < stop; row++) {
        const float *scores = call->scores + row * size;
        Floats largest = set1(-INFINITY);
        for (int64_t i = 0; i < whole; i += LANES) largest = max_lanes(load(scores + i), largest);
        float top = reduce_max(largest);
        for (int64_t i = whole; i < size; i++) top = scores[i] > top ? scores[i] : top;
        Floats sums[2] = {{0}};  // one alone would wait for itself
        int64_t i = 0;
        for (; i + 2 * LANES <= whole; i += 2 * LANES) {
            sums[0] += exp_lanes(load(scores + i) - top);
            sums[1] += exp_lanes(load(scores + i + LANES) - top);
        }
        for (; i < whole; i += LANES) sums[0] += exp_lanes(load(scores + i) - top);
        float sum = reduce_add(sums[0] + sums[1]);
        for (; i < size; i++) sum += expf(scores[i] - top);
        call->totals[row] = (double)top + log((double)sum);
    }
}

static void logsumexp(const float *scores, int64_t rows, int64_t size, double *totals) {
    RowsCall call = {scores, size, 0, 0, 0, totals};
    parallel_for(logsumexp_rows, &call, rows, 1 + 30000 / size);
}

static void topk_rows(void *data, int64_t first, int64_t stop) {
    const RowsCall *call = data;
    int64_t size = call->size, count = call->count;
    for (int64_t row = first; row < stop; row++) {
        const float *scores = call->scores + row * size;
        float *values = call->values + row * count;
        int64_t *indices = call->indices + row * count, found = 0;
        float threshold = -INFINITY;  // what a score must exceed once `count` are found
        for (int64_t i = 0; i < size; i += LANES) {
            int64_t end = size - i < LANES ? size : i + LANES;
            if (found == count && end - i == LANES && !any_lane(load(scores + i) > set1(threshold)))
                continue;
            for (int64_t n = i; n < end; n++) {
                float score = scores[n];
                if (found == count && !(score > threshold)) continue;
                int64_t at = found < count ? found++ : count - 1;
                for (; at > 0 && score > values[at - 1]; at--) {
                    values[at] = values[at - 1];
                    indices[at] = indices[at - 1];
                }
                values[at] = score;
                indices[at] = n;
                if (found == count) threshold = values[count - 1];
            }
        }
    }
}

static void topk(const float *scores, int64_t rows, int64_t size, int64_t count, float *values,
                 int64_t *indices) {
    RowsCall call = {scores, size, count, values, indices, 0};
    parallel_for(topk_rows, &call, rows, 1 + 30000 / size);
}
