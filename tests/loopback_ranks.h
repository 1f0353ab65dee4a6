/* loopback_ranks.h - runs a function on the ranks of a loopback world, one thread each. */
#ifndef DDP_TESTS_LOOPBACK_RANKS_H
#define DDP_TESTS_LOOPBACK_RANKS_H

#include "ddp/comm.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

/* What a rank's function returns is agreed by nobody. run_ranks returns the first failure that has
 * its cause in the rank itself; those that were told of another's, in whatever they were at, do not
 * count. */
typedef ddp_status (*rank_fn)(ddp_comm *comm, void *arg);

typedef struct rank_thread {
    ddp_thread thread;
    ddp_rank_ctx ctx;
    ddp_comm *comm;
    rank_fn fn;
    void *arg;
    ddp_status status;
    char message[512];
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    ddp_rank_ctx_set(&t->ctx);
    t->status = t->fn(t->comm, t->arg);
    snprintf(t->message, sizeof t->message, "rank %d: %s", t->ctx.rank, ddp_status_message());
    if (t->status != DDP_OK)
        ddp_comm_fail(t->comm, t->message);
    ddp_comm_close(t->comm);
    return NULL;
}

static inline ddp_status run_faulty_ranks(const ddp_comm_opts *opts, int world,
                                          const ddp_loopback_faults *faults, rank_fn fn, void *arg)
{
    enum { MAX_WORLD = 48 };
    ddp_comm *comms[MAX_WORLD];
    rank_thread threads[MAX_WORLD] = {0};
    DDP_ASSERT(world <= MAX_WORLD);
    DDP_TRY(ddp_comm_loopback_open(opts, world, faults, comms));
    for (int r = 0; r < world; r++) {
        threads[r] = (rank_thread){.ctx = {.rank = r, .world = world, .host = "test"},
                                   .comm = comms[r],
                                   .fn = fn,
                                   .arg = arg};
        DDP_TRY(ddp_thread_start(&threads[r].thread, "rank", rank_main, &threads[r]));
    }
    for (int r = 0; r < world; r++)
        ddp_thread_join(&threads[r].thread);
    const rank_thread *failed = NULL;
    for (int r = 0; r < world; r++)
        if (threads[r].status != DDP_OK && (failed == NULL || (failed->status == DDP_ERR_PEER &&
                                                               threads[r].status != DDP_ERR_PEER)))
            failed = &threads[r];
    return failed == NULL ? DDP_OK : ddp_status_set(failed->status, NULL, 0, "%s", failed->message);
}

static inline ddp_status run_ranks(const ddp_comm_opts *opts, int world, rank_fn fn, void *arg)
{
    static const ddp_loopback_faults none = DDP_LOOPBACK_FAULTS_NONE;
    return run_faulty_ranks(opts, world, &none, fn, arg);
}

#endif
