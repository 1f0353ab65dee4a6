/* clocks.c - the ranks' clocks against rank 0's. See clocks.h. */
#include "ddp/clocks.h"

#include "ddp/memory.h"
#include "ddp/thread.h"

enum { PINGS = 16 };

/* Between looks whose errors could make up a drift of so many parts in a million, there is none:
 * quartz is better than that. */
#define DRIFT_PPM 200

ddp_clock_look ddp_clocks_compare(const ddp_ping *pings, int count)
{
    const ddp_ping *best = &pings[0];

    for (int i = 1; i < count; i++)
        if (pings[i].back_ns - pings[i].sent_ns < best->back_ns - best->sent_ns)
            best = &pings[i];
    const int64_t way_ns = best->back_ns - best->sent_ns;
    return (ddp_clock_look){.at_ns = best->stamp.monotonic_ns,
                            .ahead_ns = best->stamp.monotonic_ns - (best->sent_ns + way_ns / 2),
                            .error_ns = way_ns / 2 + 1};
}

int64_t ddp_clocks_translate(const ddp_clock_look looks[2], int64_t own_ns)
{
    const ddp_clock_look *a = &looks[0], *b = &looks[1];
    const int64_t apart_ns = b->at_ns - a->at_ns, errors_ns = a->error_ns + b->error_ns;

    if (b->error_ns == 0 || apart_ns <= 0 || errors_ns * (1000000 / DRIFT_PPM) > apart_ns)
        return own_ns - b->ahead_ns;
    const double drift = (double)(b->ahead_ns - a->ahead_ns) / (double)apart_ns;
    return own_ns - b->ahead_ns - (int64_t)(drift * (double)(own_ns - b->at_ns));
}

static int first_of(const ddp_comm *comm, int node)
{
    int rank = 0;

    while (ddp_comm_node_of(comm, rank) != node)
        rank++;
    return rank;
}

static ddp_status look_at(ddp_comm *comm, int node, ddp_clock_look *look)
{
    const int rank = first_of(comm, node);
    ddp_ping pings[PINGS] = {0};
    ddp_ping_stamp stamp;

    for (int i = 0; i < PINGS; i++)
        DDP_TRY(ddp_comm_ping(comm, 0, rank, &stamp, sizeof stamp, &pings[i]));
    *look = ddp_clocks_compare(pings, PINGS);
    return DDP_OK;
}

ddp_status ddp_clocks_look(ddp_comm *comm, ddp_clock_look *look_out)
{
    const int nodes = ddp_comm_node_count(comm);
    ddp_clock_look *looks = NULL;

    *look_out = (ddp_clock_look){.at_ns = ddp_now_ns()};
    if (nodes == 1)
        return DDP_OK;
    DDP_TRY(ddp_comm_agree(comm, DDP_ALLOC(looks, (size_t)nodes), "compare clocks"));
    ddp_status st = DDP_OK;
    for (int node = 0; node < nodes && st == DDP_OK; node++)
        if (node != ddp_comm_node_of(comm, 0))
            st = look_at(comm, node, &looks[node]);
    if (st == DDP_OK)
        st = ddp_comm_broadcast(comm, 0, looks, (size_t)nodes * sizeof *looks);
    if (st == DDP_OK && ddp_comm_node(comm) != ddp_comm_node_of(comm, 0))
        *look_out = looks[ddp_comm_node(comm)];
    ddp_free(looks);
    return st;
}
