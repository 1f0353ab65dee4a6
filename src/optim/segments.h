/* segments.h - the flat buffers cut into runs of parameters with equal settings. */
#ifndef DDP_OPTIM_SEGMENTS_H
#define DDP_OPTIM_SEGMENTS_H

#include "ddp/optim.h"

typedef struct ddpi_segment {
    size_t lo, hi;   /* elements, with the padding behind a parameter */
    double lr_scale; /* of the step's rate */
    double weight_decay;
    bool frozen;
    int norm; /* number of an adaptive parameter, which has a segment of its own; -1: another */
} ddpi_segment;

/* Adjacent, in order, covering the flat buffers. */
typedef struct ddpi_segments {
    ddpi_segment *items;
    int count;
    int norms; /* adaptive parameters */
} ddpi_segments;

/* adapts: parameters with DDP_PARAM_DECAY (weights, not biases or norms') are adaptive. */
DDP_INNER ddp_status ddpi_segments_make(const ddp_optim_opts *opts, const ddp_param_table *table,
                                        bool adapts, ddpi_segments *segments_out);
void ddpi_segments_free(ddpi_segments *segments);
/* Checks the text of opts->groups. */
DDP_INNER ddp_status ddpi_groups_check(const ddp_optim_opts *opts);

#endif
