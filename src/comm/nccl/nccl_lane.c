/* nccl_lane.c - collectives on device memory through NCCL: the lane's table.
 *
 * A collective is enqueued on the lane's own stream, which first waits for what the caller's stream
 * was given so far; three events tell when it may start, has started and is done. The host only
 * waits where it asks to. Which times the events stand for follows from an anchor, an event whose
 * place on the host's clock is known: each completed collective becomes the next anchor, since a
 * distance between far events has few digits. Rank's thread only, except abort. */
#include <limits.h>

#include "comm/nccl/nccl_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cuda_module.h"

static ddpi_nccl *self_of(ddpi_lane *lane)
{
    return (ddpi_nccl *)lane;
}

/* ---- slots ---- */

static ddp_status new_slot(ddpi_nccl *n, int *index_out)
{
    ddp_status st;

    DDP_TRY(DDP_GROW(n->slots, n->slot_capacity, n->slot_count));
    ddpi_nccl_slot *s = &n->slots[n->slot_count];
    *s = (ddpi_nccl_slot){0};
    st = ddp_event_create(n->base.device, &s->ready);
    if (st == DDP_OK)
        st = ddp_event_create(n->base.device, &s->start);
    if (st == DDP_OK)
        st = ddp_event_create(n->base.device, &s->done);
    if (st == DDP_OK)
        st = ddp_event_create(n->base.device, &s->end);
    if (st != DDP_OK) {
        ddp_event_destroy(s->ready);
        ddp_event_destroy(s->start);
        ddp_event_destroy(s->done);
        return st;
    }
    *index_out = n->slot_count++;
    return DDP_OK;
}

/* Slots are made when more collectives than ever are on their way, so not in a steady step. */
static ddp_status take_slot(ddpi_nccl *n, int *index_out)
{
    for (int i = 0; i < n->slot_count; i++) {
        if (!n->slots[i].used) {
            n->slots[i].used = true;
            *index_out = i;
            return DDP_OK;
        }
    }
    DDP_TRY(new_slot(n, index_out));
    n->slots[*index_out].used = true;
    return DDP_OK;
}

/* ---- starting ---- */

static ddp_status check_coll(const ddp_coll *coll)
{
    bool reduces = coll->kind == DDP_COLL_ALLREDUCE || coll->kind == DDP_COLL_REDUCE_OWNED ||
                   coll->kind == DDP_COLL_REDUCE;

    if (!reduces && coll->kind != DDP_COLL_BROADCAST)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: NCCL's lane has no collective of kind %d",
                        coll->what, coll->kind);
    if (reduces && coll->dtype != DDP_F32 && coll->dtype != DDP_BF16)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: NCCL's lane does not reduce %s", coll->what,
                        ddp_dtype_name(coll->dtype));
    return DDP_OK;
}

static ncclRedOp_t red_op(ddp_reduce_op op)
{
    switch (op) {
    case DDP_REDUCE_MAX:
        return ncclMax;
    case DDP_REDUCE_MIN:
        return ncclMin;
    case DDP_REDUCE_SUM:
        break;
    }
    return ncclSum;
}

static ddp_status launch(ddpi_nccl *n, const ddp_coll *coll)
{
    ncclDataType_t type = coll->dtype == DDP_BF16 ? ncclBfloat16 : ncclFloat;
    ncclRedOp_t op = red_op(coll->op);

    if (coll->kind == DDP_COLL_BROADCAST) {
        DDPI_NCCL_TRY(n, ncclBroadcast, coll->buf, coll->buf,
                      coll->count * ddp_dtype_bytes(coll->dtype), ncclUint8, coll->root, n->nccl,
                      n->cuda_stream);
        return DDP_OK;
    }
    if ((n->deterministic || coll->shards > 0) && coll->op == DDP_REDUCE_SUM)
        return ddpi_nccl_sum(n, coll);
    if (coll->kind == DDP_COLL_REDUCE)
        DDPI_NCCL_TRY(n, ncclReduce, coll->buf, coll->buf, coll->count, type, op, coll->root,
                      n->nccl, n->cuda_stream);
    else
        DDPI_NCCL_TRY(n, ncclAllReduce, coll->buf, coll->buf, coll->count, type, op, n->nccl,
                      n->cuda_stream);
    return DDP_OK;
}

static ddp_status start(ddpi_nccl *n, const ddp_work *work, const ddpi_nccl_slot *s)
{
    const ddp_coll *coll = &work->coll;
    DDP_TRY(ddp_event_record(s->ready, coll->stream));
    DDP_TRY(ddp_stream_wait_event(n->stream, s->ready));
    DDP_TRY(ddp_event_stamp(s->start, n->stream));
    if (coll->count > 0)
        DDP_TRY(launch(n, coll));
    if (work->recorded)
        DDP_TRY(ddp_event_stamp(s->end, n->stream));
    return ddp_event_record(s->done, n->stream);
}

static ddp_status lane_submit(ddpi_lane *lane, ddp_work *work)
{
    ddpi_nccl *n = self_of(lane);

    work->lane_slot = -1;
    work->owned = (ddp_range){0, work->coll.count};
    DDP_TRY(check_coll(&work->coll));
    DDP_TRY(take_slot(n, &work->lane_slot));
    ddp_status st = start(n, work, &n->slots[work->lane_slot]);
    if (st != DDP_OK) {
        n->slots[work->lane_slot].used = false;
        work->lane_slot = -1;
    }
    return st;
}

/* ---- graphs ---- */

static ddp_status lane_replay(ddpi_lane *lane, ddp_work *work)
{
    ddpi_nccl *n = self_of(lane);

    work->lane_slot = -1;
    DDP_TRY(take_slot(n, &work->lane_slot));
    const ddpi_nccl_slot *s = &n->slots[work->lane_slot];
    DDP_TRY(ddp_event_record(s->start, work->coll.stream));
    DDP_TRY(ddp_graph_launch(work->graph, work->coll.stream));
    return ddp_event_record(s->done, work->coll.stream);
}

static ddp_status lane_recorded_ns(ddpi_lane *lane, int slot, int64_t *ns_out)
{
    const ddpi_nccl_slot *s = &self_of(lane)->slots[slot];

    return ddp_event_elapsed(s->start, s->end, ns_out);
}

static void lane_forget(ddpi_lane *lane, int slot)
{
    self_of(lane)->slots[slot].used = false;
}

/* ---- ending ---- */

/* Bounds that the host knows correct the anchor where the clocks have drifted apart. */
static ddp_status set_times(ddpi_nccl *n, ddp_work *work, ddpi_nccl_slot *s)
{
    int64_t now_ns = ddp_now_ns(), since_anchor_ns, took_ns;

    DDP_TRY(ddp_event_elapsed(n->anchor, s->done, &since_anchor_ns));
    DDP_TRY(ddp_event_elapsed(s->start, s->done, &took_ns));
    work->end_ns = n->anchor_ns + since_anchor_ns;
    if (work->end_ns - took_ns < work->submit_ns)
        work->end_ns = work->submit_ns + took_ns;
    if (work->end_ns > now_ns)
        work->end_ns = now_ns;
    work->start_ns = work->end_ns - took_ns;
    if (work->start_ns < work->submit_ns)
        work->start_ns = work->submit_ns;
    ddp_event *before = n->anchor;
    n->anchor = s->done;
    n->anchor_ns = work->end_ns;
    s->done = before;
    return DDP_OK;
}

static ddp_status lane_poll(ddpi_lane *lane, ddp_work *work, bool *done_out)
{
    ddpi_nccl *n = self_of(lane);
    ncclResult_t state = ncclSuccess;

    *done_out = true;
    if (work->lane_slot < 0)
        return DDP_OK;
    ddpi_nccl_slot *s = &n->slots[work->lane_slot];
    DDP_TRY(ddp_event_query(s->done, done_out));
    if (!*done_out) {
        DDPI_NCCL_TRY(n, ncclCommGetAsyncError, n->nccl, &state);
        if (state != ncclSuccess && state != ncclInProgress)
            return ddpi_nccl_failure(n->nccl, state, work->coll.what);
        return DDP_OK;
    }
    DDP_TRY(set_times(n, work, s));
    s->used = false;
    work->lane_slot = -1;
    return DDP_OK;
}

static ddp_status lane_join(ddpi_lane *lane, ddp_work *work, ddp_stream *stream)
{
    if (work->lane_slot < 0)
        return DDP_OK;
    return ddp_stream_wait_event(stream, self_of(lane)->slots[work->lane_slot].done);
}

/* ---- memory ---- */

/* The library's own kind of memory can be registered for every transport; where it has none to
 * give, the device's does. */
static ddp_status get_memory(ddpi_nccl *n, ddpi_nccl_memory *m)
{
    ddp_stream *stream = ddp_device_main_stream(n->base.device);

    m->librarys = ncclMemAlloc(&m->base, m->bytes) == ncclSuccess;
    if (!m->librarys)
        return ddp_device_alloc(n->base.device, m->bytes, &m->base);
    DDP_TRY(ddp_device_zero(n->base.device, stream, m->base, m->bytes));
    return ddp_stream_sync(stream);
}

static void release(ddpi_nccl *n, ddpi_nccl_memory *m)
{
    if (m->handle != NULL && ddpi_nccl_enter(n) == DDP_OK) {
        ncclResult_t result = ncclCommDeregister(n->nccl, m->handle);
        (void)!ddpi_nccl_leave(n, result, "ncclCommDeregister");
    }
    if (m->base != NULL && !m->librarys)
        ddp_device_free(n->base.device, m->base, m->bytes);
    else if (m->base != NULL)
        (void)ncclMemFree(m->base);
    ddp_free(m);
}

static ddp_status lane_mem_alloc(ddpi_lane *lane, size_t bytes, void **memory_out)
{
    ddpi_nccl *n = self_of(lane);
    ddpi_nccl_memory *m;

    DDP_TRY(DDP_ALLOC(m, 1));
    m->bytes = bytes > 0 ? bytes : 1;
    ddp_status st = get_memory(n, m);
    if (st == DDP_OK)
        st = ddpi_nccl_enter(n);
    if (st == DDP_OK) {
        /* Without it, collectives copy through the library's own buffers. */
        ncclResult_t result = ncclCommRegister(n->nccl, m->base, m->bytes, &m->handle);
        if (ddpi_nccl_leave(n, result, "ncclCommRegister") != DDP_OK)
            m->handle = NULL;
    }
    if (st != DDP_OK) {
        release(n, m);
        return st;
    }
    m->next = n->memories;
    n->memories = m;
    *memory_out = m->base;
    return DDP_OK;
}

static void lane_mem_free(ddpi_lane *lane, void *memory, size_t bytes)
{
    ddpi_nccl *n = self_of(lane);
    ddpi_nccl_memory **at = &n->memories;

    while (*at != NULL && (*at)->base != memory)
        at = &(*at)->next;
    DDP_ASSERT(*at != NULL && (*at)->bytes >= bytes);
    ddpi_nccl_memory *m = *at;
    *at = m->next;
    release(n, m);
}

void ddpi_nccl_free_memories(ddpi_nccl *n)
{
    while (n->memories != NULL) {
        ddpi_nccl_memory *m = n->memories;
        n->memories = m->next;
        release(n, m);
    }
}

const struct ddp_lane_ops *ddpi_lane_nccl(void)
{
    static const ddp_lane_ops ops = {.name = "nccl",
                                     .max_parts = INT_MAX,
                                     .open = ddpi_nccl_open,
                                     .mem_alloc = lane_mem_alloc,
                                     .mem_free = lane_mem_free,
                                     .submit = lane_submit,
                                     .poll = lane_poll,
                                     .join = lane_join,
                                     .replay = lane_replay,
                                     .recorded_ns = lane_recorded_ns,
                                     .forget = lane_forget,
                                     .abort = ddpi_nccl_abort,
                                     .close = ddpi_nccl_close};

    return &ops;
}
