/* Vectors and the three products every pass is made of. Included once per instruction set, which defines
 * WIDTH (floats in a vector) and ROWS (rows of a register tile).
 *
 * A "panel" is a slice of 16 columns stored row after row: element (row, column) of panel p lies at
 * p * panel stride + row * 16 + column. A tile of ROWS x 16 sums stays in registers while one row of a panel and ROWS
 * scalars are read per step. Results do not depend on where a tile starts, hence not on how work is split. */
#include "cosformer.h"
#include <math.h>
#include <string.h>

#define LANES (16 / WIDTH) /* vectors in a row of a panel */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define ONE_COPY
#else
#define ONE_COPY __attribute__((noinline, noclone)) /* GCC runs out of registers in copies made for some of the callers */
#endif

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef float loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* unaligned */
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t hvec __attribute__((vector_size(2 * WIDTH)));
typedef uint16_t hloose __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
typedef float quad __attribute__((vector_size(16)));
typedef float quad_loose __attribute__((vector_size(16), aligned(4), may_alias));

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec x) { *(loose *)p = x; }
INLINE vec keep(ivec mask, vec x) { return (vec)((ivec)x & mask); }
INLINE long round_up(long n, long to) { return (n + to - 1) / to * to; }
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }

/* bfloat16 to and from float */
INLINE vec widen(hvec x) {
#if WIDTH == 8 && defined(__AVX2__) && !defined(__clang__) /* which GCC takes three instructions for, and this is one */
    return (vec)((uvec)__builtin_ia32_pmovzxwd256((short __attribute__((vector_size(16))))x) << 16);
#else
    return (vec)(__builtin_convertvector(x, uvec) << 16);
#endif
}

INLINE hvec narrow(vec x) { /* to nearest, ties to even; NaN stays NaN */
    uvec bits = (uvec)x, not_a_number = (uvec)(x != x);
    uvec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector((rounded & ~not_a_number) | (0x7fc0 & not_a_number), hvec);
}

INLINE float sum(vec x) { /* pairwise: a chain of additions would take as long as the products before it */
    quad parts[WIDTH / 4];
    memcpy(parts, &x, sizeof x);
    quad all = parts[0];
    for (int i = 1; i < WIDTH / 4; i++) all += parts[i];
    return (all[0] + all[2]) + (all[1] + all[3]);
}

INLINE float dot(const float *a, const float *b, long n) { /* n a multiple of 16 */
    vec total[LANES] = {};
    for (long i = 0; i < n; i += 16)
        for (int l = 0; l < LANES; l++) total[l] += load(a + i + l * WIDTH) * load(b + i + l * WIDTH);
    vec all = total[0];
    for (int l = 1; l < LANES; l++) all += total[l];
    return sum(all);
}

/* sums[r] += sum over k < n of a[r * row + k * step] * panel[k], for `rows` rows: one, two or three thirds of a tile (where
 * ROWS has thirds, else always the whole), known when compiled */
enum { THIRD = ROWS / 3 };
#define BY_THIRDS(live, work, ...) \
    do { \
        if ((live) > 2 * THIRD) work(ROWS, __VA_ARGS__); \
        else if ((live) > THIRD) work(2 * THIRD, __VA_ARGS__); \
        else work(THIRD, __VA_ARGS__); \
    } while (0)

/* Not `= {}`: compilers clear an array of this size in memory, with a slow instruction, before they see that it fits registers. */
INLINE void clear(int rows, vec sums[ROWS][LANES]) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) sums[r][l] = (vec){};
}

INLINE void tile_of(int rows, vec sums[ROWS][LANES], const float *a, long row, long step, const float *panel, long panel_row,
                    long n) {
    for (long k = 0; k < n; k++, a += step, panel += panel_row) {
        vec b[LANES];
        for (int l = 0; l < LANES; l++) b[l] = *(const vec *)(panel + l * WIDTH);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) sums[r][l] += a[r * row] * b[l];
    }
}

/* Rows of two tensors that the next chunk will read, fetched a few at a time while this one is computed. */
typedef struct {
    struct {
        const char *row;
        long stride, rows, bytes;
    } of[2];
} ahead_t;

/* Rows of each to fetch with one of so many tiles. */
INLINE long fetch_share(const ahead_t *ahead, long tiles) { return (most(ahead->of[0].rows, ahead->of[1].rows) + tiles - 1) / most(tiles, 1); }

INLINE void fetch(ahead_t *ahead, long rows) {
    for (int i = 0; i < 2; i++) {
        long count = least(rows, ahead->of[i].rows);
        for (long r = 0; r < count; r++, ahead->of[i].row += ahead->of[i].stride)
            for (long at = 0; at < ahead->of[i].bytes; at += 64) __builtin_prefetch(ahead->of[i].row + at, 0, 2);
        ahead->of[i].rows -= count;
    }
}

INLINE void tile(vec sums[ROWS][LANES], const float *a, long row, long step, const float *panel, long n) {
    tile_of(ROWS, sums, a, row, step, panel, 16, n);
}

INLINE void accumulate_tile(int rows, float *state, const float *a, long ld, const float *b, long b_row, long n) {
    vec sums[ROWS][LANES];
    clear(rows, sums);
    tile_of(rows, sums, a, 1, ld, b, b_row, n);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) *(vec *)(state + r * 16 + l * WIDTH) += sums[r][l];
}

/* Accumulate: state[p][r] += sum over k < n of a[k][r] * b[p][k], for all rows r and panels p.
 * The state has round_up(rows, ROWS) rows in a panel; those past `rows` hold nothing of use. */
static void accumulate(float *state, long state_panel, long rows, long panels, const float *a, long ld, const float *b,
                       long b_panel, long b_row, long n, ahead_t ahead) {
    long share = fetch_share(&ahead, panels * ((rows + ROWS - 1) / ROWS));
    for (long p = 0; p < panels; p++)
        for (long r0 = 0; r0 < rows; r0 += ROWS) {
            if (share) fetch(&ahead, share);
            float *to = state + p * state_panel + r0 * 16;
            BY_THIRDS(rows - r0, accumulate_tile, to, a + r0, ld, b + p * b_panel, b_row, n);
        }
}

/* Scores inside a chunk: to[r][c] = (sum over k < n of a[r][k] * b[c / 16][k][c % 16]) * near[c - r] where the key comes no
 * later than the query, else 0. Rows are queries (`keys_first` = 0: c <= r) or keys (1: c >= r). near[d]: cosine of the angle
 * between positions d apart (NULL: no angles). The zeros are selected, not multiplied: what is not finite later must not reach
 * what is earlier. */
INLINE void triangle_tile(int rows, float *to, long ld, long r0, long c0, int keys_first, const float *a, long a_ld,
                          const float *b, long n, const float *near) {
    vec sums[ROWS][LANES];
    clear(rows, sums);
    tile_of(rows, sums, a + r0 * a_ld, a_ld, 1, b, 16, n);
    if (near)
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) sums[r][l] *= load(near + c0 - r0 + l * WIDTH - r);
    if (keys_first ? c0 < r0 + rows : c0 + 16 > r0) /* something to leave out */
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) {
            ivec column = {};
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) column[i] = (int32_t)c0 + l * WIDTH + i;
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                sums[r][l] = keep(keys_first ? column >= (int32_t)(r0 + r) : column <= (int32_t)(r0 + r), sums[r][l]);
        }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) store(to + (r0 + r) * ld + c0 + l * WIDTH, sums[r][l]);
}

static void triangle(float *to, long ld, long rows, int keys_first, const float *a, long a_ld, const float *b, long b_panel,
                     long n, const float *near) {
    for (long r0 = 0; r0 < rows; r0 += ROWS) {
        long first = keys_first ? r0 / 16 * 16 : 0, last = keys_first ? rows : least(r0 + ROWS, rows);
        for (long c0 = first; c0 < last; c0 += 16)
            BY_THIRDS(rows - r0, triangle_tile, to, ld, r0, c0, keys_first, a, a_ld, b + c0 / 16 * b_panel, n, near);
    }
}

/* Combine: to[r][columns] = scale[r] * sum over the terms of a[r] times the panels, in one pass over the registers.
 * A term of a triangle reads only the part that is not zero. */
typedef struct {
    const float *a;
    long ld;
    const float *b;
    long b_panel, b_row, n; /* floats from panel to panel, and from row to row of one (16, but for tensors read in place) */
    enum { FULL, LOWER, UPPER } part;
} term_t;

/* Where sums go, and what happens to them on the way. */
typedef struct {
    char *data;
    long ld;            /* elements from row to row */
    int half;           /* rounded to bfloat16 */
    const float *add;   /* rows that the sums are added to, or NULL */
    long ld_add;
    const float *scale; /* of each row, or NULL */
    const float *gate;  /* rows [ldg]: zero where the gate is not above zero, or NULL */
    long ldg;
} target_t;

/* A tile rounded to bfloat16. Not inline: what rounding needs would take registers from the sums. */
static __attribute__((noinline)) void store_half(uint16_t *to, long ld, float *tile, long rows) {
    for (long r = 0; r < rows; r++, to += ld, tile += 16)
        for (int l = 0; l < 16; l += WIDTH) *(hloose *)(to + l) = narrow(load(tile + l));
}

INLINE void combine_tile(int rows, int half, const target_t *to, long r0, long live, long p, const term_t *terms, int count) {
    char *data = to->data + (r0 * to->ld + p * 16) * (half ? 2 : 4);
    vec sums[ROWS][LANES];
    if (to->add) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++)
                sums[r][l] = r < live ? load(to->add + (r0 + r) * to->ld_add + p * 16 + l * WIDTH) : (vec){};
    } else clear(rows, sums);
    for (int t = 0; t < count; t++) {
        const term_t *x = terms + t;
        long from = x->part == UPPER ? r0 : 0, until = x->part == LOWER ? least(r0 + rows, x->n) : x->n;
        tile_of(rows, sums, x->a + r0 * x->ld + from, x->ld, 1, x->b + p * x->b_panel + from * x->b_row, x->b_row,
                until - from);
    }
    if (to->scale)
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) sums[r][l] *= to->scale[r0 + r];
    if (to->gate)
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++)
                sums[r][l] = keep(~(load(to->gate + (r0 + r) * to->ldg + p * 16 + l * WIDTH) <= 0), sums[r][l]);
    if (half) {
        float tile[ROWS][LANES * WIDTH];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) store(tile[r] + l * WIDTH, sums[r][l]);
        store_half((uint16_t *)data, to->ld, tile[0], least(rows, live));
    } else
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            if (r < live)
#pragma GCC unroll 4
                for (int l = 0; l < LANES; l++) store((float *)data + r * to->ld + l * WIDTH, sums[r][l]);
}

INLINE void combine_as(int half, target_t to, long rows, long panels, const term_t *terms, int count, ahead_t ahead) {
    long share = fetch_share(&ahead, panels * ((rows + ROWS - 1) / ROWS));
    for (long p = 0; p < panels; p++)
        for (long r0 = 0; r0 < rows; r0 += ROWS) {
            if (share) fetch(&ahead, share);
            BY_THIRDS(rows - r0, combine_tile, half, &to, r0, least(ROWS, rows - r0), p, terms, count);
        }
}

static ONE_COPY void combine(target_t to, long rows, long panels, const term_t *terms, int count, ahead_t ahead) {
    if (to.half) combine_as(1, to, rows, panels, terms, count, ahead);
    else combine_as(0, to, rows, panels, terms, count, ahead);
}

/* Transpose: rows of `from` (columns at stride 1) become columns of panels: to[r / 16][c][r % 16] = from[r][c].
 * Reads whole blocks of four: rows up to the next multiple of four and columns likewise must exist. */
static void transpose(float *to, long to_panel, const float *from, long ld, long rows, long columns) {
    for (long r = 0; r < rows; r += 4)
        for (long c = 0; c < columns; c += 4) {
            const float *x = from + r * ld + c;
            quad r0 = *(const quad_loose *)x, r1 = *(const quad_loose *)(x + ld);
            quad r2 = *(const quad_loose *)(x + 2 * ld), r3 = *(const quad_loose *)(x + 3 * ld);
#if defined(__clang__)
#define SHUFFLE(a, b, i, j, k, m) __builtin_shufflevector(a, b, i, j, k, m)
#else
            typedef int32_t order __attribute__((vector_size(16)));
#define SHUFFLE(a, b, i, j, k, m) __builtin_shuffle(a, b, (order){i, j, k, m})
#endif
            quad t0 = SHUFFLE(r0, r1, 0, 4, 1, 5), t1 = SHUFFLE(r0, r1, 2, 6, 3, 7);
            quad t2 = SHUFFLE(r2, r3, 0, 4, 1, 5), t3 = SHUFFLE(r2, r3, 2, 6, 3, 7);
            float *y = to + r / 16 * to_panel + c * 16 + r % 16;
            *(quad *)y = SHUFFLE(t0, t2, 0, 1, 4, 5);
            if (c + 1 < columns) *(quad *)(y + 16) = SHUFFLE(t0, t2, 2, 3, 6, 7);
            if (c + 2 < columns) *(quad *)(y + 32) = SHUFFLE(t1, t3, 0, 1, 4, 5);
            if (c + 3 < columns) *(quad *)(y + 48) = SHUFFLE(t1, t3, 2, 3, 6, 7);
        }
}
