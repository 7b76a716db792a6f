/* Backward passes. Included once per instruction set, after forward.h.
 *
 * With g = dL/dnumerator (E wide) and b = dL/ddenominator of every query, phi the features:
 *   dq   from the sum of phi(k) v^T over the keys a query sees       ("dq" below; kept transposed: rows are channels of v)
 *   dk, dv from R = sum of phi(q) [g, b]^T over the queries that see a key
 * float32 takes b from the saved output, b = -(g . out). A rounded output would spoil it, so bfloat16 finds g . numerator as
 * q' . dq (the part of dq that comes from the numerator), and its dq pass comes first. */

typedef struct {
    /* of a chunk of keys */
    float *kx, *kphi, *kcos, *kp, *kfp; /* rows, features; panels of rows [nd], panels of features [nf], chunk rows each */
    float *v, *vc, *vs, *vt;            /* rows [v, 1], times cosine, times sine, transposed [chunk / 16][E][16] */
    angles_t kat;
    /* of a chunk of queries */
    float *qx, *qphi, *qcos, *qt, *qp;
    float *g, *gc, *gs, *gt, *gp, *inverse; /* rows [g, b] and the same forms */
    angles_t qat;
    float *p, *w, *dx, *dv; /* scores inside the chunk, results before rounding */
    float *zrun;
} chunk_t;

static chunk_t cut_chunk(const plan_t *p, arena_t *arena) {
    long rows = p->chunk + 16, x = rows * p->ldx, e = rows * p->lde, panels = p->chunk * p->Dp;
    chunk_t c;
    c.kx = cut(arena, x), c.kphi = cut(arena, rows * p->ldf), c.kcos = cut(arena, ANGLES), c.kp = cut(arena, panels);
    c.kfp = cut(arena, 2 * panels), c.v = cut(arena, e), c.vc = cut(arena, e), c.vs = cut(arena, e);
    c.vt = cut(arena, p->chunk * (p->Ep + 16));
    c.qx = cut(arena, x), c.qphi = cut(arena, rows * p->ldf), c.qcos = cut(arena, ANGLES), c.qt = cut(arena, panels);
    c.qp = cut(arena, panels), c.g = cut(arena, e), c.gc = cut(arena, e), c.gs = cut(arena, e);
    c.gt = cut(arena, p->chunk * (p->Ep + 16)), c.gp = cut(arena, p->chunk * p->Ep), c.inverse = cut(arena, rows);
    c.p = cut(arena, rows * p->chunk), c.w = cut(arena, rows * p->chunk), c.dx = cut(arena, x), c.dv = cut(arena, e);
    c.zrun = cut(arena, 2 * p->Dp);
    return c;
}

/* Sums over a whole head, or up to the present chunk. */
typedef struct {
    float *at, *z; /* phi(k) v^T as panels of features [nf][Er][16]; its normaliser [halves][Dp] */
    float *r, *rz; /* phi(q) g^T as panels of values [ne][Fr][16]; its column of b [F] */
    float *rt;     /* r and rz transposed, [nf][Er][16] */
} sums_t;

static sums_t cut_sums(const plan_t *p, arena_t *arena) {
    sums_t s;
    s.at = cut(arena, p->nf * p->Er * 16), s.z = cut(arena, 2 * p->Dp);
    s.r = cut(arena, p->ne * p->Fr * 16 + 64), s.rz = cut(arena, p->ldf), s.rt = cut(arena, p->nf * p->Er * 16);
    return s;
}

static const uint8_t *mask_of(const call_t *call, head_t at, long first) {
    return call->mask ? call->mask + at.b * call->S + first : NULL;
}

/* ---- dq ---- */

/* Whether b is found by the dq pass (else it comes from the saved output, before). Without causality dq comes first anyway. */
static int finds_b(const call_t *call) { return !call->causal || call->dtype != F32; }

/* Columns of the values in the dq pass: where b is known it is one more, beside a column of ones in v, and the normaliser
 * one more row of the sums. */
INLINE long dq_columns(const plan_t *p) { return p->E + !finds_b(p->call); }

/* Keys as the dq pass needs them: feature panels d0 to d1 of each half. */
static void load_keys_for_dq(const plan_t *p, chunk_t *c, head_t at, long first, long n, long d0, long d1) {
    const call_t *call = p->call;
    const uint8_t *mask = mask_of(call, at, first);
    c->kat = angles(c->kcos, p->k_turn, call->k_first + first, call->k_len, n);
    load_features(p, c->kx, NULL, rows_of(p, call->k, call->ks, at.b, at.hk, at.row + first), mask, c->kat, n);
    values_t v = {.rows = c->v};
    load_values(p, v, rows_of(p, call->v, call->vs, at.b, at.hk, at.row + first), mask, NULL, c->kat, n);
    if (!finds_b(call)) add_column(p, v, NULL, c->kat, n);
    long panel = p->chunk * 16;
    for (long half = 0; half < p->halves; half++)
        panel_rows(c->kfp + (half * p->nd + d0) * panel, panel, c->kx + d0 * 16, p->ldx, d1 - d0,
                   p->halves == 1 ? NULL : half ? c->kat.sin : c->kat.cos, n);
}

static void absorb_keys_for_dq(const plan_t *p, const chunk_t *c, sums_t *s, long n, long d0, long d1) {
    long panel = p->chunk * 16;
    for (long half = 0; half < p->halves; half++) {
        long f = half * p->nd + d0;
        accumulate(s->at + f * p->Er * 16, p->Er * 16, dq_columns(p), d1 - d0, c->v, p->lde, c->kfp + f * panel, panel, 16, n,
                   (ahead_t){0});
        if (!finds_b(p->call)) continue;
        memset(c->zrun, 0, 4 * (size_t)p->Dp);
        const float *turn = p->halves == 1 ? NULL : half ? c->kat.sin : c->kat.cos;
        for (long r = 0; r < n; r++)
            for (long i = 0; i < p->Dp; i += WIDTH)
                store(c->zrun + i, load(c->zrun + i) + load(c->kx + r * p->ldx + i) * (turn ? turn[r] : 1));
        for (long i = 0; i < p->Dp; i++) s->z[half * p->Dp + i] += c->zrun[i];
    }
}

/* The state a head starts from (or, without causality, has seen in the end), transposed. */
static void load_sums(const plan_t *p, sums_t *s, const float *kv, const float *z, long d0, long d1) {
    memset(s->z, 0, 8 * (size_t)p->Dp);
    for (long half = 0; half < p->halves; half++) {
        if (z) memcpy(s->z + half * p->Dp, z + half * p->D, 4 * (size_t)p->D);
        for (long d = d0; d < d1; d++) {
            float *panel = s->at + (half * p->nd + d) * p->Er * 16;
            memset(panel, 0, 64 * (size_t)p->Er);
            for (long i = 0; i < least(16, p->D - d * 16); i++) {
                long f = half * p->D + d * 16 + i;
                for (long e = 0; kv && e < p->E; e++) panel[e * 16 + i] = kv[f * p->E + e];
                if (z && !finds_b(p->call)) panel[p->E * 16 + i] = z[f];
            }
        }
    }
}

/* Queries and their gradients g, for dq (g turned) and for R (features; g as panels). */
enum { FOR_DQ = 1, FOR_R = 2 };

static void load_queries(const plan_t *p, chunk_t *c, head_t at, long h, long first, long n, int what) {
    const call_t *call = p->call;
    long row = (at.b * call->H + h) * call->N + at.row + first;
    c->qat = angles(c->qcos, p->q_turn, call->q_first + first, call->q_len, n);
    rows_t q = rows_of(p, call->q, call->qs, at.b, h, at.row + first);
    load_features(p, c->qx, what & FOR_R ? c->qphi : NULL, q, NULL, c->qat, n);
    memcpy(c->inverse, call->den + row, 4 * (size_t)n);
    invert(call, c->inverse, n);
    int turned = what & FOR_DQ;
    values_t g = {c->g, turned ? c->gc : NULL, turned ? c->gs : NULL, what & FOR_R ? c->gp : NULL};
    load_values(p, g, rows_of(p, call->g_out, call->gs, at.b, h, at.row + first), NULL, c->inverse, c->qat, n);
    if (!finds_b(call)) add_column(p, g, call->b + row, c->qat, n);
}

/* The normaliser's part of dq, where b is found here, and what ReLU lets through; to the tensor. */
static void finish_dq(const plan_t *p, chunk_t *c, const sums_t *s, rows_t dq, long row, long n) {
    const call_t *call = p->call;
    memcpy(c->zrun, s->z, 8 * (size_t)p->Dp);
    for (long r = 0; r < n; r++) {
        float *x = c->qx + r * p->ldx, *d = c->dx + r * p->ldx;
        const float *key = c->kx + r * p->ldx;
        float b = -dot(x, d, p->Dp) * c->inverse[r] * divisor_slope(call, call->den[row + r]);
        float qc = p->halves == 2 ? c->qat.cos[r] : 1, qs = p->halves == 2 ? c->qat.sin[r] : 0;
        float kc = call->causal && p->halves == 2 ? c->kat.cos[r] : 1, ks = call->causal && p->halves == 2 ? c->kat.sin[r] : 0;
        call->b[row + r] = b;
        for (long i = 0; i < p->Dp; i += WIDTH) {
            vec zc = load(c->zrun + i), zs = load(c->zrun + p->Dp + i), one = load(x + i);
            if (call->causal) {
                zc += kc * load(key + i), zs += ks * load(key + i);
                store(c->zrun + i, zc), store(c->zrun + p->Dp + i, zs);
            }
            vec sum = load(d + i) + b * (qc * zc + qs * zs);
            store(d + i, call->relu ? keep(~(one <= 0), sum) : sum);
        }
        store_row(dq.data + r * dq.stride, d, p->D, call->dtype);
    }
}

/* n queries from `first` of head h; the keys of the same positions are in the chunk when causal. Channels of panels d0 to d1:
 * all of them where b is found here. */
static void queries_dq(const plan_t *p, chunk_t *c, const sums_t *s, head_t at, long h, long first, long n, long d0, long d1) {
    const call_t *call = p->call;
    long panel = p->chunk * 16, columns = dq_columns(p);
    term_t terms[3];
    int count = 0;
    const float *sum = s->at + d0 * p->Er * 16;
    if (p->halves == 2) {
        terms[count++] = (term_t){c->gc, p->lde, sum, p->Er * 16, 16, columns, FULL};
        terms[count++] = (term_t){c->gs, p->lde, sum + p->nd * p->Er * 16, p->Er * 16, 16, columns, FULL};
    } else {
        terms[count++] = (term_t){c->g, p->lde, sum, p->Er * 16, 16, columns, FULL};
    }
    if (call->causal) {
        triangle(c->p, p->chunk, n, 0, c->g, p->lde, c->vt, columns * 16, columns, near_of(p));
        terms[count++] = (term_t){c->p, p->chunk, c->kp + d0 * panel, panel, 16, n, LOWER};
    }
    rows_t dq = rows_of(p, call->dq, call->dqs, at.b, h, at.row + first);
    int direct = !finds_b(call) && p->D % 16 == 0;
    target_t to = direct ? target_of(p, dq, d0) : (target_t){.data = (char *)(c->dx + d0 * 16), .ld = p->ldx};
    if (!finds_b(call) && call->relu) to.gate = c->qx + d0 * 16, to.ldg = p->ldx;
    rows_t next = rows_of(p, call->q, call->qs, at.b, h, at.row + first + n);
    rows_t grad = rows_of(p, call->g_out, call->gs, at.b, h, at.row + first + n);
    combine(to, n, d1 - d0, terms, count, ahead_of(p, next, grad, least(p->chunk, at.n - first - n)));
    if (finds_b(call)) finish_dq(p, c, s, dq, (at.b * call->H + h) * call->N + at.row + first, n);
    else if (!direct) store_rows(p, dq, c->dx + d0 * 16, p->ldx, d0 * 16, least(p->D, d1 * 16), n);
}

/* The causal dq of one head, channels of panels d0 to d1. */
static void causal_dq(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long d0, long d1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk, before = at.s - at.n, panel = p->chunk * 16;
    load_sums(p, s, call->kv ? call->kv + head * p->F * p->E : NULL, call->z ? call->z + head * p->F : NULL, d0, d1);
    for (long first = 0, n; first < at.s; first += n) {
        n = least(p->chunk, (first < before ? before : at.s) - first);
        load_keys_for_dq(p, c, at, first, n, d0, d1);
        if (first >= before) {
            panel_rows(c->kp + d0 * panel, panel, c->kx + d0 * 16, p->ldx, d1 - d0, NULL, n);
            transpose(c->vt, dq_columns(p) * 16, c->v, p->lde, n, dq_columns(p));
            for (long g = 0; g < p->groups; g++) {
                load_queries(p, c, at, at.hk * p->groups + g, first - before, n, FOR_DQ);
                queries_dq(p, c, s, at, at.hk * p->groups + g, first - before, n, d0, d1);
            }
        }
        if (first + n < at.s) absorb_keys_for_dq(p, c, s, n, d0, d1);
    }
}

/* ---- dk and dv ---- */

static void start_r(const plan_t *p, sums_t *s, head_t at, long e0, long e1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk;
    load_state(p, s->r + e0 * p->Fr * 16, call->g_kv ? call->g_kv + head * p->F * p->E : NULL, e0, e1);
    memset(s->rz, 0, 4 * (size_t)p->ldf);
    if (call->g_z) memcpy(s->rz, call->g_z + head * p->F, 4 * (size_t)p->F);
}

static void finish_r(const plan_t *p, const sums_t *s, head_t at, long e0, long e1) {
    const call_t *call = p->call;
    long head = at.b * call->Hk + at.hk;
    if (call->cu) return;
    store_state(p, call->dkv + head * p->F * p->E, s->r + e0 * p->Fr * 16, e0, e1);
    if (e0 == 0) memcpy(call->dz + head * p->F, s->rz, 4 * (size_t)p->F);
}

static void transpose_r(const plan_t *p, sums_t *s) {
    for (long half = 0; half < p->halves; half++) {
        float *to = s->rt + half * p->nd * p->Er * 16;
        for (long e = 0; e < p->ne; e++)
            transpose(to + e * 256, p->Er * 16, s->r + (e * p->Fr + half * p->D) * 16, 16, p->D, least(16, p->E - e * 16));
        for (long d = 0; d < p->D; d++) to[(d / 16 * p->Er + p->E) * 16 + d % 16] = s->rz[half * p->D + d];
    }
}

/* b beside g, where the dq pass found it. */
static void column_of_b(const plan_t *p, chunk_t *c, head_t at, long h, long first, long n) {
    const float *b = p->call->b + (at.b * p->call->H + h) * p->call->N + at.row + first;
    add_column(p, (values_t){.rows = c->g}, b, c->qat, n);
}

static void absorb_queries(const plan_t *p, const chunk_t *c, sums_t *s, long n, long e0, long e1) {
    accumulate(s->r + e0 * p->Fr * 16, p->Fr * 16, p->F, e1 - e0, c->qphi, p->ldf, c->gp + e0 * p->chunk * 16, p->chunk * 16, 16,
               n, (ahead_t){0});
    for (long i = 0; i < p->F; i += 2 * WIDTH) {
        vec total[2] = {load(s->rz + i), load(s->rz + i + WIDTH)};
        for (long r = 0; r < n; r++)
            for (int l = 0; l < 2; l++) total[l] += c->g[r * p->lde + p->E] * load(c->qphi + r * p->ldf + i + l * WIDTH);
        store(s->rz + i, total[0]), store(s->rz + i + WIDTH, total[1]);
    }
}

/* n keys from `first`: what later chunks (or all queries) give, and in the causal case the queries of the same positions. */
static void keys_dkv(const plan_t *p, chunk_t *c, sums_t *s, head_t at, long first, long n, int with_queries) {
    const call_t *call = p->call;
    const uint8_t *mask = mask_of(call, at, first);
    long panel = p->chunk * 16, columns = (p->E + 1) * 16;
    c->kat = angles(c->kcos, p->k_turn, call->k_first + first, call->k_len, n);
    load_features(p, c->kx, c->kphi, rows_of(p, call->k, call->ks, at.b, at.hk, at.row + first), mask, c->kat, n);
    values_t v = {.rows = c->v, .cos = c->vc, .sin = c->vs};
    load_values(p, v, rows_of(p, call->v, call->vs, at.b, at.hk, at.row + first), mask, NULL, c->kat, n);
    add_column(p, v, NULL, c->kat, n);
    term_t for_dk[3], for_dv[2] = {{c->kphi, p->ldf, s->r, p->Fr * 16, 16, p->F, FULL}, {c->w, p->chunk, c->gp, panel, 16, n, UPPER}};
    int count = 0;
    if (p->halves == 2) {
        for_dk[count++] = (term_t){c->vc, p->lde, s->rt, p->Er * 16, 16, p->E + 1, FULL};
        for_dk[count++] = (term_t){c->vs, p->lde, s->rt + p->nd * p->Er * 16, p->Er * 16, 16, p->E + 1, FULL};
    } else {
        for_dk[count++] = (term_t){c->v, p->lde, s->rt, p->Er * 16, 16, p->E + 1, FULL};
    }
    long step = with_queries ? -p->chunk : n; /* the causal pass goes backwards */
    rows_t key = rows_of(p, call->k, call->ks, at.b, at.hk, at.row + first + step);
    rows_t value = rows_of(p, call->v, call->vs, at.b, at.hk, at.row + first + step);
    ahead_t keys = ahead_of(p, key, value, with_queries ? least(p->chunk, first) : least(p->chunk, at.s - first - n));
    for_dk[count] = (term_t){c->p, p->chunk, c->qp, panel, 16, n, UPPER};
    rows_t dk = rows_of(p, call->dk, call->dks, at.b, at.hk, at.row + first);
    rows_t dv = rows_of(p, call->dv, call->dvs, at.b, at.hk, at.row + first);
    int alone = !mask && !(with_queries && p->groups > 1); /* sums are final, and none of their rows is left out */
    int direct_k = alone && p->D % 16 == 0, direct_v = alone && p->E % 16 == 0;
    target_t to_k = direct_k ? target_of(p, dk, 0) : (target_t){.data = (char *)c->dx, .ld = p->ldx};
    target_t to_v = direct_v ? target_of(p, dv, 0) : (target_t){.data = (char *)c->dv, .ld = p->lde};
    const float *gate = call->relu ? c->kx : NULL; /* of the final sums */
    to_k.ldg = p->ldx;
    if (!with_queries) {
        to_k.gate = gate;
        combine(to_k, n, p->nd, for_dk, count, keys);
        combine(to_v, n, p->ne, for_dv, 1, (ahead_t){0});
    }
    for (long g = 0; g < p->groups && with_queries; g++) {
        long h = at.hk * p->groups + g, query = first - (at.s - at.n);
        load_queries(p, c, at, h, query, n, FOR_R);
        if (finds_b(call)) column_of_b(p, c, at, h, query, n);
        transpose(c->qt, p->Dp * 16, c->qx, p->ldx, n, p->D);
        panel_rows(c->qp, panel, c->qx, p->ldx, p->nd, NULL, n);
        transpose(c->gt, columns, c->g, p->lde, n, p->E + 1);
        triangle(c->p, p->chunk, n, 1, c->v, p->lde, c->gt, columns, p->E + 1, near_of(p));
        triangle(c->w, p->chunk, n, 1, c->kx, p->ldx, c->qt, p->Dp * 16, p->D, near_of(p));
        int skip_k = g ? count : 0, skip_v = g ? 1 : 0; /* the part from R counts once */
        rows_t q = rows_of(p, call->q, call->qs, at.b, h, at.row + query - p->chunk);
        rows_t grad = rows_of(p, call->g_out, call->gs, at.b, h, at.row + query - p->chunk);
        ahead_t queries = ahead_of(p, q, grad, least(p->chunk, query));
        to_k.add = to_v.add = g > 0;
        to_k.gate = g + 1 == p->groups ? gate : NULL;
        combine(to_k, n, p->nd, for_dk + skip_k, count + 1 - skip_k, keys);
        combine(to_v, n, p->ne, for_dv + skip_v, 2 - skip_v, queries);
        absorb_queries(p, c, s, n, 0, p->ne);
    }
    for (long r = 0; mask && r < n; r++)
        if (!mask[r]) memset(c->dx + r * p->ldx, 0, 4 * (size_t)p->Dp), memset(c->dv + r * p->lde, 0, 4 * (size_t)p->Ep);
    if (!direct_k) store_rows(p, dk, c->dx, p->ldx, 0, p->D, n);
    if (!direct_v) store_rows(p, dv, c->dv, p->lde, 0, p->E, n);
}

static void causal_dkv(const plan_t *p, chunk_t *c, sums_t *s, head_t at) {
    long before = at.s - at.n;
    start_r(p, s, at, 0, p->ne);
    for (long first = (at.n - 1) / p->chunk * p->chunk; first >= 0 && at.n; first -= p->chunk) {
        transpose_r(p, s);
        keys_dkv(p, c, s, at, before + first, least(p->chunk, at.n - first), 1);
    }
    if (before) transpose_r(p, s);
    for (long first = 0; first < before; first += p->chunk) keys_dkv(p, c, s, at, first, least(p->chunk, before - first), 0);
    finish_r(p, s, at, 0, p->ne);
}
