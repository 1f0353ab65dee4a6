/* model.h - a network on one device: layers, shapes, plans, forward and backward.
 *
 * Order of life: create (builds the layers and infers shapes), plan (the first plan fixes the
 * layouts of weights and so the parameter table), bind (the caller's flat buffers), then forward
 * and backward. Plans for other batch sizes may be added at any time before they are used; they
 * share one arena of activations. A step allocates nothing. One thread. Local, except that planning
 * may time candidates (device.h: choose). */
#ifndef DDP_MODEL_H
#define DDP_MODEL_H

#include "ddp/buffer.h"
#include "ddp/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_model_opts {
    ddp_shape input_shape; /* of one sample: [c][h][w]; from the data set */
    int64_t classes;       /* from the data set */
    double label_smoothing;
    const char *mlp_widths;  /* "2048,2048" */
    bool zero_init_residual; /* resnets: the last norm of a block starts at 0 */
    double dropout;          /* models that have it: its rate */
    int compute;             /* ddp_dtype: F32, or activations and products in BF16 or F16;
                                parameters stay f32 */
    int recompute;           /* ddp_recompute */
    bool keep_outputs;       /* for tests: outputs lie undisturbed until the next pass */
} ddp_model_opts;

/* What a training pass keeps for its backward. */
typedef enum ddp_recompute {
    DDP_RECOMPUTE_NONE,    /* everything that backward reads */
    DDP_RECOMPUTE_CHEAP,   /* not what a norm makes from one source: it is made again */
    DDP_RECOMPUTE_SEGMENTS /* only outputs where the graph is narrow: a segment between two is run
                              again before its backward. The number of segments is the one that
                              needs the least memory. */
} ddp_recompute;

typedef struct ddp_model ddp_model;
typedef struct ddp_model_builder ddp_model_builder;

/* A named model: build() adds its layers in order. The last layer's output is [n][classes]. */
typedef struct ddp_model_def {
    const char *name;
    const char *doc; /* one line for --help */
    ddp_status (*build)(ddp_model_builder *builder, const ddp_model_opts *opts);
} ddp_model_def;

DDP_API const ddp_model_def *ddp_model_lenet(void);
DDP_API const ddp_model_def *ddp_model_mlp(void);
DDP_API const ddp_model_def *ddp_model_resnet18(void);
DDP_API const ddp_model_def *ddp_model_resnet34(void);
DDP_API const ddp_model_def *ddp_model_resnet50(void);
DDP_API const ddp_model_def *ddp_model_resnet101(void);
DDP_API const ddp_model_def *ddp_model_resnet18_small(void);

/* For build(): adds a layer behind the others. Strings are copied. */
DDP_CALL ddp_status ddp_model_add(ddp_model_builder *builder, const ddp_layer_spec *spec);

/* The caller owns *model_out; device is borrowed. DDP_ERR_SHAPE names the layer, what it got and
 * what it needs. */
DDP_CALL ddp_status ddp_model_create(const ddp_model_def *def, const ddp_model_opts *opts,
                                     ddp_device *device, ddp_model **model_out);
DDP_API void ddp_model_destroy(ddp_model *model);

/* Makes plans for a number of samples; nothing to do if they exist. The first call must be for
 * training if the model will be trained. Grows the arena: not while a forward awaits its backward.
 */
DDP_CALL ddp_status ddp_model_plan(ddp_model *model, int64_t batch, bool training);
/* Valid after the first plan; owned by the model. */
DDP_API ddp_param_table *ddp_model_params(ddp_model *model);
/* Flat buffers of ddp_param_table_length() elements; borrowed. grads may be NULL for evaluation
 * only. */
DDP_API void ddp_model_bind(ddp_model *model, float *params, float *grads);

/* Valid after the first plan; owned by the model. */
DDP_API const ddp_buffer_table *ddp_model_buffers(ddp_model *model);
/* Running statistics, ddp_buffer_table_length() floats of device memory, borrowed: a training
 * forward updates them (once, also where it is recomputed), inference reads them. NULL: a training
 * forward leaves them out. */
DDP_API void ddp_model_bind_running(ddp_model *model, float *running);

/* Statistics over the shards of all ranks instead of one's own. gather() is collective: it gives
 * every rank's n values, in rank order. */
typedef struct ddp_model_sync {
    int world;
    ddp_status (*gather)(void *arg, const double *mine, size_t n, double *all_out);
    void *arg;
} ddp_model_sync;
/* NULL: each shard its own (the default). Borrowed. Not while a forward awaits its backward. */
DDP_CALL ddp_status ddp_model_sync_norms(ddp_model *model, const ddp_model_sync *sync);

/* What goes in, in device memory: [count][c][h][w] plain f32, and count labels. */
typedef struct ddp_model_input {
    const float *inputs;
    const int32_t *labels;
    int64_t count;
    /* With both, a sample's loss is mix * that of labels + (1 - mix) * that of labels2. */
    const int32_t *labels2;
    const float *mix;
    const int64_t *sample_ids; /* [count], for dropout's generator; only needed there */
    uint64_t seed;             /* for dropout: of the run and the epoch */
    const uint64_t *live_seed; /* the same in device memory, for graphs (op.h); NULL: seed counts */
    const float *loss_scale;   /* device memory: training gradients are multiplied by it; NULL: 1 */
} ddp_model_input;

/* Training pass over a planned batch size. *loss_sum_out is the sum of the samples' losses, when
 * the main stream has done it: pinned memory lets the caller go on before. Afterwards the gradient
 * of that sum with respect to the logits is in place. */
DDP_CALL ddp_status ddp_model_forward(ddp_model *model, const ddp_model_input *input,
                                      double *loss_sum_out);
/* Writes the gradients of the loss sum of the last forward into the bound flat buffer, last layer
 * first; calls ddp_param_grad_done() for each parameter as soon as its gradient is complete. Ends
 * at the first layer that has a trainable parameter (param.h): gradients that nobody will use may
 * be zeros. */
DDP_CALL ddp_status ddp_model_backward(ddp_model *model);
/* Inference over a batch size planned with training = false. *logits_out points to plain
 * [count][classes], valid until the next call. Waits, and adds the samples' loss sum to *loss_sum,
 * if that is not NULL (input->labels needed then). */
DDP_CALL ddp_status ddp_model_infer(ddp_model *model, const ddp_model_input *input,
                                    const float **logits_out, double *loss_sum);

/* ---- looking on ---- */

/* Something that a training pass has just made, as plain f32 on the host, valid during the call. */
typedef struct ddp_model_sight {
    const char *kind; /* "output", "gradient of the output", "gradient" */
    const char *name; /* of the layer; of the parameter for "gradient" */
    const float *values;
    size_t count;
    int64_t samples; /* that they belong to in equal parts; 0: to all together */
} ddp_model_sight;
typedef ddp_status (*ddp_model_watch_fn)(void *arg, const ddp_model_sight *sight);
/* For finding faults: fn sees each layer's output in forward order, then in backward the gradients
 * of its parameters and of the outputs that it read (the part that goes through this layer). Slow.
 * NULL: nobody. A step replayed by a device's graph shows nothing. */
DDP_API void ddp_model_watch(ddp_model *model, ddp_model_watch_fn fn, void *arg);

/* ---- queries ---- */
DDP_API const char *ddp_model_name(const ddp_model *model);
/* Layers in forward order, numbered from 0. */
DDP_API int ddp_model_layer_count(const ddp_model *model);
DDP_API const char *ddp_model_layer_name(const ddp_model *model, int layer);
DDP_API int64_t ddp_model_classes(const ddp_model *model);
DDP_API ddp_shape ddp_model_input_shape(const ddp_model *model); /* of a sample */
/* Floating-point operations per sample: forward, and forward plus backward. */
DDP_API double ddp_model_forward_flops(const ddp_model *model);
DDP_API double ddp_model_train_flops(const ddp_model *model);
/* Bytes of activations, gradients of activations, workspace and scratch of all plans so far. */
DDP_API size_t ddp_model_activation_bytes(const ddp_model *model);
/* A machine's limits: arithmetic and memory traffic a second, of what one rank may use. */
typedef struct ddp_model_limits {
    double flops, bytes;
} ddp_model_limits;
/* A training pass over a planned batch: its operations, the bytes of its operands (each once for
 * each step that reads or writes it), and the seconds below which it cannot stay if each step takes
 * the longer of the two at the limits (a roofline). Algorithms that need fewer operations than the
 * definition, such as Winograd's, may beat it. */
typedef struct ddp_model_bound {
    double flops, bytes, seconds;
} ddp_model_bound;
DDP_CALL ddp_status ddp_model_cost(const ddp_model *model, int64_t batch,
                                   const ddp_model_limits *limits, ddp_model_bound *bound_out);
/* A table of layers (output shape, parameters, operations, implementation) as text; the caller
 * frees it. */
DDP_CALL ddp_status ddp_model_summary(const ddp_model *model, char **text_out);
/* key=value lines of layouts and implementations, for the start-up fingerprint; the caller frees
 * it. */
DDP_CALL ddp_status ddp_model_fingerprint(const ddp_model *model, char **text_out);
/* For tests: output of layer `name` after a training forward, exported to plain memory of `count`
 * elements. With a relu that was taken over, it is the relu's output. */
DDP_CALL ddp_status ddp_model_export_output(ddp_model *model, const char *name, float *plain,
                                            size_t count);

#ifdef __cplusplus
}
#endif
#endif
