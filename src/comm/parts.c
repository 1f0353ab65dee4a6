/* parts.c - which partial sums a work with a fixed order has, and where. See parts.h. */
#include "comm/parts.h"

#include "ddp/sum_tree.h"

ddp_status ddpi_parts_check(const ddp_coll *coll, int world)
{
    if (coll->shards == 0)
        return DDP_OK;
    if (coll->kind != DDP_COLL_REDUCE_OWNED || coll->op != DDP_REDUCE_SUM || coll->shards < 0)
        return DDP_FAIL(DDP_ERR_USAGE, "%s: only the sum of owned slices has an order over shards",
                        coll->what);
    const bool one = (coll->shards & (coll->shards - 1)) == 0;
    const int64_t limit = one ? DDP_SUM_MAX_LEAVES : DDPI_REDUCE_MAX_LEAVES;
    if (coll->shards > limit / world)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "%s: %lld shards of each of %d ranks are too many to be added in order "
                        "(at most %lld together%s)",
                        coll->what, (long long)coll->shards, world, (long long)limit,
                        one ? "" : ", or a power of two for each rank");
    if (!one && coll->part_stride < coll->count)
        return DDP_FAIL(DDP_ERR_USAGE, "%s: partial sums of %zu elements lie %zu apart", coll->what,
                        coll->count, coll->part_stride);
    return DDP_OK;
}

int ddpi_parts_most(const ddp_coll *coll, int world)
{
    if ((coll->shards & (coll->shards - 1)) == 0)
        return 1;
    return ddp_sum_parts(coll->shards * world, world);
}

void ddpi_parts_list(const ddp_coll *coll, int world, ddpi_parts *parts_out)
{
    ddp_sum_node nodes[DDP_SUM_MAX_NODES];
    const int64_t run = coll->shards > 0 ? coll->shards : 1;

    parts_out->n = 0;
    for (int r = 0; r < world; r++) {
        const int count = ddp_sum_nodes(run * world, r * run, (r + 1) * run, nodes);
        for (int place = 0; place < count; place++) {
            const int i = parts_out->n++;
            DDP_ASSERT(i < DDPI_REDUCE_MAX_SOURCES);
            parts_out->rank[i] = r;
            parts_out->place[i] = place;
            parts_out->leaves[i] = nodes[place].hi - nodes[place].lo;
        }
    }
}

size_t ddpi_part_offset(const ddp_coll *coll, int place)
{
    return (size_t)place * coll->part_stride * ddp_dtype_bytes(coll->dtype);
}

size_t ddpi_parts_bytes(const ddp_coll *coll, int world)
{
    return ddpi_part_offset(coll, ddpi_parts_most(coll, world) - 1) +
           coll->count * ddp_dtype_bytes(coll->dtype);
}
