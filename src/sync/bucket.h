/* bucket.h - cutting the flat gradient buffer into buckets, and which bucket a parameter is in. */
#ifndef DDP_SYNC_BUCKET_H
#define DDP_SYNC_BUCKET_H

#include "ddp/param.h"

typedef struct ddpi_bucket_plan {
    int count;
    ddp_range *ranges; /* [count]: adjacent, in order, covering the flat buffer */
    int *param_counts; /* [count]: parameters in each */
    int *bucket_of;    /* [parameters] */
} ddpi_bucket_plan;

/* Cuts at parameter borders: a bucket ends with the parameter that brings it to its cap or above.
 * first_bytes is the first bucket's cap, cap_bytes the others'. */
DDP_INNER ddp_status ddpi_bucket_plan_make(const ddp_param_table *table, double first_bytes,
                                           double cap_bytes, ddpi_bucket_plan *plan_out);
void ddpi_bucket_plan_free(ddpi_bucket_plan *plan);

#endif
