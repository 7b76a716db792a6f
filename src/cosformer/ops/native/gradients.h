/* Which backward pass runs where. Included once per instruction set, after backward.h. */

typedef struct {
    job_t job;
    long tasks_dkv; /* causal float32: tasks of dk and dv come first, they are the longest */
} work_of_backward_t;

/* b = -(g . out) times the slope of the divisor, from the saved output; blocks of rows over all heads. */
enum { B_ROWS = 512 };

static void b_task(const void *context, int64_t task, char *scratch) {
    const plan_t *p = ((const job_t *)context)->p;
    const call_t *call = p->call;
    arena_t arena = {scratch};
    float *g = cut(&arena, p->Ep), *o = cut(&arena, p->Ep);
    long blocks = (call->N + B_ROWS - 1) / B_ROWS, head = task / blocks, first = task % blocks * B_ROWS;
    rows_t grad = rows_of(p, call->g_out, call->gs, head / call->H, head % call->H, first);
    rows_t out = own_rows(p, call->out, head, call->N, p->E, first);
    for (long r = 0; r < least(B_ROWS, call->N - first); r++) {
        float den = call->den[head * call->N + first + r], total;
        if (p->E % 16 == 0) {
            total = dot((const float *)(grad.data + r * grad.stride), (const float *)(out.data + r * out.stride), p->E);
        } else {
            load_row(g, grad.data + r * grad.stride, p->E, F32), load_row(o, out.data + r * out.stride, p->E, F32);
            total = dot(g, o, p->Ep);
        }
        call->b[head * call->N + first + r] = -total / divisor(call, den) * divisor_slope(call, den);
    }
}

static void causal_gradient_task(const void *context, int64_t task, char *scratch) {
    const work_of_backward_t *work = context;
    const plan_t *p = work->job.p;
    arena_t arena = {scratch};
    chunk_t c = cut_chunk(p, &arena);
    sums_t s = cut_sums(p, &arena);
    if (task < work->tasks_dkv) {
        causal_dkv(p, &c, &s, head_at(p->call, task));
        return;
    }
    long blocks = work->job.blocks, block = (task - work->tasks_dkv) % blocks;
    head_t at = head_at(p->call, (task - work->tasks_dkv) / blocks);
    causal_dq(p, &c, &s, at, block_start(p->nd, blocks, block), block_start(p->nd, blocks, block + 1));
}

/* Without causality: four phases, each over blocks of one head. */
static void phase_keys(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long d0, long d1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk;
    if (call->kv_next) {
        load_sums(p, s, call->kv_next + head * p->F * p->E, call->z_next + head * p->F, d0, d1);
        return;
    }
    load_sums(p, s, call->kv ? call->kv + head * p->F * p->E : NULL, call->z ? call->z + head * p->F : NULL, d0, d1);
    for (long first = 0; first < at.s; first += p->chunk) {
        long n = least(p->chunk, at.s - first);
        load_keys_for_dq(p, c, at, first, n, d0, d1);
        absorb_keys_for_dq(p, c, s, n, d0, d1);
    }
}

static void phase_dq(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long first, long last) {
    for (long g = 0; g < p->groups; g++)
        for (long row = first; row < last; row += p->chunk)
            queries_dq(p, c, s, at, at.hk * p->groups + g, row, least(p->chunk, last - row), 0, p->nd);
}

static void phase_r(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long e0, long e1) {
    start_r(p, s, at, e0, e1);
    for (long g = 0; g < p->groups; g++)
        for (long first = 0; first < at.n; first += p->chunk) {
            long n = least(p->chunk, at.n - first);
            load_queries(p, c, at, at.hk * p->groups + g, first, n, e0, e1);
            absorb_queries(p, c, s, n, e0, e1);
        }
    finish_r(p, s, at, e0, e1);
}

static void phase_dkv(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long first, long last) {
    for (long row = first; row < last; row += p->chunk) keys_dkv(p, c, s, at, row, least(p->chunk, last - row), 0);
}

static void whole_gradient_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *p = job->p;
    head_t at = head_at(p->call, task);
    arena_t arena = {scratch};
    chunk_t c = cut_chunk(p, &arena);
    sums_t s = cut_sums(p, &arena);
    phase_keys(p, &c, &s, at, 0, p->nd);
    phase_dq(p, &c, &s, at, 0, at.n);
    phase_r(p, &c, &s, at, 0, p->ne);
    transpose_r(p, &s);
    phase_dkv(p, &c, &s, at, 0, at.s);
}

static int backward(const call_t *call) {
    plan_t plan = make_plan(call, call->causal ? CAUSAL_CHUNK : WHOLE_CHUNK);
    work_of_backward_t work = {.job = {.p = &plan, .heads = call->B * call->Hk * call->sequences, .blocks = 1}};
    arena_t arena = {NULL};
    cut_chunk(&plan, &arena), cut_sums(&plan, &arena);
    size_t scratch = (size_t)(arena.next - (char *)NULL);
    long rows = (call->N + B_ROWS - 1) / B_ROWS;
    if (call->dtype == F32 && run_tasks(b_task, &work.job, call->B * call->H * rows, scratch, call->threads)) return 1;
    if (!call->causal) return run_tasks(whole_gradient_task, &work.job, work.job.heads, scratch, call->threads);
    if (call->dtype != F32) { /* dq finds the b that dk and dv need */
        if (run_tasks(causal_gradient_task, &work, work.job.heads, scratch, call->threads)) return 1;
        work.tasks_dkv = work.job.heads;
        return run_tasks(causal_gradient_task, &work, work.tasks_dkv, scratch, call->threads);
    }
    work.tasks_dkv = work.job.heads;
    work.job.blocks = work.job.heads % call->threads && work.job.heads < 4 * call->threads ? least(plan.nd, 2) : 1;
    return run_tasks(causal_gradient_task, &work, work.tasks_dkv + work.job.heads * work.job.blocks, scratch, call->threads);
}
