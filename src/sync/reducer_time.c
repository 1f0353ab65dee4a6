/* reducer_time.c - the time of a bucket over its size, for a choice of buckets: a reducer whose
 * only parameter is as long as the bucket makes steps over zeros. */
#include <math.h>

#include "ddp/memory.h"
#include "ddp/reducer.h"
#include "ddp/thread.h"

/* Steps of a size, after a first one that does not count. */
enum { FEW = 2, MANY = 5 };

/* A table with one parameter of that many elements. */
static ddp_status table_of(ddp_device *device, int64_t elements, ddp_param_table **table_out)
{
    ddp_param param = {.name = "probe", .shape = {1, {elements}}, .use_count = 1};
    ddp_param_table *table;
    int index;
    DDP_TRY(ddp_param_table_create(&table));
    ddp_status st = ddp_layout_plain(device, &param.shape, &param.layout);
    if (st == DDP_OK) {
        st = ddp_param_table_add(table, &param, &index);
        ddp_layout_unref(param.layout);
    }
    if (st != DDP_OK) {
        ddp_param_table_destroy(table);
        return st;
    }
    *table_out = table;
    return DDP_OK;
}

static double median(double *values, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
            const double swap = values[k];
            values[k] = values[k - 1];
            values[k - 1] = swap;
        }
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* Of a bucket: until it is reduced, and its publication where that comes later. */
typedef struct bucket_time {
    double reduce, publish;
} bucket_time;

/* What is carried out by the rank that waits has no later. */
static ddp_status time_steps(ddp_comm *comm, ddp_reducer *reducer, ddp_param_table *table,
                             int count, bucket_time *time_out)
{
    const size_t bytes = ddp_param_table_length(table) * sizeof(float);
    const bool aside = ddp_comm_works_aside(comm, ddp_reducer_grads(reducer), bytes);
    double reduce[MANY], publish[MANY];
    ddp_reducer_times times, behind;
    for (int i = -1; i < count; i++) {
        DDP_TRY(ddp_comm_barrier(comm));
        const int64_t start = ddp_now_ns();
        DDP_TRY(ddp_reducer_begin(reducer, 0));
        DDP_TRY(ddp_param_grad_done(table, 0));
        DDP_TRY(ddp_reducer_gather(reducer, &times));
        DDP_TRY(ddp_reducer_collect(reducer, &behind));
        const int64_t later = aside ? times.publish_ns : 0;
        if (i >= 0) {
            reduce[i] = (double)(ddp_now_ns() - start - later) * 1e-9;
            publish[i] = (double)later * 1e-9;
        }
    }
    *time_out = (bucket_time){median(reduce, count), median(publish, count)};
    return ddp_comm_allreduce(comm, time_out, 2, DDP_F64, DDP_REDUCE_MAX, "times of a sum");
}

static ddp_status time_sum(const ddp_reducer_opts *opts, ddp_device *device, ddp_comm *comm,
                           double bytes, bucket_time *time_out)
{
    const double small = 1 << 20;
    ddp_param_table *table = NULL;
    ddp_reducer *reducer = NULL;
    ddp_status st = table_of(device, (int64_t)(bytes / sizeof(float)), &table);
    st = ddp_comm_agree(comm, st, "prepare to time a sum");
    if (st == DDP_OK)
        st = ddp_reducer_create(opts, table, device, comm, &reducer);
    if (st == DDP_OK)
        st = time_steps(comm, reducer, table, bytes <= small ? MANY : FEW, time_out);
    ddp_reducer_destroy(reducer);
    ddp_param_table_destroy(table);
    return st;
}

ddp_status ddp_reducer_time_sums(const ddp_reducer_opts *opts, ddp_device *device, ddp_comm *comm,
                                 double most, ddp_cost_curve *curve_out,
                                 ddp_cost_curve *publish_out)
{
    const double first = 4096, small = 1 << 20, budget = 0.5; /* bytes, bytes, seconds */
    ddp_cost_curve curve = {.ranks = ddp_comm_world(comm), .hosts = ddp_comm_node_count(comm)};
    ddp_cost_curve publish = {.ranks = curve.ranks, .hosts = curve.hosts};
    ddp_reducer_opts alone = *opts;
    double spent = 0;
    bucket_time time = {0};
    alone.shards = 1;
    alone.cuts = NULL;
    for (double bytes = first; bytes <= fmax(most, first); bytes *= 4) {
        /* All ranks have the same times. */
        if (bytes > small && spent + 4 * (time.reduce + time.publish) * (FEW + 1) > budget)
            break;
        DDP_TRY(time_sum(&alone, device, comm, bytes, &time));
        spent += (time.reduce + time.publish) * ((bytes <= small ? MANY : FEW) + 1);
        ddp_cost_curve_add(&curve, bytes, time.reduce);
        ddp_cost_curve_add(&publish, bytes, time.publish);
    }
    *curve_out = curve;
    *publish_out = publish;
    return DDP_OK;
}
