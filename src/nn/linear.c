/* linear.c - a dense layer over the features of each sample.
 *
 * Takes over a relu that follows, and a flatten before it: the operation reads an image in whatever
 * layout the layer before wrote it, which saves a pass over the activations. */
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {
        .kind = DDP_OP_LINEAR,
        .u.linear = {.out_features = spec->out, .bias = !spec->no_bias},
    };
    DDP_TRY(ddpi_op_layer_create(&ddpi_layer_linear, spec, &desc, !spec->no_bias, layer_out));
    ((ddpi_op_layer *)*layer_out)->reads_src = true;
    return DDP_OK;
}

static bool absorb(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side)
{
    if (ddpi_op_layer_is(other, side, &ddpi_layer_flatten, DDPI_BEFORE))
        return true;
    if (!ddpi_op_layer_is(other, side, &ddpi_layer_relu, DDPI_AFTER))
        return false;
    ((ddpi_op_layer *)layer)->desc.u.linear.relu = true;
    ((ddpi_op_layer *)layer)->reads_dst = true;
    return true;
}

const ddpi_layer_ops ddpi_layer_linear = {
    .type = "linear", .create = create, .absorb = absorb, DDPI_OP_LAYER_SLOTS};
