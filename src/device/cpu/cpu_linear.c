/* cpu_linear.c - fully connected layers as matrix products over plain [out][in] weights.
 *
 * The library's product is at its best when no operand has to be transposed inside it, so forward
 * computes dst^T[out][n] = weights * src^T and turns it back while adding the bias, on blocks that
 * are in the cache. Turning the source is a small part of the work: it is read once, the product
 * reads it `out` times. Backward needs no such turn: diff_src = diff_dst * weights, and
 * diff_weights = diff_dst^T * src, which the library packs well. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/batch_kernels.h"
#include "device/cpu/cpu_impl.h"

#define TURN_ROWS 64 /* of a piece that is turned at once */

typedef struct linear_plan {
    ddpi_cpu_plan base;
    const ddp_linear_desc *linear;
    int64_t n, in, out;
    bool src_batch;             /* the source lies in blocks of 16 images */
    ddpi_operand src, diff_src; /* to plain */
    size_t src_turned, dst_turned, converter;
} linear_plan;

/* ---- turning ---- */

typedef struct turn_run {
    const linear_plan *plan;
    const float *from;
    float *to;
    const float *bias;
} turn_run;

/* src [n][in] to [in][n], TURN_ROWS features at a time. */
static void turn_source(void *arg, int64_t part)
{
    const turn_run *run = arg;
    const linear_plan *p = run->plan;
    const int64_t lo = part * TURN_ROWS, hi = ddpi_min(lo + TURN_ROWS, p->in);
    for (int64_t n0 = 0; n0 < p->n; n0 += DDPI_BATCH_LANES) {
        const int64_t n1 = ddpi_min(n0 + DDPI_BATCH_LANES, p->n);
        for (int64_t i = lo; i < hi; i++)
            for (int64_t n = n0; n < n1; n++)
                run->to[i * p->n + n] = run->from[n * p->in + i];
    }
}

/* src [n/16][in][16] to [in][n]. */
static void turn_blocks(void *arg, int64_t part)
{
    const turn_run *run = arg;
    const linear_plan *p = run->plan;
    const int64_t lo = part * TURN_ROWS, hi = ddpi_min(lo + TURN_ROWS, p->in);
    for (int64_t n0 = 0; n0 < p->n; n0 += DDPI_BATCH_LANES) {
        const size_t bytes = (size_t)ddpi_min(p->n - n0, DDPI_BATCH_LANES) * sizeof(float);
        for (int64_t i = lo; i < hi; i++)
            memcpy(run->to + i * p->n + n0, run->from + n0 * p->in + i * DDPI_BATCH_LANES, bytes);
    }
}

/* dst^T [out][n] to dst [n][out] with bias and relu, TURN_ROWS features at a time. */
static void finish_features(void *arg, int64_t part)
{
    const turn_run *run = arg;
    const linear_plan *p = run->plan;
    const int64_t lo = part * TURN_ROWS, hi = ddpi_min(lo + TURN_ROWS, p->out);
    const float least = p->linear->relu ? 0.0f : -__builtin_inff();
    float bias[TURN_ROWS] = {0};
    if (run->bias != NULL)
        memcpy(bias, run->bias + lo, (size_t)(hi - lo) * sizeof *bias);
    for (int64_t n0 = 0; n0 < p->n; n0 += DDPI_BATCH_LANES) {
        const int64_t n1 = ddpi_min(n0 + DDPI_BATCH_LANES, p->n);
        for (int64_t n = n0; n < n1; n++)
            for (int64_t o = lo; o < hi; o++) {
                const float value = run->from[o * p->n + n] + bias[o - lo];
                run->to[n * p->out + o] = value < least ? least : value; /* a NaN stays one */
            }
    }
}

/* Masks diff_dst where relu was not active, and sums it over the batch. */
typedef struct mask_run {
    const linear_plan *plan;
    float *diff_dst, *diff_bias; /* diff_bias may be NULL */
    const float *dst;            /* NULL: no mask */
} mask_run;

DDPI_SIMD static void mask_piece(const mask_run *run, int64_t lo, int64_t hi)
{
    const int64_t out = run->plan->out;
    float sums[TURN_ROWS] = {0};
    for (int64_t n = 0; n < run->plan->n; n++) {
        float *diff = run->diff_dst + n * out + lo;
        if (run->dst != NULL) {
            const float *dst = run->dst + n * out + lo;
            for (int64_t i = 0; i < hi - lo; i++)
                diff[i] = dst[i] > 0 ? diff[i] : 0;
        }
        for (int64_t i = 0; i < hi - lo; i++)
            sums[i] += diff[i];
    }
    if (run->diff_bias != NULL)
        memcpy(run->diff_bias + lo, sums, (size_t)(hi - lo) * sizeof *sums);
}

static void mask_features(void *arg, int64_t part)
{
    const mask_run *run = arg;
    const int64_t lo = part * TURN_ROWS;
    mask_piece(run, lo, ddpi_min(lo + TURN_ROWS, run->plan->out));
}

/* ---- passes ---- */

static ddp_status forward(const linear_plan *p, const ddp_op_args *args, int threads)
{
    const ddpi_gemm gemm = {
        .m = p->out, .n = p->n, .k = p->in, .lda = p->in, .ldb = p->n, .ldc = p->n};
    char *scratch = args->scratch;
    float *src_turned = (float *)(void *)(scratch + p->src_turned);
    float *dst_turned = (float *)(void *)(scratch + p->dst_turned);
    void *src = (void *)args->src;
    if (!p->src_batch)
        DDP_TRY(ddpi_operand_begin(&p->src, args->src, scratch, scratch + p->converter, &src));
    turn_run turn = {p, src, src_turned, NULL};
    ddpi_parallel(threads, ddpi_ceil_div(p->in, TURN_ROWS),
                  p->src_batch ? turn_blocks : turn_source, &turn);
    DDP_TRY(ddpi_sgemm(&gemm, args->weights, src_turned, dst_turned));
    turn_run finish = {p, dst_turned, args->dst, p->linear->bias ? args->bias : NULL};
    ddpi_parallel(threads, ddpi_ceil_div(p->out, TURN_ROWS), finish_features, &finish);
    return DDP_OK;
}

static ddp_status backward_weights(const linear_plan *p, const ddp_op_args *args)
{
    const ddpi_gemm gemm = {.trans_a = true,
                            .m = p->out,
                            .n = p->in,
                            .k = p->n,
                            .lda = p->out,
                            .ldb = p->in,
                            .ldc = p->in};
    char *scratch = args->scratch;
    void *src;
    DDP_TRY(ddpi_operand_begin(&p->src, args->src, scratch, scratch + p->converter, &src));
    return ddpi_sgemm(&gemm, args->diff_dst, src, args->diff_weights);
}

static ddp_status backward_data(const linear_plan *p, const ddp_op_args *args)
{
    const ddpi_gemm gemm = {
        .m = p->n, .n = p->in, .k = p->out, .lda = p->out, .ldb = p->in, .ldc = p->in};
    char *scratch = args->scratch;
    void *diff_src;
    DDP_TRY(ddpi_operand_begin(&p->diff_src, args->diff_src, scratch, scratch + p->converter,
                               &diff_src));
    DDP_TRY(ddpi_sgemm(&gemm, args->diff_dst, args->weights, diff_src));
    return ddpi_operand_end(&p->diff_src, args->diff_src, scratch, scratch + p->converter);
}

static ddp_status linear_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const linear_plan *plan = (linear_plan *)base;
    const int threads = base->base.device->opts.threads;
    if (pass == DDP_PASS_FORWARD) {
        base->masked = NULL;
        return forward(plan, args, threads);
    }
    const bool weights = pass == DDP_PASS_BACKWARD_WEIGHTS;
    mask_run mask = {
        .plan = plan,
        .diff_dst = args->diff_dst,
        .diff_bias = weights && plan->linear->bias ? args->diff_bias : NULL,
        .dst = plan->linear->relu && base->masked != args->diff_dst ? args->dst : NULL,
    };
    if (mask.dst != NULL || mask.diff_bias != NULL)
        ddpi_parallel(threads, ddpi_ceil_div(plan->out, TURN_ROWS), mask_features, &mask);
    base->masked = weights ? args->diff_dst : NULL;
    return weights ? backward_weights(plan, args) : backward_data(plan, args);
}

static void linear_destroy(ddpi_cpu_plan *base)
{
    linear_plan *plan = (linear_plan *)base;
    ddpi_operand_destroy(&plan->src);
    ddpi_operand_destroy(&plan->diff_src);
}

/* ---- creation ---- */

static ddp_status make_scratch(linear_plan *plan, const ddpi_plan_parts *parts)
{
    size_t bytes = 0;
    DDP_TRY(ddpi_source_operands(parts, DDP_F32, &bytes, &plan->src, &plan->diff_src));
    plan->src_turned = ddpi_take(&bytes, (size_t)(plan->in * plan->n) * sizeof(float));
    plan->dst_turned = ddpi_take(&bytes, (size_t)(plan->out * plan->n) * sizeof(float));
    plan->converter = ddpi_take_converter(&bytes, &plan->src, &plan->diff_src);
    plan->base.base.scratch_bytes = bytes;
    return DDP_OK;
}

ddp_status ddpi_linear_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {linear_run, linear_destroy};
    ddpi_cpu_plan *base;
    ddp_status st;
    if (parts->desc->compute == DDP_BF16) {
        st = ddpi_linear_bf16_create(parts, plan_out);
        return st == DDP_ERR_UNSUPPORTED ? ddpi_widened_create(parts, ddpi_linear_create, plan_out)
                                         : st;
    }
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(linear_plan), &base));
    linear_plan *plan = (linear_plan *)base;
    plan->linear = &base->base.desc.u.linear;
    plan->n = parts->dst_shape.dims[0];
    plan->out = parts->weight_shape.dims[0];
    plan->in = parts->weight_shape.dims[1];
    plan->src_batch = ddpi_cpu_layout_of(parts->src)->batch;
    DDP_TRY_GOTO(st, make_scratch(plan, parts), err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->dst_shape, &base->base.dst),
                 err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->weight_shape, &base->base.weights),
                 err_plan);
    snprintf(base->base.impl, sizeof base->base.impl, "gemm");
    *plan_out = base;
    return DDP_OK;
err_plan:
    ddpi_plan_free(base);
    return st;
}
