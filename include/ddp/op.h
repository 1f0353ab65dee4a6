/* op.h - operation plans: describe, create (the implementation is chosen once), run, destroy.
 *
 * A plan covers one layer's operation for one batch size: its forward pass and both backward
 * passes, which share layouts. A layout is how a tensor's elements lie in memory; it is the
 * backend's own business and opaque here. A plan takes its source's layout (the layout that the
 * neighbour before chose) and chooses the others; reorders that this needs are inside the plan.
 * Gradients lie as their values do: diff_src as src, diff_dst as dst, diff_weights as weights.
 *
 * The first plan of a layer fixes the layout of its weights; plans for other batch sizes are given
 * that layout and accept it. A plan belongs to the device that made it. Plans allocate nothing when
 * run: scratch memory is the caller's. */
#ifndef DDP_OP_H
#define DDP_OP_H

#include "ddp/layout.h"
#include "ddp/pointwise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- descriptors ---- */
typedef enum ddp_op_kind {
    DDP_OP_CONV2D,  /* dst = [relu](conv(src, weights) + bias) */
    DDP_OP_LINEAR,  /* dst = [relu](src * weights^T + bias); src is flattened to [n][features] in
                       plain order */
    DDP_OP_RELU,    /* element by element */
    DDP_OP_POOL2D,  /* average (over the window, no padding counted) or maximum */
    DDP_OP_RESHAPE, /* flatten: dst is plain [n][c*h*w] */
    DDP_OP_SOFTMAX_XENT, /* see below */
    DDP_OP_NORM,         /* batch normalisation over [n][c][h][w], per channel; see below */
    DDP_OP_ADD,          /* dst = [relu](src + src2) */
    DDP_OP_DROPOUT,      /* see below */
    DDP_OP_KIND_COUNT
} ddp_op_kind;

typedef struct ddp_conv2d_desc {
    int64_t out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    bool bias, relu;
} ddp_conv2d_desc;

typedef struct ddp_linear_desc {
    int64_t out_features;
    bool bias, relu;
} ddp_linear_desc;

typedef struct ddp_pool2d_desc {
    bool maximum; /* else average */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    bool global; /* average of all pixels, to [n][c][1][1]; the other fields are 0 */
} ddp_pool2d_desc;

/* Softmax cross-entropy over [n][classes] logits, fused with its gradient. Forward writes diff_src
 * = softmax - target for each sample (the gradient of the *sum* of the losses, not of their mean)
 * and adds to args->loss. Labels are int32 on the device. With smoothing s the target is (1 - s) *
 * onehot + s / classes. With labels2, sample i counts mix[i] times with its label and 1 - mix[i]
 * times with its second one. */
typedef struct ddp_xent_desc {
    double label_smoothing;
} ddp_xent_desc;

/* Batch normalisation: dst = [relu](weights * (src - mean) / sqrt(var + eps) + bias [+ src2]) with
 * plain weights and bias [c]. Its passes work with args->norm:
 * - statistics (training only) writes mean and m2 of this call's values;
 * - forward reads mean and m2 / count when training, else running_mean and running_var;
 * - backward weights makes diff_dst the gradient before the relu and writes, besides diff_weights
 *   and diff_bias, sum_dy and sum_dy_xhat;
 * - backward data, which needs backward weights before it, reads them and count.
 * Between two passes the caller may combine what the first wrote with other ranks' (means and
 * centred squares by Chan's formula, sums by adding), and sets count to the number of values that
 * stand behind it. All need src; none is changed by the number of threads. */
typedef struct ddp_norm_desc {
    double eps;
    bool relu, add;
} ddp_norm_desc;

typedef struct ddp_norm_state {
    double count;                            /* values per channel: n * h * w, of all ranks */
    double *mean, *m2;                       /* [c]; m2: sum of squares around the mean */
    double *sum_dy, *sum_dy_xhat;            /* [c] */
    const float *running_mean, *running_var; /* [c] */
} ddp_norm_state;

typedef struct ddp_add_desc {
    bool relu;
} ddp_add_desc;

/* When training, an element becomes 0 with probability rate, and else src / (1 - rate). Which ones
 * is a function of args->rng_seed, rng_stream (a number per layer), the sample's id and the element
 * in plain order, so it depends neither on layout nor on how samples are spread over batches and
 * ranks; backward draws again. Otherwise dst = src. */
typedef struct ddp_dropout_desc {
    double rate; /* 0 or more, less than 1 */
} ddp_dropout_desc;

typedef struct ddp_op_desc {
    ddp_op_kind kind;
    bool training;      /* false: no backward pass will be run */
    bool need_diff_src; /* false for the first layer: backward data is never run */
    ddp_dtype compute;  /* convolution and linear: DDP_F32, DDP_BF16 or DDP_F16, see below */
    ddp_layout *src2;   /* borrowed; of a second source, NULL: lies as src */
    union {
        ddp_conv2d_desc conv2d;
        ddp_linear_desc linear;
        ddp_pool2d_desc pool2d;
        ddp_xent_desc xent;
        ddp_norm_desc norm;
        ddp_add_desc add;
        ddp_dropout_desc dropout;
    } u;
} ddp_op_desc;

/* What is computed in bf16 or f16 has dst (and diff_dst) and the factors of its products in that
 * type, and sums in f32. The source may be of that type or f32. Weights, biases and their gradients
 * are always f32. The other operations keep their source's type. */

/* Local, pure. Output shape (with batch) and weight shape ([out][in][kh][kw], [c]; ndim 0 without
 * weights) for a source shape with batch; DDP_ERR_SHAPE says what does not fit, in the caller's
 * terms. */
DDP_CALL ddp_status ddp_op_infer(const ddp_op_desc *desc, const ddp_shape *src, ddp_shape *dst_out,
                                 ddp_shape *weights_out);
/* Local, pure. Floating-point operations (a multiply-add is two) of one forward pass; backward data
 * and backward weights cost the same each. */
DDP_CALL ddp_status ddp_op_flops(const ddp_op_desc *desc, const ddp_shape *src, double *flops_out);

/* ---- plans ---- */
typedef struct ddp_op_plan ddp_op_plan;

/* src: layout of the source (borrowed; referenced by the plan). weights: a layout fixed by an
 * earlier plan, or NULL to choose. May time candidates and call opts.choose: then collective over
 * the ranks that share the choice, else local. */
DDP_CALL ddp_status ddp_op_plan_create(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                                       ddp_layout *weights, ddp_op_plan **plan_out);
DDP_API void ddp_op_plan_destroy(ddp_op_plan *plan);
/* Borrowed; NULL where the operation has none. */
DDP_API ddp_layout *ddp_op_plan_dst(const ddp_op_plan *plan);
DDP_API ddp_layout *ddp_op_plan_weights(const ddp_op_plan *plan);
/* Kept from forward to backward (maximum's positions); 0 if none. */
DDP_API size_t ddp_op_plan_workspace_bytes(const ddp_op_plan *plan);
/* Needed while one pass runs; the largest of the passes. */
DDP_API size_t ddp_op_plan_scratch_bytes(const ddp_op_plan *plan);
/* The implementation chosen, for --verbose and the fingerprint, e.g. "direct:jit:avx512_core". */
DDP_API const char *ddp_op_plan_impl(const ddp_op_plan *plan);

typedef enum ddp_op_pass {
    DDP_PASS_FORWARD,
    DDP_PASS_BACKWARD_DATA,    /* writes diff_src */
    DDP_PASS_BACKWARD_WEIGHTS, /* writes (not adds to) diff_weights and diff_bias */
    DDP_PASS_STATISTICS        /* of a normalisation, before forward */
} ddp_op_pass;

/* Device pointers; a pass reads only those that it needs. With a fused relu, backward passes read
 * dst, and the first of them to run (weights, where both run) masks diff_dst in place.
 *
 * With two sources, diff_dst is the gradient of src2 after that first pass (and of src too, for an
 * addition): a caller that needs it elsewhere, or in another layout, gives diff_src2 (or diff_src),
 * which that pass then writes. diff_dst2 is a second gradient of dst, added to diff_dst in the same
 * sweep: normalisation and addition only. */
typedef struct ddp_op_args {
    const void *src, *src2;
    void *dst;
    const void *weights, *bias;
    void *diff_src, *diff_src2;
    void *diff_dst, *diff_dst2;
    void *diff_weights, *diff_bias;
    void *workspace, *scratch;
    /* Normalisation only. The struct is read at the call, its arrays stay valid as buffers do. */
    const ddp_norm_state *norm;
    /* softmax cross-entropy only */
    const int32_t *labels;
    const int32_t *labels2; /* NULL: none */
    const float *mix;
    double *loss;            /* device; the samples' loss sum is added */
    const float *diff_scale; /* device; diff_src is multiplied by it; NULL: not */
    /* dropout only */
    const int64_t *sample_ids; /* [n] */
    uint64_t rng_seed;
    uint32_t rng_stream;
    /* Not NULL: the seed that is in device memory when the work is done, instead of rng_seed. Only
     * on devices with graphs. */
    const uint64_t *rng_live_seed;
} ddp_op_args;

/* Enqueues one pass. All buffers stay valid until the stream has done it. Order of passes for one
 * backward: weights first (if the operation has them), then data. */
DDP_CALL ddp_status ddp_op_run(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                               const ddp_op_args *args);

#ifdef __cplusplus
}
#endif
#endif
