/* op.c - what an operation does to shapes, and how much work it is. Pure functions; any thread. */
#include "ddp/op.h"

#include <stdio.h>

typedef struct window {
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
} window;

/* Kernel, stride and padding of a sliding window over [n][c][h][w], and the size of its result. */
static ddp_status slide(const char *what, const window *win, const ddp_shape *src,
                        ddp_shape *dst_out)
{
    if (src->ndim != 4) {
        char text[64];
        return DDP_FAIL(DDP_ERR_SHAPE, "%s needs images [n][c][h][w], its input is %s", what,
                        ddp_shape_format(src, text, sizeof text));
    }
    if (win->kernel_h < 1 || win->kernel_w < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "%s with kernel %lldx%lld: at least 1x1 is needed", what,
                        (long long)win->kernel_h, (long long)win->kernel_w);
    if (win->stride_h < 1 || win->stride_w < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "%s with stride %lldx%lld: at least 1x1 is needed", what,
                        (long long)win->stride_h, (long long)win->stride_w);
    if (win->pad_h < 0 || win->pad_w < 0 || win->pad_h >= win->kernel_h ||
        win->pad_w >= win->kernel_w)
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "%s with padding %lldx%lld: 0 or more, and less than the kernel %lldx%lld, "
                        "is needed",
                        what, (long long)win->pad_h, (long long)win->pad_w,
                        (long long)win->kernel_h, (long long)win->kernel_w);
    const int64_t room_h = src->dims[2] + 2 * win->pad_h - win->kernel_h;
    const int64_t room_w = src->dims[3] + 2 * win->pad_w - win->kernel_w;
    if (room_h < 0 || room_w < 0) {
        char pad[48];
        if (win->pad_h == win->pad_w)
            snprintf(pad, sizeof pad, "%lld", (long long)win->pad_h);
        else
            snprintf(pad, sizeof pad, "%lldx%lld", (long long)win->pad_h, (long long)win->pad_w);
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "%s: kernel %lldx%lld does not fit input %lldx%lld with padding %s", what,
                        (long long)win->kernel_h, (long long)win->kernel_w, (long long)src->dims[2],
                        (long long)src->dims[3], pad);
    }
    dst_out->ndim = 4;
    dst_out->dims[0] = src->dims[0];
    dst_out->dims[1] = src->dims[1];
    dst_out->dims[2] = room_h / win->stride_h + 1;
    dst_out->dims[3] = room_w / win->stride_w + 1;
    return DDP_OK;
}

/* Elements of one sample. */
static int64_t features(const ddp_shape *src)
{
    return ddp_shape_count(src) / src->dims[0];
}

static ddp_status infer_conv2d(const ddp_conv2d_desc *conv, const ddp_shape *src,
                               ddp_shape *dst_out, ddp_shape *weights_out)
{
    const window win = {conv->kernel_h, conv->kernel_w, conv->stride_h,
                        conv->stride_w, conv->pad_h,    conv->pad_w};
    if (conv->out_channels < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "convolution to %lld channels: at least 1 is needed",
                        (long long)conv->out_channels);
    DDP_TRY(slide("convolution", &win, src, dst_out));
    dst_out->dims[1] = conv->out_channels;
    *weights_out =
        (ddp_shape){4, {conv->out_channels, src->dims[1], conv->kernel_h, conv->kernel_w}};
    return DDP_OK;
}

static ddp_status infer_linear(const ddp_linear_desc *linear, const ddp_shape *src,
                               ddp_shape *dst_out, ddp_shape *weights_out)
{
    if (linear->out_features < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "linear to %lld features: at least 1 is needed",
                        (long long)linear->out_features);
    *dst_out = (ddp_shape){2, {src->dims[0], linear->out_features}};
    *weights_out = (ddp_shape){2, {linear->out_features, features(src)}};
    return DDP_OK;
}

static ddp_status infer_pool2d(const ddp_pool2d_desc *pool, const ddp_shape *src,
                               ddp_shape *dst_out)
{
    if (pool->global && src->ndim == 4) {
        *dst_out = (ddp_shape){4, {src->dims[0], src->dims[1], 1, 1}};
        return DDP_OK;
    }
    const window win = {pool->kernel_h, pool->kernel_w, pool->stride_h,
                        pool->stride_w, pool->pad_h,    pool->pad_w};
    return slide(pool->global ? "global pooling" : "pooling", &win, src, dst_out);
}

static ddp_status infer_xent(const ddp_xent_desc *xent, const ddp_shape *src)
{
    char text[64];
    if (src->ndim != 2)
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "softmax cross-entropy needs logits [n][classes], its input is %s",
                        ddp_shape_format(src, text, sizeof text));
    if (!(xent->label_smoothing >= 0 && xent->label_smoothing < 1))
        return DDP_FAIL(DDP_ERR_USAGE, "label smoothing %g: 0 or more, and less than 1, is needed",
                        xent->label_smoothing);
    return DDP_OK;
}

static ddp_status infer_norm(const ddp_norm_desc *norm, const ddp_shape *src,
                             ddp_shape *weights_out)
{
    char text[64];
    if (src->ndim != 4)
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "batch normalisation needs images [n][c][h][w], its input is %s",
                        ddp_shape_format(src, text, sizeof text));
    if (!(norm->eps > 0 && norm->eps < 1))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "batch normalisation with eps %g: more than 0, and less than 1, is needed",
                        norm->eps);
    *weights_out = (ddp_shape){1, {src->dims[1]}};
    return DDP_OK;
}

static ddp_status infer_dropout(const ddp_dropout_desc *dropout)
{
    if (!(dropout->rate >= 0 && dropout->rate < 1))
        return DDP_FAIL(DDP_ERR_USAGE, "dropout rate %g: 0 or more, and less than 1, is needed",
                        dropout->rate);
    return DDP_OK;
}

static ddp_status check_source(const ddp_shape *src)
{
    char text[64];
    if (src->ndim < 2 || src->ndim > DDP_MAX_DIMS)
        return DDP_FAIL(DDP_ERR_SHAPE, "an input needs a batch and at least one more dimension");
    for (int i = 0; i < src->ndim; i++)
        if (src->dims[i] < 1)
            return DDP_FAIL(DDP_ERR_SHAPE, "input %s is empty",
                            ddp_shape_format(src, text, sizeof text));
    return DDP_OK;
}

ddp_status ddp_op_infer(const ddp_op_desc *desc, const ddp_shape *src, ddp_shape *dst_out,
                        ddp_shape *weights_out)
{
    ddp_shape dst = *src, weights = {0};
    DDP_TRY(check_source(src));
    switch (desc->kind) {
    case DDP_OP_CONV2D:
        DDP_TRY(infer_conv2d(&desc->u.conv2d, src, &dst, &weights));
        break;
    case DDP_OP_LINEAR:
        DDP_TRY(infer_linear(&desc->u.linear, src, &dst, &weights));
        break;
    case DDP_OP_RELU:
        break;
    case DDP_OP_POOL2D:
        DDP_TRY(infer_pool2d(&desc->u.pool2d, src, &dst));
        break;
    case DDP_OP_RESHAPE:
        dst = (ddp_shape){2, {src->dims[0], features(src)}};
        break;
    case DDP_OP_SOFTMAX_XENT:
        DDP_TRY(infer_xent(&desc->u.xent, src));
        dst = (ddp_shape){0};
        break;
    case DDP_OP_NORM:
        DDP_TRY(infer_norm(&desc->u.norm, src, &weights));
        break;
    case DDP_OP_ADD:
        break;
    case DDP_OP_DROPOUT:
        DDP_TRY(infer_dropout(&desc->u.dropout));
        break;
    default:
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "unknown operation number %d", (int)desc->kind);
    }
    *dst_out = dst;
    *weights_out = weights;
    return DDP_OK;
}

ddp_status ddp_op_flops(const ddp_op_desc *desc, const ddp_shape *src, double *flops_out)
{
    ddp_shape dst, weights;
    DDP_TRY(ddp_op_infer(desc, src, &dst, &weights));
    double flops = 0;
    switch (desc->kind) {
    case DDP_OP_CONV2D: /* each weight is used once for each image and place */
        flops = 2.0 * (double)ddp_shape_count(&weights) *
                (double)(dst.dims[0] * dst.dims[2] * dst.dims[3]);
        break;
    case DDP_OP_LINEAR:
        flops = 2.0 * (double)ddp_shape_count(&weights) * (double)dst.dims[0];
        break;
    case DDP_OP_POOL2D:
        flops = desc->u.pool2d.global
                    ? (double)ddp_shape_count(src)
                    : (double)ddp_shape_count(&dst) *
                          (double)(desc->u.pool2d.kernel_h * desc->u.pool2d.kernel_w);
        break;
    case DDP_OP_NORM: /* statistics take three, the result two */
        flops = 5.0 * (double)ddp_shape_count(src);
        break;
    case DDP_OP_RELU:
    case DDP_OP_ADD:
    case DDP_OP_DROPOUT:
        flops = (double)ddp_shape_count(src);
        break;
    case DDP_OP_SOFTMAX_XENT:
        flops = 4.0 * (double)ddp_shape_count(src);
        break;
    default:
        break;
    }
    *flops_out = flops;
    return DDP_OK;
}
