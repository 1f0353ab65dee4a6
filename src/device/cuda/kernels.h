/* kernels.h - what the host code of the CUDA device calls of its kernels: one launcher for each.
 *
 * A launcher checks nothing, allocates nothing and waits for nothing: it cuts the work into blocks
 * as a function of the shape alone, so that a result has the same bits on every device, and returns
 * what the launch returned. All pointers are device memory. Elements are f32 unless
 * dtype says bf16 or f16; `rows` of `channels` elements are images with the channels last.
 *
 * Sums are made in two stages: blocks leave partial sums in `partials`, which a second kernel adds
 * in a fixed order. Partials are scratch memory of the size that the function beside the launcher
 * gives; they are free again when the stream has done the work. Any thread. */
#ifndef DDP_DEVICE_CUDA_KERNELS_H
#define DDP_DEVICE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layouts and types (k_layout.cu) ---- */

/* Images between [n][channels][pixels] in f32 and [n][pixels][channels]; dtype: of the latter. */
typedef struct ddpi_k_images {
    const void *src;
    void *dst;
    int64_t n, channels, pixels;
    ddp_dtype dtype;
} ddpi_k_images;

cudaError_t ddpi_k_nchw_to_nhwc(cudaStream_t stream, const ddpi_k_images *args);
cudaError_t ddpi_k_nhwc_to_nchw(cudaStream_t stream, const ddpi_k_images *args);

/* dst[i] = scale * src[i], from f32 to dtype (rounded to the nearest, ties to even; a NaN stays
 * one) or, with widen, from dtype, which is not f32, to f32. */
typedef struct ddpi_k_cast_args {
    const void *src;
    void *dst;
    int64_t count;
    float scale;
    ddp_dtype dtype;
    bool widen;
} ddpi_k_cast_args;

cudaError_t ddpi_k_cast(cudaStream_t stream, const ddpi_k_cast_args *args);

/* ---- element by element (k_elements.cu) ---- */

/* dst = a [+ b], then [0 where it is negative] with relu, or [0 where value is not greater than 0]
 * with value. dst may be a or b; copies, if not NULL, get the same. A NaN stays one. */
typedef struct ddpi_k_combine_args {
    void *dst;
    void *copies[2];
    const void *a, *b, *value;
    int64_t count;
    ddp_dtype dtype;
    bool relu;
} ddpi_k_combine_args;

cudaError_t ddpi_k_combine(cudaStream_t stream, const ddpi_k_combine_args *args);

/* diff = value > 0 ? diff : 0. */
typedef struct ddpi_k_relu_mask_args {
    void *diff;
    const void *value;
    int64_t count;
    ddp_dtype dtype;
} ddpi_k_relu_mask_args;

cudaError_t ddpi_k_relu_mask(cudaStream_t stream, const ddpi_k_relu_mask_args *args);

/* dst = [relu](dst + bias), rows of channels; bias is f32 and may be NULL. */
typedef struct ddpi_k_bias_relu_args {
    void *dst;
    const float *bias;
    int64_t rows, channels;
    ddp_dtype dtype;
    bool relu;
} ddpi_k_bias_relu_args;

cudaError_t ddpi_k_bias_relu(cudaStream_t stream, const ddpi_k_bias_relu_args *args);

/* dst [n][channels] = the average of src's pixels; backward: diff_src = diff_dst / pixels. */
typedef struct ddpi_k_global_avg_args {
    const void *from; /* src, or diff_dst */
    void *to;         /* dst, or diff_src */
    int64_t n, pixels, channels;
    ddp_dtype dtype;
} ddpi_k_global_avg_args;

cudaError_t ddpi_k_global_avg_forward(cudaStream_t stream, const ddpi_k_global_avg_args *args);
cudaError_t ddpi_k_global_avg_backward(cudaStream_t stream, const ddpi_k_global_avg_args *args);

/* ---- pooling over windows (k_pool.cu) ---- */

/* Average counts no padding. Maximum keeps in `where`, going forward if it is not NULL, the
 * position inside the window, kh * kernel_w + kw, of each element of the result. */
typedef struct ddpi_k_pool_args {
    const void *src; /* going backward: diff_dst */
    void *dst;       /* going backward: diff_src */
    uint16_t *where;
    int64_t n;
    int channels, in_h, in_w, out_h, out_w;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    ddp_dtype dtype;
    bool maximum;
} ddpi_k_pool_args;

cudaError_t ddpi_k_pool_forward(cudaStream_t stream, const ddpi_k_pool_args *args);
cudaError_t ddpi_k_pool_backward(cudaStream_t stream, const ddpi_k_pool_args *args);

/* ---- sums per channel (k_channels.cu) ---- */

/* diff_bias[c] = the sum of diff_dst over its rows, in f32. With value, diff_dst is first set to 0
 * in place where value (a relu's result) is not greater than 0. */
typedef struct ddpi_k_bias_grad_args {
    void *diff_dst;
    const void *value;
    float *diff_bias;
    double *partials;
    int64_t rows, channels;
    ddp_dtype dtype;
} ddpi_k_bias_grad_args;

size_t ddpi_k_bias_grad_bytes(int64_t rows, int64_t channels);
cudaError_t ddpi_k_bias_grad(cudaStream_t stream, const ddpi_k_bias_grad_args *args);

/* ---- batch normalisation (k_norm.cu) ---- */

typedef struct ddpi_k_norm_view {
    int64_t rows, channels;
    ddp_dtype dtype;
} ddpi_k_norm_view;

/* Partials of statistics and of the gradients' sums. */
size_t ddpi_k_norm_bytes(const ddpi_k_norm_view *view);

typedef struct ddpi_k_norm_statistics_args {
    ddpi_k_norm_view view;
    const void *src;
    double *mean, *m2, *partials;
} ddpi_k_norm_statistics_args;

cudaError_t ddpi_k_norm_statistics(cudaStream_t stream, const ddpi_k_norm_statistics_args *args);

/* What a channel is normalised by: mean and m2 / count, or, where these are NULL, the running ones.
 */
typedef struct ddpi_k_norm_by {
    const double *mean, *m2;
    const float *running_mean, *running_var;
    double count, eps;
} ddpi_k_norm_by;

/* dst = [relu](weights * (src - mean) / sqrt(var + eps) + bias [+ src2]). */
typedef struct ddpi_k_norm_forward_args {
    ddpi_k_norm_view view;
    ddpi_k_norm_by by;
    const void *src, *src2;
    void *dst;
    const float *weights, *bias;
    bool relu;
} ddpi_k_norm_forward_args;

cudaError_t ddpi_k_norm_forward(cudaStream_t stream, const ddpi_k_norm_forward_args *args);

/* diff_dst = [0 where value is not greater than 0] (diff_dst [+ diff_dst2]), in place, and in copy
 * if not NULL; and the sums of it and of its products with the normalised src. */
typedef struct ddpi_k_norm_reduce_args {
    ddpi_k_norm_view view;
    ddpi_k_norm_by by;
    const void *src, *value, *diff_dst2;
    void *diff_dst, *copy;
    double *sum_dy, *sum_dy_xhat, *partials;
    float *diff_weights, *diff_bias;
} ddpi_k_norm_reduce_args;

cudaError_t ddpi_k_norm_reduce(cudaStream_t stream, const ddpi_k_norm_reduce_args *args);

/* diff_src = weights * inv * (diff_dst - sum_dy / count - xhat * sum_dy_xhat / count). */
typedef struct ddpi_k_norm_spread_args {
    ddpi_k_norm_view view;
    ddpi_k_norm_by by;
    const void *src, *diff_dst;
    void *diff_src;
    const double *sum_dy, *sum_dy_xhat;
    const float *weights;
} ddpi_k_norm_spread_args;

cudaError_t ddpi_k_norm_spread(cudaStream_t stream, const ddpi_k_norm_spread_args *args);

/* As ddp_op_norm_running() says. */
typedef struct ddpi_k_norm_running_args {
    int64_t channels;
    double momentum, count;
    const double *mean, *m2;
    float *running_mean, *running_var;
} ddpi_k_norm_running_args;

cudaError_t ddpi_k_norm_running(cudaStream_t stream, const ddpi_k_norm_running_args *args);

/* ---- dropout (k_dropout.cu) ---- */

/* What changes from step to step. */
typedef struct ddpi_k_dropout_draw {
    uint32_t key[2], stream[2]; /* as in ddp_rng */
} ddpi_k_dropout_draw;

typedef struct ddpi_k_dropout_args {
    const void *src;
    void *dst;
    const int64_t *sample_ids;   /* [n] */
    int64_t n, channels, pixels; /* of a sample in plain order */
    uint64_t threshold;          /* 32-bit draws below it drop */
    float scale;
    ddp_dtype dtype;
    bool channels_last;
    ddpi_k_dropout_draw draw;
    const uint64_t *live_seed; /* not NULL: the seed there makes the key */
} ddpi_k_dropout_args;

cudaError_t ddpi_k_dropout(cudaStream_t stream, const ddpi_k_dropout_args *args);

/* ---- loss and ranks, row by row of logits (k_rows.cu) ---- */

typedef struct ddpi_k_softmax_args {
    const void *logits;
    void *diff;              /* may be NULL; of the logits' type */
    const float *diff_scale; /* of diff; NULL: 1 */
    const int32_t *labels, *labels2;
    const float *mix;
    double *loss, *partials;
    int64_t n, classes;
    double smoothing;
    ddp_dtype dtype;
} ddpi_k_softmax_args;

size_t ddpi_k_softmax_bytes(int64_t n);
cudaError_t ddpi_k_softmax(cudaStream_t stream, const ddpi_k_softmax_args *args);

typedef struct ddpi_k_label_rank_args {
    const float *logits;
    const int32_t *labels;
    int32_t *rank_out;
    int64_t n, classes;
} ddpi_k_label_rank_args;

cudaError_t ddpi_k_label_rank(cudaStream_t stream, const ddpi_k_label_rank_args *args);

/* ---- flat ranges of f32 (k_optim.cu) ---- */

/* Partial sums of the launchers below, whatever the count. */
#define DDPI_K_SUM_BLOCKS   1024
#define DDPI_K_SUM_KINDS    3
#define DDPI_K_SUM_PARTIALS ((size_t)DDPI_K_SUM_BLOCKS * DDPI_K_SUM_KINDS)

/* What changes from step to step: g = grad * inv_count + weight_decay * w; buf = keep * buf + take
 * * g; step = direct * g + carry * buf; w -= lr * step. With first, buf's contents do not enter. */
typedef struct ddpi_k_sgd_step {
    double sum_scale; /* of the squares' sum */
    float inv_count, weight_decay, lr, keep, take, direct, carry;
    bool first;
} ddpi_k_sgd_step;

typedef struct ddpi_k_sgd_args {
    float *w;
    const float *grad;
    float *buf; /* may be NULL */
    int64_t count;
    double *grad_sq, *partials; /* grad_sq NULL: no sum */
    ddpi_k_sgd_step step;
    const ddpi_k_sgd_step *live; /* not NULL: counts instead of step */
} ddpi_k_sgd_args;

cudaError_t ddpi_k_sgd(cudaStream_t stream, const ddpi_k_sgd_args *args);

typedef enum ddpi_k_adam_pass {
    DDPI_K_ADAMW,
    DDPI_K_LAMB_MOMENTS,
    DDPI_K_LAMB_APPLY
} ddpi_k_adam_pass;

/* What changes from step to step: m and sqrt(v) times mean and root are unbiased. shrink: 1 - lr *
 * decay, for AdamW. */
typedef struct ddpi_k_adam_step {
    double sum_scale;
    float inv_count, keep1, take1, keep2, take2, mean, root, eps, decay, lr, shrink;
} ddpi_k_adam_step;

typedef struct ddpi_k_adam_args {
    float *w;
    const float *grad;
    float *m, *v;
    int64_t count;
    double *sums, *partials; /* sums NULL: none */
    ddpi_k_adam_pass pass;
    ddpi_k_adam_step step;
    const ddpi_k_adam_step *live; /* not NULL: counts instead of step */
} ddpi_k_adam_args;

cudaError_t ddpi_k_adam(cudaStream_t stream, const ddpi_k_adam_args *args);

/* dst += weight * (src - dst). */
typedef struct ddpi_k_average_args {
    float *dst;
    const float *src;
    int64_t count;
    float weight;
} ddpi_k_average_args;

cudaError_t ddpi_k_average(cudaStream_t stream, const ddpi_k_average_args *args);

/* *sum_out += scale^2 * the sum of src^2. */
typedef struct ddpi_k_sum_squares_args {
    const float *src;
    int64_t count;
    double scale;
    double *sum_out, *partials;
} ddpi_k_sum_squares_args;

cudaError_t ddpi_k_sum_squares(cudaStream_t stream, const ddpi_k_sum_squares_args *args);

#ifdef __cplusplus
}
#endif
#endif
