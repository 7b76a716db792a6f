/* Backward passes. Included once per instruction set, after forward.h.
 *
 * With g = dL/dnumerator (E wide) and b = dL/ddenominator of every query, phi the features:
 *   dq   from the sum of phi(k) v^T over the keys a query sees       ("dq" below; kept transposed: rows are channels of v)
 *   dk, dv from R = sum of phi(q) [g, b]^T over the queries that see a key
 * An output in float32 gives b = -(g . out). A rounded one would spoil it, so there g . numerator is found as q' . dq (the
 * part of dq that comes from the numerator), and the dq pass comes first. */

typedef struct {
    /* of a chunk of keys */
    float *kx, *kphi, *kcos, *kp, *kfp; /* rows, features; panels of rows [nd], panels of features [nf], chunk rows each */
    float *v, *vc, *vs, *vt;            /* rows [v, 1], times cosine, times sine, transposed [chunk / 16][E][16] */
    angles_t kat;
    /* of a chunk of queries */
    float *qx, *qphi, *qcos, *qt, *qp;
    float *g, *gc, *gs, *gt, *gp, *inverse; /* rows [g, b] and the same forms */
    angles_t qat;
    float *pairs, *scores; /* inside the chunk: gradients of the scores, scores */
    float *dx, *dv;         /* results before rounding */
    float *zrun;
    float *room; /* of a shift */
} chunk_t;

static chunk_t cut_chunk(const plan_t *plan, arena_t *arena) {
    long rows = plan->chunk + 16, x = rows * plan->ldx, e = rows * plan->lde, panels = plan->chunk * plan->Dp;
    chunk_t chunk;
    chunk.kx = cut(arena, x), chunk.kphi = cut(arena, rows * plan->ldf), chunk.kcos = cut(arena, ANGLES),
    chunk.kp = cut(arena, panels);
    chunk.kfp = cut(arena, 2 * panels), chunk.v = cut(arena, e), chunk.vc = cut(arena, e), chunk.vs = cut(arena, e);
    chunk.vt = cut(arena, plan->chunk * (plan->Ep + 16));
    chunk.qx = cut(arena, x), chunk.qphi = cut(arena, rows * plan->ldf), chunk.qcos = cut(arena, ANGLES),
    chunk.qt = cut(arena, panels);
    chunk.qp = cut(arena, panels), chunk.g = cut(arena, e), chunk.gc = cut(arena, e), chunk.gs = cut(arena, e);
    chunk.gt = cut(arena, plan->chunk * (plan->Ep + 16)), chunk.gp = cut(arena, plan->chunk * plan->Ep),
    chunk.inverse = cut(arena, rows);
    chunk.pairs = cut(arena, rows * plan->chunk), chunk.scores = cut(arena, rows * plan->chunk), chunk.dx = cut(arena, x),
    chunk.dv = cut(arena, e);
    chunk.zrun = cut(arena, 2 * plan->Dp), chunk.room = cut(arena, 2 * plan->Dp);
    return chunk;
}

/* Sums over a whole head, or up to the present chunk. */
typedef struct {
    float *keys, *keys_z;       /* phi(k) v^T as panels of features [nf][Er][16]; its normaliser [halves][Dp] */
    float *queries, *queries_b; /* R: phi(q) g^T as panels of values [ne][Fr][16]; its column of b [F] */
    float *queries_t;           /* both transposed, [nf][Er][16] */
} sums_t;

static sums_t cut_sums(const plan_t *plan, arena_t *arena) {
    sums_t sums;
    sums.keys = cut(arena, plan->nf * plan->Er * 16), sums.keys_z = cut(arena, 2 * plan->Dp);
    sums.queries = cut(arena, plan->ne * plan->Fr * 16 + 64), sums.queries_b = cut(arena, plan->ldf),
    sums.queries_t = cut(arena, plan->nf * plan->Er * 16);
    return sums;
}

static const uint8_t *mask_of(const call_t *call, head_t at, long first) {
    return call->mask ? call->mask + at.b * call->S + first : NULL;
}

/* ---- dq ---- */

/* Whether b is found by the dq pass (else it comes from the saved output, before, or is given). Without causality dq comes
 * first anyway. */
static int finds_b(const call_t *call) { return !call->causal || (call->out_dtype != F32 && !call->sums); }

/* Columns of the values in the dq pass: where b is known it is one more, beside a column of ones in v, and the normaliser
 * one more row of the sums. */
INLINE long dq_columns(const plan_t *plan) { return plan->E + !finds_b(plan->call); }

/* Keys as the dq pass needs them: feature panels d0 to d1 of each half. */
static void load_keys_for_dq(const plan_t *plan, chunk_t *chunk, head_t at, long first, long n, long d0, long d1) {
    const call_t *call = plan->call;
    const uint8_t *mask = mask_of(call, at, first);
    chunk->kat = angles(chunk->kcos, plan->k_turn, call->k_first + first, call->k_len, n);
    load_features(plan, chunk->kx, NULL, rows_of(plan, call->k, call->ks, at.b, at.hk, at.row + first), mask,
                  key_factors(&plan->decay, at.hk), chunk->kat, n);
    values_t v = {.rows = chunk->v};
    load_values(plan, v, rows_of(plan, call->v, call->vs, at.b, at.hk, at.row + first), mask, NULL, chunk->kat, n);
    if (!finds_b(call)) add_column(plan, v, NULL, chunk->kat, n);
    long panel = plan->chunk * 16;
    for (long half = 0; half < plan->halves; half++)
        panel_rows(chunk->kfp + (half * plan->nd + d0) * panel, panel, chunk->kx + d0 * 16, plan->ldx, d1 - d0,
                   plan->halves == 1 ? NULL : half ? chunk->kat.sin : chunk->kat.cos, n);
}

static void absorb_keys_for_dq(const plan_t *plan, const chunk_t *chunk, sums_t *sums, long n, long d0, long d1) {
    long panel = plan->chunk * 16;
    for (long half = 0; half < plan->halves; half++) {
        long f = half * plan->nd + d0;
        accumulate(sums->keys + f * plan->Er * 16, plan->Er * 16, dq_columns(plan), d1 - d0, chunk->v, plan->lde,
                   chunk->kfp + f * panel, panel, 16, n, (ahead_t){0});
        if (!finds_b(plan->call)) continue;
        memset(chunk->zrun, 0, 4 * (size_t)plan->Dp);
        const float *turn = plan->halves == 1 ? NULL : half ? chunk->kat.sin : chunk->kat.cos;
        for (long r = 0; r < n; r++)
            for (long i = 0; i < plan->Dp; i += WIDTH)
                store(chunk->zrun + i, load(chunk->zrun + i) + load(chunk->kx + r * plan->ldx + i) * (turn ? turn[r] : 1));
        for (long i = 0; i < plan->Dp; i++) sums->keys_z[half * plan->Dp + i] += chunk->zrun[i];
    }
}

/* With decay, these sums as they are seen from position `to`, `distance` later. */
static void shift_keys_for_dq(const plan_t *plan, const chunk_t *chunk, sums_t *sums, head_t at, long to, long distance, long d0,
                              long d1) {
    if (!plan->decay.block) return;
    float some = dither(plan->call->k_first + to);
    shift_t by = shift_by(&plan->decay, plan->call, at.hk, distance, chunk->room);
    for (long half = 0; half < plan->halves; half++) {
        for (long d = d0; d < d1; d++)
            for (int l = 0; l < 16; l += WIDTH) {
                ivec whole = (ivec)load((const float *)by.whole + d * 16 + l);
                vec rest = dithered(whole, load(by.rest + d * 16 + l), some);
                float *row = sums->keys + (half * plan->nd + d) * plan->Er * 16 + l;
                for (long e = 0; e < dq_columns(plan); e++, row += 16) *(vec *)row = shifted(*(vec *)row, whole, rest);
            }
        for (long i = 0; i < plan->Dp; i++) {
            float *z = sums->keys_z + half * plan->Dp + i;
            *z = shifted_one(*z, by.whole[i], by.rest[i], some);
        }
    }
}

/* The state a head starts from (or, without causality, has seen in the end), transposed. */
static void load_sums(const plan_t *plan, sums_t *sums, const float *kv, const float *z, long d0, long d1) {
    memset(sums->keys_z, 0, 8 * (size_t)plan->Dp);
    for (long half = 0; half < plan->halves; half++) {
        if (z) memcpy(sums->keys_z + half * plan->Dp, z + half * plan->D, 4 * (size_t)plan->D);
        for (long d = d0; d < d1; d++) {
            float *panel = sums->keys + (half * plan->nd + d) * plan->Er * 16;
            memset(panel, 0, 64 * (size_t)plan->Er);
            for (long i = 0; i < least(16, plan->D - d * 16); i++) {
                long f = half * plan->D + d * 16 + i;
                for (long e = 0; kv && e < plan->E; e++) panel[e * 16 + i] = kv[f * plan->E + e];
                if (z && !finds_b(plan->call)) panel[plan->E * 16 + i] = z[f];
            }
        }
    }
}

/* Queries and their gradients g, for dq (g turned) and for R (features; g as panels). */
enum { FOR_DQ = 1, FOR_R = 2 };

static void load_queries(const plan_t *plan, chunk_t *chunk, head_t at, long h, long first, long n, int what) {
    const call_t *call = plan->call;
    long row = (at.b * call->H + h) * call->N + at.row + first;
    chunk->qat = angles(chunk->qcos, plan->q_turn, call->q_first + first, call->q_len, n);
    rows_t q = rows_of(plan, call->q, call->qs, at.b, h, at.row + first);
    load_features(plan, chunk->qx, what & FOR_R ? chunk->qphi : NULL, q, NULL, query_factors(&plan->decay, at.hk), chunk->qat, n);
    memcpy(chunk->inverse, call->den + row, 4 * (size_t)n);
    invert(call, chunk->inverse, n);
    int turned = what & FOR_DQ;
    values_t g = {chunk->g, turned ? chunk->gc : NULL, turned ? chunk->gs : NULL, what & FOR_R ? chunk->gp : NULL};
    load_values(plan, g, rows_of(plan, call->g_out, call->gs, at.b, h, at.row + first), NULL, chunk->inverse, chunk->qat, n);
    if (!finds_b(call)) add_column(plan, g, call->b + row, chunk->qat, n);
}

/* The normaliser's part of dq, where b is found here, and what ReLU lets through; to the tensor. */
static void finish_dq(const plan_t *plan, chunk_t *chunk, const sums_t *sums, rows_t dq, factors_t by, long row, long n) {
    const call_t *call = plan->call;
    memcpy(chunk->zrun, sums->keys_z, 8 * (size_t)plan->Dp);
    for (long r = 0; r < n; r++) {
        float *x = chunk->qx + r * plan->ldx, *d = chunk->dx + r * plan->ldx;
        const float *key = chunk->kx + r * plan->ldx;
        float b = -dot(x, d, plan->Dp) * chunk->inverse[r] * divisor_slope(call, call->den[row + r]);
        float qc = plan->halves == 2 ? chunk->qat.cos[r] : 1, qs = plan->halves == 2 ? chunk->qat.sin[r] : 0;
        int turned = call->causal && plan->halves == 2;
        float kc = turned ? chunk->kat.cos[r] : 1, ks = turned ? chunk->kat.sin[r] : 0;
        call->b[row + r] = b;
        for (long i = 0; i < plan->Dp; i += WIDTH) {
            vec zc = load(chunk->zrun + i), zs = load(chunk->zrun + plan->Dp + i), one = load(x + i);
            if (call->causal) {
                zc += kc * load(key + i), zs += ks * load(key + i);
                store(chunk->zrun + i, zc), store(chunk->zrun + plan->Dp + i, zs);
            }
            vec sum = load(d + i) + b * (qc * zc + qs * zs);
            if (by.rows) sum *= load(by.rows + r * by.step + i);
            store(d + i, call->relu ? keep(~(one <= 0), sum) : sum);
        }
        store_row(dq.data + r * dq.stride, d, plan->D, call->dtype);
    }
}

/* n queries from `first` of head h; the keys of the same positions are in the chunk when causal. Channels of panels d0 to d1:
 * all of them where b is found here. */
static void queries_dq(const plan_t *plan, chunk_t *chunk, const sums_t *sums, head_t at, long h, long first, long n,
                       long d0, long d1) {
    const call_t *call = plan->call;
    long panel = plan->chunk * 16, columns = dq_columns(plan);
    term_t terms[3];
    int count = 0;
    const float *sum = sums->keys + d0 * plan->Er * 16;
    if (plan->halves == 2) {
        terms[count++] = (term_t){chunk->gc, plan->lde, sum, plan->Er * 16, 16, columns, FULL};
        terms[count++] = (term_t){chunk->gs, plan->lde, sum + plan->nd * plan->Er * 16, plan->Er * 16, 16, columns, FULL};
    } else {
        terms[count++] = (term_t){chunk->g, plan->lde, sum, plan->Er * 16, 16, columns, FULL};
    }
    if (call->causal) {
        triangle(chunk->pairs, plan->chunk, n, 0, chunk->g, plan->lde, chunk->vt, columns * 16, columns, near_of(plan));
        terms[count++] = (term_t){chunk->pairs, plan->chunk, chunk->kp + d0 * panel, panel, 16, n, LOWER};
    }
    rows_t dq = rows_of(plan, call->dq, call->dqs, at.b, h, at.row + first);
    factors_t by = query_factors(&plan->decay, at.hk);
    int direct = !finds_b(call) && !by.rows && plan->D % 16 == 0;
    target_t to = direct ? target_of(dq, d0, call->dtype) : (target_t){.data = (char *)(chunk->dx + d0 * 16), .ld = plan->ldx};
    if (!finds_b(call) && call->relu) to.gate = chunk->qx + d0 * 16, to.ldg = plan->ldx;
    rows_t next = rows_of(plan, call->q, call->qs, at.b, h, at.row + first + n);
    rows_t grad = rows_of(plan, call->g_out, call->gs, at.b, h, at.row + first + n);
    combine(to, n, d1 - d0, terms, count, ahead_of(plan, next, grad, least(plan->chunk, at.n - first - n)));
    if (finds_b(call)) finish_dq(plan, chunk, sums, dq, by, (at.b * call->H + h) * call->N + at.row + first, n);
    else if (by.rows) decay_rows(chunk->dx, plan->ldx, by, d0, d1, n);
    if (!finds_b(call) && !direct)
        store_rows(dq, call->dtype, chunk->dx + d0 * 16, plan->ldx, d0 * 16, least(plan->D, d1 * 16), n);
}

/* The causal dq of one head, channels of panels d0 to d1. */
static void causal_dq(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long d0, long d1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk, before = at.s - at.n, panel = plan->chunk * 16;
    long middle = plan->chunk / 2; /* of a chunk: where the sums are seen from */
    const float *kv = call->kv ? call->kv + head * plan->F * plan->E : NULL, *z = call->z ? call->z + head * plan->F : NULL;
    load_sums(plan, sums, kv, z, d0, d1);
    if (kv) shift_keys_for_dq(plan, chunk, sums, at, middle, middle + 1, d0, d1);
    for (long first = 0, n; first < at.s; first += n) {
        n = least(plan->chunk, (first < before ? before : at.s) - first);
        load_keys_for_dq(plan, chunk, at, first, n, d0, d1);
        if (first >= before) {
            panel_rows(chunk->kp + d0 * panel, panel, chunk->kx + d0 * 16, plan->ldx, d1 - d0, NULL, n);
            transpose(chunk->vt, dq_columns(plan) * 16, chunk->v, plan->lde, n, dq_columns(plan));
            for (long g = 0; g < plan->groups; g++) {
                load_queries(plan, chunk, at, at.hk * plan->groups + g, first - before, n, FOR_DQ);
                queries_dq(plan, chunk, sums, at, at.hk * plan->groups + g, first - before, n, d0, d1);
            }
        }
        if (first + n == at.s) break;
        absorb_keys_for_dq(plan, chunk, sums, n, d0, d1);
        shift_keys_for_dq(plan, chunk, sums, at, first + n + middle, n, d0, d1);
    }
}

/* ---- dk and dv ---- */

static void start_r(const plan_t *plan, sums_t *sums, head_t at, long e0, long e1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk;
    load_state(plan, sums->queries + e0 * plan->Fr * 16, call->g_kv ? call->g_kv + head * plan->F * plan->E : NULL, e0, e1);
    memset(sums->queries_b, 0, 4 * (size_t)plan->ldf);
    if (call->g_z) memcpy(sums->queries_b, call->g_z + head * plan->F, 4 * (size_t)plan->F);
}

static void finish_r(const plan_t *plan, const sums_t *sums, head_t at, long e0, long e1) {
    const call_t *call = plan->call;
    long head = at.b * call->Hk + at.hk;
    if (call->cu) return;
    store_state(plan, call->dkv + head * plan->F * plan->E, sums->queries + e0 * plan->Fr * 16, e0, e1);
    if (e0 == 0) memcpy(call->dz + head * plan->F, sums->queries_b, 4 * (size_t)plan->F);
}

static void transpose_r(const plan_t *plan, sums_t *sums) {
    for (long half = 0; half < plan->halves; half++) {
        float *to = sums->queries_t + half * plan->nd * plan->Er * 16;
        for (long e = 0; e < plan->ne; e++)
            transpose(to + e * 256, plan->Er * 16, sums->queries + (e * plan->Fr + half * plan->D) * 16, 16, plan->D,
                      least(16, plan->E - e * 16));
        for (long d = 0; d < plan->D; d++)
            to[(d / 16 * plan->Er + plan->E) * 16 + d % 16] = sums->queries_b[half * plan->D + d];
    }
}

/* b beside g, where the dq pass found it. */
static void column_of_b(const plan_t *plan, chunk_t *chunk, head_t at, long h, long first, long n) {
    const float *b = plan->call->b + (at.b * plan->call->H + h) * plan->call->N + at.row + first;
    add_column(plan, (values_t){.rows = chunk->g}, b, chunk->qat, n);
}

static void absorb_queries(const plan_t *plan, const chunk_t *chunk, sums_t *sums, long n, long e0, long e1) {
    accumulate(sums->queries + e0 * plan->Fr * 16, plan->Fr * 16, plan->F, e1 - e0, chunk->qphi, plan->ldf,
               chunk->gp + e0 * plan->chunk * 16, plan->chunk * 16, 16, n, (ahead_t){0});
    for (long i = 0; i < plan->F; i += 2 * WIDTH) {
        vec total[2] = {load(sums->queries_b + i), load(sums->queries_b + i + WIDTH)};
        for (long r = 0; r < n; r++)
            for (int l = 0; l < 2; l++)
                total[l] += chunk->g[r * plan->lde + plan->E] * load(chunk->qphi + r * plan->ldf + i + l * WIDTH);
        store(sums->queries_b + i, total[0]), store(sums->queries_b + i + WIDTH, total[1]);
    }
}

/* dk and dv of n keys from `first`. With R as above, k' = relu(k), and c, s the cosine and sine of the key's position:
 *
 *   loss = ... + sum over queries i that see key j of  w_ij (g_i . v_j + b_i),   w_ij = phi(q_i) . phi(k_j)
 *   dv_j = sum_i w_ij g_i                    = phi(k_j) R_g                    R_g, R_b: the columns of R that hold g and b
 *   dphi_j = sum_i phi(q_i) (g_i . v_j + b_i) = R_g v_j + R_b = R [v_j, 1]
 *   dk'_j = c dphi_j(cosine half) + s dphi_j(sine half) = R_cos [v_j, 1] c + R_sin [v_j, 1] s,   dk = dk' where k > 0
 *
 * R holds the queries of later chunks (causal), or all of them. The queries of the same chunk (`with_queries`) are added pair
 * by pair, because each key sees only those that come no earlier: with scores_ji = k'_j . q'_i cos(i - j) and
 * pairs_ji = (v_j . g_i + b_i) cos(i - j), both zero for i < j,  dv_j += scores_ji g_i  and  dk'_j += pairs_ji q'_i.
 * Then these queries join R, for the keys before them. */
static void keys_dkv(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at, long first, long n, int with_queries) {
    const call_t *call = plan->call;
    const uint8_t *mask = mask_of(call, at, first);
    long panel = plan->chunk * 16, columns = (plan->E + 1) * 16;
    chunk->kat = angles(chunk->kcos, plan->k_turn, call->k_first + first, call->k_len, n);
    factors_t by = key_factors(&plan->decay, at.hk);
    load_features(plan, chunk->kx, chunk->kphi, rows_of(plan, call->k, call->ks, at.b, at.hk, at.row + first), mask, by,
                  chunk->kat, n);
    values_t v = {.rows = chunk->v, .cos = chunk->vc, .sin = chunk->vs};
    load_values(plan, v, rows_of(plan, call->v, call->vs, at.b, at.hk, at.row + first), mask, NULL, chunk->kat, n);
    add_column(plan, v, NULL, chunk->kat, n);
    term_t for_dk[3], for_dv[2] = {{chunk->kphi, plan->ldf, sums->queries, plan->Fr * 16, 16, plan->F, FULL},
                                   {chunk->scores, plan->chunk, chunk->gp, panel, 16, n, UPPER}};
    int count = 0;
    if (plan->halves == 2) {
        for_dk[count++] = (term_t){chunk->vc, plan->lde, sums->queries_t, plan->Er * 16, 16, plan->E + 1, FULL};
        const float *sine = sums->queries_t + plan->nd * plan->Er * 16;
        for_dk[count++] = (term_t){chunk->vs, plan->lde, sine, plan->Er * 16, 16, plan->E + 1, FULL};
    } else {
        for_dk[count++] = (term_t){chunk->v, plan->lde, sums->queries_t, plan->Er * 16, 16, plan->E + 1, FULL};
    }
    long step = with_queries ? -plan->chunk : n; /* the causal pass goes backwards */
    rows_t key = rows_of(plan, call->k, call->ks, at.b, at.hk, at.row + first + step);
    rows_t value = rows_of(plan, call->v, call->vs, at.b, at.hk, at.row + first + step);
    ahead_t keys = ahead_of(plan, key, value, with_queries ? least(plan->chunk, first) : least(plan->chunk, at.s - first - n));
    for_dk[count] = (term_t){chunk->pairs, plan->chunk, chunk->qp, panel, 16, n, UPPER};
    rows_t dk = rows_of(plan, call->dk, call->dks, at.b, at.hk, at.row + first);
    rows_t dv = rows_as(call->out_dtype, call->dv, call->dvs, at.b, at.hk, at.row + first);
    int alone = !mask && !(with_queries && plan->groups > 1); /* sums are final, and none of their rows is left out */
    int direct_k = alone && !by.rows && plan->D % 16 == 0, direct_v = alone && plan->E % 16 == 0;
    target_t to_k = direct_k ? target_of(dk, 0, call->dtype) : (target_t){.data = (char *)chunk->dx, .ld = plan->ldx};
    target_t to_v = direct_v ? target_of(dv, 0, call->out_dtype) : (target_t){.data = (char *)chunk->dv, .ld = plan->lde};
    const float *gate = call->relu ? chunk->kx : NULL; /* of the final sums */
    to_k.ldg = plan->ldx;
    if (!with_queries) {
        to_k.gate = gate;
        combine(to_k, n, plan->nd, for_dk, count, keys);
        combine(to_v, n, plan->ne, for_dv, 1, (ahead_t){0});
    }
    for (long g = 0; g < plan->groups && with_queries; g++) {
        long h = at.hk * plan->groups + g, query = first - (at.s - at.n);
        load_queries(plan, chunk, at, h, query, n, FOR_R);
        if (finds_b(call)) column_of_b(plan, chunk, at, h, query, n);
        transpose(chunk->qt, plan->Dp * 16, chunk->qx, plan->ldx, n, plan->D);
        panel_rows(chunk->qp, panel, chunk->qx, plan->ldx, plan->nd, NULL, n);
        transpose(chunk->gt, columns, chunk->g, plan->lde, n, plan->E + 1);
        triangle(chunk->pairs, plan->chunk, n, 1, chunk->v, plan->lde, chunk->gt, columns, plan->E + 1, near_of(plan));
        triangle(chunk->scores, plan->chunk, n, 1, chunk->kx, plan->ldx, chunk->qt, plan->Dp * 16, plan->D, near_of(plan));
        int skip_k = g ? count : 0, skip_v = g ? 1 : 0; /* the part from R counts once */
        rows_t q = rows_of(plan, call->q, call->qs, at.b, h, at.row + query - plan->chunk);
        rows_t grad = rows_of(plan, call->g_out, call->gs, at.b, h, at.row + query - plan->chunk);
        ahead_t queries = ahead_of(plan, q, grad, least(plan->chunk, query));
        if (g) {
            to_k.add = (float *)to_k.data, to_v.add = (float *)to_v.data;
            to_k.ld_add = to_k.ld, to_v.ld_add = to_v.ld;
        } else if (call->sums) {
            rows_t sums_v = rows_as(F32, (const char *)call->sums, call->ss, at.b, at.hk, at.row + first);
            add_sums(&to_v, direct_v, sums_v, 0, plan->E, n);
        }
        to_k.gate = g + 1 == plan->groups ? gate : NULL;
        combine(to_k, n, plan->nd, for_dk + skip_k, count + 1 - skip_k, keys);
        combine(to_v, n, plan->ne, for_dv + skip_v, 2 - skip_v, queries);
        absorb_queries(plan, chunk, sums, n, 0, plan->ne);
    }
    for (long r = 0; mask && r < n; r++)
        if (!mask[r]) {
            memset(chunk->dx + r * plan->ldx, 0, 4 * (size_t)plan->Dp);
            memset(chunk->dv + r * plan->lde, 0, 4 * (size_t)plan->Ep);
        }
    if (by.rows) decay_rows(chunk->dx, plan->ldx, by, 0, plan->nd, n);
    if (!direct_k) store_rows(dk, call->dtype, chunk->dx, plan->ldx, 0, plan->D, n);
    if (!direct_v) store_rows(dv, call->out_dtype, chunk->dv, plan->lde, 0, plan->E, n);
}

/* With decay, R as it is seen from position `to`; it was seen from `*from`. */
static void shift_queries(const plan_t *plan, const chunk_t *chunk, sums_t *sums, head_t at, long *from, long to) {
    if (!plan->decay.block) return;
    shift_t by = shift_by(&plan->decay, plan->call, at.hk, *from - to, chunk->room);
    shift_state(plan, sums->queries, sums->queries_b, plan->ne, by, plan->call->k_first + to);
    *from = to;
}

static void causal_dkv(const plan_t *plan, chunk_t *chunk, sums_t *sums, head_t at) {
    long before = at.s - at.n, seen_from = at.s - 1, middle = plan->chunk / 2;
    start_r(plan, sums, at, 0, plan->ne);
    for (long first = (at.n - 1) / plan->chunk * plan->chunk; first >= 0 && at.n; first -= plan->chunk) {
        shift_queries(plan, chunk, sums, at, &seen_from, before + first + middle);
        transpose_r(plan, sums);
        keys_dkv(plan, chunk, sums, at, before + first, least(plan->chunk, at.n - first), 1);
    }
    if (before) transpose_r(plan, sums);
    for (long i = 0, chunks = (before + plan->chunk - 1) / plan->chunk; i < chunks; i++) {
        long first = (plan->decay.block ? chunks - 1 - i : i) * plan->chunk;
        if (plan->decay.block) {
            shift_queries(plan, chunk, sums, at, &seen_from, first + middle);
            transpose_r(plan, sums);
        }
        keys_dkv(plan, chunk, sums, at, first, least(plan->chunk, before - first), 0);
    }
    shift_queries(plan, chunk, sums, at, &seen_from, -1); /* where the incoming state ends */
    finish_r(plan, sums, at, 0, plan->ne);
}
