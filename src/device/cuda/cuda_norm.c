/* cuda_norm.c - plans of batch normalisation and of the loss.
 *
 * Normalisation works on channels last, in its source's type. A source in another order is
 * converted into scratch memory by each pass, which only happens where it is the model's input. */
#include <stdio.h>

#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

/* ---- normalisation ---- */

typedef struct norm_plan {
    ddpi_cuda_plan base;
    ddpi_k_norm_view view;
    ddpi_cuda_conversion src, src2;
    size_t src_at, src2_at, convert_at, partials_at; /* in scratch */
} norm_plan;

typedef struct norm_run {
    const norm_plan *plan;
    ddp_stream *stream;
    const ddp_op_args *args;
    char *scratch;
    const void *src; /* channels last */
} norm_run;

/* A source as the kernels take it. */
static ddp_status convert(const norm_run *run, const ddpi_cuda_conversion *conversion,
                          const void *given, size_t at, const void **src_out)
{
    *src_out = conversion->same ? given : run->scratch + at;
    return conversion->same ? DDP_OK
                            : ddpi_cuda_convert(conversion, run->stream, given, run->scratch + at,
                                                run->scratch + run->plan->convert_at);
}

/* A gradient from how the kernels write it to where its source lies. */
static ddp_status convert_back(const norm_run *run, const ddpi_cuda_conversion *conversion,
                               const void *gradient, void *to)
{
    const ddpi_cuda_conversion back = ddpi_cuda_reversed(conversion);
    return ddpi_cuda_convert(&back, run->stream, gradient, to,
                             run->scratch + run->plan->convert_at);
}

static ddpi_k_norm_by by_of(const norm_run *run)
{
    const ddp_norm_state *norm = run->args->norm;
    const bool batch = run->plan->base.base.desc.training;
    return (ddpi_k_norm_by){.mean = batch ? norm->mean : NULL,
                            .m2 = batch ? norm->m2 : NULL,
                            .running_mean = norm->running_mean,
                            .running_var = norm->running_var,
                            .count = norm->count,
                            .eps = run->plan->base.base.desc.u.norm.eps};
}

static double *partials_of(const norm_run *run)
{
    return (double *)(void *)(run->scratch + run->plan->partials_at);
}

static ddp_status statistics(const norm_run *run)
{
    const ddpi_k_norm_statistics_args args = {.view = run->plan->view,
                                              .src = run->src,
                                              .mean = run->args->norm->mean,
                                              .m2 = run->args->norm->m2,
                                              .partials = partials_of(run)};
    return DDPI_CUDA_CHECK(ddpi_k_norm_statistics(ddpi_cuda_stream(run->stream), &args));
}

static ddp_status forward(const norm_run *run)
{
    const ddp_norm_desc *norm = &run->plan->base.base.desc.u.norm;
    ddpi_k_norm_forward_args args = {.view = run->plan->view,
                                     .by = by_of(run),
                                     .src = run->src,
                                     .dst = run->args->dst,
                                     .weights = run->args->weights,
                                     .bias = run->args->bias,
                                     .relu = norm->relu};
    if (norm->add)
        DDP_TRY(convert(run, &run->plan->src2, run->args->src2, run->plan->src2_at, &args.src2));
    return DDPI_CUDA_CHECK(ddpi_k_norm_forward(ddpi_cuda_stream(run->stream), &args));
}

static ddp_status backward_weights(const norm_run *run)
{
    const ddp_norm_desc *norm = &run->plan->base.base.desc.u.norm;
    const ddpi_cuda_conversion *src2 = &run->plan->src2;
    void *diff_src2 = norm->add ? run->args->diff_src2 : NULL;
    const ddpi_k_norm_reduce_args args = {.view = run->plan->view,
                                          .by = by_of(run),
                                          .src = run->src,
                                          .value = norm->relu ? run->args->dst : NULL,
                                          .diff_dst2 = run->args->diff_dst2,
                                          .diff_dst = run->args->diff_dst,
                                          .copy = src2->same ? diff_src2 : NULL,
                                          .sum_dy = run->args->norm->sum_dy,
                                          .sum_dy_xhat = run->args->norm->sum_dy_xhat,
                                          .partials = partials_of(run),
                                          .diff_weights = run->args->diff_weights,
                                          .diff_bias = run->args->diff_bias};
    DDPI_CUDA_TRY(ddpi_k_norm_reduce(ddpi_cuda_stream(run->stream), &args));
    return diff_src2 == NULL || src2->same
               ? DDP_OK
               : convert_back(run, src2, run->args->diff_dst, diff_src2);
}

/* A gradient that must be converted is made in place of the converted source. */
static ddp_status backward_data(const norm_run *run)
{
    const ddpi_cuda_conversion *src = &run->plan->src;
    void *diff_src = src->same ? run->args->diff_src : run->scratch + run->plan->src_at;
    const ddpi_k_norm_spread_args args = {.view = run->plan->view,
                                          .by = by_of(run),
                                          .src = run->src,
                                          .diff_dst = run->args->diff_dst,
                                          .diff_src = diff_src,
                                          .sum_dy = run->args->norm->sum_dy,
                                          .sum_dy_xhat = run->args->norm->sum_dy_xhat,
                                          .weights = run->args->weights};
    DDPI_CUDA_TRY(ddpi_k_norm_spread(ddpi_cuda_stream(run->stream), &args));
    return src->same ? DDP_OK : convert_back(run, src, diff_src, run->args->diff_src);
}

static ddp_status norm_run_pass(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                                const ddp_op_args *args)
{
    const norm_plan *plan = (const norm_plan *)base;
    norm_run run = {.plan = plan, .stream = stream, .args = args, .scratch = args->scratch};
    DDP_TRY(convert(&run, &plan->src, args->src, plan->src_at, &run.src));
    switch (pass) {
    case DDP_PASS_STATISTICS:
        return statistics(&run);
    case DDP_PASS_FORWARD:
        return forward(&run);
    case DDP_PASS_BACKWARD_WEIGHTS:
        return backward_weights(&run);
    default:
        return backward_data(&run);
    }
}

static void make_scratch(norm_plan *plan)
{
    size_t *bytes = &plan->base.base.scratch_bytes;
    const size_t first = ddpi_cuda_conversion_bytes(&plan->src);
    const size_t second = ddpi_cuda_conversion_bytes(&plan->src2);
    if (!plan->src.same)
        plan->src_at = ddpi_cuda_take(bytes, ddpi_cuda_converted_bytes(&plan->src));
    if (!plan->src2.same)
        plan->src2_at = ddpi_cuda_take(bytes, ddpi_cuda_converted_bytes(&plan->src2));
    plan->convert_at = ddpi_cuda_take(bytes, first > second ? first : second);
    if (plan->base.base.desc.training)
        plan->partials_at = ddpi_cuda_take(bytes, ddpi_k_norm_bytes(&plan->view));
}

static ddp_status fill(norm_plan *plan)
{
    ddp_op_plan *op = &plan->base.base;
    const ddp_shape *shape = &op->src->shape;
    ddp_shape dst, weights;
    DDP_TRY(ddp_op_infer(&op->desc, shape, &dst, &weights));
    DDP_TRY(ddpi_cuda_layout_create(op->device, &dst, true, op->src->dtype, &op->dst));
    DDP_TRY(ddpi_cuda_layout_plain(op->device, &weights, &op->weights));
    plan->view = (ddpi_k_norm_view){.rows = ddp_shape_count(shape) / shape->dims[1],
                                    .channels = shape->dims[1],
                                    .dtype = op->src->dtype};
    plan->src = ddpi_cuda_conversion_of(op->src, true, op->src->dtype);
    plan->src2 = ddpi_cuda_conversion_of(op->desc.src2 != NULL ? op->desc.src2 : op->src, true,
                                         op->src->dtype);
    make_scratch(plan);
    snprintf(op->impl, sizeof op->impl, "rows");
    return DDP_OK;
}

ddp_status ddpi_cuda_norm_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                               ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {norm_run_pass, NULL};
    ddpi_cuda_plan *base;
    (void)weights;
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof(norm_plan), &base));
    const ddp_status st = fill((norm_plan *)base);
    if (st != DDP_OK)
        ddpi_cuda_plan_free(base);
    else
        *plan_out = &base->base;
    return st;
}

/* ---- softmax cross-entropy ---- */

static ddp_status softmax_run(ddpi_cuda_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                              const ddp_op_args *args)
{
    const ddp_layout *src = plan->base.src;
    const ddpi_k_softmax_args kernel = {.logits = args->src,
                                        .diff = args->diff_src,
                                        .diff_scale = args->diff_scale,
                                        .labels = args->labels,
                                        .labels2 = args->labels2,
                                        .mix = args->mix,
                                        .loss = args->loss,
                                        .partials = args->scratch,
                                        .n = src->shape.dims[0],
                                        .classes = src->shape.dims[1],
                                        .smoothing = plan->base.desc.u.xent.label_smoothing,
                                        .dtype = src->dtype};
    DDP_ASSERT(pass == DDP_PASS_FORWARD);
    return DDPI_CUDA_CHECK(ddpi_k_softmax(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_softmax_plan(ddpi_cuda_device *device, const ddp_op_desc *desc,
                                  ddp_layout *src, ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {softmax_run, NULL};
    ddpi_cuda_plan *plan;
    (void)weights;
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof *plan, &plan));
    plan->base.scratch_bytes = ddpi_k_softmax_bytes(src->shape.dims[0]);
    snprintf(plan->base.impl, sizeof plan->base.impl, "rows");
    *plan_out = &plan->base;
    return DDP_OK;
}
