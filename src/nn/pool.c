/* pool.c - average and maximum pooling with square windows, and the average over a whole plane. */
#include "nn/op_layer.h"

static ddp_status create_pool(const ddpi_layer_ops *ops, bool maximum, const ddp_layer_spec *spec,
                              ddpi_layer **layer_out)
{
    const int64_t stride = spec->stride == 0 ? spec->kernel : spec->stride;
    const ddp_op_desc desc = {
        .kind = DDP_OP_POOL2D,
        .u.pool2d = {.maximum = maximum,
                     .kernel_h = spec->kernel,
                     .kernel_w = spec->kernel,
                     .stride_h = stride,
                     .stride_w = stride,
                     .pad_h = spec->pad,
                     .pad_w = spec->pad},
    };
    return ddpi_op_layer_create(ops, spec, &desc, false, layer_out);
}

static ddp_status create_avgpool(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    return create_pool(&ddpi_layer_avgpool, false, spec, layer_out);
}

static ddp_status create_maxpool(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    return create_pool(&ddpi_layer_maxpool, true, spec, layer_out);
}

static ddp_status create_globalavgpool(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {.kind = DDP_OP_POOL2D, .u.pool2d = {.global = true}};
    return ddpi_op_layer_create(&ddpi_layer_globalavgpool, spec, &desc, false, layer_out);
}

const ddpi_layer_ops ddpi_layer_avgpool = {.type = "avgpool",
                                           .create = create_avgpool,
                                           .absorb = ddpi_op_layer_absorb_none,
                                           DDPI_OP_LAYER_SLOTS};
const ddpi_layer_ops ddpi_layer_maxpool = {.type = "maxpool",
                                           .create = create_maxpool,
                                           .absorb = ddpi_op_layer_absorb_none,
                                           DDPI_OP_LAYER_SLOTS};
const ddpi_layer_ops ddpi_layer_globalavgpool = {.type = "globalavgpool",
                                                 .create = create_globalavgpool,
                                                 .absorb = ddpi_op_layer_absorb_none,
                                                 DDPI_OP_LAYER_SLOTS};
