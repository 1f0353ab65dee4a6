/* bucket.h - cutting the flat gradient buffer into buckets, and which bucket a parameter is in. */
#ifndef DDP_SYNC_BUCKET_H
#define DDP_SYNC_BUCKET_H

#include "ddp/param.h"

/* Blocks of a bucket at most, where ranks share them out: enough that their numbers of blocks
 * differ by little. */
enum { DDPI_BUCKET_BLOCKS = 64 };

typedef struct ddpi_bucket_plan {
    int count;
    ddp_range *ranges; /* [count]: adjacent, in order, covering the flat buffer */
    int *param_counts; /* [count]: parameters in each */
    int *bucket_of;    /* [parameters] */
    /* Blocks: every bucket is cut into so many of equal length at most (the last one may be
     * shorter), on DDP_ALIGN_BYTES borders. */
    size_t *units;     /* [count]: length of a bucket's blocks */
    ddp_range *blocks; /* [block_count]: adjacent, in order */
    int *first_block;  /* [count + 1]: of each bucket */
    int block_count;
} ddpi_bucket_plan;

/* Where to cut, at parameter borders. */
typedef struct ddpi_bucket_cut {
    /* By size: a bucket ends with the parameter that brings it to its cap or above. */
    double first_bytes, cap_bytes; /* of the first bucket, of the others */
    /* Not NULL: as given. Bucket b has the parameters ends[b-1] .. ends[b]-1; the last end is the
     * number of parameters. */
    const int *ends;
    int count;
    int blocks; /* of a bucket, at most */
} ddpi_bucket_cut;
DDP_INNER ddp_status ddpi_bucket_plan_make(const ddp_param_table *table, const ddpi_bucket_cut *cut,
                                           ddpi_bucket_plan *plan_out);
void ddpi_bucket_plan_free(ddpi_bucket_plan *plan);

#endif
