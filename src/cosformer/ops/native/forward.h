/* Forward passes. Included once per instruction set, after pack.h. */

/* One sequence of one key head: where its rows start and how many there are. */
typedef struct {
    long b, hk, row, n, s;
} head_t;

static head_t head_at(const call_t *call, long index) { /* index over sequences, batch, key heads */
    long sequence = index / (call->B * call->Hk), head = index % (call->B * call->Hk);
    head_t at = {.b = head / call->Hk, .hk = head % call->Hk, .n = call->N, .s = call->S};
    if (call->cu) {
        at.row = call->cu[sequence];
        at.n = at.s = call->cu[sequence + 1] - at.row;
    }
    return at;
}

/* Keys and values of one chunk. */
typedef struct {
    float *x, *phi, *cosines; /* ReLU'd rows, features as rows, angles */
    float *xt;                /* rows transposed: [chunk / 16][D][16] */
    float *vp;                /* values as panels [ne][chunk][16], where they cannot be read in place */
    const float *v;           /* the values */
    long v_panel, v_row;      /* floats from panel to panel, and from row to row */
    float *z, *zc;            /* sum of the features before this chunk, and of this chunk */
    float *room;              /* of a shift */
    angles_t at;
} keys_t;

static keys_t cut_keys(const plan_t *plan, arena_t *arena) {
    long rows = plan->chunk + 16;
    keys_t k;
    k.x = cut(arena, rows * plan->ldx), k.phi = cut(arena, rows * plan->ldf), k.cosines = cut(arena, ANGLES);
    k.xt = cut(arena, plan->chunk * plan->Dp), k.vp = cut(arena, plan->chunk * plan->Ep);
    k.z = cut(arena, plan->ldf), k.zc = cut(arena, plan->ldf), k.room = cut(arena, 2 * plan->Dp);
    return k;
}

static void clear_keys(const plan_t *plan, keys_t *k, const float *z) {
    memset(k->z, 0, 4 * (size_t)plan->ldf);
    if (z) memcpy(k->z, z, 4 * (size_t)plan->F);
}

/* Values as they lie, when whole aligned vectors make up their rows, and few enough rows share a place in the cache. */
static int readable_in_place(const plan_t *plan, rows_t v, const uint8_t *mask) {
    return plan->call->dtype == F32 && plan->E % 16 == 0 && !mask && ((uintptr_t)v.data | (uintptr_t)v.stride) % sizeof(vec) == 0 &&
           v.stride <= IN_PLACE_BYTES;
}

static void load_keys(const plan_t *plan, keys_t *k, head_t at, long first, long n, long e0, long e1) {
    const call_t *call = plan->call;
    const uint8_t *mask = call->mask ? call->mask + at.b * call->S + first : NULL;
    k->at = angles(k->cosines, plan->k_turn, call->k_first + first, call->k_len, n);
    load_features(plan, k->x, k->phi, rows_of(plan, call->k, call->ks, at.b, at.hk, at.row + first), mask,
                  key_factors(&plan->decay, at.hk), k->at, n);
    rows_t v = rows_of(plan, call->v, call->vs, at.b, at.hk, at.row + first);
    if (readable_in_place(plan, v, mask)) {
        k->v = (const float *)v.data + e0 * 16, k->v_panel = 16, k->v_row = v.stride / 4;
    } else {
        load_panels(plan, k->vp, v, mask, e0, e1, n);
        k->v = k->vp, k->v_panel = plan->chunk * 16, k->v_row = 16;
    }
    sum_rows(k->zc, k->phi, plan->ldf, plan->F, n);
}

/* The chunk joins the state; the keys after it are fetched meanwhile. */
static void absorb_keys(const plan_t *plan, keys_t *k, float *state, head_t at, long first, long n, long e0, long e1) {
    const call_t *call = plan->call;
    rows_t key = rows_of(plan, call->k, call->ks, at.b, at.hk, at.row + first + n);
    rows_t value = rows_of(plan, call->v, call->vs, at.b, at.hk, at.row + first + n);
    accumulate(state, plan->Fr * 16, plan->F, e1 - e0, k->phi, plan->ldf, k->v, k->v_panel, k->v_row, n,
               ahead_of(plan, key, value, least(plan->chunk, at.s - first - n)));
    for (long i = 0; i < plan->F; i++) k->z[i] += k->zc[i];
}

/* Queries of one chunk. */
typedef struct {
    float *x, *phi, *cosines, *weights, *inverse, *out;
    angles_t at;
} queries_t;

static queries_t cut_queries(const plan_t *plan, arena_t *arena) {
    long rows = plan->chunk + 16;
    queries_t q;
    q.x = cut(arena, rows * plan->ldx), q.phi = cut(arena, rows * plan->ldf), q.cosines = cut(arena, ANGLES);
    q.weights = cut(arena, rows * plan->chunk), q.inverse = cut(arena, rows), q.out = cut(arena, rows * plan->lde);
    return q;
}

/* n queries from `first` of head h: the state (NULL: nothing yet), and in the causal case the keys at the same positions. */
static void attend(const plan_t *plan, queries_t *q, const keys_t *k, const float *state, head_t at, long h, long first, long n,
                   long e0, long e1) {
    const call_t *call = plan->call;
    q->at = angles(q->cosines, plan->q_turn, call->q_first + first, call->q_len, n);
    rows_t from = rows_of(plan, call->q, call->qs, at.b, h, at.row + first);
    load_features(plan, q->x, q->phi, from, NULL, query_factors(&plan->decay, at.hk), q->at, n);
    if (call->causal)
        triangle(q->weights, plan->chunk, n, 0, q->x, plan->ldx, k->xt, plan->Dp * 16, plan->D, near_of(plan));
    long row = (at.b * call->H + h) * call->N + at.row + first;
    for (long r = 0; r < n; r++) {
        float total = call->sums ? call->sums_den[row + r] : 0;
        const float *phi = q->phi + r * plan->ldf, *weights = q->weights + r * plan->chunk;
        vec parts[2] = {};
        long i = 0;
        for (; i + 2 * WIDTH <= plan->F; i += 2 * WIDTH)
            for (int l = 0; l < 2; l++) parts[l] += load(phi + i + l * WIDTH) * load(k->z + i + l * WIDTH);
        for (; i < plan->F; i++) total += phi[i] * k->z[i];
        if (call->causal)
            for (long c = 0; c <= r; c += 16)
                for (int l = 0; l < LANES; l++) parts[l % 2] += load(weights + c + l * WIDTH);
        q->inverse[r] = total + sum(parts[0] + parts[1]);
    }
    if (e0 == 0) memcpy(call->den + row, q->inverse, 4 * (size_t)n);
    invert(call, q->inverse, n);
    rows_t out = out_rows(call, at.b, h, at.row + first);
    term_t terms[2] = {{q->phi, plan->ldf, state, plan->Fr * 16, 16, plan->F, FULL},
                       {q->weights, plan->chunk, k->v, k->v_panel, k->v_row, n, LOWER}};
    int direct = plan->E % 16 == 0; /* whole vectors, straight into the tensor */
    int from_state = state != NULL, inside = call->causal != 0, count = from_state + inside;
    rows_t next = rows_of(plan, call->q, call->qs, at.b, h, at.row + first + n);
    ahead_t ahead = ahead_of(plan, next, (rows_t){0}, least(plan->chunk, at.n - first - n));
    long until = least(plan->E, e1 * 16);
    target_t to = direct ? target_of(out, e0, call->out_dtype) : (target_t){.data = (char *)q->out, .ld = plan->lde};
    if (call->sums)
        add_sums(&to, direct, rows_as(F32, (const char *)call->sums, call->ss, at.b, h, at.row + first), e0 * 16, until, n);
    to.scale = q->inverse;
    combine(to, n, e1 - e0, terms + !from_state, count, ahead);
    if (!direct) store_rows(out, call->out_dtype, q->out, plan->lde, e0 * 16, until, n);
}

static void write_state(const plan_t *plan, const float *state, const float *z, head_t at, long e0, long e1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk;
    if (call->cu) return; /* packed sequences leave no state */
    store_state(plan, call->kv_next + head * plan->F * plan->E, state, e0, e1);
    if (e0 == 0) memcpy(call->z_next + head * plan->F, z, 4 * (size_t)plan->F);
}

/* How the work of one call is cut: value channels (panels) of one head into blocks, rows into blocks. Every element of the
 * results is computed in the same order whatever the cut, so thread counts do not change a bit. */
typedef struct {
    const plan_t *plan;
    long heads, blocks, row_blocks; /* heads: over sequences, batch and key heads */
    char *shared;                   /* states of all heads, for passes in two phases */
    size_t shared_head;
} job_t;

INLINE long block_start(long total, long blocks, long i) { return total * i / blocks; }

/* With decay, the state as it is seen from position `to`, `distance` later. */
static void shift_keys(const plan_t *plan, keys_t *k, float *state, head_t at, long to, long distance, long e0, long e1) {
    const call_t *call = plan->call;
    if (!plan->decay.block || !distance) return;
    shift_state(plan, state, k->z, e1 - e0, shift_by(&plan->decay, call, at.hk, distance, k->room), call->k_first + to);
}

static void causal_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *plan = job->plan;
    const call_t *call = plan->call;
    head_t at = head_at(call, task / job->blocks);
    long e0 = block_start(plan->ne, job->blocks, task % job->blocks);
    long e1 = block_start(plan->ne, job->blocks, task % job->blocks + 1);
    arena_t arena = {.block = scratch};
    keys_t k = cut_keys(plan, &arena);
    queries_t q = cut_queries(plan, &arena);
    float *state = cut(&arena, plan->ne * plan->Fr * 16);
    long head = at.b * call->Hk + at.hk, before = at.s - at.n; /* keys ahead of the first query */
    long middle = plan->chunk / 2; /* of a chunk: where the state is seen from */
    load_state(plan, state, call->kv ? call->kv + head * plan->F * plan->E : NULL, e0, e1);
    clear_keys(plan, &k, call->z ? call->z + head * plan->F : NULL);
    if (at.s && call->kv) shift_keys(plan, &k, state, at, middle, middle + 1, e0, e1);
    for (long first = 0, n; first < at.s; first += n) {
        n = least(plan->chunk, (first < before ? before : at.s) - first);
        load_keys(plan, &k, at, first, n, e0, e1);
        if (first >= before) {
            transpose(k.xt, plan->Dp * 16, k.x, plan->ldx, n, plan->D);
            for (long g = 0; g < plan->groups; g++)
                attend(plan, &q, &k, first || call->kv ? state : NULL, at, at.hk * plan->groups + g, first - before, n, e0, e1);
        }
        absorb_keys(plan, &k, state, at, first, n, e0, e1);
        if (first + n < at.s) shift_keys(plan, &k, state, at, first + n + middle, n, e0, e1);
        else if (!call->cu) shift_keys(plan, &k, state, at, at.s - 1, n - 1 - middle, e0, e1);
    }
    write_state(plan, state, k.z, at, e0, e1);
}

/* Sum the keys of one head into panels e0 to e1 of the state. */
static void sum_keys(const plan_t *plan, keys_t *k, float *state, head_t at, long e0, long e1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk;
    load_state(plan, state, call->kv ? call->kv + head * plan->F * plan->E : NULL, e0, e1);
    clear_keys(plan, k, call->z ? call->z + head * plan->F : NULL);
    for (long first = 0; first < at.s; first += plan->chunk) {
        long n = least(plan->chunk, at.s - first);
        load_keys(plan, k, at, first, n, e0, e1);
        absorb_keys(plan, k, state, at, first, n, e0, e1);
    }
    write_state(plan, state, k->z, at, e0, e1);
}

/* All of one head at once. */
static void whole_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *plan = job->plan;
    head_t at = head_at(plan->call, task);
    arena_t arena = {.block = scratch};
    keys_t k = cut_keys(plan, &arena);
    queries_t q = cut_queries(plan, &arena);
    float *state = cut(&arena, plan->ne * plan->Fr * 16);
    sum_keys(plan, &k, state, at, 0, plan->ne);
    for (long g = 0; g < plan->groups; g++)
        for (long first = 0; first < at.n; first += plan->chunk)
            attend(plan, &q, &k, state, at, at.hk * plan->groups + g, first, least(plan->chunk, at.n - first), 0, plan->ne);
}

/* The same in two phases, when there are fewer heads than threads: blocks of channels, then blocks of rows. */
static void sum_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *plan = job->plan;
    long block = task % job->blocks, index = task / job->blocks;
    long e0 = block_start(plan->ne, job->blocks, block), e1 = block_start(plan->ne, job->blocks, block + 1);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    keys_t k = cut_keys(plan, &arena);
    float *z = cut(&kept, plan->ldf), *state = cut(&kept, plan->ne * plan->Fr * 16);
    sum_keys(plan, &k, state + e0 * plan->Fr * 16, head_at(plan->call, index), e0, e1);
    if (e0 == 0) memcpy(z, k.z, 4 * (size_t)plan->ldf);
}

static void rows_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *plan = job->plan;
    long block = task % job->row_blocks, index = task / job->row_blocks;
    long chunks = (plan->call->N + plan->chunk - 1) / plan->chunk;
    head_t at = head_at(plan->call, index);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    queries_t q = cut_queries(plan, &arena);
    keys_t k = {.z = cut(&kept, plan->ldf)};
    float *state = cut(&kept, plan->ne * plan->Fr * 16);
    for (long g = 0; g < plan->groups; g++)
        for (long c = block_start(chunks, job->row_blocks, block); c < block_start(chunks, job->row_blocks, block + 1); c++) {
            long first = c * plan->chunk, n = least(plan->chunk, at.n - first);
            attend(plan, &q, &k, state, at, at.hk * plan->groups + g, first, n, 0, plan->ne);
        }
}

/* Blocks of one head so that all threads have work, and no more than there are panels. */
static long blocks_for(const call_t *call, long heads, long panels) {
    long blocks = 1;
    while (blocks < panels && (heads * blocks) % call->threads && heads * blocks < 4 * call->threads) blocks++;
    return blocks;
}

static int run_forward(const plan_t *plan) {
    const call_t *call = plan->call;
    job_t job = {.plan = plan, .heads = call->B * call->Hk * call->sequences, .blocks = 1};
    arena_t arena = {0};
    cut_keys(plan, &arena), cut_queries(plan, &arena), cut(&arena, plan->ne * plan->Fr * 16);
    size_t scratch = arena.used;
    long fitting = round_up(plan->F * plan->Ep * 4, STATE_BYTES) / STATE_BYTES; /* blocks whose state stays in the cache */
    job.blocks = most(blocks_for(call, job.heads, plan->ne), call->causal ? least(fitting, plan->ne) : 1);
    if (call->causal) return run_tasks(causal_task, &job, job.heads * job.blocks, scratch, call->threads);
    if (job.blocks == 1 || call->cu) return run_tasks(whole_task, &job, job.heads, scratch, call->threads);
    job.row_blocks = least(4 * call->threads, (call->N + plan->chunk - 1) / plan->chunk);
    job.shared_head = (size_t)(plan->ldf + plan->ne * plan->Fr * 16) * 4;
    job.shared = take_block(job.shared_head * (size_t)job.heads);
    int failed = !job.shared || run_tasks(sum_task, &job, job.heads * job.blocks, scratch, call->threads) ||
                 run_tasks(rows_task, &job, job.heads * job.row_blocks, scratch, call->threads);
    give_block(job.shared);
    return failed;
}

static int forward(const call_t *call) {
    plan_t plan = make_plan(call, chunk_for(call));
    int failed = make_decay(call, plan.chunk, &plan.decay) || run_forward(&plan);
    give_block((char *)plan.decay.block);
    return failed;
}
