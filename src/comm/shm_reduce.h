/* shm_reduce.h - element-wise reduction over plain pointers.
 *
 * The result of an element depends on the values and on n alone: n sources are split at the largest
 * power of two below n, each side is reduced likewise, and the two are joined. 2: a+b. 3: (a+b)+c.
 * 4: (a+b)+(c+d). Any thread; nothing here waits or allocates. */
#ifndef DDPI_SHM_REDUCE_H
#define DDPI_SHM_REDUCE_H

#include "ddp/work.h"

#define DDPI_REDUCE_MAX_SOURCES 1024
/* Of the leaves that the sources stand for, where those are given. */
#define DDPI_REDUCE_MAX_LEAVES 1024

/* One reduction: of n sources into dst_count destinations, count elements each. A destination may
 * be one of the sources (the same address), but must not overlap one otherwise. */
typedef struct ddpi_reduction {
    ddp_dtype dtype;
    ddp_reduce_op op;
    int n;
    const void *const *src;
    /* How many leaves of the tree each source is the sum of, where they are nodes of a larger tree
     * (sum_tree.h); NULL: one each. */
    const int64_t *leaves;
    int dst_count;
    void *const *dst;
    size_t count;
} ddpi_reduction;

/* Local. Bytes (U8) can be moved but not reduced. */
bool ddpi_reduce_supports(ddp_dtype dtype, ddp_reduce_op op);
/* Local. MAX and MIN of a NaN and a number are NaN. */
void ddpi_reduce(const ddpi_reduction *reduction);
/* Local. The elements that `rank` of n reduces: equal shares in units of `unit` elements, or of 64
 * bytes of the buffer if that is 0. A function of its arguments alone, so that buffers of one
 * length are cut alike. */
ddp_range ddpi_reduce_slice(size_t count, ddp_dtype dtype, size_t unit, int n, int rank);

#endif
