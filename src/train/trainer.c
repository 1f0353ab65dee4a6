/* trainer.c - the loop: epochs of steps, evaluation after them, observers told of both.
 *
 * Every rank runs the same loop and takes the same branches: they depend on options and on numbers
 * that the strategy's control word made equal. */
#include "ddp/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"
#include "train/inject_impl.h"
#include "train/trace_impl.h"

enum { RATE_SAMPLES = 4096 }; /* the last steps whose median rate is reported */

typedef struct trainer {
    const ddp_trainer_opts *opts;
    const ddp_run_info *info;
    const ddp_trainer_parts *parts;
    ddp_run_state at;
    double *rates; /* images/s of the last steps, a ring */
    int64_t rate_count;
    int64_t fresh_samples; /* of this epoch, by this process */
    double comm_bytes;     /* of this process's steps */
    bool traced;           /* a step that was not finite */
    bool on_target;        /* the last evaluation reaches the target */
    ddp_saver_verdict verdict;
    ddp_limits limits;
} trainer;

/* Enters a phase; returns the time, for leave(). */
static int64_t enter(const trainer *t, ddp_phase phase)
{
    ddp_limits_enter(&t->limits, phase, t->parts->comm);
    return ddp_now_ns();
}

static void leave(trainer *t, ddp_phase phase, int64_t entered_ns)
{
    ddp_limits_learn(&t->limits, phase, ddp_now_ns() - entered_ns);
    ddp_limits_enter(&t->limits, DDP_PHASE_STEP, t->parts->comm);
}

static bool out_of_steps(const trainer *t)
{
    return t->opts->max_steps > 0 && t->at.steps >= t->opts->max_steps;
}

static ddp_status check_replicas(const trainer *t)
{
    const ddp_trainer_parts *p = t->parts;
    const ddp_replica_check check = {.comm = p->comm,
                                     .device = p->device,
                                     .table = ddp_model_params(p->model),
                                     .params = ddp_strategy_params(p->strategy),
                                     .step = t->at.steps,
                                     .on_mismatch = t->opts->on_mismatch};
    return ddp_check_replicas(&check);
}

static bool checks_here(const trainer *t)
{
    return t->opts->check_replicas > 0 && t->at.steps % t->opts->check_replicas == 0;
}

/* The rank that has found damage says where. Nobody else has this state: there is no healing. */
static ddp_status check_damage(const trainer *t, const ddp_step_stats *stats)
{
    enum { TENSOR_BYTES = 128 };
    char tensor[TENSOR_BYTES] = "";
    if (stats->damaged_rank < 0)
        return DDP_OK;
    const char *mine = ddp_strategy_damage(t->parts->strategy);
    if (mine != NULL)
        snprintf(tensor, sizeof tensor, "%s", mine);
    DDP_TRY(ddp_comm_broadcast(t->parts->comm, stats->damaged_rank, tensor, sizeof tensor));
    return DDP_FAIL(DDP_ERR_MISMATCH,
                    "step %lld: the optimizer's state %s of rank %d is not as its last update left "
                    "it: memory is damaged; go on from a checkpoint",
                    (long long)(t->at.steps + 1), tensor, stats->damaged_rank);
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

static void count_skipped(trainer *t)
{
    t->at.skipped++;
    t->at.epoch_skipped++;
}

/* What it was; of several steps that are skipped, of the first. The step is not counted yet. */
static ddp_status trace(trainer *t, char text[DDPI_TRACE_BYTES])
{
    const int64_t next = t->at.step_in_epoch + 1, steps = t->info->steps_per_epoch;
    text[0] = 0;
    if (t->traced)
        return DDP_OK;
    t->traced = true;
    DDP_TRY(ddpi_trace(t->parts, &t->at, text));
    return ddp_loader_seek(t->parts->loader, t->at.epoch + next / steps, next % steps);
}

/* All ranks have the same numbers, so that all fail or all go on. */
static ddp_status check_finite(trainer *t, int64_t epoch, const ddp_step_stats *stats)
{
    char text[DDPI_TRACE_BYTES];
    if (stats->nonfinite_rank < 0)
        return DDP_OK;
    if (stats->overflow) {
        count_skipped(t);
        if (ddp_comm_rank(t->parts->comm) == 0)
            ddp_info("step %lld (epoch %lld): gradients were too large at a loss scale of %g; the "
                     "step is skipped, %lld so far",
                     (long long)(t->at.steps + 1), (long long)(epoch + 1), stats->loss_scale,
                     (long long)t->at.skipped);
        return DDP_OK;
    }
    DDP_TRY(trace(t, text));
    const char *colon = text[0] != 0 ? ": " : "";
    if (t->opts->on_nonfinite != DDP_NONFINITE_SKIP || !stats->skipped)
        return DDP_FAIL(DDP_ERR_NONFINITE,
                        "step %lld (epoch %lld): loss or gradients of rank %d are not finite; a "
                        "lower --lr may help%s%s",
                        (long long)(t->at.steps + 1), (long long)(epoch + 1), stats->nonfinite_rank,
                        colon, text);
    count_skipped(t);
    if (ddp_comm_rank(t->parts->comm) == 0)
        ddp_warn("step %lld (epoch %lld): loss or gradients of rank %d are not finite; the step is "
                 "skipped, %lld so far%s%s",
                 (long long)(t->at.steps + 1), (long long)(epoch + 1), stats->nonfinite_rank,
                 (long long)t->at.skipped, colon, text);
    return DDP_OK;
}

/* Adds a step that was made to where the run stands. */
static void count_step(trainer *t, const ddp_step_stats *stats)
{
    ddp_run_state *at = &t->at;
    t->rates[t->rate_count++ % RATE_SAMPLES] =
        (double)stats->count / ((double)stats->step_ns * 1e-9);
    t->fresh_samples += stats->count;
    t->comm_bytes += (double)stats->comm_bytes;
    at->steps++;
    at->step_in_epoch++;
    at->count += stats->count;
    at->loss += stats->skipped ? 0 : stats->loss_sum;
    at->loss_count += stats->skipped ? 0 : stats->count;
    ddp_ledger_join(&at->ledger, &stats->ledger);
}

/* What this rank has to tell the others with the step. */
static void set_flags(const ddp_trainer_parts *p)
{
    const uint32_t saver = p->saver != NULL ? ddp_saver_flags(p->saver) : 0;
    const uint32_t timeline = p->timeline != NULL ? ddp_timeline_flags(p->timeline) : 0;
    ddp_strategy_set_flags(p->strategy, saver | timeline);
}

static ddp_status run_step(trainer *t)
{
    const ddp_trainer_parts *p = t->parts;
    const int64_t epoch = t->at.epoch, index = t->at.step_in_epoch;
    ddp_step_stats stats;
    uint32_t kept = 0;
    const double lr = ddp_schedule_lr(&t->opts->schedule, t->at.steps);
    int64_t entered_ns = enter(t, DDP_PHASE_STEP);
    ddp_spans_set_step(t->at.steps + 1);
    /* Before the step: it would hand on what is damaged in the ranges that a rank owns. */
    if (checks_here(t))
        DDP_TRY(check_replicas(t));
    ddp_comm_note(p->comm, t->at.steps + 1, "training step");
    DDP_TRY(ddpi_inject_before(&t->opts->inject, p, t->at.steps + 1, &kept));
    set_flags(p);
    DDP_TRY(ddp_strategy_step(p->strategy, p->loader, ddp_sampler_step_count(p->sampler, index), lr,
                              &stats));
    DDP_TRY(check_damage(t, &stats));
    DDP_TRY(check_finite(t, epoch, &stats));
    DDP_TRY(ddpi_inject_after(&t->opts->inject, p, t->at.steps + 1, kept));
    count_step(t, &stats);
    if (checks_here(t))
        DDP_TRY(ddp_strategy_seal(p->strategy));
    ddp_step_info step = {.epoch = epoch + 1,
                          .step = t->at.steps,
                          .step_in_epoch = index + 1,
                          .lr = lr,
                          .stats = &stats};
    DDP_TRY(tell_step(t, &step));
    const int64_t taken_ns = ddp_spans_end(DDP_SPAN_STEP, 0, entered_ns);
    leave(t, DDP_PHASE_STEP, entered_ns);
    if (p->timeline != NULL) {
        ddp_timeline_learn(p->timeline, taken_ns);
        DDP_TRY(ddp_timeline_after_step(p->timeline, t->at.steps, stats.flags_any));
    }
    if (p->saver == NULL)
        return DDP_OK;
    const bool last = t->at.step_in_epoch == t->info->steps_per_epoch || out_of_steps(t);
    entered_ns = enter(t, DDP_PHASE_CHECKPOINT);
    ddp_comm_note(p->comm, t->at.steps, "saving");
    DDP_TRY(ddp_saver_after_step(p->saver, &t->at, &stats, last, &t->verdict));
    leave(t, DDP_PHASE_CHECKPOINT, entered_ns);
    return DDP_OK;
}

/* Saves after an epoch, or at the end. */
static ddp_status save(trainer *t, ddp_status (*fn)(ddp_saver *, const ddp_run_state *))
{
    if (t->parts->saver == NULL)
        return DDP_OK;
    const int64_t entered_ns = enter(t, DDP_PHASE_CHECKPOINT);
    ddp_comm_note(t->parts->comm, t->at.steps, "saving");
    DDP_TRY(fn(t->parts->saver, &t->at));
    leave(t, DDP_PHASE_CHECKPOINT, entered_ns);
    return DDP_OK;
}

static bool evaluates(const trainer *t)
{
    bool last = t->at.epoch + 1 == t->opts->epochs || out_of_steps(t);
    bool due = t->opts->eval_every > 0 && (t->at.epoch + 1) % t->opts->eval_every == 0;
    return t->parts->eval != NULL && (last || due);
}

/* The hits are sums over all ranks, so that all of them decide alike. */
static bool reaches_target(const trainer *t)
{
    return t->opts->target_accuracy > 0 && t->at.eval.count > 0 &&
           (double)t->at.eval.top1 / (double)t->at.eval.count >= t->opts->target_accuracy;
}

static ddp_status evaluate(trainer *t)
{
    ddp_run_state *at = &t->at;
    const float *running;
    float *params;
    const int64_t entered_ns = enter(t, DDP_PHASE_EVAL);
    ddp_comm_note(t->parts->comm, at->steps, "evaluation");
    DDP_TRY(ddp_strategy_combine(t->parts->strategy, &running));
    DDP_TRY(ddp_strategy_average(t->parts->strategy, &params));
    DDP_TRY(ddp_eval_run(t->parts->eval, &at->eval));
    ddp_spans_end(DDP_SPAN_EVAL, 0, entered_ns);
    leave(t, DDP_PHASE_EVAL, entered_ns);
    const double accuracy = (double)at->eval.top1 / (double)at->eval.count;
    at->eval_step = at->steps;
    if (at->best_step < 0 || accuracy > at->best_accuracy) {
        at->best_step = at->steps;
        at->best_accuracy = accuracy;
    }
    t->on_target = reaches_target(t);
    return DDP_OK;
}

/* Every sample of the epoch's steps so far was computed once, by whatever ranks and in however many
 * runs. */
static ddp_status check_ledger(const trainer *t)
{
    const ddp_ledger *found = &t->at.ledger;
    const ddp_ledger want = ddp_ledger_expect(t->parts->sampler, t->at.epoch, t->at.step_in_epoch);
    if (ddp_ledger_equal(found, &want))
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_INTERNAL,
                    "epoch %lld: the samples of its steps were not computed once each: %lld "
                    "samples with checksum %016llx, expected %lld with %016llx",
                    (long long)(t->at.epoch + 1), (long long)found->count,
                    (unsigned long long)(found->sum ^ found->parity), (long long)want.count,
                    (unsigned long long)(want.sum ^ want.parity));
}

/* An epoch that max_steps cut short stays unfinished: a longer run goes on in it. */
static void finish_epoch(trainer *t)
{
    ddp_run_state *at = &t->at;
    if (at->step_in_epoch < t->info->steps_per_epoch)
        return;
    at->epoch++;
    at->step_in_epoch = at->count = at->loss_count = at->epoch_skipped = 0;
    at->loss = 0;
    at->ledger = (ddp_ledger){0};
}

static ddp_status end_epoch(trainer *t, double seconds)
{
    ddp_run_state *at = &t->at;
    ddp_epoch_stats stats = {.epoch = at->epoch + 1,
                             .seconds = seconds,
                             .train_loss = at->loss / (double)at->loss_count,
                             .images_per_s = (double)t->fresh_samples / seconds,
                             .skipped_steps = at->epoch_skipped,
                             .ledger = at->ledger};
    DDP_TRY(check_ledger(t));
    if (evaluates(t)) {
        DDP_TRY(evaluate(t));
        stats.evaluated = true;
        stats.test = at->eval;
    }
    finish_epoch(t);
    DDP_TRY(tell_epoch(t, &stats));
    return save(t, ddp_saver_after_epoch);
}

static ddp_status run_epoch(trainer *t)
{
    const int64_t start = ddp_now_ns();
    t->fresh_samples = 0;
    while (t->at.step_in_epoch < t->info->steps_per_epoch && !out_of_steps(t) &&
           t->verdict == DDP_SAVER_GO_ON)
        DDP_TRY(run_step(t));
    if (t->verdict != DDP_SAVER_GO_ON)
        return DDP_OK;
    return end_epoch(t, (double)(ddp_now_ns() - start) * 1e-9);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_rate(const trainer *t)
{
    size_t n = (size_t)(t->rate_count < RATE_SAMPLES ? t->rate_count : RATE_SAMPLES);
    if (n == 0)
        return NAN;
    qsort(t->rates, n, sizeof *t->rates, by_value);
    return n % 2 == 1 ? t->rates[n / 2] : (t->rates[n / 2 - 1] + t->rates[n / 2]) / 2;
}

/* A run that was stopped at its last step, before the evaluation, has that still to do. */
static bool at_end(const trainer *t)
{
    const bool evaluated = t->parts->eval == NULL || t->at.eval_step == t->at.steps;
    return t->at.epoch >= t->opts->epochs || t->on_target ||
           (out_of_steps(t) && (t->at.step_in_epoch == 0 || evaluated));
}

static ddp_status run_all(trainer *t, ddp_run_summary *summary)
{
    const ddp_trainer_parts *p = t->parts;
    int64_t start = enter(t, DDP_PHASE_START);
    DDP_TRY(check_replicas(t));
    DDP_TRY(ddp_loader_seek(p->loader, t->at.epoch, t->at.step_in_epoch));
    t->on_target = t->at.eval_step == t->at.steps && reaches_target(t);
    while (!at_end(t) && t->verdict == DDP_SAVER_GO_ON)
        DDP_TRY(run_epoch(t));
    /* After a resume with fewer epochs or steps than were made. */
    if (p->eval != NULL && t->verdict == DDP_SAVER_GO_ON && t->at.eval_step != t->at.steps)
        DDP_TRY(evaluate(t));
    if (t->opts->check_replicas > 0)
        DDP_TRY(check_replicas(t));
    if (t->verdict == DDP_SAVER_GO_ON)
        DDP_TRY(save(t, ddp_saver_finish));
    if (p->timeline != NULL)
        DDP_TRY(ddp_timeline_finish(p->timeline));
    summary->stopped = t->verdict;
    summary->epochs = t->at.epoch + (t->at.step_in_epoch > 0);
    summary->seconds = (double)(ddp_now_ns() - start) * 1e-9;
    summary->seconds_to_target = t->on_target ? summary->seconds : -1;
    summary->steps = t->at.steps;
    summary->skipped_steps = t->at.skipped;
    summary->test = t->at.eval;
    summary->images_per_s = median_rate(t);
    summary->comm_bytes_per_step = t->rate_count > 0 ? t->comm_bytes / (double)t->rate_count : 0;
    return ddp_param_table_hash(p->device, ddp_model_params(p->model),
                                ddp_strategy_params(p->strategy), &summary->weights_hash);
}

ddp_status ddp_trainer_run(const ddp_trainer_opts *opts, const ddp_run_info *info,
                           const ddp_trainer_parts *parts, ddp_run_summary *summary_out)
{
    static const ddp_run_state beginning = DDP_RUN_STATE_START;
    trainer t = {.opts = opts,
                 .info = info,
                 .parts = parts,
                 .at = parts->start != NULL ? *parts->start : beginning};
    ddp_run_summary summary = {0};
    ddp_limits_init(&t.limits, &opts->limits);
    DDP_TRY(DDP_ALLOC(t.rates, RATE_SAMPLES));
    ddp_status st = run_all(&t, &summary);
    ddp_free(t.rates);
    if (st == DDP_OK)
        *summary_out = summary;
    return st;
}
