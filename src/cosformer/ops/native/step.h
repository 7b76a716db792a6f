/* One token of every head against its state. Included once per instruction set, after pack.h.
 * The time is that of reading and writing the state once: rows of it are updated and used in the same breath. */

enum { STEP_COLUMNS = 64, STEP_BYTES = 1 << 20 }; /* columns in registers; bytes of state worth a second thread */

/* Some columns of one head: state = from + phi(k) v^T, out = phi(q) state, for each query head of the group. */
INLINE void step_columns(const plan_t *p, const float *from, float *state, const float *fk, const float *v, const float *fq,
                         float *out, int vectors) {
    for (long g = 0; g < p->groups; g++, fq += p->ldf, out += p->Ep) {
        vec sums[STEP_COLUMNS / WIDTH] = {};
        for (long f = 0; f < p->F; f++) {
            float q = fq[f], k = fk[f];
            const float *old = (g ? state : from) + f * p->E; /* further queries of the group find the state updated */
            float *new = state + f * p->E;
#pragma GCC unroll 16
            for (int l = 0; l < vectors; l++) {
                vec x = load(old + l * WIDTH);
                if (!g) {
                    x += k * load(v + l * WIDTH);
                    store(new + l * WIDTH, x);
                }
                sums[l] += q * x;
            }
        }
        for (int l = 0; l < vectors; l++) store(out + l * WIDTH, sums[l]);
    }
}

static void step_task(const void *context, int64_t head, char *scratch) {
    const plan_t *p = context;
    const call_t *call = p->call;
    long b = head / call->Hk, hk = head % call->Hk;
    arena_t arena = {scratch};
    float *x = cut(&arena, p->ldx), *fk = cut(&arena, p->ldf), *fq = cut(&arena, p->groups * p->ldf);
    float *v = cut(&arena, p->Ep), *out = cut(&arena, p->groups * p->Ep), *cosines = cut(&arena, 2 * ANGLES);
    angles_t at_k = angles(cosines, p->k_turn, call->k_first, call->k_len, 1);
    angles_t at_q = angles(cosines + ANGLES, p->q_turn, call->q_first, call->q_len, 1);
    const uint8_t *mask = call->mask ? call->mask + b : NULL;
    load_features(p, x, fk, rows_of(p, call->k, call->ks, b, hk, 0), mask, at_k, 1);
    for (long g = 0; g < p->groups; g++)
        load_features(p, x, fq + g * p->ldf, rows_of(p, call->q, call->qs, b, hk * p->groups + g, 0), NULL, at_q, 1);
    load_row(v, rows_of(p, call->v, call->vs, b, hk, 0).data, p->E, call->dtype);
    if (mask && !mask[0]) memset(v, 0, 4 * (size_t)p->Ep);

    float *to = call->kv_next + head * p->F * p->E;
    const float *from = call->kv ? call->kv + head * p->F * p->E : to;
    if (!call->kv) memset(to, 0, 4 * (size_t)(p->F * p->E));
    long e = 0;
    for (; e + STEP_COLUMNS <= p->E; e += STEP_COLUMNS)
        step_columns(p, from + e, to + e, fk, v + e, fq, out + e, STEP_COLUMNS / WIDTH);
    for (; e + WIDTH <= p->E; e += WIDTH) step_columns(p, from + e, to + e, fk, v + e, fq, out + e, 1);
    for (; e < p->E; e++)
        for (long g = 0; g < p->groups; g++) {
            float total = 0;
            for (long f = 0; f < p->F; f++) {
                long i = f * p->E + e;
                if (!g) to[i] = from[i] + fk[f] * v[e];
                total += fq[g * p->ldf + f] * to[i];
            }
            out[g * p->Ep + e] = total;
        }

    const float *z = call->z ? call->z + head * p->F : NULL;
    float *z_next = call->z_next + head * p->F;
    for (long f = 0; f < p->F; f++) z_next[f] = (z ? z[f] : 0) + fk[f];
    for (long g = 0; g < p->groups; g++) {
        float den = 0, *row = out + g * p->Ep;
        for (long f = 0; f < p->F; f++) den += fq[g * p->ldf + f] * z_next[f];
        float inverse = 1 / divisor(call, den);
        for (long i = 0; i < p->E; i++) row[i] *= inverse;
        store_row(own_rows(p, call->out, head * p->groups + g, 1, p->E, 0).data, row, p->E, call->dtype);
    }
}

static int step(const call_t *call) {
    plan_t plan = make_plan(call, 1);
    arena_t arena = {NULL};
    cut(&arena, plan.ldx + (plan.groups + 1) * (plan.ldf + plan.Ep + 16) + 2 * ANGLES + 64);
    long heads = call->B * call->Hk, threads = heads * plan.F * plan.E * 4 < STEP_BYTES ? 1 : call->threads;
    return run_tasks(step_task, &plan, heads, (size_t)(arena.next - (char *)NULL), threads);
}
