/* Which backward pass runs where. Included once per instruction set, after backward.h. */

typedef struct {
    job_t job;
    long tasks_dkv; /* causal: this many tasks of dk and dv come first, they are the longest */
    enum { KEYS, DQ, R, DKV } phase; /* not causal, few heads */
} backward_job_t;

/* b = -(g . out) times the slope of the divisor, from the saved output; blocks of rows over all heads. */
enum { B_ROWS = 512 };

static void b_task(const void *context, int64_t task, char *scratch) {
    const plan_t *plan = ((const job_t *)context)->plan;
    const call_t *call = plan->call;
    arena_t arena = {.block = scratch};
    float *g = cut(&arena, plan->Ep), *o = cut(&arena, plan->Ep);
    long blocks = (call->N + B_ROWS - 1) / B_ROWS, head = task / blocks, first = task % blocks * B_ROWS;
    rows_t grad = rows_of(plan, call->g_out, call->gs, head / call->H, head % call->H, first);
    rows_t out = out_rows(call, head / call->H, head % call->H, first);
    for (long r = 0; r < least(B_ROWS, call->N - first); r++) {
        float den = call->den[head * call->N + first + r], total;
        if (plan->E % 16 == 0 && call->dtype == F32) {
            total = dot((const float *)(grad.data + r * grad.stride), (const float *)(out.data + r * out.stride), plan->E);
        } else {
            load_row(g, grad.data + r * grad.stride, plan->E, call->dtype), load_row(o, out.data + r * out.stride, plan->E, F32);
            total = dot(g, o, plan->Ep);
        }
        call->b[head * call->N + first + r] = -total / divisor(call, den) * divisor_slope(call, den);
    }
}

static void causal_gradient_task(const void *context, int64_t task, char *scratch) {
    const backward_job_t *work = context;
    const plan_t *plan = work->job.plan;
    arena_t arena = {.block = scratch};
    chunk_t chunk = cut_chunk(plan, &arena);
    sums_t sums = cut_sums(plan, &arena);
    if (task < work->tasks_dkv) {
        causal_dkv(plan, &chunk, &sums, head_at(plan->call, task));
        return;
    }
    long blocks = work->job.blocks, block = (task - work->tasks_dkv) % blocks;
    head_t at = head_at(plan->call, (task - work->tasks_dkv) / blocks);
    causal_dq(plan, &chunk, &sums, at, block_start(plan->nd, blocks, block), block_start(plan->nd, blocks, block + 1));
}

/* Without causality: four phases, each over blocks of one head. */
static void phase_keys(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long d0, long d1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk;
    if (call->kv_next) {
        load_sums(plan, sums, call->kv_next + head * plan->F * plan->E, call->z_next + head * plan->F, d0, d1);
        return;
    }
    const float *kv = call->kv ? call->kv + head * plan->F * plan->E : NULL, *z = call->z ? call->z + head * plan->F : NULL;
    load_sums(plan, sums, kv, z, d0, d1);
    for (long first = 0; first < at.s; first += plan->chunk) {
        long n = least(plan->chunk, at.s - first);
        load_keys_for_dq(plan, chunk, at, first, n, d0, d1);
        absorb_keys_for_dq(plan, chunk, sums, n, d0, d1);
    }
}

static void phase_dq(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long first, long last, int with_r) {
    for (long g = 0; g < plan->groups; g++)
        for (long row = first; row < last; row += plan->chunk) {
            long h = at.hk * plan->groups + g, n = least(plan->chunk, last - row);
            load_queries(plan, chunk, at, h, row, n, with_r ? FOR_DQ | FOR_R : FOR_DQ);
            queries_dq(plan, chunk, sums, at, h, row, n, 0, plan->nd);
            if (with_r) column_of_b(plan, chunk, at, h, row, n), absorb_queries(plan, chunk, sums, n, 0, plan->ne);
        }
}

static void phase_r(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long e0, long e1) {
    start_r(plan, sums, at, e0, e1);
    for (long g = 0; g < plan->groups; g++)
        for (long first = 0; first < at.n; first += plan->chunk) {
            long n = least(plan->chunk, at.n - first);
            load_queries(plan, chunk, at, at.hk * plan->groups + g, first, n, FOR_R);
            column_of_b(plan, chunk, at, at.hk * plan->groups + g, first, n);
            absorb_queries(plan, chunk, sums, n, e0, e1);
        }
    finish_r(plan, sums, at, e0, e1);
}

static void phase_dkv(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long first, long last) {
    for (long row = first; row < last; row += plan->chunk)
        keys_dkv(plan, chunk, sums, at, row, least(plan->chunk, last - row), 0);
}

static void whole_gradient_task(const void *context, int64_t task, char *scratch) {
    const job_t *job = context;
    const plan_t *plan = job->plan;
    head_t at = head_at(plan->call, task);
    arena_t arena = {.block = scratch};
    chunk_t chunk = cut_chunk(plan, &arena);
    sums_t sums = cut_sums(plan, &arena);
    phase_keys(plan, &chunk, &sums, at, 0, plan->nd);
    start_r(plan, &sums, at, 0, plan->ne);
    phase_dq(plan, &chunk, &sums, at, 0, at.n, 1);
    finish_r(plan, &sums, at, 0, plan->ne);
    transpose_r(plan, &sums);
    phase_dkv(plan, &chunk, &sums, at, 0, at.s);
}

/* The same phase by phase, when there are fewer heads than threads. The sums are shared; each element has one writer. */
static void phase_task(const void *context, int64_t task, char *scratch) {
    const backward_job_t *work = context;
    const job_t *job = &work->job;
    const plan_t *plan = job->plan;
    const call_t *call = plan->call;
    long blocks = job->blocks, block = task % blocks, index = task / blocks;
    head_t at = head_at(call, index);
    arena_t arena = {.block = scratch}, kept = {.block = job->shared + (size_t)index * job->shared_head};
    chunk_t chunk = cut_chunk(plan, &arena);
    sums_t sums = cut_sums(plan, &kept), own = cut_sums(plan, &arena);
    long rows = work->phase == DQ ? at.n : at.s, chunks = (rows + plan->chunk - 1) / plan->chunk;
    long first = block_start(chunks, blocks, block) * plan->chunk;
    long last = least(rows, block_start(chunks, blocks, block + 1) * plan->chunk);
    switch (work->phase) {
    case KEYS:
        if (block) sums.keys_z = own.keys_z; /* every block sums z, one keeps it */
        phase_keys(plan, &chunk, &sums, at, block_start(plan->nd, blocks, block), block_start(plan->nd, blocks, block + 1));
        break;
    case DQ: phase_dq(plan, &chunk, &sums, at, first, last, 0); break;
    case R:
        if (block) sums.queries_b = own.queries_b;
        phase_r(plan, &chunk, &sums, at, block_start(plan->ne, blocks, block), block_start(plan->ne, blocks, block + 1));
        break;
    case DKV:
        sums.queries_t = own.queries_t;
        transpose_r(plan, &sums);
        phase_dkv(plan, &chunk, &sums, at, first, last);
    }
}

static int backward_in_phases(backward_job_t *work, size_t scratch) {
    const plan_t *plan = work->job.plan;
    const call_t *call = plan->call;
    long most_blocks = 4 * call->threads;
    long chunks_q = (call->N + plan->chunk - 1) / plan->chunk, chunks_k = (call->S + plan->chunk - 1) / plan->chunk;
    const long blocks[] = {blocks_for(call, work->job.heads, plan->nd), least(most_blocks, chunks_q),
                           blocks_for(call, work->job.heads, plan->ne), least(most_blocks, chunks_k)};
    arena_t arena = {0};
    cut_sums(plan, &arena);
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

static int run_backward(const plan_t *plan) {
    const call_t *call = plan->call;
    backward_job_t work = {.job = {.plan = plan, .heads = call->B * call->Hk * call->sequences, .blocks = 1}};
    long heads = work.job.heads, uneven = heads % call->threads && heads < 4 * call->threads;
    arena_t arena = {0};
    cut_chunk(plan, &arena), cut_sums(plan, &arena);
    size_t scratch = arena.used;
    if (!call->causal && uneven && !call->cu) return backward_in_phases(&work, scratch);
    if (!call->causal) return run_tasks(whole_gradient_task, &work.job, heads, scratch, call->threads);
    if (finds_b(call)) { /* dq finds the b that dk and dv need */
        if (run_tasks(causal_gradient_task, &work, heads, scratch, call->threads)) return 1;
        work.tasks_dkv = heads;
        return run_tasks(causal_gradient_task, &work, heads, scratch, call->threads);
    }
    long b_tasks = call->B * call->H * ((call->N + B_ROWS - 1) / B_ROWS);
    if (!call->sums && run_tasks(b_task, &work.job, b_tasks, scratch, call->threads)) return 1;
    work.tasks_dkv = heads;
    work.job.blocks = uneven ? least(plan->nd, 2) : 1;
    return run_tasks(causal_gradient_task, &work, heads * (1 + work.job.blocks), scratch, call->threads);
}

static int backward(const call_t *call) {
    plan_t plan = make_plan(call, chunk_for(call));
    int failed = make_decay(call, plan.chunk, &plan.decay) || run_backward(&plan);
    give_block((char *)plan.decay.block);
    return failed;
}
