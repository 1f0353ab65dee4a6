/* algo_tree.c - collectives over a binomial tree, and the barrier.
 *
 * Ranks are counted from the root: place p receives from places p + 1, p + 2, p + 4, ... below its
 * lowest set bit, and sends to p without that bit. log2(world) steps each way, which is best where
 * latency decides. Engine thread only. */
#include "comm/algo.h"

/* Pieces of a broadcast: a rank passes one on while the next is on its way to it. */
#define PIECE_BYTES ((size_t)1 << 20)

typedef struct place {
    int root, index; /* of this rank, counted from the root */
    int span;        /* its children are index + 1, 2, 4, ... below index + span */
} place;

static place place_of(const ddpi_algo *a, int root)
{
    place p = {.root = root, .index = (a->rank - root + a->world) % a->world, .span = 1};

    while (p.span < a->world && (p.index & p.span) == 0)
        p.span *= 2;
    return p;
}

static int rank_at(const ddpi_algo *a, const place *p, int index)
{
    return (index + p->root) % a->world;
}

static int parent_of(const ddpi_algo *a, const place *p)
{
    return rank_at(a, p, p->index - p->span);
}

ddp_status ddpi_algo_reduce_to(ddpi_algo *a, int root)
{
    place p = place_of(a, root);
    ddp_range all = {0, a->work->coll.count};

    for (int bit = 1; bit < p.span; bit *= 2) {
        if (p.index + bit >= a->world)
            break;
        ddpi_flow from_child = {.to = -1, .from = rank_at(a, &p, p.index + bit), .recv = all};
        DDP_TRY(ddpi_algo_reduce(a, &from_child));
    }
    if (p.index == 0)
        return DDP_OK;
    ddpi_flow to_parent = {.to = parent_of(a, &p), .send = all, .from = -1};
    return ddpi_algo_reduce(a, &to_parent);
}

static ddp_status send_to_children(ddpi_algo *a, const place *p, const char *piece, size_t bytes)
{
    int used = 0;

    for (int bit = p->span / 2; bit >= 1; bit /= 2) {
        if (p->index + bit >= a->world)
            continue;
        DDP_TRY(
            ddpi_algo_send(a, rank_at(a, p, p->index + bit), piece, bytes, &a->requests[used++]));
    }
    return ddpi_algo_wait(a, a->requests, used);
}

ddp_status ddpi_algo_broadcast(ddpi_algo *a, int root)
{
    const ddp_coll *coll = &a->work->coll;
    size_t bytes = coll->count * ddp_dtype_bytes(coll->dtype);
    place p = place_of(a, root);

    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        char *piece = (char *)coll->buf + at;
        size_t piece_bytes = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (p.index != 0) {
            ddpi_request request;
            DDP_TRY(ddpi_algo_recv(a, parent_of(a, &p), piece, piece_bytes, &request));
            DDP_TRY(ddpi_algo_wait(a, &request, 1));
        }
        DDP_TRY(send_to_children(a, &p, piece, piece_bytes));
    }
    return DDP_OK;
}

ddp_status ddpi_algo_allreduce_tree(ddpi_algo *a)
{
    DDP_TRY(ddpi_algo_reduce_to(a, 0));
    return ddpi_algo_broadcast(a, 0);
}

/* The shares of ranks [lo, hi), those of them that exist. */
static ddp_range shares(const ddpi_algo *a, int lo, int hi)
{
    const size_t count = a->work->coll.count;

    return (ddp_range){(size_t)lo * count, (size_t)(hi < a->world ? hi : a->world) * count};
}

/* Places below a child follow it, so what a rank has collected is always one range. */
static ddp_status collect(ddpi_algo *a)
{
    place p = place_of(a, 0);

    for (int bit = 1; bit < p.span && p.index + bit < a->world; bit *= 2) {
        ddpi_flow up = {
            .to = -1, .from = p.index + bit, .recv = shares(a, p.index + bit, p.index + 2 * bit)};
        DDP_TRY(ddpi_algo_move(a, &up));
    }
    if (p.index == 0)
        return DDP_OK;
    ddpi_flow up = {
        .to = parent_of(a, &p), .send = shares(a, p.index, p.index + p.span), .from = -1};
    return ddpi_algo_move(a, &up);
}

ddp_status ddpi_algo_allgather_tree(ddpi_algo *a)
{
    ddp_work *const work = a->work;

    DDP_TRY(collect(a));
    ddp_work whole = *work;
    whole.coll.count *= (size_t)a->world;
    a->work = &whole;
    const ddp_status st = ddpi_algo_broadcast(a, 0);
    a->work = work;
    work->start_ns = whole.start_ns;
    return st;
}

/* In round k every rank hears, directly or not, from the 2^(k+1) - 1 ranks before it. */
ddp_status ddpi_algo_barrier(ddpi_algo *a)
{
    for (int distance = 1; distance < a->world; distance *= 2) {
        ddpi_request requests[2];
        int to = (a->rank + distance) % a->world;
        int from = (a->rank - distance + a->world) % a->world;
        DDP_TRY(ddpi_algo_recv(a, from, NULL, 0, &requests[0]));
        DDP_TRY(ddpi_algo_send(a, to, NULL, 0, &requests[1]));
        DDP_TRY(ddpi_algo_wait(a, requests, 2));
    }
    return DDP_OK;
}
