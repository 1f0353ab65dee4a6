/* run.c - the stages of a run, in order, and the way out when one fails.
 *
 * What can be refused is refused before anything is written: the run directory comes after options,
 * data and model. A failure that all ranks agreed on is printed by rank 0, and all leave through
 * ddp_comm_close(). Any other failure is this rank's alone: it prints the cause and takes the
 * others along through the communicator, which may be in the middle of something. */
#include "app/run.h"

#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"

/* A launcher kills all ranks as soon as it sees one leave; this long the others have for seeing the
 * cause and closing their files. */
#define LAST_WORDS_NS INT64_C(300000000)

ddp_status ddpi_run_agree(ddpi_run *run, ddp_status mine, const char *what)
{
    ddp_status st = ddp_comm_agree(run->comm, mine, what);

    run->agreed = st != DDP_OK;
    return st;
}

static ddp_status check_options(ddpi_run *run)
{
    if (run->app->early != DDP_OK)
        return ddp_status_set(run->app->early, NULL, 0, "%s", run->app->early_message);
    return DDP_OK;
}

/* Hosts may have been given different files or variables. */
ddp_status ddpi_run_compare_options(ddpi_run *run)
{
    char *text = NULL;
    ddp_status st = ddpi_run_agree(run, ddp_config_fingerprint(&run->config, &text), "options");

    if (st == DDP_OK)
        st = ddp_comm_fingerprint(run->comm, text, "options");
    ddp_free(text);
    return st;
}

typedef struct stage {
    const char *name; /* for the other ranks' messages */
    ddp_status (*run)(ddpi_run *run);
} stage;

static const stage stages[] = {
    {"read options", check_options},
    {"compare options", ddpi_run_compare_options},
    {"look at the checkpoint", ddpi_run_find_start},
    {"find the machine", ddpi_run_find_machine},
    {"open data", ddpi_run_open_data},
    {"open the model", ddpi_run_open_model},
    {"open the run directory", ddpi_run_open_dir},
    {"deal shards", ddpi_run_deal},
    {"prepare training", ddpi_run_open_training},
    {"load weights", ddpi_run_load_weights},
    {"compare models", ddpi_run_compare_models},
    {"prepare checkpoints", ddpi_run_prepare_saving},
    {"measure the machine", ddpi_run_measure_peak},
    {"describe the run", ddpi_run_describe},
};

/* Of a run that only looks at what another has left. */
static const stage replay_stages[] = {
    {"read options", check_options},
    {"compare options", ddpi_run_compare_options},
    {"find the machine", ddpi_run_find_machine},
    {"replay", ddpi_run_replay},
};

static ddp_status pass(ddpi_run *run, const stage *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ddp_comm_note(run->comm, 0, list[i].name);
        DDP_TRY(ddpi_run_agree(run, list[i].run(run), list[i].name));
    }
    return DDP_OK;
}

static ddp_status set_up(ddpi_run *run)
{
    return pass(run, stages, sizeof stages / sizeof stages[0]);
}

/* Everything is saved, and the run can go on later. */
static ddp_status stop(ddpi_run *run)
{
    DDP_TRY(ddpi_run_agree(run, ddpi_run_finish(run), "finish"));
    if (run->rank == 0)
        ddpi_run_write_status(run, ddpi_run_status_word(run));
    return DDP_STOPPED;
}

static ddp_status run_all(ddpi_run *run)
{
    if (run->config.run.replay != NULL)
        return pass(run, replay_stages, sizeof replay_stages / sizeof replay_stages[0]);
    if (run->config.run.doctor) {
        DDP_TRY(ddpi_run_agree(run, check_options(run), "read options"));
        return ddpi_run_doctor(run);
    }
    DDP_TRY(set_up(run));
    if (ddpi_run_verifies(run)) {
        DDP_TRY(ddpi_run_verify(run));
        if (run->rank == 0)
            ddpi_run_write_status(run, "verified");
        return DDP_OK;
    }
    DDP_TRY(ddpi_run_work(run));
    if (run->summary.stopped != DDP_SAVER_GO_ON)
        return stop(run);
    DDP_TRY(ddpi_run_agree(run, ddpi_run_save_weights(run), "save weights"));
    DDP_TRY(ddpi_run_agree(run, ddpi_run_finish(run), "finish"));
    if (run->rank == 0)
        ddpi_run_write_status(run, ddpi_run_status_word(run));
    return DDP_OK;
}

/* ---- a rank's surroundings ---- */

static ddp_status open_log(ddpi_run *run)
{
    ddp_log_opts opts = DDP_LOG_OPTS_DEFAULTS;

    opts.rank = run->rank;
    opts.console_level = (ddp_log_level)run->config.run.log_level;
    if (run->config.run.quiet && opts.console_level > DDP_LOG_WARN)
        opts.console_level = DDP_LOG_WARN;
    return ddp_log_create(&opts, &run->log);
}

static void on_fatal(void *arg, const char *cause);

static void enter_rank(ddpi_run *run)
{
    ddp_rank_ctx ctx = {.rank = run->rank,
                        .world = run->world,
                        .host = ddp_comm_host(run->comm),
                        .log = run->log,
                        .spans = run->spans,
                        .on_fatal = on_fatal,
                        .on_fatal_arg = run};

    ddp_rank_ctx_set(&ctx);
}

/* The process is about to leave without ddpi_run_rank()'s return, in any thread: the last words. */
static void on_fatal(void *arg, const char *cause)
{
    ddpi_run *run = arg;

    enter_rank(run); /* the communicator's threads have a context without log */
    ddp_debug("failed: %s", cause);
    ddpi_run_write_status(run, "failed");
    ddp_comm_fail(run->comm, cause);
    ddpi_run_write_failure(run);
    if (run->world > 1)
        ddp_sleep_ns(LAST_WORDS_NS);
    ddpi_run_merge_failure(run);
}

/* Statuses that every rank gets from the same numbers, without having to agree. */
static bool is_everybodys(const ddpi_run *run, ddp_status st)
{
    return run->agreed || st == DDP_ERR_NONFINITE || st == DDP_ERR_MISMATCH;
}

/* message is a copy: what follows may fail too. */
static void report(ddpi_run *run, ddp_status st, const char *message)
{
    ddp_log_progress_end();
    ddp_debug("failed: %s", message);
    ddpi_run_write_status(run, "failed");
    if (!is_everybodys(run, st))
        ddp_comm_fail(run->comm, message); /* prints it once; processes end here */
    else if (run->rank == 0 && !run->app->threads)
        ddp_error("%s", message);
}

static void close_run(ddpi_run *run)
{
    ddpi_run_close_model(run);
    ddpi_run_close_buckets(run);
    ddpi_run_close_shares(run);
    ddpi_run_close_data(run);
    ddp_metrics_close(run->metrics);
    ddpi_run_unlock_dir(run);
    ddp_free(run->ranks);
}

ddp_status ddpi_run_rank(const ddpi_app *app, ddp_comm *comm, char *message, size_t message_bytes)
{
    ddpi_run *run;
    ddp_status st = DDP_ALLOC(run, 1);

    if (st != DDP_OK)
        ddp_fatal("%s", ddp_status_message());
    run->app = app;
    run->config = *app->config;
    run->comm = comm;
    run->rank = ddp_comm_rank(comm);
    run->world = ddp_comm_world(comm);
    st = open_log(run);
    if (st == DDP_OK && run->config.timeline.spans)
        st = ddp_spans_create(&run->spans);
    if (st != DDP_OK)
        ddp_fatal("%s", ddp_status_message());
    enter_rank(run);
    ddp_spans_join("main", DDP_SPANS_MAIN);
    ddp_comm_on_failure(comm, on_fatal, run);
    ddp_limits limits;
    ddp_limits_init(&limits, &run->config.trainer.limits);
    ddp_limits_enter(&limits, DDP_PHASE_START, comm);
    st = run_all(run);
    snprintf(message, message_bytes, "%s",
             st == DDP_OK || st == DDP_STOPPED ? "" : ddp_status_message());
    if (st != DDP_OK && st != DDP_STOPPED)
        report(run, st, message);
    close_run(run);
    ddp_comm_close(comm);
    ddp_spans_leave();
    ddp_rank_ctx_set(NULL);
    ddp_spans_destroy(run->spans);
    ddp_log_destroy(run->log);
    ddp_free(run);
    return st;
}
