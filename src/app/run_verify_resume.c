/* run_verify_resume.c - --verify-resume K: does a run that was saved and goes on end as one that
 * was not disturbed?
 *
 * 2K steps in one go; then from the start again K steps, a checkpoint in the run's directory, new
 * loader and strategy that know nothing, the checkpoint, and K more. Losses, parameters, the
 * optimizer's state and running statistics must be the same to the last bit. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/verify.h"

/* What steps come to; arrays of the host. */
typedef struct ending {
    double *losses;                    /* [2 K] */
    float *params;                     /* flat, like the next */
    float *flats[DDP_OPTIM_MAX_FLATS]; /* NULL: there are fewer */
    const char *names[DDP_OPTIM_MAX_FLATS];
    float *running; /* NULL: none */
} ending;

typedef struct trial {
    ddpi_run *run;
    int64_t k;
    size_t flat, running; /* lengths */
    ending whole, parts;
} trial;

static ddp_status allocate(trial *t, ending *e)
{
    DDP_TRY(DDP_ALLOC(e->losses, (size_t)(2 * t->k)));
    DDP_TRY(DDP_ALLOC(e->params, t->flat));
    for (int i = 0; i < DDP_OPTIM_MAX_FLATS; i++)
        DDP_TRY(DDP_ALLOC(e->flats[i], t->flat));
    return t->running > 0 ? DDP_ALLOC(e->running, t->running) : DDP_OK;
}

static void release(ending *e)
{
    ddp_free(e->losses);
    ddp_free(e->params);
    for (int i = 0; i < DDP_OPTIM_MAX_FLATS; i++)
        ddp_free(e->flats[i]);
    ddp_free(e->running);
}

/* ---- training ---- */

static ddp_status fetch(const trial *t, float *dst, const float *src, size_t count)
{
    ddp_stream *stream = ddp_device_main_stream(t->run->net.device);

    DDP_TRY(ddp_device_copy(t->run->net.device, stream, dst, src, count * sizeof *dst,
                            DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

/* Collective. */
static ddp_status fetch_state(const trial *t, ending *e)
{
    ddp_strategy_state state;

    DDP_TRY(ddp_strategy_get_state(t->run->net.strategy, true, &state));
    DDP_TRY(fetch(t, e->params, ddp_strategy_params(t->run->net.strategy), t->flat));
    for (int i = 0; i < state.optim.count; i++) {
        e->names[i] = state.optim.flats[i].name;
        DDP_TRY(fetch(t, e->flats[i], state.optim.flats[i].values, t->flat));
    }
    return t->running > 0 ? fetch(t, e->running, state.combined, t->running) : DDP_OK;
}

static ddp_status train(const trial *t, int64_t from, int64_t to, ending *e)
{
    const ddp_range steps = {(size_t)from, (size_t)to};

    return ddpi_run_steps(t->run, t->run->net.strategy, t->run->net.loader, steps,
                          e->losses + from);
}

/* Where a run stands after k steps, as its trainer would say it. */
static ddp_run_state state_after(const trial *t, int64_t k)
{
    const int64_t steps = ddp_sampler_steps(&t->run->data.sampler);
    ddp_run_state state = DDP_RUN_STATE_START;

    state.steps = k;
    state.epoch = k / steps;
    state.step_in_epoch = k % steps;
    return state;
}

static ddp_status train_parts(trial *t)
{
    ddpi_run *run = t->run;
    const ddp_run_state middle = state_after(t, t->k);
    ddp_run_state found;
    char path[PATH_MAX];

    DDP_TRY(ddpi_run_restart(run));
    DDP_TRY(ddpi_run_agree(run, ddpi_run_load_weights(run), "load weights"));
    DDP_TRY(train(t, 0, t->k, &t->parts));
    DDP_TRY(ddpi_run_save_at(run, &middle, path));
    DDP_TRY(ddpi_run_restart(run));
    DDP_TRY(ddpi_run_agree(run, ddpi_run_load_at(run, path, &found), "load the checkpoint"));
    if (found.steps != t->k || found.epoch != middle.epoch ||
        found.step_in_epoch != middle.step_in_epoch)
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "--verify-resume: FAIL: saved after step %" PRId64
                        ", goes on after step %" PRId64,
                        t->k, found.steps);
    DDP_TRY(train(t, found.steps, 2 * t->k, &t->parts));
    return fetch_state(t, &t->parts);
}

/* ---- comparing ---- */

static ddp_status compare_running(const trial *t)
{
    const ddp_buffer_table *table = ddp_model_buffers(t->run->net.model);

    for (int i = 0; i < ddp_buffer_table_count(table) && t->running > 0; i++) {
        const ddp_buffer *b = ddp_buffer_table_at(table, i);
        const size_t bytes = (size_t)b->count * sizeof(float);
        if (!b->counter &&
            memcmp(t->whole.running + b->offset, t->parts.running + b->offset, bytes) != 0)
            return DDP_FAIL(DDP_ERR_MISMATCH,
                            "--verify-resume: FAIL: running statistics %s differ after %" PRId64
                            " steps and after twice %" PRId64,
                            b->name, 2 * t->k, t->k);
    }
    return DDP_OK;
}

static ddp_status compare(const trial *t)
{
    const ddp_param_table *table = ddp_model_params(t->run->net.model);
    char what[128];

    for (int64_t i = 0; i < 2 * t->k; i++)
        if (memcmp(&t->whole.losses[i], &t->parts.losses[i], sizeof(double)) != 0)
            return DDP_FAIL(DDP_ERR_MISMATCH,
                            "--verify-resume: FAIL: step %" PRId64
                            " has a loss of %.17g undisturbed and %.17g with a restart after "
                            "step %" PRId64,
                            i + 1, t->whole.losses[i], t->parts.losses[i], t->k);
    snprintf(what, sizeof what, "--verify-resume: FAIL: undisturbed and with a restart");
    DDP_TRY(ddp_check_same_params(table, t->whole.params, t->parts.params, what));
    for (int i = 0; i < DDP_OPTIM_MAX_FLATS && t->whole.names[i] != NULL; i++) {
        snprintf(what, sizeof what, "--verify-resume: FAIL: undisturbed and with a restart, %s",
                 t->whole.names[i]);
        DDP_TRY(ddp_check_same_params(table, t->whole.flats[i], t->parts.flats[i], what));
    }
    return compare_running(t);
}

/* ---- all of it ---- */

/* There are plans for the run's own steps only. */
static ddp_status check_length(const trial *t)
{
    const ddp_trainer_opts *opts = &t->run->config.trainer;
    int64_t steps = opts->epochs * ddp_sampler_steps(&t->run->data.sampler);

    if (opts->max_steps > 0 && opts->max_steps < steps)
        steps = opts->max_steps;
    if (2 * t->k > steps)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --verify-resume: found %" PRId64
                        ", expected at most half of the run's %" PRId64 " steps",
                        t->k, steps);
    return DDP_OK;
}

static ddp_status prepare(trial *t)
{
    DDP_TRY(check_length(t));
    DDP_TRY(allocate(t, &t->whole));
    return allocate(t, &t->parts);
}

static ddp_status verify(trial *t)
{
    DDP_TRY(ddpi_run_agree(t->run, prepare(t), "prepare to verify a restart"));
    DDP_TRY(train(t, 0, 2 * t->k, &t->whole));
    DDP_TRY(fetch_state(t, &t->whole));
    DDP_TRY(train_parts(t));
    DDP_TRY(ddpi_run_agree(t->run, compare(t), "verify a restart"));
    if (t->run->rank == 0)
        ddp_log_print("verify-resume: PASS: %" PRId64 " steps, and a restart after %" PRId64
                      " of them, give the same losses, weights (%016" PRIx64
                      "), optimizer state and statistics",
                      2 * t->k, t->k, ddp_hash64(t->whole.params, t->flat * sizeof(float)));
    return DDP_OK;
}

ddp_status ddpi_run_verify_resume(ddpi_run *run)
{
    trial t = {.run = run,
               .k = run->config.run.verify_resume,
               .flat = ddp_param_table_length(ddp_model_params(run->net.model)),
               .running = ddp_buffer_table_length(ddp_model_buffers(run->net.model))};
    const ddp_status st = verify(&t);

    release(&t.whole);
    release(&t.parts);
    return st;
}
