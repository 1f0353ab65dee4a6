/* conv2d.c - convolution over [n][c][h][w] with square kernels; takes over a relu that follows. */
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const int64_t stride = spec->stride == 0 ? 1 : spec->stride;
    const ddp_op_desc desc = {
        .kind = DDP_OP_CONV2D,
        .u.conv2d = {.out_channels = spec->out,
                     .kernel_h = spec->kernel,
                     .kernel_w = spec->kernel,
                     .stride_h = stride,
                     .stride_w = stride,
                     .pad_h = spec->pad,
                     .pad_w = spec->pad,
                     .bias = !spec->no_bias},
    };
    DDP_TRY(ddpi_op_layer_create(&ddpi_layer_conv2d, spec, &desc, !spec->no_bias, layer_out));
    ((ddpi_op_layer *)*layer_out)->reads_src = true;
    return DDP_OK;
}

static bool absorb(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side)
{
    if (!ddpi_op_layer_is(other, side, &ddpi_layer_relu, DDPI_AFTER))
        return false;
    ((ddpi_op_layer *)layer)->desc.u.conv2d.relu = true;
    ((ddpi_op_layer *)layer)->reads_dst = true;
    return true;
}

const ddpi_layer_ops ddpi_layer_conv2d = {
    .type = "conv2d", .create = create, .absorb = absorb, DDPI_OP_LAYER_SLOTS};
