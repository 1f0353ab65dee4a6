/* cpu_conv_direct.c - convolution plans as oneDNN's direct convolutions, in its blocked layouts.
 *
 * The library chooses the layouts of the forward pass; the weights' is kept by later plans. Each
 * pass is one primitive; an operand that it wants in another layout than the plan's is converted in
 * scratch memory (typically the weights in backward data). */
#include <stdio.h>

#include "device/cpu/cpu_impl.h"

#define PASSES 3

typedef struct direct_pass {
    ddpi_prim *prim; /* NULL: this plan has no such pass */
    ddpi_operand operand[3];
    size_t converter, library; /* offsets in scratch memory */
} direct_pass;

typedef struct conv_direct_plan {
    ddpi_cpu_plan base;
    direct_pass pass[PASSES];
} conv_direct_plan;

/* ---- running ---- */

static ddp_status run_pass(const direct_pass *pass, void *const *user, void *bias, char *scratch)
{
    void *pointers[DDPI_CONV_OPERANDS] = {[DDPI_CONV_BIAS] = bias};
    for (int i = 0; i < 3; i++)
        DDP_TRY(ddpi_operand_begin(&pass->operand[i], user[i], scratch, scratch + pass->converter,
                                   &pointers[i]));
    DDP_TRY(ddpi_prim_run(pass->prim, pointers, scratch + pass->library));
    for (int i = 0; i < 3; i++)
        DDP_TRY(ddpi_operand_end(&pass->operand[i], user[i], scratch, scratch + pass->converter));
    return DDP_OK;
}

static ddp_status conv_direct_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const conv_direct_plan *plan = (conv_direct_plan *)base;
    const direct_pass *which = &plan->pass[pass];
    void *user[3] = {(void *)args->src, (void *)args->weights, args->diff_dst};
    void *bias = NULL;
    if (pass == DDP_PASS_FORWARD) {
        user[DDPI_CONV_DST] = args->dst;
        bias = (void *)args->bias;
        base->masked = NULL;
        return run_pass(which, user, bias, args->scratch);
    }
    if (base->base.desc.u.conv2d.relu && base->masked != args->diff_dst)
        ddpi_relu_mask(base->base.device->opts.threads, args->diff_dst, args->dst,
                       base->base.dst->bytes / sizeof(float));
    base->masked = pass == DDP_PASS_BACKWARD_WEIGHTS ? args->diff_dst : NULL;
    if (pass == DDP_PASS_BACKWARD_WEIGHTS) {
        user[DDPI_CONV_WEIGHTS] = args->diff_weights;
        bias = args->diff_bias;
    } else {
        user[DDPI_CONV_SRC] = args->diff_src;
    }
    return run_pass(which, user, bias, args->scratch);
}

static void conv_direct_destroy(ddpi_cpu_plan *base)
{
    conv_direct_plan *plan = (conv_direct_plan *)base;
    for (int p = 0; p < PASSES; p++) {
        for (int i = 0; i < 3; i++)
            ddpi_operand_destroy(&plan->pass[p].operand[i]);
        ddpi_prim_destroy(plan->pass[p].prim);
    }
}

/* ---- creation ---- */

/* "any" descriptors of the three operands, and those of the forward primitive once it is there. */
typedef struct direct_maker {
    const ddpi_plan_parts *parts;
    conv_direct_plan *plan;
    ddpi_md *any[3], *forward[3];
} direct_maker;

static ddp_status make_prim(const direct_maker *maker, ddp_op_pass pass, const ddpi_md *const md[3])
{
    conv_direct_plan *plan = maker->plan;
    const ddpi_conv_request request = {
        .pass = pass,
        .conv = &maker->parts->desc->u.conv2d,
        .training = maker->parts->desc->training,
        .md = {md[0], md[1], md[2]},
        .forward = pass == DDP_PASS_FORWARD ? NULL : plan->pass[DDP_PASS_FORWARD].prim,
    };
    return ddpi_prim_conv(ddpi_cpu_of(maker->parts->device)->dnnl, &request,
                          &plan->pass[pass].prim);
}

/* Layouts as wanted if the library can, else as the library likes. */
static ddp_status make_prim_or_any(const direct_maker *maker, ddp_op_pass pass,
                                   const ddpi_md *const md[3])
{
    const ddpi_md *const any[3] = {maker->any[0], maker->any[1], maker->any[2]};
    const ddp_status st = make_prim(maker, pass, md);
    return st == DDP_ERR_UNSUPPORTED ? make_prim(maker, pass, any) : st;
}

static ddp_status make_operands(const direct_maker *maker, ddp_op_pass pass)
{
    static const int written[PASSES] = {DDPI_CONV_DST, DDPI_CONV_SRC, DDPI_CONV_WEIGHTS};
    direct_pass *which = &maker->plan->pass[pass];
    ddp_op_plan *plan = &maker->plan->base.base;
    ddp_layout *const user[3] = {plan->src, plan->weights, plan->dst};
    size_t bytes = 0, converter_bytes = 0;
    for (int i = 0; i < 3; i++) {
        ddpi_md *md;
        ddp_layout *kernel;
        DDP_TRY(ddpi_prim_md(which->prim, i, &md));
        DDP_TRY(ddpi_layout_of_md(plan->device, &user[i]->shape, md, &kernel));
        const ddp_status st =
            ddpi_operand_create(user[i], kernel, i == written[pass], &bytes, &which->operand[i]);
        ddp_layout_unref(kernel);
        DDP_TRY(st);
        converter_bytes = (size_t)ddpi_max((int64_t)converter_bytes,
                                           (int64_t)ddpi_operand_scratch_bytes(&which->operand[i]));
    }
    which->converter = ddpi_take(&bytes, converter_bytes);
    which->library = ddpi_take(&bytes, ddpi_prim_scratch_bytes(which->prim));
    plan->scratch_bytes = (size_t)ddpi_max((int64_t)plan->scratch_bytes, (int64_t)bytes);
    return DDP_OK;
}

/* A layout of the plan from the forward primitive. */
static ddp_status adopt_layout(const direct_maker *maker, int index, const ddp_shape *shape,
                               ddp_layout **layout_out)
{
    ddpi_md *md;
    DDP_TRY(ddpi_prim_md(maker->plan->pass[DDP_PASS_FORWARD].prim, index, &md));
    return ddpi_layout_of_md(maker->parts->device, shape, md, layout_out);
}

static ddp_status make_forward(direct_maker *maker)
{
    const ddpi_plan_parts *parts = maker->parts;
    ddp_op_plan *plan = &maker->plan->base.base;
    const ddpi_md *const md[3] = {maker->any[0],
                                  parts->weights != NULL ? ddpi_cpu_layout_of(parts->weights)->md
                                                         : maker->any[1],
                                  maker->any[2]};
    DDP_TRY(make_prim_or_any(maker, DDP_PASS_FORWARD, md));
    DDP_TRY(adopt_layout(maker, DDPI_CONV_DST, &parts->dst_shape, &plan->dst));
    if (parts->weights != NULL)
        plan->weights = ddp_layout_ref(parts->weights);
    else
        DDP_TRY(adopt_layout(maker, DDPI_CONV_WEIGHTS, &parts->weight_shape, &plan->weights));
    for (int i = 0; i < 3; i++)
        DDP_TRY(ddpi_prim_md(maker->plan->pass[DDP_PASS_FORWARD].prim, i, &maker->forward[i]));
    return make_operands(maker, DDP_PASS_FORWARD);
}

static ddp_status make_passes(direct_maker *maker)
{
    const ddp_op_desc *desc = maker->parts->desc;
    const ddpi_plan_parts *parts = maker->parts;
    DDP_TRY(ddpi_md_create(&parts->src->shape, DDP_F32, true, &maker->any[0]));
    DDP_TRY(ddpi_md_create(&parts->weight_shape, DDP_F32, true, &maker->any[1]));
    DDP_TRY(ddpi_md_create(&parts->dst_shape, DDP_F32, true, &maker->any[2]));
    DDP_TRY(make_forward(maker));
    if (!desc->training)
        return DDP_OK;
    /* The weights stay free: the library's fast backward kernels want them in another order, and
     * reordering them is cheap. */
    const ddpi_md *const md[3] = {maker->forward[0], maker->any[1], maker->forward[2]};
    DDP_TRY(make_prim_or_any(maker, DDP_PASS_BACKWARD_WEIGHTS, md));
    DDP_TRY(make_operands(maker, DDP_PASS_BACKWARD_WEIGHTS));
    if (!desc->need_diff_src)
        return DDP_OK;
    DDP_TRY(make_prim_or_any(maker, DDP_PASS_BACKWARD_DATA, md));
    return make_operands(maker, DDP_PASS_BACKWARD_DATA);
}

ddp_status ddpi_conv_direct_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {conv_direct_run, conv_direct_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(conv_direct_plan), &base));
    conv_direct_plan *plan = (conv_direct_plan *)base;
    direct_maker maker = {.parts = parts, .plan = plan};
    const ddp_status st = make_passes(&maker);
    for (int i = 0; i < 3; i++) {
        ddpi_md_destroy(maker.any[i]);
        ddpi_md_destroy(maker.forward[i]);
    }
    if (st != DDP_OK) {
        ddpi_plan_free(base);
        return st;
    }
    snprintf(base->base.impl, sizeof base->base.impl, "direct:%s",
             ddpi_prim_impl(plan->pass[DDP_PASS_FORWARD].prim));
    *plan_out = base;
    return DDP_OK;
}
