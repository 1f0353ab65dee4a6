/* scale.h - the loss scale: how it changes from step to step, and where a device finds it. */
#ifndef DDP_STRATEGY_SCALE_H
#define DDP_STRATEGY_SCALE_H

#include "ddp/strategy.h"

/* After a step. The gradients of all ranks were finite, or the step was left out: doubled after
 * many good steps if it grows, halved after one that was left out. DDP_ERR_NONFINITE where halving
 * has not helped. Pure. */
DDP_INNER ddp_status ddpi_scale_next(ddp_loss_scale *scale, bool grows, bool finite);

/* The scale in device memory. */
typedef struct ddpi_scale_place {
    ddp_device *device;
    float *there; /* device; NULL: no scale */
    float *sent;  /* pinned: what is there, when the main stream has done it */
} ddpi_scale_place;

/* Filled in with a scale of 0, which is sent with the first one. */
DDP_INNER ddp_status ddpi_scale_place_open(ddp_device *device, ddpi_scale_place *place);
void ddpi_scale_place_close(ddpi_scale_place *place);
/* Between steps, when the main stream has done the one before. */
DDP_INNER ddp_status ddpi_scale_send(ddpi_scale_place *place, double scale);

#endif
