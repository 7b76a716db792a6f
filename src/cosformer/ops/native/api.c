/* What Python sees: the choice of instruction set, and one entry for each kernel. */
#include "cosformer.h"
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static const kernels_t *chosen;

#if defined(__x86_64__)
static const kernels_t *const builds[] = {&kernels_avx512, &kernels_avx2, &kernels_generic};

static int runs_here(const kernels_t *build) {
    __builtin_cpu_init();
    if (build == &kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (build == &kernels_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return 1;
}
#else
static const kernels_t *const builds[] = {&kernels_generic};
static int runs_here(const kernels_t *build) { return build != NULL; }
#endif

/* Whether the processor runs the build of this name; 0 for names that are none. */
EXPORT int cosformer_runs(const char *name) {
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        if (!strcmp(name, builds[i]->name)) return runs_here(builds[i]);
    return 0;
}

/* Choose the widest build the processor runs, or the one named. Returns its name, or NULL when that one cannot run. */
EXPORT const char *cosformer_choose(const char *name) {
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        if (runs_here(builds[i]) && (!name || !strcmp(name, builds[i]->name))) {
            chosen = builds[i];
            return chosen->name;
        }
    return NULL;
}

EXPORT const char *cosformer_compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

EXPORT const char *cosformer_pool(void) { return pool_name(); }
EXPORT int64_t cosformer_call_bytes(void) { return sizeof(call_t); }
EXPORT int64_t cosformer_token_bytes(void) { return sizeof(token_t); }

/* Tensors without elements have no address. Nothing of them is read or written, but their rows are counted from it, which C
 * allows from an address only. Members that may be absent (incoming state, mask, bounds, saved state) stay absent. */
static call_t with_addresses(const call_t *call, int writes_state) {
    static float nothing[16];
    call_t own = *call;
#define ADDRESS(member) own.member = own.member ? own.member : (void *)nothing
    ADDRESS(q), ADDRESS(k), ADDRESS(v), ADDRESS(out), ADDRESS(den);
    ADDRESS(g_out), ADDRESS(dq), ADDRESS(dk), ADDRESS(dv), ADDRESS(dkv), ADDRESS(dz), ADDRESS(b);
    if (writes_state) ADDRESS(kv_next), ADDRESS(z_next);
#undef ADDRESS
    return own;
}

/* Rows from the last to the first. */
static void reverse(call_t *call) {
    int64_t size = call->dtype == F32 ? 4 : 2, out_size = call->out_dtype == F32 ? 4 : 2;
#define REVERSE(data, strides, size) (call->data += (call->N - 1) * call->strides[2] * (size), call->strides[2] *= -1)
    REVERSE(q, qs, size), REVERSE(k, ks, size), REVERSE(v, vs, size), REVERSE(out, os, out_size);
    REVERSE(g_out, gs, size), REVERSE(dq, dqs, size), REVERSE(dk, dks, size), REVERSE(dv, dvs, out_size);
    if (call->sums) REVERSE(sums, ss, 1);
#undef REVERSE
}

static int run(int (*kernel)(const call_t *), const call_t *call, int writes_state) {
    call_t own = with_addresses(call, writes_state);
    if (own.reversed && own.N) reverse(&own);
    return kernel(&own);
}

EXPORT int cosformer_forward(const call_t *call) { return run(chosen->forward, call, 1); }
EXPORT int cosformer_backward(const call_t *call) { return run(chosen->backward, call, 0); }
EXPORT int cosformer_dense(const call_t *call) { return run(chosen->dense, call, 0); }
EXPORT int cosformer_step(const call_t *call) { return run(chosen->step, call, 1); }

/* The step of a causal cosFormer call. Returns 3, having done nothing, when the state has no room for a token. */
EXPORT int cosformer_token(const token_t *token) {
    int64_t seen = *token->position, D = token->D, E = token->E;
    if (seen >= token->max_len) return 3;
    call_t call = {.B = token->B, .H = token->H, .Hk = token->Hk, .N = 1, .S = 1, .D = D, .E = E, .dtype = token->dtype,
                   .relu = 1, .causal = 1, .q_len = token->max_len, .k_len = token->max_len, .eps = token->eps,
                   .qs = {token->H * D, D, D}, .ks = {token->Hk * D, D, D}, .vs = {token->Hk * E, E, E},
                   .os = {token->H * E, E, E}, .sequences = 1, .threads = token->threads, .out_dtype = token->dtype,
                   .q_first = seen, .k_first = seen, .q = token->q, .k = token->k, .v = token->v, .kv = token->kv,
                   .z = token->z, .decay = token->decay, .out = token->out, .kv_next = token->kv_next,
                   .z_next = token->z_next};
    *token->position_next = seen + 1;
    return cosformer_step(&call);
}
