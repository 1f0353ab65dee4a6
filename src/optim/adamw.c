/* adamw.c - AdamW and LAMB: two moments, and decay that is not part of the gradient.
 *
 * AdamW as torch.optim.AdamW defines it. LAMB after You et al. 2020, "Large Batch Optimization for
 * Deep Learning: Training BERT in 76 minutes", algorithm 2 with phi the identity: a weight moves by
 * lr * |w| / |r + wd*w| * (r + wd*w), r being Adam's direction with corrected moments. Biases and
 * norms' parameters move by lr * (r + wd*w). */
#include "optim/optim_impl.h"

static ddp_status adam_check(const ddp_optim_opts *opts)
{
    if (opts->momentum != 0 || opts->dampening != 0 || opts->nesterov)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --optimizer: found adamw or lamb with --momentum, --dampening or "
                        "--nesterov, expected --beta1 and --beta2");
    if (!(opts->beta1 >= 0 && opts->beta1 < 1 && opts->beta2 >= 0 && opts->beta2 < 1))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "options --beta1 and --beta2: found %g and %g, expected less than 1",
                        opts->beta1, opts->beta2);
    if (!(opts->eps > 0)) /* padding, where all is 0, stays 0 */
        return DDP_FAIL(DDP_ERR_USAGE, "option --eps: found %g, expected a number above 0",
                        opts->eps);
    return DDP_OK;
}

static int adam_slots(const ddp_optim_opts *opts)
{
    (void)opts;
    return 2;
}

static ddp_adam_args args_of(const ddp_optim *optim, const ddpi_piece *piece)
{
    return (ddp_adam_args){.lr = piece->rate * piece->ratio,
                           .beta1 = optim->opts.beta1,
                           .beta2 = optim->opts.beta2,
                           .eps = optim->opts.eps,
                           .weight_decay = piece->segment->weight_decay,
                           .step = optim->steps + 1,
                           .inv_count = optim->inv_count,
                           .live = piece->live};
}

static ddp_status run(ddp_optim *optim, ddp_adam_pass pass, const ddpi_piece *piece, double *sums)
{
    const ddp_adam_args args = args_of(optim, piece);
    const ddp_adam_span span = {.w = piece->w,
                                .grad = piece->grad,
                                .m = optim->slots[0] + piece->offset,
                                .v = optim->slots[1] + piece->offset,
                                .count = piece->count};
    return ddp_op_adam(optim->device, piece->stream, pass, &args, &span, sums);
}

static ddp_status adamw_update(ddp_optim *optim, const ddpi_piece *piece, double *grad_sq)
{
    return run(optim, DDP_ADAMW, piece, grad_sq);
}

static void adamw_live(const ddp_optim *optim, const ddpi_piece *piece, void *live_out)
{
    const ddp_adam_args args = args_of(optim, piece);
    ddp_op_adam_live(optim->device, &args, live_out);
}

static ddp_status lamb_measure(ddp_optim *optim, const ddpi_piece *piece, double *sums)
{
    return run(optim, DDP_LAMB_MOMENTS, piece, sums);
}

static double lamb_ratio(const ddp_optim *optim, const ddpi_segment *segment, double w,
                         double direction)
{
    (void)optim, (void)segment;
    return w / direction;
}

static ddp_status lamb_update(ddp_optim *optim, const ddpi_piece *piece, double *grad_sq)
{
    (void)grad_sq;
    return run(optim, DDP_LAMB_APPLY, piece, NULL);
}

const ddpi_optim_ops ddpi_optim_adamw = {.name = "adamw",
                                         .norms = DDPI_NORMS_NONE,
                                         .check = adam_check,
                                         .slots = adam_slots,
                                         .slot_names = {"exp_avg", "exp_avg_sq"},
                                         .update = adamw_update,
                                         .live = adamw_live};
const ddpi_optim_ops ddpi_optim_lamb = {.name = "lamb",
                                        .norms = DDPI_NORMS_DIRECTION,
                                        .check = adam_check,
                                        .slots = adam_slots,
                                        .slot_names = {"exp_avg", "exp_avg_sq"},
                                        .measure = lamb_measure,
                                        .ratio = lamb_ratio,
                                        .update = lamb_update};
