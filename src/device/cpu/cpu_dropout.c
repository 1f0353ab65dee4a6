/* cpu_dropout.c - dropout whose mask is a function of seed, layer, sample and element in plain
 * order, whatever the layout. Nothing is kept for backward: it draws the same numbers again.
 *
 * Four neighbouring elements of a sample share a block of the generator, and samples lie a whole
 * number of blocks apart. Data is [planes][pixels][inner], where a lane of inner is a channel or an
 * image; a plane is a part for the threads. Lanes that are padding are written as 0. */
#include <stdio.h>
#include <string.h>

#include "ddp/rng.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"

typedef struct dropout_plan {
    ddpi_cpu_plan base;
    int64_t samples, channels, pixels; /* pixels: all elements of a sample that has no channels */
    int64_t planes, inner;
    bool batch, bf16;   /* batch: lanes are images */
    uint64_t threshold; /* 32-bit draws below it drop */
    float scale;
    ddpi_source source; /* to rows, for layouts without planes */
} dropout_plan;

typedef struct dropout_run {
    const dropout_plan *plan;
    const int64_t *sample_ids;
    ddp_rng rng;
    const void *from;
    void *to;
} dropout_run;

/* Where a lane's elements belong. */
typedef struct place {
    int64_t sample, channel;
} place;

/* False if the lane is padding. */
static bool place_of(const dropout_plan *plan, int64_t plane, int64_t lane, place *place_out)
{
    const int64_t groups =
        plan->batch ? plan->channels : ddpi_ceil_div(plan->channels, plan->inner);
    const int64_t first = plane / groups, second = plane % groups;
    *place_out = plan->batch ? (place){first * plan->inner + lane, second}
                             : (place){first, second * plan->inner + lane};
    return place_out->sample < plan->samples && place_out->channel < plan->channels;
}

static void drop_lane(const dropout_run *run, int64_t at, const place *where)
{
    const dropout_plan *plan = run->plan;
    const uint64_t blocks = (uint64_t)ddpi_ceil_div(plan->channels * plan->pixels, 4);
    const uint64_t first = 4 * blocks * (uint64_t)run->sample_ids[where->sample] +
                           (uint64_t)(where->channel * plan->pixels);
    uint32_t words[4];
    for (int64_t p = 0; p < plan->pixels; p++, at += plan->inner) {
        const uint64_t index = first + (uint64_t)p;
        if (p == 0 || index % 4 == 0)
            ddp_rng_block(&run->rng, index / 4, words);
        const bool keep = words[index % 4] >= plan->threshold;
        ddpi_store(run->to, at, keep ? ddpi_load(run->from, at, plan->bf16) * plan->scale : 0,
                   plan->bf16);
    }
}

static void drop_plane(void *arg, int64_t plane)
{
    const dropout_run *run = arg;
    const dropout_plan *plan = run->plan;
    for (int64_t lane = 0; lane < plan->inner; lane++) {
        const int64_t at = plane * plan->pixels * plan->inner + lane;
        place where;
        if (place_of(plan, plane, lane, &where)) {
            drop_lane(run, at, &where);
            continue;
        }
        for (int64_t p = 0; p < plan->pixels; p++)
            ddpi_store(run->to, at + p * plan->inner, 0, plan->bf16);
    }
}

static ddp_status dropout_run_pass(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const dropout_plan *plan = (dropout_plan *)base;
    const int threads = base->base.device->opts.threads;
    dropout_run run = {.plan = plan,
                       .sample_ids = args->sample_ids,
                       .rng = ddp_rng_make(args->rng_seed, DDP_RNG_DROPOUT, args->rng_stream)};
    if (pass == DDP_PASS_BACKWARD_DATA) {
        run.from = args->diff_dst;
        DDP_TRY(ddpi_source_begin_gradient(&plan->source, args, &run.to));
        ddpi_parallel(threads, plan->planes, drop_plane, &run);
        return ddpi_source_end_gradient(&plan->source, args);
    }
    DDP_TRY(ddpi_source_begin(&plan->source, args, &run.from));
    run.to = args->dst;
    if (base->base.desc.training)
        ddpi_parallel(threads, plan->planes, drop_plane, &run);
    else
        memcpy(run.to, run.from, base->base.dst->bytes);
    return DDP_OK;
}

static void dropout_destroy(ddpi_cpu_plan *base)
{
    ddpi_source_destroy(&((dropout_plan *)base)->source);
}

static ddp_status kernel_layout(ddp_layout *src, ddp_layout **layout_out)
{
    return src->shape.ndim == 4
               ? ddpi_layout_like(src, &src->shape, layout_out)
               : ddpi_layout_rows(src->device, &src->shape, src->dtype, layout_out);
}

static ddp_status set_up(dropout_plan *plan, const ddpi_plan_parts *parts)
{
    ddp_op_plan *base = &plan->base.base;
    const ddp_shape *shape = &parts->src->shape;
    const double rate = parts->desc->u.dropout.rate;
    DDP_TRY(kernel_layout(parts->src, &base->dst));
    const ddpi_cpu_layout *layout = ddpi_cpu_layout_of(base->dst);
    plan->samples = shape->dims[0];
    plan->channels = shape->ndim == 4 ? shape->dims[1] : 1;
    plan->pixels = ddp_shape_count(shape) / plan->samples / plan->channels;
    plan->planes = shape->ndim == 4 ? layout->planes : plan->samples;
    plan->inner = shape->ndim == 4 ? layout->inner : 1;
    plan->batch = layout->batch;
    plan->bf16 = base->dst->dtype == DDP_BF16;
    plan->threshold = (uint64_t)(rate * 4294967296.0);
    plan->scale = (float)(1 / (1 - rate));
    snprintf(base->impl, sizeof base->impl, "philox");
    return ddpi_source_create(parts, base->dst, &base->scratch_bytes, &plan->source);
}

ddp_status ddpi_dropout_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {dropout_run_pass, dropout_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(dropout_plan), &base));
    const ddp_status st = set_up((dropout_plan *)base, parts);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}
