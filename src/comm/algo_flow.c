/* algo_flow.c - flows: a range that goes to one rank while another comes from one, in segments, of
 * which several are under way both ways.
 *
 * A message library asks before it sends a long message. Between hosts the question and its answer
 * queue behind the data that travels on the same connection, and both need the other rank's
 * communication thread, which waits for a processor beside threads that compute; so long messages
 * stand still in between. Segments between hosts are therefore of a length that the transport sends
 * without asking, and many are under way. Inside a host a long message is copied once, and best in
 * one piece. Both ends of a message cut it alike, since it depends on the two of them alone. */
#include "comm/algo.h"

#include "comm/comm_impl.h"

/* Of 60 KiB these are about 1 MB: 80 us of 100 Gbit/s. */
#define EAGER_DEPTH 16
/* Where it is copied once: two long ones, so that one is added while the next one arrives. */
#define LONG_DEPTH 2
/* What is not added needs no scratch. Message libraries count in int; also keeps one message from
 * filling their buffers. */
#define WHOLE_BYTES ((size_t)64 << 20)

_Static_assert(65536 * EAGER_DEPTH <= DDPI_SCRATCH_BYTES, "segments fit");
_Static_assert(DDPI_SEGMENT_BYTES *LONG_DEPTH <= DDPI_SCRATCH_BYTES, "segments fit");

/* Messages of one direction that are under way, the oldest at head. */
typedef struct way {
    ddpi_request requests[EAGER_DEPTH];
    ddp_range pieces[EAGER_DEPTH]; /* of the buffer, in bytes */
    ddp_range left;                /* not under way yet */
    size_t limit;
    int peer, head, count, depth;
} way;

/* Device memory is copied in large pieces. */
static bool is_eager(const ddpi_algo *a, int peer)
{
    return a->transport->eager_bytes > 0 && a->combine == NULL &&
           a->places[a->ranks != NULL ? a->ranks[peer] : peer].node != a->node;
}

static way way_of(const ddpi_algo *a, int peer, ddp_range range, bool adds)
{
    const size_t item_bytes = ddp_dtype_bytes(a->work->coll.dtype);
    way w = {.peer = peer, .limit = adds ? DDPI_SEGMENT_BYTES : WHOLE_BYTES, .depth = LONG_DEPTH};

    if (peer < 0)
        return w;
    w.left = (ddp_range){range.lo * item_bytes, range.hi * item_bytes};
    if (is_eager(a, peer)) {
        w.limit = a->transport->eager_bytes;
        w.depth = EAGER_DEPTH;
    }
    return w;
}

/* What is added arrives in scratch memory. */
static char *arrival(const ddpi_algo *a, const way *w, int slot)
{
    return (char *)a->scratch + (size_t)slot * w->limit;
}

/* The next piece, if there are any more and a slot is free. */
static int next_slot(way *w)
{
    if (w->left.lo == w->left.hi || w->count == w->depth)
        return -1;
    const int slot = (w->head + w->count++) % w->depth;
    const size_t end = w->left.hi - w->left.lo < w->limit ? w->left.hi : w->left.lo + w->limit;
    w->pieces[slot] = (ddp_range){w->left.lo, end};
    w->left.lo = end;
    return slot;
}

static ddp_status fill_sends(ddpi_algo *a, way *w)
{
    const char *buf = a->work->coll.buf;

    for (int slot; (slot = next_slot(w)) >= 0;)
        DDP_TRY(ddpi_algo_send(a, w->peer, buf + w->pieces[slot].lo,
                               w->pieces[slot].hi - w->pieces[slot].lo, &w->requests[slot]));
    return DDP_OK;
}

static ddp_status fill_receives(ddpi_algo *a, way *w, bool adds)
{
    char *buf = a->work->coll.buf;

    for (int slot; (slot = next_slot(w)) >= 0;)
        DDP_TRY(ddpi_algo_recv(a, w->peer, adds ? arrival(a, w, slot) : buf + w->pieces[slot].lo,
                               w->pieces[slot].hi - w->pieces[slot].lo, &w->requests[slot]));
    return DDP_OK;
}

/* Is the oldest complete? Then its slot is free for another; *slot_out is below 0 if not. */
static ddp_status take_oldest(ddpi_algo *a, way *w, int *slot_out)
{
    ddpi_request *request = &w->requests[w->head];

    *slot_out = -1;
    if (w->count == 0)
        return DDP_OK;
    DDP_TRY(ddpi_algo_test(a, request));
    if (request->active)
        return DDP_OK;
    *slot_out = w->head;
    w->head = (w->head + 1) % w->depth;
    w->count--;
    return DDP_OK;
}

static ddp_status run_flow(ddpi_algo *a, const ddpi_flow *flow, bool adds)
{
    const size_t item_bytes = ddp_dtype_bytes(a->work->coll.dtype);
    char *buf = a->work->coll.buf;
    way out = way_of(a, flow->to, flow->send, adds), in = way_of(a, flow->from, flow->recv, adds);
    unsigned round = 0;

    for (;;) {
        int sent, came;
        DDP_TRY(fill_receives(a, &in, adds));
        DDP_TRY(fill_sends(a, &out));
        if (in.count == 0 && out.count == 0)
            return DDP_OK;
        DDP_TRY(take_oldest(a, &out, &sent));
        DDP_TRY(take_oldest(a, &in, &came));
        if (came >= 0 && adds)
            DDP_TRY(ddpi_algo_add(a, buf + in.pieces[came].lo, arrival(a, &in, came),
                                  (in.pieces[came].hi - in.pieces[came].lo) / item_bytes));
        if (sent >= 0 || came >= 0)
            round = 0;
        else
            DDP_TRY(ddpi_algo_idle(a, &round));
    }
}

ddp_status ddpi_algo_move(ddpi_algo *a, const ddpi_flow *flow)
{
    return run_flow(a, flow, false);
}

ddp_status ddpi_algo_reduce(ddpi_algo *a, const ddpi_flow *flow)
{
    return run_flow(a, flow, true);
}
