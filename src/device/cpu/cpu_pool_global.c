/* cpu_pool_global.c - the average of all pixels, in whatever layout the source has.
 *
 * As in cpu_pool.c data is [planes][h][w][inner]. Rows of 16 elements are summed by the loop that
 * batch normalisation has: in float for a few rows, in double beyond. */
#include <stdio.h>

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"
#include "device/cpu/norm_kernels.h"

#define LANES DDPI_NORM_LANES

typedef struct global_plan {
    ddpi_cpu_plan base;
    int64_t planes, inner, pixels;
    bool bf16;
    ddpi_source source; /* to rows, for layouts without planes */
} global_plan;

typedef struct global_run {
    const global_plan *plan;
    const void *from;
    void *to;
} global_run;

/* Sums `lanes` neighbouring columns of a plane, or all of it where inner divides 16. */
static void sum_columns(const global_plan *plan, const void *plane, int64_t column, int lanes,
                        double sums[LANES])
{
    const bool whole = LANES % plan->inner == 0;
    const int64_t run = plan->pixels * plan->inner;
    const int64_t rows = whole ? run / LANES : plan->pixels;
    ddpi_norm_rows r = {.segments = 1,
                        .stride = whole ? LANES : plan->inner,
                        .lanes = whole ? LANES : lanes,
                        .bf16 = plan->bf16};
    for (int j = 0; j < LANES; j++)
        sums[j] = 0;
    for (int64_t row = 0; row < rows || row == 0; row += DDPI_NORM_ROWS) {
        ddpi_norm_lanes some = {{0}};
        r.rows = ddpi_min(DDPI_NORM_ROWS, rows - row);
        r.tail = whole && row + DDPI_NORM_ROWS >= rows ? (int)(run % LANES) : 0;
        ddpi_norm_sum(&r, ddpi_element(plane, row * r.stride + column, plan->bf16), &some);
        for (int l = 0; l < LANES; l++)
            sums[whole ? l % plan->inner : l] += (double)some.v[l];
    }
}

static void forward_plane(void *arg, int64_t index)
{
    const global_run *run = arg;
    const global_plan *plan = run->plan;
    const void *plane = ddpi_element(run->from, index * plan->pixels * plan->inner, plan->bf16);
    for (int64_t column = 0; column < plan->inner; column += LANES) {
        const int lanes = (int)ddpi_min(LANES, plan->inner - column);
        double sums[LANES];
        sum_columns(plan, plane, column, lanes, sums);
        for (int l = 0; l < lanes; l++)
            ddpi_store(run->to, index * plan->inner + column + l,
                       (float)(sums[l] / (double)plan->pixels), plan->bf16);
    }
}

DDPI_INLINE void spread(const global_run *run, int64_t index, const int64_t inner, const bool bf16)
{
    const float scale = 1.0f / (float)run->plan->pixels;
    const int64_t run_count = run->plan->pixels * inner;
    void *to = ddpi_element(run->to, index * run_count, bf16);
    const void *from = ddpi_element(run->from, index * inner, bf16);
    for (int64_t i = 0; i < run_count; i += inner)
#pragma GCC ivdep
        for (int64_t l = 0; l < inner; l++)
            ddpi_store(to, i + l, ddpi_load(from, l, bf16) * scale, bf16);
}

DDPI_SIMD static void spread_plane(const global_run *run, int64_t index)
{
    const int64_t inner = run->plan->inner;
    if (run->plan->bf16 && inner == LANES)
        spread(run, index, LANES, true);
    else if (run->plan->bf16)
        spread(run, index, inner, true);
    else if (inner == LANES)
        spread(run, index, LANES, false);
    else
        spread(run, index, inner, false);
}

static void backward_plane(void *arg, int64_t index)
{
    spread_plane(arg, index);
}

static ddp_status global_run_pass(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const global_plan *plan = (global_plan *)base;
    const int threads = base->base.device->opts.threads;
    global_run run = {.plan = plan};
    if (pass == DDP_PASS_FORWARD) {
        DDP_TRY(ddpi_source_begin(&plan->source, args, &run.from));
        run.to = args->dst;
        ddpi_parallel(threads, plan->planes, forward_plane, &run);
        return DDP_OK;
    }
    DDP_TRY(ddpi_source_begin_gradient(&plan->source, args, &run.to));
    run.from = args->diff_dst;
    ddpi_parallel(threads, plan->planes, backward_plane, &run);
    return ddpi_source_end_gradient(&plan->source, args);
}

static void global_destroy(ddpi_cpu_plan *base)
{
    ddpi_source_destroy(&((global_plan *)base)->source);
}

static ddp_status set_up(global_plan *plan, const ddpi_plan_parts *parts, ddp_layout *in)
{
    const int64_t *dims = parts->src->shape.dims;
    plan->planes = ddpi_cpu_layout_of(in)->planes;
    plan->inner = ddpi_cpu_layout_of(in)->inner;
    plan->pixels = dims[2] * dims[3];
    plan->bf16 = in->dtype == DDP_BF16;
    snprintf(plan->base.base.impl, sizeof plan->base.base.impl, "planes:%lld",
             (long long)plan->inner);
    DDP_TRY(ddpi_source_create(parts, in, &plan->base.base.scratch_bytes, &plan->source));
    return ddpi_layout_like(in, &parts->dst_shape, &plan->base.base.dst);
}

ddp_status ddpi_global_pool_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {global_run_pass, global_destroy};
    ddpi_cpu_plan *base;
    ddp_layout *in;
    DDP_TRY(ddpi_layout_like(parts->src, &parts->src->shape, &in));
    ddp_status st = ddpi_plan_alloc(parts, &op, sizeof(global_plan), &base);
    if (st == DDP_OK) {
        st = set_up((global_plan *)base, parts, in);
        if (st != DDP_OK)
            ddpi_plan_free(base);
        else
            *plan_out = base;
    }
    ddp_layout_unref(in);
    return st;
}
