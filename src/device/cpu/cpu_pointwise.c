/* cpu_pointwise.c - work that treats each element alone: relu, flatten, optimizer, sums, ranks.
 *
 * Large ranges are cut into pieces of fixed size, which the threads share; sums are kept per lane
 * within a piece and added piece by piece, so the number of threads does not change them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"

#define PIECE 16384 /* elements */
#define LANES 16
/* Pieces whose sums wait to be added, before the next lot starts. */
#define LOT 64

/* ---- relu ---- */

typedef struct relu_run {
    void *dst;
    const void *src, *value; /* value NULL: forward */
    size_t count;
    bool bf16;
} relu_run;

/* A NaN stays one. */
DDPI_INLINE void relu_body(const relu_run *run, int64_t lo, int64_t hi, const bool bf16)
{
    void *dst = run->dst;
    const void *src = run->src, *value = run->value;
#pragma GCC ivdep
    for (int64_t i = lo; value == NULL && i < hi; i++) {
        const float x = ddpi_load(src, i, bf16);
        ddpi_store(dst, i, x < 0 ? 0 : x, bf16);
    }
#pragma GCC ivdep
    for (int64_t i = lo; value != NULL && i < hi; i++) {
        const float x = ddpi_load(src, i, bf16);
        ddpi_store(dst, i, ddpi_load(value, i, bf16) > 0 ? x : 0, bf16);
    }
}

DDPI_SIMD static void relu_range(const relu_run *run, size_t lo, size_t hi)
{
    if (run->bf16)
        relu_body(run, (int64_t)lo, (int64_t)hi, true);
    else
        relu_body(run, (int64_t)lo, (int64_t)hi, false);
}

static void relu_piece(void *arg, int64_t piece)
{
    const relu_run *run = arg;
    const size_t lo = (size_t)piece * PIECE;
    relu_range(run, lo, lo + PIECE < run->count ? lo + PIECE : run->count);
}

static int64_t pieces(size_t count)
{
    return ddpi_ceil_div((int64_t)count, PIECE);
}

void ddpi_relu_mask(int threads, float *diff, const float *value, size_t count)
{
    relu_run run = {diff, diff, value, count, false};
    ddpi_parallel(threads, pieces(count), relu_piece, &run);
}

static ddp_status relu_run_pass(ddpi_cpu_plan *plan, ddp_op_pass pass, const ddp_op_args *args)
{
    const size_t count = ddpi_layout_elements(plan->base.src);
    const bool bf16 = plan->base.src->dtype == DDP_BF16;
    relu_run run = {args->dst, args->src, NULL, count, bf16};
    if (pass == DDP_PASS_BACKWARD_DATA)
        run = (relu_run){args->diff_src, args->diff_dst, args->dst, count, bf16};
    ddpi_parallel(plan->base.device->opts.threads, pieces(count), relu_piece, &run);
    return DDP_OK;
}

ddp_status ddpi_relu_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {relu_run_pass, NULL};
    ddpi_cpu_plan *plan;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof *plan, &plan));
    plan->base.dst = ddp_layout_ref(parts->src);
    snprintf(plan->base.impl, sizeof plan->base.impl, "loop");
    *plan_out = plan;
    return DDP_OK;
}

/* ---- flatten ---- */

typedef struct reshape_plan {
    ddpi_cpu_plan base;
    ddpi_converter *to_plain, *from_plain; /* from_plain only for training */
} reshape_plan;

static ddp_status reshape_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const reshape_plan *plan = (reshape_plan *)base;
    return pass == DDP_PASS_FORWARD
               ? ddpi_converter_run(plan->to_plain, args->src, args->dst, args->scratch)
               : ddpi_converter_run(plan->from_plain, args->diff_dst, args->diff_src,
                                    args->scratch);
}

static void reshape_destroy(ddpi_cpu_plan *base)
{
    reshape_plan *plan = (reshape_plan *)base;
    ddpi_converter_destroy(plan->to_plain);
    ddpi_converter_destroy(plan->from_plain);
}

/* The converters work on the source's shape, whose plain data is that of the flat one. */
static ddp_status make_converters(reshape_plan *plan, const ddpi_plan_parts *parts)
{
    ddp_layout *plain;
    DDP_TRY(ddpi_layout_plain(parts->device, &parts->src->shape, &plain));
    ddp_status st = ddpi_converter_create(parts->src, plain, &plan->to_plain);
    if (st == DDP_OK)
        st = ddpi_converter_create(plain, parts->src, &plan->from_plain);
    ddp_layout_unref(plain);
    DDP_TRY(st);
    plan->base.base.scratch_bytes = (size_t)ddpi_max((int64_t)plan->to_plain->scratch_bytes,
                                                     (int64_t)plan->from_plain->scratch_bytes);
    snprintf(plan->base.base.impl, sizeof plan->base.base.impl, "copy");
    return ddpi_layout_plain(parts->device, &parts->dst_shape, &plan->base.base.dst);
}

ddp_status ddpi_reshape_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {reshape_run, reshape_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(reshape_plan), &base));
    const ddp_status st = make_converters((reshape_plan *)base, parts);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}

/* ---- add ---- */

typedef struct add_task {
    int threads;
    float *dst;
    const float *src;
    size_t count;
} add_task;

DDPI_SIMD static void add_range(float *restrict dst, const float *restrict src, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] += src[i];
}

static void add_piece(void *arg, int64_t piece)
{
    const add_task *task = arg;
    const size_t lo = (size_t)piece * PIECE;
    add_range(task->dst + lo, task->src + lo, lo + PIECE < task->count ? PIECE : task->count - lo);
}

static ddp_status run_add(const void *payload)
{
    const add_task *task = payload;
    ddpi_parallel(task->threads, pieces(task->count), add_piece, (void *)task);
    return DDP_OK;
}

ddp_status ddpi_cpu_add(ddp_stream *stream, float *dst, const float *src, size_t count)
{
    const add_task task = {stream->device->opts.threads, dst, src, count};
    return ddpi_cpu_submit(stream, run_add, &task, sizeof task);
}

/* ---- label rank ---- */

typedef struct rank_task {
    const float *logits;
    const int32_t *labels;
    int64_t n, classes;
    int32_t *rank_out;
} rank_task;

static int32_t rank_of(const float *logits, int64_t classes, int32_t label)
{
    int32_t rank = 0;
    bool valid = label >= 0 && label < classes;
    for (int64_t c = 0; valid && c < classes; c++) {
        valid = !isnan(logits[c]);
        rank += logits[c] > logits[label] || (logits[c] == logits[label] && c < label);
    }
    return valid ? rank : (int32_t)classes;
}

static ddp_status run_rank(const void *payload)
{
    const rank_task *task = payload;
    for (int64_t n = 0; n < task->n; n++)
        task->rank_out[n] =
            rank_of(task->logits + n * task->classes, task->classes, task->labels[n]);
    return DDP_OK;
}

ddp_status ddpi_cpu_label_rank(ddp_stream *stream, const float *logits, const int32_t *labels,
                               int64_t n, int64_t classes, int32_t *rank_out)
{
    const rank_task task = {logits, labels, n, classes, rank_out};
    return ddpi_cpu_submit(stream, run_rank, &task, sizeof task);
}
