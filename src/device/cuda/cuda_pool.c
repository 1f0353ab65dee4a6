/* cuda_pool.c - pooling of channels-last images by our own kernels.
 *
 * cuDNN's backward pass of a maximum wants both tensors of the forward pass, which the model does
 * not keep; ours keeps the maximum's position in the workspace instead, as the CPU device does. A
 * source that lies in rows is converted in scratch memory. */
#include <stdio.h>

#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

typedef struct pool_plan {
    ddpi_cuda_plan base;
    ddpi_k_pool_args shape; /* without pointers */
    ddpi_cuda_conversion src, diff_src;
    size_t convert_at; /* in scratch, behind the converted source */
} pool_plan;

static ddp_status enqueue(const pool_plan *plan, ddp_stream *stream, const void *from, void *to,
                          uint16_t *where, bool forward)
{
    const cudaStream_t handle = ddpi_cuda_stream(stream);
    if (plan->base.base.desc.u.pool2d.global) {
        const ddpi_k_global_avg_args args = {from,
                                             to,
                                             plan->shape.n,
                                             (int64_t)plan->shape.in_h * plan->shape.in_w,
                                             plan->shape.channels,
                                             plan->shape.dtype};
        return DDPI_CUDA_CHECK(forward ? ddpi_k_global_avg_forward(handle, &args)
                                       : ddpi_k_global_avg_backward(handle, &args));
    }
    ddpi_k_pool_args args = plan->shape;
    args.src = from;
    args.dst = to;
    args.where = where;
    return DDPI_CUDA_CHECK(forward ? ddpi_k_pool_forward(handle, &args)
                                   : ddpi_k_pool_backward(handle, &args));
}

static ddp_status pool_run(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                           const ddp_op_args *args)
{
    const pool_plan *plan = (pool_plan *)base;
    char *scratch = ddpi_cuda_scratch(args), *convert = scratch + plan->convert_at;
    uint16_t *where = plan->shape.maximum && base->base.desc.training ? args->workspace : NULL;
    if (pass == DDP_PASS_FORWARD) {
        const void *src = plan->src.same ? args->src : scratch;
        if (!plan->src.same)
            DDP_TRY(ddpi_cuda_convert(&plan->src, stream, args->src, scratch, convert));
        return enqueue(plan, stream, src, args->dst, where, true);
    }
    void *diff_src = plan->src.same ? args->diff_src : scratch;
    DDP_TRY(enqueue(plan, stream, args->diff_dst, diff_src, where, false));
    if (plan->src.same)
        return DDP_OK;
    return ddpi_cuda_convert(&plan->diff_src, stream, scratch, args->diff_src, convert);
}

/* ---- creation ---- */

static void set_shape(pool_plan *plan, const ddp_shape *src, const ddp_shape *dst)
{
    const ddp_pool2d_desc *pool = &plan->base.base.desc.u.pool2d;
    plan->shape = (ddpi_k_pool_args){.n = src->dims[0],
                                     .channels = (int)src->dims[1],
                                     .in_h = (int)src->dims[2],
                                     .in_w = (int)src->dims[3],
                                     .out_h = (int)dst->dims[2],
                                     .out_w = (int)dst->dims[3],
                                     .kernel_h = (int)pool->kernel_h,
                                     .kernel_w = (int)pool->kernel_w,
                                     .stride_h = (int)pool->stride_h,
                                     .stride_w = (int)pool->stride_w,
                                     .pad_h = (int)pool->pad_h,
                                     .pad_w = (int)pool->pad_w,
                                     .maximum = pool->maximum,
                                     .dtype = plan->base.base.src->dtype};
}

static ddp_status fill(pool_plan *plan, ddp_device *device)
{
    ddp_op_plan *op = &plan->base.base;
    const ddp_pool2d_desc *pool = &op->desc.u.pool2d;
    ddp_shape dst, none;
    size_t bytes = 0;
    DDP_TRY(ddp_op_infer(&op->desc, &op->src->shape, &dst, &none));
    if (pool->maximum && pool->kernel_h * pool->kernel_w > UINT16_MAX)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "maximum over a window of %lldx%lld: too large",
                        (long long)pool->kernel_h, (long long)pool->kernel_w);
    set_shape(plan, &op->src->shape, &dst);
    DDP_TRY(ddpi_cuda_layout_create(device, &dst, true, op->src->dtype, &op->dst));
    plan->src = ddpi_cuda_conversion_of(op->src, true, op->src->dtype);
    plan->diff_src = ddpi_cuda_reversed(&plan->src);
    if (!plan->src.same) {
        (void)ddpi_cuda_take(&bytes, ddpi_cuda_converted_bytes(&plan->src));
        plan->convert_at = ddpi_cuda_take(&bytes, ddpi_cuda_conversion_bytes(&plan->src));
    }
    op->scratch_bytes = bytes;
    if (pool->maximum && op->desc.training)
        op->workspace_bytes = (size_t)ddp_shape_count(&dst) * sizeof(uint16_t);
    snprintf(op->impl, sizeof op->impl, "%s", pool->global ? "plane" : "window");
    return DDP_OK;
}

ddp_status ddpi_cuda_pool_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                               ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {pool_run, NULL};
    ddpi_cuda_plan *base;
    (void)weights;
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof(pool_plan), &base));
    const ddp_status st = fill((pool_plan *)base, &device->base);
    if (st != DDP_OK) {
        ddpi_cuda_plan_free(base);
        return st;
    }
    *plan_out = &base->base;
    return DDP_OK;
}
