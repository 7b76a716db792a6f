/* The interface between Python (ctypes) and the kernels, and between the kernels and the thread pool.
 *
 * Every tensor is a pointer and its strides in elements; the last dimension is contiguous.
 * Names as everywhere in the project: B batch, H heads, Hk key heads, N queries, S keys, D query and key channels,
 * E value channels, F features (2D with angles, D without). */
#ifndef COSFORMER_H
#define COSFORMER_H
#include <stddef.h>
#include <stdint.h>

enum { F32 = 0, BF16 = 1 };
enum { CLAMP = 0, ADD = 1, SIGNED = 2, NONE = 3 };

/* One call. All members have eight bytes. `MEMBERS` in library.py lists them in this order; Python refuses a library whose
 * call_t has another size.
 *
 * Two causal calls may share their rows: one goes forward, the other backward (`reversed`: the last row of q, k, v, out and
 * their gradients counts as the first; all else is given in that order). The first leaves its numerators, not divided, and
 * its part of dv in float32; the second adds them, `sums`, to its own. */
typedef struct {
    /* shapes and switches */
    int64_t B, H, Hk, N, S, D, E, dtype, relu, causal, normaliser, q_len, k_len;
    double eps;
    int64_t qs[3], ks[3], vs[3], os[3], ss[3]; /* strides over batch, head, position; os: of out, ss: of sums */
    int64_t sequences;                         /* 1 without cu */
    /* inputs */
    int64_t threads, out_dtype, reversed, q_first, k_first; /* out_dtype: of out and dv */
    const char *q, *k, *v;
    const float *kv, *z; /* incoming state, contiguous, or NULL */
    const uint8_t *mask; /* key mask [B,S], contiguous, or NULL */
    const int64_t *cu;   /* bounds of packed sequences, or NULL */
    const float *decay;  /* rates [Hk,D], contiguous, or NULL; causal calls only */
    const float *sums;   /* of the first call, or NULL: its numerators; backward: its dv (b is given, too) */
    const float *sums_den; /* its denominators [B,H,N] */
    /* results of forward (the last two are inputs of a non-causal backward when not NULL) */
    char *out;
    float *den, *kv_next, *z_next;
    /* backward */
    const char *g_out;
    int64_t gs[3];
    const float *g_kv, *g_z;
    char *dq, *dk, *dv;
    int64_t dqs[3], dks[3], dvs[3];
    float *dkv, *dz;
    float *b; /* gradient of the denominators [B,H,N], work space */
} call_t;

/* One token behind a cosFormer state, all tensors contiguous. All members have eight bytes; `TOKEN_MEMBERS` in library.py. */
typedef struct {
    int64_t B, H, Hk, D, E, dtype, max_len, threads;
    double eps;
    const char *q, *k, *v;
    const float *kv, *z, *decay; /* decay may be NULL */
    const int64_t *position;     /* tokens seen so far */
    char *out;
    float *kv_next, *z_next;
    int64_t *position_next;
} token_t;

/* One build of the kernels, for one instruction set. Each returns 0, 1 when memory ran out, or (dense)
 * 2 when its rates decay too fast for so many rows, which forward takes. */
typedef struct {
    const char *name;
    int (*forward)(const call_t *);
    int (*backward)(const call_t *);
    int (*step)(const call_t *);
    int (*dense)(const call_t *);
} kernels_t;

extern const kernels_t kernels_generic;
#if defined(__x86_64__)
extern const kernels_t kernels_avx2, kernels_avx512;
#endif

/* Run work(context, task, scratch) for every task, on up to `threads` threads; each thread has `scratch` bytes of its own.
 * Returns 0, or 1 when memory ran out (then no task has run). */
typedef void (*work_t)(const void *context, int64_t task, char *scratch);
int run_tasks(work_t work, const void *context, int64_t tasks, size_t scratch, int64_t threads);
/* A block of memory kept for the next call: contents are arbitrary, aligned to 64 bytes. NULL when memory ran out. */
char *take_block(size_t bytes);
void give_block(char *block);
/* "torch's OpenMP" or "own threads" */
const char *pool_name(void);
#endif
