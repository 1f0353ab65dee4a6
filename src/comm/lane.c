/* lane.c - attaching a lane for a device to a communicator, and waiting for what it does.
 *
 * Works get their numbers and deadlines in comm.c as all others, and are completed here, by whoever
 * polls, waits or joins. The lane is aborted by the rank's own thread, which looks for failures
 * whenever it waits; so nobody can abort a lane that is being closed. Rank's thread only. */
#include "comm/lane.h"

#include "comm/comm_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

/* Sums of the pattern are exact; long enough for every algorithm that goes by size. */
enum { PROBE_COUNT = 70001 };

#define SLICE_NS ((int64_t)20000000) /* of waiting for an event, between looks for a failure */

ddp_status ddp_comm_attach(ddp_comm *comm, ddp_device *device, const ddp_lane_ops *ops,
                           const ddp_lane_opts *opts)
{
    ddpi_lane *lane = NULL;

    DDP_ASSERT(comm->lane == NULL && comm->windows == 0);
    ddp_status status = ops->open(comm, device, opts, &lane);
    bool opened = status == DDP_OK;
    status = ddp_comm_agree(comm, status, "set up communication between devices");
    if (status == DDP_OK) {
        comm->lane = lane;
        return DDP_OK;
    }
    if (opened && ddpi_comm_failed(comm))
        ops->abort(lane);
    if (opened)
        ops->close(lane);
    return status;
}

void ddp_comm_detach(ddp_comm *comm)
{
    ddpi_lane *lane = comm->lane;

    if (lane == NULL)
        return;
    if (ddpi_comm_failed(comm)) {
        lane->ops->abort(lane);
        ddpi_engine_settle(comm->engine);
    }
    ddpi_comm_segments_free(comm, /*lane*/ true);
    comm->lane = NULL;
    lane->ops->close(lane);
}

bool ddp_comm_has_lane(const ddp_comm *comm)
{
    return comm->lane != NULL;
}

const char *ddp_comm_lane_name(const ddp_comm *comm)
{
    return comm->lane != NULL ? comm->lane->ops->name : NULL;
}

bool ddp_comm_device_aware(const ddp_comm *comm)
{
    return comm->device_aware;
}

/* ---- does it keep its word? ---- */

static float pattern(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 127);
}

static ddp_status send_round(ddp_comm *comm, ddp_stream *stream, void *memory)
{
    ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                     .dtype = DDP_F32,
                     .op = DDP_REDUCE_SUM,
                     .buf = memory,
                     .stream = stream,
                     .count = PROBE_COUNT,
                     .bucket = -1,
                     .what = "probe of device memory"};
    ddp_work work;

    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    return ddp_work_wait(&work);
}

static ddp_status probe(ddp_comm *comm, float *host, void *memory)
{
    ddp_device *device = comm->lane->device;
    ddp_stream *stream = ddp_device_main_stream(device);
    const size_t bytes = PROBE_COUNT * sizeof *host;

    for (size_t i = 0; i < PROBE_COUNT; i++)
        host[i] = pattern(comm->rank, i);
    DDP_TRY(ddp_device_copy(device, stream, memory, host, bytes, DDP_COPY_TO_DEVICE));
    DDP_TRY(send_round(comm, stream, memory));
    DDP_TRY(ddp_device_copy(device, stream, host, memory, bytes, DDP_COPY_TO_HOST));
    DDP_TRY(ddp_stream_sync(stream));
    for (size_t i = 0; i < PROBE_COUNT; i++) {
        float want = 0;
        for (int r = 0; r < comm->world; r++)
            want += pattern(r, i);
        if (host[i] != want)
            return DDP_FAIL(DDP_ERR_COMM,
                            "messages from device memory bring wrong bytes (element %zu of a sum "
                            "is %g, not %g)",
                            i, (double)host[i], (double)want);
    }
    return DDP_OK;
}

ddp_status ddp_comm_probe_lane(ddp_comm *comm)
{
    float *host = NULL;
    void *memory = NULL;
    ddp_status status = DDP_ALLOC(host, PROBE_COUNT);

    status = ddp_comm_agree(comm, status, "probe device memory");
    if (status == DDP_OK)
        status = ddp_comm_mem_alloc(comm, PROBE_COUNT * sizeof *host, &memory);
    if (status == DDP_OK)
        status = ddp_comm_agree(comm, probe(comm, host, memory), "probe device memory");
    ddp_comm_mem_free(comm, memory);
    ddp_free(host);
    return status;
}

bool ddpi_lane_takes(const ddp_coll *coll)
{
    const bool sums = coll->kind == DDP_COLL_ALLREDUCE || coll->kind == DDP_COLL_REDUCE_OWNED ||
                      coll->kind == DDP_COLL_REDUCE;

    return (coll->dtype == DDP_F32 || coll->dtype == DDP_BF16) &&
           (coll->kind == DDP_COLL_BROADCAST || (sums && coll->op == DDP_REDUCE_SUM));
}

/* ---- works ---- */

static void fail_work(ddp_comm *comm, ddp_work *work, ddp_status status)
{
    comm->lane->ops->abort(comm->lane);
    ddpi_work_complete(comm, work, status);
}

void ddpi_lane_poll(ddp_comm *comm, ddp_work *work)
{
    bool done = false;

    if (ddpi_comm_failed(comm)) {
        fail_work(comm, work, ddpi_comm_cause(comm));
        return;
    }
    ddp_status status = comm->lane->ops->poll(comm->lane, work, &done);
    if (status != DDP_OK)
        fail_work(comm, work, ddpi_comm_raise(comm, status));
    else if (done)
        ddpi_work_complete(comm, work, DDP_OK);
}

ddp_status ddp_work_join(ddp_work *work, ddp_stream *stream)
{
    ddp_comm *comm = work->comm;

    const bool done = __atomic_load_n(&work->done, __ATOMIC_ACQUIRE) != 0 && !work->recorded;
    if (work->stage != DDPI_ROUTE_LANE || done || ddpi_comm_failed(comm))
        return ddp_work_wait(work);
    ddp_status status = comm->lane->ops->join(comm->lane, work, stream);
    if (status == DDP_OK || work->recorded)
        return status;
    fail_work(comm, work, ddpi_comm_raise(comm, status));
    return ddp_work_wait(work);
}

ddp_status ddp_comm_sync_event(ddp_comm *comm, ddp_event *event, const char *what)
{
    const int64_t start_ns = ddp_now_ns();
    const int64_t deadline_ns = ddp_deadline_after_ms(comm->opts.timeout_ms);

    for (;;) {
        const int64_t slice_ns = ddp_now_ns() + SLICE_NS;
        ddp_status status = ddp_event_sync(event, slice_ns < deadline_ns ? slice_ns : deadline_ns);
        if (status != DDP_ERR_TIMEOUT)
            return status;
        if (!ddpi_comm_failed(comm) && ddp_now_ns() < deadline_ns)
            continue;
        status =
            ddpi_comm_failed(comm)
                ? ddpi_comm_cause(comm)
                : ddpi_comm_raise(comm, DDP_FAIL(DDP_ERR_TIMEOUT, "%s is not complete after %.1f s",
                                                 what, (double)(ddp_now_ns() - start_ns) / 1e9));
        if (comm->lane != NULL)
            comm->lane->ops->abort(comm->lane);
        ddpi_comm_park(comm);
        return status;
    }
}
