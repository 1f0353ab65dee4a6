/* cpu_conv_gemm.c - convolution plans as matrix products (im2col), for any shape, all plain.
 *
 * The images are taken in small groups, so that a group's column matrix [c*kh*kw][group pixels]
 * stays in the cache between its making and its use; it is made again for the weights' gradient.
 * With more than one image in a group the products' other side, [out channels][group pixels], is
 * gathered from and scattered to the images, and bias and relu are applied on that way. */
#include <stdio.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"

#define COLUMN_BYTES ((int64_t)512 << 10) /* that the column matrix should not exceed */
#define WANT_PIXELS  512                  /* more in one product gain nothing */

typedef struct conv_gemm_plan {
    ddpi_cpu_plan base;
    const ddp_conv2d_desc *conv;
    int64_t n, in_c, in_h, in_w, out_c, out_h, out_w;
    int64_t taps, pixels, group;        /* c*kh*kw; of one image's output; images in a group */
    ddpi_operand src, diff_src;         /* to plain */
    size_t columns, product, converter; /* offsets in scratch memory */
} conv_gemm_plan;

/* One group of images: operands of the whole batch and which images. */
typedef struct group_run {
    const conv_gemm_plan *plan;
    float *images; /* src or diff_src, plain */
    float *columns, *product;
    int64_t first, count;
} group_run;

/* ---- im2col ---- */

/* Output positions [lo, hi) along one axis whose tap lies inside the source. */
static void inside(int64_t out, int64_t in, int64_t stride, int64_t offset, int64_t range[2])
{
    range[0] = offset >= 0 ? 0 : ddpi_min(ddpi_ceil_div(-offset, stride), out);
    range[1] = in - offset <= 0 ? 0 : ddpi_min(ddpi_ceil_div(in - offset, stride), out);
    range[1] = ddpi_max(range[1], range[0]);
}

/* One row of one tap: row[ow] = image[ow * stride], 0 outside [range). */
static void gather_row(float *row, const float *image, int64_t width, int64_t stride,
                       const int64_t range[2])
{
    for (int64_t ow = 0; ow < range[0]; ow++)
        row[ow] = 0;
    if (stride == 1)
        for (int64_t ow = range[0]; ow < range[1]; ow++)
            row[ow] = image[ow];
    else
        for (int64_t ow = range[0]; ow < range[1]; ow++)
            row[ow] = image[ow * stride];
    for (int64_t ow = range[1]; ow < width; ow++)
        row[ow] = 0;
}

static void scatter_row(const float *row, float *image, int64_t stride, const int64_t range[2])
{
    for (int64_t ow = range[0]; ow < range[1]; ow++)
        image[ow * stride] += row[ow];
}

/* One tap (kh, kw) of one channel of one image. to_columns: gather; else add back. */
static void tap_pass(const conv_gemm_plan *p, float *image, float *column, int64_t kh, int64_t kw,
                     bool to_columns)
{
    const ddp_conv2d_desc *conv = p->conv;
    int64_t rows[2], cols[2];
    inside(p->out_h, p->in_h, conv->stride_h, kh - conv->pad_h, rows);
    inside(p->out_w, p->in_w, conv->stride_w, kw - conv->pad_w, cols);
    for (int64_t oh = 0; oh < p->out_h; oh++) {
        float *row = column + oh * p->out_w;
        const int64_t ih = oh * conv->stride_h + kh - conv->pad_h;
        if (oh < rows[0] || oh >= rows[1]) {
            if (to_columns)
                memset(row, 0, (size_t)p->out_w * sizeof *row);
            continue;
        }
        /* The tap's column may start left of the image; [cols) keeps the accesses inside. */
        const int64_t start = ih * p->in_w + kw - conv->pad_w;
        if (to_columns)
            gather_row(row, image + start, p->out_w, conv->stride_w, cols);
        else
            scatter_row(row, image + start, conv->stride_w, cols);
    }
}

static void columns_of_channel(const group_run *run, int64_t channel, bool to_columns)
{
    const conv_gemm_plan *p = run->plan;
    const int64_t kernel = p->conv->kernel_h * p->conv->kernel_w;
    const int64_t width = run->count * p->pixels;
    for (int64_t g = 0; g < run->count; g++) {
        float *image = run->images + ((run->first + g) * p->in_c + channel) * p->in_h * p->in_w;
        for (int64_t tap = 0; tap < kernel; tap++)
            tap_pass(p, image, run->columns + (channel * kernel + tap) * width + g * p->pixels,
                     tap / p->conv->kernel_w, tap % p->conv->kernel_w, to_columns);
    }
}

static void gather_channel(void *arg, int64_t channel)
{
    columns_of_channel(arg, channel, true);
}

static void scatter_channel(void *arg, int64_t channel)
{
    columns_of_channel(arg, channel, false);
}

/* ---- the other side of the products ---- */

typedef struct epilogue {
    const group_run *run;
    float *dst;
    const float *bias;
    bool relu;
} epilogue;

static void finish_channel(void *arg, int64_t oc)
{
    const epilogue *e = arg;
    const conv_gemm_plan *p = e->run->plan;
    const float bias = e->bias != NULL ? e->bias[oc] : 0;
    const float least = e->relu ? 0.0f : -__builtin_inff();
    for (int64_t g = 0; g < e->run->count; g++) {
        const float *from = e->run->product + (oc * e->run->count + g) * p->pixels;
        float *to = e->dst + ((e->run->first + g) * p->out_c + oc) * p->pixels;
        for (int64_t i = 0; i < p->pixels; i++) {
            const float value = from[i] + bias;
            to[i] = value < least ? least : value; /* a NaN stays one */
        }
    }
}

/* [group images][out_c][pixels] to [out_c][group pixels]; a single image needs no copy. */
static const float *gather_gradients(const group_run *run, const float *diff_dst)
{
    const conv_gemm_plan *p = run->plan;
    const float *from = diff_dst + run->first * p->out_c * p->pixels;
    if (run->count == 1)
        return from;
    for (int64_t g = 0; g < run->count; g++)
        for (int64_t oc = 0; oc < p->out_c; oc++)
            memcpy(run->product + (oc * run->count + g) * p->pixels,
                   from + (g * p->out_c + oc) * p->pixels, (size_t)p->pixels * sizeof *from);
    return run->product;
}

typedef struct bias_run {
    const conv_gemm_plan *plan;
    const float *diff_dst;
    float *diff_bias;
} bias_run;

static void sum_channel(void *arg, int64_t oc)
{
    const bias_run *run = arg;
    const conv_gemm_plan *p = run->plan;
    double sum = 0;
    for (int64_t n = 0; n < p->n; n++) {
        const float *from = run->diff_dst + (n * p->out_c + oc) * p->pixels;
        for (int64_t i = 0; i < p->pixels; i++)
            sum += (double)from[i];
    }
    run->diff_bias[oc] = (float)sum;
}

/* ---- passes ---- */

static group_run start_run(const conv_gemm_plan *plan, void *images, char *scratch)
{
    return (group_run){.plan = plan,
                       .images = images,
                       .columns = (float *)(void *)(scratch + plan->columns),
                       .product = (float *)(void *)(scratch + plan->product)};
}

/* The next group; false after the last. */
static bool next_group(group_run *run)
{
    run->first += run->count;
    run->count = ddpi_min(run->plan->group, run->plan->n - run->first);
    return run->count > 0;
}

static ddp_status forward(const conv_gemm_plan *p, const ddp_op_args *args, int threads)
{
    void *src;
    char *scratch = args->scratch;
    DDP_TRY(ddpi_operand_begin(&p->src, args->src, scratch, scratch + p->converter, &src));
    group_run run = start_run(p, src, scratch);
    while (next_group(&run)) {
        const int64_t width = run.count * p->pixels;
        const ddpi_gemm gemm = {
            .m = p->out_c, .n = width, .k = p->taps, .lda = p->taps, .ldb = width, .ldc = width};
        ddpi_parallel(threads, p->in_c, gather_channel, &run);
        DDP_TRY(ddpi_sgemm(&gemm, args->weights, run.columns, run.product));
        epilogue end = {&run, args->dst, p->conv->bias ? args->bias : NULL, p->conv->relu};
        ddpi_parallel(threads, p->out_c, finish_channel, &end);
    }
    return DDP_OK;
}

static ddp_status backward_weights(const conv_gemm_plan *p, const ddp_op_args *args, int threads)
{
    void *src;
    char *scratch = args->scratch;
    DDP_TRY(ddpi_operand_begin(&p->src, args->src, scratch, scratch + p->converter, &src));
    if (p->conv->bias) {
        bias_run sums = {p, args->diff_dst, args->diff_bias};
        ddpi_parallel(threads, p->out_c, sum_channel, &sums);
    }
    group_run run = start_run(p, src, scratch);
    while (next_group(&run)) {
        const int64_t width = run.count * p->pixels;
        const ddpi_gemm gemm = {.trans_b = true,
                                .m = p->out_c,
                                .n = p->taps,
                                .k = width,
                                .lda = width,
                                .ldb = width,
                                .ldc = p->taps,
                                .beta = run.first == 0 ? 0.0f : 1.0f};
        ddpi_parallel(threads, p->in_c, gather_channel, &run);
        DDP_TRY(ddpi_sgemm(&gemm, gather_gradients(&run, args->diff_dst), run.columns,
                           args->diff_weights));
    }
    return DDP_OK;
}

static ddp_status backward_data(const conv_gemm_plan *p, const ddp_op_args *args, int threads)
{
    void *diff_src;
    char *scratch = args->scratch;
    DDP_TRY(ddpi_operand_begin(&p->diff_src, args->diff_src, scratch, scratch + p->converter,
                               &diff_src));
    memset(diff_src, 0, (size_t)(p->n * p->in_c * p->in_h * p->in_w) * sizeof(float));
    group_run run = start_run(p, diff_src, scratch);
    while (next_group(&run)) {
        const int64_t width = run.count * p->pixels;
        const ddpi_gemm gemm = {.trans_a = true,
                                .m = p->taps,
                                .n = width,
                                .k = p->out_c,
                                .lda = p->taps,
                                .ldb = width,
                                .ldc = width};
        DDP_TRY(
            ddpi_sgemm(&gemm, args->weights, gather_gradients(&run, args->diff_dst), run.columns));
        ddpi_parallel(threads, p->in_c, scatter_channel, &run);
    }
    return ddpi_operand_end(&p->diff_src, args->diff_src, scratch, scratch + p->converter);
}

static ddp_status conv_gemm_run(ddpi_cpu_plan *base, ddp_op_pass pass, const ddp_op_args *args)
{
    const conv_gemm_plan *plan = (conv_gemm_plan *)base;
    const int threads = base->base.device->opts.threads;
    if (pass == DDP_PASS_FORWARD) {
        base->masked = NULL;
        return forward(plan, args, threads);
    }
    if (plan->conv->relu && base->masked != args->diff_dst)
        ddpi_relu_mask(threads, args->diff_dst, args->dst, base->base.dst->bytes / sizeof(float));
    base->masked = pass == DDP_PASS_BACKWARD_WEIGHTS ? args->diff_dst : NULL;
    return pass == DDP_PASS_BACKWARD_WEIGHTS ? backward_weights(plan, args, threads)
                                             : backward_data(plan, args, threads);
}

static void conv_gemm_destroy(ddpi_cpu_plan *base)
{
    conv_gemm_plan *plan = (conv_gemm_plan *)base;
    ddpi_operand_destroy(&plan->src);
    ddpi_operand_destroy(&plan->diff_src);
}

/* ---- creation ---- */

static void set_sizes(conv_gemm_plan *plan, const ddpi_plan_parts *parts)
{
    const int64_t *src = parts->src->shape.dims, *dst = parts->dst_shape.dims;
    plan->conv = &plan->base.base.desc.u.conv2d;
    plan->n = src[0];
    plan->in_c = src[1];
    plan->in_h = src[2];
    plan->in_w = src[3];
    plan->out_c = dst[1];
    plan->out_h = dst[2];
    plan->out_w = dst[3];
    plan->taps = ddp_shape_count(&parts->weight_shape) / plan->out_c;
    plan->pixels = plan->out_h * plan->out_w;
    const int64_t image_bytes = plan->taps * plan->pixels * (int64_t)sizeof(float);
    const int64_t group =
        ddpi_min(ddpi_ceil_div(WANT_PIXELS, plan->pixels), COLUMN_BYTES / image_bytes);
    plan->group = ddpi_max(ddpi_min(group, plan->n), 1);
}

static ddp_status make_scratch(conv_gemm_plan *plan, const ddpi_plan_parts *parts)
{
    size_t bytes = 0;
    const size_t width = (size_t)(plan->group * plan->pixels) * sizeof(float);
    DDP_TRY(ddpi_source_operands(parts, DDP_F32, &bytes, &plan->src, &plan->diff_src));
    plan->columns = ddpi_take(&bytes, (size_t)plan->taps * width);
    plan->product = ddpi_take(&bytes, (size_t)plan->out_c * width);
    plan->converter = ddpi_take_converter(&bytes, &plan->src, &plan->diff_src);
    plan->base.base.scratch_bytes = bytes;
    return DDP_OK;
}

ddp_status ddpi_conv_gemm_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    static const ddpi_cpu_op op = {conv_gemm_run, conv_gemm_destroy};
    ddpi_cpu_plan *base;
    ddp_status st;
    DDP_TRY(ddpi_plan_alloc(parts, &op, sizeof(conv_gemm_plan), &base));
    set_sizes((conv_gemm_plan *)base, parts);
    DDP_TRY_GOTO(st, make_scratch((conv_gemm_plan *)base, parts), err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->dst_shape, &base->base.dst),
                 err_plan);
    DDP_TRY_GOTO(st, ddpi_layout_plain(parts->device, &parts->weight_shape, &base->base.weights),
                 err_plan);
    snprintf(base->base.impl, sizeof base->base.impl, "gemm:im2col");
    *plan_out = base;
    return DDP_OK;
err_plan:
    ddpi_plan_free(base);
    return st;
}
