/* bucket.c - the cut itself: one pass over the parameter table. See bucket.h. */
#include "sync/bucket.h"

#include "ddp/memory.h"

ddp_status ddpi_bucket_plan_make(const ddp_param_table *table, double first_bytes, double cap_bytes,
                                 ddpi_bucket_plan *plan_out)
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
    *plan = (ddpi_bucket_plan){0};
}
