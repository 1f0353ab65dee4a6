/* parts.h - the partial sums that go into a work with a fixed order of addition (ddp_coll.shards).
 *
 * Where a rank's logical shards do not lie under one node of the tree, the rank has several partial
 * sums, at equal distances from the work's buffer on. Which these are follows from the descriptor
 * and the number of ranks, so that every rank knows what all others have. Any thread. */
#ifndef DDPI_PARTS_H
#define DDPI_PARTS_H

#include "comm/shm_reduce.h"

/* All ranks' partial sums, in the order of the shards. */
typedef struct ddpi_parts {
    int n;
    int rank[DDPI_REDUCE_MAX_SOURCES], place[DDPI_REDUCE_MAX_SOURCES]; /* whose, and which of its */
    int64_t leaves[DDPI_REDUCE_MAX_SOURCES]; /* shards that it is the sum of */
} ddpi_parts;

/* DDP_ERR_USAGE if the work's partial sums are too many, or too far apart to be described. */
DDP_INNER ddp_status ddpi_parts_check(const ddp_coll *coll, int world);
/* The largest number of partial sums of a rank. */
int ddpi_parts_most(const ddp_coll *coll, int world);
/* Fills *parts_out. */
DDP_MODULE_API void ddpi_parts_list(const ddp_coll *coll, int world, ddpi_parts *parts_out);
/* Where a partial sum lies, in bytes behind the work's buffer. */
DDP_MODULE_API size_t ddpi_part_offset(const ddp_coll *coll, int place);
/* From the work's buffer to the end of the last place. */
size_t ddpi_parts_bytes(const ddp_coll *coll, int world);

#endif
