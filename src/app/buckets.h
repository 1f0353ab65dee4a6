/* buckets.h - --bucket-cap-mb auto: what is measured before the first step, and the buckets that
 * follow from it. */
#ifndef DDP_APP_BUCKETS_H
#define DDP_APP_BUCKETS_H

#include "app/run.h"
#include "ddp/cost.h"

/* A cut into buckets, and what it comes to. Seconds. */
typedef struct ddpi_cut {
    int *ends; /* [count]: as ddp_reducer_opts.cuts */
    int count;
    double predicted; /* communication left exposed in a step */
    double exposed;   /* the same, tried */
    double seconds;   /* a tried step without its update */
} ddpi_cut;

enum { DDPI_BUCKETS_WATCHED = 11 };

/* All ranks alike: times are those of the slowest. */
struct ddpi_buckets {
    int params;
    double *bytes, *ready; /* [params]: of gradient; complete so long after backward has begun */
    double forward, backward, update_per_byte;
    bool hidden;                        /* communication goes on while ranks compute */
    ddp_cost_curve curve;               /* a bucket's time over its size, beside computing */
    ddp_cost_curve publish;             /* of owned slices, when all buckets are through */
    double stretch;                     /* that over the same with nothing beside it */
    ddpi_cut size;                      /* by size, as without measuring */
    ddpi_cut best;                      /* by the model */
    bool better;                        /* best is another one, and was not slower when tried */
    double steps[DDPI_BUCKETS_WATCHED]; /* exposed in training, ms */
    int watched;
};

bool ddpi_cut_same(const ddpi_cut *a, const ddpi_cut *b);

/* ---- measuring (buckets_measure.c) ---- */

/* Training passes over zeros, in buffers of a reducer of their own. */
typedef struct ddpi_passes ddpi_passes;
/* Local. The caller owns *passes_out. */
DDP_INNER ddp_status ddpi_passes_create(ddpi_run *run, ddpi_passes **passes_out);
void ddpi_passes_destroy(ddpi_passes *passes);

/* What passes took: medians on each rank (of seconds the least), then the slowest rank. */
typedef struct ddpi_pass_times {
    double *ready; /* [parameters]; the caller's */
    double forward, backward, comm, exposed, seconds;
} ddpi_pass_times;
/* Collective. Passes of forward and backward alone, or of whole steps up to the last sum; so many
 * after a first one that does not count. */
DDP_INNER ddp_status ddpi_passes_run(ddpi_passes *passes, ddp_reducer *reducer, bool sums,
                                     int count, ddpi_pass_times *times);
/* Collective. How long the optimizer takes for a byte of gradient. */
DDP_INNER ddp_status ddpi_buckets_time_update(ddpi_run *run, double *seconds_out);

#endif
