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
    angles_t at;
} keys_t;

static keys_t cut_keys(const plan_t *p, arena_t *arena) {
    long rows = p->chunk + 16;
    keys_t k;
    k.x = cut(arena, rows * p->ldx), k.phi = cut(arena, rows * p->ldf), k.cosines = cut(arena, ANGLES);
    k.xt = cut(arena, p->chunk * p->Dp), k.vp = cut(arena, p->chunk * p->Ep);
    k.z = cut(arena, p->ldf), k.zc = cut(arena, p->ldf);
    return k;
}

static void clear_keys(const plan_t *p, keys_t *k, const float *z) {
    memset(k->z, 0, 4 * (size_t)p->ldf);
    if (z) memcpy(k->z, z, 4 * (size_t)p->F);
}

/* Values as they lie, when whole aligned vectors make up their rows, and few enough rows share a place in the cache. */
static int readable_in_place(const plan_t *p, rows_t v, const uint8_t *mask) {
    return p->call->dtype == F32 && p->E % 16 == 0 && !mask && ((uintptr_t)v.data | (uintptr_t)v.stride) % sizeof(vec) == 0 &&
           v.stride <= IN_PLACE_BYTES;
}

static void load_keys(const plan_t *p, keys_t *k, head_t at, long first, long n, long e0, long e1) {
    const call_t *call = p->call;
    const uint8_t *mask = call->mask ? call->mask + at.b * call->S + first : NULL;
    k->at = angles(k->cosines, p->k_turn, call->k_first + first, call->k_len, n);
    load_features(p, k->x, k->phi, rows_of(p, call->k, call->ks, at.b, at.hk, at.row + first), mask, k->at, n);
    rows_t v = rows_of(p, call->v, call->vs, at.b, at.hk, at.row + first);
    if (readable_in_place(p, v, mask)) {
        k->v = (const float *)v.data + e0 * 16, k->v_panel = 16, k->v_row = v.stride / 4;
    } else {
        load_panels(p, k->vp, v, mask, e0, e1, n);
        k->v = k->vp, k->v_panel = p->chunk * 16, k->v_row = 16;
    }
    sum_rows(k->zc, k->phi, p->ldf, p->F, n);
}

/* The chunk joins the state; the keys after it are fetched meanwhile. */
static void absorb_keys(const plan_t *p, keys_t *k, float *state, head_t at, long first, long n, long e0, long e1) {
    const call_t *call = p->call;
    rows_t key = rows_of(p, call->k, call->ks, at.b, at.hk, at.row + first + n);
    rows_t value = rows_of(p, call->v, call->vs, at.b, at.hk, at.row + first + n);
    accumulate(state, p->Fr * 16, p->F, e1 - e0, k->phi, p->ldf, k->v, k->v_panel, k->v_row, n,
               ahead_of(p, key, value, least(p->chunk, at.s - first - n)));
    for (long i = 0; i < p->F; i++) k->z[i] += k->zc[i];
}

/* Queries of one chunk. */
typedef struct {
    float *x, *phi, *cosines, *weights, *inverse, *out;
    angles_t at;
} queries_t;

static queries_t cut_queries(const plan_t *p, arena_t *arena) {
    long rows = p->chunk + 16;
    queries_t q;
    q.x = cut(arena, rows * p->ldx), q.phi = cut(arena, rows * p->ldf), q.cosines = cut(arena, ANGLES);
    q.weights = cut(arena, rows * p->chunk), q.inverse = cut(arena, rows), q.out = cut(arena, rows * p->lde);
    return q;
}

/* n queries from `first` of head h: the state (NULL: nothing yet), and in the causal case the keys at the same positions. */
static void attend(const plan_t *p, queries_t *q, const keys_t *k, const float *state, head_t at, long h, long first, long n,
                   long e0, long e1) {
    const call_t *call = p->call;
    q->at = angles(q->cosines, p->q_turn, call->q_first + first, call->q_len, n);
    rows_t from = rows_of(p, call->q, call->qs, at.b, h, at.row + first);
    load_features(p, q->x, q->phi, from, NULL, q->at, n);
    if (call->causal)
        triangle(q->weights, p->chunk, n, 0, q->x, p->ldx, k->xt, p->Dp * 16, p->D, near_of(p));
    float *den = call->den + (at.b * call->H + h) * call->N + at.row + first;
    for (long r = 0; r < n; r++) {
        float total = 0;
        const float *phi = q->phi + r * p->ldf, *weights = q->weights + r * p->chunk;
        vec parts[2] = {};
        long i = 0;
        for (; i + 2 * WIDTH <= p->F; i += 2 * WIDTH)
            for (int l = 0; l < 2; l++) parts[l] += load(phi + i + l * WIDTH) * load(k->z + i + l * WIDTH);
        for (; i < p->F; i++) total += phi[i] * k->z[i];
        if (call->causal)
            for (long c = 0; c <= r; c += 16)
                for (int l = 0; l < LANES; l++) parts[l % 2] += load(weights + c + l * WIDTH);
        q->inverse[r] = total + sum(parts[0] + parts[1]);
    }
    if (e0 == 0) memcpy(den, q->inverse, 4 * (size_t)n);
    invert(call, q->inverse, n);
    rows_t out = own_rows(p, call->out, at.b * call->H + h, call->N, p->E, at.row + first);
    term_t terms[2] = {{q->phi, p->ldf, state, p->Fr * 16, 16, p->F, FULL},
                       {q->weights, p->chunk, k->v, k->v_panel, k->v_row, n, LOWER}};
    int direct = p->E % 16 == 0; /* whole vectors, straight into the tensor */
    int from_state = state != NULL, inside = call->causal != 0, count = from_state + inside;
    rows_t next = rows_of(p, call->q, call->qs, at.b, h, at.row + first + n);
    ahead_t ahead = ahead_of(p, next, (rows_t){0}, least(p->chunk, at.n - first - n));
    target_t to = direct ? target_of(p, out, e0) : (target_t){.data = (char *)q->out, .ld = p->lde};
    to.scale = q->inverse;
    combine(to, n, e1 - e0, terms + !from_state, count, ahead);
    if (!direct) store_rows(p, out, q->out, p->lde, e0 * 16, least(p->E, e1 * 16), n);
}

static void write_state(const plan_t *p, const float *state, const float *z, head_t at, long e0, long e1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk;
    if (call->cu) return; /* packed sequences leave no state */
    store_state(p, call->kv_next + head * p->F * p->E, state, e0, e1);
    if (e0 == 0) memcpy(call->z_next + head * p->F, z, 4 * (size_t)p->F);
}

/* How the work of one call is cut: value channels (panels) of one head into blocks, rows into blocks. Every element of the
 * results is computed in the same order whatever the cut, so thread counts do not change a bit. */
typedef struct {
    const plan_t *p;
    long heads, blocks, row_blocks; /* heads: over sequences, batch and key heads */
    char *shared;                   /* states of all heads, for passes in two phases */
    size_t shared_head;
} job_t;

INLINE long block_start(long total, long blocks, long i) { return total * i / blocks; }

static void causal_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *p = job->p;
    const call_t *call = p->call;
    head_t at = head_at(call, task / job->blocks);
    long e0 = block_start(p->ne, job->blocks, task % job->blocks);
    long e1 = block_start(p->ne, job->blocks, task % job->blocks + 1);
    arena_t arena = {.block = scratch};
    keys_t k = cut_keys(p, &arena);
    queries_t q = cut_queries(p, &arena);
    float *state = cut(&arena, p->ne * p->Fr * 16);
    long head = at.b * call->Hk + at.hk, before = at.s - at.n; /* keys ahead of the first query */
    load_state(p, state, call->kv ? call->kv + head * p->F * p->E : NULL, e0, e1);
    clear_keys(p, &k, call->z ? call->z + head * p->F : NULL);
    for (long first = 0, n; first < at.s; first += n) {
        n = least(p->chunk, (first < before ? before : at.s) - first);
        load_keys(p, &k, at, first, n, e0, e1);
        if (first >= before) {
            transpose(k.xt, p->Dp * 16, k.x, p->ldx, n, p->D);
            for (long g = 0; g < p->groups; g++)
                attend(p, &q, &k, first || call->kv ? state : NULL, at, at.hk * p->groups + g, first - before, n, e0, e1);
        }
        absorb_keys(p, &k, state, at, first, n, e0, e1);
    }
    write_state(p, state, k.z, at, e0, e1);
}

/* Sum the keys of one head into panels e0 to e1 of the state. */
static void sum_keys(const plan_t *p, keys_t *k, float *state, head_t at, long e0, long e1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk;
    load_state(p, state, call->kv ? call->kv + head * p->F * p->E : NULL, e0, e1);
    clear_keys(p, k, call->z ? call->z + head * p->F : NULL);
    for (long first = 0; first < at.s; first += p->chunk) {
        long n = least(p->chunk, at.s - first);
        load_keys(p, k, at, first, n, e0, e1);
        absorb_keys(p, k, state, at, first, n, e0, e1);
    }
    write_state(p, state, k->z, at, e0, e1);
}

/* All of one head at once. */
static void whole_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *p = job->p;
    head_t at = head_at(p->call, task);
    arena_t arena = {.block = scratch};
    keys_t k = cut_keys(p, &arena);
    queries_t q = cut_queries(p, &arena);
    float *state = cut(&arena, p->ne * p->Fr * 16);
    sum_keys(p, &k, state, at, 0, p->ne);
    for (long g = 0; g < p->groups; g++)
        for (long first = 0; first < at.n; first += p->chunk)
            attend(p, &q, &k, state, at, at.hk * p->groups + g, first, least(p->chunk, at.n - first), 0, p->ne);
}

/* The same in two phases, when there are fewer heads than threads: blocks of channels, then blocks of rows. */
static void sum_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *p = job->p;
    long block = task % job->blocks, index = task / job->blocks;
    long e0 = block_start(p->ne, job->blocks, block), e1 = block_start(p->ne, job->blocks, block + 1);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    keys_t k = cut_keys(p, &arena);
    float *z = cut(&kept, p->ldf), *state = cut(&kept, p->ne * p->Fr * 16);
    sum_keys(p, &k, state + e0 * p->Fr * 16, head_at(p->call, index), e0, e1);
    if (e0 == 0) memcpy(z, k.z, 4 * (size_t)p->ldf);
}

static void rows_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *p = job->p;
    long block = task % job->row_blocks, index = task / job->row_blocks, chunks = (p->call->N + p->chunk - 1) / p->chunk;
    head_t at = head_at(p->call, index);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    queries_t q = cut_queries(p, &arena);
    keys_t k = {.z = cut(&kept, p->ldf)};
    float *state = cut(&kept, p->ne * p->Fr * 16);
    for (long g = 0; g < p->groups; g++)
        for (long c = block_start(chunks, job->row_blocks, block); c < block_start(chunks, job->row_blocks, block + 1); c++)
            attend(p, &q, &k, state, at, at.hk * p->groups + g, c * p->chunk, least(p->chunk, at.n - c * p->chunk), 0, p->ne);
}

/* Blocks of one head so that all threads have work, and no more than there are panels. */
static long blocks_for(const call_t *call, long heads, long panels) {
    long blocks = 1;
    while (blocks < panels && (heads * blocks) % call->threads && heads * blocks < 4 * call->threads) blocks++;
    return blocks;
}

static int forward(const call_t *call) {
    plan_t plan = make_plan(call, chunk_for(call));
    job_t job = {.p = &plan, .heads = call->B * call->Hk * call->sequences, .blocks = 1};
    arena_t arena = {0};
    cut_keys(&plan, &arena), cut_queries(&plan, &arena), cut(&arena, plan.ne * plan.Fr * 16);
    size_t scratch = arena.used;
    long fitting = round_up(plan.F * plan.Ep * 4, STATE_BYTES) / STATE_BYTES; /* blocks whose state stays in the cache */
    job.blocks = most(blocks_for(call, job.heads, plan.ne), call->causal ? least(fitting, plan.ne) : 1);
    if (call->causal) return run_tasks(causal_task, &job, job.heads * job.blocks, scratch, call->threads);
    if (job.blocks == 1 || call->cu) return run_tasks(whole_task, &job, job.heads, scratch, call->threads);
    job.row_blocks = least(4 * call->threads, (call->N + plan.chunk - 1) / plan.chunk);
    job.shared_head = (size_t)(plan.ldf + plan.ne * plan.Fr * 16) * 4;
    job.shared = take_block(job.shared_head * (size_t)job.heads);
    int failed = !job.shared || run_tasks(sum_task, &job, job.heads * job.blocks, scratch, call->threads) ||
                 run_tasks(rows_task, &job, job.heads * job.row_blocks, scratch, call->threads);
    give_block(job.shared);
    return failed;
}
