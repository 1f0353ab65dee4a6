/* partials.c - the binary counter of flat buffers. See partials.h. */
#include "sync/partials.h"

#include "ddp/pointwise.h"

static bool last_of_node(const ddpi_partials *p)
{
    return p->shard + 1 == p->nodes[p->node].hi;
}

/* The number of `shard` within its node. */
static int64_t place_in_node(const ddpi_partials *p)
{
    return p->shard - p->nodes[p->node].lo;
}

/* Those below its first zero bit, or for the last shard all of its one bits. */
ddp_status ddpi_partials_add(const ddpi_partials *p, ddp_range range)
{
    ddp_stream *stream = ddp_device_main_stream(p->device);
    for (int level = 0; level < p->level_count; level++) {
        bool one = (place_in_node(p) >> level) & 1;
        if (!one && !last_of_node(p))
            break;
        if (one)
            DDP_TRY(ddp_op_add(p->device, stream, p->target + range.lo, p->levels[level] + range.lo,
                               range.hi - range.lo));
    }
    return DDP_OK;
}

void ddpi_partials_begin(ddpi_partials *p, float *grads, int64_t shard)
{
    p->shard = shard;
    p->node = 0;
    while (p->nodes[p->node].hi <= shard)
        p->node++;
    if (last_of_node(p)) {
        p->target = grads + (size_t)p->node * p->length;
        return;
    }
    int level = 0;
    while ((place_in_node(p) >> level) & 1)
        level++;
    DDP_ASSERT(level < p->level_count);
    p->target = p->levels[level];
}

/* ---- life ---- */

/* Which partial sums this rank makes. */
static ddp_status find_nodes(ddpi_partials *p, const ddp_comm *comm, bool exact)
{
    const int world = ddp_comm_world(comm), rank = ddp_comm_rank(comm);
    p->parts = 1;
    if (!exact) {
        p->node_count = ddp_sum_nodes(p->shards, 0, p->shards, p->nodes);
        return DDP_OK;
    }
    if (p->shards > DDP_SUM_MAX_LEAVES / world)
        return DDP_FAIL(DDP_ERR_USAGE, "%lld shards on each of %d ranks are too many",
                        (long long)p->shards, world);
    p->node_count =
        ddp_sum_nodes(p->shards * world, rank * p->shards, (rank + 1) * p->shards, p->nodes);
    for (int i = 0; i < p->node_count; i++) {
        p->nodes[i].lo -= rank * p->shards;
        p->nodes[i].hi -= rank * p->shards;
    }
    p->parts = ddp_sum_parts(p->shards * world, world);
    return DDP_OK;
}

static ddp_status alloc_levels(ddpi_partials *p)
{
    int64_t most = 1;
    for (int i = 0; i < p->node_count; i++)
        if (p->nodes[i].hi - p->nodes[i].lo > most)
            most = p->nodes[i].hi - p->nodes[i].lo;
    for (int64_t rest = most - 1; rest > 0; rest >>= 1) {
        void *memory;
        DDP_TRY(ddp_device_alloc(p->device, p->length * sizeof(float), &memory));
        p->levels[p->level_count++] = memory;
    }
    return DDP_OK;
}

ddp_status ddpi_partials_open(ddpi_partials *p, ddp_device *device, const ddp_comm *comm,
                              bool exact)
{
    p->device = device;
    DDP_TRY(find_nodes(p, comm, exact));
    return alloc_levels(p);
}

void ddpi_partials_close(ddpi_partials *p)
{
    for (int i = 0; i < p->level_count; i++)
        ddp_device_free(p->device, p->levels[i], p->length * sizeof(float));
}
