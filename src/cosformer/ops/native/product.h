/* Many rows times a small matrix, and the gradient of that matrix: the linear layers of a model whose sequences are long.
 * Included once per instruction set, after vector.h.
 *
 * Blocks of rows are the tasks, so a core that is slowed down gets fewer of them, and the rows are read where they are. Every
 * sum is taken in an order that follows from the sizes alone. */

enum {
    BLOCK = 96,     /* rows of a task of `product` */
    DEPTH = 256,    /* terms of a sum before its tile is put away: 16 columns of so many fit the first-level cache */
    SLABS = 8,      /* of rows, each with sums of its own in `outer` */
    CHUNK = 128,    /* rows of a slab that are packed at once */
    STRIP = 32 * ROWS /* columns of y that are packed at once */
};

typedef struct {
    const product_t *call;
    float *panels;         /* of w, or the sums of the slabs */
    long slabs, slab_rows, sums; /* floats in the sums of one slab */
} products_t;

/* One panel of w: 16 columns of the result, row after row. */
static void pack_panel(const void *context, int64_t p, char *scratch) {
    (void)scratch;
    const products_t *all = context;
    const product_t *c = all->call;
    float *to = all->panels + p * 16 * c->K;
    if (c->transposed) {
        transpose(to, 0, c->w + p * 16 * c->ldw, c->ldw, 16, c->K);
    } else {
        for (long k = 0; k < c->K; k++)
            for (int l = 0; l < 16; l += WIDTH) *(vec *)(to + k * 16 + l) = load(c->w + k * c->ldw + p * 16 + l);
    }
}

INLINE void product_tile(int rows, float *y, long ldy, const float *x, long ldx, const float *panel, long n, const float *bias,
                         int add) {
    vec sums[ROWS][LANES];
    clear(rows, sums);
    if (add) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) sums[r][l] = load(y + r * ldy + l * WIDTH);
    } else if (bias) {
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) {
            vec start = load(bias + l * WIDTH);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) sums[r][l] = start;
        }
    }
    tile_of(rows, sums, x, ldx, 1, panel, 16, n);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) store(y + r * ldy + l * WIDTH, sums[r][l]);
}

static void product_block(const void *context, int64_t task, char *scratch) {
    (void)scratch;
    const products_t *all = context;
    const product_t *c = all->call;
    long first = task * BLOCK, last = least(first + BLOCK, c->M);
    for (long k = 0; k < c->K; k += DEPTH)
        for (long p = 0; p < c->N / 16; p++) {
            const float *panel = all->panels + (p * c->K + k) * 16, *bias = c->bias ? c->bias + p * 16 : NULL;
            long n = least(DEPTH, c->K - k), m = first;
            for (; m + ROWS <= last; m += ROWS)
                product_tile(ROWS, c->y + m * c->ldy + p * 16, c->ldy, c->x + m * c->ldx + k, c->ldx, panel, n, bias, k > 0);
            for (; m < last; m++)
                product_tile(1, c->y + m * c->ldy + p * 16, c->ldy, c->x + m * c->ldx + k, c->ldx, panel, n, bias, k > 0);
        }
}

/* y [M,N] = x [M,K] times w, plus bias. */
static int product(const product_t *call) {
    products_t all = {.call = call, .panels = (float *)take_block((size_t)(call->N * call->K) * sizeof(float))};
    if (!all.panels) return 1;
    int failed = run_tasks(pack_panel, &all, call->N / 16, 64, call->threads) ||
                 run_tasks(product_block, &all, (call->M + BLOCK - 1) / BLOCK, 64, call->threads);
    give_block((char *)all.panels);
    return failed;
}

/* The sums of one slab: y transposed times x. */
static void outer_slab(const void *context, int64_t slab, char *scratch) {
    const products_t *all = context;
    const product_t *c = all->call;
    float *sums = all->panels + slab * all->sums, *x = (float *)scratch, *y = x + CHUNK * c->K;
    long rows = round_up(c->N, ROWS), last = least((slab + 1) * all->slab_rows, c->M);
    memset(sums, 0, (size_t)all->sums * sizeof(float));
    for (long m = slab * all->slab_rows; m < last; m += CHUNK) {
        long n = least(CHUNK, last - m);
        for (long i = 0; i < n; i++)
            for (long p = 0; p < c->K / 16; p++)
                for (int l = 0; l < 16; l += WIDTH)
                    *(vec *)(x + (p * n + i) * 16 + l) = load(c->x + (m + i) * c->ldx + p * 16 + l);
        for (long from = 0; from < c->N; from += STRIP) {
            long width = least(STRIP, c->N - from);
            /* Tile by tile, not as rows for `accumulate`: that was a twentieth slower. What is past the last column stays as it
             * is, and nobody reads its sums. */
            for (long i = 0; i < n; i++) {
                const float *row = c->y + (m + i) * c->ldy + from;
                long t = 0;
                for (; t + ROWS <= width; t += ROWS) memcpy(y + t * CHUNK + i * ROWS, row + t, ROWS * sizeof(float));
                if (t < width) memcpy(y + t * CHUNK + i * ROWS, row + t, (size_t)(width - t) * sizeof(float));
            }
            for (long p = 0; p < c->K / 16; p++)
                for (long t = 0; t < width; t += ROWS)
                    accumulate_tile(ROWS, sums + (p * rows + from + t) * 16, y + t * CHUNK, ROWS, x + p * n * 16, 16, n);
        }
    }
}

/* One panel of w from the sums of all slabs. */
static void outer_panel(const void *context, int64_t p, char *scratch) {
    (void)scratch;
    const products_t *all = context;
    const product_t *c = all->call;
    const float *from = all->panels + p * round_up(c->N, ROWS) * 16;
    for (long r = 0; r < c->N; r++)
        for (int l = 0; l < 16; l += WIDTH) {
            vec total = load(from + r * 16 + l);
            for (long s = 1; s < all->slabs; s++) total += load(from + s * all->sums + r * 16 + l);
            store(c->w + r * c->ldw + p * 16 + l, total);
        }
}

/* w [N,K] = y [M,N] transposed times x [M,K]. */
static int outer(const product_t *call) {
    products_t all = {.call = call, .sums = round_up(call->N, ROWS) * call->K};
    all.slab_rows = round_up((call->M + SLABS - 1) / SLABS, CHUNK);
    all.slabs = (call->M + all.slab_rows - 1) / all.slab_rows;
    all.panels = (float *)take_block((size_t)(all.slabs * all.sums) * sizeof(float));
    if (!all.panels) return 1;
    size_t scratch = (size_t)(CHUNK * (call->K + round_up(least(STRIP, call->N), ROWS))) * sizeof(float);
    int failed = run_tasks(outer_slab, &all, all.slabs, scratch, call->threads) ||
                 run_tasks(outer_panel, &all, call->K / 16, 64, call->threads);
    give_block((char *)all.panels);
    return failed;
}
