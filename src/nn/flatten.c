/* flatten.c - [n][c][h][w] to [n][c*h*w], for where the layer behind does not take it over. */
#include "nn/op_layer.h"

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {.kind = DDP_OP_RESHAPE};
    return ddpi_op_layer_create(&ddpi_layer_flatten, spec, &desc, false, layer_out);
}

const ddpi_layer_ops ddpi_layer_flatten = {
    .type = "flatten", .create = create, .absorb = ddpi_op_layer_absorb_none, DDPI_OP_LAYER_SLOTS};
