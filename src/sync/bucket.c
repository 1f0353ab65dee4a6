/* bucket.c - the cut itself: one pass over the parameter table. See bucket.h. */
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

ddp_status ddpi_bucket_plan_make(const ddp_param_table *table, double first_bytes, double cap_bytes,
                                 int blocks, ddpi_bucket_plan *plan_out)
{
    int params = ddp_param_table_count(table);
    ddpi_bucket_plan plan = {0};
    ddp_status st;
    DDP_TRY(DDP_ALLOC(plan.bucket_of, (size_t)params));
    DDP_TRY_GOTO(st, DDP_ALLOC(plan.ranges, (size_t)params), err);
    DDP_TRY_GOTO(st, DDP_ALLOC(plan.param_counts, (size_t)params), err);
    double bytes = 0;
    for (int i = 0; i < params; i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        if (bytes == 0)
            plan.ranges[plan.count++].lo = p->offset;
        plan.bucket_of[i] = plan.count - 1;
        plan.param_counts[plan.count - 1]++;
        bytes += (double)p->count * sizeof(float);
        bool last = i + 1 == params;
        plan.ranges[plan.count - 1].hi =
            last ? ddp_param_table_length(table) : ddp_param_table_at(table, i + 1)->offset;
        if (bytes >= (plan.count == 1 ? first_bytes : cap_bytes))
            bytes = 0;
    }
    DDP_TRY_GOTO(st, cut_blocks(&plan, blocks), err);
    *plan_out = plan;
    return DDP_OK;
err:
    ddpi_bucket_plan_free(&plan);
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
