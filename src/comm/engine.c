/* engine.c - the communication thread: a list of works, run one after the other.
 *
 * Order is the list's, which is the order of submission and thus equal on all ranks. The monitor
 * guards the list and wakes both sides: the engine when a work comes, and waiters when one is done.
 * Flags that the engine looks at while it runs a work are atomics.
 *
 * Where a node's side channel reaches all ranks, its watchdog finds late works and names who is
 * missing, and the deadline here is only a second line. Elsewhere rank 0's does that if nodes are
 * connected (net.h), and soon after it the engine itself: when half of the time is over it asks all
 * ranks how far they are, and after the deadline it names those that have not entered the work or
 * have not answered. */
#include "comm/engine.h"

#include <stdio.h>

#include "comm/algo.h"
#include "comm/comm_impl.h"
#include "comm/lane_staged.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define NS_PER_MS      ((int64_t)1000000)
#define LISTEN_NS      (20 * NS_PER_MS)   /* between looks for messages while there is no work */
#define ABORT_WAIT_NS  (300 * NS_PER_MS)  /* for the causes of a failure to leave */
#define WATCHDOG_GRACE (2000 * NS_PER_MS) /* its message says more than ours */
#define HUB_GRACE      (300 * NS_PER_MS)  /* the same for rank 0's, which comes from another node */
#define CHECK_ROUNDS   16                 /* waiting rounds between looks at slower things */

struct ddpi_engine {
    ddp_comm *comm;
    ddpi_algo algo;
    ddp_thread thread;
    ddp_monitor monitor;
    ddp_work *head, *tail; /* under the monitor */
    bool busy;             /* under the monitor: with a work */
    bool stop;             /* under the monitor */
    bool told;             /* under the monitor: others have been told of the failure */
    bool asked;            /* who is late with the work that runs; the engine's own */
    unsigned checks;
    uint64_t bytes_sent, bytes_across; /* __atomic */
};

/* ---- what a running work looks at ---- */

static void ask_if_late(ddpi_engine *e, int64_t now_ns)
{
    const ddp_work *work = e->algo.work;

    if (e->asked || now_ns < work->deadline_ns - (work->deadline_ns - work->submit_ns) / 2)
        return;
    e->asked = true;
    e->algo.transport->ask(e->algo.self);
}

static ddp_status late(ddpi_engine *e, int64_t now_ns)
{
    const ddp_work *work = e->algo.work;
    char text[128];
    ddpi_missing missing = {.names = ""};

    ddpi_side_work_format((int)work->coll.kind, work->seq, work->coll.what, work->coll.bucket, text,
                          sizeof text);
    if (e->algo.transport->missing != NULL)
        e->algo.transport->missing(e->algo.self, work->seq, &missing);
    double waited = (double)(now_ns - work->submit_ns) / 1e9;
    if (missing.names[0] != '\0')
        return DDP_FAIL(DDP_ERR_TIMEOUT, "%s has not entered %s for %.1f s%s", missing.names, text,
                        waited, missing.seen);
    return DDP_FAIL(DDP_ERR_TIMEOUT, "%s is not complete after %.1f s, though all ranks entered it",
                    text, waited);
}

ddp_status ddpi_algo_check(ddpi_algo *a)
{
    ddpi_engine *e = a->engine;

    if (ddpi_comm_failed(e->comm))
        return ddpi_comm_cause(e->comm);
    if (e->checks++ % CHECK_ROUNDS != 0)
        return DDP_OK;
    if (a->transport->listen != NULL)
        a->transport->listen(a->self);
    if (a->work->deadline_ns == DDP_NO_DEADLINE)
        return DDP_OK;
    int64_t now_ns = ddp_now_ns();
    int64_t limit_ns = a->work->deadline_ns;
    if (a->transport->ask != NULL)
        ask_if_late(e, now_ns);
    limit_ns += ddpi_watchdog_sees(e->comm->watchdog, e->comm->world) ? WATCHDOG_GRACE : HUB_GRACE;
    return now_ns < limit_ns ? DDP_OK : late(e, now_ns);
}

/* ---- works ---- */

static void run(ddpi_engine *e, ddp_work *work)
{
    ddp_comm *comm = e->comm;
    ddp_status status = DDP_OK;

    if (ddpi_comm_failed(comm)) {
        status = ddpi_comm_cause(comm);
    } else {
        work->owned = (ddp_range){0, work->coll.count};
        e->algo.work = work;
        e->algo.tag = (int)(work->seq % DDPI_TAG_COUNT);
        e->asked = false;
        e->checks = 0;
        status = work->coll.stream != NULL ? ddpi_lane_staged_run(comm->lane, &e->algo)
                                           : ddpi_algo_run(&e->algo, comm->opts.allreduce);
        __atomic_store_n(&e->bytes_sent, e->algo.bytes_sent, __ATOMIC_RELAXED);
        __atomic_store_n(&e->bytes_across, e->algo.bytes_across, __ATOMIC_RELAXED);
        if (status != DDP_OK)
            status = ddpi_comm_raise(comm, status);
    }
    ddpi_work_complete(comm, work, status);
}

/* The next work; NULL when the engine is to stop, or to look around. */
static ddp_work *next_work(ddpi_engine *e, bool *stop_out)
{
    bool listens = e->algo.transport->listen != NULL;
    int64_t until_ns = listens ? ddp_now_ns() + LISTEN_NS : DDP_NO_DEADLINE;

    ddp_monitor_lock(&e->monitor);
    if (e->busy)
        ddp_monitor_wake_all(&e->monitor);
    e->busy = false;
    while (e->head == NULL && !e->stop && (e->told || !ddpi_comm_failed(e->comm)) &&
           ddp_monitor_wait(&e->monitor, until_ns)) {
    }
    ddp_work *work = e->head;
    if (work != NULL) {
        e->busy = true;
        e->head = work->next;
        if (e->head == NULL)
            e->tail = NULL;
    }
    *stop_out = e->stop && work == NULL;
    ddp_monitor_unlock(&e->monitor);
    return work;
}

/* Tells the failure to ranks that only hear messages; once. */
static void tell_failure(ddpi_engine *e)
{
    if (e->told || !ddpi_comm_failed(e->comm))
        return;
    if (e->algo.transport->tell_cause != NULL &&
        !__atomic_load_n(&e->comm->heard, __ATOMIC_ACQUIRE))
        e->algo.transport->tell_cause(e->algo.self, e->comm->cause_status, e->comm->cause);
    ddp_monitor_lock(&e->monitor);
    e->told = true;
    ddp_monitor_wake_all(&e->monitor);
    ddp_monitor_unlock(&e->monitor);
}

static void *engine_main(void *arg)
{
    ddpi_engine *e = arg;
    bool stop = false;

    ddp_thread_short_turns();
    while (!stop) {
        ddp_work *work = next_work(e, &stop);
        tell_failure(e);
        if (work != NULL)
            run(e, work);
        else if (e->algo.transport->listen != NULL && !ddpi_comm_failed(e->comm))
            e->algo.transport->listen(e->algo.self);
    }
    return NULL;
}

void ddpi_engine_submit(ddpi_engine *engine, ddp_work *work)
{
    work->next = NULL;
    ddp_monitor_lock(&engine->monitor);
    if (engine->tail != NULL)
        engine->tail->next = work;
    else
        engine->head = work;
    engine->tail = work;
    ddp_monitor_wake_all(&engine->monitor);
    ddp_monitor_unlock(&engine->monitor);
}

void ddpi_engine_sleep(ddpi_engine *engine, const ddp_work *work, int64_t ns)
{
    ddp_monitor_lock(&engine->monitor);
    if (!__atomic_load_n(&work->done, __ATOMIC_ACQUIRE))
        (void)ddp_monitor_wait(&engine->monitor, ddp_now_ns() + ns);
    ddp_monitor_unlock(&engine->monitor);
}

void ddpi_engine_finish(ddpi_engine *engine, ddp_work *work)
{
    ddp_monitor_lock(&engine->monitor);
    __atomic_store_n(&work->done, 1, __ATOMIC_RELEASE);
    ddp_monitor_wake_all(&engine->monitor);
    ddp_monitor_unlock(&engine->monitor);
}

void ddpi_engine_abort(ddpi_engine *engine)
{
    if (engine == NULL)
        return;
    if (engine->algo.transport->wake != NULL)
        engine->algo.transport->wake(engine->algo.self);
    if (engine->algo.transport->tell_cause == NULL)
        return;
    if (pthread_equal(pthread_self(), engine->thread.handle)) {
        tell_failure(engine);
        return;
    }
    int64_t until_ns = ddp_now_ns() + ABORT_WAIT_NS;
    ddp_monitor_lock(&engine->monitor);
    ddp_monitor_wake_all(&engine->monitor);
    while (!engine->told && ddp_monitor_wait(&engine->monitor, until_ns)) {
    }
    ddp_monitor_unlock(&engine->monitor);
}

void ddpi_engine_settle(ddpi_engine *engine)
{
    if (engine == NULL)
        return;
    ddp_monitor_lock(&engine->monitor);
    while (engine->busy)
        (void)ddp_monitor_wait(&engine->monitor, DDP_NO_DEADLINE);
    ddp_monitor_unlock(&engine->monitor);
}

bool ddpi_engine_has_allreduce(const ddpi_engine *engine)
{
    return engine->algo.transport->allreduce_start != NULL;
}

uint64_t ddpi_engine_bytes_sent(const ddpi_engine *engine)
{
    return engine != NULL ? __atomic_load_n(&engine->bytes_sent, __ATOMIC_RELAXED) : 0;
}

uint64_t ddpi_engine_bytes_across(const ddpi_engine *engine)
{
    return engine != NULL ? __atomic_load_n(&engine->bytes_across, __ATOMIC_RELAXED) : 0;
}

/* ---- life ---- */

static void free_buffers(ddpi_engine *e)
{
    ddp_free(e->algo.scratch);
    ddp_free(e->algo.requests);
}

ddp_status ddpi_engine_start(ddp_comm *comm, const ddpi_transport *transport, void *self,
                             ddpi_engine **engine_out)
{
    ddpi_engine *e;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(e, 1));
    e->comm = comm;
    e->algo = (ddpi_algo){.rank = comm->rank,
                          .world = comm->world,
                          .node = comm->node,
                          .places = comm->places,
                          .team = comm->team,
                          .transport = transport,
                          .self = self,
                          .engine = e};
    DDP_TRY_GOTO(st, ddp_alloc_bytes(1, DDPI_SCRATCH_BYTES, &e->algo.scratch), err_buffers);
    DDP_TRY_GOTO(st, DDP_ALLOC(e->algo.requests, 2 * (size_t)comm->world), err_buffers);
    DDP_TRY_GOTO(st, ddp_monitor_init(&e->monitor), err_buffers);
    DDP_TRY_GOTO(st, ddp_thread_start(&e->thread, "ddp-comm", engine_main, e), err_monitor);
    *engine_out = e;
    return DDP_OK;
err_monitor:
    ddp_monitor_destroy(&e->monitor);
err_buffers:
    free_buffers(e);
    ddp_free(e);
    return st;
}

void ddpi_engine_stop(ddpi_engine *engine)
{
    if (engine == NULL)
        return;
    ddp_monitor_lock(&engine->monitor);
    engine->stop = true;
    ddp_monitor_wake_all(&engine->monitor);
    ddp_monitor_unlock(&engine->monitor);
    ddp_thread_join(&engine->thread);
    ddp_monitor_destroy(&engine->monitor);
    free_buffers(engine);
    ddp_free(engine);
}
