/* layer_impl.h - the table behind a layer type, and what the core (model*.c) knows of a layer.
 *
 * The core works through this table only; registry.c finds a type's table by its name. A type's
 * private data follows the base struct ddpi_layer as its first member, a type's plan follows
 * ddpi_layer_plan. A layer plans once for each batch size and purpose; it keeps what the plans
 * share (the weights' layout, the parameters' numbers). One thread. */
#ifndef DDP_NN_LAYER_IMPL_H
#define DDP_NN_LAYER_IMPL_H

#include "ddp/layer.h"

typedef struct ddpi_layer_ops ddpi_layer_ops;

typedef struct ddpi_layer {
    const ddpi_layer_ops *ops;
    ddp_layer_spec spec; /* strings are the layer's own copies */
    /* Set by infer(): */
    int param_count;
    int64_t param_elements;
    /* Set by the core before the first plan: number of parameters of the layers before. */
    uint32_t first_init_number;
} ddpi_layer;

/* Where the neighbour stands whose work a layer may take over. */
typedef enum ddpi_side { DDPI_BEFORE, DDPI_AFTER } ddpi_side;

typedef struct ddpi_plan_opts {
    ddp_device *device;
    ddp_layout *src;
    bool training;
    bool need_diff_src;
} ddpi_plan_opts;

typedef struct ddpi_layer_plan {
    ddp_layout *dst; /* borrowed from the plan */
    size_t workspace_bytes, scratch_bytes;
    const char *impl;
} ddpi_layer_plan;

/* What a pass works on. Pointers into device memory; those that a pass does not need may be NULL.
 */
typedef struct ddpi_pass {
    ddp_stream *stream;
    const float *params; /* the flat buffers */
    float *grads;
    ddp_param_table *table;
    const void *src;
    void *dst;
    void *diff_src; /* NULL: the plan was made without need_diff_src */
    void *diff_dst;
    void *workspace, *scratch;
} ddpi_pass;

struct ddpi_layer_ops {
    const char *type;
    /* Copies what it needs of spec (the core has checked name and type). */
    ddp_status (*create)(const ddp_layer_spec *spec, ddpi_layer **layer_out);
    void (*destroy)(ddpi_layer *layer);
    /* Takes over the work of `other`, its only neighbour on that side; false (and no change) if it
     * cannot. */
    bool (*absorb)(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side);
    /* Output shape for a source shape with batch. Messages need not name the layer. */
    ddp_status (*infer)(ddpi_layer *layer, const ddp_shape *src, ddp_shape *dst_out);
    /* Operations of one pass forward, and of everything that backward runs. */
    ddp_status (*flops)(const ddpi_layer *layer, const ddp_shape *src, bool need_diff_src,
                        double flops_out[2]);
    ddp_status (*plan)(ddpi_layer *layer, const ddpi_plan_opts *opts, ddpi_layer_plan **plan_out);
    void (*plan_destroy)(ddpi_layer_plan *plan);
    /* Adds the layer's parameters; after the first plan. */
    ddp_status (*add_params)(ddpi_layer *layer, ddp_param_table *table);
    ddp_status (*forward)(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);
    /* Gradients of parameters, then of the source, then ddp_param_grad_done(): whoever hears of the
     * last parameter of a bucket may change parameters at once, so nothing may need them any more.
     */
    ddp_status (*backward)(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);
};

extern const ddpi_layer_ops ddpi_layer_conv2d, ddpi_layer_linear, ddpi_layer_relu,
    ddpi_layer_avgpool, ddpi_layer_maxpool, ddpi_layer_flatten;

/* NULL if there is no such type. */
const ddpi_layer_ops *ddpi_layer_find(const char *type);
/* Writes the known types, separated by commas (cut to text_bytes), and returns text. */
char *ddpi_layer_types(char *text, size_t text_bytes);

#endif
