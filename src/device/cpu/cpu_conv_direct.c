/* cpu_conv_direct.c - convolution plans of oneDNN's own primitives, in its blocked layouts.
 *
 * The library chooses the layouts of the direct forward pass, and they are the plan's; the weights'
 * is kept by later plans. Each pass is one primitive, direct or, for 3x3 kernels of stride 1 and
 * where parts->winograd asks for it, Winograd's F(4x4, 3x3), which multiplies up to 4 times less
 * and works on the same layouts. Its transforms amplify roundings: with 64 to 512 channels its
 * results differ from direct ones by 4e-7 to 1.2e-6 in the L2 norm, and none by more than 1.3e-5 of
 * their root mean square. An operand that a primitive wants in another layout than the plan's is
 * converted in scratch memory (typically the weights in backward data). With bf16 the f32 weights
 * are rounded there in every pass. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/bf16.h"
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
    unsigned winograd; /* bit p: pass p is one */
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

static void mask_gradient(const ddp_op_plan *plan, const ddp_op_args *args)
{
    const int threads = plan->device->opts.threads;
    const size_t count = ddpi_layout_elements(plan->dst);
    if (plan->dst->dtype == DDP_BF16)
        ddpi_bf16_relu_mask(threads, args->diff_dst, args->dst, count);
    else
        ddpi_relu_mask(threads, args->diff_dst, args->dst, count);
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
        mask_gradient(&base->base, args);
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

/* "any" descriptors of the operands, and those of the forward primitive once it is there. */
typedef struct direct_maker {
    const ddpi_plan_parts *parts;
    conv_direct_plan *plan;
    ddpi_md *any[3], *any_gradient; /* the weights' gradient is always f32 */
    ddpi_md *forward[3];
    ddpi_prim *hint; /* the direct forward primitive, where a Winograd one stands in its place */
} direct_maker;

/* The library's plain loops, a thousand times slower than a kernel. It takes them for bf16 layouts
 * without one, such as the gradient of weights of one input channel in the forward pass's blocks.
 */
static bool is_plain_bf16(const direct_maker *maker, const ddpi_prim *prim)
{
    return maker->parts->desc->compute == DDP_BF16 && strncmp(ddpi_prim_impl(prim), "ref", 3) == 0;
}

static ddp_status make_prim(const direct_maker *maker, ddp_op_pass pass, const ddpi_md *const md[3],
                            bool winograd, ddpi_prim **prim_out)
{
    const conv_direct_plan *plan = maker->plan;
    const ddpi_conv_request request = {
        .pass = pass,
        .conv = &maker->parts->desc->u.conv2d,
        .winograd = winograd,
        .md = {md[0], md[1], md[2]},
        .forward = pass == DDP_PASS_FORWARD ? NULL
                   : maker->hint != NULL    ? maker->hint
                                            : plan->pass[DDP_PASS_FORWARD].prim,
    };
    DDP_TRY(ddpi_prim_conv(ddpi_cpu_of(maker->parts->device)->dnnl, &request, prim_out));
    if (!is_plain_bf16(maker, *prim_out))
        return DDP_OK;
    ddpi_prim_destroy(*prim_out);
    *prim_out = NULL;
    return DDP_FAIL(DDP_ERR_UNSUPPORTED, "oneDNN: a convolution pass in bf16: plain loops only");
}

/* Layouts as wanted if the library can, else as the library likes. */
static ddp_status make_prim_or_any(const direct_maker *maker, ddp_op_pass pass,
                                   const ddpi_md *const md[3])
{
    const ddpi_md *const any[3] = {
        maker->any[0], pass == DDP_PASS_BACKWARD_WEIGHTS ? maker->any_gradient : maker->any[1],
        maker->any[2]};
    ddpi_prim **prim = &maker->plan->pass[pass].prim;
    const ddp_status st = make_prim(maker, pass, md, false, prim);
    return st == DDP_ERR_UNSUPPORTED ? make_prim(maker, pass, any, false, prim) : st;
}

/* A Winograd primitive for a pass that shall have one, over the plan's own layouts; none, if the
 * library has none for them. */
static ddp_status try_winograd(const direct_maker *maker, ddp_op_pass pass, ddpi_prim **prim_out)
{
    conv_direct_plan *plan = maker->plan;
    *prim_out = NULL;
    if ((maker->parts->winograd >> pass & 1) == 0 || maker->parts->desc->compute == DDP_BF16)
        return DDP_OK;
    const ddpi_md *const md[3] = {
        maker->forward[0], ddpi_cpu_layout_of(plan->base.base.weights)->md, maker->forward[2]};
    const ddp_status st = make_prim(maker, pass, md, true, prim_out);
    if (st == DDP_ERR_UNSUPPORTED)
        return DDP_OK;
    plan->winograd |= st == DDP_OK ? 1u << pass : 0;
    return st;
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

/* A layout of the plan from a primitive. */
static ddp_status adopt_layout(const direct_maker *maker, ddp_op_pass pass, int index,
                               const ddp_shape *shape, ddp_layout **layout_out)
{
    ddpi_md *md;
    DDP_TRY(ddpi_prim_md(maker->plan->pass[pass].prim, index, &md));
    return ddpi_layout_of_md(maker->parts->device, shape, md, layout_out);
}

static ddp_status make_direct_backward(const direct_maker *maker, ddp_op_pass pass)
{
    /* The weights stay free: the library's fast backward kernels want them in another order, and
     * reordering them is cheap. */
    const ddpi_md *const md[3] = {
        maker->forward[0], pass == DDP_PASS_BACKWARD_WEIGHTS ? maker->any_gradient : maker->any[1],
        maker->forward[2]};
    return make_prim_or_any(maker, pass, md);
}

/* With bf16 the weights lie as their gradient, which is f32: reordering them while they are rounded
 * is cheaper than reordering it. Without a gradient they lie as the forward kernel's. */
static ddp_status adopt_weights(const direct_maker *maker)
{
    const ddp_op_desc *desc = maker->parts->desc;
    const ddp_op_pass from =
        desc->compute == DDP_BF16 && desc->training ? DDP_PASS_BACKWARD_WEIGHTS : DDP_PASS_FORWARD;
    ddp_layout *kernel;
    if (from == DDP_PASS_BACKWARD_WEIGHTS)
        DDP_TRY(make_direct_backward(maker, from));
    DDP_TRY(adopt_layout(maker, from, DDPI_CONV_WEIGHTS, &maker->parts->weight_shape, &kernel));
    const ddp_status st = ddpi_layout_retype(kernel, DDP_F32, &maker->plan->base.base.weights);
    ddp_layout_unref(kernel);
    return st;
}

/* The direct forward primitive, whose layouts are the plan's. Bf16 kernels take their own layout of
 * weights, since these are copied anyway; in others they are slow. */
static ddp_status make_direct_forward(direct_maker *maker)
{
    const ddpi_plan_parts *parts = maker->parts;
    ddp_op_plan *plan = &maker->plan->base.base;
    const bool fixed = parts->weights != NULL && parts->desc->compute != DDP_BF16;
    const ddpi_md *const md[3] = {maker->any[0],
                                  fixed ? ddpi_cpu_layout_of(parts->weights)->md : maker->any[1],
                                  maker->any[2]};
    DDP_TRY(make_prim_or_any(maker, DDP_PASS_FORWARD, md));
    DDP_TRY(adopt_layout(maker, DDP_PASS_FORWARD, DDPI_CONV_DST, &parts->dst_shape, &plan->dst));
    for (int i = 0; i < 3; i++)
        DDP_TRY(ddpi_prim_md(maker->plan->pass[DDP_PASS_FORWARD].prim, i, &maker->forward[i]));
    if (parts->weights == NULL)
        return adopt_weights(maker);
    plan->weights = ddp_layout_ref(parts->weights);
    return DDP_OK;
}

static ddp_status make_forward(direct_maker *maker)
{
    ddpi_prim *winograd, **prim = &maker->plan->pass[DDP_PASS_FORWARD].prim;
    DDP_TRY(make_direct_forward(maker));
    DDP_TRY(try_winograd(maker, DDP_PASS_FORWARD, &winograd));
    if (winograd != NULL) {
        maker->hint = *prim;
        *prim = winograd;
    }
    return make_operands(maker, DDP_PASS_FORWARD);
}

static ddp_status make_backward(const direct_maker *maker, ddp_op_pass pass)
{
    ddpi_prim **prim = &maker->plan->pass[pass].prim;
    if (*prim == NULL)
        DDP_TRY(try_winograd(maker, pass, prim));
    if (*prim == NULL)
        DDP_TRY(make_direct_backward(maker, pass));
    return make_operands(maker, pass);
}

static ddp_status make_passes(direct_maker *maker)
{
    const ddpi_plan_parts *parts = maker->parts;
    const ddp_dtype dtype = parts->desc->compute;
    DDP_TRY(ddpi_md_create(&parts->src->shape, dtype, true, &maker->any[0]));
    DDP_TRY(ddpi_md_create(&parts->weight_shape, dtype, true, &maker->any[1]));
    DDP_TRY(ddpi_md_create(&parts->dst_shape, dtype, true, &maker->any[2]));
    DDP_TRY(ddpi_md_create(&parts->weight_shape, DDP_F32, true, &maker->any_gradient));
    DDP_TRY(make_forward(maker));
    if (!parts->desc->training)
        return DDP_OK;
    DDP_TRY(make_backward(maker, DDP_PASS_BACKWARD_WEIGHTS));
    return parts->desc->need_diff_src ? make_backward(maker, DDP_PASS_BACKWARD_DATA) : DDP_OK;
}

static void set_name(conv_direct_plan *plan, const direct_maker *maker)
{
    const unsigned passes = plan->winograd;
    const ddpi_prim *direct = maker->hint != NULL ? maker->hint : plan->pass[DDP_PASS_FORWARD].prim;
    snprintf(plan->base.base.impl, sizeof plan->base.base.impl, "direct:%.40s%s%s%s%s",
             ddpi_prim_impl(direct), passes != 0 ? "+winograd:" : "",
             (passes >> DDP_PASS_FORWARD & 1) != 0 ? "f" : "",
             (passes >> DDP_PASS_BACKWARD_DATA & 1) != 0 ? "d" : "",
             (passes >> DDP_PASS_BACKWARD_WEIGHTS & 1) != 0 ? "w" : "");
}

ddp_status ddpi_conv_direct_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {conv_direct_run, conv_direct_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(conv_direct_plan), &base));
    conv_direct_plan *plan = (conv_direct_plan *)base;
    direct_maker maker = {.parts = parts, .plan = plan};
    const ddp_status st = make_passes(&maker);
    if (st == DDP_OK)
        set_name(plan, &maker);
    for (int i = 0; i < 3; i++) {
        ddpi_md_destroy(maker.any[i]);
        ddpi_md_destroy(maker.forward[i]);
    }
    ddpi_md_destroy(maker.any_gradient);
    ddpi_prim_destroy(maker.hint);
    if (st != DDP_OK) {
        ddpi_plan_free(base);
        return st;
    }
    *plan_out = base;
    return DDP_OK;
}

bool ddpi_conv_direct_is_winograd(const ddpi_cpu_plan *plan, ddp_op_pass pass)
{
    return (((const conv_direct_plan *)plan)->winograd >> pass & 1) != 0;
}
