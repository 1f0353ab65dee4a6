/* work.c - works on their way: completion, polling, waiting.
 *
 * Works of the shared-memory group advance in whoever polls or waits, so a wait for a work of the
 * engine advances them too: another rank may need this rank's part of an older one before it gets
 * as far as the work that is waited for here. Rank's thread only, except ddpi_work_complete(). */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "ddp/thread.h"

#define NS_PER_MS     ((int64_t)1000000)
#define SPIN_ROUNDS   200
#define YIELD_ROUNDS  20
#define SLEEP_NS      (2 * NS_PER_MS) /* at most, between looks for a failure */
#define SHM_SLEEP_NS  (NS_PER_MS / 10)
#define LANE_SLEEP_NS (NS_PER_MS / 50)
#define SHM_GRACE_NS  (2000 * NS_PER_MS) /* the watchdog's message says more than ours */
#define CHECK_ROUNDS  64

static bool is_done(const ddp_work *work)
{
    return __atomic_load_n(&work->done, __ATOMIC_ACQUIRE) != 0;
}

void ddpi_work_complete(ddp_comm *comm, ddp_work *work, ddp_status status)
{
    if (work->end_ns == 0) /* a lane has better knowledge */
        work->end_ns = ddp_now_ns();
    if (work->start_ns == 0)
        work->start_ns = work->submit_ns;
    work->status = status;
    if (status != DDP_OK)
        snprintf(work->message, sizeof work->message, "%s", ddp_status_message());
    /* One that is given up stays pending in what is told of the failure. */
    if (status == DDP_OK)
        ddpi_ring_end(&comm->ring, work);
    if (status == DDP_OK && comm->watchdog != NULL)
        ddpi_watchdog_end(comm->watchdog, work);
    if (work->stage == DDPI_ROUTE_ENGINE)
        ddpi_engine_finish(comm->engine, work);
    else
        __atomic_store_n(&work->done, 1, __ATOMIC_RELEASE);
}

static ddp_status result(const ddp_work *work)
{
    if (work->status == DDP_OK)
        return DDP_OK;
    ddpi_comm_park(work->comm);
    return ddp_status_set(work->status, NULL, 0, "%s", work->message);
}

/* A work of the group that no longer advances, since the communicator has failed. */
static void give_up(ddp_comm *comm, ddp_work *work)
{
    ddpi_shm_abandon(comm->group);
    ddpi_work_complete(comm, work, ddpi_comm_cause(comm));
}

/* Advances the group; the work need not be its. */
static void advance_group(ddp_comm *comm, ddp_work *work)
{
    bool done;

    if (comm->group == NULL || ddpi_comm_failed(comm) || ddpi_shm_inflight(comm->group) == 0)
        return;
    ddp_status status = ddpi_shm_poll(comm->group, work, &done);
    /* The group has completed the work at fault; the others get the cause when they are waited for.
     */
    if (status != DDP_OK)
        status = ddpi_comm_raise(comm, status);
}

ddp_status ddp_work_poll(ddp_work *work, bool *done_out)
{
    ddp_comm *comm = work->comm;

    if (!is_done(work))
        advance_group(comm, work);
    if (!is_done(work) && work->stage == DDPI_ROUTE_SHM && ddpi_comm_failed(comm))
        give_up(comm, work);
    if (!is_done(work) && work->stage == DDPI_ROUTE_LANE)
        ddpi_lane_poll(comm, work);
    *done_out = is_done(work);
    return *done_out ? result(work) : DDP_OK;
}

/* ---- waiting ---- */

/* The watchdog ends a late work; this is for the case that it does not. */
static void check_deadline(ddp_comm *comm, const ddp_work *work)
{
    char text[128];

    if (work->deadline_ns == DDP_NO_DEADLINE || ddp_now_ns() < work->deadline_ns + SHM_GRACE_NS)
        return;
    ddpi_side_work_format((int)work->coll.kind, work->seq, work->coll.what, work->coll.bucket, text,
                          sizeof text);
    (void)!ddpi_comm_raise(comm, DDP_FAIL(DDP_ERR_TIMEOUT, "%s is not complete after %.1f s", text,
                                          (double)(ddp_now_ns() - work->submit_ns) / 1e9));
}

static void wait_shm(ddp_comm *comm, ddp_work *work)
{
    unsigned idle_round = 0;

    for (unsigned turn = 1; !is_done(work); turn++) {
        int before = ddpi_shm_inflight(comm->group);
        advance_group(comm, work);
        if (is_done(work))
            return;
        if (ddpi_comm_failed(comm)) {
            give_up(comm, work);
            return;
        }
        if (ddpi_shm_inflight(comm->group) != before)
            idle_round = 0;
        if (turn % CHECK_ROUNDS == 0)
            check_deadline(comm, work);
        ddpi_shm_idle(comm->group, &idle_round);
    }
}

static void wait_engine(ddp_comm *comm, ddp_work *work)
{
    unsigned spins = comm->crowded ? 0 : SPIN_ROUNDS;

    __atomic_store_n(&comm->awaited, 1, __ATOMIC_RELAXED);
    for (unsigned round = 0; !is_done(work); round++) {
        bool mixed = comm->group != NULL && ddpi_shm_inflight(comm->group) > 0;
        if (mixed)
            advance_group(comm, work);
        if (round < spins)
            continue;
        if (round < spins + YIELD_ROUNDS)
            sched_yield();
        else
            ddpi_engine_sleep(comm->engine, work, mixed ? SHM_SLEEP_NS : SLEEP_NS);
    }
    __atomic_store_n(&comm->awaited, 0, __ATOMIC_RELAXED);
}

static void wait_lane(ddp_comm *comm, ddp_work *work)
{
    for (unsigned round = 0; !is_done(work); round++) {
        advance_group(comm, work);
        ddpi_lane_poll(comm, work);
        if (is_done(work) || round < (comm->crowded ? 0 : SPIN_ROUNDS))
            continue;
        if (round % CHECK_ROUNDS == 0)
            check_deadline(comm, work);
        if (round < SPIN_ROUNDS + YIELD_ROUNDS)
            sched_yield();
        else
            ddp_sleep_ns(LANE_SLEEP_NS);
    }
}

ddp_status ddp_work_wait(ddp_work *work)
{
    if (is_done(work))
        return result(work);
    const int64_t begin_ns = ddp_now_ns();
    if (work->stage == DDPI_ROUTE_SHM)
        wait_shm(work->comm, work);
    else if (work->stage == DDPI_ROUTE_LANE)
        wait_lane(work->comm, work);
    else
        wait_engine(work->comm, work);
    ddp_spans_end(DDP_SPAN_WAIT, work->coll.bucket, begin_ns);
    return result(work);
}

int64_t ddp_work_span(const ddp_work *work, ddp_span_kind kind)
{
    const ddp_coll *coll = &work->coll;

    /* One that had nothing to do is no more than a look at the clock. */
    if (work->end_ns > work->start_ns)
        ddp_spans_add(kind, coll->bucket, -1, work->start_ns, work->end_ns,
                      (int64_t)(coll->count * ddp_dtype_bytes(coll->dtype)));
    return work->end_ns - work->start_ns;
}
