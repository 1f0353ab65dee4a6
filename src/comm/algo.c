/* algo.c - what the algorithms are made of: started messages, polite waiting, flows in segments;
 * and the choice of the algorithm.
 *
 * Engine thread only. Both ends of a message cut it alike, so lengths are never sent. All messages
 * of a work carry its tag; messages of one pair and tag keep their order, which every transport
 * promises. */
#include "comm/algo.h"

#include <string.h>

#include "comm/comm_impl.h"
#include "comm/parts.h"
#include "ddp/thread.h"

/* Below, latency decides: few steps. Above, bandwidth: the ring sends least at a time. */
#define TREE_BYTES ((size_t)4096)
#define RHD_BYTES  ((size_t)65536)

ddp_range ddpi_algo_share(size_t count, int n, int index)
{
    size_t share = count / (size_t)n, extra = count % (size_t)n, i = (size_t)index;
    size_t lo = i * share + (i < extra ? i : extra);

    return (ddp_range){lo, lo + share + (i < extra ? 1 : 0)};
}

/* ---- reducing ---- */

bool ddpi_algo_takes(ddp_dtype dtype, ddp_reduce_op op)
{
    return dtype == DDP_U8 || ddpi_reduce_supports(dtype, op);
}

static void combine_u8(uint8_t *dst, const uint8_t *src, size_t count, ddp_reduce_op op)
{
    for (size_t i = 0; i < count; i++) {
        if (op == DDP_REDUCE_SUM)
            dst[i] = (uint8_t)(dst[i] + src[i]);
        else if (op == DDP_REDUCE_MAX)
            dst[i] = dst[i] > src[i] ? dst[i] : src[i];
        else
            dst[i] = dst[i] < src[i] ? dst[i] : src[i];
    }
}

static void combine(const ddp_coll *coll, void *dst, const void *src, size_t count)
{
    const void *two[2] = {dst, src};
    void *one[1] = {dst};

    if (coll->dtype == DDP_U8) {
        combine_u8(dst, src, count, coll->op);
        return;
    }
    ddpi_reduce(&(ddpi_reduction){.dtype = coll->dtype,
                                  .op = coll->op,
                                  .n = 2,
                                  .src = two,
                                  .dst_count = 1,
                                  .dst = one,
                                  .count = count});
}

ddp_status ddpi_algo_add(ddpi_algo *a, void *dst, const void *src, size_t count)
{
    if (a->combine != NULL)
        return a->combine(a->combine_arg, a, dst, src, count);
    combine(&a->work->coll, dst, src, count);
    return DDP_OK;
}

/* ---- messages ---- */

ddp_status ddpi_algo_send(ddpi_algo *a, int to, const void *buf, size_t bytes,
                          ddpi_request *request)
{
    const int peer = a->ranks != NULL ? a->ranks[to] : to;

    /* The cast is safe: sends only read. */
    *request = (ddpi_request){
        .buf = (void *)(uintptr_t)buf, .bytes = bytes, .peer = peer, .tag = a->tag, .active = true};
    a->bytes_sent += bytes;
    if (a->places[peer].node != a->node)
        a->bytes_across += bytes;
    return a->transport->send_start(a->self, request);
}

ddp_status ddpi_algo_recv(ddpi_algo *a, int from, void *buf, size_t bytes, ddpi_request *request)
{
    const int peer = a->ranks != NULL ? a->ranks[from] : from;

    *request = (ddpi_request){
        .buf = buf, .bytes = bytes, .peer = peer, .tag = a->tag, .active = true, .receives = true};
    return a->transport->recv_start(a->self, request);
}

/* Buckets travel while the rank computes, until it waits for one. Other works are waited for at
 * once, and beside a device processors are free. */
static bool is_aside(const ddpi_algo *a)
{
    const ddp_work *work = a->work;

    return work->coll.bucket >= 0 && work->coll.stream == NULL &&
           __atomic_load_n(&work->comm->awaited, __ATOMIC_RELAXED) == 0;
}

ddp_status ddpi_algo_test(ddpi_algo *a, ddpi_request *request)
{
    bool done = false;

    DDP_TRY(a->transport->test(a->self, request, &done));
    request->active = !done;
    if (done && request->receives && a->work->start_ns == 0)
        a->work->start_ns = ddp_now_ns();
    return DDP_OK;
}

ddp_status ddpi_algo_idle(ddpi_algo *a, unsigned *round)
{
    DDP_TRY(ddpi_algo_check(a));
    a->transport->idle(a->self, (*round)++, is_aside(a));
    return DDP_OK;
}

ddp_status ddpi_algo_wait(ddpi_algo *a, ddpi_request *requests, int count)
{
    unsigned round = 0;

    for (;;) {
        bool moved = false;
        int active = 0;
        for (int i = 0; i < count; i++) {
            if (!requests[i].active)
                continue;
            DDP_TRY(ddpi_algo_test(a, &requests[i]));
            moved |= !requests[i].active;
            active += requests[i].active;
        }
        if (active == 0)
            return DDP_OK;
        if (moved)
            round = 0;
        DDP_TRY(ddpi_algo_idle(a, &round));
    }
}

ddp_status ddpi_algo_await(ddpi_algo *a, ddp_event *event)
{
    unsigned round = 0;
    bool done = false;

    for (;;) {
        DDP_TRY(ddp_event_query(event, &done));
        if (done)
            return DDP_OK;
        DDP_TRY(ddpi_algo_idle(a, &round));
    }
}

/* ---- the choice ---- */

/* Where the order of the sum is given: which algorithms keep it, beside the one that always does.
 */
static ddp_status run_ordered(ddpi_algo *a, ddp_allreduce_algo choice)
{
    const ddp_coll *coll = &a->work->coll;
    const bool one = ddpi_parts_most(coll, a->world) == 1;
    const bool small = coll->count * ddp_dtype_bytes(coll->dtype) <= TREE_BYTES;

    if (one && choice == DDP_ALLREDUCE_RHD && (a->world & (a->world - 1)) == 0)
        return ddpi_algo_allreduce_rhd(a);
    if (one && (choice == DDP_ALLREDUCE_TREE || (choice == DDP_ALLREDUCE_AUTO && small)))
        return ddpi_algo_allreduce_tree(a);
    return ddpi_algo_allreduce_ordered(a);
}

static ddp_allreduce_algo choose(ddp_allreduce_algo choice, const ddpi_algo *a)
{
    size_t bytes = a->work->coll.count * ddp_dtype_bytes(a->work->coll.dtype);
    const ddp_dtype dtype = a->work->coll.dtype;
    bool native = dtype != DDP_BF16 && dtype != DDP_F16; /* MPI cannot sum them */

    if (choice == DDP_ALLREDUCE_MPI && a->work->coll.count > 0 && native &&
        a->transport->allreduce_start)
        return choice;
    if (choice != DDP_ALLREDUCE_AUTO && choice != DDP_ALLREDUCE_SHM &&
        choice != DDP_ALLREDUCE_MPI && choice != DDP_ALLREDUCE_HIER)
        return choice;
    if (bytes <= TREE_BYTES)
        return DDP_ALLREDUCE_TREE;
    return bytes <= RHD_BYTES ? DDP_ALLREDUCE_RHD : DDP_ALLREDUCE_RING;
}

static ddp_status allreduce_native(ddpi_algo *a)
{
    ddp_coll piece = a->work->coll;
    size_t item_bytes = ddp_dtype_bytes(piece.dtype);
    size_t limit = (size_t)INT32_MAX / 8;

    for (size_t at = 0; at < a->work->coll.count; at += piece.count) {
        ddpi_request request = {.active = true, .peer = -1, .receives = true};
        size_t left = a->work->coll.count - at;
        piece.count = left < limit ? left : limit;
        piece.buf = (char *)a->work->coll.buf + at * item_bytes;
        DDP_TRY(a->transport->allreduce_start(a->self, &piece, &request));
        a->bytes_sent += piece.count * item_bytes;
        DDP_TRY(ddpi_algo_wait(a, &request, 1));
    }
    return DDP_OK;
}

static ddp_status run_allreduce(ddpi_algo *a, ddp_allreduce_algo choice)
{
    if (a->work->coll.shards > 0)
        return run_ordered(a, choice);
    switch (choose(choice, a)) {
    case DDP_ALLREDUCE_MPI:
        return allreduce_native(a);
    case DDP_ALLREDUCE_ROOT:
        return ddpi_algo_allreduce_root(a);
    case DDP_ALLREDUCE_TREE:
        return ddpi_algo_allreduce_tree(a);
    case DDP_ALLREDUCE_RHD:
        return ddpi_algo_allreduce_rhd(a);
    default:
        return ddpi_algo_allreduce_ring(a);
    }
}

ddp_status ddpi_algo_allreduce_flat(ddpi_algo *a)
{
    return run_allreduce(a, DDP_ALLREDUCE_AUTO);
}

ddp_status ddpi_algo_run(ddpi_algo *a, ddp_allreduce_algo choice)
{
    const ddp_coll *coll = &a->work->coll;

    if (ddpi_algo_is_hier(a, choice))
        return ddpi_algo_hier(a);
    switch (coll->kind) {
    case DDP_COLL_BARRIER:
        return ddpi_algo_barrier(a);
    case DDP_COLL_BROADCAST:
        return ddpi_algo_broadcast(a, coll->root);
    case DDP_COLL_REDUCE:
        return ddpi_algo_reduce_to(a, coll->root);
    case DDP_COLL_ALLGATHER:
        return ddpi_algo_allgather(a);
    case DDP_COLL_PING:
        return ddpi_algo_ping(a);
    case DDP_COLL_PUBLISH: /* everybody owns everything where only messages reduce */
        return DDP_OK;
    default:
        return run_allreduce(a, choice);
    }
}
