/* The kernels for processors with AVX2 and FMA. */
#define WIDTH 8
#define ROWS 6
#define KERNELS kernels_avx2
#define NAME "avx2"
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include "kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
