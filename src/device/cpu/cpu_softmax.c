/* cpu_softmax.c - softmax cross-entropy with its gradient, row by row, in double.
 *
 * The largest logit is subtracted before exponentials are taken, so nothing overflows. A label that
 * is none of the classes makes the loss NaN, which the step's check of the loss then reports. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"

typedef struct softmax_plan {
    ddpi_cpu_plan base;
    int64_t n, classes;
    double smoothing;
    ddpi_operand src, diff_src; /* to plain */
    size_t converter;
} softmax_plan;

/* What a row is compared with: two labels (the same one twice, where there is no second) and the
 * share of the first; and what the gradient is multiplied by. */
typedef struct row_target {
    int32_t label, label2;
    double share, diff_scale;
} row_target;

static bool is_class(const softmax_plan *plan, int32_t label)
{
    return label >= 0 && label < plan->classes;
}

/* Returns the row's loss and writes its gradient, if diff is not NULL. */
static double softmax_row(const softmax_plan *plan, const float *logits, row_target target,
                          float *diff)
{
    const int64_t classes = plan->classes;
    const double even = plan->smoothing / (double)classes;
    const double hot = (1 - plan->smoothing) * target.share;
    const double hot2 = (1 - plan->smoothing) * (1 - target.share);
    float most = logits[0];
    for (int64_t c = 1; c < classes; c++)
        most = logits[c] > most ? logits[c] : most;
    double sum = 0, shifted_sum = 0;
    for (int64_t c = 0; c < classes; c++) {
        const double shifted = (double)logits[c] - (double)most;
        sum += exp(shifted);
        shifted_sum += shifted;
    }
    for (int64_t c = 0; diff != NULL && c < classes; c++)
        diff[c] = (float)(target.diff_scale *
                          (exp((double)logits[c] - (double)most) / sum - even -
                           (c == target.label ? hot : 0) - (c == target.label2 ? hot2 : 0)));
    if (!is_class(plan, target.label) || !is_class(plan, target.label2))
        return (double)NAN;
    return log(sum) - hot * ((double)logits[target.label] - (double)most) -
           hot2 * ((double)logits[target.label2] - (double)most) - even * shifted_sum;
}

static row_target target_of(const ddp_op_args *args, int64_t n)
{
    const double diff_scale = args->diff_scale != NULL ? (double)*args->diff_scale : 1;
    if (args->labels2 == NULL)
        return (row_target){args->labels[n], args->labels[n], 1, diff_scale};
    return (row_target){args->labels[n], args->labels2[n], (double)args->mix[n], diff_scale};
}

static ddp_status softmax_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const softmax_plan *plan = (softmax_plan *)base;
    char *scratch = args->scratch, *converter = scratch + plan->converter;
    void *src, *diff_src = NULL;
    double loss = 0;
    DDP_ASSERT(pass == DDP_PASS_FORWARD);
    DDP_TRY(ddpi_operand_begin(&plan->src, args->src, scratch, converter, &src));
    if (args->diff_src != NULL)
        DDP_TRY(ddpi_operand_begin(&plan->diff_src, args->diff_src, scratch, converter, &diff_src));
    for (int64_t n = 0; n < plan->n; n++)
        loss += softmax_row(plan, (float *)src + n * plan->classes, target_of(args, n),
                            diff_src != NULL ? (float *)diff_src + n * plan->classes : NULL);
    *args->loss += loss;
    return args->diff_src != NULL
               ? ddpi_operand_end(&plan->diff_src, args->diff_src, scratch, converter)
               : DDP_OK;
}

static void softmax_destroy(ddpi_cpu_plan *base)
{
    softmax_plan *plan = (softmax_plan *)base;
    ddpi_operand_destroy(&plan->src);
    ddpi_operand_destroy(&plan->diff_src);
}

static ddp_status make_operands(softmax_plan *plan, const ddpi_plan_parts *parts)
{
    size_t bytes = 0;
    ddp_layout *plain;
    DDP_TRY(ddpi_layout_plain(parts->device, &parts->src->shape, &plain));
    ddp_status st = ddpi_operand_create(parts->src, plain, false, &bytes, &plan->src);
    if (st == DDP_OK)
        st = ddpi_operand_create(parts->src, plain, true, &bytes, &plan->diff_src);
    ddp_layout_unref(plain);
    plan->converter =
        ddpi_take(&bytes, (size_t)ddpi_max((int64_t)ddpi_operand_scratch_bytes(&plan->src),
                                           (int64_t)ddpi_operand_scratch_bytes(&plan->diff_src)));
    plan->base.base.scratch_bytes = bytes;
    return st;
}

ddp_status ddpi_softmax_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {softmax_run, softmax_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(softmax_plan), &base));
    softmax_plan *plan = (softmax_plan *)base;
    plan->n = parts->src->shape.dims[0];
    plan->classes = parts->src->shape.dims[1];
    plan->smoothing = parts->desc->u.xent.label_smoothing;
    snprintf(base->base.impl, sizeof base->base.impl, "rows");
    const ddp_status st = make_operands(plan, parts);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}
