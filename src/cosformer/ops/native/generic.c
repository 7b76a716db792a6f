/* The kernels for every processor: four-wide vectors are SSE on x86, NEON on ARM, plain code elsewhere.
 * Tested on x86; on ARM neither compiled nor run so far. */
#define WIDTH 4
#if defined(__aarch64__)
#define ROWS 6 /* 24 of 32 registers */
#else
#define ROWS 2 /* 8 of 16 registers */
#endif
#define KERNELS kernels_generic
#define NAME "generic"
#include "kernels.h"
