/* layer_impl.h - the table behind a layer type, and what the core (model*.c) knows of a layer.
 *
 * The core works through this table only; registry.c finds a type's table by its name. A type's
 * private data follows the base struct ddpi_layer as its first member, a type's plan follows
 * ddpi_layer_plan. A layer plans once for each batch size and purpose; it keeps what the plans
 * share (the weights' layout, the parameters' numbers). One thread. */
#ifndef DDP_NN_LAYER_IMPL_H
#define DDP_NN_LAYER_IMPL_H

#include "ddp/model.h"

typedef struct ddpi_layer_ops ddpi_layer_ops;

typedef struct ddpi_layer {
    const ddpi_layer_ops *ops;
    ddp_layer_spec spec; /* strings are the layer's own copies */
    /* Set by infer(): */
    int param_count;
    int64_t param_elements;
    /* Set by the core before the first plan: number of parameters of the layers before, and of
     * layers. */
    uint32_t first_init_number, number;
    bool f32; /* stays in f32 where others compute in bf16 or f16: the logits */
} ddpi_layer;

/* Where the neighbour stands whose work a layer may take over. */
typedef enum ddpi_side { DDPI_BEFORE, DDPI_AFTER } ddpi_side;

enum { DDPI_MAX_SOURCES = 2 };

typedef struct ddpi_plan_opts {
    ddp_device *device;
    ddp_layout *src[DDPI_MAX_SOURCES]; /* src[1]: NULL with one source */
    bool training;
    ddp_dtype compute;
    bool need_diff_src[DDPI_MAX_SOURCES];
} ddpi_plan_opts;

/* What a plan tells the core, so that it can place buffers and order work without knowing types. */
typedef struct ddpi_layer_plan {
    ddp_layout *dst; /* borrowed from the plan */
    size_t workspace_bytes, scratch_bytes;
    const char *impl;
    bool training;
    /* What backward reads besides diff_dst; what it does not read need not be kept. */
    bool reads_src[DDPI_MAX_SOURCES], reads_dst;
    /* Backward takes a second gradient of dst and sums both on its way. */
    bool sums_diff_dst;
    /* After backward diff_dst holds the gradient of this source, which gets no buffer of its own;
     * DDPI_NO_SOURCE: of none. */
    int diff_dst_becomes;
    /* A forward costs little beside a convolution's: its output may be dropped and made again. */
    bool cheap;
} ddpi_layer_plan;

enum { DDPI_NO_SOURCE = -1 };

/* What a pass works on. Pointers into device memory; those that a pass does not need may be NULL.
 */
typedef struct ddpi_pass {
    ddp_stream *stream;
    const float *params; /* the flat buffers */
    float *grads;
    ddp_param_table *table;
    float *running; /* flat running statistics; NULL: forward leaves them alone */
    const void *src[DDPI_MAX_SOURCES];
    void *dst;
    void *diff_src[DDPI_MAX_SOURCES]; /* NULL: not wanted, or diff_dst becomes it */
    void *diff_dst, *diff_dst2;       /* diff_dst2: NULL unless the plan sums both */
    void *workspace, *scratch;
    const ddp_model_input *input;
    const ddp_model_sync *sync; /* NULL: statistics are this shard's own */
    bool replay;                /* a forward that only makes its output again */
} ddpi_pass;

struct ddpi_layer_ops {
    const char *type;
    /* Copies what it needs of spec (the core has checked name and type). */
    ddp_status (*create)(const ddp_layer_spec *spec, ddpi_layer **layer_out);
    void (*destroy)(ddpi_layer *layer);
    int sources; /* 1 or 2 */
    /* Takes over the work of `other`, its only neighbour on that side; false (and no change) if it
     * cannot. Taking over a layer of two sources makes this one of two: its own, and the other. */
    bool (*absorb)(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side);
    /* Output shape for the sources' shapes with batch. Messages need not name the layer. */
    ddp_status (*infer)(ddpi_layer *layer, const ddp_shape *const src[DDPI_MAX_SOURCES],
                        ddp_shape *dst_out);
    /* Operations of one pass forward, and of everything that backward runs. */
    ddp_status (*flops)(const ddpi_layer *layer, const ddp_shape *src, bool need_diff_src,
                        double flops_out[2]);
    ddp_status (*plan)(ddpi_layer *layer, const ddpi_plan_opts *opts, ddpi_layer_plan **plan_out);
    void (*plan_destroy)(ddpi_layer_plan *plan);
    /* Adds the layer's parameters; after the first plan. */
    ddp_status (*add_params)(ddpi_layer *layer, ddp_param_table *table);
    /* Adds its running statistics; NULL: it has none. */
    ddp_status (*add_buffers)(ddpi_layer *layer, ddp_buffer_table *table);
    ddp_status (*forward)(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);
    /* Gradients of parameters, then of the source, then ddp_param_grad_done(): whoever hears of the
     * last parameter of a bucket may change parameters at once, so nothing may need them any more.
     */
    ddp_status (*backward)(ddpi_layer *layer, ddpi_layer_plan *plan, const ddpi_pass *pass);
};

extern const ddpi_layer_ops ddpi_layer_conv2d, ddpi_layer_linear, ddpi_layer_relu,
    ddpi_layer_avgpool, ddpi_layer_maxpool, ddpi_layer_globalavgpool, ddpi_layer_flatten,
    ddpi_layer_batchnorm, ddpi_layer_add, ddpi_layer_dropout;

/* NULL if there is no such type. */
const ddpi_layer_ops *ddpi_layer_find(const char *type);
/* Writes the known types, separated by commas (cut to text_bytes), and returns text. */
char *ddpi_layer_types(char *text, size_t text_bytes);

#endif
