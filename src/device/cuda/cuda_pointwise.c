/* cuda_pointwise.c - the device's slots for flat ranges: optimizers, sums, conversions, ranks.
 *
 * Factors are computed here, in double, once a call; partial sums lie in the stream's own memory.
 * Any thread, each stream by one at a time. */
#include <math.h>
#include <string.h>

#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

_Static_assert(DDPI_K_SUM_PARTIALS * sizeof(double) <= DDPI_CUDA_SUM_BYTES,
               "a stream has room for the partial sums");
_Static_assert(sizeof(ddpi_k_sgd_step) <= DDP_OP_LIVE_BYTES &&
                   sizeof(ddpi_k_adam_step) <= DDP_OP_LIVE_BYTES,
               "callers have room for a step's numbers");

/* ---- optimizers ---- */

/* buf = keep * buf + take * g, step = direct * g + carry * buf. */
static ddpi_k_sgd_step sgd_step(const ddp_sgd_args *args)
{
    return (ddpi_k_sgd_step){
        .sum_scale = args->inv_count * args->inv_count,
        .inv_count = (float)args->inv_count,
        .weight_decay = (float)args->weight_decay,
        .lr = (float)args->lr,
        .keep = args->first ? 0 : (float)args->momentum,
        .take = args->first ? 1 : (float)(1 - args->dampening),
        .direct = args->nesterov ? 1 : 0,
        .carry = args->nesterov ? (float)args->momentum : 1,
        .first = args->first,
    };
}

ddp_status ddpi_cuda_sgd(ddp_stream *stream, const ddp_sgd_args *args, float *w, const float *grad,
                         float *buf, size_t count, double *grad_sq)
{
    const ddpi_k_sgd_args kernel = {.w = w,
                                    .grad = grad,
                                    .buf = buf,
                                    .count = (int64_t)count,
                                    .grad_sq = grad_sq,
                                    .partials = ddpi_cuda_sums(stream),
                                    .step = sgd_step(args),
                                    .live = args->live};
    return DDPI_CUDA_CHECK(ddpi_k_sgd(ddpi_cuda_stream(stream), &kernel));
}

void ddpi_cuda_sgd_live(const ddp_sgd_args *args, void *live_out)
{
    const ddpi_k_sgd_step step = sgd_step(args);
    memcpy(live_out, &step, sizeof step);
}

/* With the corrections of the moments, which start at 0, folded in. */
static ddpi_k_adam_step adam_step(const ddp_adam_args *args)
{
    return (ddpi_k_adam_step){
        .sum_scale = args->inv_count * args->inv_count,
        .inv_count = (float)args->inv_count,
        .keep1 = (float)args->beta1,
        .take1 = (float)(1 - args->beta1),
        .keep2 = (float)args->beta2,
        .take2 = (float)(1 - args->beta2),
        .mean = (float)(1 / (1 - pow(args->beta1, (double)args->step))),
        .root = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
        .eps = (float)args->eps,
        .decay = (float)args->weight_decay,
        .lr = (float)args->lr,
        .shrink = (float)(1 - args->lr * args->weight_decay),
    };
}

ddp_status ddpi_cuda_adam(ddp_stream *stream, ddp_adam_pass pass, const ddp_adam_args *args,
                          const ddp_adam_span *span, double *sums)
{
    static const ddpi_k_adam_pass passes[] = {[DDP_ADAMW] = DDPI_K_ADAMW,
                                              [DDP_LAMB_MOMENTS] = DDPI_K_LAMB_MOMENTS,
                                              [DDP_LAMB_APPLY] = DDPI_K_LAMB_APPLY};
    const ddpi_k_adam_args kernel = {.w = span->w,
                                     .grad = span->grad,
                                     .m = span->m,
                                     .v = span->v,
                                     .count = (int64_t)span->count,
                                     .sums = sums,
                                     .partials = ddpi_cuda_sums(stream),
                                     .pass = passes[pass],
                                     .step = adam_step(args),
                                     .live = args->live};
    return DDPI_CUDA_CHECK(ddpi_k_adam(ddpi_cuda_stream(stream), &kernel));
}

void ddpi_cuda_adam_live(const ddp_adam_args *args, void *live_out)
{
    const ddpi_k_adam_step step = adam_step(args);
    memcpy(live_out, &step, sizeof step);
}

ddp_status ddpi_cuda_average(ddp_stream *stream, float *dst, const float *src, double weight,
                             size_t count)
{
    const ddpi_k_average_args kernel = {dst, src, (int64_t)count, (float)weight};
    return DDPI_CUDA_CHECK(ddpi_k_average(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_sum_squares(ddp_stream *stream, const float *src, size_t count, double scale,
                                 double *sum_out)
{
    const ddpi_k_sum_squares_args kernel = {src, (int64_t)count, scale, sum_out,
                                            ddpi_cuda_sums(stream)};
    return DDPI_CUDA_CHECK(ddpi_k_sum_squares(ddpi_cuda_stream(stream), &kernel));
}

/* ---- sums ---- */

static ddp_status add(ddp_stream *stream, void *dst, const void *src, int64_t count,
                      ddp_dtype dtype)
{
    const ddpi_k_combine_args kernel = {
        .dst = dst, .a = dst, .b = src, .count = count, .dtype = dtype};
    return DDPI_CUDA_CHECK(ddpi_k_combine(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_add(ddp_stream *stream, float *dst, const float *src, size_t count)
{
    return add(stream, dst, src, (int64_t)count, false);
}

ddp_status ddpi_cuda_accumulate(ddp_stream *stream, const ddp_layout *layout, void *dst,
                                const void *src)
{
    return add(stream, dst, src, ddpi_cuda_count(layout), layout->dtype);
}

/* ---- types ---- */

ddp_status ddpi_cuda_to_bf16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                             double scale)
{
    const ddpi_k_cast_args kernel = {src, dst, (int64_t)count, (float)scale, DDP_BF16, false};
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_from_bf16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                               double scale)
{
    const ddpi_k_cast_args kernel = {src, dst, (int64_t)count, (float)scale, DDP_BF16, true};
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_to_f16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                            double scale)
{
    const ddpi_k_cast_args kernel = {src, dst, (int64_t)count, (float)scale, DDP_F16, false};
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_from_f16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                              double scale)
{
    const ddpi_k_cast_args kernel = {src, dst, (int64_t)count, (float)scale, DDP_F16, true};
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(stream), &kernel));
}

/* ---- statistics and ranks ---- */

ddp_status ddpi_cuda_norm_running(ddp_stream *stream, const ddp_norm_running_args *args)
{
    const ddpi_k_norm_running_args kernel = {args->channels,   args->momentum, args->count,
                                             args->mean,       args->m2,       args->running_mean,
                                             args->running_var};
    return DDPI_CUDA_CHECK(ddpi_k_norm_running(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_label_rank(ddp_stream *stream, const float *logits, const int32_t *labels,
                                int64_t n, int64_t classes, int32_t *rank_out)
{
    const ddpi_k_label_rank_args kernel = {logits, labels, rank_out, n, classes};
    return DDPI_CUDA_CHECK(ddpi_k_label_rank(ddpi_cuda_stream(stream), &kernel));
}
