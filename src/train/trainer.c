/* trainer.c - the loop: epochs of steps, evaluation after them, observers told of both.
 *
 * Every rank runs the same loop and takes the same branches: they depend on options and on numbers
 * that the strategy's control word made equal. */
#include "ddp/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { RATE_SAMPLES = 4096 }; /* the last steps whose median rate is reported */

typedef struct trainer {
    const ddp_trainer_opts *opts;
    const ddp_run_info *info;
    const ddp_trainer_parts *parts;
    int64_t steps, skipped; /* done; without an update */
    double *rates;          /* images/s of the last steps, a ring */
    ddp_eval_result last_eval;
    bool on_target; /* last_eval reaches the target */
} trainer;

static bool out_of_steps(const trainer *t)
{
    return t->opts->max_steps > 0 && t->steps >= t->opts->max_steps;
}

static ddp_status check_replicas(const trainer *t)
{
    const ddp_trainer_parts *p = t->parts;
    return ddp_check_replicas(p->comm, p->device, ddp_model_params(p->model),
                              ddp_strategy_params(p->strategy), t->steps);
}

static ddp_status tell_step(const trainer *t, const ddp_step_info *step)
{
    for (int i = 0; i < t->parts->observer_count; i++) {
        const ddp_observer *o = &t->parts->observers[i];
        if (o->on_step != NULL)
            DDP_TRY(o->on_step(o->arg, t->info, step));
    }
    return DDP_OK;
}

static ddp_status tell_epoch(const trainer *t, const ddp_epoch_stats *epoch)
{
    for (int i = 0; i < t->parts->observer_count; i++) {
        const ddp_observer *o = &t->parts->observers[i];
        if (o->on_epoch != NULL)
            DDP_TRY(o->on_epoch(o->arg, t->info, epoch));
    }
    return DDP_OK;
}

/* What an epoch's steps add up to. */
typedef struct epoch_sums {
    double loss;
    int64_t count, loss_count; /* samples; those of steps that were not skipped */
} epoch_sums;

/* All ranks have the same numbers, so that all fail or all go on. */
static ddp_status check_finite(trainer *t, int64_t epoch, const ddp_step_stats *stats)
{
    if (stats->nonfinite_rank < 0)
        return DDP_OK;
    if (t->opts->on_nonfinite != DDP_NONFINITE_SKIP || !stats->skipped)
        return DDP_FAIL(DDP_ERR_NONFINITE,
                        "step %lld (epoch %lld): loss or gradients of rank %d are not finite; a "
                        "lower --lr may help",
                        (long long)(t->steps + 1), (long long)(epoch + 1), stats->nonfinite_rank);
    t->skipped++;
    if (ddp_comm_rank(t->parts->comm) == 0)
        ddp_warn("step %lld (epoch %lld): loss or gradients of rank %d are not finite; the step is "
                 "skipped, %lld so far",
                 (long long)(t->steps + 1), (long long)(epoch + 1), stats->nonfinite_rank,
                 (long long)t->skipped);
    return DDP_OK;
}

static ddp_status run_step(trainer *t, int64_t epoch, int64_t index, epoch_sums *sums)
{
    const ddp_trainer_parts *p = t->parts;
    ddp_step_stats stats;
    const double lr = ddp_schedule_lr(&t->opts->schedule, t->steps);
    ddp_comm_note(p->comm, t->steps + 1, "training step");
    DDP_TRY(ddp_strategy_step(p->strategy, p->loader, ddp_sampler_step_count(p->sampler, index), lr,
                              &stats));
    DDP_TRY(check_finite(t, epoch, &stats));
    t->rates[t->steps % RATE_SAMPLES] = (double)stats.count / ((double)stats.step_ns * 1e-9);
    t->steps++;
    sums->count += stats.count;
    sums->loss += stats.skipped ? 0 : stats.loss_sum;
    sums->loss_count += stats.skipped ? 0 : stats.count;
    ddp_step_info step = {.epoch = epoch + 1,
                          .step = t->steps,
                          .step_in_epoch = index + 1,
                          .lr = lr,
                          .stats = &stats};
    DDP_TRY(tell_step(t, &step));
    if (t->opts->check_replicas > 0 && t->steps % t->opts->check_replicas == 0)
        return check_replicas(t);
    return DDP_OK;
}

static bool evaluates(const trainer *t, int64_t epoch)
{
    bool last = epoch + 1 == t->opts->epochs || out_of_steps(t);
    bool due = t->opts->eval_every > 0 && (epoch + 1) % t->opts->eval_every == 0;
    return t->parts->eval != NULL && (last || due);
}

/* The hits are sums over all ranks, so that all of them decide alike. */
static bool reaches_target(const trainer *t)
{
    double accuracy = (double)t->last_eval.top1 / (double)t->last_eval.count;
    return t->opts->target_accuracy > 0 && accuracy >= t->opts->target_accuracy;
}

static ddp_status evaluate(trainer *t)
{
    const float *running;
    float *params;
    ddp_comm_note(t->parts->comm, t->steps, "evaluation");
    DDP_TRY(ddp_strategy_combine(t->parts->strategy, &running));
    DDP_TRY(ddp_strategy_average(t->parts->strategy, &params));
    return ddp_eval_run(t->parts->eval, &t->last_eval);
}

static ddp_status run_epoch(trainer *t, int64_t epoch)
{
    ddp_epoch_stats stats = {.epoch = epoch + 1};
    epoch_sums sums = {0};
    int64_t start = ddp_now_ns(), skipped = t->skipped;
    for (int64_t i = 0; i < t->info->steps_per_epoch && !out_of_steps(t); i++)
        DDP_TRY(run_step(t, epoch, i, &sums));
    stats.seconds = (double)(ddp_now_ns() - start) * 1e-9;
    stats.train_loss = sums.loss / (double)sums.loss_count;
    stats.images_per_s = (double)sums.count / stats.seconds;
    stats.skipped_steps = t->skipped - skipped;
    if (evaluates(t, epoch)) {
        DDP_TRY(evaluate(t));
        stats.evaluated = true;
        stats.test = t->last_eval;
        t->on_target = reaches_target(t);
    }
    return tell_epoch(t, &stats);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_rate(const trainer *t)
{
    size_t n = (size_t)(t->steps < RATE_SAMPLES ? t->steps : RATE_SAMPLES);
    if (n == 0)
        return NAN;
    qsort(t->rates, n, sizeof *t->rates, by_value);
    return n % 2 == 1 ? t->rates[n / 2] : (t->rates[n / 2 - 1] + t->rates[n / 2]) / 2;
}

static ddp_status run_all(trainer *t, ddp_run_summary *summary)
{
    int64_t start = ddp_now_ns();
    DDP_TRY(check_replicas(t));
    DDP_TRY(ddp_loader_seek(t->parts->loader, 0, 0));
    for (int64_t epoch = 0; epoch < t->opts->epochs && !out_of_steps(t) && !t->on_target; epoch++) {
        DDP_TRY(run_epoch(t, epoch));
        summary->epochs = epoch + 1;
    }
    summary->seconds = (double)(ddp_now_ns() - start) * 1e-9;
    summary->seconds_to_target = t->on_target ? summary->seconds : -1;
    summary->steps = t->steps;
    summary->skipped_steps = t->skipped;
    summary->test = t->last_eval;
    summary->images_per_s = median_rate(t);
    return ddp_param_table_hash(t->parts->device, ddp_model_params(t->parts->model),
                                ddp_strategy_params(t->parts->strategy), &summary->weights_hash);
}

ddp_status ddp_trainer_run(const ddp_trainer_opts *opts, const ddp_run_info *info,
                           const ddp_trainer_parts *parts, ddp_run_summary *summary_out)
{
    trainer t = {.opts = opts, .info = info, .parts = parts};
    ddp_run_summary summary = {0};
    DDP_TRY(DDP_ALLOC(t.rates, RATE_SAMPLES));
    ddp_status st = run_all(&t, &summary);
    ddp_free(t.rates);
    if (st == DDP_OK)
        *summary_out = summary;
    return st;
}
