/* cpu_pool.c - pooling over [planes][h][w][inner], in whatever layout the source has.
 *
 * Plain data, oneDNN's blocked channels and blocks of 16 images are all of that form, with inner 1,
 * 8, 16, ...; the source's layout is kept. Anything else goes through plain. Average divides by the
 * part of the window that lies inside the image. Maximum keeps the position inside the window of
 * each output in the workspace. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"

typedef struct pool_plan {
    ddpi_cpu_plan base;
    ddp_pool2d_desc pool;
    int64_t planes, inner, in_h, in_w, out_h, out_w;
    ddpi_source source; /* to plain, for layouts without planes */
} pool_plan;

typedef struct pool_run {
    const pool_plan *plan;
    float *in, *out; /* src and dst, or their gradients */
    uint16_t *where; /* kh * kernel_w + kw */
} pool_run;

/* The part of a window that lies inside the image. */
typedef struct span {
    int64_t h0, h1, w0, w1;
} span;

static inline span window_of(const pool_plan *p, int64_t oh, int64_t ow)
{
    const int64_t h = oh * p->pool.stride_h - p->pool.pad_h;
    const int64_t w = ow * p->pool.stride_w - p->pool.pad_w;
    return (span){ddpi_max(h, 0), ddpi_min(h + p->pool.kernel_h, p->in_h), ddpi_max(w, 0),
                  ddpi_min(w + p->pool.kernel_w, p->in_w)};
}

/* ---- average ---- */

static inline __attribute__((always_inline)) void average_forward(const pool_plan *p,
                                                                  const float *restrict in,
                                                                  float *restrict out,
                                                                  const int64_t inner)
{
    for (int64_t oh = 0; oh < p->out_h; oh++)
        for (int64_t ow = 0; ow < p->out_w; ow++, out += inner) {
            const span s = window_of(p, oh, ow);
            const float scale = 1.0f / (float)((s.h1 - s.h0) * (s.w1 - s.w0));
            for (int64_t l = 0; l < inner; l++)
                out[l] = 0;
            for (int64_t h = s.h0; h < s.h1; h++)
                for (int64_t w = s.w0; w < s.w1; w++)
                    for (int64_t l = 0; l < inner; l++)
                        out[l] += in[(h * p->in_w + w) * inner + l];
            for (int64_t l = 0; l < inner; l++)
                out[l] *= scale;
        }
}

static inline __attribute__((always_inline)) void average_backward(const pool_plan *p,
                                                                   float *restrict in,
                                                                   const float *restrict out,
                                                                   const int64_t inner)
{
    memset(in, 0, (size_t)(p->in_h * p->in_w * inner) * sizeof *in);
    for (int64_t oh = 0; oh < p->out_h; oh++)
        for (int64_t ow = 0; ow < p->out_w; ow++, out += inner) {
            const span s = window_of(p, oh, ow);
            const float scale = 1.0f / (float)((s.h1 - s.h0) * (s.w1 - s.w0));
            for (int64_t h = s.h0; h < s.h1; h++)
                for (int64_t w = s.w0; w < s.w1; w++)
                    for (int64_t l = 0; l < inner; l++)
                        in[(h * p->in_w + w) * inner + l] += out[l] * scale;
        }
}

/* ---- 2x2 average, the common case: a pair of rows at once, each pixel touched once ---- */

static bool is_halving(const pool_plan *p)
{
    return p->pool.kernel_h == 2 && p->pool.kernel_w == 2 && p->pool.stride_h == 2 &&
           p->pool.stride_w == 2 && p->pool.pad_h == 0 && p->pool.pad_w == 0;
}

static inline __attribute__((always_inline)) void halve_forward(const pool_plan *p,
                                                                const float *restrict in,
                                                                float *restrict out,
                                                                const int64_t inner)
{
    for (int64_t oh = 0; oh < p->out_h; oh++) {
        const float *row = in + 2 * oh * p->in_w * inner, *next = row + p->in_w * inner;
        for (int64_t ow = 0; ow < p->out_w; ow++, row += 2 * inner, next += 2 * inner, out += inner)
            for (int64_t l = 0; l < inner; l++)
                out[l] = (row[l] + row[l + inner] + (next[l] + next[l + inner])) * 0.25f;
    }
}

static inline __attribute__((always_inline)) void halve_backward(const pool_plan *p,
                                                                 float *restrict in,
                                                                 const float *restrict out,
                                                                 const int64_t inner)
{
    const int64_t row_count = p->in_w * inner, used = 2 * p->out_w * inner;
    for (int64_t oh = 0; oh < p->out_h; oh++) {
        float *row = in + 2 * oh * row_count, *next = row + row_count;
        for (int64_t ow = 0; ow < p->out_w; ow++, out += inner)
            for (int64_t l = 0; l < inner; l++) {
                const float share = out[l] * 0.25f;
                row[2 * ow * inner + l] = share;
                row[2 * ow * inner + inner + l] = share;
                next[2 * ow * inner + l] = share;
                next[2 * ow * inner + inner + l] = share;
            }
        for (int64_t i = used; i < row_count; i++)
            row[i] = next[i] = 0;
    }
    for (int64_t i = 2 * p->out_h * row_count; i < p->in_h * row_count; i++)
        in[i] = 0;
}

/* Constant inner sizes let the compiler keep a pixel in registers. */
DDPI_SIMD static void average_plane(const pool_plan *p, float *in, float *out, bool forward)
{
    const bool halving = is_halving(p);
    if (forward && halving && p->inner == 16)
        halve_forward(p, in, out, 16);
    else if (forward && halving)
        halve_forward(p, in, out, p->inner);
    else if (forward && p->inner == 16)
        average_forward(p, in, out, 16);
    else if (forward)
        average_forward(p, in, out, p->inner);
    else if (halving && p->inner == 16)
        halve_backward(p, in, out, 16);
    else if (halving)
        halve_backward(p, in, out, p->inner);
    else if (p->inner == 16)
        average_backward(p, in, out, 16);
    else
        average_backward(p, in, out, p->inner);
}

/* ---- maximum ---- */

/* A NaN wins, so that it is not lost; of equal values the first. */
static void maximum_forward(const pool_plan *p, const float *restrict in, float *restrict out,
                            uint16_t *restrict where)
{
    const int64_t inner = p->inner;
    for (int64_t oh = 0; oh < p->out_h; oh++)
        for (int64_t ow = 0; ow < p->out_w; ow++, out += inner, where += inner) {
            const span s = window_of(p, oh, ow);
            const int64_t top = oh * p->pool.stride_h - p->pool.pad_h;
            const int64_t left = ow * p->pool.stride_w - p->pool.pad_w;
            for (int64_t h = s.h0; h < s.h1; h++)
                for (int64_t w = s.w0; w < s.w1; w++) {
                    const float *pixel = in + (h * p->in_w + w) * inner;
                    const uint16_t at = (uint16_t)((h - top) * p->pool.kernel_w + w - left);
                    const bool first = h == s.h0 && w == s.w0;
                    for (int64_t l = 0; l < inner; l++) {
                        const bool better = first || !(pixel[l] <= out[l] || out[l] != out[l]);
                        out[l] = better ? pixel[l] : out[l];
                        where[l] = better ? at : where[l];
                    }
                }
        }
}

static void maximum_backward(const pool_plan *p, float *restrict in, const float *restrict out,
                             const uint16_t *restrict where)
{
    const int64_t inner = p->inner;
    memset(in, 0, (size_t)(p->in_h * p->in_w * inner) * sizeof *in);
    for (int64_t oh = 0; oh < p->out_h; oh++)
        for (int64_t ow = 0; ow < p->out_w; ow++, out += inner, where += inner) {
            const int64_t top = oh * p->pool.stride_h - p->pool.pad_h;
            const int64_t left = ow * p->pool.stride_w - p->pool.pad_w;
            for (int64_t l = 0; l < inner; l++) {
                const int64_t h = top + where[l] / p->pool.kernel_w;
                const int64_t w = left + where[l] % p->pool.kernel_w;
                in[(h * p->in_w + w) * inner + l] += out[l];
            }
        }
}

/* ---- passes ---- */

static void pool_plane(const pool_run *run, int64_t plane, bool forward)
{
    const pool_plan *p = run->plan;
    const int64_t out_offset = plane * p->out_h * p->out_w * p->inner;
    float *in = run->in + plane * p->in_h * p->in_w * p->inner;
    float *out = run->out + out_offset;
    if (!p->pool.maximum)
        average_plane(p, in, out, forward);
    else if (forward)
        maximum_forward(p, in, out, run->where + out_offset);
    else
        maximum_backward(p, in, out, run->where + out_offset);
}

static void forward_plane(void *arg, int64_t plane)
{
    pool_plane(arg, plane, true);
}

static void backward_plane(void *arg, int64_t plane)
{
    pool_plane(arg, plane, false);
}

static ddp_status pool_run_pass(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const pool_plan *plan = (pool_plan *)base;
    const int threads = base->base.device->opts.threads;
    const bool forward = pass == DDP_PASS_FORWARD;
    pool_run run = {.plan = plan, .where = args->workspace};
    if (forward) {
        const void *in;
        DDP_TRY(ddpi_source_begin(&plan->source, args, &in));
        run.in = (float *)in;
        run.out = args->dst;
        ddpi_parallel(threads, plan->planes, forward_plane, &run);
        return DDP_OK;
    }
    void *in;
    DDP_TRY(ddpi_source_begin_gradient(&plan->source, args, &in));
    run.in = in;
    run.out = args->diff_dst;
    ddpi_parallel(threads, plan->planes, backward_plane, &run);
    return ddpi_source_end_gradient(&plan->source, args);
}

static void pool_destroy(ddpi_cpu_plan *base)
{
    ddpi_source_destroy(&((pool_plan *)base)->source);
}

/* ---- creation ---- */

static ddp_status set_up(pool_plan *plan, const ddpi_plan_parts *parts)
{
    const int64_t *src = parts->src->shape.dims, *dst = parts->dst_shape.dims;
    ddp_layout *in;
    plan->pool = parts->desc->u.pool2d;
    plan->in_h = src[2];
    plan->in_w = src[3];
    plan->out_h = dst[2];
    plan->out_w = dst[3];
    if (plan->pool.maximum && plan->pool.kernel_h * plan->pool.kernel_w > UINT16_MAX)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "maximum pooling over %lldx%lld pixels is too large",
                        (long long)plan->pool.kernel_h, (long long)plan->pool.kernel_w);
    DDP_TRY(ddpi_layout_like(parts->src, &parts->src->shape, &in));
    plan->planes = ddpi_cpu_layout_of(in)->planes;
    plan->inner = ddpi_cpu_layout_of(in)->inner;
    ddp_status st = ddpi_source_create(parts, in, &plan->base.base.scratch_bytes, &plan->source);
    if (st == DDP_OK)
        st = ddpi_layout_like(in, &parts->dst_shape, &plan->base.base.dst);
    ddp_layout_unref(in);
    DDP_TRY(st);
    if (plan->pool.maximum)
        plan->base.base.workspace_bytes =
            plan->base.base.dst->bytes / sizeof(float) * sizeof(uint16_t);
    snprintf(plan->base.base.impl, sizeof plan->base.base.impl, "planes:%lld",
             (long long)plan->inner);
    return DDP_OK;
}

ddp_status ddpi_pool_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {pool_run_pass, pool_destroy};
    ddpi_cpu_plan *base;
    if (parts->desc->u.pool2d.global)
        return ddpi_global_pool_create(parts, plan_out);
    if (parts->src->dtype == DDP_BF16)
        return ddpi_widened_create(parts, ddpi_pool_create, plan_out);
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(pool_plan), &base));
    const ddp_status st = set_up((pool_plan *)base, parts);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}
