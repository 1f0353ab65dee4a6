/* no_barriers.h - included before the kernels' source: takes every barrier out of them, for a test
 * that the tests of kernels notice it. */
#include "gpu.h"

#define __syncthreads() ((void)0)
