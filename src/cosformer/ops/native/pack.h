/* From tensors to the packed chunks the products read, and back. Included once per instruction set, after vector.h. */

enum { MOST_ROWS = 96, PADDED_ROWS = MOST_ROWS + 16 }; /* of a chunk; and of its last panel or tile */

/* Sizes that follow from the call, and the angles of the positions inside a chunk (from float64). */
typedef struct {
    const call_t *call;
    long chunk;                      /* positions in a chunk */
    long D, E, F, Dp, Ep;            /* p: rounded up to whole panels */
    long nd, ne, nf;                 /* panels of D, of E, of all features (two times nd with angles) */
    long halves;                     /* 2 with angles (cosine half, sine half), else 1 */
    long ldx, ldf, lde;              /* row lengths: channels of q and k, features, channels of v (and one more) */
    long Fr, Er;                     /* F and E + 1, rounded up to whole tiles */
    long groups;                     /* query heads of one key head */
    size_t size;                     /* bytes of one element of q, k, v */
    double q_turn[2][MOST_ROWS], k_turn[2][MOST_ROWS]; /* cosine and sine of r steps */
    float apart[2 * PADDED_ROWS];    /* cosine of r - PADDED_ROWS steps, causal */
    decay_t decay;
} plan_t;

/* An odd number of cache lines, so that rows of a chunk do not compete for the same places of the cache. */
INLINE long row_length(long n) { return 16 * (round_up(n, 16) / 16 | 1); }

static void turns(double to[2][MOST_ROWS], int64_t length, long n) {
    for (long r = 0; r < n; r++) {
        double angle = length ? M_PI_2 * r / (double)length : 0;
        to[0][r] = cos(angle), to[1][r] = sin(angle);
    }
}

static plan_t make_plan(const call_t *call, long chunk) {
    plan_t plan = {.call = call, .chunk = chunk, .D = call->D, .E = call->E, .groups = call->H / call->Hk};
    plan.halves = call->k_len ? 2 : 1;
    plan.F = plan.halves * plan.D;
    plan.Dp = round_up(plan.D, 16), plan.Ep = round_up(plan.E, 16);
    plan.nd = plan.Dp / 16, plan.ne = plan.Ep / 16, plan.nf = plan.halves * plan.nd;
    plan.Fr = round_up(plan.F, ROWS), plan.Er = round_up(plan.E + 1, ROWS);
    plan.ldx = row_length(plan.Dp), plan.ldf = row_length(plan.D + plan.Dp + ROWS), plan.lde = row_length(plan.Ep + 1 + ROWS);
    plan.size = call->dtype == F32 ? 4 : 2;
    turns(plan.q_turn, call->q_len, chunk);
    if (call->k_len == call->q_len) memcpy(plan.k_turn, plan.q_turn, sizeof plan.k_turn);
    else turns(plan.k_turn, call->k_len, chunk);
    for (long r = 0; call->causal && r < chunk; r++)
        plan.apart[PADDED_ROWS + r] = plan.apart[PADDED_ROWS - r] = (float)plan.k_turn[0][r];
    return plan;
}

/* Cosines by distance inside a causal chunk, where queries and keys have the same positions. */
INLINE const float *near_of(const plan_t *plan) { return plan->halves == 2 ? plan->apart + PADDED_ROWS : NULL; }

/* Products inside a causal chunk grow with its length, the traffic of the state with its inverse. */
static long chunk_for(const call_t *call) {
    if (!call->causal) return WHOLE_CHUNK;
    return chunk_with_decay(call, call->D + call->E <= 2 * SMALL ? SMALL_CHUNK : CAUSAL_CHUNK);
}

typedef struct {
    const float *cos, *sin; /* of the chunk's positions; NULL without angles */
} angles_t;

/* Cosines and sines of the angles of n positions from `first`: one evaluation, then a rotation in float64. */
static angles_t angles(float *to, const double turn[2][MOST_ROWS], int64_t first, int64_t length, long n) {
    if (!length) return (angles_t){NULL, NULL};
    double angle = M_PI_2 * (double)first / (double)length, c = cos(angle), s = sin(angle);
    for (long r = 0; r < n; r++) {
        to[r] = (float)(c * turn[0][r] - s * turn[1][r]);
        to[PADDED_ROWS + r] = (float)(s * turn[0][r] + c * turn[1][r]);
    }
    return (angles_t){to, to + PADDED_ROWS};
}
enum { ANGLES = 2 * PADDED_ROWS }; /* floats */

/* Rows of one head of one sequence of a tensor. */
typedef struct {
    char *data;
    long stride; /* bytes from row to row */
} rows_t;

INLINE long size_of(int64_t dtype) { return dtype == F32 ? 4 : 2; }

INLINE rows_t rows_as(int64_t dtype, const char *data, const int64_t strides[3], long b, long h, long row) {
    /* as integers: rows to be fetched ahead may lie outside, and are then not read */
    uintptr_t offset = (uintptr_t)(b * strides[0] + h * strides[1] + row * strides[2]) * (uintptr_t)size_of(dtype);
    return (rows_t){(char *)((uintptr_t)data + offset), strides[2] * size_of(dtype)};
}

INLINE rows_t rows_of(const plan_t *plan, const char *data, const int64_t strides[3], long b, long h, long row) {
    return rows_as(plan->call->dtype, data, strides, b, h, row);
}

INLINE rows_t out_rows(const call_t *call, long b, long h, long row) {
    return rows_as(call->out_dtype, call->out, call->os, b, h, row);
}

/* Results straight into a tensor, from panel e0 on; whole panels only. */
INLINE target_t target_of(rows_t to, long e0, int64_t dtype) {
    long size = size_of(dtype);
    return (target_t){.data = to.data + e0 * 16 * size, .ld = to.stride / size, .half = dtype == BF16};
}

/* Up to `rows` rows of two tensors, to be fetched ahead; of the second none where it has no data. */
INLINE ahead_t ahead_of(const plan_t *plan, rows_t x, rows_t value, long rows) {
    return (ahead_t){.of = {{x.data, x.stride, rows, plan->D * (long)plan->size},
                            {value.data, value.stride, value.data ? rows : 0, plan->E * (long)plan->size}}};
}

/* One row as floats, zeros up to the next multiple of 16. */
INLINE void load_row(float *to, const char *from, long n, int64_t dtype) {
    long i = 0;
    if (dtype == F32) {
        for (; i + WIDTH <= n; i += WIDTH) store(to + i, load((const float *)from + i));
        for (; i < n; i++) memcpy(to + i, from + 4 * i, 4);
    } else {
        for (; i + WIDTH <= n; i += WIDTH) store(to + i, widen(*(const hloose *)(from + 2 * i)));
        for (; i < n; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, 2);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(to + i, &bits, 4);
        }
    }
    for (; i % 16; i++) to[i] = 0;
}

/* One row from floats; `from` can be read up to the next multiple of 16. */
INLINE void store_row(char *to, const float *from, long n, int64_t dtype) {
    long i = 0;
    if (dtype == F32) {
        for (; i + WIDTH <= n; i += WIDTH) store((float *)to + i, load(from + i));
        if (i < n) memcpy(to + 4 * i, from + i, 4 * (size_t)(n - i));
    } else {
        for (; i + WIDTH <= n; i += WIDTH) *(hloose *)(to + 2 * i) = narrow(load(from + i));
        if (i == n) return;
        hvec tail = narrow(load(from + i));
        memcpy(to + 2 * i, &tail, 2 * (size_t)(n - i));
    }
}

/* Channels `from` to `until` of n rows, from floats that lie `ld` apart and start with channel `from`. */
INLINE void store_rows(rows_t to, int64_t dtype, const float *rows, long ld, long from, long until, long n) {
    for (long r = 0; r < n; r++) store_row(to.data + r * to.stride + from * size_of(dtype), rows + r * ld, until - from, dtype);
}

/* Sums of the other of two calls are added to what `to` holds, channels `from` to `until`: read as they lie, or, where they
 * are no whole panels, by way of the rows `to` points at. */
static void add_sums(target_t *to, int direct, rows_t sums, long from, long until, long n) {
    to->add = direct ? (const float *)sums.data + from : (const float *)to->data;
    to->ld_add = direct ? sums.stride / 4 : to->ld;
    for (long r = 0; r < n && !direct; r++)
        load_row((float *)to->data + r * to->ld, sums.data + r * sums.stride + from * 4, until - from, F32);
}

/* One vector of a row as floats. */
INLINE vec load_some(const char *from, long i, int64_t dtype) {
    return dtype == F32 ? load((const float *)from + i) : widen(*(const hloose *)(from + 2 * i));
}

/* Rows of q or k: ReLU, key mask (NULL: all kept) and decay, as rows x and as features phi = [x cos ; x sin], the sine half
 * where the cosine half ends (phi NULL: not wanted). NaN stays NaN: it is not below zero. */
INLINE void features_of(const plan_t *plan, float *x, float *phi, rows_t from, const uint8_t *mask, factors_t by, angles_t at,
                        long n, long D, int64_t dtype, int relu, int turned) {
    long Dp = round_up(D, 16);
    int fused = D % WIDTH == 0; /* else the last vector of the cosine half reaches into the sine half */
    for (long r = 0; r < n; r++, x += plan->ldx, phi = phi ? phi + plan->ldf : NULL) {
        const char *row = from.data + r * from.stride;
        int64_t kind = dtype;
        if (!fused || (mask && !mask[r])) { /* by way of x */
            if (mask && !mask[r]) memset(x, 0, 4 * (size_t)Dp);
            else load_row(x, row, D, dtype);
            row = (const char *)x, kind = F32;
        }
        float c = turned ? at.cos[r] : 1, s = turned ? at.sin[r] : 0;
#pragma GCC unroll 8
        for (long i = 0; i < D; i += WIDTH) {
            vec one = load_some(row, i, kind);
            if (relu) one = keep(~(one < 0), one);
            if (by.rows) one *= load(by.rows + r * by.step + i);
            store(x + i, one);
            if (phi) store(phi + i, turned ? one * c : one);
            if (phi && turned && fused) store(phi + D + i, one * s);
        }
        for (long i = round_up(D, WIDTH); i < Dp; i += WIDTH) {
            store(x + i, (vec){});
            if (phi && !(turned && fused)) store(phi + i, (vec){});
        }
        if (turned && phi)
            for (long i = fused ? D : 0; i < Dp; i += WIDTH) store(phi + D + i, load(x + i) * s);
    }
}

static void load_features(const plan_t *plan, float *x, float *phi, rows_t from, const uint8_t *mask, factors_t by,
                          angles_t at, long n) {
    const factors_t none = {0};
    int64_t dtype = plan->call->dtype;
    int relu = plan->call->relu != 0, turned = at.cos != NULL, usual = relu && turned && !mask && !by.rows;
    /* the usual cases, with all that is known of them */
    if (usual && dtype == F32 && plan->D == 64) features_of(plan, x, phi, from, NULL, none, at, n, 64, F32, 1, 1);
    else if (usual && dtype == F32 && plan->D == 32) features_of(plan, x, phi, from, NULL, none, at, n, 32, F32, 1, 1);
    else if (usual && dtype == BF16 && plan->D == 64) features_of(plan, x, phi, from, NULL, none, at, n, 64, BF16, 1, 1);
    else if (by.rows && dtype == F32) features_of(plan, x, phi, from, mask, by, at, n, plan->D, F32, relu, turned);
    else if (by.rows) features_of(plan, x, phi, from, mask, by, at, n, plan->D, BF16, relu, turned);
    else if (dtype == F32) features_of(plan, x, phi, from, mask, none, at, n, plan->D, F32, relu, turned);
    else features_of(plan, x, phi, from, mask, none, at, n, plan->D, BF16, relu, turned);
}

/* Rows of v as panels e0 to e1; masked rows are zero. */
INLINE void panels_of(const plan_t *plan, float *to, rows_t from, const uint8_t *mask, long e0, long e1, long n, long E,
                      int64_t dtype) {
    for (long r = 0; r < n; r++) {
        const char *row = from.data + r * from.stride;
#pragma GCC unroll 4
        for (long e = e0; e < e1; e++) {
            float *panel = to + ((e - e0) * plan->chunk + r) * 16;
            if (mask && !mask[r]) memset(panel, 0, 64);
            else if (e * 16 + 16 > E) load_row(panel, row + e * 16 * (long)plan->size, E - e * 16, dtype);
            else
                for (int l = 0; l < 16; l += WIDTH) store(panel + l, load_some(row, e * 16 + l, dtype));
        }
    }
}

static void load_panels(const plan_t *plan, float *to, rows_t from, const uint8_t *mask, long e0, long e1, long n) {
    int usual = plan->E == 64 && e1 - e0 == 4 && !mask;
    if (plan->call->dtype == F32) panels_of(plan, to, from, mask, e0, e1, n, plan->E, F32);
    else if (usual) panels_of(plan, to, from, NULL, 0, 4, n, 64, BF16);
    else panels_of(plan, to, from, mask, e0, e1, n, plan->E, BF16);
}

/* Forms of rows of v or of a gradient: as they are, times the cosine and the sine of each (NULL: not wanted), and as panels
 * [ne][chunk][16] (NULL: not wanted). */
typedef struct {
    float *rows, *cos, *sin, *panels;
} values_t;

/* Rows times scale[r] where given, in these forms; masked rows are zero. */
INLINE void values_of(const plan_t *plan, values_t to, rows_t from, const uint8_t *mask, const float *scale, angles_t at,
                      long n, long E, int64_t dtype) {
    long Ep = round_up(E, 16);
    for (long r = 0; r < n; r++) {
        const char *row = from.data + r * from.stride;
        float *rows = to.rows + r * plan->lde;
        int64_t kind = dtype;
        if (E % WIDTH || (mask && !mask[r])) { /* by way of the rows */
            if (mask && !mask[r]) memset(rows, 0, 4 * (size_t)Ep);
            else load_row(rows, row, E, dtype);
            row = (const char *)rows, kind = F32;
        }
        float factor = scale ? scale[r] : 1, c = to.cos ? at.cos[r] : 1, s = to.cos ? at.sin[r] : 0;
#pragma GCC unroll 8
        for (long i = 0; i < E; i += WIDTH) {
            vec x = load_some(row, i, kind);
            if (scale) x *= factor;
            store(rows + i, x);
            if (to.cos) store(to.cos + r * plan->lde + i, x * c), store(to.sin + r * plan->lde + i, x * s);
            if (to.panels) store(to.panels + i / 16 * plan->chunk * 16 + r * 16 + i % 16, x);
        }
        for (long i = round_up(E, WIDTH); i < Ep; i += WIDTH) { /* the rest of the last panel */
            store(rows + i, (vec){});
            if (to.cos) store(to.cos + r * plan->lde + i, (vec){}), store(to.sin + r * plan->lde + i, (vec){});
            if (to.panels) store(to.panels + i / 16 * plan->chunk * 16 + r * 16 + i % 16, (vec){});
        }
    }
}

static void load_values(const plan_t *plan, values_t to, rows_t from, const uint8_t *mask, const float *scale, angles_t at,
                        long n) {
    int64_t dtype = plan->call->dtype;
    if (!at.cos) to.cos = to.sin = NULL;
    /* the usual cases, with all that is known of them */
    if (!mask && dtype == F32 && plan->E == 64) values_of(plan, to, from, NULL, scale, at, n, 64, F32);
    else if (!mask && dtype == F32 && plan->E == 32) values_of(plan, to, from, NULL, scale, at, n, 32, F32);
    else if (!mask && dtype == BF16 && plan->E == 64) values_of(plan, to, from, NULL, scale, at, n, 64, BF16);
    else if (dtype == F32) values_of(plan, to, from, mask, scale, at, n, plan->E, F32);
    else values_of(plan, to, from, mask, scale, at, n, plan->E, BF16);
}

/* One more column, behind the values. */
INLINE void add_column(const plan_t *plan, values_t to, const float *column, angles_t at, long n) {
    for (long r = 0; r < n; r++) {
        float x = column ? column[r] : 1;
        to.rows[r * plan->lde + plan->E] = x;
        if (to.cos && at.cos) to.cos[r * plan->lde + plan->E] = x * at.cos[r], to.sin[r * plan->lde + plan->E] = x * at.sin[r];
    }
}

/* Sum of n rows, over whole vectors. */
static void sum_rows(float *to, const float *from, long ld, long width, long n) {
    long i = 0;
    for (; i + 4 * WIDTH <= width; i += 4 * WIDTH) {
        vec total[4] = {};
        for (long r = 0; r < n; r++)
            for (int l = 0; l < 4; l++) total[l] += load(from + r * ld + i + l * WIDTH);
        for (int l = 0; l < 4; l++) store(to + i + l * WIDTH, total[l]);
    }
    for (; i < width; i += WIDTH) {
        vec total = {};
        for (long r = 0; r < n; r++) total += load(from + r * ld + i);
        store(to + i, total);
    }
}

/* Rows to panels of 16 columns, times scale[r] where given. */
static void panel_rows(float *to, long panel, const float *from, long ld, long panels, const float *scale, long n) {
    for (long r = 0; r < n; r++)
        for (long c = 0; c < panels; c++)
            for (int l = 0; l < 16; l += WIDTH) {
                vec x = load(from + r * ld + c * 16 + l);
                *(vec *)(to + c * panel + r * 16 + l) = scale ? x * scale[r] : x;
            }
}

INLINE float divisor(const call_t *call, float den) {
    float eps = (float)call->eps;
    switch (call->normaliser) {
    case CLAMP: return den < eps ? eps : den; /* NaN stays NaN */
    case ADD: return den + eps;
    case SIGNED: return fabsf(den) < eps ? (den < 0 ? -eps : eps) : den;
    default: return 1;
    }
}

/* Row sums to what their rows are multiplied with. */
static void invert(const call_t *call, float *x, long n) {
    float eps = (float)call->eps;
    if (call->normaliser == CLAMP) /* the usual one, in a form that compilers turn into vectors */
        for (long r = 0; r < n; r++) x[r] = 1 / (x[r] < eps ? eps : x[r]);
    else
        for (long r = 0; r < n; r++) x[r] = 1 / divisor(call, x[r]);
}

/* Derivative of the divisor with respect to the row sum. */
INLINE float divisor_slope(const call_t *call, float den) {
    float eps = (float)call->eps;
    switch (call->normaliser) {
    case CLAMP: return den > eps;
    case ADD: return 1;
    case SIGNED: return fabsf(den) > eps;
    default: return 0;
    }
}

/* State tensor [F, E] to and from panels [ne][Fr][16]; panels e0 to e1 only. No tensor means zeros. */
static void load_state(const plan_t *plan, float *to, const float *from, long e0, long e1) {
    for (long e = e0; e < e1; e++)
        for (long f = 0; f < plan->Fr; f++) {
            float *row = to + ((e - e0) * plan->Fr + f) * 16;
            memset(row, 0, 64);
            if (from && f < plan->F) memcpy(row, from + f * plan->E + e * 16, 4 * (size_t)least(16, plan->E - e * 16));
        }
}

static void store_state(const plan_t *plan, float *to, const float *from, long e0, long e1) {
    for (long e = e0; e < e1; e++)
        for (long f = 0; f < plan->F; f++)
            memcpy(to + f * plan->E + e * 16, from + ((e - e0) * plan->Fr + f) * 16, 4 * (size_t)least(16, plan->E - e * 16));
}

/* A state as panels [panels][Fr][16], and its normaliser, seen from another position: `to`. */
static void shift_state(const plan_t *plan, float *state, float *z, long panels, shift_t by, int64_t to) {
    float some = dither(to);
    for (long half = 0; half < plan->halves; half++)
        for (long d = 0; d < plan->D; d++) {
            ivec whole = by.whole[d] - (ivec){};
            vec rest = dithered(whole, by.rest[d] - (vec){}, some);
            float *row = state + (half * plan->D + d) * 16;
            for (long e = 0; e < panels; e++, row += plan->Fr * 16)
                for (int l = 0; l < 16; l += WIDTH) *(vec *)(row + l) = shifted(*(vec *)(row + l), whole, rest);
            z[half * plan->D + d] = shifted_one(z[half * plan->D + d], by.whole[d], by.rest[d], some);
        }
}

/* Memory of one thread, cut from one block. Without a block the cuts are NULL and only counted: `used` is what a block needs. */
typedef struct {
    char *block;
    size_t used;
} arena_t;

INLINE float *cut(arena_t *arena, long floats) {
    float *memory = arena->block ? (float *)(arena->block + arena->used) : NULL;
    arena->used += (size_t)round_up(floats * 4, 64);
    return memory;
}
