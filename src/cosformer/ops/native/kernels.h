/* One build of all passes, for the instruction set of the including file. */
#define CAUSAL_CHUNK 48 /* chunks are multiples of 16 */
#define SMALL_CHUNK 32  /* where D and E are SMALL on average, or less */
#define SMALL 40
#define WHOLE_CHUNK 96
#define STATE_BYTES (192 * 1024) /* what a causal pass keeps of a state in the second-level cache */
#define IN_PLACE_BYTES 512 /* from row to row: rows further apart compete for the same places of the first-level cache */
#include "vector.h"
#include "decay.h"
#include "pack.h"
#include "forward.h"
#include "backward.h"
#include "gradients.h"
#include "step.h"
#include "short.h"

const kernels_t KERNELS = {NAME, forward, backward, step, dense};
