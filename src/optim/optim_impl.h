/* optim_impl.h - the table behind an optimizer. */
#ifndef DDP_OPTIM_IMPL_H
#define DDP_OPTIM_IMPL_H

#include "ddp/optim.h"

typedef struct ddpi_optim_ops {
    const char *name;
    /* Whether the options make sense; DDP_ERR_USAGE otherwise. */
    ddp_status (*check)(const ddp_optim_opts *opts);
    /* Flat state buffers that the rule needs with these options. */
    int (*slots)(const ddp_optim_opts *opts);
    ddp_status (*update)(ddp_optim *optim, ddp_stream *stream, float *params, const float *grads,
                         ddp_range range, double *grad_sq);
} ddpi_optim_ops;

enum { DDPI_OPTIM_MAX_SLOTS = 2 };

struct ddp_optim {
    const ddpi_optim_ops *ops;
    ddp_optim_opts opts;
    ddp_device *device;
    size_t length; /* of the flat buffers, in elements */
    float *slots[DDPI_OPTIM_MAX_SLOTS];
    int slot_count;
    int64_t steps; /* finished */
    double lr, inv_count;
};

extern const ddpi_optim_ops ddpi_optim_sgd;

#endif
