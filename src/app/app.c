/* app.c - ddp_app_main(): options, the questions that need no ranks, and the world that a run
 * needs.
 *
 * Options are read before MPI_Init, since they choose the communicator and --help must work without
 * one. What is wrong with them is printed at once by a process that stands alone; under a launcher
 * every process has found the same, so they first become ranks and rank 0 prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "app/run.h"
#include "ddp/memory.h"
#include "ddp/stop.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

/* Of MPI, with --doctor. */
#define START_LIMIT_S 20.0
/* More than any run needs; what walks over all that are allowed would take long. */
#define FILES_LIMIT ((rlim_t)65536)

/* ---- the launcher, as far as the environment tells ---- */

static const char *variable(char **envp, const char *name)
{
    size_t bytes = strlen(name);

    for (; envp != NULL && *envp != NULL; envp++)
        if (strncmp(*envp, name, bytes) == 0 && (*envp)[bytes] == '=')
            return *envp + bytes + 1;
    return NULL;
}

static int first_number(char **envp, const char *const *names)
{
    for (; *names != NULL; names++) {
        const char *text = variable(envp, *names);
        if (text != NULL)
            return (int)strtol(text, NULL, 10);
    }
    return -1;
}

static void find_launcher(ddpi_app *app)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    int rank = first_number(app->envp, ranks), size = first_number(app->envp, sizes);

    app->launched = rank >= 0;
    app->launcher_rank = rank > 0 ? rank : 0;
    app->launcher_size = size > 0 ? size : 0;
}

/* ---- answers without ranks ---- */

static ddp_status print_answer(const ddpi_app *app, ddp_options_verdict verdict)
{
    char *text = NULL;
    ddp_status st = DDP_OK;

    if (verdict == DDP_OPTIONS_HELP)
        st = ddp_options_help(app->config->options, &text);
    else if (verdict == DDP_OPTIONS_PRINT_CONFIG)
        st = ddp_options_print(app->config->options, &text);
    DDP_TRY(st);
    if (app->launcher_rank == 0)
        fputs(text != NULL ? text : "ddp_train " DDP_VERSION "\n", stdout);
    ddp_free(text);
    if (fflush(stdout) != 0)
        return DDP_FAIL(DDP_ERR_IO, "standard output takes no text");
    return DDP_OK;
}

/* Under a launcher where no world could be made: one process prints. */
static int leave_with_cause(const ddpi_app *app, ddp_status st)
{
    if (app->launcher_rank == 0)
        fprintf(stderr, "ddp_train: %s\n", ddp_status_message());
    return ddp_status_exit_code(st);
}

/* ---- worlds ---- */

/* Other failures will overwrite the thread's message before a rank can report it. */
static void keep_message(ddpi_app *app)
{
    if (app->early != DDP_OK)
        snprintf(app->early_message, sizeof app->early_message, "%s", ddp_status_message());
}

/* The values that depend on the world, some of which a checkpoint decides. */
static ddp_status resolve(ddpi_app *app, int world)
{
    DDP_TRY(ddpi_resume_find(app->config, &app->resume));
    return ddp_config_resolve(app->config, world);
}

static int run_loopback(ddpi_app *app)
{
    ddp_comm_opts opts = app->config->comm;
    int64_t ranks = app->config->run.loopback_ranks;
    int world = ranks > 0 ? (int)ranks : 1;

    opts.exit_on_failure = false;
    app->threads = true;
    ddp_status st = resolve(app, world);
    if (st != DDP_OK)
        return leave_with_cause(app, st);
    return ddp_status_exit_code(ddpi_loopback_run(app, &opts, world));
}

/* MPI's start has no limit of its own, and is what fails most. One process of a host has the word.
 */
static ddp_status watch_start(const ddpi_app *app, ddpi_doctor_watch **watch)
{
    static const char *const locals[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                         "SLURM_LOCALID", NULL};

    if (app->early != DDP_OK || !app->config->run.doctor)
        return DDP_OK;
    return ddpi_doctor_watch_start(START_LIMIT_S, first_number(app->envp, locals) <= 0, watch);
}

static int run_mpi(ddpi_app *app)
{
    ddpi_doctor_watch *watch = NULL;
    static const ddp_comm_opts defaults = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm_opts opts = app->early == DDP_OK ? app->config->comm : defaults;
    char message[sizeof app->early_message];
    ddp_comm *comm;

    opts.exit_on_failure = true;
    keep_message(app);
    ddp_status st = watch_start(app, &watch);
    if (st == DDP_OK)
        st = ddp_comm_mpi_open(&opts, &app->argc, &app->argv, &comm);
    ddpi_doctor_watch_stop(watch);
    if (st != DDP_OK)
        return leave_with_cause(app, st);
    if (app->early == DDP_OK) {
        app->early = resolve(app, ddp_comm_world(comm));
        keep_message(app);
    }
    return ddp_status_exit_code(ddpi_run_rank(app, comm, message, sizeof message));
}

/* Chooses the world, for options that may be wrong already. */
static int run(ddpi_app *app)
{
    ddp_comm_choice choice = DDP_COMM_MPI;

    if (app->early == DDP_OK)
        choice = ddpi_wiring_comm(&app->config->run);
    if (app->early == DDP_OK && choice == DDP_COMM_LOOPBACK && app->launcher_size > 1)
        app->early = DDP_FAIL(DDP_ERR_USAGE,
                              "option --comm: found loopback in a launch of %d processes, expected "
                              "one process (ranks are its threads: --loopback-ranks)",
                              app->launcher_size);
    if (app->early != DDP_OK && (!app->launched || !ddp_comm_has_mpi()))
        return leave_with_cause(app, app->early);
    if (app->early == DDP_OK && choice == DDP_COMM_LOOPBACK)
        return run_loopback(app);
    return run_mpi(app);
}

/* --time-limit from here on, and the end of the Slurm job. */
static void set_deadline(ddpi_app *app)
{
    const char *end = variable(app->envp, "SLURM_JOB_END_TIME");
    const double limit = app->config->time_limit;
    const int64_t now = ddp_now_ns();

    if (limit > 0)
        app->deadline_ns = now + (int64_t)(limit * 1e9);
    if (end == NULL)
        return;
    const int64_t left = strtoll(end, NULL, 10) - (int64_t)time(NULL);
    if (left > 0 && left < INT64_C(1000000000) && now + left * 1000000000 < app->deadline_ns)
        app->deadline_ns = now + left * 1000000000;
}

static int parse_and_run(ddpi_app *app)
{
    ddp_options_verdict verdict = DDP_OPTIONS_RUN;

    app->early = ddp_config_parse(app->config, app->argc, app->argv, app->envp, &verdict);
    if (app->early == DDP_OK && verdict != DDP_OPTIONS_RUN) {
        ddp_status st = print_answer(app, verdict);
        return st == DDP_OK ? 0 : leave_with_cause(app, st);
    }
    if (app->early == DDP_OK)
        set_deadline(app);
    if (app->early == DDP_OK && !app->config->run.eval_only)
        ddp_stop_catch();
    return run(app);
}

/* The soft limit is for programs that use select(); connections to many ranks need more. */
static void allow_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_LIMIT)
        return;
    limit.rlim_cur = limit.rlim_max < FILES_LIMIT ? limit.rlim_max : FILES_LIMIT;
    (void)!setrlimit(RLIMIT_NOFILE, &limit);
}

/* Before any library has a thread. */
static void note_start(ddpi_app *app)
{
    cpu_set_t cores;

    app->start_ns = ddp_now_ns();
    if (sched_getaffinity(0, sizeof cores, &cores) == 0)
        app->start_cores = CPU_COUNT(&cores);
    allow_files();
}

int ddp_app_main(int argc, char **argv, const ddp_app_extras *extras)
{
    ddpi_app app = {.argc = argc, .argv = argv, .envp = environ, .deadline_ns = DDP_NO_DEADLINE};
    ddpi_registry *registry;

    note_start(&app);
    find_launcher(&app);
    ddp_status st = ddpi_registry_create(extras, &registry);
    if (st != DDP_OK)
        return leave_with_cause(&app, st);
    app.registry = registry;
    st = ddp_config_create(ddpi_registry_doc(registry), &app.config);
    int code = st == DDP_OK ? parse_and_run(&app) : leave_with_cause(&app, st);
    ddpi_resume_free(app.resume);
    ddp_config_destroy(app.config);
    ddpi_registry_destroy(registry);
    return code;
}
