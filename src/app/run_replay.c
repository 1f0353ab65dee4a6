/* run_replay.c - --replay FILE: one rank computes a micro-batch again that a run has kept because
 * something in it was not finite, and shows the range of everything on the way.
 *
 * The file has samples and parameters; the model is what the options say, which is the run's own
 * with --config and its config.ini. Neither data set nor run directory is touched. */
#include <inttypes.h>
#include <math.h>

#include "app/run.h"
#include "ddp/memory.h"
#include "ddp/replay.h"

typedef struct player {
    ddpi_run *run;
    ddp_replay *replay;
    float *memory; /* device: parameters, and behind them gradients */
    size_t bytes;
} player;

/* ---- showing ---- */

static ddp_status show(void *arg, const ddp_model_sight *sight)
{
    double low = INFINITY, high = -INFINITY;
    size_t bad = 0;

    (void)arg;
    for (size_t i = 0; i < sight->count; i++) {
        const double value = (double)sight->values[i];
        bad += !isfinite(value);
        low = isfinite(value) && value < low ? value : low;
        high = isfinite(value) && value > high ? value : high;
    }
    if (bad == sight->count)
        low = high = NAN;
    ddp_log_print("%-32s %-24s %12.5g %12.5g %10zu of %zu", sight->name, sight->kind, low, high,
                  bad, sight->count);
    return DDP_OK;
}

static void show_fault(const player *p, double loss, const ddp_fault *fault)
{
    ddp_log_print("loss sum %.9g over %" PRId64 " samples", loss, ddp_replay_count(p->replay));
    if (fault->what[0] == 0)
        ddp_log_print("replay: everything is finite");
    else
        ddp_log_print("replay: first the %s: %zu of %zu values are not finite", fault->what,
                      fault->bad, fault->count);
    for (int i = 0; i < fault->samples; i++)
        ddp_log_print("replay: sample %" PRId64 ", at %" PRId64 " of the micro-batch",
                      ddp_replay_indices(p->replay)[fault->places[i]], fault->places[i]);
}

/* ---- computing ---- */

static ddp_status compute(player *p)
{
    const ddp_replay_info *info = ddp_replay_get_info(p->replay);
    ddpi_run_net *net = &p->run->net;
    ddp_replay_parts parts = {.device = net->device, .model = net->model, .params = p->memory};
    ddp_fault fault;
    double loss = 0;

    DDP_TRY(ddp_replay_load(p->replay, net->device, ddp_model_params(net->model), p->memory,
                            &parts.input));
    ddp_model_bind(net->model, p->memory, p->memory + p->bytes / sizeof(float) / 2);
    ddp_log_print("step %" PRId64 " (epoch %" PRId64 "), rank %d, shard %" PRId64, info->step,
                  info->epoch, info->rank, info->shard);
    ddp_log_print("%-32s %-24s %12s %12s %10s", "name", "what", "least", "largest", "not finite");
    DDP_TRY(ddp_find_fault(&parts, show, NULL, &loss, &fault));
    show_fault(p, loss, &fault);
    return DDP_OK;
}

static ddp_status prepare(player *p)
{
    ddpi_run *run = p->run;
    void *memory;

    run->config.model.input_shape = ddp_replay_sample(p->replay);
    run->config.model.classes = ddp_replay_get_info(p->replay)->classes;
    DDP_TRY(ddpi_run_open_model(run));
    DDP_TRY(ddp_model_plan(run->net.model, ddp_replay_count(p->replay), true));
    p->bytes = 2 * ddp_param_table_length(ddp_model_params(run->net.model)) * sizeof(float);
    DDP_TRY(ddp_device_alloc(run->net.device, p->bytes, &memory));
    p->memory = memory;
    return DDP_OK;
}

ddp_status ddpi_run_replay(ddpi_run *run)
{
    player p = {.run = run};

    if (run->world > 1)
        return DDP_FAIL(DDP_ERR_USAGE, "option --replay: found %d ranks, expected one", run->world);
    DDP_TRY(ddp_replay_open(run->config.run.replay, &p.replay));
    ddp_status st = prepare(&p);
    if (st == DDP_OK)
        st = compute(&p);
    ddp_replay_close(p.replay);
    if (p.memory != NULL)
        ddp_device_free(run->net.device, p.memory, p.bytes);
    return st;
}
