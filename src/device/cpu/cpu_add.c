/* cpu_add.c - sums of two tensors that lie alike, with a relu and its gradient; and what brings the
 * sources of an operation into one layout. Padding is 0 and so stays 0.
 *
 * Ranges are cut into pieces of fixed size, which the threads share. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"

#define PIECE 16384 /* elements */

/* ---- loops ---- */

/* value NULL: dst = [relu](a + b). Else dst = a [+ b] where value > 0, and 0 elsewhere. */
typedef struct add_run {
    void *dst;
    const void *a, *b, *value;
    int64_t count;
    bool bf16, relu;
} add_run;

/* A NaN stays one. */
DDPI_INLINE void add_body(const add_run *run, int64_t lo, int64_t hi, const bool bf16,
                          const bool relu)
{
    void *dst = run->dst;
    const void *a = run->a, *b = run->b;
#pragma GCC ivdep
    for (int64_t i = lo; i < hi; i++) {
        const float sum = ddpi_load(a, i, bf16) + ddpi_load(b, i, bf16);
        ddpi_store(dst, i, relu && sum < 0 ? 0 : sum, bf16);
    }
}

DDPI_INLINE void mask_body(const add_run *run, int64_t lo, int64_t hi, const bool bf16,
                           const bool two)
{
    void *dst = run->dst;
    const void *a = run->a, *b = run->b, *value = run->value;
#pragma GCC ivdep
    for (int64_t i = lo; i < hi; i++) {
        const float sum = ddpi_load(a, i, bf16) + (two ? ddpi_load(b, i, bf16) : 0);
        ddpi_store(dst, i, ddpi_load(value, i, bf16) > 0 ? sum : 0, bf16);
    }
}

DDPI_SIMD static void add_range(const add_run *run, int64_t lo, int64_t hi)
{
    const int kind = (run->value != NULL ? 4 : 0) + (run->bf16 ? 2 : 0);
    switch (kind + (run->value != NULL ? run->b != NULL : run->relu)) {
    case 0:
        add_body(run, lo, hi, false, false);
        break;
    case 1:
        add_body(run, lo, hi, false, true);
        break;
    case 2:
        add_body(run, lo, hi, true, false);
        break;
    case 3:
        add_body(run, lo, hi, true, true);
        break;
    case 4:
        mask_body(run, lo, hi, false, false);
        break;
    case 5:
        mask_body(run, lo, hi, false, true);
        break;
    case 6:
        mask_body(run, lo, hi, true, false);
        break;
    default:
        mask_body(run, lo, hi, true, true);
        break;
    }
}

static void add_piece(void *arg, int64_t piece)
{
    const add_run *run = arg;
    add_range(run, piece * PIECE, ddpi_min(piece * PIECE + PIECE, run->count));
}

static void add_all(int threads, add_run *run)
{
    ddpi_parallel(threads, ddpi_ceil_div(run->count, PIECE), add_piece, run);
}

/* ---- dst += src, on any stream ---- */

typedef struct accumulate_task {
    int threads;
    add_run run;
} accumulate_task;

static ddp_status run_accumulate(const void *payload)
{
    accumulate_task task = *(const accumulate_task *)payload;
    add_all(task.threads, &task.run);
    return DDP_OK;
}

ddp_status ddpi_cpu_accumulate(ddp_stream *stream, const ddp_layout *layout, void *dst,
                               const void *src)
{
    const accumulate_task task = {stream->device->opts.threads,
                                  {.dst = dst,
                                   .a = dst,
                                   .b = src,
                                   .count = (int64_t)ddpi_layout_elements(layout),
                                   .bf16 = layout->dtype == DDP_BF16}};
    return ddpi_cpu_submit(stream, run_accumulate, &task, sizeof task);
}

/* ---- sources ---- */

ddp_status ddpi_source_create(const ddpi_plan_parts *parts, ddp_layout *kernel, size_t *bytes,
                              ddpi_source *source_out)
{
    DDP_TRY(ddpi_operand_create(parts->src, kernel, false, bytes, &source_out->src));
    if (parts->desc->training && parts->desc->need_diff_src)
        DDP_TRY(ddpi_operand_create(parts->src, kernel, true, bytes, &source_out->diff_src));
    const size_t in = ddpi_operand_scratch_bytes(&source_out->src);
    const size_t out = ddpi_operand_scratch_bytes(&source_out->diff_src);
    source_out->converter = ddpi_take(bytes, in > out ? in : out);
    return DDP_OK;
}

void ddpi_source_destroy(ddpi_source *source)
{
    ddpi_operand_destroy(&source->src);
    ddpi_operand_destroy(&source->diff_src);
}

ddp_status ddpi_source_begin(const ddpi_source *source, const ddp_op_args *args,
                             const void **src_out)
{
    char *scratch = args->scratch;
    void *src;
    DDP_TRY(
        ddpi_operand_begin(&source->src, args->src, scratch, scratch + source->converter, &src));
    *src_out = src;
    return DDP_OK;
}

ddp_status ddpi_source_begin_gradient(const ddpi_source *source, const ddp_op_args *args,
                                      void **diff_src_out)
{
    char *scratch = args->scratch;
    return ddpi_operand_begin(&source->diff_src, args->diff_src, scratch,
                              scratch + source->converter, diff_src_out);
}

ddp_status ddpi_source_end_gradient(const ddpi_source *source, const ddp_op_args *args)
{
    char *scratch = args->scratch;
    return ddpi_operand_end(&source->diff_src, args->diff_src, scratch,
                            scratch + source->converter);
}

ddp_status ddpi_second_create(const ddpi_plan_parts *parts, ddp_layout *kernel, size_t *bytes,
                              ddpi_second *second_out)
{
    ddp_layout *user = parts->desc->src2 != NULL ? parts->desc->src2 : parts->src;
    DDP_TRY(ddpi_operand_create(user, kernel, false, bytes, &second_out->in));
    size_t scratch = ddpi_operand_scratch_bytes(&second_out->in);
    if (parts->desc->training) {
        DDP_TRY(ddpi_converter_create(kernel, user, &second_out->out));
        scratch = (size_t)ddpi_max((int64_t)scratch, (int64_t)second_out->out->scratch_bytes);
    }
    second_out->converter = ddpi_take(bytes, scratch);
    return DDP_OK;
}

void ddpi_second_destroy(ddpi_second *second)
{
    ddpi_operand_destroy(&second->in);
    ddpi_converter_destroy(second->out);
}

ddp_status ddpi_second_begin(const ddpi_second *second, const ddp_op_args *args,
                             const void **src2_out)
{
    char *scratch = args->scratch;
    void *src2;
    DDP_TRY(
        ddpi_operand_begin(&second->in, args->src2, scratch, scratch + second->converter, &src2));
    *src2_out = src2;
    return DDP_OK;
}

ddp_status ddpi_second_gradient(const ddpi_second *second, const ddp_op_args *args)
{
    if (args->diff_src2 == NULL)
        return DDP_OK;
    return ddpi_converter_run(second->out, args->diff_dst, args->diff_src2,
                              (char *)args->scratch + second->converter);
}

/* ---- plans ---- */

typedef struct add_plan {
    ddpi_cpu_plan base;
    ddpi_second second;
} add_plan;

static ddp_status forward(const add_plan *plan, const ddp_op_args *args)
{
    const void *src2;
    DDP_TRY(ddpi_second_begin(&plan->second, args, &src2));
    add_run run = {.dst = args->dst,
                   .a = args->src,
                   .b = src2,
                   .count = (int64_t)ddpi_layout_elements(plan->base.base.src),
                   .bf16 = plan->base.base.src->dtype == DDP_BF16,
                   .relu = plan->base.base.desc.u.add.relu};
    add_all(plan->base.base.device->opts.threads, &run);
    return DDP_OK;
}

/* The gradient of both sources is made in diff_dst, and copied where the caller wants it too. */
static ddp_status backward(const add_plan *plan, const ddp_op_args *args)
{
    const ddp_op_plan *base = &plan->base.base;
    add_run run = {.dst = args->diff_dst,
                   .a = args->diff_dst,
                   .b = args->diff_dst2,
                   .value = base->desc.u.add.relu ? args->dst : NULL,
                   .count = (int64_t)ddpi_layout_elements(base->src),
                   .bf16 = base->src->dtype == DDP_BF16};
    if (run.value != NULL || run.b != NULL)
        add_all(base->device->opts.threads, &run);
    if (args->diff_src != NULL)
        memcpy(args->diff_src, args->diff_dst, base->src->bytes);
    return ddpi_second_gradient(&plan->second, args);
}

static ddp_status add_run_pass(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const add_plan *plan = (add_plan *)base;
    return pass == DDP_PASS_FORWARD ? forward(plan, args) : backward(plan, args);
}

static void add_destroy(ddpi_cpu_plan *base)
{
    ddpi_second_destroy(&((add_plan *)base)->second);
}

ddp_status ddpi_add_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {add_run_pass, add_destroy};
    ddpi_cpu_plan *base;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(add_plan), &base));
    base->base.dst = ddp_layout_ref(parts->src);
    snprintf(base->base.impl, sizeof base->base.impl, "loop");
    const ddp_status st = ddpi_second_create(parts, parts->src, &base->base.scratch_bytes,
                                             &((add_plan *)base)->second);
    if (st != DDP_OK)
        ddpi_plan_free(base);
    else
        *plan_out = base;
    return st;
}
