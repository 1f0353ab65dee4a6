/* add.c - the sum of two layers' outputs (a residual connection), for where no norm takes it over.
 *
 * Its gradient is that of both sources: what lies in diff_dst becomes the second's, the first gets
 * a copy. Takes over a relu that follows. */
#include "ddp/memory.h"
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {.kind = DDP_OP_ADD};
    return ddpi_op_layer_create(&ddpi_layer_add, spec, &desc, false, layer_out);
}

static bool absorb(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side)
{
    if (!ddpi_op_layer_is(other, side, &ddpi_layer_relu, DDPI_AFTER))
        return false;
    ((ddpi_op_layer *)layer)->desc.u.add.relu = true;
    ((ddpi_op_layer *)layer)->reads_dst = true;
    return true;
}

static ddp_status infer(ddpi_layer *layer, const ddp_shape *const src[DDPI_MAX_SOURCES],
                        ddp_shape *dst_out)
{
    if (!ddp_shape_equal(src[0], src[1])) {
        char a[64], b[64];
        return DDP_FAIL(DDP_ERR_SHAPE, "the two are of different shapes (%s and %s)",
                        ddp_shape_format(src[0], a, sizeof a),
                        ddp_shape_format(src[1], b, sizeof b));
    }
    return ddpi_op_layer_infer(layer, src, dst_out);
}

static ddp_status plan(ddpi_layer *base, const ddpi_plan_opts *opts, ddpi_layer_plan **plan_out)
{
    DDP_TRY(ddpi_op_layer_plan(base, opts, plan_out));
    (*plan_out)->sums_diff_dst = true;
    if (opts->need_diff_src[1] && ddp_layout_equal(opts->src[1], (*plan_out)->dst))
        (*plan_out)->diff_dst_becomes = 1;
    return DDP_OK;
}

static ddp_status backward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    const ddp_op_args args = ddpi_op_layer_args((const ddpi_op_layer *)base, pass);
    return ddp_op_run(ddpi_op_layer_plan_op(plan), DDP_PASS_BACKWARD_DATA, pass->stream, &args);
}

const ddpi_layer_ops ddpi_layer_add = {.type = "add",
                                       .sources = 2,
                                       .create = create,
                                       .destroy = ddpi_op_layer_destroy,
                                       .absorb = absorb,
                                       .infer = infer,
                                       .plan = plan,
                                       DDPI_OP_LAYER_COMMON,
                                       .forward = ddpi_op_layer_forward,
                                       .backward = backward};
