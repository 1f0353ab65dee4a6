/* cuda_plan.c - making, running and destroying plans of the CUDA device: what all kinds share, and
 * the plan that only changes a tensor's shape. A plan is used by one stream at a time. */
#include <stdio.h>

#include "ddp/memory.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

ddp_status ddpi_cuda_plan_alloc(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                                const ddpi_cuda_plan_ops *ops, size_t struct_bytes,
                                ddpi_cuda_plan **plan_out)
{
    void *memory;
    DDP_TRY(ddp_alloc_bytes(1, struct_bytes, &memory));
    ddpi_cuda_plan *plan = memory;
    plan->ops = ops;
    plan->base.device = &device->base;
    plan->base.desc = *desc;
    plan->base.src = ddp_layout_ref(src);
    plan->base.desc.src2 = ddp_layout_ref(desc->src2);
    *plan_out = plan;
    return DDP_OK;
}

void ddpi_cuda_plan_free(ddpi_cuda_plan *plan)
{
    if (plan->ops->destroy != NULL)
        plan->ops->destroy(plan);
    ddp_layout_unref(plan->base.src);
    ddp_layout_unref(plan->base.desc.src2);
    ddp_layout_unref(plan->base.dst);
    ddp_layout_unref(plan->base.weights);
    ddp_free(plan);
}

ddp_status ddpi_cuda_plan_create(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                                 ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_fn creators[DDP_OP_KIND_COUNT] = {
        [DDP_OP_CONV2D] = ddpi_cuda_conv_plan,     [DDP_OP_LINEAR] = ddpi_cuda_linear_plan,
        [DDP_OP_RELU] = ddpi_cuda_relu_plan,       [DDP_OP_POOL2D] = ddpi_cuda_pool_plan,
        [DDP_OP_RESHAPE] = ddpi_cuda_reshape_plan, [DDP_OP_SOFTMAX_XENT] = ddpi_cuda_softmax_plan,
        [DDP_OP_NORM] = ddpi_cuda_norm_plan,       [DDP_OP_ADD] = ddpi_cuda_add_plan,
        [DDP_OP_DROPOUT] = ddpi_cuda_dropout_plan,
    };
    DDP_TRY(ddpi_cuda_enter(device));
    return creators[desc->kind](ddpi_cuda_of(device), desc, src, weights, plan_out);
}

void ddpi_cuda_plan_destroy(ddp_op_plan *plan)
{
    ddpi_cuda_plan_free((ddpi_cuda_plan *)plan);
}

ddp_status ddpi_cuda_plan_run(ddp_op_plan *base, ddp_op_pass pass, ddp_stream *stream,
                              const ddp_op_args *args)
{
    ddpi_cuda_plan *plan = (ddpi_cuda_plan *)base;
    return plan->ops->run(plan, pass, stream, args);
}

#define SCRATCH_ALIGN 256

size_t ddpi_cuda_take(size_t *bytes, size_t size)
{
    const size_t slack = SCRATCH_ALIGN - DDP_ALIGN_BYTES; /* of the first one */
    const size_t at = *bytes > 0 ? *bytes - slack : 0;
    if (size > 0)
        *bytes = at + (size + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN + slack;
    return at;
}

char *ddpi_cuda_scratch(const ddp_op_args *args)
{
    const size_t past = (uintptr_t)args->scratch % SCRATCH_ALIGN;
    return (char *)args->scratch + (past > 0 ? SCRATCH_ALIGN - past : 0);
}

int64_t ddpi_cuda_count(const ddp_layout *layout)
{
    return ddp_shape_count(&layout->shape);
}

ddp_status ddpi_cuda_start_gradient(const ddpi_cuda_gradient *gradient, ddp_stream *stream)
{
    const int64_t count = gradient->rows * gradient->channels;
    const ddpi_k_bias_grad_args sums = {gradient->diff_dst, gradient->value, gradient->diff_bias,
                                        gradient->partials, gradient->rows,  gradient->channels,
                                        gradient->dtype};
    const ddpi_k_relu_mask_args mask = {gradient->diff_dst, gradient->value, count,
                                        gradient->dtype};
    if (gradient->diff_bias != NULL)
        return DDPI_CUDA_CHECK(ddpi_k_bias_grad(ddpi_cuda_stream(stream), &sums));
    if (gradient->value != NULL)
        return DDPI_CUDA_CHECK(ddpi_k_relu_mask(ddpi_cuda_stream(stream), &mask));
    return DDP_OK;
}

/* ---- reshape ---- */

typedef struct reshape_plan {
    ddpi_cuda_plan base;
    ddpi_cuda_conversion flatten, unflatten;
} reshape_plan;

static ddp_status reshape_run(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                              const ddp_op_args *args)
{
    const reshape_plan *plan = (reshape_plan *)base;
    const bool forward = pass == DDP_PASS_FORWARD;
    return ddpi_cuda_convert(forward ? &plan->flatten : &plan->unflatten, stream,
                             forward ? args->src : args->diff_dst,
                             forward ? args->dst : args->diff_src, args->scratch);
}

ddp_status ddpi_cuda_reshape_plan(ddpi_cuda_device *device, const ddp_op_desc *desc,
                                  ddp_layout *src, ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {reshape_run, NULL};
    ddp_shape dst, none;
    ddpi_cuda_plan *base;
    (void)weights;
    DDP_TRY(ddp_op_infer(desc, &src->shape, &dst, &none));
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof(reshape_plan), &base));
    reshape_plan *plan = (reshape_plan *)base;
    const ddp_status st =
        ddpi_cuda_layout_create(&device->base, &dst, false, src->dtype, &base->base.dst);
    if (st != DDP_OK) {
        ddpi_cuda_plan_free(base);
        return st;
    }
    plan->flatten = ddpi_cuda_conversion_of(src, false, src->dtype);
    plan->unflatten = ddpi_cuda_reversed(&plan->flatten);
    base->base.scratch_bytes = ddpi_cuda_conversion_bytes(&plan->flatten);
    snprintf(base->base.impl, sizeof base->base.impl, "%s",
             ddpi_cuda_is_rows(src) ? "copy" : "permute");
    *plan_out = &base->base;
    return DDP_OK;
}
