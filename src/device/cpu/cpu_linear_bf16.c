/* cpu_linear_bf16.c - fully connected layers in bf16, as oneDNN's inner products of rows.
 *
 * Everything is row-major, so weights lie as an f32 plan's do: they are rounded in place into
 * scratch memory in each pass that needs them, and their f32 gradient is written where it belongs.
 * The library's blocked weights are some 10 to 20 percent faster forward, which reordering them in
 * every pass would eat up. */
#include <stdio.h>

#include "device/cpu/bf16.h"
#include "device/cpu/cpu_impl.h"

#define PASSES 3

typedef struct linear_bf16_plan {
    ddpi_cpu_plan base;
    ddpi_prim *prim[PASSES];            /* NULL: this plan has no such pass */
    ddpi_operand src, diff_src;         /* to rows of bf16 */
    size_t weights, converter, library; /* offsets in scratch memory */
} linear_bf16_plan;

/* ---- running ---- */

static void *rounded_weights(const linear_bf16_plan *plan, const ddp_op_args *args)
{
    char *memory = (char *)args->scratch + plan->weights;
    const ddp_layout *layout = plan->base.base.weights;
    ddpi_bf16_narrow(layout->device->opts.threads, (uint16_t *)(void *)memory, args->weights,
                     ddpi_layout_elements(layout));
    return memory;
}

static ddp_status run_prim(const linear_bf16_plan *plan, ddp_op_pass pass, const ddp_op_args *args)
{
    char *scratch = args->scratch, *converter = scratch + plan->converter;
    void *pointers[DDPI_CONV_OPERANDS] = {[DDPI_CONV_DST] = args->diff_dst};
    if (pass == DDP_PASS_FORWARD) {
        pointers[DDPI_CONV_DST] = args->dst;
        pointers[DDPI_CONV_BIAS] = (void *)args->bias;
    }
    if (pass == DDP_PASS_BACKWARD_WEIGHTS) {
        pointers[DDPI_CONV_WEIGHTS] = args->diff_weights;
        pointers[DDPI_CONV_BIAS] = args->diff_bias;
    } else {
        pointers[DDPI_CONV_WEIGHTS] = rounded_weights(plan, args);
    }
    if (pass == DDP_PASS_BACKWARD_DATA)
        DDP_TRY(ddpi_operand_begin(&plan->diff_src, args->diff_src, scratch, converter,
                                   &pointers[DDPI_CONV_SRC]));
    else
        DDP_TRY(ddpi_operand_begin(&plan->src, args->src, scratch, converter,
                                   &pointers[DDPI_CONV_SRC]));
    DDP_TRY(ddpi_prim_run(plan->prim[pass], pointers, scratch + plan->library));
    return pass == DDP_PASS_BACKWARD_DATA
               ? ddpi_operand_end(&plan->diff_src, args->diff_src, scratch, converter)
               : DDP_OK;
}

static ddp_status linear_bf16_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    if (pass == DDP_PASS_FORWARD) {
        base->masked = NULL;
    } else {
        if (base->base.desc.u.linear.relu && base->masked != args->diff_dst)
            ddpi_bf16_relu_mask(base->base.device->opts.threads, args->diff_dst, args->dst,
                                ddpi_layout_elements(base->base.dst));
        base->masked = pass == DDP_PASS_BACKWARD_WEIGHTS ? args->diff_dst : NULL;
    }
    return run_prim((linear_bf16_plan *)base, pass, args);
}

static void linear_bf16_destroy(ddpi_cpu_plan *base)
{
    linear_bf16_plan *plan = (linear_bf16_plan *)base;
    for (int p = 0; p < PASSES; p++)
        ddpi_prim_destroy(plan->prim[p]);
    ddpi_operand_destroy(&plan->src);
    ddpi_operand_destroy(&plan->diff_src);
}

/* ---- creation ---- */

/* Rows of the source, the weights (of both types), and the result. */
typedef struct row_mds {
    ddpi_md *src, *weights, *gradient, *dst;
} row_mds;

static ddp_status make_prims(linear_bf16_plan *plan, const ddpi_plan_parts *parts,
                             const row_mds *md)
{
    const ddp_op_desc *desc = parts->desc;
    for (int pass = 0; pass < PASSES; pass++) {
        if (pass != DDP_PASS_FORWARD && !desc->training)
            break;
        if (pass == DDP_PASS_BACKWARD_DATA && !desc->need_diff_src)
            continue;
        const ddpi_conv_request request = {
            .pass = (ddp_op_pass)pass,
            .linear = &desc->u.linear,
            .md = {md->src, pass == DDP_PASS_BACKWARD_WEIGHTS ? md->gradient : md->weights,
                   md->dst},
            .forward = pass == DDP_PASS_FORWARD ? NULL : plan->prim[DDP_PASS_FORWARD],
        };
        DDP_TRY(ddpi_prim_conv(ddpi_cpu_of(parts->device)->dnnl, &request, &plan->prim[pass]));
    }
    return DDP_OK;
}

static ddp_status make_all_prims(linear_bf16_plan *plan, const ddpi_plan_parts *parts)
{
    const ddp_shape src = {2, {parts->dst_shape.dims[0], parts->weight_shape.dims[1]}};
    row_mds md = {0};
    ddp_status st = ddpi_md_create(&src, DDP_BF16, false, &md.src);
    if (st == DDP_OK)
        st = ddpi_md_create(&parts->weight_shape, DDP_BF16, false, &md.weights);
    if (st == DDP_OK)
        st = ddpi_md_create(&parts->weight_shape, DDP_F32, false, &md.gradient);
    if (st == DDP_OK)
        st = ddpi_md_create(&parts->dst_shape, DDP_BF16, false, &md.dst);
    if (st == DDP_OK)
        st = make_prims(plan, parts, &md);
    ddpi_md_destroy(md.src);
    ddpi_md_destroy(md.weights);
    ddpi_md_destroy(md.gradient);
    ddpi_md_destroy(md.dst);
    return st;
}

static ddp_status make_scratch(linear_bf16_plan *plan, const ddpi_plan_parts *parts)
{
    size_t bytes = 0, library = 0;
    DDP_TRY(ddpi_source_operands(parts, DDP_BF16, &bytes, &plan->src, &plan->diff_src));
    plan->weights = ddpi_take(&bytes, ddpi_layout_elements(plan->base.base.weights) * 2);
    plan->converter = ddpi_take_converter(&bytes, &plan->src, &plan->diff_src);
    for (int pass = 0; pass < PASSES; pass++)
        if (plan->prim[pass] != NULL && ddpi_prim_scratch_bytes(plan->prim[pass]) > library)
            library = ddpi_prim_scratch_bytes(plan->prim[pass]);
    plan->library = ddpi_take(&bytes, library);
    plan->base.base.scratch_bytes = bytes;
    return DDP_OK;
}

ddp_status ddpi_linear_bf16_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {linear_bf16_run, linear_bf16_destroy};
    ddpi_cpu_plan *base;
    ddp_status st;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(linear_bf16_plan), &base));
    linear_bf16_plan *plan = (linear_bf16_plan *)base;
    DDP_TRY_GOTO(st, ddpi_layout_rows(parts->device, &parts->dst_shape, DDP_BF16, &base->base.dst),
                 err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->weight_shape, &base->base.weights),
                 err_plan);
    DDP_TRY_GOTO(st, make_all_prims(plan, parts), err_plan);
    DDP_TRY_GOTO(st, make_scratch(plan, parts), err_plan);
    snprintf(base->base.impl, sizeof base->base.impl, "inner:%.48s",
             ddpi_prim_impl(plan->prim[DDP_PASS_FORWARD]));
    *plan_out = base;
    return DDP_OK;
err_plan:
    ddpi_plan_free(base);
    return st;
}
