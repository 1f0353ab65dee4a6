/* cuda_elementwise.c - plans of relu, of sums of two tensors, and of dropout. They work in the
 * order and type that their source has; a second source that lies otherwise is converted first. */
#include <stdio.h>

#include "ddp/rng.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

/* Of a plan whose result lies as its source does. */
static ddp_status make(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                       const ddpi_cuda_plan_ops *ops, size_t struct_bytes,
                       ddpi_cuda_plan **plan_out)
{
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, ops, struct_bytes, plan_out));
    (*plan_out)->base.dst = ddp_layout_ref(src);
    return DDP_OK;
}

/* A sweep over all elements of a plan's tensors; operands are the caller's to fill in. */
static ddpi_k_combine_args sweep_of(const ddpi_cuda_plan *plan)
{
    return (ddpi_k_combine_args){.count = ddpi_cuda_count(plan->base.src),
                                 .dtype = plan->base.src->dtype};
}

/* ---- relu ---- */

static ddp_status relu_run(ddpi_cuda_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                           const ddp_op_args *args)
{
    ddpi_k_combine_args sweep = sweep_of(plan);
    if (pass == DDP_PASS_FORWARD) {
        sweep.dst = args->dst;
        sweep.a = args->src;
        sweep.relu = true;
    } else {
        sweep.dst = args->diff_src;
        sweep.a = args->diff_dst;
        sweep.value = args->dst;
    }
    return DDPI_CUDA_CHECK(ddpi_k_combine(ddpi_cuda_stream(stream), &sweep));
}

ddp_status ddpi_cuda_relu_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                               ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {relu_run, NULL};
    ddpi_cuda_plan *plan;
    (void)weights;
    DDP_TRY(make(device, desc, src, &ops, sizeof *plan, &plan));
    snprintf(plan->base.impl, sizeof plan->base.impl, "kernel");
    *plan_out = &plan->base;
    return DDP_OK;
}

/* ---- sums ---- */

typedef struct add_plan {
    ddpi_cuda_plan base;
    ddpi_cuda_conversion second; /* of src2 */
    size_t second_at, convert_at;
} add_plan;

static ddp_status add_forward(const add_plan *plan, ddp_stream *stream, const ddp_op_args *args)
{
    char *scratch = args->scratch;
    ddpi_k_combine_args sweep = sweep_of(&plan->base);
    sweep.dst = args->dst;
    sweep.a = args->src;
    sweep.b = args->src2;
    sweep.relu = plan->base.base.desc.u.add.relu;
    if (!plan->second.same) {
        sweep.b = scratch + plan->second_at;
        DDP_TRY(ddpi_cuda_convert(&plan->second, stream, args->src2, scratch + plan->second_at,
                                  scratch + plan->convert_at));
    }
    return DDPI_CUDA_CHECK(ddpi_k_combine(ddpi_cuda_stream(stream), &sweep));
}

/* One sweep makes the gradient of both sources in diff_dst, and writes it where it is wanted too.
 */
static ddp_status add_backward(const add_plan *plan, ddp_stream *stream, const ddp_op_args *args)
{
    ddpi_k_combine_args sweep = sweep_of(&plan->base);
    sweep.dst = args->diff_dst;
    sweep.copies[0] = args->diff_src;
    sweep.copies[1] = plan->second.same ? args->diff_src2 : NULL;
    sweep.a = args->diff_dst;
    sweep.b = args->diff_dst2;
    sweep.value = plan->base.base.desc.u.add.relu ? args->dst : NULL;
    if (sweep.value != NULL || sweep.b != NULL || sweep.copies[0] != NULL ||
        sweep.copies[1] != NULL)
        DDPI_CUDA_TRY(ddpi_k_combine(ddpi_cuda_stream(stream), &sweep));
    if (plan->second.same || args->diff_src2 == NULL)
        return DDP_OK;
    const ddpi_cuda_conversion back = ddpi_cuda_reversed(&plan->second);
    return ddpi_cuda_convert(&back, stream, args->diff_dst, args->diff_src2,
                             (char *)args->scratch + plan->convert_at);
}

static ddp_status add_run(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                          const ddp_op_args *args)
{
    const add_plan *plan = (const add_plan *)base;
    return pass == DDP_PASS_FORWARD ? add_forward(plan, stream, args)
                                    : add_backward(plan, stream, args);
}

ddp_status ddpi_cuda_add_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                              ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {add_run, NULL};
    ddp_layout *src2 = desc->src2 != NULL ? desc->src2 : src;
    ddpi_cuda_plan *base;
    (void)weights;
    DDP_TRY(make(device, desc, src, &ops, sizeof(add_plan), &base));
    add_plan *plan = (add_plan *)base;
    plan->second = ddpi_cuda_conversion_of(src2, !ddpi_cuda_is_rows(src), src->dtype);
    if (!plan->second.same)
        plan->second_at =
            ddpi_cuda_take(&base->base.scratch_bytes, ddpi_cuda_converted_bytes(&plan->second));
    plan->convert_at =
        ddpi_cuda_take(&base->base.scratch_bytes, ddpi_cuda_conversion_bytes(&plan->second));
    snprintf(base->base.impl, sizeof base->base.impl, "kernel");
    *plan_out = &base->base;
    return DDP_OK;
}

/* ---- dropout ---- */

typedef struct dropout_plan {
    ddpi_cuda_plan base;
    ddpi_k_dropout_args kernel; /* all but the buffers and the draw */
} dropout_plan;

static ddp_status dropout_run(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                              const ddp_op_args *args)
{
    const bool forward = pass == DDP_PASS_FORWARD;
    ddpi_k_dropout_args kernel = ((dropout_plan *)base)->kernel;
    const ddp_rng rng = ddp_rng_make(args->rng_seed, DDP_RNG_DROPOUT, args->rng_stream);
    kernel.src = forward ? args->src : args->diff_dst;
    kernel.dst = forward ? args->dst : args->diff_src;
    if (!base->base.desc.training)
        return ddpi_cuda_copy(stream, kernel.dst, kernel.src, base->base.src->bytes,
                              DDP_COPY_ON_DEVICE);
    kernel.sample_ids = args->sample_ids;
    kernel.live_seed = args->rng_live_seed;
    for (int i = 0; i < 2; i++) {
        kernel.draw.key[i] = rng.key[i];
        kernel.draw.stream[i] = rng.stream[i];
    }
    return DDPI_CUDA_CHECK(ddpi_k_dropout(ddpi_cuda_stream(stream), &kernel));
}

ddp_status ddpi_cuda_dropout_plan(ddpi_cuda_device *device, const ddp_op_desc *desc,
                                  ddp_layout *src, ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {dropout_run, NULL};
    const ddp_shape *shape = &src->shape;
    const double rate = desc->u.dropout.rate;
    const int64_t n = shape->dims[0], channels = shape->ndim == 4 ? shape->dims[1] : 1;
    ddpi_cuda_plan *base;
    (void)weights;
    DDP_TRY(make(device, desc, src, &ops, sizeof(dropout_plan), &base));
    ((dropout_plan *)base)->kernel =
        (ddpi_k_dropout_args){.n = n,
                              .channels = channels,
                              .pixels = ddp_shape_count(shape) / n / channels,
                              .threshold = (uint64_t)(rate * 4294967296.0),
                              .scale = (float)(1 / (1 - rate)),
                              .channels_last = !ddpi_cuda_is_rows(src),
                              .dtype = src->dtype};
    snprintf(base->base.impl, sizeof base->base.impl, "philox");
    *plan_out = &base->base;
    return DDP_OK;
}
