/* cuda_conv.c - convolutions over cuDNN's classic functions, channels last.
 *
 * The source is converted in scratch memory if it lies otherwise (the network's input does) or is
 * not of the type that is multiplied. With bf16 and f16 the weights are rounded into scratch before
 * each use, and the gradient of the weights, which cuDNN gives in that type too, is widened. Bias
 * and relu are part of cuDNN's call where it offers that for f32, else a kernel behind it; so are
 * the relu's mask and the gradient of the bias in front of the backward passes. */
#include "device/cuda/cuda_conv.h"

#include <stdio.h>
#include <string.h>

#include "device/cuda/kernels.h"

#define FUSED_MARK "+act"

typedef struct conv_run {
    ddpi_cuda_conv *plan;
    ddp_stream *stream;
    cudnnHandle_t handle;
    const ddp_op_args *args;
    char *scratch;
} conv_run;

static const float one = 1, zero = 0;

/* ---- operands ---- */

static ddp_status source(const conv_run *run, const void **src_out)
{
    const ddpi_cuda_conv *plan = run->plan;
    *src_out = plan->from_src.same ? run->args->src : run->scratch;
    if (plan->from_src.same)
        return DDP_OK;
    return ddpi_cuda_convert(&plan->from_src, run->stream, run->args->src, run->scratch,
                             run->scratch + plan->convert_at);
}

static ddp_status rounded_weights(const conv_run *run, const void **weights_out)
{
    const ddpi_k_cast_args args = {run->args->weights,      run->scratch + run->plan->weights_at,
                                   run->plan->weight_count, 1.0f,
                                   run->plan->dtype,        false};
    *weights_out = run->plan->dtype == DDP_F32 ? run->args->weights : args.dst;
    if (run->plan->dtype == DDP_F32)
        return DDP_OK;
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(run->stream), &args));
}

/* ---- passes ---- */

static cudnnStatus_t fused(const conv_run *run, const void *src, const void *weights)
{
    const ddpi_cuda_conv *p = run->plan;
    return cudnnConvolutionBiasActivationForward(
        run->handle, &one, p->src, src, p->weights, weights, p->conv[DDPI_CONV_FORWARD],
        (cudnnConvolutionFwdAlgo_t)p->algo[DDPI_CONV_FORWARD], run->scratch + p->work_at,
        p->work_bytes[DDPI_CONV_FORWARD], &zero, p->dst, run->args->dst, p->bias, run->args->bias,
        p->activation, p->dst, run->args->dst);
}

/* Nothing was enqueued; the call is not made again, and the plan no longer says so. */
static void stop_fusing(ddpi_cuda_conv *plan)
{
    char *name = plan->base.base.impl;
    char *mark = strstr(name, FUSED_MARK);
    plan->fused = false;
    if (mark != NULL)
        memmove(mark, mark + strlen(FUSED_MARK), strlen(mark + strlen(FUSED_MARK)) + 1);
}

static ddp_status forward(const conv_run *run)
{
    ddpi_cuda_conv *p = run->plan;
    const void *src, *weights;
    DDP_TRY(source(run, &src));
    DDP_TRY(rounded_weights(run, &weights));
    if (p->fused) {
        const cudnnStatus_t error = fused(run, src, weights);
        if (error != CUDNN_STATUS_NOT_SUPPORTED)
            return ddpi_cudnn_check(error, "cudnnConvolutionBiasActivationForward", __FILE__,
                                    __LINE__);
        stop_fusing(p);
    }
    DDPI_CUDNN_TRY(cudnnConvolutionForward(
        run->handle, &one, p->src, src, p->weights, weights, p->conv[DDPI_CONV_FORWARD],
        (cudnnConvolutionFwdAlgo_t)p->algo[DDPI_CONV_FORWARD], run->scratch + p->work_at,
        p->work_bytes[DDPI_CONV_FORWARD], &zero, p->dst, run->args->dst));
    if (!p->has_bias && !p->relu)
        return DDP_OK;
    const ddpi_k_bias_relu_args rest = {run->args->dst, p->has_bias ? run->args->bias : NULL,
                                        p->rows,        p->channels,
                                        p->dtype,       p->relu};
    return DDPI_CUDA_CHECK(ddpi_k_bias_relu(ddpi_cuda_stream(run->stream), &rest));
}

static ddp_status backward_data(const conv_run *run)
{
    const ddpi_cuda_conv *p = run->plan;
    void *diff_src = p->from_src.same ? run->args->diff_src : run->scratch;
    const void *weights;
    DDP_TRY(rounded_weights(run, &weights));
    DDPI_CUDNN_TRY(cudnnConvolutionBackwardData(
        run->handle, &one, p->weights, weights, p->dst, run->args->diff_dst,
        p->conv[DDPI_CONV_DATA], (cudnnConvolutionBwdDataAlgo_t)p->algo[DDPI_CONV_DATA],
        run->scratch + p->work_at, p->work_bytes[DDPI_CONV_DATA], &zero, p->src, diff_src));
    if (p->from_src.same)
        return DDP_OK;
    return ddpi_cuda_convert(&p->to_diff_src, run->stream, diff_src, run->args->diff_src,
                             run->scratch + p->convert_at);
}

static ddp_status backward_weights(const conv_run *run)
{
    const ddpi_cuda_conv *p = run->plan;
    const bool narrow = p->dtype != DDP_F32;
    void *diff_weights = narrow ? run->scratch + p->weights_at : run->args->diff_weights;
    const void *src;
    DDP_TRY(source(run, &src));
    DDPI_CUDNN_TRY(cudnnConvolutionBackwardFilter(
        run->handle, &one, p->src, src, p->dst, run->args->diff_dst, p->conv[DDPI_CONV_WEIGHTS],
        (cudnnConvolutionBwdFilterAlgo_t)p->algo[DDPI_CONV_WEIGHTS], run->scratch + p->work_at,
        p->work_bytes[DDPI_CONV_WEIGHTS], &zero, p->weights, diff_weights));
    if (!narrow)
        return DDP_OK;
    const ddpi_k_cast_args widen = {
        diff_weights, run->args->diff_weights, p->weight_count, 1.0f, p->dtype, true};
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(run->stream), &widen));
}

static ddp_status conv_run_pass(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                                const ddp_op_args *args)
{
    ddpi_cuda_conv *plan = (ddpi_cuda_conv *)base;
    conv_run run = {plan, stream, NULL, args, ddpi_cuda_scratch(args)};
    const bool of_weights = pass == DDP_PASS_BACKWARD_WEIGHTS;
    DDP_TRY(ddpi_cuda_cudnn(stream, &run.handle));
    if (pass == DDP_PASS_FORWARD) {
        plan->masked = NULL;
        return forward(&run);
    }
    const ddpi_cuda_gradient gradient = {
        .diff_dst = args->diff_dst,
        .value = plan->relu && plan->masked != args->diff_dst ? args->dst : NULL,
        .diff_bias = of_weights && plan->has_bias ? args->diff_bias : NULL,
        .partials = run.scratch + plan->work_at,
        .rows = plan->rows,
        .channels = plan->channels,
        .dtype = plan->dtype};
    DDP_TRY(ddpi_cuda_start_gradient(&gradient, stream));
    plan->masked = of_weights ? args->diff_dst : NULL;
    return of_weights ? backward_weights(&run) : backward_data(&run);
}

static void conv_destroy(ddpi_cuda_plan *base)
{
    ddpi_cuda_conv *plan = (ddpi_cuda_conv *)base;
    for (int pass = 0; pass < DDPI_CONV_PASSES; pass++)
        if (plan->conv[pass] != NULL)
            (void)cudnnDestroyConvolutionDescriptor(plan->conv[pass]);
    if (plan->activation != NULL)
        (void)cudnnDestroyActivationDescriptor(plan->activation);
    if (plan->weights != NULL)
        (void)cudnnDestroyFilterDescriptor(plan->weights);
    cudnnTensorDescriptor_t const tensors[] = {plan->src, plan->dst, plan->bias};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        if (tensors[i] != NULL)
            (void)cudnnDestroyTensorDescriptor(tensors[i]);
}

/* ---- creation ---- */

static ddp_status describe_tensor(cudnnTensorDescriptor_t *tensor, cudnnDataType_t type,
                                  const ddp_shape *shape)
{
    const int64_t *d = shape->dims;
    DDPI_CUDNN_TRY(cudnnCreateTensorDescriptor(tensor));
    return DDPI_CUDNN_CHECK(cudnnSetTensor4dDescriptor(*tensor, CUDNN_TENSOR_NHWC, type, (int)d[0],
                                                       (int)d[1], (int)d[2], (int)d[3]));
}

static ddp_status describe_conv(const ddpi_cuda_device *device, ddpi_cuda_conv *plan,
                                const ddp_conv2d_desc *conv)
{
    const cudnnMathType_t math = plan->dtype != DDP_F32   ? CUDNN_TENSOR_OP_MATH
                                 : device->base.opts.tf32 ? CUDNN_DEFAULT_MATH
                                                          : CUDNN_FMA_MATH;
    for (int pass = 0; pass < DDPI_CONV_PASSES; pass++) {
        DDPI_CUDNN_TRY(cudnnCreateConvolutionDescriptor(&plan->conv[pass]));
        DDPI_CUDNN_TRY(cudnnSetConvolution2dDescriptor(
            plan->conv[pass], (int)conv->pad_h, (int)conv->pad_w, (int)conv->stride_h,
            (int)conv->stride_w, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
        DDPI_CUDNN_TRY(cudnnSetConvolutionMathType(plan->conv[pass], math));
    }
    DDPI_CUDNN_TRY(cudnnCreateActivationDescriptor(&plan->activation));
    /* The fused call takes no other treatment of NaN; a relu of the CPU's makes it 0, too. */
    return DDPI_CUDNN_CHECK(cudnnSetActivationDescriptor(
        plan->activation, plan->relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
        CUDNN_NOT_PROPAGATE_NAN, 0.0));
}

static ddp_status describe(const ddpi_cuda_device *device, ddpi_cuda_conv *plan,
                           const ddp_shape *dst, const ddp_shape *weights)
{
    const cudnnDataType_t type = plan->dtype == DDP_BF16  ? CUDNN_DATA_BFLOAT16
                                 : plan->dtype == DDP_F16 ? CUDNN_DATA_HALF
                                                          : CUDNN_DATA_FLOAT;
    const ddp_shape bias = {4, {1, dst->dims[1], 1, 1}};
    const int64_t *w = weights->dims;
    DDP_TRY(describe_tensor(&plan->src, type, &plan->base.base.src->shape));
    DDP_TRY(describe_tensor(&plan->dst, type, dst));
    DDP_TRY(describe_tensor(&plan->bias, CUDNN_DATA_FLOAT, &bias));
    DDPI_CUDNN_TRY(cudnnCreateFilterDescriptor(&plan->weights));
    DDPI_CUDNN_TRY(cudnnSetFilter4dDescriptor(plan->weights, type, CUDNN_TENSOR_NHWC, (int)w[0],
                                              (int)w[1], (int)w[2], (int)w[3]));
    return describe_conv(device, plan, &plan->base.base.desc.u.conv2d);
}

static void make_scratch(ddpi_cuda_conv *plan)
{
    size_t bytes = 0, work = 0;
    if (!plan->from_src.same) {
        (void)ddpi_cuda_take(&bytes, ddpi_cuda_converted_bytes(&plan->from_src));
        plan->convert_at = ddpi_cuda_take(&bytes, ddpi_cuda_conversion_bytes(&plan->from_src));
    }
    if (plan->dtype != DDP_F32)
        plan->weights_at = ddpi_cuda_take(&bytes, (size_t)plan->weight_count * sizeof(uint16_t));
    if (plan->base.base.desc.training && plan->has_bias)
        work = ddpi_k_bias_grad_bytes(plan->rows, plan->channels);
    for (int pass = 0; pass < DDPI_CONV_PASSES; pass++)
        if (plan->work_bytes[pass] > work)
            work = plan->work_bytes[pass];
    plan->work_at = ddpi_cuda_take(&bytes, work);
    plan->base.base.scratch_bytes = bytes;
}

static void name_it(ddpi_cuda_conv *plan)
{
    ddp_op_plan *op = &plan->base.base;
    char *name = op->impl;
    int used = snprintf(name, sizeof op->impl, "cudnn%s:fwd%d%s", ddpi_cuda_type_mark(plan->dtype),
                        plan->algo[DDPI_CONV_FORWARD], plan->fused ? FUSED_MARK : "");
    if (op->desc.training)
        used += snprintf(name + used, sizeof op->impl - (size_t)used, ":filter%d",
                         plan->algo[DDPI_CONV_WEIGHTS]);
    if (op->desc.training && op->desc.need_diff_src)
        snprintf(name + used, sizeof op->impl - (size_t)used, ":data%d",
                 plan->algo[DDPI_CONV_DATA]);
}

static ddp_status fill(ddpi_cuda_device *device, ddpi_cuda_conv *plan)
{
    ddp_op_plan *op = &plan->base.base;
    ddp_shape dst, weights;
    DDP_TRY(ddp_op_infer(&op->desc, &op->src->shape, &dst, &weights));
    plan->has_bias = op->desc.u.conv2d.bias;
    plan->relu = op->desc.u.conv2d.relu;
    plan->dtype = op->desc.compute;
    plan->rows = dst.dims[0] * dst.dims[2] * dst.dims[3];
    plan->channels = dst.dims[1];
    plan->weight_count = ddp_shape_count(&weights);
    plan->from_src = ddpi_cuda_conversion_of(op->src, true, plan->dtype);
    plan->to_diff_src = ddpi_cuda_reversed(&plan->from_src);
    DDP_TRY(ddpi_cuda_layout_create(&device->base, &dst, true, plan->dtype, &op->dst));
    DDP_TRY(ddpi_cuda_layout_create(&device->base, &weights, true, DDP_F32, &op->weights));
    DDP_TRY(describe(device, plan, &dst, &weights));
    DDP_TRY(ddpi_cuda_conv_choose(device, plan));
    /* Without a relu, cuDNN adds a bias in this algorithm only. */
    plan->fused = plan->dtype == DDP_F32 && plan->has_bias &&
                  (plan->relu || plan->algo[DDPI_CONV_FORWARD] ==
                                     CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);
    make_scratch(plan);
    name_it(plan);
    return DDP_OK;
}

ddp_status ddpi_cuda_conv_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                               ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {conv_run_pass, conv_destroy};
    ddpi_cuda_plan *base;
    (void)weights; /* there is but one layout for them */
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof(ddpi_cuda_conv), &base));
    const ddp_status st = fill(device, (ddpi_cuda_conv *)base);
    if (st != DDP_OK) {
        ddpi_cuda_plan_free(base);
        return st;
    }
    *plan_out = &base->base;
    return DDP_OK;
}
