/* model_impl.h - what the files of the model share: the graph and its plan sets.
 *
 * model.c builds the graph, model_plan.c makes plans, model_schedule.c lists the steps of a pass
 * and what lives when, model_place.c gives buffers their places, model_run.c runs the steps,
 * model_summary.c describes. */
#ifndef DDP_NN_MODEL_IMPL_H
#define DDP_NN_MODEL_IMPL_H

#include "ddp/model.h"
#include "nn/layer_impl.h"

enum { DDPI_MODEL_INPUT = -1 }; /* as a node's input: the samples */

/* A layer in the graph. Nodes are in forward order: an input lies before its node. */
typedef struct ddpi_node {
    ddpi_layer *layer;
    int inputs;                  /* 1 or 2, as declared */
    int input[DDPI_MAX_SOURCES]; /* as declared */
    /* What is really read: the inputs past absorbed nodes, and those of nodes taken over. An
     * absorbed node's output is that of source[0]. */
    int sources;
    int source[DDPI_MAX_SOURCES];
    bool absorbed;
    bool backward;                        /* has parameters, or lies behind some that have */
    bool need_diff_src[DDPI_MAX_SOURCES]; /* that source has a backward */
    ddp_shape src, dst;                   /* for one sample: dims[0] is 1; src: the first input's */
    double flops[2];                      /* per sample: forward, backward */
} ddpi_node;

/* ---- what a pass does, and with which memory ---- */

enum { DDPI_NO_BUFFER = -1, DDPI_SAMPLES = -2 /* the caller's inputs */ };

typedef enum ddpi_step_kind {
    DDPI_STEP_FORWARD,
    DDPI_STEP_LOSS,
    DDPI_STEP_REPLAY,     /* a forward that makes a dropped output again */
    DDPI_STEP_ACCUMULATE, /* diff_dst += diff_dst2 */
    DDPI_STEP_BACKWARD
} ddpi_step_kind;

/* Numbers of buffers; DDPI_NO_BUFFER where a step has none. */
typedef struct ddpi_step {
    ddpi_step_kind kind;
    int node;
    int src[DDPI_MAX_SOURCES], diff_src[DDPI_MAX_SOURCES];
    int dst, diff_dst, diff_dst2, workspace, scratch;
} ddpi_step;

/* Needed from step `from` to step `to`, both included. */
typedef struct ddpi_buffer {
    size_t bytes, offset;
    int from, to;
} ddpi_buffer;

typedef struct ddpi_schedule {
    ddpi_step *steps;
    int step_count, step_capacity;
    int loss; /* the step behind the forwards; step_count where there is none */
    ddpi_buffer *buffers;
    int buffer_count, buffer_capacity;
    int *output; /* per node: the buffer that its output has after the forwards */
    size_t bytes;
} ddpi_schedule;

/* All plans for one batch size and purpose. */
typedef struct ddpi_plan_set {
    struct ddpi_plan_set *next;
    int64_t batch;
    bool training;
    ddpi_layer_plan **plans; /* per node; NULL: absorbed */
    ddp_op_plan *loss;
    ddp_op_plan *logits; /* to plain f32; NULL if they are that already */
    ddpi_schedule schedule;
    int segments; /* of recomputation; 0: none */
    /* Behind the schedule's buffers: */
    size_t loss_diff, loss_workspace, plain_logits, scratch;
    size_t bytes; /* of the arena */
} ddpi_plan_set;

struct ddp_model {
    const ddp_model_def *def;
    ddp_model_opts opts; /* without mlp_widths, which only build() needs */
    ddp_device *device;
    ddpi_node *nodes;
    int node_count, node_capacity;
    ddp_param_table *table;    /* NULL before the first plan */
    ddp_buffer_table *buffers; /* likewise */
    ddpi_plan_set *sets;       /* in order of planning */
    char *arena;
    size_t arena_bytes;
    double *loss;        /* device */
    const float *params; /* bound */
    float *grads, *running;
    const ddp_model_sync *sync;
    const ddpi_plan_set *awaiting; /* the forward that awaits its backward */
    ddp_model_input awaiting_input;
    ddp_model_watch_fn watch;
    void *watch_arg;
};

/* The node whose output are the logits. */
int ddpi_model_last(const ddp_model *model);
/* The model's input shape or a node's output shape, with that many samples. */
ddp_shape ddpi_model_shape(const ddp_model *model, int node, int64_t batch);
/* "20x3x3" for a shape with batch. */
char *ddpi_model_format_sample(const ddp_shape *shape, char *text, size_t text_bytes);
/* Shows what a step has made to whoever watches. */
DDP_INNER ddp_status ddpi_model_show(const ddp_model *model, const ddpi_plan_set *set,
                                     const ddpi_step *step, const ddpi_pass *pass);
ddpi_plan_set *ddpi_model_find_set(const ddp_model *model, int64_t batch, bool training);
void ddpi_plan_set_destroy(const ddp_model *model, ddpi_plan_set *set);

/* Lists the steps of a set whose plans are made, and places their buffers. */
DDP_INNER ddp_status ddpi_schedule_make(const ddp_model *model, ddpi_plan_set *set);
void ddpi_schedule_free(ddpi_schedule *schedule);
/* Gives buffers offsets so that no two that live at the same step overlap; sets schedule->bytes. */
DDP_INNER ddp_status ddpi_schedule_place(ddpi_schedule *schedule);

#endif
