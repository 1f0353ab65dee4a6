/* recording.c - works on device memory that are parts of a graph.
 *
 * While a recording is open, submitted works only leave their part in the graph: they get no number
 * and nobody waits for them. Each replay then stands for all of them: it takes as many numbers, is
 * watched and waited for as one work of the lane, and has the last of its numbers, so that a rank
 * that has not entered it has entered none of them. Rank's thread only. */
#include "comm/comm_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

struct ddp_recording {
    ddp_comm *comm;
    uint64_t works;
    ddp_dtype dtype; /* of the works, and their elements together: for reports */
    size_t count;
    int *slots; /* the lane's, of those that it carries */
    int slot_count, slot_capacity;
};

bool ddp_comm_can_record(const ddp_comm *comm)
{
    return comm->world == 1 || (comm->lane != NULL && comm->lane->ops->replay != NULL);
}

ddp_status ddp_comm_record_begin(ddp_comm *comm, ddp_recording **recording_out)
{
    ddp_recording *recording;

    DDP_ASSERT(comm->recording == NULL && ddp_comm_can_record(comm));
    DDP_TRY(DDP_ALLOC(recording, 1));
    recording->comm = comm;
    comm->recording = recording;
    *recording_out = recording;
    return DDP_OK;
}

void ddp_comm_record_end(ddp_comm *comm)
{
    comm->recording = NULL;
}

static ddp_status add_to_graph(ddp_recording *recording, ddp_work *work)
{
    ddpi_lane *lane = recording->comm->lane;

    DDP_TRY(DDP_GROW(recording->slots, recording->slot_capacity, recording->slot_count));
    DDP_TRY(lane->ops->submit(lane, work));
    recording->slots[recording->slot_count++] = work->lane_slot;
    return DDP_OK;
}

ddp_status ddpi_recording_add(ddp_recording *recording, ddp_work *work)
{
    ddp_status status = DDP_OK;

    work->recorded = true;
    work->owned = (ddp_range){0, work->coll.count};
    work->start_ns = work->end_ns = work->submit_ns;
    if (work->coll.stream == NULL)
        status = DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: no part of a graph, since it is in host memory",
                          work->coll.what);
    else if (work->stage == DDPI_ROUTE_LANE)
        status = add_to_graph(recording, work);
    recording->works++;
    recording->dtype = work->coll.dtype;
    recording->count += work->coll.count;
    work->status = status;
    __atomic_store_n(&work->done, 1, __ATOMIC_RELEASE);
    return status;
}

ddp_status ddp_comm_replay(const ddp_recording *recording, ddp_graph *graph, ddp_stream *stream,
                           ddp_work *work)
{
    ddp_comm *comm = recording->comm;

    DDP_ASSERT(comm->recording == NULL);
    *work = (ddp_work){.comm = comm,
                       .coll = {.kind = DDP_COLL_REDUCE_OWNED,
                                .dtype = recording->dtype,
                                .op = DDP_REDUCE_SUM,
                                .count = recording->count,
                                .stream = stream,
                                .bucket = -1,
                                .what = "a step's gradients"},
                       .submit_ns = ddp_now_ns(),
                       .stage = recording->slot_count > 0 ? DDPI_ROUTE_LANE : DDPI_ROUTE_LOCAL,
                       .graph = graph};
    return ddpi_comm_start_work(comm, work, recording->works > 0 ? recording->works : 1);
}

ddp_status ddp_recording_ns(const ddp_recording *recording, int64_t *ns_out)
{
    ddpi_lane *lane = recording->comm->lane;
    int64_t sum_ns = 0, ns;

    for (int i = 0; i < recording->slot_count; i++) {
        DDP_TRY(lane->ops->recorded_ns(lane, recording->slots[i], &ns));
        sum_ns += ns;
    }
    *ns_out = sum_ns;
    return DDP_OK;
}

void ddp_recording_destroy(ddp_recording *recording)
{
    if (recording == NULL)
        return;
    ddpi_lane *lane = recording->comm->lane;
    for (int i = 0; i < recording->slot_count; i++)
        lane->ops->forget(lane, recording->slots[i]);
    ddp_free(recording->slots);
    ddp_free(recording);
}
