/* relu.c - max(x, 0), for where no layer before takes it over. */
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {.kind = DDP_OP_RELU};
    DDP_TRY(ddpi_op_layer_create(&ddpi_layer_relu, spec, &desc, false, layer_out));
    ((ddpi_op_layer *)*layer_out)->reads_dst = true;
    ((ddpi_op_layer *)*layer_out)->cheap = true;
    return DDP_OK;
}

const ddpi_layer_ops ddpi_layer_relu = {
    .type = "relu", .create = create, .absorb = ddpi_op_layer_absorb_none, DDPI_OP_LAYER_SLOTS};
