/* Runs the cases that run.py wrote, read from standard input, and writes what the kernels made of them to standard output.
 * Every tensor of a case lies alone in memory of its size, so that a reader past its end is likelier to be caught. */
#include "cosformer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *cosformer_choose(const char *name);
const char *cosformer_compiler(void);
int cosformer_forward(const call_t *call);
int cosformer_backward(const call_t *call);
int cosformer_dense(const call_t *call);
int cosformer_step(const call_t *call);

enum { FORWARD, DENSE, STEP };

/* What run.py packs in front of each case. */
typedef struct {
    int64_t kind, B, H, Hk, N, S, D, E, dtype, causal, q_len, k_len, q_first, k_first, sequences, threads, state, mask, packed;
    double eps;
} header_t;

static void *bytes(size_t count) {
    void *memory = malloc(count ? count : 1);
    if (!memory) exit(3);
    memset(memory, 0xff, count); /* NaN */
    return memory;
}

static void *input(size_t count) {
    void *memory = bytes(count);
    if (fread(memory, 1, count, stdin) != count) exit(4);
    return memory;
}

static void strides(int64_t to[3], int64_t heads, int64_t rows, int64_t width) {
    to[0] = heads * rows * width, to[1] = rows * width, to[2] = width;
}

static void output(const void *from, size_t count) {
    if (fwrite(from, 1, count, stdout) != count) exit(5);
}

static void run(const header_t *h) {
    size_t size = h->dtype == BF16 ? 2 : 4, features = (size_t)(2 * h->D);
    size_t queries = (size_t)(h->B * h->H * h->N), keys = (size_t)(h->B * h->Hk * h->S), heads = (size_t)(h->B * h->Hk);
    size_t q = queries * (size_t)h->D * size, k = keys * (size_t)h->D * size, v = keys * (size_t)h->E * size;
    size_t out = queries * (size_t)h->E * size, den = queries * 4, kv = heads * features * (size_t)h->E * 4, z = heads * features * 4;
    call_t call = {.B = h->B, .H = h->H, .Hk = h->Hk, .N = h->N, .S = h->S, .D = h->D, .E = h->E, .dtype = h->dtype, .relu = 1,
                   .causal = h->causal, .normaliser = CLAMP, .q_len = h->q_len, .k_len = h->k_len, .eps = h->eps,
                   .sequences = h->sequences, .threads = h->threads, .q_first = h->q_first, .k_first = h->k_first};
    strides(call.qs, h->H, h->N, h->D), strides(call.ks, h->Hk, h->S, h->D), strides(call.vs, h->Hk, h->S, h->E);
    call.q = input(q), call.k = input(k), call.v = input(v);
    if (h->state) call.kv = input(kv), call.z = input(z);
    if (h->mask) call.mask = input((size_t)(h->B * h->S));
    if (h->packed) call.cu = input((size_t)(h->sequences + 1) * 8);
    call.g_out = input(out);
    call.out = bytes(out), call.den = bytes(den), call.kv_next = bytes(kv), call.z_next = bytes(z);
    int failed = h->kind == STEP ? cosformer_step(&call) : h->kind == DENSE ? cosformer_dense(&call) : cosformer_forward(&call);
    if (failed) exit(6);
    output(call.out, out);
    if (h->kind != DENSE) output(call.kv_next, kv), output(call.z_next, z);
    if (h->kind == FORWARD) {
        char *kept[] = {(char *)call.kv_next, (char *)call.z_next};
        if (h->packed) call.kv_next = call.z_next = NULL; /* packed sequences leave none */
        memcpy(call.gs, (int64_t[]){h->H * h->N * h->E, h->N * h->E, h->E}, sizeof call.gs);
        memcpy(call.dqs, call.qs, sizeof call.qs), memcpy(call.dks, call.ks, sizeof call.ks), memcpy(call.dvs, call.vs, sizeof call.vs);
        call.dq = bytes(q), call.dk = bytes(k), call.dv = bytes(v), call.dkv = bytes(kv), call.dz = bytes(z), call.b = bytes(den);
        if (cosformer_backward(&call)) exit(6);
        output(call.dq, q), output(call.dk, k), output(call.dv, v), output(call.dkv, kv), output(call.dz, z);
        call.kv_next = (float *)kept[0], call.z_next = (float *)kept[1];
        free(call.dq), free(call.dk), free(call.dv), free(call.dkv), free(call.dz), free(call.b);
    }
    free((void *)call.q), free((void *)call.k), free((void *)call.v), free((void *)call.kv), free((void *)call.z);
    free((void *)call.mask), free((void *)call.cu), free((void *)call.g_out);
    free(call.out), free(call.den), free(call.kv_next), free(call.z_next);
}

int main(void) {
    fprintf(stderr, "%s kernels, built with %s, %s\n", cosformer_choose(NULL), cosformer_compiler(), pool_name());
    for (header_t header; fread(&header, sizeof header, 1, stdin) == 1;) run(&header);
    return 0;
}
