/* trace_impl.h - after a step whose numbers are not finite: what was it? */
#ifndef DDP_TRAIN_TRACE_IMPL_H
#define DDP_TRAIN_TRACE_IMPL_H

#include "ddp/trainer.h"

enum { DDPI_TRACE_BYTES = 1200 };

/* Collective, between steps. Every rank computes its micro-batches of the step again, from the
 * parameters as they are; the first that finds something writes it to a file. text_out, the same
 * everywhere: rank, layer, samples and file. The loader then stands behind the step. */
DDP_INNER ddp_status ddpi_trace(const ddp_trainer_parts *parts, const ddp_run_state *at,
                                char text_out[DDPI_TRACE_BYTES]);

#endif
