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
 * "globalavgpool" (to [channels][1][1]), "flatten", "batchnorm" (eps, momentum), "add" (input2),
 * "dropout" (rate). A batchnorm takes over an add and a relu behind it. */
typedef struct ddp_layer_spec {
    const char *type;
    const char *name; /* unique in the model; parameters are NAME.weight and NAME.bias */
    /* Names of the layers that it reads; input NULL: the layer before. Any layer may be read by
     * several. */
    const char *input, *input2;
    int64_t out;    /* channels or features */
    int64_t kernel; /* square */
    int64_t stride; /* 0: 1 for convolutions, the kernel for pooling */
    int64_t pad;
    bool no_bias;
    double eps, momentum; /* batchnorm; 0: 1e-5 and 0.1. running += momentum * (batch - running) */
    double rate;          /* dropout: share of the values that are set to 0 */
    /* Biases start at 0 unless bias_init says otherwise; weights of a batchnorm at 1, or at 0 with
     * zero_weight. */
    ddp_param_init weight_init, bias_init;
    bool zero_weight;
} ddp_layer_spec;

#ifdef __cplusplus
}
#endif
#endif
