/* verify.c - finite differences, and comparing bits. See verify.h.
 *
 * A step along a gradient changes the loss sum L by the step's length times the gradient's. The
 * step is so long that L changes by a ten-thousandth, far above its rounding; where the loss bends
 * or has kinks, a shorter or longer one may fit better, so that a few are tried and the best one
 * counts. Parameters whose gradient is next to nothing (biases before a norm) are measured
 * against a hundredth of the whole gradient instead of their own. */
#include "ddp/verify.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ddp/memory.h"

#define TOLERANCE 0.03
/* Of the whole gradient's length: what differences are measured against, at least. */
#define LEAST_PART 0.01

typedef struct differences {
    const ddp_gradient_check *check;
    size_t length;
    float *before, *moved; /* flat, on the host */
    double loss, whole;    /* loss sum; length of the whole gradient */
} differences;

static ddp_status loss_of(const differences *d, const float *flat, double *loss_out)
{
    const ddp_gradient_check *c = d->check;
    ddp_stream *stream = ddp_device_main_stream(c->device);

    DDP_TRY(ddp_device_copy(c->device, stream, c->params, flat, d->length * sizeof *flat,
                            DDP_COPY_TO_DEVICE));
    DDP_TRY(ddp_model_forward(c->model, c->input, loss_out));
    return ddp_stream_sync(stream);
}

static bool is_trainable(const ddp_param *param)
{
    return (param->flags & DDP_PARAM_TRAINABLE) != 0;
}

static double length_of(const float *values, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

/* The parameters, moved by `step` along a gradient of this length; where there is none, evenly. */
static void move(const differences *d, const ddp_param *param, double length, double step)
{
    const float *grad = d->check->grads + param->offset;
    const double even = 1 / sqrt((double)param->count);

    memcpy(d->moved, d->before, d->length * sizeof *d->moved);
    for (size_t i = 0; i < param->count; i++) {
        const double along = length > 0 ? grad[i] / length : even;
        d->moved[param->offset + i] = (float)(d->before[param->offset + i] + step * along);
    }
}

/* What the step really was, after rounding: its part along the gradient. */
static double step_made(const differences *d, const ddp_param *param, double length)
{
    const float *grad = d->check->grads + param->offset;
    const double even = 1 / sqrt((double)param->count);
    double sum = 0;

    for (size_t i = 0; i < param->count; i++) {
        const size_t at = param->offset + i;
        const double along = length > 0 ? grad[i] / length : even;
        sum += ((double)d->moved[at] - d->before[at]) * along;
    }
    return sum;
}

static ddp_status derivative(const differences *d, const ddp_param *param, double length,
                             double step, double *value_out)
{
    double ahead = 0, behind = 0;

    move(d, param, length, step);
    const double made_ahead = step_made(d, param, length);
    DDP_TRY(loss_of(d, d->moved, &ahead));
    move(d, param, length, -step);
    const double made_behind = step_made(d, param, length);
    DDP_TRY(loss_of(d, d->moved, &behind));
    *value_out = (ahead - behind) / (made_ahead - made_behind);
    return DDP_OK;
}

static ddp_status check_param(const differences *d, const ddp_param *param, double *error_out)
{
    static const double changes[] = {1e-4, 1e-3, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7};
    const double length = length_of(d->check->grads + param->offset, param->count);
    const double against = fmax(length, LEAST_PART * d->whole);
    double found = NAN, error = INFINITY;

    for (size_t i = 0; i < sizeof changes / sizeof *changes && !(error <= TOLERANCE); i++) {
        double value = NAN;
        DDP_TRY(derivative(d, param, length, changes[i] * fabs(d->loss) / against, &value));
        if (!(fabs(value - length) / against < error))
            continue;
        found = value;
        error = fabs(value - length) / against;
    }
    *error_out = error;
    if (error <= TOLERANCE)
        return DDP_OK;
    return DDP_FAIL(
        DDP_ERR_MISMATCH,
        "gradient of parameter %s: finite differences along it give %.6g, backward %.6g",
        param->name, found, length);
}

static ddp_status check_params(differences *d, ddp_gradient_report *report)
{
    const ddp_param_table *table = ddp_model_params(d->check->model);

    DDP_TRY(loss_of(d, d->before, &d->loss));
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        if (is_trainable(param))
            d->whole = hypot(d->whole, length_of(d->check->grads + param->offset, param->count));
    }
    if (!isfinite(d->loss) || !(d->whole > 0) || !isfinite(d->whole))
        return DDP_FAIL(DDP_ERR_MISMATCH, "a loss of %g with a gradient of length %g", d->loss,
                        d->whole);
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        double error = 0;
        if (!is_trainable(param))
            continue;
        DDP_TRY(check_param(d, param, &error));
        report->params++;
        report->worst = fmax(report->worst, error);
    }
    return DDP_OK;
}

ddp_status ddp_check_gradient(const ddp_gradient_check *check, ddp_gradient_report *report_out)
{
    differences d = {.check = check,
                     .length = ddp_param_table_length(ddp_model_params(check->model))};
    ddp_stream *stream = ddp_device_main_stream(check->device);
    ddp_status st = DDP_ALLOC(d.before, d.length);

    *report_out = (ddp_gradient_report){0};
    if (st == DDP_OK)
        st = DDP_ALLOC(d.moved, d.length);
    DDP_TRY_GOTO(st, st, out);
    DDP_TRY_GOTO(st,
                 ddp_device_copy(check->device, stream, d.before, check->params,
                                 d.length * sizeof(float), DDP_COPY_TO_HOST),
                 out);
    DDP_TRY_GOTO(st, ddp_stream_sync(stream), out);
    DDP_TRY_GOTO(st, check_params(&d, report_out), out);
    DDP_TRY_GOTO(st,
                 ddp_device_copy(check->device, stream, check->params, d.before,
                                 d.length * sizeof(float), DDP_COPY_TO_DEVICE),
                 out);
    st = ddp_stream_sync(stream);
out:
    ddp_free(d.before);
    ddp_free(d.moved);
    return st;
}

ddp_status ddp_check_same_params(const ddp_param_table *table, const float *a, const float *b,
                                 const char *what)
{
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        for (size_t at = param->offset; at < param->offset + param->count; at++)
            if (memcmp(&a[at], &b[at], sizeof a[at]) != 0)
                return DDP_FAIL(DDP_ERR_MISMATCH,
                                "%s: parameter %s differs from its element %zu on: %.9g and %.9g",
                                what, param->name, at - param->offset, (double)a[at],
                                (double)b[at]);
    }
    return DDP_OK;
}
