/* One token of every head against its state. Included once per instruction set, after pack.h.
 * The time is that of reading and writing the state once: rows of it are updated and used in the same breath. */

enum {
    STEP_COLUMNS = 64,       /* columns in registers */
    STEP_BYTES = 1 << 20,    /* of state: worth a second thread */
    STREAM_BYTES = 16 << 20, /* of state: no cache keeps it, so a new one is written past the caches */
    FLUSH_EVERY = 64,        /* tokens: what has decayed to almost nothing becomes zero */
};

#if defined(__clang__)
#define STREAM(to, x) __builtin_nontemporal_store(x, (vec *)(to))
#elif defined(__x86_64__) && WIDTH == 16
#define STREAM(to, x) __builtin_ia32_movntps512(to, x)
#elif defined(__x86_64__) && WIDTH == 8
#define STREAM(to, x) __builtin_ia32_movntps256(to, x)
#elif defined(__x86_64__)
#define STREAM(to, x) __builtin_ia32_movntps(to, x)
#else
#define STREAM(to, x) store(to, x)
#endif

typedef struct {
    const plan_t *plan;
    angles_t q, k;
    int stream;
} step_t;

/* Some columns of one head: to = from, decayed, + phi(k) v^T and out = phi(q) to. `from` and `to` may be the same. */
INLINE void update_columns(long features, long row, const float *from, float *to, shift_t by, const float *fk, const float *v,
                           const float *fq, float *out, int vectors, int stream) {
    vec sums[STEP_COLUMNS / WIDTH] = {};
    for (long f = 0; f < features; f++, from += row, to += row) {
        vec q = fq[f] - (vec){}, k = fk[f] - (vec){}, rest = (by.whole ? by.rest[f] : 0) - (vec){};
        ivec whole = (by.whole ? by.whole[f] : 0) - (ivec){};
#pragma GCC unroll 16
        for (int l = 0; l < vectors; l++) {
            vec before = load(from + l * WIDTH), new = k * load(v + l * WIDTH), x;
            if (by.whole) x = keep(whole, before) + (rest * before + new);
            else x = before + new;
            if (stream) STREAM(to + l * WIDTH, x);
            else store(to + l * WIDTH, x);
            sums[l] += q * x;
        }
    }
    for (int l = 0; l < vectors; l++) store(out + l * WIDTH, sums[l]);
}

/* The same columns for a further query of the group, which finds the state updated. */
INLINE void read_columns(long features, long row, const float *state, const float *fq, float *out, int vectors) {
    vec sums[STEP_COLUMNS / WIDTH] = {};
    for (long f = 0; f < features; f++, state += row) {
        vec q = fq[f] - (vec){};
#pragma GCC unroll 16
        for (int l = 0; l < vectors; l++) sums[l] += q * load(state + l * WIDTH);
    }
    for (int l = 0; l < vectors; l++) store(out + l * WIDTH, sums[l]);
}

INLINE void step_columns(const plan_t *plan, const float *from, float *to, shift_t by, const float *fk, const float *v,
                         const float *fq, float *out, int vectors, int stream) {
    update_columns(plan->F, plan->E, from, to, by, fk, v, fq, out, vectors, stream);
    for (long g = 1; g < plan->groups; g++) read_columns(plan->F, plan->E, to, fq + g * plan->ldf, out + g * plan->Ep, vectors);
}

/* All columns of one head. `by` without members: no decay. */
INLINE void step_state(const step_t *step, const float *from, float *to, shift_t by, const float *fk, const float *v,
                       const float *fq, float *out) {
    const plan_t *plan = step->plan;
    long e = 0;
    for (; e + STEP_COLUMNS <= plan->E; e += STEP_COLUMNS)
        if (step->stream) step_columns(plan, from + e, to + e, by, fk, v + e, fq, out + e, STEP_COLUMNS / WIDTH, 1);
        else step_columns(plan, from + e, to + e, by, fk, v + e, fq, out + e, STEP_COLUMNS / WIDTH, 0);
    for (; e + WIDTH <= plan->E; e += WIDTH) step_columns(plan, from + e, to + e, by, fk, v + e, fq, out + e, 1, 0);
    for (; e < plan->E; e++)
        for (long g = 0; g < plan->groups; g++) {
            float total = 0;
            for (long f = 0; f < plan->F; f++) {
                long i = f * plan->E + e;
                if (!g) to[i] = (by.whole ? shifted_one(from[i], by.whole[f], by.rest[f], 0) : from[i]) + fk[f] * v[e];
                total += fq[g * plan->ldf + f] * to[i];
            }
            out[g * plan->Ep + e] = total;
        }
}

static void flush(float *x, long n) {
    long i = 0;
    for (; i + WIDTH <= n; i += WIDTH) store(x + i, flushed(load(x + i)));
    for (; i < n; i++) x[i] = fabsf(x[i]) < SMALLEST ? 0 : x[i];
}

/* What one token does to the features of a key head. */
static shift_t decayed(const plan_t *plan, long hk, float *rates, int32_t *whole, float *rest) {
    load_row(rates, (const char *)(plan->call->decay + hk * plan->D), plan->D, F32);
    float some = dither(plan->call->k_first);
    for (long half = 0; half < plan->halves; half++) /* the second from where the first ends */
        for (long d = 0; d < plan->Dp; d += WIDTH) {
            ivec one;
            vec other;
            split_exp(load(rates + d), &one, &other);
            other = dithered(one, other, some);
            store((float *)whole + half * plan->D + d, (vec)one), store(rest + half * plan->D + d, other);
        }
    return (shift_t){whole, rest};
}

static void step_task(const void *context, int64_t head, char *scratch) {
    const step_t *step = context;
    const plan_t *plan = step->plan;
    const call_t *call = plan->call;
    long b = head / call->Hk, hk = head % call->Hk, features = plan->F;
    arena_t arena = {.block = scratch};
    float *x = cut(&arena, plan->ldx), *fk = cut(&arena, plan->ldf), *fq = cut(&arena, plan->groups * plan->ldf);
    float *v = cut(&arena, plan->Ep), *out = cut(&arena, plan->groups * plan->Ep);
    int32_t *whole = (int32_t *)cut(&arena, plan->ldf);
    float *rest = cut(&arena, plan->ldf);
    const uint8_t *mask = call->mask ? call->mask + b : NULL;
    load_features(plan, x, fk, rows_of(plan, call->k, call->ks, b, hk, 0), mask, (factors_t){0}, step->k, 1);
    for (long g = 0; g < plan->groups; g++)
        load_features(plan, x, fq + g * plan->ldf, rows_of(plan, call->q, call->qs, b, hk * plan->groups + g, 0), NULL,
                      (factors_t){0}, step->q, 1);
    load_row(v, rows_of(plan, call->v, call->vs, b, hk, 0).data, plan->E, call->dtype);
    if (mask && !mask[0]) memset(v, 0, 4 * (size_t)plan->Ep);

    float *to = call->kv_next + head * features * plan->E;
    const float *from = call->kv ? call->kv + head * features * plan->E : to;
    if (!call->kv) memset(to, 0, 4 * (size_t)(features * plan->E));
    if (!call->decay || !call->kv) step_state(step, from, to, (shift_t){0}, fk, v, fq, out);
    else step_state(step, from, to, decayed(plan, hk, x, whole, rest), fk, v, fq, out);
    if (call->decay && call->k_first % FLUSH_EVERY == 0) flush(to, features * plan->E);

    const float *z = call->z ? call->z + head * features : NULL;
    float *z_next = call->z_next + head * features;
    if (z && call->decay)
        for (long f = 0; f < features; f++) z_next[f] = shifted_one(z[f], whole[f], rest[f], 0) + fk[f];
    else
        for (long f = 0; f < features; f++) z_next[f] = (z ? z[f] : 0) + fk[f];
    for (long g = 0; g < plan->groups; g++) {
        float *row = out + g * plan->Ep, *phi = fq + g * plan->ldf, den = 0;
        vec part = {};
        long f = 0;
        for (; f + WIDTH <= features; f += WIDTH) part += load(phi + f) * load(z_next + f);
        for (; f < features; f++) den += phi[f] * z_next[f];
        float inverse = 1 / divisor(call, den + sum(part));
        for (long i = 0; i < plan->Ep; i += WIDTH) store(row + i, load(row + i) * inverse);
        store_row(out_rows(call, b, hk * plan->groups + g, 0).data, row, plan->E, call->out_dtype);
    }
#if defined(__x86_64__)
    if (step->stream) __builtin_ia32_sfence(); /* before another thread may look */
#endif
}

static int step(const call_t *call) {
    plan_t plan = make_plan(call, 1);
    float cosines[2 * ANGLES];
    step_t step = {.plan = &plan,
                   .q = angles(cosines, plan.q_turn, call->q_first, call->q_len, 1),
                   .k = angles(cosines + ANGLES, plan.k_turn, call->k_first, call->k_len, 1)};
    long heads = call->B * call->Hk, bytes = heads * plan.F * plan.E * 4;
    int whole = ((uintptr_t)call->kv_next | (uintptr_t)plan.E * 4) % sizeof(vec) == 0;
    step.stream = bytes >= STREAM_BYTES && call->kv_next != call->kv && whole;
    arena_t arena = {0};
    cut(&arena, plan.ldx + (plan.groups + 3) * (plan.ldf + plan.Ep + 16) + 64);
    return run_tasks(step_task, &step, heads, arena.used, bytes < STEP_BYTES ? 1 : call->threads);
}
