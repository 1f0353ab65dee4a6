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
    return create_pool(&ddpi_layer_globalavgpool, false, spec, layer_out);
}

/* The window is the plane, whatever its size. */
static ddp_status infer_globalavgpool(ddpi_layer *layer,
                                      const ddp_shape *const src[DDPI_MAX_SOURCES],
                                      ddp_shape *dst_out)
{
    ddp_pool2d_desc *pool = &((ddpi_op_layer *)layer)->desc.u.pool2d;
    if (src[0]->ndim == 4) {
        pool->kernel_h = pool->stride_h = src[0]->dims[2];
        pool->kernel_w = pool->stride_w = src[0]->dims[3];
    }
    return ddpi_op_layer_infer(layer, src, dst_out);
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
                                                 .sources = 1,
                                                 .create = create_globalavgpool,
                                                 .destroy = ddpi_op_layer_destroy,
                                                 .absorb = ddpi_op_layer_absorb_none,
                                                 .infer = infer_globalavgpool,
                                                 .plan = ddpi_op_layer_plan,
                                                 DDPI_OP_LAYER_COMMON,
                                                 .forward = ddpi_op_layer_forward,
                                                 .backward = ddpi_op_layer_backward};
