/* The kernels for processors with AVX-512. Compiled, not run so far: tests take it where the processor has it. */
#define WIDTH 16
#define ROWS 12
#define KERNELS kernels_avx512
#define NAME "avx512"
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")
#endif
#include "kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
