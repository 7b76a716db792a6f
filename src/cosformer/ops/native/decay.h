/* Fixed rates at which the past decays, one for each channel of a key head. Included once per instruction set, after vector.h.
 *
 * A pair of positions i >= j counts exp(-rate (i - j)). Inside a chunk this is a factor of the query's row times one of the
 * key's row, both relative to the middle of the chunk, so that neither leaves the range of floats: rows of q are loaded times
 * exp(-rate (row - middle)), rows of k times exp(rate (row - middle)), and their gradients are stored times the same. A sum
 * over a head's past (or, backward, its future) is kept as it is seen from the middle of the present chunk, and is moved from
 * middle to middle. */

/* glibc 2.29 gave exp a new version; the old one, which differs in how it reports errors, is in every glibc */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver exp, exp@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver exp, exp@GLIBC_2.17");
#endif

#define MOST_DECAY 64.0f /* rate times rows of a chunk: factors lie within exp(-32) and exp(32) */
#define FASTEST 4.0f     /* chunks have 16 rows or more; the operator refuses faster rates, which count as this one here */

/* The factors of one key head, a row of Dp for each row of a chunk: row r of a query takes row r, row r of a key row chunk - r. */
typedef struct {
    const float *rows; /* NULL: no decay */
    long step;         /* floats from row to row: Dp for queries, -Dp for keys */
} factors_t;

/* exp(-rate distance) as one (all bits) or zero, and a rest [Dp]: x + rest * x keeps what x times a rounded factor near one
 * would lose, the same way in every chunk. */
typedef struct {
    const int32_t *whole;
    const float *rest;
} shift_t;

/* The factors of all key heads: exp(-rate (row - chunk / 2)) [chunk + 1][Dp], and the shift by one chunk. */
typedef struct {
    float *block; /* NULL without decay */
    long head;    /* floats from head to head */
    long chunk, Dp;
} decay_t;

/* As much of a chunk as the fastest rate allows. */
static long chunk_with_decay(const call_t *call, long chunk) {
    float fastest = 0;
    for (long i = 0; call->decay && i < call->Hk * call->D; i++) fastest = fmaxf(fastest, call->decay[i]);
    while (chunk > 16 && fastest * (float)chunk > MOST_DECAY) chunk -= 16;
    return chunk;
}

INLINE double rate_of(const call_t *call, long hk, long d) {
    return d < call->D ? fminf(call->decay[hk * call->D + d], FASTEST) : 0;
}

INLINE void split(double factor, int32_t *whole, float *rest) {
    *whole = factor > 0.7 ? -1 : 0;
    *rest = (float)(factor > 0.7 ? factor - 1 : factor);
}

/* Returns 0, or 1 when memory ran out. What it makes is given back with give_block. */
static int make_decay(const call_t *call, long chunk, decay_t *decay) {
    long Dp = round_up(call->D, 16), middle = chunk / 2;
    *decay = (decay_t){.head = (chunk + 3) * Dp, .chunk = chunk, .Dp = Dp};
    if (!call->decay) return 0;
    decay->block = (float *)take_block(4 * (size_t)(call->Hk * decay->head));
    if (!decay->block) return 1;
    for (long hk = 0; hk < call->Hk; hk++)
        for (long d = 0; d < Dp; d += 16) {
            float *to = decay->block + hk * decay->head + d;
            double later[16], earlier[16], a[16], b[16];
            for (long i = 0; i < 16; i++)
                later[i] = exp(-rate_of(call, hk, d + i)), earlier[i] = 1 / later[i], a[i] = b[i] = 1;
            for (long r = 0; r < middle; r++)
                for (long i = 0; i < 16; i++) {
                    to[(middle + r) * Dp + i] = (float)a[i], to[(middle - r) * Dp + i] = (float)b[i];
                    a[i] *= later[i], b[i] *= earlier[i];
                }
            for (long i = 0; i < 16; i++) {
                to[chunk * Dp + i] = (float)a[i], to[i] = (float)b[i];
                split(a[i] * a[i], (int32_t *)to + (chunk + 1) * Dp + i, to + (chunk + 2) * Dp + i);
            }
        }
    return 0;
}

INLINE factors_t query_factors(const decay_t *decay, long hk) {
    return decay->block ? (factors_t){decay->block + hk * decay->head, decay->Dp} : (factors_t){0};
}

INLINE factors_t key_factors(const decay_t *decay, long hk) {
    return decay->block ? (factors_t){decay->block + hk * decay->head + decay->chunk * decay->Dp, -decay->Dp} : (factors_t){0};
}

/* To a position `distance` later (a sum over the past) or earlier (over the future); `room` has place for 2 Dp floats. */
static shift_t shift_by(const decay_t *decay, const call_t *call, long hk, long distance, float *room) {
    const float *by_chunk = decay->block + hk * decay->head + (decay->chunk + 1) * decay->Dp;
    if (distance == decay->chunk) return (shift_t){(const int32_t *)by_chunk, by_chunk + decay->Dp};
    int32_t *whole = (int32_t *)room;
    for (long d = 0; d < decay->Dp; d++)
        split(exp(-rate_of(call, hk, d) * (double)distance), whole + d, room + decay->Dp + d);
    return (shift_t){whole, room + decay->Dp};
}

/* Added to a rest that is not zero. x + rest * x changes a slowly decaying x by few units in the last place, the same number
 * every time, so that it would be rounded the same way every time; with this, a unit or two that spread evenly around zero
 * from position to position, such errors cancel. */
INLINE float dither(int64_t position) {
    double a = 0.5 + 0.7548776662466927 * (double)position, b = 0.5 + 0.5698402909980532 * (double)position;
    return (float)((a - floor(a) + b - floor(b) - 1) * 0x1p-23);
}

#define SMALLEST 1.17549435e-38f /* normal number */

/* Zero for what is smaller: it is slow to compute with, and would never vanish. */
INLINE vec flushed(vec x) { return keep(~((vec)((ivec)x & 0x7fffffff) < SMALLEST), x); }

INLINE vec dithered(ivec whole, vec rest, float dither) { return rest + keep(whole & (rest != 0), dither - (vec){}); }

INLINE vec shifted(vec x, ivec whole, vec rest) { return flushed(keep(whole, x) + rest * x); }

INLINE float shifted_one(float x, int32_t whole, float rest, float dither) {
    x = (whole ? x : 0) + (whole && rest != 0 ? rest + dither : rest) * x;
    return fabsf(x) < SMALLEST ? 0 : x;
}

/* Rows of gradients times the factors of what they are gradients of; channels of panels d0 to d1. */
static void decay_rows(float *x, long ld, factors_t by, long d0, long d1, long n) {
    for (long r = 0; r < n; r++)
        for (long i = d0 * 16; i < d1 * 16; i += WIDTH) store(x + r * ld + i, load(x + r * ld + i) * load(by.rows + r * by.step + i));
}

/* The same split of exp(-x), x >= 0, for one token. */
INLINE void split_exp(vec x, ivec *whole, vec *rest) {
    const float terms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1};
    const vec most = 87.0f - (vec){}, rounder = 12582912.0f - (vec){}; /* added and subtracted, it rounds to integers */
    x = keep(x < most, x) + keep(~(x < most), most);
    vec n = (x * -1.44269504f + rounder) - rounder, r = (-x - n * 0.693145752f) - n * 1.42860677e-6f;
    vec sum = 1.0f / 40320 - (vec){};
    for (int i = 0; i < 7; i++) sum = sum * r + terms[i];
    vec power = (vec)((__builtin_convertvector(n, ivec) + 127) << 23); /* of two */
    *whole = n == 0;
    *rest = power * (sum * r) + keep(~*whole, power);
}
