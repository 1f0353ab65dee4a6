/* partials.h - the sums over the logical shards of a rank that come before those over ranks.
 *
 * Shard i of a node, unless it is the last, writes to level[t], t being the number of trailing one
 * bits of i, and then adds levels 0 .. t-1. The last shard writes to the communicator's buffer and
 * adds the levels of its one bits, lowest first. This gives the tree that splits n shards at the
 * largest power of two below n, with no copy. A rank's shards are one node; with exact sums they
 * may be several, each with a part of the communicator's buffer, and the reduction goes on from
 * there. */
#ifndef DDP_SYNC_PARTIALS_H
#define DDP_SYNC_PARTIALS_H

#include "ddp/comm.h"
#include "ddp/sum_tree.h"

enum { DDPI_PARTIALS_LEVELS = 32 };

typedef struct ddpi_partials {
    ddp_device *device;
    int64_t shards; /* of this rank */
    size_t length;  /* of a flat buffer */
    float *levels[DDPI_PARTIALS_LEVELS];
    int level_count;
    int64_t shard;                         /* of this step, whose backward runs */
    float *target;                         /* where it writes */
    ddp_sum_node nodes[DDP_SUM_MAX_NODES]; /* of this rank's shards, counted from its first */
    int node_count;
    int node;  /* that `shard` belongs to */
    int parts; /* of the communicator's buffer: what the rank with the most nodes has */
} ddpi_partials;

/* Local. shards and length are set, all else is 0. */
DDP_INNER ddp_status ddpi_partials_open(ddpi_partials *partials, ddp_device *device,
                                        const ddp_comm *comm, bool exact);
void ddpi_partials_close(ddpi_partials *partials);
/* A shard's backward comes next: sets target. grads: the communicator's buffer. */
void ddpi_partials_begin(ddpi_partials *partials, float *grads, int64_t shard);
/* The shard has written this range: adds the levels that its sum takes in. */
DDP_INNER ddp_status ddpi_partials_add(const ddpi_partials *partials, ddp_range range);

#endif
