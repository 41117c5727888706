// A sub-layer of a block while it is trained: two linear maps with attention or an activation between
// them, dropout, the sum with the stream and its norm; and the gradients of all that. Each is one
// call: where matrices are small, to come and go between languages for every step of it takes longer
// than the arithmetic. Included once, by `kernels.c`: the steps themselves know the processor.

// A linear map from K to N.
typedef struct {
    const float *weight;           // [N, K]
    const float *bias;             // [N], or null
    float *for_weight, *for_bias;  // their gradients, or null where nobody wants them
    int64_t in_width, out_width;   // K, N
} LearnedMap;

typedef struct {
    LearnedMap first, second;
    // Of R rows, which stand for B sequences where there is attention.
    Numbers x;    // [R, D], the stream
    void *read;   // [R, K] of the first map, of the type that is multiplied
    Numbers sum;  // [R, D], of the stream and what is found here
    Numbers y;    // [R, D], the norm of the sum, or null where there is none
    const float *norm_weight, *norm_bias;
    void *kept;   // from the pass to that of the gradients: as much as `heedful_sublayer_kept` says
    void *room;   // for what passes
    // Gradients: the first two come, of which one may be null; the others are looked for, or null.
    Numbers for_sum, for_y;
    Numbers for_x;
    Numbers for_read;  // the same memory as `for_x` where `read` is made of x; float32 then
    float *for_norm_weight, *for_norm_bias;
    // [M, 2 · K · E] keys and values that are attended to, of the type that is multiplied, and their
    // gradient, which is looked for; null where rows attend to each other
    void *memory, *for_memory;
    const uint8_t *visible;  // see Attended
    int64_t visible_batch, visible_head, visible_query;
    const int64_t *query_starts, *key_starts;
    int64_t rows, memory_rows;  // R, M
    int64_t batch, num_queries, num_keys;
    int64_t heads;  // of attention; 0 where an activation stands between the maps
    int64_t key_heads;
    uint64_t seed;            // of dropout, see Drop
    uint32_t least;
    float kept_scale;
    float epsilon;            // of the norm
    float score_scale;        // of attention's scores
    int32_t halves;           // whether bfloat16 numbers are multiplied
    int32_t activation;
} Sublayer;

// What lies in `kept`.
typedef struct {
    void *between;      // [R, N of the first map]: queries, keys and values, or what was activated
    void *slopes;       // [R, N]: of an activation that is no rectifier
    void *mixed;        // [R, K of the second map]: what heads found
    float *seen;        // statistics of attention
    float *statistics;  // of the norm
} Kept;

static Kept lay_kept(Workspace *space, const Sublayer *of) {
    int64_t size = of->halves ? 2 : 4, between = of->rows * of->first.out_width * size;
    int has_slopes = !of->heads && of->activation != RELU;
    Kept kept;
    kept.between = take(space, between);
    kept.slopes = has_slopes ? take(space, between) : 0;
    kept.mixed = take(space, of->heads ? of->rows * of->second.in_width * size : 0);
    kept.seen = take(space, of->batch * of->heads * 2 * of->num_queries * 4);
    kept.statistics = take(space, of->norm_weight ? of->rows * 2 * 4 : 0);
    return kept;
}

// What lies in `room`.
typedef struct {
    void *change;      // [R, D]: what is added to the stream, or its gradient
    void *for_middle;  // [R, K of the second map]: gradient of what that map reads
    void *for_between; // [R, N of the first map]
    float *partial;    // gradients of the norm, see `heedful_residual_back`
    uint32_t *panels;  // of a weight
    float *step;       // for what is done at the moment
} Passing;

// Heads of rows `row` numbers long that begin at `at`, of sequences of so many rows.
static Rows heads_at(const Sublayer *of, void *at, int64_t number, int64_t row, int64_t length) {
    int64_t width = of->second.in_width / of->heads, size = of->halves ? 2 : 4;
    void *first = at ? (char *)at + number * width * size : 0;
    return (Rows){{first, of->halves}, length * row, width, row};
}

// Attention of what the first map gives: queries, and where there is no memory, keys and values too.
static Attended attention_of(const Sublayer *of, void *between, void *memory, void *mixed) {
    int64_t row = of->first.out_width, queries = of->num_queries, first_key = of->heads;
    void *keys = between;
    int64_t key_row = row, length = queries;
    if (of->memory) {
        keys = memory, first_key = 0, length = of->num_keys;
        key_row = 2 * of->key_heads * (of->second.in_width / of->heads);
    }
    return (Attended){
        .q = heads_at(of, between, 0, row, queries),
        .k = heads_at(of, keys, first_key, key_row, length),
        .v = heads_at(of, keys, first_key + of->key_heads, key_row, length),
        .out = heads_at(of, mixed, 0, of->second.in_width, queries),
        .visible = of->visible, .visible_batch = of->visible_batch,
        .visible_head = of->visible_head, .visible_query = of->visible_query,
        .query_starts = of->query_starts, .key_starts = of->key_starts, .batch = of->batch,
        .heads = of->heads, .key_heads = of->key_heads, .num_queries = queries,
        .num_keys = of->num_keys, .width = of->second.in_width / of->heads,
        .scale = of->score_scale,
    };
}

// Rows that belong to no sequence, which nobody computes, hold zeros.
static void clear_rest(const Sublayer *of, const int64_t *starts, int64_t rows, int64_t width,
                       void *of_rows) {
    if (!starts) return;
    int64_t row = width * (of->halves ? 2 : 4), used = starts[of->batch];
    memset((char *)of_rows + used * row, 0, (size_t)((rows - used) * row));
}

// Numbers of room for a map's product, or for those of its gradients.
static int64_t map_room(const Sublayer *of, const LearnedMap *map, int back) {
    int64_t in = map->in_width, out = map->out_width;
    int halves = of->halves;
    if (!back) return heedful_product_room(of->rows, in, out, halves, halves, 0);
    return most(heedful_product_room(of->rows, out, in, halves, halves, 0),
                heedful_product_room(out, of->rows, in, halves, 0, 1));
}

static int64_t map_panels(const Sublayer *of, const LearnedMap *map, int back) {
    return heedful_right_units(back ? map->out_width : map->in_width,
                               back ? map->in_width : map->out_width, of->halves);
}

static Passing lay_passing(Workspace *space, const Sublayer *of, int back) {
    const LearnedMap *first = &of->first, *second = &of->second;
    int64_t row = of->rows * (of->halves ? 2 : 4), width = second->out_width;
    int64_t step = most(map_room(of, first, back), map_room(of, second, back));
    if (of->heads) {
        Attended attention = attention_of(of, 0, of->memory, 0);
        step = most(step, heedful_attended_room(&attention));
    }
    Passing passing;
    passing.change = take(space, row * width);
    passing.for_middle = take(space, back ? row * second->in_width : 0);
    passing.for_between = take(space, back && of->heads ? row * first->out_width : 0);
    passing.partial = take(space, back ? 2 * CHUNKS * width * 4 : 0);
    passing.panels
        = take(space, 4 * most(map_panels(of, first, back), map_panels(of, second, back)));
    passing.step = take(space, step * 4);
    return passing;
}

// Bytes that are kept, and that a pass needs while it runs.
int64_t heedful_sublayer_kept(const Sublayer *of) {
    Workspace space = {.memory = 0};
    lay_kept(&space, of);
    return (int64_t)space.size;
}

int64_t heedful_sublayer_room(const Sublayer *of, int back) {
    Workspace space = {.memory = 0};
    lay_passing(&space, of, back);
    return (int64_t)space.size;
}

static void map_rows(const Sublayer *of, const LearnedMap *map, void *left, void *out,
                     int activation, void *slopes, Passing passing) {
    int64_t in = map->in_width;
    int halves = of->halves;
    heedful_lay_right((void *)map->weight, 0, 1, in, in, map->out_width, halves, passing.panels);
    heedful_product(out, halves, left, passing.panels, of->rows, in, map->out_width, halves,
                    map->bias, activation, slopes, halves, 0, 0, passing.step);
}

// Of the gradient of what a map gives, those of its parameters and, where there is room, of what it
// reads, which `slopes` and `gate` are for; added to what is there where `adds` is set.
static void map_back(const Sublayer *of, const LearnedMap *map, void *gradient, void *left,
                     Numbers for_left, void *slopes, void *gate, int adds, Passing passing) {
    int64_t in = map->in_width, out = map->out_width;
    int halves = of->halves;
    if (map->for_weight)
        heedful_turned_product(map->for_weight, gradient, left, out, of->rows, in, halves, 0,
                               map->for_bias, passing.step);
    if (!for_left.at) return;
    heedful_lay_right((void *)map->weight, 0, in, 1, out, in, halves, passing.panels);
    Production to = {
        .out = for_left, .gate = {gate, halves}, .slopes = {slopes, halves}, .rows = of->rows,
        .depth = out, .width = in, .halves = halves, .activation = NO_ACTIVATION, .adds = adds,
    };
    Matrix from = {{gradient, halves}, out, 1};
    CALL_PRODUCT(product, halves, (&to, from, passing.panels, passing.step));
}

// sum = x + dropout(second(between(first(read)))), and y = norm(sum).
void heedful_sublayer(const Sublayer *of) {
    Workspace keeping = {.memory = of->kept}, space = {.memory = of->room};
    Kept kept = lay_kept(&keeping, of);
    Passing passing = lay_passing(&space, of, 0);
    void *middle = of->heads ? kept.mixed : kept.between;
    map_rows(of, &of->first, of->read, kept.between, of->heads ? NO_ACTIVATION : of->activation,
             kept.slopes, passing);
    if (of->heads) {
        Attended attention = attention_of(of, kept.between, of->memory, kept.mixed);
        attention.statistics = kept.seen;
        attention.room = passing.step;
        clear_rest(of, of->query_starts, of->rows, of->second.in_width, kept.mixed);
        heedful_attended(&attention, 0);
    }
    map_rows(of, &of->second, middle, passing.change, NO_ACTIVATION, 0, passing);
    heedful_residual(of->rows, of->second.out_width, of->x.at, (int)of->x.is_half, passing.change,
                     of->halves, of->sum.at, of->y.at, (int)of->y.is_half, of->norm_weight,
                     of->norm_bias, of->epsilon, kept.statistics, (int64_t)of->seed, of->least,
                     of->kept_scale);
}

// All gradients, from those of the sum and of its norm.
void heedful_sublayer_back(const Sublayer *of) {
    Workspace keeping = {.memory = of->kept}, space = {.memory = of->room};
    Kept kept = lay_kept(&keeping, of);
    Passing passing = lay_passing(&space, of, 1);
    // What the gradient of the sum is already, where there is no norm, or will be.
    Numbers whole = of->for_y.at ? of->for_x : of->for_sum;
    int same = !of->least && whole.at && whole.is_half == of->halves;
    Numbers for_change = same ? whole : (Numbers){passing.change, of->halves};
    if (of->for_x.at || !same)
        heedful_residual_back(
            of->rows, of->second.out_width, of->for_sum.at, (int)of->for_sum.is_half, of->for_y.at,
            (int)of->for_y.is_half, of->sum.at, (int)of->sum.is_half,
            of->for_y.at ? of->norm_weight : 0, of->norm_bias, kept.statistics,
            (int64_t)of->seed, of->least, of->kept_scale, of->for_x.at, (int)of->for_x.is_half,
            same ? 0 : for_change.at, of->halves, of->for_norm_weight, of->for_norm_bias,
            passing.partial);
    Numbers for_middle = {passing.for_middle, of->halves};
    if (of->heads) {
        map_back(of, &of->second, for_change.at, kept.mixed, for_middle, 0, 0, 0, passing);
        void *back = passing.for_between;
        Attended attention
            = attention_of(of, kept.between, of->memory, passing.for_middle);
        Attended gradients = attention_of(of, back, of->for_memory, 0);
        attention.for_q = gradients.q, attention.for_k = gradients.k;
        attention.for_v = gradients.v;
        attention.statistics = kept.seen;
        attention.room = passing.step;
        clear_rest(of, of->query_starts, of->rows, of->first.out_width, back);
        if (of->memory)
            clear_rest(of, of->key_starts, of->memory_rows, gradients.k.row, of->for_memory);
        heedful_attended(&attention, 1);
    } else {
        void *gate = of->activation == RELU ? kept.between : 0;
        map_back(of, &of->second, for_change.at, kept.between, for_middle, kept.slopes, gate, 0,
                 passing);
    }
    int adds = of->for_read.at && of->for_read.at == of->for_x.at;
    map_back(of, &of->first, of->heads ? passing.for_between : passing.for_middle, of->read,
             of->for_read, 0, 0, adds, passing);
}
