/* timeline_impl.h - when a timeline is written (timeline.c), and how (timeline_write.c). */
#ifndef DDP_TRAIN_TIMELINE_IMPL_H
#define DDP_TRAIN_TIMELINE_IMPL_H

#include "ddp/clocks.h"
#include "ddp/timeline.h"

enum { DDPI_TIMELINE_KEPT = 64 }; /* steps that the median is taken of */

struct ddp_timeline {
    ddp_timeline_opts opts;
    ddp_timeline_parts parts;
    ddp_clock_look started; /* the clock at the beginning */
    const char **layers;    /* names, the loss last */
    int layer_count;
    int answered;        /* requests of this process */
    int64_t answered_ns; /* when the last file was written */
    bool slow;           /* the last step was */
    int slow_files;
    int64_t slow_step; /* of the last of them */
    int64_t taken_ns[DDPI_TIMELINE_KEPT], taken_count;
};

/* Collective. The last `steps` steps. A file that cannot be written is a warning of rank 0. */
DDP_INNER ddp_status ddpi_timeline_write(ddp_timeline *timeline, const char *name, int64_t steps);

#endif
