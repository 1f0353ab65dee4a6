/* loopback.c - a run whose ranks are threads of this process.
 *
 * Each thread runs what a process would, with a rank context of its own. Nobody prints a cause
 * while they run; afterwards the lowest rank that failed by itself, not through another one, has
 * the word. */
#include <stdio.h>
#include <string.h>

#include "app/run.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

typedef struct rank_thread {
    ddp_thread thread;
    const ddpi_app *app;
    ddp_comm *comm;
    ddp_status status;
    char message[1024];
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *t = arg;

    t->status = ddpi_run_rank(t->app, t->comm, t->message, sizeof t->message);
    return NULL;
}

static ddp_status verdict(const rank_thread *threads, int world)
{
    const rank_thread *first = NULL;

    for (int r = 0; r < world; r++) {
        const rank_thread *t = &threads[r];
        bool better = first == NULL || (first->status == DDP_ERR_PEER && t->status != DDP_ERR_PEER);
        if (t->status != DDP_OK && better)
            first = t;
    }
    if (first == NULL)
        return DDP_OK;
    if (first->status == DDP_STOPPED)
        return DDP_STOPPED;
    fprintf(stderr, "ddp_train: rank %d: %s\n", (int)(first - threads), first->message);
    return first->status;
}

static ddp_status run_threads(const ddpi_app *app, ddp_comm **comms, rank_thread *threads,
                              int world)
{
    for (int r = 0; r < world; r++) {
        char name[16];
        threads[r].app = app;
        threads[r].comm = comms[r];
        snprintf(name, sizeof name, "rank-%hhu", (unsigned char)r);
        /* Ranks that run already would wait for those that do not. */
        if (ddp_thread_start(&threads[r].thread, name, rank_main, &threads[r]) != DDP_OK)
            ddp_fatal("%s", ddp_status_message());
    }
    for (int r = 0; r < world; r++)
        ddp_thread_join(&threads[r].thread);
    return verdict(threads, world);
}

ddp_status ddpi_loopback_run(const ddpi_app *app, const ddp_comm_opts *opts, int world)
{
    static const ddp_loopback_faults none = DDP_LOOPBACK_FAULTS_NONE;
    ddp_comm **comms = NULL;
    rank_thread *threads = NULL;
    ddp_status st = DDP_ALLOC(comms, (size_t)world);

    if (st == DDP_OK)
        st = DDP_ALLOC(threads, (size_t)world);
    if (st == DDP_OK)
        st = ddp_comm_loopback_open(opts, world, &none, comms);
    if (st == DDP_OK)
        st = run_threads(app, comms, threads, world);
    else
        fprintf(stderr, "ddp_train: %s\n", ddp_status_message());
    ddp_free(threads);
    ddp_free(comms);
    return st;
}
