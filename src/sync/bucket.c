/* bucket.c - the cut itself: by size, or as given. See bucket.h. */
#include "sync/bucket.h"

#include "ddp/memory.h"

static size_t unit_of(ddp_range range, int blocks)
{
    const size_t border = DDP_ALIGN_BYTES / sizeof(float);
    const size_t length = range.hi - range.lo, step = border * (size_t)blocks;

    return (length + step - 1) / step * border;
}

static ddp_status cut_blocks(ddpi_bucket_plan *plan, int blocks)
{
    DDP_TRY(DDP_ALLOC(plan->units, (size_t)plan->count));
    DDP_TRY(DDP_ALLOC(plan->first_block, (size_t)plan->count + 1));
    DDP_TRY(DDP_ALLOC(plan->blocks, (size_t)plan->count * (size_t)blocks));
    for (int i = 0; i < plan->count; i++) {
        const ddp_range range = plan->ranges[i];
        plan->units[i] = unit_of(range, blocks);
        plan->first_block[i] = plan->block_count;
        for (size_t lo = range.lo; lo < range.hi; lo += plan->units[i]) {
            const size_t hi = lo + plan->units[i];
            plan->blocks[plan->block_count++] = (ddp_range){lo, hi < range.hi ? hi : range.hi};
        }
    }
    plan->first_block[plan->count] = plan->block_count;
    return DDP_OK;
}

/* Where buckets end, by size. Returns how many there are. */
static int ends_by_size(const ddp_param_table *table, const ddpi_bucket_cut *cut, int *ends)
{
    const int params = ddp_param_table_count(table);
    int count = 0;
    double bytes = 0;
    for (int i = 0; i < params; i++) {
        bytes += (double)ddp_param_table_at(table, i)->count * sizeof(float);
        if (bytes < (count == 0 ? cut->first_bytes : cut->cap_bytes) && i + 1 < params)
            continue;
        ends[count++] = i + 1;
        bytes = 0;
    }
    return count;
}

static size_t border(const ddp_param_table *table, int param)
{
    return param == ddp_param_table_count(table) ? ddp_param_table_length(table)
                                                 : ddp_param_table_at(table, param)->offset;
}

static ddp_status make(const ddp_param_table *table, const int *ends, int count, int blocks,
                       ddpi_bucket_plan *plan_out)
{
    const int params = ddp_param_table_count(table);
    ddpi_bucket_plan plan = {.count = count};
    ddp_status st;
    DDP_TRY(DDP_ALLOC(plan.bucket_of, (size_t)params));
    DDP_TRY_GOTO(st, DDP_ALLOC(plan.ranges, (size_t)count), err);
    DDP_TRY_GOTO(st, DDP_ALLOC(plan.param_counts, (size_t)count), err);
    for (int b = 0, i = 0; b < count; b++) {
        DDP_ASSERT(ends[b] > i && ends[b] <= params);
        plan.ranges[b] = (ddp_range){border(table, i), border(table, ends[b])};
        plan.param_counts[b] = ends[b] - i;
        while (i < ends[b])
            plan.bucket_of[i++] = b;
    }
    DDP_ASSERT(params == 0 || (count > 0 && ends[count - 1] == params));
    DDP_TRY_GOTO(st, cut_blocks(&plan, blocks), err);
    *plan_out = plan;
    return DDP_OK;
err:
    ddpi_bucket_plan_free(&plan);
    return st;
}

ddp_status ddpi_bucket_plan_make(const ddp_param_table *table, const ddpi_bucket_cut *cut,
                                 ddpi_bucket_plan *plan_out)
{
    int *ends;
    if (cut->ends != NULL)
        return make(table, cut->ends, cut->count, cut->blocks, plan_out);
    DDP_TRY(DDP_ALLOC(ends, (size_t)ddp_param_table_count(table)));
    ddp_status st = make(table, ends, ends_by_size(table, cut, ends), cut->blocks, plan_out);
    ddp_free(ends);
    return st;
}

void ddpi_bucket_plan_free(ddpi_bucket_plan *plan)
{
    ddp_free(plan->ranges);
    ddp_free(plan->param_counts);
    ddp_free(plan->bucket_of);
    ddp_free(plan->units);
    ddp_free(plan->blocks);
    ddp_free(plan->first_block);
    *plan = (ddpi_bucket_plan){0};
}
