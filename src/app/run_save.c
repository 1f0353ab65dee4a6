/* run_save.c - a run's checkpoints: what goes on from one, what stands in one beside the tensors,
 * and what is told of each. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "app/resume.h"
#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/stop.h"
#include "ddp/thread.h"

static ddp_saver_parts parts_of(const ddpi_run *run)
{
    return (ddp_saver_parts){.strategy = run->net.strategy,
                             .model = run->net.model,
                             .device = run->net.device,
                             .comm = run->comm,
                             .shards = run->config.shards,
                             .first_shard = ddpi_run_first_shard(run),
                             .batches = run->net.batches};
}

/* ---- going on ---- */

bool ddpi_run_resumes(const ddpi_run *run)
{
    return ddpi_resume_path(run->app->resume) != NULL;
}

/* Processes have looked one by one. */
static ddp_status compare_found(const ddpi_run *run)
{
    char text[PATH_MAX + 64], manifest[PATH_MAX] = "";
    const char *path = ddpi_resume_path(run->app->resume);
    uint64_t hash = 0;
    size_t bytes;
    ddp_status st = DDP_OK;

    if (path != NULL)
        st = ddp_fs_join(manifest, sizeof manifest, path, "MANIFEST.json");
    if (path != NULL && st == DDP_OK)
        st = ddp_fs_hash(manifest, &hash, &bytes);
    DDP_TRY(ddp_comm_agree(run->comm, st, "look at the checkpoint"));
    snprintf(text, sizeof text, "checkpoint=%s\nmanifest=%016" PRIx64 "\n",
             path != NULL ? path : "none", hash);
    return ddp_comm_fingerprint(run->comm, text, "the checkpoint to go on from");
}

static void print_lines(const char *text, bool warn)
{
    for (const char *at = text; *at != 0; at = strchr(at, '\n') + 1) {
        const int length = (int)strcspn(at, "\n");
        if (warn)
            ddp_warn("%.*s", length, at);
        else
            ddp_log_print("%.*s", length, at);
        if (at[length] == 0)
            break;
    }
}

static void print_resume(const ddpi_run *run)
{
    const ddpi_resume *resume = run->app->resume;
    const ddp_run_state *at = &run->start;

    if (run->rank != 0)
        return;
    print_lines(ddpi_resume_notes(resume), true);
    if (run->config.run.quiet)
        return;
    if (!ddpi_run_resumes(run)) {
        ddp_log_print("no checkpoint to go on from: the run starts at its beginning");
        return;
    }
    ddp_log_print("goes on after step %" PRId64 " (epoch %" PRId64 ", step %" PRId64 " of it): %s",
                  at->steps, at->epoch + 1, at->step_in_epoch, ddpi_resume_path(resume));
    print_lines(ddpi_resume_changes(resume), false);
    if (run->config.shards != run->config.run.logical_ranks)
        ddp_log_print("logical shards: were %" PRId64 ", are %" PRId64
                      " now, one for each rank; each begins with their combined running statistics",
                      run->config.run.logical_ranks, run->config.shards);
}

ddp_status ddpi_run_find_start(ddpi_run *run)
{
    static const ddp_run_state beginning = DDP_RUN_STATE_START;
    const ddpi_resume *resume = run->app->resume;

    run->start = beginning;
    if (resume == NULL)
        return DDP_OK;
    DDP_TRY(compare_found(run));
    if (ddpi_run_resumes(run))
        DDP_TRY(
            ddp_run_state_read(ddpi_resume_state(resume), ddpi_resume_path(resume), &run->start));
    print_resume(run);
    return DDP_OK;
}

/* Kernels follow the processor or GPU and the library, and a CPU's sums the number of threads: with
 * --exact the run could not end with the bits that it would have ended with. */
static ddp_status compare_arithmetic(const ddpi_run *run, const ddp_json *state)
{
    const char *device = NULL;
    const char *here = ddp_device_describe(run->net.device);
    int64_t threads = 0;

    if (!run->config.run.exact)
        return DDP_OK;
    if (!ddp_json_as_string(ddp_json_get(state, "device"), &device) || strcmp(device, here) != 0)
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "option --exact: the run that goes on was computed by %s, here is %s",
                        device != NULL ? device : "an unknown device", here);
    if (!ddp_device_is_host(run->net.device))
        return DDP_OK;
    if (!ddp_json_as_int(ddp_json_get(state, "threads"), &threads) ||
        threads != run->config.device.threads)
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "option --exact: the run that goes on has %" PRId64
                        " threads for an operation, found %d",
                        threads, run->config.device.threads);
    return DDP_OK;
}

ddp_status ddpi_run_load_checkpoint(ddpi_run *run)
{
    const ddpi_resume *resume = run->app->resume;
    const ddp_saver_parts parts = parts_of(run);
    const int64_t steps = ddp_sampler_steps(&run->data.sampler);

    if (run->start.step_in_epoch > steps)
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "%s stands at step %" PRId64 " of an epoch, but the data set has %" PRId64
                        " steps an epoch",
                        ddpi_resume_path(resume), run->start.step_in_epoch, steps);
    DDP_TRY(compare_arithmetic(run, ddpi_resume_state(resume)));
    return ddp_saver_load(ddpi_resume_path(resume), ddpi_resume_state(resume), &parts, &run->start,
                          &run->net.batches);
}

/* ---- state.json ---- */

static void add_option(void *arg, const char *name, const char *value)
{
    if (ddpi_resume_stores(name))
        ddp_json_set_string(arg, name, value);
}

static ddp_status fill_state(const ddpi_run *run, const ddp_run_state *state, ddp_json *object)
{
    ddp_json *options;
    char *choices;

    ddp_json_set_string(object, "version", DDP_VERSION);
    DDP_TRY(ddp_run_state_write(state, object));
    ddp_json_set_int(object, "seed", run->config.run.seed);
    ddp_json_set_int(object, "global_batch", run->config.global_batch);
    ddp_json_set_int(object, "logical_ranks", run->config.shards);
    DDP_TRY(ddp_json_object(&options));
    ddp_json_set(object, "options", options);
    ddp_options_visit(run->app->config->options, add_option, options);
    DDP_TRY(ddp_model_fingerprint(run->net.model, &choices));
    ddp_json_set_string(object, "choices", choices);
    ddp_free(choices);
    ddp_json_set_string(object, "device", ddp_device_describe(run->net.device));
    ddp_json_set_int(object, "threads", run->config.device.threads);
    return DDP_OK;
}

static ddp_status describe(void *arg, const ddp_run_state *state, char **text_out)
{
    ddp_json *object;

    DDP_TRY(ddp_json_object(&object));
    ddp_status st = fill_state(arg, state, object);
    if (st == DDP_OK)
        st = ddp_json_text(object, 2, text_out);
    ddp_json_destroy(object);
    return st;
}

/* ---- saving ---- */

static ddp_status report(void *arg, const ddp_ckpt_report *r)
{
    const ddpi_run *run = arg;
    ddp_json *record;

    ddp_debug("checkpoint of step %" PRId64 " %s", r->step, r->good ? "is complete" : "has failed");
    DDP_TRY(ddp_json_object(&record));
    ddp_json_set_string(record, "kind", "checkpoint");
    ddp_json_set_int(record, "step", r->step);
    ddp_json_set_bool(record, "good", r->good);
    ddp_json_set_number(record, "stall_ms", (double)r->stall_ns * 1e-6);
    ddp_json_set_number(record, "write_ms", (double)r->write_ns * 1e-6);
    ddp_json_set_int(record, "bytes", (int64_t)r->bytes);
    return ddp_metrics_write(run->metrics, record);
}

/* The last checkpoint is this run's own if it lies in its directory. */
static int64_t saved_step(const ddpi_run *run, const char *dir)
{
    const char *path = ddpi_resume_path(run->app->resume);

    return path != NULL && strncmp(path, dir, strlen(dir)) == 0 ? run->start.steps : -1;
}

static bool saves(const ddp_run_opts *run)
{
    return run->checkpoint_every > 0 || run->checkpoint_minutes > 0 || run->checkpoint_epochs > 0 ||
           run->checkpoint_at_end || run->keep_best;
}

/* The user counts on checkpoints, rather than getting them by default. */
static bool asks_for_them(const ddpi_run *run)
{
    static const char *const names[] = {"checkpoint-every",  "checkpoint-minutes",
                                        "checkpoint-epochs", "checkpoint-at-end",
                                        "keep-best",         "resume"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ddp_options_was_set(run->app->config->options, names[i]))
            return true;
    return false;
}

ddp_status ddpi_run_save_at(ddpi_run *run, const ddp_run_state *state, char path[PATH_MAX])
{
    enum { NAME_BYTES = 32 };
    const ddp_saver_parts parts = parts_of(run);
    char dir[PATH_MAX], name[NAME_BYTES];
    ddp_saver *saver;

    DDP_TRY(ddpi_run_path(run, DDPI_CHECKPOINTS, dir));
    snprintf(name, sizeof name, "step-%010" PRId64, state->steps);
    DDP_TRY(ddp_fs_join(path, PATH_MAX, dir, name));
    const ddp_saver_opts opts = {.dir = dir,
                                 .at_end = true,
                                 .keep = 1,
                                 .saved_step = -1,
                                 .deadline_ns = DDP_NO_DEADLINE,
                                 .describe = describe,
                                 .report = report,
                                 .arg = run};
    DDP_TRY(ddp_saver_create(&opts, &parts, &saver));
    const ddp_status st = ddp_saver_finish(saver, state);
    ddp_saver_destroy(saver);
    return st;
}

ddp_status ddpi_run_load_at(ddpi_run *run, const char *path, ddp_run_state *state_out)
{
    const ddp_saver_parts parts = parts_of(run);
    ddp_json *state;

    DDP_TRY(ddp_ckpt_check(path, &state));
    const ddp_status st = ddp_saver_load(path, state, &parts, state_out, &run->net.batches);
    ddp_json_destroy(state);
    return st;
}

/* Else the next --resume auto would find these, and not what this run saves. */
static ddp_status leave_newer(ddpi_run *run, const char *dir)
{
    ddp_status st = DDP_OK;

    if (run->rank == 0 && ddpi_run_resumes(run))
        st = ddp_ckpt_leave_newer(dir, run->start.steps);
    return ddpi_run_agree(run, st, "set newer checkpoints aside");
}

ddp_status ddpi_run_prepare_saving(ddpi_run *run)
{
    const ddp_run_opts *given = &run->config.run;
    char dir[PATH_MAX];

    if (given->eval_only)
        return DDP_OK;
    const ddp_saver_parts parts = parts_of(run);
    DDP_TRY(ddpi_run_path(run, DDPI_CHECKPOINTS, dir));
    ddp_saver_opts opts = {.dir = saves(given) ? dir : NULL,
                           .every = given->checkpoint_every,
                           .minutes = given->checkpoint_minutes,
                           .epochs = given->checkpoint_epochs,
                           .at_end = given->checkpoint_at_end,
                           .keep = given->keep,
                           .keep_best = given->keep_best,
                           .saved_step = saved_step(run, dir),
                           .deadline_ns = run->app->deadline_ns,
                           .asked = ddp_stop_asked,
                           .describe = describe,
                           .report = report,
                           .arg = run};
    if (opts.dir != NULL)
        DDP_TRY(leave_newer(run, dir));
    ddp_status st = ddp_saver_create(&opts, &parts, &run->net.saver);
    if (st != DDP_ERR_IO || asks_for_them(run))
        return st;
    if (run->rank == 0)
        ddp_warn("nothing is saved: %s", ddp_status_message());
    opts.dir = NULL;
    return ddp_saver_create(&opts, &parts, &run->net.saver);
}
