/* sgd.c - stochastic gradient descent with momentum, dampening, Nesterov and weight decay, as
 * torch.optim.SGD defines them: g += wd*w; buf = g at the first step, then momentum*buf +
 * (1-dampening)*g; g = g + momentum*buf if nesterov, else buf; w -= lr*g. */
#include "optim/optim_impl.h"

static ddp_status sgd_check(const ddp_optim_opts *opts)
{
    if (opts->nesterov && (opts->momentum <= 0 || opts->dampening != 0))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "--nesterov needs --momentum above 0 and --dampening 0, found %g and %g",
                        opts->momentum, opts->dampening);
    return DDP_OK;
}

static int sgd_slots(const ddp_optim_opts *opts)
{
    return opts->momentum != 0 ? 1 : 0;
}

static ddp_sgd_args args_of(const ddp_optim *optim, const ddpi_piece *piece)
{
    const ddp_optim_opts *o = &optim->opts;
    return (ddp_sgd_args){.lr = piece->rate,
                          .momentum = o->momentum,
                          .weight_decay = piece->segment->weight_decay,
                          .dampening = o->dampening,
                          .nesterov = o->nesterov,
                          .first = optim->steps == 0,
                          .inv_count = optim->inv_count,
                          .live = piece->live};
}

static ddp_status sgd_update(ddp_optim *optim, const ddpi_piece *piece, double *grad_sq)
{
    const ddp_sgd_args args = args_of(optim, piece);
    float *buf = optim->slot_count > 0 ? optim->slots[0] + piece->offset : NULL;
    return ddp_op_sgd(optim->device, piece->stream, &args, piece->w, piece->grad, buf, piece->count,
                      grad_sq);
}

static void sgd_live(const ddp_optim *optim, const ddpi_piece *piece, void *live_out)
{
    const ddp_sgd_args args = args_of(optim, piece);
    ddp_op_sgd_live(optim->device, &args, live_out);
}

const ddpi_optim_ops ddpi_optim_sgd = {.name = "sgd",
                                       .norms = DDPI_NORMS_NONE,
                                       .check = sgd_check,
                                       .slots = sgd_slots,
                                       .slot_names = {"momentum"},
                                       .update = sgd_update,
                                       .live = sgd_live};
