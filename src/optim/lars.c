/* lars.c - LARS: momentum SGD in which a weight's rate follows from the norms of it and its
 * gradient.
 *
 * After You et al. 2017, "Large Batch Training of Convolutional Networks", algorithm 1: local rate
 * trust * |w| / (|g| + wd*|w|); buf = momentum*buf + lr * local * (g + wd*w); w -= buf. Biases and
 * norms' parameters have the local rate 1. */
#include "optim/optim_impl.h"

static ddp_status lars_check(const ddp_optim_opts *opts)
{
    if (opts->nesterov || opts->dampening != 0)
        return DDP_FAIL(DDP_ERR_USAGE, "option --optimizer: found lars with --%s, expected sgd",
                        opts->nesterov ? "nesterov" : "dampening");
    return DDP_OK;
}

static int lars_slots(const ddp_optim_opts *opts)
{
    return opts->momentum != 0 ? 1 : 0;
}

/* The gradient was measured before it was clipped. */
static double lars_ratio(const ddp_optim *optim, const ddpi_segment *segment, double w, double grad)
{
    return optim->opts.trust * w / (grad * optim->clip + segment->weight_decay * w);
}

/* The rate is inside the momentum: that is SGD with rate 1 and a dampening of 1 - rate. */
static ddp_status lars_update(ddp_optim *optim, const ddpi_piece *piece, double *grad_sq)
{
    const double rate = piece->rate * piece->ratio;
    const bool momentum = optim->slot_count > 0;
    ddp_sgd_args args = {.lr = momentum ? 1 : rate,
                         .momentum = optim->opts.momentum,
                         .weight_decay = piece->segment->weight_decay,
                         .dampening = 1 - rate,
                         .inv_count = optim->inv_count};
    float *buf = momentum ? optim->slots[0] + piece->offset : NULL;
    return ddp_op_sgd(optim->device, piece->stream, &args, piece->w, piece->grad, buf, piece->count,
                      grad_sq);
}

const ddpi_optim_ops ddpi_optim_lars = {.name = "lars",
                                        .norms = DDPI_NORMS_GRADIENT,
                                        .check = lars_check,
                                        .slots = lars_slots,
                                        .slot_names = {"momentum"},
                                        .ratio = lars_ratio,
                                        .update = lars_update};
