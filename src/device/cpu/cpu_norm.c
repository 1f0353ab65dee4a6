/* cpu_norm.c - batch normalisation over every layout of the form [planes][h][w][inner].
 *
 * A group is what 16 lanes can work on at once: one channel (plain data, or blocks of 16 images) or
 * up to 16 neighbouring ones (blocked channels, or channels last). A group's elements are cut into
 * chunks of at most 256 rows of 16, and its chunks into slices, which the threads share; both cuts
 * are functions of the shape. A chunk's sums are made in float while the chunk is in cache (the
 * mean first, then deviations from it), and combined in double, in order: chunks of a slice as they
 * come, slices at the end. The factors of lanes that are padding are 0, which keeps padding 0.
 *
 * A mean is subtracted in two steps, its float first and the rest within the offset, so that a mean
 * far from 0 costs no digits. */
#include <math.h>
#include <stdio.h>

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"
#include "device/cpu/norm_kernels.h"

#define LANES DDPI_NORM_LANES
#define PARTS 64 /* slices of all groups that are aimed at: enough for a processor's threads */

typedef struct norm_view {
    int64_t channels, groups, group_step;
    int inner;                /* channels of a group; lane l holds channel l % inner of it */
    bool batch;               /* lanes are images */
    int last_images;          /* of the last block of images */
    ddpi_norm_rows whole;     /* all segments of a group */
    int64_t segments_at_once; /* in a chunk; 0: a segment is several chunks */
    int64_t chunks, slices;   /* of a group */
} norm_view;

typedef struct norm_plan {
    ddpi_cpu_plan base;
    ddp_norm_desc norm;
    norm_view view;
    ddpi_source source; /* to plain, for layouts without planes */
    ddpi_second second;
    size_t partials; /* in scratch memory */
} norm_plan;

/* What a slice leaves for each channel of its group: mean and m2, or sums of dy and dy * xhat. */
typedef struct partial {
    double count;
    double first[LANES], second[LANES];
} partial;

typedef struct norm_run {
    const norm_plan *plan;
    const ddp_op_args *args;
    const void *src, *src2;
    void *diff_src;
    partial *partials; /* [groups][slices] */
} norm_run;

/* ---- cuts ---- */

static bool is_strided(const norm_view *view)
{
    return view->whole.stride != LANES;
}

static int channels_of(const norm_view *view, int64_t group)
{
    return (int)ddpi_min(view->inner, view->channels - group * view->inner);
}

typedef struct chunk {
    ddpi_norm_rows rows;
    int64_t at;    /* first element */
    int lanes;     /* that hold images */
    int64_t count; /* values per channel */
} chunk;

static chunk chunk_of(const norm_view *view, int64_t group, int64_t index)
{
    const ddpi_norm_rows *whole = &view->whole;
    chunk c = {.rows = *whole, .at = group * view->group_step, .lanes = LANES};
    int64_t segment;
    if (view->segments_at_once > 0) {
        segment = index * view->segments_at_once;
        c.rows.segments = ddpi_min(view->segments_at_once, whole->segments - segment);
    } else {
        const int64_t pieces = ddpi_ceil_div(whole->rows, DDPI_NORM_ROWS);
        const int64_t first = index % pieces * DDPI_NORM_ROWS;
        segment = index / pieces;
        c.rows.segments = 1;
        c.rows.rows = ddpi_min(DDPI_NORM_ROWS, whole->rows - first);
        c.rows.tail = index % pieces + 1 < pieces ? 0 : whole->tail;
        c.at += first * whole->stride;
    }
    c.at += segment * whole->segment_step;
    if (view->batch && segment + 1 == whole->segments)
        c.lanes = view->last_images;
    if (is_strided(view))
        c.rows.lanes = channels_of(view, group);
    const int64_t values = view->batch        ? c.rows.rows * c.lanes
                           : is_strided(view) ? c.rows.rows
                                              : (c.rows.rows * LANES + c.rows.tail) / view->inner;
    c.count = c.rows.segments * values;
    return c;
}

/* Chunks [lo, hi) of a part, which is a slice of a group. */
typedef struct span {
    int64_t group, lo, hi;
} span;

static span span_of(const norm_view *view, int64_t part)
{
    const int64_t slice = part % view->slices;
    return (span){part / view->slices, slice * view->chunks / view->slices,
                  (slice + 1) * view->chunks / view->slices};
}

static void view_segments(norm_view *view, const ddpi_cpu_layout *layout, int64_t pixels)
{
    const int64_t n = layout->base.shape.dims[0];
    ddpi_norm_rows *whole = &view->whole;
    if (!layout->batch && LANES % layout->inner != 0) { /* channels last */
        view->inner = LANES;
        view->groups = ddpi_ceil_div(view->channels, LANES);
        view->group_step = LANES;
        *whole =
            (ddpi_norm_rows){n, pixels * layout->inner, pixels, layout->inner, LANES, 0, false};
        return;
    }
    const int64_t run = pixels * layout->inner;
    view->batch = layout->batch;
    view->inner = layout->batch ? 1 : (int)layout->inner;
    view->groups = ddpi_ceil_div(view->channels, view->inner);
    view->group_step = run;
    *whole = (ddpi_norm_rows){layout->batch ? ddpi_ceil_div(n, LANES) : n,
                              view->groups * run,
                              run / LANES,
                              LANES,
                              LANES,
                              (int)(run % LANES),
                              false};
    view->last_images = (int)(n - (whole->segments - 1) * LANES);
}

static norm_view view_of(const ddpi_cpu_layout *layout)
{
    const int64_t *dims = layout->base.shape.dims;
    norm_view view = {.channels = dims[1]};
    view_segments(&view, layout, dims[2] * dims[3]);
    view.whole.bf16 = layout->base.dtype == DDP_BF16;
    const int64_t rows = view.whole.rows + (view.whole.tail > 0);
    if (rows > DDPI_NORM_ROWS) {
        view.chunks = view.whole.segments * ddpi_ceil_div(view.whole.rows, DDPI_NORM_ROWS);
    } else {
        /* A block that is not full of images is a chunk of its own. */
        const bool alone = view.batch && view.last_images < LANES;
        view.segments_at_once = alone ? 1 : ddpi_max(DDPI_NORM_ROWS / rows, 1);
        view.chunks = ddpi_ceil_div(view.whole.segments, view.segments_at_once);
    }
    view.slices = ddpi_min(ddpi_ceil_div(PARTS, view.groups), view.chunks);
    return view;
}

/* ---- statistics ---- */

/* Adds what the lanes of each channel hold. */
static void fold(const norm_view *view, const chunk *c, const ddpi_norm_lanes *lanes,
                 double folded[LANES])
{
    for (int j = 0; j < view->inner; j++)
        folded[j] = 0;
    for (int l = 0; l < c->lanes; l++)
        folded[l % view->inner] += (double)lanes->v[l];
}

/* Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances"
 * (1979). */
static void combine(partial *to, double count, const double *mean, const double *m2, int channels)
{
    const double all = to->count + count, share = count / all, weight = to->count * share;
    for (int j = 0; j < channels; j++) {
        const double delta = mean[j] - to->first[j];
        to->first[j] += delta * share;
        to->second[j] += m2[j] + delta * delta * weight;
    }
    to->count = all;
}

static void chunk_statistics(const norm_run *run, const chunk *c, partial *to)
{
    const norm_view *view = &run->plan->view;
    const void *x = ddpi_element(run->src, c->at, c->rows.bf16);
    const double count = (double)c->count;
    ddpi_norm_lanes sum = {{0}}, squares = {{0}}, shift;
    double mean[LANES], rest[LANES], m2[LANES];
    ddpi_norm_sum(&c->rows, x, &sum);
    fold(view, c, &sum, mean);
    for (int l = 0; l < LANES; l++) {
        shift.v[l] = (float)(mean[l % view->inner] / count);
        sum.v[l] = 0;
    }
    ddpi_norm_deviations(&c->rows, x, &shift, &sum, &squares);
    fold(view, c, &sum, rest);
    fold(view, c, &squares, m2);
    for (int j = 0; j < view->inner; j++) {
        mean[j] = (double)shift.v[j] + rest[j] / count;
        m2[j] = fmax(m2[j] - rest[j] * rest[j] / count, 0);
    }
    combine(to, count, mean, m2, view->inner);
}

static void statistics_part(void *arg, int64_t part)
{
    const norm_run *run = arg;
    const norm_view *view = &run->plan->view;
    const span s = span_of(view, part);
    partial sums = {0};
    for (int64_t i = s.lo; i < s.hi; i++) {
        const chunk c = chunk_of(view, s.group, i);
        chunk_statistics(run, &c, &sums);
    }
    run->partials[part] = sums;
}

static void gather_statistics(const norm_run *run)
{
    const norm_view *view = &run->plan->view;
    const ddp_norm_state *norm = run->args->norm;
    for (int64_t g = 0; g < view->groups; g++) {
        const partial *slices = run->partials + g * view->slices;
        partial all = slices[0];
        for (int64_t s = 1; s < view->slices; s++)
            combine(&all, slices[s].count, slices[s].first, slices[s].second, view->inner);
        for (int j = 0; j < channels_of(view, g); j++) {
            norm->mean[g * view->inner + j] = all.first[j];
            norm->m2[g * view->inner + j] = all.second[j];
        }
    }
}

/* ---- factors ---- */

/* Of a channel: its mean as a float and what that leaves, and 1 / sqrt(var + eps). */
typedef struct factors {
    float shift;
    double rest, inv;
} factors;

static factors factors_of(const norm_run *run, int64_t c)
{
    const ddp_norm_state *norm = run->args->norm;
    const bool batch = run->plan->base.base.desc.training;
    const double mean = batch ? norm->mean[c] : (double)norm->running_mean[c];
    const double var = batch ? norm->m2[c] / norm->count : (double)norm->running_var[c];
    return (factors){(float)mean, mean - (double)(float)mean, 1 / sqrt(var + run->plan->norm.eps)};
}

/* The channel of a group's lane; false if it is padding. */
static bool channel_of(const norm_view *view, int64_t group, int lane, int64_t *channel_out)
{
    *channel_out = group * view->inner + lane % view->inner;
    return *channel_out < view->channels;
}

static void clear_lanes(ddpi_norm_lanes *lanes, int first)
{
    for (int l = first; l < LANES; l++)
        lanes->v[l] = 0;
}

/* ---- forward ---- */

static ddpi_norm_forward forward_factors(const norm_run *run, int64_t group)
{
    const float *weights = run->args->weights, *bias = run->args->bias;
    ddpi_norm_forward f = {.relu = run->plan->norm.relu};
    for (int l = 0; l < LANES; l++) {
        int64_t c;
        if (!channel_of(&run->plan->view, group, l, &c))
            continue;
        const factors of = factors_of(run, c);
        const double scale = (double)weights[c] * of.inv;
        f.shift.v[l] = of.shift;
        f.scale.v[l] = (float)scale;
        f.offset.v[l] = (float)((double)bias[c] - of.rest * scale);
    }
    return f;
}

static void forward_part(void *arg, int64_t part)
{
    const norm_run *run = arg;
    const norm_view *view = &run->plan->view;
    const span s = span_of(view, part);
    ddpi_norm_forward f = forward_factors(run, s.group);
    for (int64_t i = s.lo; i < s.hi; i++) {
        const chunk c = chunk_of(view, s.group, i);
        f.x = ddpi_element(run->src, c.at, c.rows.bf16);
        f.z = run->plan->norm.add ? ddpi_element(run->src2, c.at, c.rows.bf16) : NULL;
        f.y = ddpi_element(run->args->dst, c.at, c.rows.bf16);
        if (c.lanes < LANES) { /* a group's last chunks: f serves no full ones after them */
            clear_lanes(&f.shift, c.lanes);
            clear_lanes(&f.scale, c.lanes);
            clear_lanes(&f.offset, c.lanes);
        }
        ddpi_norm_apply(&c.rows, &f);
    }
}

/* ---- backward ---- */

static void reduce_part(void *arg, int64_t part)
{
    const norm_run *run = arg;
    const norm_view *view = &run->plan->view;
    const ddp_op_args *args = run->args;
    const span s = span_of(view, part);
    partial sums = {0};
    ddpi_norm_reduce b = {0};
    for (int l = 0; l < LANES; l++) {
        int64_t channel;
        if (channel_of(view, s.group, l, &channel))
            b.shift.v[l] = (float)args->norm->mean[channel];
    }
    for (int64_t i = s.lo; i < s.hi; i++) {
        const chunk c = chunk_of(view, s.group, i);
        const bool bf16 = c.rows.bf16;
        double first[LANES], second[LANES];
        b.x = ddpi_element(run->src, c.at, bf16);
        b.value = run->plan->norm.relu ? ddpi_element(args->dst, c.at, bf16) : NULL;
        b.dy = ddpi_element(args->diff_dst, c.at, bf16);
        b.dy2 = args->diff_dst2 != NULL ? ddpi_element(args->diff_dst2, c.at, bf16) : NULL;
        clear_lanes(&b.sum_dy, 0);
        clear_lanes(&b.sum_dy_x, 0);
        ddpi_norm_reduce_gradient(&c.rows, &b);
        fold(view, &c, &b.sum_dy, first);
        fold(view, &c, &b.sum_dy_x, second);
        for (int j = 0; j < view->inner; j++) {
            sums.first[j] += first[j];
            sums.second[j] += second[j];
        }
    }
    run->partials[part] = sums;
}

static void gather_gradients(const norm_run *run)
{
    const norm_view *view = &run->plan->view;
    const ddp_op_args *args = run->args;
    for (int64_t c = 0; c < view->channels; c++) {
        const partial *slices = run->partials + c / view->inner * view->slices;
        const factors of = factors_of(run, c);
        double sum_dy = 0, sum_dy_x = 0;
        for (int64_t s = 0; s < view->slices; s++) {
            sum_dy += slices[s].first[c % view->inner];
            sum_dy_x += slices[s].second[c % view->inner];
        }
        args->norm->sum_dy[c] = sum_dy;
        args->norm->sum_dy_xhat[c] = (sum_dy_x - of.rest * sum_dy) * of.inv;
        ((float *)args->diff_bias)[c] = (float)sum_dy;
        ((float *)args->diff_weights)[c] = (float)args->norm->sum_dy_xhat[c];
    }
}

/* diff_src = weight * inv * (dy - sum_dy / count - xhat * sum_dy_xhat / count), where xhat = (x -
 * mean) * inv. */
static ddpi_norm_backward backward_factors(const norm_run *run, int64_t group)
{
    const ddp_norm_state *norm = run->args->norm;
    const float *weights = run->args->weights;
    ddpi_norm_backward b = {0};
    for (int l = 0; l < LANES; l++) {
        int64_t c;
        if (!channel_of(&run->plan->view, group, l, &c))
            continue;
        const factors of = factors_of(run, c);
        const double scale = (double)weights[c] * of.inv;
        const double of_x = -scale * of.inv * norm->sum_dy_xhat[c] / norm->count;
        b.shift.v[l] = of.shift;
        b.of_dy.v[l] = (float)scale;
        b.of_x.v[l] = (float)of_x;
        b.offset.v[l] = (float)(-scale * norm->sum_dy[c] / norm->count - of_x * of.rest);
    }
    return b;
}

static void backward_part(void *arg, int64_t part)
{
    const norm_run *run = arg;
    const norm_view *view = &run->plan->view;
    const span s = span_of(view, part);
    ddpi_norm_backward b = backward_factors(run, s.group);
    for (int64_t i = s.lo; i < s.hi; i++) {
        const chunk c = chunk_of(view, s.group, i);
        b.x = ddpi_element(run->src, c.at, c.rows.bf16);
        b.dy = ddpi_element(run->args->diff_dst, c.at, c.rows.bf16);
        b.dx = ddpi_element(run->diff_src, c.at, c.rows.bf16);
        if (c.lanes < LANES) {
            clear_lanes(&b.shift, c.lanes);
            clear_lanes(&b.of_dy, c.lanes);
            clear_lanes(&b.of_x, c.lanes);
            clear_lanes(&b.offset, c.lanes);
        }
        ddpi_norm_spread_gradient(&c.rows, &b);
    }
}

/* ---- passes ---- */

static void parts(const norm_run *run, void (*part)(void *arg, int64_t part))
{
    const norm_view *view = &run->plan->view;
    ddpi_parallel(run->plan->base.base.device->opts.threads, view->groups * view->slices, part,
                  (void *)run);
}

static ddp_status run_forward(norm_run *run)
{
    if (run->plan->norm.add)
        DDP_TRY(ddpi_second_begin(&run->plan->second, run->args, &run->src2));
    parts(run, forward_part);
    return DDP_OK;
}

static ddp_status run_backward_data(norm_run *run)
{
    const ddpi_source *source = &run->plan->source;
    DDP_TRY(ddpi_source_begin_gradient(source, run->args, &run->diff_src));
    parts(run, backward_part);
    return ddpi_source_end_gradient(source, run->args);
}

static ddp_status norm_run_pass(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const norm_plan *plan = (norm_plan *)base;
    norm_run run = {.plan = plan,
                    .args = args,
                    .partials = (partial *)(void *)((char *)args->scratch + plan->partials)};
    DDP_TRY(ddpi_source_begin(&plan->source, args, &run.src));
    switch (pass) {
    case DDP_PASS_STATISTICS:
        parts(&run, statistics_part);
        gather_statistics(&run);
        return DDP_OK;
    case DDP_PASS_FORWARD:
        return run_forward(&run);
    case DDP_PASS_BACKWARD_WEIGHTS:
        parts(&run, reduce_part);
        gather_gradients(&run);
        return plan->norm.add ? ddpi_second_gradient(&plan->second, args) : DDP_OK;
    default:
        return run_backward_data(&run);
    }
}

static void norm_destroy(ddpi_cpu_plan *base)
{
    norm_plan *plan = (norm_plan *)base;
    ddpi_source_destroy(&plan->source);
    ddpi_second_destroy(&plan->second);
}

/* ---- creation ---- */

static ddp_status make_operands(norm_plan *plan, const ddpi_plan_parts *parts, ddp_layout *kernel)
{
    size_t bytes = 0;
    DDP_TRY(ddpi_source_create(parts, kernel, &bytes, &plan->source));
    if (plan->norm.add)
        DDP_TRY(ddpi_second_create(parts, kernel, &bytes, &plan->second));
    if (parts->desc->training)
        plan->partials =
            ddpi_take(&bytes, (size_t)(plan->view.groups * plan->view.slices) * sizeof(partial));
    plan->base.base.scratch_bytes = bytes;
    return DDP_OK;
}

static ddp_status set_up(norm_plan *plan, const ddpi_plan_parts *parts)
{
    ddp_op_plan *base = &plan->base.base;
    plan->norm = parts->desc->u.norm;
    DDP_TRY(ddpi_layout_plain(parts->device, &parts->weight_shape, &base->weights));
    DDP_TRY(ddpi_layout_like(parts->src, &parts->src->shape, &base->dst));
    plan->view = view_of(ddpi_cpu_layout_of(base->dst));
    DDP_TRY(make_operands(plan, parts, base->dst));
    snprintf(base->impl, sizeof base->impl, "planes:%lld",
             (long long)ddpi_cpu_layout_of(base->dst)->inner);
    return DDP_OK;
}

ddp_status ddpi_norm_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {norm_run_pass, norm_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(norm_plan), &base));
    const ddp_status st = set_up((norm_plan *)base, parts);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}
