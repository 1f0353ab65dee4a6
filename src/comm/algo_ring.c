/* algo_ring.c - collectives around a ring.
 *
 * Allreduce: the buffer is cut into one share per rank. In world - 1 steps each share travels once
 * around, collecting sums, and ends complete at one rank; in another world - 1 steps it is handed
 * around. Every rank sends 2 (world - 1) / world of the buffer, which no algorithm over messages
 * can undercut. Allgather is the second half. Engine thread only. */
#include "comm/algo.h"

#include <string.h>

/* Up to here all ranks send to all at once: one step of latency instead of world - 1. */
#define DIRECT_BYTES ((size_t)65536)
#define DIRECT_RANKS 16
/* Up to here many ranks collect and spread by a tree: 2 log2(world) steps. */
#define TREE_BYTES ((size_t)1048576)

static int shifted(const ddpi_algo *a, int by)
{
    return ((a->rank + by) % a->world + a->world) % a->world;
}

/* The share that this rank sends in a step, where rank r starts with share r + first. */
static ddp_range share_at(const ddpi_algo *a, int first, int step)
{
    return ddpi_algo_share(a->work->coll.count, a->world, shifted(a, first - step));
}

ddp_status ddpi_algo_allreduce_ring(ddpi_algo *a)
{
    int next = shifted(a, 1), before = shifted(a, -1);

    for (int step = 0; step < a->world - 1; step++) {
        ddpi_flow flow = {next, share_at(a, 0, step), before, share_at(a, 0, step + 1)};
        DDP_TRY(ddpi_algo_reduce(a, &flow));
    }
    /* Share r + 1 is now complete at rank r. */
    for (int step = 0; step < a->world - 1; step++) {
        ddpi_flow flow = {next, share_at(a, 1, step), before, share_at(a, 1, step + 1)};
        DDP_TRY(ddpi_algo_move(a, &flow));
    }
    return DDP_OK;
}

static ddp_status allgather_direct(ddpi_algo *a, size_t bytes)
{
    char *all = a->work->coll.buf;
    int used = 0;

    for (int i = 1; i < a->world; i++) {
        int peer = shifted(a, -i);
        DDP_TRY(ddpi_algo_recv(a, peer, all + (size_t)peer * bytes, bytes, &a->requests[used++]));
    }
    for (int i = 1; i < a->world; i++)
        DDP_TRY(ddpi_algo_send(a, shifted(a, i), all + (size_t)a->rank * bytes, bytes,
                               &a->requests[used++]));
    return ddpi_algo_wait(a, a->requests, used);
}

ddp_status ddpi_algo_allgather(ddpi_algo *a)
{
    const ddp_coll *coll = &a->work->coll;
    size_t count = coll->count, bytes = count * ddp_dtype_bytes(coll->dtype);
    char *own = (char *)coll->buf + (size_t)a->rank * bytes;

    if (bytes > 0 && coll->src != own)
        memmove(own, coll->src, bytes);
    const size_t all_bytes = bytes * (size_t)a->world;
    if (a->world <= DIRECT_RANKS && all_bytes <= DIRECT_BYTES)
        return allgather_direct(a, bytes);
    if (a->world > DIRECT_RANKS && all_bytes <= TREE_BYTES)
        return ddpi_algo_allgather_tree(a);
    for (int step = 0; step < a->world - 1; step++) {
        size_t out = (size_t)shifted(a, -step), in = (size_t)shifted(a, -step - 1);
        ddpi_flow flow = {shifted(a, 1),
                          {out * count, (out + 1) * count},
                          shifted(a, -1),
                          {in * count, (in + 1) * count}};
        DDP_TRY(ddpi_algo_move(a, &flow));
    }
    return DDP_OK;
}
