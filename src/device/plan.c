/* plan.c - the public functions of op.h for layouts, plans and pointwise work: check arguments,
 * then dispatch to the backend. No state; threads as the header says. */
#include "ddp/memory.h"
#include "device/device_impl.h"

/* ---- layouts ---- */

ddp_status ddp_layout_plain(ddp_device *device, const ddp_shape *shape, ddp_layout **layout_out)
{
    if (shape->ndim < 1 || shape->ndim > DDP_MAX_DIMS)
        return DDP_FAIL(DDP_ERR_SHAPE, "a layout needs 1 to %d dimensions, not %d", DDP_MAX_DIMS,
                        shape->ndim);
    for (int i = 0; i < shape->ndim; i++)
        if (shape->dims[i] < 1)
            return DDP_FAIL(DDP_ERR_SHAPE, "dimension %d of a layout is %lld", i,
                            (long long)shape->dims[i]);
    return device->ops->op->layout_plain(device, shape, layout_out);
}

ddp_layout *ddp_layout_ref(ddp_layout *layout)
{
    if (layout != NULL)
        __atomic_fetch_add(&layout->refs, 1, __ATOMIC_RELAXED);
    return layout;
}

void ddp_layout_unref(ddp_layout *layout)
{
    if (layout != NULL && __atomic_sub_fetch(&layout->refs, 1, __ATOMIC_ACQ_REL) == 0)
        layout->device->ops->op->layout_destroy(layout);
}

size_t ddp_layout_bytes(const ddp_layout *layout)
{
    return layout->bytes;
}

const ddp_shape *ddp_layout_shape(const ddp_layout *layout)
{
    return &layout->shape;
}

ddp_dtype ddp_layout_dtype(const ddp_layout *layout)
{
    return layout->dtype;
}

bool ddp_layout_is_plain(const ddp_layout *layout)
{
    return layout->plain;
}

bool ddp_layout_equal(const ddp_layout *a, const ddp_layout *b)
{
    if (a == b)
        return true;
    return a->device->ops == b->device->ops && ddp_shape_equal(&a->shape, &b->shape) &&
           a->bytes == b->bytes && a->device->ops->op->layout_equal(a, b);
}

const char *ddp_layout_name(const ddp_layout *layout)
{
    return layout->name;
}

ddp_status ddp_layout_import(ddp_device *device, const ddp_layout *layout, const float *plain,
                             void *dst)
{
    return device->ops->op->layout_import(device, layout, plain, dst);
}

ddp_status ddp_layout_export(ddp_device *device, const ddp_layout *layout, const void *src,
                             float *plain)
{
    ddp_stream *stream = ddp_device_main_stream(device);
    void *copy;

    if (ddp_device_is_host(device)) {
        DDP_TRY(ddp_stream_sync(stream));
        return ddp_layout_unpack(layout, src, plain);
    }
    DDP_TRY(ddp_alloc_bytes(layout->bytes, 1, &copy));
    ddp_status st = ddp_device_copy(device, stream, copy, src, layout->bytes, DDP_COPY_TO_HOST);
    if (st == DDP_OK)
        st = ddp_stream_sync(stream);
    if (st == DDP_OK)
        st = ddp_layout_unpack(layout, copy, plain);
    ddp_free(copy);
    return st;
}

ddp_status ddp_layout_unpack(const ddp_layout *layout, const void *copy, float *plain)
{
    return layout->device->ops->op->layout_unpack(layout, copy, plain);
}

/* ---- plans ---- */

static ddp_status check_type(const ddp_device *device, ddp_dtype dtype)
{
    DDP_ASSERT(dtype == DDP_F32 || dtype == DDP_BF16 || dtype == DDP_F16);
    if (ddp_device_computes(device, dtype) || (dtype == DDP_BF16 && device->opts.emulate_bf16))
        return DDP_OK;
    if (dtype == DDP_BF16)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "bf16: this processor has no instructions for it; it can be emulated, "
                        "which is slow");
    return DDP_FAIL(DDP_ERR_UNSUPPORTED, "%s: the %s device does not compute in it",
                    ddp_dtype_name(dtype), ddp_device_name(device));
}

ddp_status ddp_op_plan_create(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                              ddp_layout *weights, ddp_op_plan **plan_out)
{
    ddp_shape dst_shape, weight_shape;
    DDP_ASSERT(src->device == device && (weights == NULL || weights->device == device));
    DDP_TRY(ddp_op_infer(desc, &src->shape, &dst_shape, &weight_shape));
    DDP_TRY(check_type(device, desc->compute));
    if (weights != NULL && !ddp_shape_equal(&weights->shape, &weight_shape)) {
        char have[64], want[64];
        return DDP_FAIL(DDP_ERR_SHAPE, "weights are %s, but %s are needed",
                        ddp_shape_format(&weights->shape, have, sizeof have),
                        ddp_shape_format(&weight_shape, want, sizeof want));
    }
    if (desc->src2 != NULL && !ddp_shape_equal(&desc->src2->shape, &src->shape)) {
        char have[64], want[64];
        return DDP_FAIL(DDP_ERR_SHAPE, "the second input is %s, but the first is %s",
                        ddp_shape_format(&desc->src2->shape, have, sizeof have),
                        ddp_shape_format(&src->shape, want, sizeof want));
    }
    return device->ops->op->plan_create(device, desc, src, weights, plan_out);
}

void ddp_op_plan_destroy(ddp_op_plan *plan)
{
    if (plan != NULL)
        plan->device->ops->op->plan_destroy(plan);
}

ddp_layout *ddp_op_plan_dst(const ddp_op_plan *plan)
{
    return plan->dst;
}

ddp_layout *ddp_op_plan_weights(const ddp_op_plan *plan)
{
    return plan->weights;
}

size_t ddp_op_plan_workspace_bytes(const ddp_op_plan *plan)
{
    return plan->workspace_bytes;
}

size_t ddp_op_plan_scratch_bytes(const ddp_op_plan *plan)
{
    return plan->scratch_bytes;
}

const char *ddp_op_plan_impl(const ddp_op_plan *plan)
{
    return plan->impl;
}

/* Whether the plan was made for this pass, so that a caller's slip is named and not computed. */
static ddp_status check_pass(const ddp_op_plan *plan, ddp_op_pass pass)
{
    if (pass == DDP_PASS_FORWARD)
        return DDP_OK;
    if (!plan->desc.training)
        return DDP_FAIL(DDP_ERR_INTERNAL, "a pass of training of a plan that is not for training");
    if (pass == DDP_PASS_STATISTICS)
        return plan->desc.kind == DDP_OP_NORM
                   ? DDP_OK
                   : DDP_FAIL(DDP_ERR_INTERNAL, "statistics of an operation that has none");
    /* An addition's pass serves both of its sources. */
    if (pass == DDP_PASS_BACKWARD_DATA && !plan->desc.need_diff_src &&
        plan->desc.kind != DDP_OP_ADD)
        return DDP_FAIL(DDP_ERR_INTERNAL, "backward data of a plan made without it");
    if (pass == DDP_PASS_BACKWARD_WEIGHTS && plan->weights == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL, "backward weights of an operation that has none");
    if (plan->desc.kind == DDP_OP_SOFTMAX_XENT)
        return DDP_FAIL(DDP_ERR_INTERNAL, "softmax cross-entropy has no backward pass of its own");
    return DDP_OK;
}

ddp_status ddp_op_run(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                      const ddp_op_args *args)
{
    DDP_ASSERT(stream->device == plan->device);
    DDP_TRY(check_pass(plan, pass));
    return plan->device->ops->op->plan_run(plan, pass, stream, args);
}

/* ---- pointwise work ---- */

ddp_status ddp_op_sgd(ddp_device *device, ddp_stream *stream, const ddp_sgd_args *args, float *w,
                      const float *grad, float *buf, size_t count, double *grad_sq)
{
    DDP_ASSERT(stream->device == device && (buf != NULL || args->momentum == 0));
    DDP_ASSERT(args->live == NULL || device->ops->graph != NULL);
    return device->ops->op->sgd(stream, args, w, grad, buf, count, grad_sq);
}

ddp_status ddp_op_adam(ddp_device *device, ddp_stream *stream, ddp_adam_pass pass,
                       const ddp_adam_args *args, const ddp_adam_span *span, double *sums)
{
    DDP_ASSERT(stream->device == device && args->step >= 1);
    DDP_ASSERT(args->live == NULL || device->ops->graph != NULL);
    return device->ops->op->adam(stream, pass, args, span, sums);
}

void ddp_op_sgd_live(const ddp_device *device, const ddp_sgd_args *args, void *live_out)
{
    DDP_ASSERT(device->ops->graph != NULL);
    device->ops->graph->sgd_live(args, live_out);
}

void ddp_op_adam_live(const ddp_device *device, const ddp_adam_args *args, void *live_out)
{
    DDP_ASSERT(device->ops->graph != NULL && args->step >= 1);
    device->ops->graph->adam_live(args, live_out);
}

ddp_status ddp_op_average(ddp_device *device, ddp_stream *stream, float *dst, const float *src,
                          double weight, size_t count)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->average(stream, dst, src, weight, count);
}

ddp_status ddp_op_add(ddp_device *device, ddp_stream *stream, float *dst, const float *src,
                      size_t count)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->add(stream, dst, src, count);
}

ddp_status ddp_op_accumulate(ddp_device *device, ddp_stream *stream, const ddp_layout *layout,
                             void *dst, const void *src)
{
    DDP_ASSERT(stream->device == device && layout->device == device);
    return device->ops->op->accumulate(stream, layout, dst, src);
}

ddp_status ddp_op_norm_running(ddp_device *device, ddp_stream *stream,
                               const ddp_norm_running_args *args)
{
    DDP_ASSERT(stream->device == device && args->channels > 0 && args->count > 0);
    return device->ops->op->norm_running(stream, args);
}

ddp_status ddp_op_to_bf16(ddp_device *device, ddp_stream *stream, uint16_t *dst, const float *src,
                          size_t count, double scale)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->to_bf16(stream, dst, src, count, scale);
}

ddp_status ddp_op_from_bf16(ddp_device *device, ddp_stream *stream, float *dst, const uint16_t *src,
                            size_t count, double scale)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->from_bf16(stream, dst, src, count, scale);
}

ddp_status ddp_op_to_f16(ddp_device *device, ddp_stream *stream, uint16_t *dst, const float *src,
                         size_t count, double scale)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->to_f16(stream, dst, src, count, scale);
}

ddp_status ddp_op_from_f16(ddp_device *device, ddp_stream *stream, float *dst, const uint16_t *src,
                           size_t count, double scale)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->from_f16(stream, dst, src, count, scale);
}

ddp_status ddp_op_sum_squares(ddp_device *device, ddp_stream *stream, const float *src,
                              size_t count, double scale, double *sum_out)
{
    DDP_ASSERT(stream->device == device);
    return device->ops->op->sum_squares(stream, src, count, scale, sum_out);
}

ddp_status ddp_op_label_rank(ddp_device *device, ddp_stream *stream, const float *logits,
                             const int32_t *labels, int64_t n, int64_t classes, int32_t *rank_out)
{
    DDP_ASSERT(stream->device == device && classes >= 1);
    return device->ops->op->label_rank(stream, logits, labels, n, classes, rank_out);
}
