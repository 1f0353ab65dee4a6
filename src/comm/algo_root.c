/* algo_root.c - allreduce through rank 0, the plain way: everything goes there, is added in the
 * order of the ranks, and comes back. Moves 2 (world - 1) times the buffer through one rank; it is
 * what the others are measured against. Engine thread only. */
#include "comm/algo.h"

ddp_status ddpi_algo_allreduce_root(ddpi_algo *a)
{
    ddp_range all = {0, a->work->coll.count};

    if (a->rank != 0) {
        ddpi_flow up = {.to = 0, .send = all, .from = -1};
        ddpi_flow down = {.to = -1, .from = 0, .recv = all};
        DDP_TRY(ddpi_algo_reduce(a, &up));
        return ddpi_algo_move(a, &down);
    }
    for (int r = 1; r < a->world; r++) {
        ddpi_flow up = {.to = -1, .from = r, .recv = all};
        DDP_TRY(ddpi_algo_reduce(a, &up));
    }
    for (int r = 1; r < a->world; r++) {
        ddpi_flow down = {.to = r, .send = all, .from = -1};
        DDP_TRY(ddpi_algo_move(a, &down));
    }
    return DDP_OK;
}
