/* Short input without a state: the dense form, one task for each query head. Included once per instruction set, after forward.h.
 * Below about two times E positions the N x S matrix costs less than the sums over keys. */

/* to[r][c] = a[r] . b[c] * cos(angle between them), for every pair; zero behind the last column. */
static void square(float *to, long ld, long rows, long columns, const float *a, long a_ld, const float *b, long b_panel, long n,
                   angles_t of_rows, angles_t of_columns) {
    for (long r0 = 0; r0 < rows; r0 += ROWS)
        for (long c0 = 0; c0 < columns; c0 += 16) {
            vec sums[ROWS][LANES];
            clear(ROWS, sums);
            tile(sums, a + r0 * a_ld, a_ld, 1, b + c0 / 16 * b_panel, n);
            for (int r = 0; r < ROWS; r++)
                for (int l = 0; l < LANES; l++) {
                    vec x = sums[r][l];
                    if (of_rows.cos)
                        x *= of_rows.cos[r0 + r] * load(of_columns.cos + c0 + l * WIDTH) +
                             of_rows.sin[r0 + r] * load(of_columns.sin + c0 + l * WIDTH);
                    ivec column;
                    for (int i = 0; i < WIDTH; i++) column[i] = (int32_t)(c0 + l * WIDTH + i);
                    store(to + (r0 + r) * ld + c0 + l * WIDTH, keep(column < (int32_t)columns, x));
                }
        }
}

static void short_task(const void *context, int64_t task, char *scratch) {
    const plan_t *plan = context;
    const call_t *call = plan->call;
    long n = call->N, s = call->S, h = task % call->H;
    head_t at = {.b = task / call->H, .hk = h / plan->groups, .n = n, .s = s};
    arena_t arena = {.block = scratch};
    keys_t k = cut_keys(plan, &arena);
    queries_t q = cut_queries(plan, &arena);
    const uint8_t *mask = call->mask ? call->mask + at.b * s : NULL;
    k.at = angles(k.cosines, plan->k_turn, call->k_first, call->k_len, s);
    q.at = angles(q.cosines, plan->q_turn, call->q_first, call->q_len, n);
    load_features(plan, k.x, NULL, rows_of(plan, call->k, call->ks, at.b, at.hk, 0), mask,
                  key_factors(&plan->decay, at.hk), k.at, s);
    load_features(plan, q.x, NULL, rows_of(plan, call->q, call->qs, at.b, h, 0), NULL,
                  query_factors(&plan->decay, at.hk), q.at, n);
    load_panels(plan, k.vp, rows_of(plan, call->v, call->vs, at.b, at.hk, 0), mask, 0, plan->ne, s);
    transpose(k.xt, plan->Dp * 16, k.x, plan->ldx, s, plan->D);
    if (call->causal) triangle(q.weights, plan->chunk, n, 0, q.x, plan->ldx, k.xt, plan->Dp * 16, plan->D, near_of(plan));
    else square(q.weights, plan->chunk, n, s, q.x, plan->ldx, k.xt, plan->Dp * 16, plan->D, q.at, k.at);
    for (long r = 0; r < n; r++) {
        vec row = {};
        for (long c = 0; c < (call->causal ? r + 1 : s); c += WIDTH) row += load(q.weights + r * plan->chunk + c);
        q.inverse[r] = 1 / divisor(call, sum(row));
    }
    rows_t out = out_rows(call, at.b, h, 0);
    term_t term = {q.weights, plan->chunk, k.vp, plan->chunk * 16, 16, s, call->causal ? LOWER : FULL};
    int direct = plan->E % 16 == 0;
    target_t to = direct ? target_of(out, 0, call->out_dtype) : (target_t){.data = (char *)q.out, .ld = plan->lde};
    to.scale = q.inverse;
    combine(to, n, plan->ne, &term, 1, (ahead_t){0});
    if (!direct) store_rows(out, call->out_dtype, q.out, plan->lde, 0, plan->E, n);
}

static int dense(const call_t *call) {
    long longest = call->N > call->S ? call->N : call->S;
    plan_t plan = make_plan(call, round_up(longest, 16));
    if (chunk_with_decay(call, plan.chunk) < plan.chunk) return 2;
    arena_t arena = {0};
    cut_keys(&plan, &arena), cut_queries(&plan, &arena);
    size_t scratch = arena.used;
    /* waking a second thread costs as much as a small problem */
    long threads = call->N * call->S * (call->D + call->E) * call->H * call->B < 200 * 1000 ? 1 : call->threads;
    int failed = make_decay(call, plan.chunk, &plan.decay) || run_tasks(short_task, &plan, call->B * call->H, scratch, threads);
    give_block((char *)plan.decay.block);
    return failed;
}
