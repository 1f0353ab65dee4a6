/* optim.h - optimizers: one pass over a range of the flat buffers.
 *
 * Gradients arrive as sums over the global batch; the optimizer multiplies by 1/count. State lives
 * in flat buffers of the same layout as the parameters; a rank that owns a range only ever touches
 * that range of them. One thread; local. */
#ifndef DDP_OPTIM_H
#define DDP_OPTIM_H

#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_optim_kind { DDP_OPTIM_SGD } ddp_optim_kind;

typedef struct ddp_optim_opts {
    int kind; /* ddp_optim_kind */
    double lr, momentum, weight_decay, dampening;
    bool nesterov;
} ddp_optim_opts;

#define DDP_OPTIM_OPTS_DEFAULTS                                                                    \
    {                                                                                              \
        DDP_OPTIM_SGD, 0.2, 0.0, 0.0, 0.0, false                                                   \
    }

typedef struct ddp_optim ddp_optim;

/* DDP_ERR_USAGE for values that make no sense together. The caller owns *optim_out; device and
 * table are borrowed. params and grads are the flat buffers. */
DDP_CALL ddp_status ddp_optim_create(const ddp_optim_opts *opts, ddp_device *device,
                                     const ddp_param_table *table, ddp_optim **optim_out);
DDP_API void ddp_optim_destroy(ddp_optim *optim);
/* Starts a step: the learning rate and 1/count hold for all ranges of it. */
DDP_API void ddp_optim_begin(ddp_optim *optim, double lr, double inv_count);
/* Updates params[range] from grads[range]; adds the squared norm of the mean gradient over the
 * range to *grad_sq. */
DDP_CALL ddp_status ddp_optim_update(ddp_optim *optim, ddp_stream *stream, float *params,
                                     const float *grads, ddp_range range, double *grad_sq);
/* Ends a step. */
DDP_API void ddp_optim_end(ddp_optim *optim);

#ifdef __cplusplus
}
#endif
#endif
