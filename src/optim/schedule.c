/* schedule.c - learning rates as pure functions of the step. See schedule.h. */
#include "ddp/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define USAGE(...) DDP_FAIL(DDP_ERR_USAGE, __VA_ARGS__)
/* More epochs than anybody trains; times steps it still fits into int64_t. */
#define EPOCHS_MAX 1e9

/* ---- from options to steps ---- */

static int64_t steps_of(double epochs, int64_t steps_per_epoch)
{
    return llround(epochs * (double)steps_per_epoch);
}

/* "30,60.5,80": numbers above 0 that grow. */
static ddp_status parse_epochs(const char *text, double epochs[DDP_SCHEDULE_MAX_MILESTONES],
                               int *count_out)
{
    const char *at = text;
    double last = 0;
    int count = 0;
    for (;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end != ',' && *end != 0) || !(value > last && value <= EPOCHS_MAX))
            return USAGE("option --lr-step-at: found \"%s\", expected growing numbers of epochs "
                         "above 0 with commas between",
                         text);
        if (count == DDP_SCHEDULE_MAX_MILESTONES)
            return USAGE("option --lr-step-at: found more than %d numbers, expected at most %d",
                         count, count);
        epochs[count++] = last = value;
        at = end;
        if (*at == 0)
            break;
    }
    *count_out = count;
    return DDP_OK;
}

ddp_status ddp_schedule_check(const ddp_schedule_opts *opts)
{
    double epochs[DDP_SCHEDULE_MAX_MILESTONES];
    int count;
    bool steps = opts->kind == DDP_SCHEDULE_STEP;
    if (steps && opts->step_every == 0 && opts->step_at == NULL)
        return USAGE("option --lr-schedule: found step without --lr-step-every or --lr-step-at, "
                     "expected one of the two");
    if (!steps && (opts->step_every != 0 || opts->step_at != NULL))
        return USAGE("option --lr-step-%s: found without --lr-schedule step",
                     opts->step_at != NULL ? "at" : "every");
    if (opts->step_every != 0 && opts->step_at != NULL)
        return USAGE("option --lr-step-at: found beside --lr-step-every, expected one of the two");
    if (opts->warmup_steps > 0 && opts->warmup_epochs > 0)
        return USAGE("option --warmup-steps: found beside --warmup-epochs, expected one of the "
                     "two");
    return opts->step_at == NULL ? DDP_OK : parse_epochs(opts->step_at, epochs, &count);
}

static ddp_status set_milestones(const ddp_schedule_opts *opts, int64_t steps_per_epoch,
                                 ddp_schedule *s)
{
    double epochs[DDP_SCHEDULE_MAX_MILESTONES];
    if (opts->step_at == NULL)
        return DDP_OK;
    DDP_TRY(parse_epochs(opts->step_at, epochs, &s->milestone_count));
    for (int i = 0; i < s->milestone_count; i++)
        s->milestones[i] = steps_of(epochs[i], steps_per_epoch);
    return DDP_OK;
}

ddp_status ddp_schedule_make(const ddp_schedule_opts *opts, double base, int64_t steps_per_epoch,
                             int64_t steps, ddp_schedule *schedule_out)
{
    DDP_TRY(ddp_schedule_check(opts));
    ddp_schedule s = {.kind = (ddp_schedule_kind)opts->kind,
                      .base = base,
                      .min = opts->min,
                      .gamma = opts->gamma,
                      .power = opts->power,
                      .warmup_lr = opts->warmup_lr,
                      .warmup = opts->warmup_steps,
                      .total = steps};
    if (opts->warmup_epochs > 0)
        s.warmup = steps_of(opts->warmup_epochs, steps_per_epoch);
    if (opts->total_steps > 0)
        s.total = opts->total_steps;
    if (opts->step_every > 0) {
        s.step_every = steps_of(opts->step_every, steps_per_epoch);
        s.step_every = s.step_every > 0 ? s.step_every : 1;
    }
    DDP_TRY(set_milestones(opts, steps_per_epoch, &s));
    bool decays = s.kind == DDP_SCHEDULE_COSINE || s.kind == DDP_SCHEDULE_POLY;
    if (s.kind != DDP_SCHEDULE_CONSTANT && s.min > base)
        return USAGE("option --lr-min: found %g, expected at most the learning rate %g", s.min,
                     base);
    if (decays && s.warmup >= s.total)
        return USAGE("option --warmup-%s: found a warm-up of %" PRId64 " steps, expected less "
                     "than the %" PRId64 " steps after which the learning rate has come down",
                     opts->warmup_epochs > 0 ? "epochs" : "steps", s.warmup, s.total);
    *schedule_out = s;
    return DDP_OK;
}

/* ---- the rate ---- */

static double warmup_lr(const ddp_schedule *s, int64_t step)
{
    if (s->warmup_lr < 0)
        return s->base * (double)(step + 1) / (double)s->warmup;
    return s->warmup_lr + (s->base - s->warmup_lr) * (double)step / (double)s->warmup;
}

/* Steps down are counted from the start of the run, warm-up included. */
static double step_lr(const ddp_schedule *s, int64_t step)
{
    int64_t drops = s->step_every > 0 ? step / s->step_every : 0;
    for (int i = 0; i < s->milestone_count; i++)
        drops += s->milestones[i] <= step;
    double lr = s->base * pow(s->gamma, (double)drops);
    return lr > s->min ? lr : s->min;
}

double ddp_schedule_lr(const ddp_schedule *s, int64_t step)
{
    if (step < s->warmup)
        return warmup_lr(s, step);
    if (s->kind == DDP_SCHEDULE_CONSTANT)
        return s->base;
    if (s->kind == DDP_SCHEDULE_STEP)
        return step_lr(s, step);
    if (step >= s->total)
        return s->min;
    double p = (double)(step - s->warmup) / (double)(s->total - s->warmup);
    double share = s->kind == DDP_SCHEDULE_COSINE ? (1 + cos(M_PI * p)) / 2 : pow(1 - p, s->power);
    return s->min + (s->base - s->min) * share;
}
