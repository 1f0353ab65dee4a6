/* cuda_linear.c - fully connected layers over cuBLASLt.
 *
 * In the library's columns-first terms the result [n][out] is an out x n matrix: weights times
 * source, with bias and relu in the product's epilogue. With bf16 and f16 the weights (and the
 * bias) are rounded into scratch memory before each product; gradients of weights come back in f32.
 * The gradient of the bias is a kernel that also applies the relu's mask. */
#include <stdio.h>

#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

typedef struct linear_plan {
    ddpi_cuda_plan base;
    int64_t n, in, out;
    bool bias, relu;
    ddp_dtype dtype; /* of what is multiplied, and of dst */
    ddpi_cuda_conversion src, diff_src;
    ddpi_cuda_matmul forward, backward_data, backward_weights;
    size_t src_at, convert_at, weights_at, bias_at, work_at; /* in scratch */
    const void *masked;                                      /* diff_dst that has been masked */
} linear_plan;

typedef struct linear_run {
    const linear_plan *plan;
    ddp_stream *stream;
    const ddp_op_args *args;
    char *scratch;
} linear_run;

/* ---- operands ---- */

static ddp_status source(const linear_run *run, const void **src_out)
{
    const linear_plan *plan = run->plan;
    *src_out = run->args->src;
    if (plan->src.same)
        return DDP_OK;
    *src_out = run->scratch + plan->src_at;
    return ddpi_cuda_convert(&plan->src, run->stream, run->args->src, run->scratch + plan->src_at,
                             run->scratch + plan->convert_at);
}

/* An f32 operand in the type that is multiplied. */
static ddp_status rounded(const linear_run *run, const void *values, size_t at, int64_t count,
                          const void **values_out)
{
    const ddpi_k_cast_args args = {values, run->scratch + at, count, 1.0f, run->plan->dtype, false};
    *values_out = values;
    if (run->plan->dtype == DDP_F32)
        return DDP_OK;
    *values_out = args.dst;
    return DDPI_CUDA_CHECK(ddpi_k_cast(ddpi_cuda_stream(run->stream), &args));
}

static ddp_status weights(const linear_run *run, const void **weights_out)
{
    return rounded(run, run->args->weights, run->plan->weights_at, run->plan->in * run->plan->out,
                   weights_out);
}

/* ---- passes ---- */

static ddp_status forward(const linear_run *run)
{
    ddpi_cuda_matmul_args args = {.d = run->args->dst,
                                  .workspace = run->scratch + run->plan->work_at};
    DDP_TRY(weights(run, &args.a));
    DDP_TRY(source(run, &args.b));
    if (run->plan->bias)
        DDP_TRY(rounded(run, run->args->bias, run->plan->bias_at, run->plan->out, &args.bias));
    return ddpi_cuda_matmul_run(&run->plan->forward, run->stream, &args);
}

static ddp_status backward_data(const linear_run *run)
{
    const linear_plan *plan = run->plan;
    void *diff_src = plan->src.same ? run->args->diff_src : run->scratch + plan->src_at;
    ddpi_cuda_matmul_args args = {
        .b = run->args->diff_dst, .d = diff_src, .workspace = run->scratch + plan->work_at};
    DDP_TRY(weights(run, &args.a));
    DDP_TRY(ddpi_cuda_matmul_run(&plan->backward_data, run->stream, &args));
    if (plan->src.same)
        return DDP_OK;
    return ddpi_cuda_convert(&plan->diff_src, run->stream, diff_src, run->args->diff_src,
                             run->scratch + plan->convert_at);
}

static ddp_status backward_weights(const linear_run *run)
{
    ddpi_cuda_matmul_args args = {.b = run->args->diff_dst,
                                  .d = run->args->diff_weights,
                                  .workspace = run->scratch + run->plan->work_at};
    DDP_TRY(source(run, &args.a));
    return ddpi_cuda_matmul_run(&run->plan->backward_weights, run->stream, &args);
}

static ddp_status linear_run_pass(ddpi_cuda_plan *base, ddp_op_pass pass, ddp_stream *stream,
                                  const ddp_op_args *args)
{
    linear_plan *plan = (linear_plan *)base;
    const linear_run run = {plan, stream, args, ddpi_cuda_scratch(args)};
    const bool of_weights = pass == DDP_PASS_BACKWARD_WEIGHTS;
    if (pass == DDP_PASS_FORWARD) {
        plan->masked = NULL;
        return forward(&run);
    }
    const ddpi_cuda_gradient gradient = {
        .diff_dst = args->diff_dst,
        .value = plan->relu && plan->masked != args->diff_dst ? args->dst : NULL,
        .diff_bias = of_weights && plan->bias ? args->diff_bias : NULL,
        .partials = run.scratch + plan->work_at,
        .rows = plan->n,
        .channels = plan->out,
        .dtype = plan->dtype};
    DDP_TRY(ddpi_cuda_start_gradient(&gradient, stream));
    plan->masked = of_weights ? args->diff_dst : NULL;
    return of_weights ? backward_weights(&run) : backward_data(&run);
}

static void linear_destroy(ddpi_cuda_plan *base)
{
    linear_plan *plan = (linear_plan *)base;
    ddpi_cuda_matmul_destroy(&plan->forward);
    ddpi_cuda_matmul_destroy(&plan->backward_data);
    ddpi_cuda_matmul_destroy(&plan->backward_weights);
}

/* ---- creation ---- */

static ddp_status make_products(linear_plan *plan, ddpi_cuda_device *device)
{
    const ddp_op_desc *desc = &plan->base.base.desc;
    const int64_t n = plan->n, in = plan->in, out = plan->out;
    const ddpi_cuda_matmul_desc forward = {.m = out,
                                           .n = n,
                                           .k = in,
                                           .trans_a = true,
                                           .bias = plan->bias,
                                           .relu = plan->relu,
                                           .from = plan->dtype,
                                           .to = plan->dtype};
    const ddpi_cuda_matmul_desc data = {
        .m = in, .n = n, .k = out, .from = plan->dtype, .to = plan->dtype};
    const ddpi_cuda_matmul_desc weights = {
        .m = in, .n = out, .k = n, .trans_b = true, .from = plan->dtype, .to = DDP_F32};
    DDP_TRY(ddpi_cuda_matmul_create(device, &forward, &plan->forward));
    if (!desc->training)
        return DDP_OK;
    DDP_TRY(ddpi_cuda_matmul_create(device, &weights, &plan->backward_weights));
    return desc->need_diff_src ? ddpi_cuda_matmul_create(device, &data, &plan->backward_data)
                               : DDP_OK;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void make_scratch(linear_plan *plan)
{
    size_t bytes = 0, work = plan->forward.workspace_bytes;
    if (!plan->src.same)
        plan->src_at = ddpi_cuda_take(&bytes, ddpi_cuda_converted_bytes(&plan->src));
    plan->convert_at = ddpi_cuda_take(&bytes, ddpi_cuda_conversion_bytes(&plan->src));
    if (plan->dtype != DDP_F32) {
        plan->weights_at = ddpi_cuda_take(&bytes, (size_t)(plan->in * plan->out) * 2);
        plan->bias_at = ddpi_cuda_take(&bytes, (size_t)plan->out * 2);
    }
    work = largest(work, plan->backward_data.workspace_bytes);
    work = largest(work, plan->backward_weights.workspace_bytes);
    if (plan->base.base.desc.training && plan->bias)
        work = largest(work, ddpi_k_bias_grad_bytes(plan->n, plan->out));
    plan->work_at = ddpi_cuda_take(&bytes, work);
    plan->base.base.scratch_bytes = bytes;
}

static ddp_status fill(linear_plan *plan, ddpi_cuda_device *device)
{
    ddp_op_plan *op = &plan->base.base;
    ddp_shape dst, weights;
    DDP_TRY(ddp_op_infer(&op->desc, &op->src->shape, &dst, &weights));
    plan->n = dst.dims[0];
    plan->out = dst.dims[1];
    plan->in = weights.dims[1];
    plan->bias = op->desc.u.linear.bias;
    plan->relu = op->desc.u.linear.relu;
    plan->dtype = op->desc.compute;
    plan->src = ddpi_cuda_conversion_of(op->src, false, plan->dtype);
    plan->diff_src = ddpi_cuda_reversed(&plan->src);
    DDP_TRY(ddpi_cuda_layout_create(&device->base, &dst, false, plan->dtype, &op->dst));
    DDP_TRY(ddpi_cuda_layout_plain(&device->base, &weights, &op->weights));
    DDP_TRY(make_products(plan, device));
    make_scratch(plan);
    snprintf(op->impl, sizeof op->impl, "cublaslt%s%s", ddpi_cuda_type_mark(plan->dtype),
             plan->dtype == DDP_F32 && device->base.opts.tf32 ? ":tf32" : "");
    return DDP_OK;
}

ddp_status ddpi_cuda_linear_plan(ddpi_cuda_device *device, const ddp_op_desc *desc, ddp_layout *src,
                                 ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_cuda_plan_ops ops = {linear_run_pass, linear_destroy};
    ddpi_cuda_plan *base;
    (void)weights; /* there is but one layout for them */
    DDP_TRY(ddpi_cuda_plan_alloc(device, desc, src, &ops, sizeof(linear_plan), &base));
    const ddp_status st = fill((linear_plan *)base, device);
    if (st != DDP_OK) {
        ddpi_cuda_plan_free(base);
        return st;
    }
    *plan_out = &base->base;
    return DDP_OK;
}
