/* observers.c - rank 0's listeners: the progress line, the records of steps and epochs, and a line
 * on the console for each epoch. A step's part allocates nothing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "app/run.h"
#include "ddp/thread.h"

/* Weight of the newest step in the rate that is shown. */
#define RATE_WEIGHT 0.1
/* Of the mean rank's own time: what makes a slowest rank worth a line. */
#define NOTABLE 1.1

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

static double accuracy(const ddp_eval_result *result)
{
    return (double)result->top1 / (double)result->count;
}

static ddp_status record_step(const ddpi_run *run, const ddp_run_info *info,
                              const ddp_step_info *step, int64_t wall_ns)
{
    const ddp_step_stats *s = step->stats;
    double seconds = (double)s->step_ns * 1e-9;
    double flops = info->train_flops * (double)s->count / seconds;
    const ddp_step_record record = {
        .epoch = step->epoch,
        .step = step->step,
        .samples = s->count,
        .loss = s->loss_sum / (double)s->count,
        .lr = step->lr,
        .images_per_s = (double)s->count / seconds,
        .grad_norm = s->grad_norm,
        .loss_scale = s->loss_scale,
        .peak_share = flops / info->machine_flops,
        .ms_data = ms(s->data_ns),
        .ms_forward = ms(s->forward_ns),
        .ms_backward = ms(s->backward_ns),
        .comm_bytes = s->comm_bytes,
        .ms_comm = ms(s->comm_ns),
        .ms_comm_exposed = ms(s->exposed_ns),
        .ms_optim = ms(s->optim_ns),
        .ms_step = ms(s->step_ns),
        .ms_compute = ms(s->compute_ns),
        .ms_wall = ms(wall_ns),
        .mean_data = ms(s->mean_data_ns),
        .mean_comm_exposed = ms(s->mean_exposed_ns),
        .mean_compute = ms(s->mean_compute_ns),
        .least_comm_exposed = ms(s->least_exposed_ns),
    };

    return ddp_metrics_step(run->metrics, &record);
}

/* ---- the slowest rank ---- */

/* A rank that all others wait for, while it is so. */
static void warn_late(const ddpi_run *run, const ddp_straggler *late)
{
    ddp_warn("rank %d on %s is slow: %.1f ms a step of its own, %.1f in the mean of all ranks; it "
             "is behind in: %s",
             late->rank, run->ranks[late->rank].host, late->own_ms, late->mean_ms,
             ddp_step_part_name(late->part));
}

static void show_slowest(const ddpi_run *run, const ddp_straggler *s)
{
    if (s->own_ms > NOTABLE * s->mean_ms)
        ddp_log_print("slowest: rank %d on %s, %.1f ms a step of its own, %.1f in the mean of all "
                      "ranks (%s), in %" PRId64 " of %" PRId64 " steps",
                      s->rank, run->ranks[s->rank].host, s->own_ms, s->mean_ms,
                      ddp_step_part_name(s->part), s->slowest_steps, s->steps);
}

static ddp_status add_slowest(const ddpi_observer_state *state, ddp_json *record)
{
    const ddp_stragglers *all = state->stragglers;
    ddp_straggler slowest;
    ddp_json *ranks, *object;

    if (!ddp_stragglers_get(all, &slowest))
        return DDP_OK;
    DDP_TRY(ddp_json_array(&ranks));
    for (int r = 0; r < state->run->world; r++)
        ddp_json_append_number(ranks, ddp_stragglers_own_ms(all, r));
    ddp_json_set(record, "own_ms", ranks);
    DDP_TRY(ddp_json_object(&object));
    ddp_json_set_int(object, "rank", slowest.rank);
    ddp_json_set_string(object, "host", state->run->ranks[slowest.rank].host);
    ddp_json_set_string(object, "part", ddp_step_part_name(slowest.part));
    ddp_json_set_int(object, "steps", slowest.slowest_steps);
    ddp_json_set(record, "slowest", object);
    return DDP_OK;
}

/* ---- TensorBoard ---- */

static ddp_status log_step(const ddpi_observer_state *state, const ddp_step_info *step)
{
    const ddp_step_stats *s = step->stats;
    const ddp_scalar scalars[] = {
        {"train/loss", s->loss_sum / (double)s->count},
        {"train/lr", step->lr},
        {"train/grad_norm", s->grad_norm},
        {"speed/images_per_s", (double)s->count / ((double)s->step_ns * 1e-9)},
        {"speed/step_ms", ms(s->step_ns)},
        {"speed/comm_exposed_ms", ms(s->exposed_ns)},
        {"speed/data_ms", ms(s->data_ns)},
    };

    return state->events != NULL ? ddp_events_write(state->events, step->step, scalars,
                                                    sizeof scalars / sizeof *scalars)
                                 : DDP_OK;
}

static ddp_status log_epoch(const ddpi_observer_state *state, const ddp_epoch_stats *epoch)
{
    const bool val = state->run->net.val != NULL;
    const ddp_scalar scalars[] = {
        {"epoch/train_loss", epoch->train_loss},
        {"epoch/images_per_s", epoch->images_per_s},
        {val ? "epoch/val_loss" : "epoch/test_loss", epoch->test.loss},
        {val ? "epoch/val_accuracy" : "epoch/test_accuracy", accuracy(&epoch->test)},
    };

    if (state->events == NULL)
        return DDP_OK;
    DDP_TRY(ddp_events_write(state->events, state->step, scalars, epoch->evaluated ? 4 : 2));
    return ddp_events_flush(state->events);
}

/* ---- steps ---- */

static void show_progress(const ddpi_observer_state *state, const ddp_run_info *info,
                          const ddp_step_info *step)
{
    const ddp_config *config = &state->run->config;
    int64_t steps = info->epochs * info->steps_per_epoch;
    int64_t limit = config->trainer.max_steps;
    if (limit > 0 && limit < steps)
        steps = limit;
    ddp_progress progress = {
        .epoch = (int)step->epoch,
        .epochs = (int)info->epochs,
        .step = step->step_in_epoch,
        .steps = info->steps_per_epoch,
        .loss = step->stats->loss_sum / (double)step->stats->count,
        .lr = step->lr,
        .images_per_s = state->rate,
        .seconds_left = (double)(steps - step->step) * (double)config->global_batch / state->rate,
    };

    ddp_log_progress(&progress);
}

static ddp_status on_step(void *arg, const ddp_run_info *info, const ddp_step_info *step)
{
    ddpi_observer_state *state = arg;
    double rate = (double)step->stats->count / ((double)step->stats->step_ns * 1e-9);
    int64_t now_ns = ddp_now_ns(), wall_ns = state->last_ns > 0 ? now_ns - state->last_ns : 0;
    ddp_straggler late;

    state->last_ns = now_ns;
    state->rate = state->rate == 0 ? rate : state->rate + RATE_WEIGHT * (rate - state->rate);
    if (ddp_stragglers_step(state->stragglers, step->stats, &late))
        warn_late(state->run, &late);
    if (!state->run->config.run.quiet)
        show_progress(state, info, step);
    if (!state->run->config.run.quiet)
        ddpi_run_watch_buckets(state->run, step->stats);
    state->step = step->step;
    DDP_TRY(log_step(state, step));
    return record_step(state->run, info, step, wall_ns);
}

/* ---- epochs ---- */

static ddp_status fill_epoch(const ddpi_observer_state *state, const ddp_epoch_stats *epoch,
                             ddp_json *record)
{
    const ddpi_run *run = state->run;
    bool val = run->net.val != NULL;
    char ledger[20];

    ddp_json_set_string(record, "kind", "epoch");
    ddp_json_set_int(record, "epoch", epoch->epoch);
    ddp_json_set_number(record, "train_loss", epoch->train_loss);
    if (epoch->evaluated) {
        ddp_json_set_number(record, val ? "val_loss" : "test_loss", epoch->test.loss);
        ddp_json_set_number(record, val ? "val_accuracy" : "test_accuracy", accuracy(&epoch->test));
        ddp_json_set_number(record, val ? "val_top5" : "test_top5",
                            (double)epoch->test.top5 / (double)epoch->test.count);
    }
    ddp_json_set_int(record, "skipped_steps", epoch->skipped_steps);
    snprintf(ledger, sizeof ledger, "%016" PRIx64, epoch->ledger.sum ^ epoch->ledger.parity);
    ddp_json_set_string(record, "ledger", ledger);
    ddp_json_set_number(record, "seconds", epoch->seconds);
    ddp_json_set_number(record, "images_per_s", epoch->images_per_s);
    return add_slowest(state, record);
}

static ddp_status record_epoch(const ddpi_observer_state *state, const ddp_epoch_stats *epoch)
{
    ddp_json *record;

    DDP_TRY(ddp_json_object(&record));
    const ddp_status st = fill_epoch(state, epoch, record);
    if (st != DDP_OK) {
        ddp_json_destroy(record);
        return st;
    }
    return ddp_metrics_write(state->run->metrics, record);
}

/* The sign of what is no number says nothing. */
static double unsigned_nan(double loss)
{
    return isnan(loss) ? fabs(loss) : loss;
}

static void show_epoch(const ddpi_run *run, const ddp_run_info *info, const ddp_epoch_stats *epoch)
{
    const char *set = run->net.val != NULL ? "validation" : "test";

    ddp_log_progress_end();
    if (epoch->evaluated)
        ddp_log_print("epoch %" PRId64 "/%" PRId64
                      ": train loss %.4f, %s loss %.4f, %s accuracy %.4f, %.0f images/s, %.1f s",
                      epoch->epoch, info->epochs, epoch->train_loss, set,
                      unsigned_nan(epoch->test.loss), set, accuracy(&epoch->test),
                      epoch->images_per_s, epoch->seconds);
    else
        ddp_log_print("epoch %" PRId64 "/%" PRId64 ": train loss %.4f, %.0f images/s, %.1f s",
                      epoch->epoch, info->epochs, epoch->train_loss, epoch->images_per_s,
                      epoch->seconds);
}

static ddp_status on_epoch(void *arg, const ddp_run_info *info, const ddp_epoch_stats *epoch)
{
    const ddpi_observer_state *state = arg;
    ddp_straggler slowest;

    if (!state->run->config.run.quiet) {
        show_epoch(state->run, info, epoch);
        if (ddp_stragglers_get(state->stragglers, &slowest))
            show_slowest(state->run, &slowest);
    }
    DDP_TRY(record_epoch(state, epoch));
    DDP_TRY(log_epoch(state, epoch));
    ddp_stragglers_reset(state->stragglers);
    return ddp_metrics_flush(state->run->metrics);
}

ddp_status ddpi_observer_open(ddpi_observer_state *state, ddpi_run *run, ddp_observer *observer_out)
{
    *state = (ddpi_observer_state){.run = run};
    DDP_TRY(ddp_stragglers_create(run->world, &state->stragglers));
    if (run->config.run.tensorboard)
        DDP_TRY(ddp_events_open(run->dir, run->start.steps + 1, &state->events));
    *observer_out = (ddp_observer){.arg = state, .on_step = on_step, .on_epoch = on_epoch};
    return DDP_OK;
}

void ddpi_observer_close(ddpi_observer_state *state)
{
    ddp_stragglers_destroy(state->stragglers);
    ddp_events_close(state->events);
}
