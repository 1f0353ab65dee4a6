/* algo_rhd.c - allreduce by recursive halving and doubling.
 *
 * With 2^k ranks: in k steps a rank exchanges halves of its range with a partner and keeps the sum
 * of one half; in k more the halves are put together again. As little data as the ring, in 2 k
 * steps. Partners are at distance 1, then 2, 4, ..., so that every element is summed in the order
 * of sum_tree.h, and the longest messages go to the nearest ranks. Of other worlds, the ranks
 * beyond the largest power of two first give their buffers to a partner, and get the result at the
 * end. Engine thread only. */
#include "comm/algo.h"

#define MAX_STEPS 31

static ddp_range middle(ddp_range range, bool upper)
{
    size_t cut = range.lo + (range.hi - range.lo) / 2;

    return upper ? (ddp_range){cut, range.hi} : (ddp_range){range.lo, cut};
}

/* Among the first `size` ranks, a power of two. */
static ddp_status halve_and_double(ddpi_algo *a, int size)
{
    ddp_range ranges[MAX_STEPS]; /* what this rank held before each step */
    ddp_range held = {0, a->work->coll.count};
    int steps = 0;

    for (int bit = 1; bit < size; bit *= 2) {
        bool upper = (a->rank & bit) != 0;
        ddpi_flow flow = {a->rank ^ bit, middle(held, !upper), a->rank ^ bit, middle(held, upper)};
        DDP_TRY(ddpi_algo_reduce(a, &flow));
        ranges[steps++] = held;
        held = middle(held, upper);
    }
    for (int bit = size / 2; bit >= 1; bit /= 2) {
        ddp_range whole = ranges[--steps];
        bool upper = (a->rank & bit) != 0;
        ddpi_flow flow = {a->rank ^ bit, held, a->rank ^ bit, middle(whole, !upper)};
        DDP_TRY(ddpi_algo_move(a, &flow));
        held = whole;
    }
    return DDP_OK;
}

ddp_status ddpi_algo_allreduce_rhd(ddpi_algo *a)
{
    ddp_range all = {0, a->work->coll.count};
    int size = 1;

    while (size * 2 <= a->world)
        size *= 2;
    if (a->rank >= size) {
        ddpi_flow fold = {.to = a->rank - size, .send = all, .from = -1};
        ddpi_flow unfold = {.to = -1, .from = a->rank - size, .recv = all};
        DDP_TRY(ddpi_algo_reduce(a, &fold));
        return ddpi_algo_move(a, &unfold);
    }
    int extra = a->rank + size;
    if (extra < a->world) {
        ddpi_flow fold = {.to = -1, .from = extra, .recv = all};
        DDP_TRY(ddpi_algo_reduce(a, &fold));
    }
    DDP_TRY(halve_and_double(a, size));
    if (extra < a->world) {
        ddpi_flow unfold = {.to = extra, .send = all, .from = -1};
        return ddpi_algo_move(a, &unfold);
    }
    return DDP_OK;
}
