/* dropout.c - sets a share of the values to 0 in training and scales the others up.
 *
 * Which ones is a function of (seed, layer, sample, element): batches, shards, ranks and
 * recomputation do not enter, and nothing is kept for backward. */
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    if (!(spec->rate >= 0 && spec->rate < 1))
        return DDP_FAIL(DDP_ERR_SHAPE, "layer %s (dropout): a rate of %g, expected 0 to below 1",
                        spec->name, spec->rate);
    const ddp_op_desc desc = {.kind = DDP_OP_DROPOUT, .u.dropout = {.rate = spec->rate}};
    DDP_TRY(ddpi_op_layer_create(&ddpi_layer_dropout, spec, &desc, false, layer_out));
    ((ddpi_op_layer *)*layer_out)->cheap = true;
    return DDP_OK;
}

static ddp_op_args args_of(const ddpi_layer *base, const ddpi_pass *pass)
{
    ddp_op_args args = ddpi_op_layer_args((const ddpi_op_layer *)base, pass);
    args.rng_seed = pass->input->seed;
    args.rng_live_seed = pass->input->live_seed;
    args.rng_stream = base->number;
    args.sample_ids = pass->input->sample_ids;
    return args;
}

static ddp_status forward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    const ddp_op_args args = args_of(base, pass);
    if (args.sample_ids == NULL && plan->training)
        return DDP_FAIL(DDP_ERR_INTERNAL, "layer %s: dropout needs the samples' numbers",
                        base->spec.name);
    return ddp_op_run(ddpi_op_layer_plan_op(plan), DDP_PASS_FORWARD, pass->stream, &args);
}

static ddp_status backward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    const ddp_op_args args = args_of(base, pass);
    if (pass->diff_src[0] == NULL)
        return DDP_OK;
    return ddp_op_run(ddpi_op_layer_plan_op(plan), DDP_PASS_BACKWARD_DATA, pass->stream, &args);
}

const ddpi_layer_ops ddpi_layer_dropout = {.type = "dropout",
                                           .sources = 1,
                                           .create = create,
                                           .destroy = ddpi_op_layer_destroy,
                                           .absorb = ddpi_op_layer_absorb_none,
                                           .infer = ddpi_op_layer_infer,
                                           .plan = ddpi_op_layer_plan,
                                           DDPI_OP_LAYER_COMMON,
                                           .forward = forward,
                                           .backward = backward};
