/* stragglers.h - which rank the others wait for, and what it does meanwhile.
 *
 * A rank's own time in a step is what it does not spend waiting for others: from the end of the
 * step before to the end of this one, less its exposed communication. Equal work on equal machines
 * takes all ranks equally long; the one that takes longest is what the step takes. Kept on any rank
 * that sees a step's statistics. One thread. */
#ifndef DDP_STRAGGLERS_H
#define DDP_STRAGGLERS_H

#include "ddp/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_step_part {
    DDP_PART_BETWEEN, /* steps */
    DDP_PART_DATA,    /* waiting for the loader */
    DDP_PART_FORWARD,
    DDP_PART_BACKWARD,
    DDP_PART_OPTIM,
    DDP_PART_OTHER,
    DDP_PARTS
} ddp_step_part;
/* "waiting for data" */
DDP_API const char *ddp_step_part_name(ddp_step_part part);

/* Of the steps since the last reset, the rank whose own time is longest in the mean. */
typedef struct ddp_straggler {
    int rank;
    ddp_step_part part;           /* in which it is furthest above the mean of all ranks */
    double own_ms, mean_ms;       /* a step: of its own, in the mean of all ranks */
    int64_t slowest_steps, steps; /* in which it was the slowest; of so many */
} ddp_straggler;

typedef struct ddp_stragglers ddp_stragglers;

/* The caller owns *stragglers_out. */
DDP_CALL ddp_status ddp_stragglers_create(int world, ddp_stragglers **stragglers_out);
DDP_API void ddp_stragglers_destroy(ddp_stragglers *stragglers);
/* stats->ranks of the world. True: a rank has been the slowest, by more than half of the mean, for
 * ten steps on end; once until the next reset. It is ddp_stragglers_get()'s. Allocates nothing. */
DDP_API bool ddp_stragglers_step(ddp_stragglers *stragglers, const ddp_step_stats *stats,
                                 ddp_straggler *late_out);
/* False: no steps, or a world of one. */
DDP_API bool ddp_stragglers_get(const ddp_stragglers *stragglers, ddp_straggler *straggler_out);
/* The rank's own time in a step, in the mean since the reset; 0 without steps. */
DDP_API double ddp_stragglers_own_ms(const ddp_stragglers *stragglers, int rank);
DDP_API void ddp_stragglers_reset(ddp_stragglers *stragglers);

#ifdef __cplusplus
}
#endif
#endif
