/* pointwise.h - work on flat ranges, element by element: optimizers, sums, conversions.
 *
 * Enqueued on a stream; buffers stay valid until the stream has done it. All pointers are device
 * memory, also those to sums, which are added to; structs of arguments are read at the call. Ranges
 * are of the flat buffers (param.h); nothing here knows parameters. */
#ifndef DDP_POINTWISE_H
#define DDP_POINTWISE_H

#include "ddp/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Optimizers in a graph: numbers that change from launch to launch are read from device memory when
 * the work is done. ddp_op_..._live() writes them, on the host, in a form of the device's own. For
 * devices with graphs. */
enum { DDP_OP_LIVE_BYTES = 64 };

typedef struct ddp_sgd_args {
    double lr, momentum, weight_decay, dampening;
    bool nesterov;
    bool first;       /* momentum starts as the gradient */
    double inv_count; /* gradients are sums; this makes them means */
    /* Not NULL: what ddp_op_sgd_live() wrote, as it is in device memory when the work is done,
     * counts instead of the numbers above. */
    const void *live;
} ddp_sgd_args;

/* w -= lr * step over [0, count): g = grad * inv_count + weight_decay * w; buf = momentum * buf +
 * (1 - dampening) * g (buf = g at the first step); step = nesterov ? g + momentum * buf : buf. One
 * pass. buf may be NULL if momentum is 0. Adds the sum of (grad * inv_count)^2 to *grad_sq if not
 * NULL. */
DDP_CALL ddp_status ddp_op_sgd(ddp_device *device, ddp_stream *stream, const ddp_sgd_args *args,
                               float *w, const float *grad, float *buf, size_t count,
                               double *grad_sq);
/* live_out: DDP_OP_LIVE_BYTES. */
DDP_API void ddp_op_sgd_live(const ddp_device *device, const ddp_sgd_args *args, void *live_out);

typedef struct ddp_adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* from 1 */
    double inv_count;
    const void *live; /* as for ddp_sgd_args, by ddp_op_adam_live() */
} ddp_adam_args;

/* What a rule with two moments works on; m and v start as zeros. */
typedef struct ddp_adam_span {
    float *w;
    const float *grad;
    float *m, *v;
    size_t count;
} ddp_adam_span;

/* With g = grad * inv_count: m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2,
 * and the direction r = m / (1 - beta1^step) / (sqrt(v) / sqrt(1 - beta2^step) + eps). */
typedef enum ddp_adam_pass {
    DDP_ADAMW,        /* moments, then w -= lr * (weight_decay * w + r); adds g^2 to sums[0] */
    DDP_LAMB_MOMENTS, /* moments only; adds g^2, w^2 and (r + weight_decay * w)^2 to sums[0 .. 2] */
    DDP_LAMB_APPLY    /* w -= lr * (r + weight_decay * w) with the moments as they are */
} ddp_adam_pass;

/* One pass over memory. sums may be NULL. */
DDP_CALL ddp_status ddp_op_adam(ddp_device *device, ddp_stream *stream, ddp_adam_pass pass,
                                const ddp_adam_args *args, const ddp_adam_span *span, double *sums);
DDP_API void ddp_op_adam_live(const ddp_device *device, const ddp_adam_args *args, void *live_out);
/* dst += weight * (src - dst) over count elements. */
DDP_CALL ddp_status ddp_op_average(ddp_device *device, ddp_stream *stream, float *dst,
                                   const float *src, double weight, size_t count);
/* dst += src over count elements. */
DDP_CALL ddp_status ddp_op_add(ddp_device *device, ddp_stream *stream, float *dst, const float *src,
                               size_t count);
/* To and from bf16 and f16, for gradients on their way: dst[i] = scale * src[i] over count
 * elements, rounded to the nearest; a NaN stays one. */
DDP_CALL ddp_status ddp_op_to_bf16(ddp_device *device, ddp_stream *stream, uint16_t *dst,
                                   const float *src, size_t count, double scale);
DDP_CALL ddp_status ddp_op_from_bf16(ddp_device *device, ddp_stream *stream, float *dst,
                                     const uint16_t *src, size_t count, double scale);
DDP_CALL ddp_status ddp_op_to_f16(ddp_device *device, ddp_stream *stream, uint16_t *dst,
                                  const float *src, size_t count, double scale);
DDP_CALL ddp_status ddp_op_from_f16(ddp_device *device, ddp_stream *stream, float *dst,
                                    const uint16_t *src, size_t count, double scale);
/* *sum_out += the sum of (scale * src)^2, in double. */
DDP_CALL ddp_status ddp_op_sum_squares(ddp_device *device, ddp_stream *stream, const float *src,
                                       size_t count, double scale, double *sum_out);
/* dst += src over a tensor in `layout`: sums the gradients of a value that is read twice. */
DDP_CALL ddp_status ddp_op_accumulate(ddp_device *device, ddp_stream *stream,
                                      const ddp_layout *layout, void *dst, const void *src);
typedef struct ddp_norm_running_args {
    int64_t channels;
    double momentum, count;  /* count: values behind mean and m2, per channel */
    const double *mean, *m2; /* [channels], as all below */
    float *running_mean, *running_var;
} ddp_norm_running_args;

/* After the statistics of a normalisation: running += momentum * (batch - running), the batch's
 * variance being m2 / (count - 1). */
DDP_CALL ddp_status ddp_op_norm_running(ddp_device *device, ddp_stream *stream,
                                        const ddp_norm_running_args *args);
/* For evaluation: for each of n rows of [n][classes] logits (plain), the number of classes that
 * rank before the label: a larger logit, or an equal one with a lower index. A row with a NaN
 * counts as `classes`. */
DDP_CALL ddp_status ddp_op_label_rank(ddp_device *device, ddp_stream *stream, const float *logits,
                                      const int32_t *labels, int64_t n, int64_t classes,
                                      int32_t *rank_out);

#ifdef __cplusplus
}
#endif
#endif
