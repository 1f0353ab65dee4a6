/* sum_tree.h - the one order in which sums over logical shards are taken.
 *
 * n leaves are split at the largest power of two below n, each side is summed likewise, and the two
 * are added. A rank that owns a run of leaves can sum by itself what lies under a node of the tree,
 * and no more: its run falls into the largest such nodes, and what it sends is one partial sum for
 * each. A run of 2^k leaves that starts at a multiple of 2^k is one node. Pure functions; any
 * thread. Local. */
#ifndef DDP_SUM_TREE_H
#define DDP_SUM_TREE_H

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Leaves [lo, hi) that lie under one node. */
typedef struct ddp_sum_node {
    int64_t lo, hi;
} ddp_sum_node;

/* Trees have at most 2^30 leaves; a run of them has at most this many nodes. */
#define DDP_SUM_MAX_LEAVES (INT64_C(1) << 30)
#define DDP_SUM_MAX_NODES  64

/* Leaves of the left side of a tree with n > 1. */
DDP_API int64_t ddp_sum_split(int64_t n);
/* The largest nodes within the run [lo, hi) of a tree's leaves, in order; how many they are. */
DDP_API int ddp_sum_nodes(int64_t leaves, int64_t lo, int64_t hi,
                          ddp_sum_node nodes_out[DDP_SUM_MAX_NODES]);
/* The largest number of nodes that one of `world` equal runs falls into. */
DDP_API int ddp_sum_parts(int64_t leaves, int world);

#ifdef __cplusplus
}
#endif
#endif
