/* op_layer.h - a layer that is one operation plan (op.h) with its parameters.
 *
 * A type's file fills in a descriptor and says what it absorbs; all else is shared. */
#ifndef DDP_NN_OP_LAYER_H
#define DDP_NN_OP_LAYER_H

#include "nn/layer_impl.h"

typedef struct ddpi_op_layer {
    ddpi_layer base;
    ddp_op_desc desc; /* without training and need_diff_src, which are a plan's */
    bool has_bias;
    bool reads_src, reads_dst;         /* what its backward reads */
    bool cheap;                        /* see ddpi_layer_plan */
    ddp_device *device;                /* of the plans; NULL before the first */
    ddp_shape weight_shape;            /* ndim 0: the operation has no parameters */
    ddp_layout *weight_layout;         /* fixed by the first plan; NULL before */
    ddp_layout *bias_layout;           /* plain */
    int weight_index, bias_index;      /* in the parameter table */
    size_t weight_offset, bias_offset; /* in the flat buffers */
} ddpi_op_layer;

/* For create(): a layer with this operation. */
ddp_status ddpi_op_layer_create(const ddpi_layer_ops *ops, const ddp_layer_spec *spec,
                                const ddp_op_desc *desc, bool has_bias, ddpi_layer **layer_out);
/* The same for a type whose struct begins with ddpi_op_layer; `layer` is zeroed. */
ddp_status ddpi_op_layer_init(ddpi_op_layer *layer, const ddpi_layer_ops *ops,
                              const ddp_layer_spec *spec, const ddp_op_desc *desc, bool has_bias);
/* For absorb(): whether `other`, on that side, is a layer of this type. */
bool ddpi_op_layer_is(const ddpi_layer *other, ddpi_side side, const ddpi_layer_ops *want_ops,
                      ddpi_side want_side);
bool ddpi_op_layer_absorb_none(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side);
void ddpi_op_layer_destroy(ddpi_layer *layer);
ddp_status ddpi_op_layer_infer(ddpi_layer *layer, const ddp_shape *const src[DDPI_MAX_SOURCES],
                               ddp_shape *dst_out);
ddp_status ddpi_op_layer_flops(const ddpi_layer *layer, const ddp_shape *src, bool need_diff_src,
                               double flops_out[2]);
ddp_status ddpi_op_layer_plan(ddpi_layer *layer, const ddpi_plan_opts *opts,
                              ddpi_layer_plan **plan_out);
void ddpi_op_layer_plan_destroy(ddpi_layer_plan *plan);
ddp_status ddpi_op_layer_add_params(ddpi_layer *layer, ddp_param_table *table);
ddp_status ddpi_op_layer_forward(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);
ddp_status ddpi_op_layer_backward(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);

/* For types with slots of their own: what a pass hands to the operation. */
ddp_op_args ddpi_op_layer_args(const ddpi_op_layer *layer, const ddpi_pass *pass);
ddp_op_plan *ddpi_op_layer_plan_op(const ddpi_layer_plan *plan);
/* After the last pass that reads or writes them. */
ddp_status ddpi_op_layer_params_done(const ddpi_op_layer *layer, const ddpi_pass *pass);

/* The slots that every such type shares, also one with passes of its own. */
#define DDPI_OP_LAYER_COMMON                                                                       \
    .flops = ddpi_op_layer_flops, .plan_destroy = ddpi_op_layer_plan_destroy,                      \
    .add_params = ddpi_op_layer_add_params

/* All slots but the type's name, create and absorb. */
#define DDPI_OP_LAYER_SLOTS                                                                        \
    .sources = 1, .destroy = ddpi_op_layer_destroy, .infer = ddpi_op_layer_infer,                  \
    .plan = ddpi_op_layer_plan, .forward = ddpi_op_layer_forward,                                  \
    .backward = ddpi_op_layer_backward, DDPI_OP_LAYER_COMMON

#endif
