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
EXPORT int64_t cosformer_layout(void) { return LAYOUT; }

EXPORT int cosformer_forward(const call_t *call) { return chosen->forward(call); }
EXPORT int cosformer_backward(const call_t *call) { return chosen->backward(call); }
EXPORT int cosformer_dense(const call_t *call) { return chosen->dense(call); }
EXPORT int cosformer_step(const call_t *call) { return chosen->step(call); }
EXPORT int cosformer_product(const product_t *call) { return chosen->product(call); }
EXPORT int cosformer_outer(const product_t *call) { return chosen->outer(call); }
