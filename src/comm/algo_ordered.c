/* algo_ordered.c - allreduce in the order of the one tree over logical shards, for any number of
 * ranks and of partial sums that a rank has.
 *
 * Every rank gets, from each of the others, their partial sums of its own share of the buffer, adds
 * them up in the order of the tree, and the complete shares go round. A rank sends as much as in
 * the ring where it has one partial sum, in one step of latency for each segment. Engine thread
 * only. */
#include "comm/algo.h"
#include "comm/parts.h"

typedef struct ordered {
    ddpi_algo *a;
    const ddpi_parts *parts;
    int places; /* of the rank with the most partial sums */
    size_t item_bytes;
    size_t segment; /* elements of a partial sum that are under way at a time */
    size_t at;      /* of the shares: the segment's first element */
} ordered;

/* Where a partial sum of another rank arrives. */
static char *arrival(const ordered *o, int part)
{
    return (char *)o->a->scratch + (size_t)part * o->segment * o->item_bytes;
}

/* The segment's elements of a rank's share. */
static ddp_range segment_of(const ordered *o, int rank)
{
    ddp_range share = ddpi_algo_share(o->a->work->coll.count, o->a->world, rank);
    size_t lo = share.lo + o->at, hi = lo + o->segment;

    return (ddp_range){lo < share.hi ? lo : share.hi, hi < share.hi ? hi : share.hi};
}

static char *own_part(const ordered *o, int place, size_t element)
{
    const ddp_coll *coll = &o->a->work->coll;

    return (char *)coll->buf + ddpi_part_offset(coll, place) + element * o->item_bytes;
}

/* One partial sum of every rank that has so many: own ones leave, others' arrive. */
static ddp_status exchange(const ordered *o, int place)
{
    ddpi_algo *a = o->a;
    const ddp_range mine = segment_of(o, a->rank);
    bool have = false;
    int used = 0;

    for (int i = 0; i < o->parts->n; i++) {
        if (o->parts->place[i] != place)
            continue;
        if (o->parts->rank[i] == a->rank)
            have = true;
        else if (mine.lo < mine.hi)
            DDP_TRY(ddpi_algo_recv(a, o->parts->rank[i], arrival(o, i),
                                   (mine.hi - mine.lo) * o->item_bytes, &a->requests[used++]));
    }
    for (int i = 1; have && i < a->world; i++) {
        const int to = (a->rank + i) % a->world;
        const ddp_range theirs = segment_of(o, to);
        if (theirs.lo < theirs.hi)
            DDP_TRY(ddpi_algo_send(a, to, own_part(o, place, theirs.lo),
                                   (theirs.hi - theirs.lo) * o->item_bytes, &a->requests[used++]));
    }
    return ddpi_algo_wait(a, a->requests, used);
}

static void add_up(const ordered *o)
{
    const ddp_range mine = segment_of(o, o->a->rank);
    const void *src[DDPI_REDUCE_MAX_SOURCES];
    void *dst[1] = {own_part(o, 0, mine.lo)};

    for (int i = 0; i < o->parts->n; i++)
        src[i] = o->parts->rank[i] == o->a->rank ? own_part(o, o->parts->place[i], mine.lo)
                                                 : arrival(o, i);
    ddpi_reduce(&(ddpi_reduction){.dtype = o->a->work->coll.dtype,
                                  .op = DDP_REDUCE_SUM,
                                  .n = o->parts->n,
                                  .src = src,
                                  .leaves = o->parts->n > o->a->world ? o->parts->leaves : NULL,
                                  .dst_count = 1,
                                  .dst = dst,
                                  .count = mine.hi - mine.lo});
}

static ddp_status hand_round(ddpi_algo *a)
{
    const size_t count = a->work->coll.count;
    const int world = a->world, next = (a->rank + 1) % world,
              before = (a->rank + world - 1) % world;

    for (int step = 0; step < world - 1; step++) {
        const int out = (a->rank - step + world) % world, in = (out - 1 + world) % world;
        ddpi_flow flow = {next, ddpi_algo_share(count, world, out), before,
                          ddpi_algo_share(count, world, in)};
        DDP_TRY(ddpi_algo_move(a, &flow));
    }
    return DDP_OK;
}

ddp_status ddpi_algo_allreduce_ordered(ddpi_algo *a)
{
    const ddp_coll *coll = &a->work->coll;
    const size_t longest = ddpi_algo_share(coll->count, a->world, 0).hi;
    ddpi_parts parts;
    ordered o = {.a = a, .parts = &parts, .item_bytes = ddp_dtype_bytes(coll->dtype)};

    ddpi_parts_list(coll, a->world, &parts);
    o.places = ddpi_parts_most(coll, a->world);
    /* Segments follow one another, so the longest that fit take the fewest turns. */
    o.segment =
        DDPI_SCRATCH_BYTES / (size_t)parts.n / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES / o.item_bytes;
    for (; o.at < longest; o.at += o.segment) {
        for (int place = 0; place < o.places; place++)
            DDP_TRY(exchange(&o, place));
        add_up(&o);
    }
    return hand_round(a);
}
