/* ping.c - a message from one rank to another and back, to measure a link and to compare clocks.
 *
 * A numbered work like all others, which ranks that have no part in it only pass; so it has a
 * deadline, and a rank that is lost meanwhile is named. The times are taken in the engine's thread
 * next to the messages themselves. */
#include <string.h>
#include <time.h>

#include "comm/algo.h"
#include "comm/comm_impl.h"
#include "ddp/thread.h"

ddp_status ddpi_ping_check(const ddp_comm *comm, const ddp_coll *coll)
{
    const bool inside =
        coll->root >= 0 && coll->root < comm->world && coll->peer >= 0 && coll->peer < comm->world;

    if (!inside || coll->root == coll->peer)
        return DDP_FAIL(DDP_ERR_USAGE, "%s: ranks %d and %d are not two ranks of a world of %d",
                        coll->what, coll->root, coll->peer, comm->world);
    if (coll->count * ddp_dtype_bytes(coll->dtype) < sizeof(ddp_ping_stamp) || coll->stream != NULL)
        return DDP_FAIL(DDP_ERR_USAGE, "%s: expected host memory of at least %zu bytes", coll->what,
                        sizeof(ddp_ping_stamp));
    return DDP_OK;
}

static void stamp(void *buf)
{
    ddp_ping_stamp now = {.monotonic_ns = ddp_now_ns()};
    struct timespec real;

    if (clock_gettime(CLOCK_REALTIME, &real) == 0)
        now.real_ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec;
    memcpy(buf, &now, sizeof now);
}

ddp_status ddpi_algo_ping(ddpi_algo *a)
{
    const ddp_coll *coll = &a->work->coll;
    const ddp_range all = {0, coll->count};
    const bool begins = a->rank == coll->root;
    const int other = begins ? coll->peer : coll->root;
    const ddpi_flow out = {.to = other, .send = all, .from = -1};
    const ddpi_flow in = {.to = -1, .from = other, .recv = all};

    if (!begins && a->rank != coll->peer)
        return DDP_OK;
    if (!begins) {
        DDP_TRY(ddpi_algo_move(a, &in));
        stamp(coll->buf);
        return ddpi_algo_move(a, &out);
    }
    a->work->start_ns = ddp_now_ns();
    DDP_TRY(ddpi_algo_move(a, &out));
    DDP_TRY(ddpi_algo_move(a, &in));
    a->work->end_ns = ddp_now_ns();
    return DDP_OK;
}

ddp_status ddp_comm_ping(ddp_comm *comm, int from, int to, void *buf, size_t bytes,
                         ddp_ping *ping_out)
{
    const ddp_coll coll = {.kind = DDP_COLL_PING,
                           .dtype = DDP_U8,
                           .root = from,
                           .peer = to,
                           .buf = buf,
                           .count = bytes,
                           .bucket = -1,
                           .what = "ping"};
    ddp_work work;

    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    if (comm->rank != from || ping_out == NULL)
        return DDP_OK;
    *ping_out = (ddp_ping){.sent_ns = work.start_ns, .back_ns = work.end_ns};
    memcpy(&ping_out->stamp, buf, sizeof ping_out->stamp);
    return DDP_OK;
}
