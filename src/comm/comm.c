/* comm.c - communicators: every public collective fills a descriptor, and all descriptors go
 * through one function that checks, numbers, and routes them.
 *
 * The route is a function of the options and the descriptor, and thus the same on all ranks. Small
 * works, and reductions in windows, go to the shared-memory group where all ranks share a node;
 * what has nothing to do is done at once; the rest goes to the engine. Rank's thread only, except
 * where comm.h says otherwise. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/algo.h"
#include "comm/comm_impl.h"
#include "comm/parts.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

/* Payloads outside of windows that go through the group's slots: up to here, two copies cost less
 * than handing the work to another thread. */
#define SLOT_PAYLOAD_BYTES ((size_t)131072)

/* ---- routes ---- */

bool ddpi_comm_wants_shm(const ddp_comm *comm)
{
    return comm->opts.allreduce == DDP_ALLREDUCE_AUTO ||
           comm->opts.allreduce == DDP_ALLREDUCE_SHM || comm->opts.allreduce == DDP_ALLREDUCE_HIER;
}

static ddpi_route route_of(const ddp_comm *comm, const ddp_coll *coll)
{
    bool sums = coll->kind == DDP_COLL_ALLREDUCE || coll->kind == DDP_COLL_REDUCE_OWNED;
    size_t bytes = coll->count * ddp_dtype_bytes(coll->dtype);

    if (comm->world == 1)
        return DDPI_ROUTE_LOCAL;
    if (coll->stream != NULL)
        return DDPI_ROUTE_LANE;
    /* Slices exist only where there are windows, or sums on two levels. */
    if (coll->kind == DDP_COLL_PUBLISH && comm->windows > 0)
        return DDPI_ROUTE_SHM;
    if (coll->kind == DDP_COLL_PUBLISH)
        return ddpi_team_publishes(comm->team, coll) ? DDPI_ROUTE_ENGINE : DDPI_ROUTE_LOCAL;
    if (comm->group == NULL || !ddpi_shm_takes(comm->group, coll) ||
        (sums && !ddpi_comm_wants_shm(comm)))
        return DDPI_ROUTE_ENGINE;
    const size_t span = ddpi_parts_bytes(coll, comm->world);
    if (span == bytes && ((sums && comm->opts.allreduce == DDP_ALLREDUCE_SHM) ||
                          bytes <= SLOT_PAYLOAD_BYTES || coll->kind == DDP_COLL_BARRIER))
        return DDPI_ROUTE_SHM;
    bool in_window =
        coll->kind != DDP_COLL_ALLGATHER && ddpi_shm_in_window(comm->group, coll->buf, span);
    return in_window ? DDPI_ROUTE_SHM : DDPI_ROUTE_ENGINE;
}

bool ddp_comm_works_aside(const ddp_comm *comm, void *buf, size_t bytes)
{
    const ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                           .dtype = DDP_F32,
                           .buf = buf,
                           .count = bytes / sizeof(float)};

    return comm->lane != NULL || route_of(comm, &coll) > DDPI_ROUTE_SHM;
}

static bool keeps_order(ddp_allreduce_algo algo)
{
    return algo == DDP_ALLREDUCE_AUTO || algo == DDP_ALLREDUCE_SHM || algo == DDP_ALLREDUCE_TREE ||
           algo == DDP_ALLREDUCE_RHD || algo == DDP_ALLREDUCE_HIER;
}

static ddp_status check_coll(const ddp_comm *comm, const ddp_coll *coll)
{
    bool rooted = coll->kind == DDP_COLL_BROADCAST || coll->kind == DDP_COLL_REDUCE;
    bool reduces = coll->kind == DDP_COLL_REDUCE || coll->kind == DDP_COLL_ALLREDUCE ||
                   coll->kind == DDP_COLL_REDUCE_OWNED;

    if (rooted && (coll->root < 0 || coll->root >= comm->world))
        return DDP_FAIL(DDP_ERR_USAGE, "%s: root %d is not a rank of a world of %d", coll->what,
                        coll->root, comm->world);
    if (coll->kind == DDP_COLL_PING)
        return ddpi_ping_check(comm, coll);
    if (reduces && !ddpi_algo_takes(coll->dtype, coll->op))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: no reduction %d of %s", coll->what, coll->op,
                        ddp_dtype_name(coll->dtype));
    if (coll->stream != NULL && (comm->lane == NULL || !ddpi_lane_takes(coll)))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: no such collective on device memory", coll->what);
    size_t total;
    if (__builtin_mul_overflow(coll->count, ddp_dtype_bytes(coll->dtype) * (size_t)comm->world,
                               &total))
        return DDP_FAIL(DDP_ERR_USAGE, "%s: %zu elements are too many", coll->what, coll->count);
    if (coll->shards > 0 && !keeps_order(comm->opts.allreduce))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "%s: this --allreduce does not keep the order of sums over shards",
                        coll->what);
    DDP_TRY(ddpi_parts_check(coll, comm->world));
    if (coll->stream != NULL && coll->shards > 0 &&
        ddpi_parts_most(coll, comm->world) > comm->lane->ops->max_parts)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "%s: the %s lane does not keep the order of sums over %lld shards of a "
                        "rank",
                        coll->what, comm->lane->ops->name, (long long)coll->shards);
    return DDP_OK;
}

static void run_local(ddp_comm *comm, ddp_work *work)
{
    const ddp_coll *coll = &work->coll;
    size_t bytes = coll->count * ddp_dtype_bytes(coll->dtype);

    if (coll->kind == DDP_COLL_ALLGATHER && bytes > 0)
        memmove(coll->buf, coll->src, bytes);
    work->owned = (ddp_range){0, coll->count};
    ddpi_work_complete(comm, work, DDP_OK);
}

/* The group has room for so many works in flight; beyond, the caller waits for the oldest. */
static ddp_status start_shm(ddp_comm *comm, ddp_work *work)
{
    unsigned round = 0;
    bool done;

    while (ddpi_shm_inflight(comm->group) == DDPI_SHM_MAX_INFLIGHT) {
        DDP_TRY(ddpi_shm_poll(comm->group, work, &done));
        if (ddpi_comm_failed(comm))
            return ddpi_comm_cause(comm);
        ddpi_shm_idle(comm->group, &round);
    }
    return ddpi_shm_start(comm->group, work);
}

static ddp_status start(ddp_comm *comm, ddp_work *work)
{
    if (ddpi_comm_failed(comm))
        return ddpi_comm_cause(comm);
    if (comm->backend->admit != NULL)
        DDP_TRY(comm->backend->admit(comm, work->seq));
    switch ((ddpi_route)work->stage) {
    case DDPI_ROUTE_LOCAL:
        if (work->graph != NULL)
            DDP_TRY(ddp_graph_launch(work->graph, work->coll.stream));
        run_local(comm, work);
        return DDP_OK;
    case DDPI_ROUTE_SHM:
        return start_shm(comm, work);
    case DDPI_ROUTE_ENGINE:
        ddpi_engine_submit(comm->engine, work);
        return DDP_OK;
    case DDPI_ROUTE_LANE:
        work->owned = (ddp_range){0, work->coll.count};
        return work->graph != NULL ? comm->lane->ops->replay(comm->lane, work)
                                   : comm->lane->ops->submit(comm->lane, work);
    }
    return DDP_OK;
}

ddp_status ddp_comm_submit(ddp_comm *comm, const ddp_coll *coll, ddp_work *work)
{
    /* Where all own everything, rank 0 counts. */
    *work = (ddp_work){
        .comm = comm, .coll = *coll, .submit_ns = ddp_now_ns(), .counts = comm->rank == 0};
    if (work->coll.what == NULL)
        work->coll.what = "unnamed";
    ddp_status status = check_coll(comm, &work->coll);
    if (status != DDP_OK) {
        work->status = status;
        snprintf(work->message, sizeof work->message, "%s", ddp_status_message());
        __atomic_store_n(&work->done, 1, __ATOMIC_RELEASE);
        return status;
    }
    work->stage = route_of(comm, &work->coll);
    return comm->recording != NULL ? ddpi_recording_add(comm->recording, work)
                                   : ddpi_comm_start_work(comm, work, 1);
}

ddp_status ddpi_comm_start_work(ddp_comm *comm, ddp_work *work, uint64_t numbers)
{
    work->seq = comm->next_seq + numbers - 1;
    work->deadline_ns = ddp_deadline_after_ms(comm->opts.timeout_ms);
    ddpi_ring_begin(&comm->ring, work, __atomic_load_n(&comm->step, __ATOMIC_RELAXED));
    __atomic_store_n(&comm->next_seq, work->seq + 1, __ATOMIC_RELEASE);
    /* Where a watchdog does not see all ranks, it must not guess who is late: the engine asks, or
     * who waits finds out. */
    ddp_work watched = *work;
    if (comm->watchdog != NULL) {
        if (work->stage != DDPI_ROUTE_SHM && !ddpi_watchdog_sees(comm->watchdog, comm->world))
            watched.deadline_ns = DDP_NO_DEADLINE;
        ddpi_watchdog_begin(comm->watchdog, &watched);
    }
    ddp_status status = start(comm, work);
    if (status == DDP_OK)
        return DDP_OK;
    status = ddpi_comm_raise(comm, status);
    if (work->stage == DDPI_ROUTE_LANE)
        comm->lane->ops->abort(comm->lane);
    work->stage = DDPI_ROUTE_LOCAL;
    ddpi_work_complete(comm, work, status);
    ddpi_comm_park(comm);
    return status;
}

ddp_status ddp_comm_set_allreduce(ddp_comm *comm, ddp_allreduce_algo algo)
{
    if (comm->world > 1 && algo == DDP_ALLREDUCE_SHM && comm->group == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "allreduce shm needs all ranks on one node with shared memory");
    if (comm->world > 1 && algo == DDP_ALLREDUCE_MPI && !ddpi_engine_has_allreduce(comm->engine))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "allreduce mpi needs MPI's ranks");
    if (comm->world > 1 && algo == DDP_ALLREDUCE_HIER && comm->group == NULL && comm->team == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "allreduce hier needs ranks that share memory");
    comm->opts.allreduce = algo;
    return DDP_OK;
}

/* ---- blocking collectives ---- */

static ddp_status run(ddp_comm *comm, const ddp_coll *coll)
{
    ddp_work work;

    DDP_TRY(ddp_comm_submit(comm, coll, &work));
    return ddp_work_wait(&work);
}

ddp_status ddp_comm_barrier(ddp_comm *comm)
{
    return run(comm, &(ddp_coll){.kind = DDP_COLL_BARRIER, .bucket = -1, .what = "barrier"});
}

ddp_status ddp_comm_broadcast(ddp_comm *comm, int root, void *buf, size_t bytes)
{
    return run(comm, &(ddp_coll){.kind = DDP_COLL_BROADCAST,
                                 .dtype = DDP_U8,
                                 .root = root,
                                 .buf = buf,
                                 .count = bytes,
                                 .bucket = -1,
                                 .what = "bytes"});
}

ddp_status ddp_comm_allreduce(ddp_comm *comm, void *buf, size_t count, ddp_dtype dtype,
                              ddp_reduce_op op, const char *what)
{
    return run(comm, &(ddp_coll){.kind = DDP_COLL_ALLREDUCE,
                                 .dtype = dtype,
                                 .op = op,
                                 .buf = buf,
                                 .count = count,
                                 .bucket = -1,
                                 .what = what});
}

ddp_status ddp_comm_allgather(ddp_comm *comm, const void *mine, size_t bytes, void *all)
{
    return run(comm, &(ddp_coll){.kind = DDP_COLL_ALLGATHER,
                                 .dtype = DDP_U8,
                                 .src = mine,
                                 .buf = all,
                                 .count = bytes,
                                 .bucket = -1,
                                 .what = "bytes"});
}

/* ---- life ---- */

size_t ddpi_comm_side_bytes(int side_count)
{
    return sizeof(ddpi_board) + ddpi_side_bytes(side_count);
}

void ddpi_comm_rank_ctx(ddp_comm *comm, ddp_rank_ctx *ctx_out)
{
    *ctx_out = (ddp_rank_ctx){.rank = comm->rank,
                              .world = comm->world,
                              .host = comm->host,
                              .log = ddp_rank_ctx_get()->log,
                              .on_fatal = ddpi_comm_on_fatal,
                              .on_fatal_arg = comm};
}

static void complete_shm(void *arg, ddp_work *work, ddp_status status)
{
    ddpi_work_complete(arg, work, status);
}

static ddp_status start_parts(ddp_comm *comm, const ddpi_comm_parts *parts)
{
    comm->board = parts->side_memory;
    ddpi_side_opts side = {.memory = (char *)parts->side_memory + sizeof(ddpi_board),
                           .n = parts->side_count,
                           .index = parts->side_index,
                           .rank = comm->rank,
                           .host = comm->host};
    DDP_TRY(ddpi_side_open(&side, &comm->side));
    if (comm->net != NULL)
        DDP_TRY(ddpi_net_attach(comm->net, comm->side));
    const bool two_levels = comm->node_count > 1 && comm->node_count < comm->world;
    if (parts->group_memory != NULL && two_levels)
        DDP_TRY(ddpi_team_create(comm, parts->group_memory, &comm->team));
    if (parts->group_memory != NULL && comm->node_count == 1) {
        ddpi_shm_group_opts group = {.n = comm->node_size,
                                     .rank = comm->node_rank,
                                     .control = parts->group_memory,
                                     .complete = complete_shm,
                                     .complete_arg = comm};
        DDP_TRY(ddpi_shm_group_create(&group, &comm->group));
    }
    DDP_TRY(ddpi_engine_start(comm, parts->transport, parts->transport_self, &comm->engine));
    ddpi_watchdog_opts watchdog = {.side = comm->side,
                                   .watch_processes = parts->watch_processes,
                                   .fail = ddpi_comm_on_watchdog,
                                   .fail_arg = comm,
                                   .net = comm->net,
                                   .hear = ddpi_comm_on_net};
    return ddpi_watchdog_start(&watchdog, &comm->watchdog);
}

ddp_status ddpi_comm_start(ddp_comm *comm, const ddpi_comm_parts *parts)
{
    ddp_rank_ctx before = *ddp_rank_ctx_get(), own;

    if (comm->opts.allreduce == DDP_ALLREDUCE_SHM && comm->world > 1 &&
        (parts->group_memory == NULL || comm->node_count > 1))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "allreduce shm needs all ranks on one node with shared "
                        "memory; %s",
                        !comm->opts.shared_memory ? "shared memory is switched off"
                        : comm->node_count > 1    ? "there are several nodes"
                                                  : "this node has too little of it");
    comm->crowded = comm->node_size > sysconf(_SC_NPROCESSORS_ONLN);
    if (comm->world == 1)
        return DDP_OK;
    /* Threads inherit the context of the thread that makes them. */
    ddpi_comm_rank_ctx(comm, &own);
    ddp_rank_ctx_set(&own);
    ddp_status status = start_parts(comm, parts);
    ddp_rank_ctx_set(&before);
    if (status != DDP_OK)
        ddpi_comm_stop(comm);
    return status;
}

void ddpi_comm_stop(ddp_comm *comm)
{
    bool healthy = !ddpi_comm_failed(comm);

    if (comm->side != NULL && healthy)
        ddpi_side_leave(comm->side);
    ddpi_watchdog_stop(comm->watchdog);
    ddpi_net_close(comm->net, healthy);
    ddpi_engine_stop(comm->engine);
    ddpi_shm_group_destroy(comm->group);
    ddpi_team_destroy(comm->team);
    ddpi_side_close(comm->side, healthy);
    comm->watchdog = NULL;
    comm->net = NULL;
    comm->engine = NULL;
    comm->group = NULL;
    comm->team = NULL;
    comm->side = NULL;
    ddpi_comm_segments_free(comm, /*lane*/ false);
}

void ddp_comm_close(ddp_comm *comm)
{
    if (comm == NULL)
        return;
    /* Nobody leaves while another still needs its memory. A failure changes nothing here. */
    if (!ddpi_comm_failed(comm))
        (void)!ddp_comm_barrier(comm);
    ddp_comm_detach(comm);
    comm->backend->close(comm);
}

/* ---- queries ---- */

int ddp_comm_rank(const ddp_comm *comm)
{
    return comm->rank;
}

int ddp_comm_world(const ddp_comm *comm)
{
    return comm->world;
}

int ddp_comm_node_rank(const ddp_comm *comm)
{
    return comm->node_rank;
}

int ddp_comm_node_size(const ddp_comm *comm)
{
    return comm->node_size;
}

int ddp_comm_local_rank(const ddp_comm *comm)
{
    return comm->local_rank;
}

int ddp_comm_node(const ddp_comm *comm)
{
    return comm->node;
}

int ddp_comm_node_count(const ddp_comm *comm)
{
    return comm->node_count;
}

const char *ddp_comm_host(const ddp_comm *comm)
{
    return comm->host;
}

const char *ddp_comm_backend_name(const ddp_comm *comm)
{
    return comm->backend->name;
}

const char *ddp_comm_library(const ddp_comm *comm)
{
    return comm->library;
}

bool ddp_comm_side_address(const ddp_comm *comm, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (comm->node == 0 || comm->node_rank != 0 || comm->node_count == 1)
        return true;
    return comm->net != NULL && ddpi_net_way(comm->net, text, text_bytes);
}

void ddp_comm_set_timeout(ddp_comm *comm, int64_t timeout_ms)
{
    comm->opts.timeout_ms = timeout_ms;
}

void ddp_comm_note(ddp_comm *comm, int64_t step, const char *phase)
{
    if (step < 0)
        step = __atomic_load_n(&comm->step, __ATOMIC_RELAXED);
    __atomic_store_n(&comm->step, step, __ATOMIC_RELAXED);
    if (comm->side != NULL)
        ddpi_side_note(comm->side, step, phase);
}

uint64_t ddp_comm_bytes_sent(const ddp_comm *comm)
{
    return ddpi_engine_bytes_sent(comm->engine);
}

uint64_t ddp_comm_bytes_across(const ddp_comm *comm)
{
    return ddpi_engine_bytes_across(comm->engine);
}
