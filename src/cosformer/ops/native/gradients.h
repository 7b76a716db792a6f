/* Which backward pass runs where. Included once per instruction set, after backward.h. */

typedef struct {
    job_t job;
    long tasks_dkv; /* causal: this many tasks of dk and dv come first, they are the longest */
    enum { KEYS, DQ, R, DKV } phase; /* not causal, few heads */
} work_of_backward_t;

/* b = -(g . out) times the slope of the divisor, from the saved output; blocks of rows over all heads. */
enum { B_ROWS = 512 };

static void b_task(const void *context, int64_t task, char *scratch) {
    const plan_t *p = ((const job_t *)context)->p;
    const call_t *call = p->call;
    arena_t arena = {.block = scratch};
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
    arena_t arena = {.block = scratch};
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

static void phase_dq(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long first, long last, int with_r) {
    for (long g = 0; g < p->groups; g++)
        for (long row = first; row < last; row += p->chunk) {
            long h = at.hk * p->groups + g, n = least(p->chunk, last - row);
            load_queries(p, c, at, h, row, n, with_r ? FOR_DQ | FOR_R : FOR_DQ);
            queries_dq(p, c, s, at, h, row, n, 0, p->nd);
            if (with_r) column_of_b(p, c, at, h, row, n), absorb_queries(p, c, s, n, 0, p->ne);
        }
}

static void phase_r(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long e0, long e1) {
    start_r(p, s, at, e0, e1);
    for (long g = 0; g < p->groups; g++)
        for (long first = 0; first < at.n; first += p->chunk) {
            long n = least(p->chunk, at.n - first);
            load_queries(p, c, at, at.hk * p->groups + g, first, n, FOR_R);
            column_of_b(p, c, at, at.hk * p->groups + g, first, n);
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
    arena_t arena = {.block = scratch};
    chunk_t c = cut_chunk(p, &arena);
    sums_t s = cut_sums(p, &arena);
    phase_keys(p, &c, &s, at, 0, p->nd);
    start_r(p, &s, at, 0, p->ne);
    phase_dq(p, &c, &s, at, 0, at.n, 1);
    finish_r(p, &s, at, 0, p->ne);
    transpose_r(p, &s);
    phase_dkv(p, &c, &s, at, 0, at.s);
}

/* The same phase by phase, when there are fewer heads than threads. The sums are shared; each element has one writer. */
static void phase_task(const void *context, int64_t task, char *scratch) {
    const work_of_backward_t *work = context;
    const job_t *job = &work->job;
    const plan_t *p = job->p;
    const call_t *call = p->call;
    long blocks = job->blocks, block = task % blocks, index = task / blocks;
    head_t at = head_at(call, index);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    chunk_t c = cut_chunk(p, &arena);
    sums_t s = cut_sums(p, &kept), own = cut_sums(p, &arena);
    long rows = work->phase == DQ ? at.n : at.s, chunks = (rows + p->chunk - 1) / p->chunk;
    long first = block_start(chunks, blocks, block) * p->chunk;
    long last = least(rows, block_start(chunks, blocks, block + 1) * p->chunk);
    switch (work->phase) {
    case KEYS:
        if (block) s.z = own.z; /* every block sums z, one keeps it */
        phase_keys(p, &c, &s, at, block_start(p->nd, blocks, block), block_start(p->nd, blocks, block + 1));
        break;
    case DQ: phase_dq(p, &c, &s, at, first, last, 0); break;
    case R:
        if (block) s.rz = own.rz;
        phase_r(p, &c, &s, at, block_start(p->ne, blocks, block), block_start(p->ne, blocks, block + 1));
        break;
    case DKV:
        s.rt = own.rt;
        transpose_r(p, &s);
        phase_dkv(p, &c, &s, at, first, last);
    }
}

static int backward_in_phases(work_of_backward_t *work, size_t scratch) {
    const plan_t *p = work->job.p;
    const call_t *call = p->call;
    long most_blocks = 4 * call->threads, chunks_q = (call->N + p->chunk - 1) / p->chunk, chunks_k = (call->S + p->chunk - 1) / p->chunk;
    const long blocks[] = {blocks_for(call, work->job.heads, p->nd), least(most_blocks, chunks_q),
                           blocks_for(call, work->job.heads, p->ne), least(most_blocks, chunks_k)};
    arena_t arena = {0};
    cut_sums(p, &arena);
    work->job.shared_head = arena.used;
    work->job.shared = take_block(work->job.shared_head * (size_t)work->job.heads);
    int failed = !work->job.shared;
    for (work->phase = KEYS; work->phase <= DKV && !failed; work->phase++) {
        work->job.blocks = blocks[work->phase];
        failed = run_tasks(phase_task, work, work->job.heads * work->job.blocks, scratch, call->threads);
    }
    give_block(work->job.shared);
    return failed;
}

static int backward(const call_t *call) {
    plan_t plan = make_plan(call, chunk_for(call));
    work_of_backward_t work = {.job = {.p = &plan, .heads = call->B * call->Hk * call->sequences, .blocks = 1}};
    long heads = work.job.heads, uneven = heads % call->threads && heads < 4 * call->threads;
    arena_t arena = {0};
    cut_chunk(&plan, &arena), cut_sums(&plan, &arena);
    size_t scratch = arena.used;
    if (!call->causal && uneven && !call->cu) return backward_in_phases(&work, scratch);
    if (!call->causal) return run_tasks(whole_gradient_task, &work.job, heads, scratch, call->threads);
    if (finds_b(call)) { /* dq finds the b that dk and dv need */
        if (run_tasks(causal_gradient_task, &work, heads, scratch, call->threads)) return 1;
        work.tasks_dkv = heads;
        return run_tasks(causal_gradient_task, &work, heads, scratch, call->threads);
    }
    long b_tasks = call->B * call->H * ((call->N + B_ROWS - 1) / B_ROWS);
    if (run_tasks(b_task, &work.job, b_tasks, scratch, call->threads)) return 1;
    work.tasks_dkv = heads;
    work.job.blocks = uneven ? least(plan.nd, 2) : 1;
    return run_tasks(causal_gradient_task, &work, heads * (1 + work.job.blocks), scratch, call->threads);
}
