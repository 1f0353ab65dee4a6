/* cpu_conv_batch.c - convolution plans over blocks of 16 images (batch_kernels.h).
 *
 * The destination lies in such blocks; a source that does not, or that needs a border of zeros, is
 * brought into one block of scratch memory at a time, while it stays in the cache. Weights are
 * plain. Blocks are shared out over the threads; each thread sums its own gradient of the weights,
 * and the sums are added in the order of the threads. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/batch_kernels.h"
#include "device/cpu/cpu_impl.h"

/* Where the parts of scratch memory lie; each thread has its own `thread_bytes` of them. */
typedef struct scratch_map {
    size_t plain, converter;               /* shared */
    size_t threads, thread_bytes;          /* start of the first thread's part, and its size */
    size_t block, bordered, weights, bias; /* within a thread's part */
} scratch_map;

typedef struct conv_batch_plan {
    ddpi_cpu_plan base;
    ddpi_batch_conv shape; /* in_h and in_w with border */
    int64_t n, blocks, parts;
    int64_t in_elements, out_elements; /* of one image, without border */
    int64_t pad_h, pad_w, weight_count;
    bool src_batch;   /* the user's source lies in blocks */
    ddpi_operand src; /* to plain, where it lies in neither */
    ddpi_operand diff_src;
    scratch_map map;
} conv_batch_plan;

typedef struct batch_run {
    const conv_batch_plan *plan;
    const ddp_op_args *args;
    const float *src; /* plain or blocks */
    float *diff_src;
    char *scratch;
} batch_run;

static const conv_batch_plan *plan_of(const batch_run *run)
{
    return run->plan;
}

/* ---- one block ---- */

static bool has_border(const conv_batch_plan *plan)
{
    return plan->pad_h > 0 || plan->pad_w > 0;
}

/* Copies the inside of a block with border from or to one without. */
static void copy_inside(const conv_batch_plan *plan, float *bordered, float *block, bool in)
{
    const ddpi_batch_conv *s = &plan->shape;
    const int64_t h = s->in_h - 2 * plan->pad_h, w = s->in_w - 2 * plan->pad_w;
    for (int64_t c = 0; c < s->in_c; c++)
        for (int64_t row = 0; row < h; row++) {
            float *big = bordered + ((c * s->in_h + row + plan->pad_h) * s->in_w + plan->pad_w) *
                                        DDPI_BATCH_LANES;
            float *small = block + (c * h + row) * w * DDPI_BATCH_LANES;
            memcpy(in ? big : small, in ? small : big, (size_t)w * DDPI_BATCH_LANES * sizeof *big);
        }
}

static int lanes_of(const conv_batch_plan *plan, int64_t block)
{
    return (int)ddpi_min(plan->n - block * DDPI_BATCH_LANES, DDPI_BATCH_LANES);
}

/* The source block as the kernels want it. mine: this thread's scratch memory. */
static const float *source_block(const batch_run *run, int64_t block, char *mine)
{
    const conv_batch_plan *plan = plan_of(run);
    const int64_t offset = block * plan->in_elements * DDPI_BATCH_LANES;
    float *inside = (float *)(run->src + offset);
    if (!plan->src_batch) {
        inside = (float *)(void *)(mine + plan->map.block);
        ddpi_batch_pack(run->src + offset, plan->in_elements, lanes_of(plan, block), inside);
    }
    if (!has_border(plan))
        return inside;
    float *bordered = (float *)(void *)(mine + plan->map.bordered);
    memset(bordered, 0,
           (size_t)(plan->shape.in_c * plan->shape.in_h * plan->shape.in_w) * DDPI_BATCH_LANES *
               sizeof *bordered);
    copy_inside(plan, bordered, inside, true);
    return bordered;
}

static void diff_source_block(const batch_run *run, int64_t block, const float *diff_dst,
                              char *mine)
{
    const conv_batch_plan *plan = plan_of(run);
    const int64_t offset = block * plan->in_elements * DDPI_BATCH_LANES;
    float *inside =
        plan->src_batch ? run->diff_src + offset : (float *)(void *)(mine + plan->map.block);
    float *out = has_border(plan) ? (float *)(void *)(mine + plan->map.bordered) : inside;
    ddpi_batch_conv_backward_data(&plan->shape, diff_dst, run->args->weights, out);
    if (has_border(plan))
        copy_inside(plan, out, inside, false);
    if (!plan->src_batch)
        ddpi_batch_unpack(inside, plan->in_elements, lanes_of(plan, block), run->diff_src + offset);
}

/* ---- one thread's blocks ---- */

static int64_t first_block(const conv_batch_plan *plan, int64_t part)
{
    return plan->blocks * part / plan->parts;
}

static char *thread_scratch(const batch_run *run, int64_t part)
{
    return run->scratch + run->plan->map.threads + (size_t)part * run->plan->map.thread_bytes;
}

static void forward_part(void *arg, int64_t part)
{
    const batch_run *run = arg;
    const conv_batch_plan *plan = plan_of(run);
    const ddp_op_args *args = run->args;
    for (int64_t b = first_block(plan, part); b < first_block(plan, part + 1); b++)
        ddpi_batch_conv_forward(
            &plan->shape, source_block(run, b, thread_scratch(run, part)), args->weights,
            plan->base.base.desc.u.conv2d.bias ? args->bias : NULL,
            (float *)args->dst + b * plan->out_elements * DDPI_BATCH_LANES, lanes_of(plan, b));
}

static void backward_data_part(void *arg, int64_t part)
{
    const batch_run *run = arg;
    const conv_batch_plan *plan = plan_of(run);
    for (int64_t b = first_block(plan, part); b < first_block(plan, part + 1); b++)
        diff_source_block(
            run, b, (const float *)run->args->diff_dst + b * plan->out_elements * DDPI_BATCH_LANES,
            thread_scratch(run, part));
}

/* The gradients that a thread sums: the first one the result itself. */
static float *part_weights(const batch_run *run, int64_t part)
{
    return part == 0 ? run->args->diff_weights
                     : (float *)(void *)(thread_scratch(run, part) + run->plan->map.weights);
}

static float *part_bias(const batch_run *run, int64_t part)
{
    if (!run->plan->base.base.desc.u.conv2d.bias)
        return NULL;
    return part == 0 ? run->args->diff_bias
                     : (float *)(void *)(thread_scratch(run, part) + run->plan->map.bias);
}

static void backward_weights_part(void *arg, int64_t part)
{
    const batch_run *run = arg;
    const conv_batch_plan *plan = plan_of(run);
    float *weights = part_weights(run, part), *bias = part_bias(run, part);
    memset(weights, 0, (size_t)plan->weight_count * sizeof *weights);
    if (bias != NULL)
        memset(bias, 0, (size_t)plan->shape.out_c * sizeof *bias);
    for (int64_t b = first_block(plan, part); b < first_block(plan, part + 1); b++) {
        const int64_t offset = b * plan->out_elements * DDPI_BATCH_LANES;
        ddpi_batch_conv_backward_weights(&plan->shape,
                                         source_block(run, b, thread_scratch(run, part)),
                                         (const float *)run->args->dst + offset,
                                         (float *)run->args->diff_dst + offset, weights, bias);
    }
}

static void add_parts(const batch_run *run)
{
    for (int64_t part = 1; part < run->plan->parts; part++) {
        const float *weights = part_weights(run, part), *bias = part_bias(run, part);
        for (int64_t i = 0; i < run->plan->weight_count; i++)
            ((float *)run->args->diff_weights)[i] += weights[i];
        for (int64_t i = 0; bias != NULL && i < run->plan->shape.out_c; i++)
            ((float *)run->args->diff_bias)[i] += bias[i];
    }
}

/* ---- passes ---- */

static ddp_status begin_source(const conv_batch_plan *plan, batch_run *run)
{
    void *src;
    DDP_TRY(ddpi_operand_begin(&plan->src, run->args->src, run->scratch,
                               run->scratch + plan->map.converter, &src));
    run->src = src;
    return DDP_OK;
}

static ddp_status backward_data(conv_batch_plan *plan, batch_run *run)
{
    const ddp_op_args *args = run->args;
    const int threads = plan->base.base.device->opts.threads;
    char *converter = run->scratch + plan->map.converter;
    void *diff_src;
    if (plan->shape.relu && plan->base.masked != args->diff_dst)
        ddpi_relu_mask(threads, args->diff_dst, args->dst,
                       plan->base.base.dst->bytes / sizeof(float));
    plan->base.masked = NULL;
    DDP_TRY(
        ddpi_operand_begin(&plan->diff_src, args->diff_src, run->scratch, converter, &diff_src));
    run->diff_src = diff_src;
    ddpi_parallel(threads, plan->parts, backward_data_part, run);
    return ddpi_operand_end(&plan->diff_src, args->diff_src, run->scratch, converter);
}

static ddp_status conv_batch_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    conv_batch_plan *plan = (conv_batch_plan *)base;
    const int threads = base->base.device->opts.threads;
    batch_run run = {.plan = plan, .args = args, .scratch = args->scratch};
    if (pass == DDP_PASS_BACKWARD_DATA)
        return backward_data(plan, &run);
    DDP_TRY(begin_source(plan, &run));
    if (pass == DDP_PASS_FORWARD) {
        base->masked = NULL;
        ddpi_parallel(threads, plan->parts, forward_part, &run);
        return DDP_OK;
    }
    ddpi_parallel(threads, plan->parts, backward_weights_part, &run);
    add_parts(&run);
    base->masked = args->diff_dst;
    return DDP_OK;
}

static void conv_batch_destroy(ddpi_cpu_plan *base)
{
    conv_batch_plan *plan = (conv_batch_plan *)base;
    ddpi_operand_destroy(&plan->src);
    ddpi_operand_destroy(&plan->diff_src);
}

/* ---- creation ---- */

static ddpi_batch_conv shape_of(const ddpi_plan_parts *parts)
{
    const ddp_conv2d_desc *conv = &parts->desc->u.conv2d;
    const int64_t *src = parts->src->shape.dims, *dst = parts->dst_shape.dims;
    return (ddpi_batch_conv){
        .in_c = src[1],
        .in_h = src[2] + 2 * conv->pad_h,
        .in_w = src[3] + 2 * conv->pad_w,
        .out_c = dst[1],
        .out_h = dst[2],
        .out_w = dst[3],
        .kernel_h = conv->kernel_h,
        .kernel_w = conv->kernel_w,
        .relu = conv->relu,
    };
}

bool ddpi_conv_batch_fits(const ddpi_plan_parts *parts)
{
    const ddp_conv2d_desc *conv = &parts->desc->u.conv2d;
    const ddpi_batch_conv shape = shape_of(parts);
    const int64_t n = parts->src->shape.dims[0];
    const int64_t lanes = ddpi_ceil_div(n, DDPI_BATCH_LANES) * DDPI_BATCH_LANES;
    return ddpi_batch_available() && conv->stride_h == 1 && conv->stride_w == 1 &&
           ddpi_batch_conv_supports(&shape) && 2 * n >= lanes;
}

static ddp_status make_operands(const ddpi_plan_parts *parts, conv_batch_plan *plan, size_t *bytes)
{
    plan->src_batch = ddpi_cpu_layout_of(parts->src)->batch;
    if (plan->src_batch || parts->src->plain)
        return DDP_OK;
    return ddpi_source_operands(parts, DDP_F32, bytes, &plan->src, &plan->diff_src);
}

static void map_scratch(conv_batch_plan *plan, size_t bytes)
{
    scratch_map *map = &plan->map;
    const ddpi_batch_conv *s = &plan->shape;
    const size_t lanes_bytes = DDPI_BATCH_LANES * sizeof(float);
    map->converter = ddpi_take_converter(&bytes, &plan->src, &plan->diff_src);
    map->block = ddpi_take(&map->thread_bytes,
                           plan->src_batch ? 0 : (size_t)plan->in_elements * lanes_bytes);
    map->bordered =
        ddpi_take(&map->thread_bytes,
                  has_border(plan) ? (size_t)(s->in_c * s->in_h * s->in_w) * lanes_bytes : 0);
    const bool sums = plan->parts > 1 && plan->base.base.desc.training;
    map->weights =
        ddpi_take(&map->thread_bytes, sums ? (size_t)plan->weight_count * sizeof(float) : 0);
    map->bias = ddpi_take(&map->thread_bytes, sums ? (size_t)s->out_c * sizeof(float) : 0);
    map->threads = ddpi_take(&bytes, (size_t)plan->parts * map->thread_bytes);
    plan->base.base.scratch_bytes = bytes;
}

ddp_status ddpi_conv_batch_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {conv_batch_run, conv_batch_destroy};
    const ddp_conv2d_desc *conv = &parts->desc->u.conv2d;
    ddpi_cpu_plan *base;
    size_t bytes = 0;
    ddp_status st;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(conv_batch_plan), &base));
    conv_batch_plan *plan = (conv_batch_plan *)base;
    plan->shape = shape_of(parts);
    plan->n = parts->src->shape.dims[0];
    plan->blocks = ddpi_ceil_div(plan->n, DDPI_BATCH_LANES);
    plan->parts = ddpi_min(plan->blocks, parts->device->opts.threads);
    plan->in_elements = ddp_shape_count(&parts->src->shape) / plan->n;
    plan->out_elements = ddp_shape_count(&parts->dst_shape) / plan->n;
    plan->pad_h = conv->pad_h;
    plan->pad_w = conv->pad_w;
    plan->weight_count = ddp_shape_count(&parts->weight_shape);
    DDP_TRY_GOTO(st, make_operands(parts, plan, &bytes), err_plan);
    map_scratch(plan, bytes);
    DDP_TRY_GOTO(st, ddpi_layout_batch(parts->device, &parts->dst_shape, &base->base.dst),
                 err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->weight_shape, &base->base.weights),
                 err_plan);
    snprintf(base->base.impl, sizeof base->base.impl, "batch:avx512");
    *plan_out = base;
    return DDP_OK;
err_plan:
    ddpi_plan_free(base);
    return st;
}
