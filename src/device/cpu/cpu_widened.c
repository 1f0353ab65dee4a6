/* cpu_widened.c - bf16 plans for what the library does not compute in bf16: an f32 plan between
 * conversions.
 *
 * Operands are widened in scratch memory before a pass and its result is rounded after it, so sums
 * are those of the f32 plan. The f32 plan has no relu: it is applied here, to the f32 result, and
 * the gradient is masked in bf16, in place, where its owner sees it. */
#include <stdio.h>

#include "device/cpu/bf16.h"
#include "device/cpu/cpu_impl.h"

typedef struct widened_plan {
    ddpi_cpu_plan base;
    ddpi_cpu_plan *inner;
    bool relu;
    ddpi_operand src, diff_src, dst, diff_dst; /* to and from the f32 plan's */
    size_t converter, inner_scratch;           /* offsets in scratch memory */
} widened_plan;

/* ---- running ---- */

static ddp_status forward(const widened_plan *plan, const ddp_op_args *args)
{
    char *scratch = args->scratch, *converter = scratch + plan->converter;
    ddp_op_args inner = *args;
    void *src;
    DDP_TRY(ddpi_operand_begin(&plan->src, args->src, scratch, converter, &src));
    DDP_TRY(ddpi_operand_begin(&plan->dst, args->dst, scratch, converter, &inner.dst));
    inner.src = src;
    inner.scratch = scratch + plan->inner_scratch;
    DDP_TRY(plan->inner->op->run(plan->inner, DDP_PASS_FORWARD, &inner));
    if (plan->relu)
        ddpi_relu_mask(plan->base.base.device->opts.threads, inner.dst, inner.dst,
                       ddpi_layout_elements(plan->inner->base.dst));
    return ddpi_operand_end(&plan->dst, args->dst, scratch, converter);
}

static ddp_status backward(const widened_plan *plan, ddp_op_pass pass, const ddp_op_args *args)
{
    const bool data = pass == DDP_PASS_BACKWARD_DATA;
    char *scratch = args->scratch, *converter = scratch + plan->converter;
    ddp_op_args inner = *args;
    void *src = NULL;
    DDP_TRY(
        ddpi_operand_begin(&plan->diff_dst, args->diff_dst, scratch, converter, &inner.diff_dst));
    if (data)
        DDP_TRY(ddpi_operand_begin(&plan->diff_src, args->diff_src, scratch, converter,
                                   &inner.diff_src));
    else
        DDP_TRY(ddpi_operand_begin(&plan->src, args->src, scratch, converter, &src));
    inner.src = src;
    inner.scratch = scratch + plan->inner_scratch;
    DDP_TRY(plan->inner->op->run(plan->inner, pass, &inner));
    return data ? ddpi_operand_end(&plan->diff_src, args->diff_src, scratch, converter) : DDP_OK;
}

static ddp_status widened_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const widened_plan *plan = (widened_plan *)base;
    if (pass == DDP_PASS_FORWARD) {
        base->masked = NULL;
        return forward(plan, args);
    }
    if (plan->relu && base->masked != args->diff_dst)
        ddpi_bf16_relu_mask(base->base.device->opts.threads, args->diff_dst, args->dst,
                            ddpi_layout_elements(base->base.dst));
    base->masked = pass == DDP_PASS_BACKWARD_WEIGHTS ? args->diff_dst : NULL;
    return backward(plan, pass, args);
}

static void widened_destroy(ddpi_cpu_plan *base)
{
    widened_plan *plan = (widened_plan *)base;
    ddpi_operand *const operands[] = {&plan->src, &plan->diff_src, &plan->dst, &plan->diff_dst};
    for (int i = 0; i < 4; i++)
        ddpi_operand_destroy(operands[i]);
    if (plan->inner != NULL)
        ddpi_plan_free(plan->inner);
}

/* ---- creation ---- */

static ddp_status make_inner(widened_plan *plan, const ddpi_plan_parts *parts,
                             ddpi_plan_creator create)
{
    ddpi_plan_parts f32 = *parts;
    ddp_op_desc desc = *parts->desc;
    desc.compute = DDP_F32;
    bool *relu = desc.kind == DDP_OP_CONV2D   ? &desc.u.conv2d.relu
                 : desc.kind == DDP_OP_LINEAR ? &desc.u.linear.relu
                                              : NULL;
    if (relu != NULL) {
        plan->relu = *relu;
        *relu = false;
    }
    f32.desc = &desc;
    DDP_TRY(ddpi_layout_retype(parts->src, DDP_F32, &f32.src));
    const ddp_status st = create(&f32, &plan->inner);
    ddp_layout_unref(f32.src);
    return st;
}

static ddp_status make_operands(widened_plan *plan, const ddpi_plan_parts *parts)
{
    ddp_op_plan *base = &plan->base.base, *inner = &plan->inner->base;
    ddpi_operand *const operands[] = {&plan->src, &plan->diff_src, &plan->dst, &plan->diff_dst};
    size_t bytes = 0, converter = 0;
    DDP_TRY(ddpi_operand_create(base->src, inner->src, false, &bytes, &plan->src));
    DDP_TRY(ddpi_operand_create(base->dst, inner->dst, true, &bytes, &plan->dst));
    if (parts->desc->training)
        DDP_TRY(ddpi_operand_create(base->dst, inner->dst, false, &bytes, &plan->diff_dst));
    if (parts->desc->need_diff_src)
        DDP_TRY(ddpi_operand_create(base->src, inner->src, true, &bytes, &plan->diff_src));
    for (int i = 0; i < 4; i++)
        if (ddpi_operand_scratch_bytes(operands[i]) > converter)
            converter = ddpi_operand_scratch_bytes(operands[i]);
    plan->converter = ddpi_take(&bytes, converter);
    plan->inner_scratch = ddpi_take(&bytes, inner->scratch_bytes);
    base->scratch_bytes = bytes;
    return DDP_OK;
}

ddp_status ddpi_widened_create(const ddpi_plan_parts *parts, ddpi_plan_creator create,
                               ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {widened_run, widened_destroy};
    ddpi_cpu_plan *base;
    ddp_status st;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(widened_plan), &base));
    widened_plan *plan = (widened_plan *)base;
    DDP_TRY_GOTO(st, make_inner(plan, parts, create), err_plan);
    base->base.weights = ddp_layout_ref(plan->inner->base.weights);
    base->base.workspace_bytes = plan->inner->base.workspace_bytes;
    DDP_TRY_GOTO(st, ddpi_layout_retype(plan->inner->base.dst, DDP_BF16, &base->base.dst),
                 err_plan);
    DDP_TRY_GOTO(st, make_operands(plan, parts), err_plan);
    snprintf(base->base.impl, sizeof base->base.impl, "widened:%.48s", plan->inner->base.impl);
    *plan_out = base;
    return DDP_OK;
err_plan:
    ddpi_plan_free(base);
    return st;
}
