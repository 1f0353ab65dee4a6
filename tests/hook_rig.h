/* hook_rig.h - a rank's compression hook without a reducer, and gradients made up for it. */
#ifndef DDP_TESTS_HOOK_RIG_H
#define DDP_TESTS_HOOK_RIG_H

#include <math.h>
#include <stdlib.h>

#include "ddp/rng.h"
#include "loopback_ranks.h"
#include "sync/hook.h"

enum { PARAMS = 5, STEPS = 3, MOST_WORLD = 4 };

/* ---- parameters in the layouts that plans choose ---- */

static inline ddp_status add_param(ddp_param_table *table, const char *name, ddp_layout *layout)
{
    int index;
    ddp_param p = {.shape = *ddp_layout_shape(layout), .layout = layout, .use_count = 1};
    snprintf(p.name, sizeof p.name, "%s", name);
    p.init_number = (uint32_t)ddp_param_table_count(table);
    return ddp_param_table_add(table, &p, &index);
}

static inline ddp_status add_plain(ddp_device *device, ddp_param_table *table, const char *name,
                                   ddp_shape shape)
{
    ddp_layout *layout;
    DDP_TRY(ddp_layout_plain(device, &shape, &layout));
    const ddp_status st = add_param(table, name, layout);
    ddp_layout_unref(layout);
    return st;
}

/* Weights of a convolution, in blocks with padding where the library likes that. */
static inline ddp_status add_conv(ddp_device *device, ddp_param_table *table, const char *name,
                                  int64_t channels, int64_t out)
{
    const ddp_op_desc desc = {
        .kind = DDP_OP_CONV2D,
        .training = true,
        .u.conv2d = {
            .out_channels = out, .kernel_h = 3, .kernel_w = 3, .stride_h = 1, .stride_w = 1}};
    const ddp_shape src = {4, {4, channels, 9, 9}};
    ddp_layout *layout;
    ddp_op_plan *plan;
    DDP_TRY(ddp_layout_plain(device, &src, &layout));
    ddp_status st = ddp_op_plan_create(device, &desc, layout, NULL, &plan);
    ddp_layout_unref(layout);
    DDP_TRY(st);
    st = add_param(table, name, ddp_op_plan_weights(plan));
    ddp_op_plan_destroy(plan);
    return st;
}

static inline ddp_status make_table(ddp_device *device, ddp_param_table **table_out)
{
    DDP_TRY(ddp_param_table_create(table_out));
    DDP_TRY(add_plain(device, *table_out, "bias", (ddp_shape){1, {37}}));
    DDP_TRY(add_plain(device, *table_out, "tall", (ddp_shape){2, {24, 300}}));
    DDP_TRY(add_conv(device, *table_out, "blocks", 32, 32));
    DDP_TRY(add_plain(device, *table_out, "wide", (ddp_shape){2, {12, 9}}));
    return add_conv(device, *table_out, "odd", 20, 6);
}

/* ---- a rank's hook, without a reducer ---- */

typedef struct rig {
    ddp_device *device;
    ddp_comm *comm;
    ddp_param_table *table;
    ddpi_bucket_plan plan;
    float *grads;
    size_t length;
    ddpi_hook *hook;
} rig;

static inline ddp_status rig_open(rig *g, ddp_comm *comm, const ddp_hook_ops *ops,
                                  ddp_hook_opts opts, ddp_conv_algo algo)
{
    ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    device.conv_algo = algo;
    const ddpi_bucket_cut cut = {.first_bytes = 1, .cap_bytes = 70000, .blocks = 1};
    void *memory;
    g->comm = comm;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device, &g->device));
    DDP_TRY(make_table(g->device, &g->table));
    DDP_TRY(ddpi_bucket_plan_make(g->table, &cut, &g->plan));
    g->length = ddp_param_table_length(g->table);
    DDP_TRY(ddp_comm_mem_alloc(comm, g->length * sizeof(float), &memory));
    g->grads = memory;
    const ddpi_hook_env env = {.device = g->device,
                               .comm = comm,
                               .table = g->table,
                               .plan = &g->plan,
                               .grads = g->grads,
                               .opts = opts};
    return ddpi_hook_open(ops, &env, &g->hook);
}

static inline void rig_close(rig *g)
{
    ddpi_hook_close(g->hook);
    ddp_comm_mem_free(g->comm, g->grads);
    ddpi_bucket_plan_free(&g->plan);
    ddp_param_table_destroy(g->table);
    ddp_device_close(g->device);
}

static inline ddp_status rig_round(rig *g, int round, ddp_work *works)
{
    for (int b = 0; b < g->plan.count; b++) {
        const ddp_range range = g->plan.ranges[b];
        ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                         .dtype = DDP_F32,
                         .op = DDP_REDUCE_SUM,
                         .buf = g->grads + range.lo,
                         .count = range.hi - range.lo,
                         .bucket = b,
                         .what = "gradients"};
        DDP_TRY(ddpi_hook_encode(g->hook, b, round, &coll));
        if (round == 0 || coll.count > 0) {
            DDP_TRY(ddp_comm_submit(g->comm, &coll, &works[b]));
            DDP_TRY(ddp_work_wait(&works[b]));
        }
    }
    return DDP_OK;
}

static inline ddp_status rig_step(rig *g)
{
    ddp_work works[PARAMS];
    ddpi_hook_begin(g->hook);
    for (int round = 0; round < ddpi_hook_rounds(g->hook); round++)
        DDP_TRY(rig_round(g, round, works));
    for (int b = 0; b < g->plan.count; b++)
        ddpi_hook_meanwhile(g->hook, b);
    for (int b = 0; b < g->plan.count; b++)
        DDP_TRY(ddpi_hook_decode(g->hook, b, g->plan.ranges[b]));
    return DDP_OK;
}

/* Values of a rank's gradient, in plain order; the same whoever asks. Between -1 and 1. */
static inline float gradient(int rank, int step, int param, int64_t element)
{
    uint64_t x = (uint64_t)element +
                 UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(1 + rank + 16 * (step * PARAMS + param));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (float)((double)(x >> 40) * 0x1p-23 - 1);
}

typedef float value_fn(int rank, int step, int param, int64_t element);

static inline ddp_status write_gradients(const rig *g, int rank, int step, value_fn *fn,
                                         float *flat)
{
    for (int i = 0; i < PARAMS; i++) {
        const ddp_param *p = ddp_param_table_at(g->table, i);
        const int64_t count = ddp_shape_count(&p->shape);
        float *plain;
        DDP_TRY(DDP_ALLOC(plain, (size_t)count));
        for (int64_t e = 0; e < count; e++)
            plain[e] = fn(rank, step, i, e);
        const ddp_status st = ddp_param_import(g->device, p, plain, flat);
        ddp_free(plain);
        DDP_TRY(st);
    }
    return DDP_OK;
}

/* Every rank has the same bits. */
static inline ddp_status same_everywhere(const rig *g)
{
    const int world = ddp_comm_world(g->comm);
    float *all;
    DDP_TRY(DDP_ALLOC(all, (size_t)world * g->length));
    DDP_TRY(ddp_comm_allgather(g->comm, g->grads, g->length * sizeof(float), all));
    bool same = true;
    for (int r = 0; r < world; r++)
        same =
            same && memcmp(all + (size_t)r * g->length, g->grads, g->length * sizeof(float)) == 0;
    ddp_free(all);
    return same ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "the ranks have different sums");
}

#endif
