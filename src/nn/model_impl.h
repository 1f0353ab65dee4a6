/* model_impl.h - what the files of the model share: the graph and its plan sets.
 *
 * model.c builds the graph, model_plan.c makes plans and places buffers, model_run.c runs them,
 * model_summary.c describes them. */
#ifndef DDP_NN_MODEL_IMPL_H
#define DDP_NN_MODEL_IMPL_H

#include "ddp/model.h"
#include "nn/layer_impl.h"

enum { DDPI_MODEL_INPUT = -1 }; /* as a node's input: the samples */

/* A layer in the graph. Nodes are in forward order: an input lies before its node. */
typedef struct ddpi_node {
    ddpi_layer *layer;
    int input;          /* as declared */
    int source;         /* the node whose output is read: input, past absorbed ones */
    bool absorbed;      /* a neighbour does its work; its output is its source's */
    bool backward;      /* has parameters, or lies behind some that have */
    bool need_diff_src; /* its source has a backward */
    ddp_shape src, dst; /* for one sample: dims[0] is 1 */
    double flops[2];    /* per sample: forward, backward */
} ddpi_node;

/* Offsets are bytes from the start of the arena. */
typedef struct ddpi_node_plan {
    ddpi_layer_plan *plan; /* NULL: absorbed */
    size_t dst, diff_dst, workspace;
} ddpi_node_plan;

/* All plans for one batch size and purpose. */
typedef struct ddpi_plan_set {
    struct ddpi_plan_set *next;
    int64_t batch;
    bool training;
    ddpi_node_plan *nodes; /* as the model's nodes */
    ddp_op_plan *loss;
    ddp_op_plan *logits; /* to plain; NULL if they are plain already */
    size_t loss_diff, loss_workspace, plain_logits, scratch;
    size_t bytes; /* of the arena */
} ddpi_plan_set;

struct ddp_model {
    const ddp_model_def *def;
    ddp_model_opts opts; /* without mlp_widths, which only build() needs */
    ddp_device *device;
    ddpi_node *nodes;
    int node_count, node_capacity;
    ddp_param_table *table; /* NULL before the first plan */
    ddpi_plan_set *sets;    /* in order of planning */
    char *arena;
    size_t arena_bytes;
    double *loss;        /* device */
    const float *params; /* bound */
    float *grads;
    const ddpi_plan_set *awaiting; /* the forward that awaits its backward */
    const float *awaiting_inputs;
};

/* The node whose output are the logits. */
int ddpi_model_last(const ddp_model *model);
/* The model's input shape or a node's output shape, with that many samples. */
ddp_shape ddpi_model_shape(const ddp_model *model, int node, int64_t batch);
/* "20x3x3" for a shape with batch. */
char *ddpi_model_format_sample(const ddp_shape *shape, char *text, size_t text_bytes);
ddpi_plan_set *ddpi_model_find_set(const ddp_model *model, int64_t batch, bool training);
void ddpi_plan_set_destroy(const ddp_model *model, ddpi_plan_set *set);

#endif
