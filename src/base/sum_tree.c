/* sum_tree.c - the arithmetic of the tree over logical shards. See sum_tree.h. */
#include "ddp/sum_tree.h"

#include "ddp/status.h"

int64_t ddp_sum_split(int64_t n)
{
    int64_t left = 1;

    DDP_ASSERT(n > 1 && n <= DDP_SUM_MAX_LEAVES);
    while (left * 2 < n)
        left *= 2;
    return left;
}

/* Goes down from the node [first, last) to the nodes within [lo, hi), and adds them to the list. */
static int collect(int64_t first, int64_t last, ddp_sum_node run, ddp_sum_node *nodes, int count)
{
    if (first >= run.hi || last <= run.lo)
        return count;
    if (first >= run.lo && last <= run.hi) {
        DDP_ASSERT(count < DDP_SUM_MAX_NODES);
        nodes[count] = (ddp_sum_node){first, last};
        return count + 1;
    }
    const int64_t middle = first + ddp_sum_split(last - first);
    count = collect(first, middle, run, nodes, count);
    return collect(middle, last, run, nodes, count);
}

int ddp_sum_nodes(int64_t leaves, int64_t lo, int64_t hi, ddp_sum_node nodes_out[DDP_SUM_MAX_NODES])
{
    DDP_ASSERT(lo >= 0 && lo < hi && hi <= leaves);
    return collect(0, leaves, (ddp_sum_node){lo, hi}, nodes_out, 0);
}

int ddp_sum_parts(int64_t leaves, int world)
{
    ddp_sum_node nodes[DDP_SUM_MAX_NODES];
    const int64_t run = leaves / world;
    int most = 1;

    DDP_ASSERT(world >= 1 && leaves % world == 0);
    for (int64_t r = 0; r < world; r++) {
        const int count = ddp_sum_nodes(leaves, r * run, (r + 1) * run, nodes);
        most = count > most ? count : most;
    }
    return most;
}
