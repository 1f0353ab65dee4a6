/* layer.h - what a model is made of: layer specifications, in forward order.
 *
 * A layer type is a table in src/nn (layer_impl.h); the core knows no types. Most types are one
 * operation (op.h) with its parameters. A relu that follows a layer that can do it itself is taken
 * over by that layer (fused). */
#ifndef DDP_LAYER_H
#define DDP_LAYER_H

#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One layer. Fields that a type does not use stay 0. Types: "conv2d" (out, kernel, stride, pad,
 * no_bias), "linear" (out, no_bias), "relu", "avgpool" and "maxpool" (kernel, stride, pad),
 * "flatten". */
typedef struct ddp_layer_spec {
    const char *type;
    const char *name; /* unique in the model; parameters are NAME.weight and NAME.bias */
    int64_t out;      /* channels or features */
    int64_t kernel;   /* square */
    int64_t stride;   /* 0: 1 for convolutions, the kernel for pooling */
    int64_t pad;
    bool no_bias;
    ddp_param_init weight_init; /* biases start at 0 unless bias_init says otherwise */
    ddp_param_init bias_init;
} ddp_layer_spec;

#ifdef __cplusplus
}
#endif
#endif
