/* cpu_plan.c - making, running and destroying plans of the CPU device: what all kinds share.
 * A plan is used by one stream at a time. */
#include "ddp/memory.h"
#include "device/cpu/cpu_impl.h"

ddp_status ddpi_plan_alloc(const ddpi_plan_parts *parts, const ddpi_cpu_op *op, size_t struct_bytes,
                           ddpi_cpu_plan **plan_out)
{
    void *memory;
    DDP_TRY(ddp_alloc_bytes(1, struct_bytes, &memory));
    ddpi_cpu_plan *plan = memory;
    plan->op = op;
    plan->base.device = parts->device;
    plan->base.desc = *parts->desc;
    plan->base.src = ddp_layout_ref(parts->src);
    plan->base.desc.src2 = ddp_layout_ref(parts->desc->src2);
    *plan_out = plan;
    return DDP_OK;
}

void ddpi_plan_free(ddpi_cpu_plan *plan)
{
    if (plan->op->destroy != NULL)
        plan->op->destroy(plan);
    ddp_layout_unref(plan->base.src);
    ddp_layout_unref(plan->base.desc.src2);
    ddp_layout_unref(plan->base.dst);
    ddp_layout_unref(plan->base.weights);
    ddp_free(plan);
}

ddp_status ddpi_plan_create(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                            ddp_layout *weights, ddp_op_plan **plan_out)
{
    static const ddpi_plan_creator creators[DDP_OP_KIND_COUNT] = {
        [DDP_OP_CONV2D] = ddpi_conv_create,     [DDP_OP_LINEAR] = ddpi_linear_create,
        [DDP_OP_RELU] = ddpi_relu_create,       [DDP_OP_POOL2D] = ddpi_pool_create,
        [DDP_OP_RESHAPE] = ddpi_reshape_create, [DDP_OP_SOFTMAX_XENT] = ddpi_softmax_create,
        [DDP_OP_NORM] = ddpi_norm_create,       [DDP_OP_ADD] = ddpi_add_create,
        [DDP_OP_DROPOUT] = ddpi_dropout_create,
    };
    ddpi_plan_parts parts = {.device = device, .desc = desc, .src = src, .weights = weights};
    ddpi_cpu_plan *plan;
    DDP_TRY(ddp_op_infer(desc, &src->shape, &parts.dst_shape, &parts.weight_shape));
    DDP_TRY(creators[desc->kind](&parts, &plan));
    *plan_out = &plan->base;
    return DDP_OK;
}

void ddpi_plan_destroy(ddp_op_plan *plan)
{
    ddpi_plan_free((ddpi_cpu_plan *)plan);
}

typedef struct run_payload {
    ddpi_cpu_plan *plan;
    ddp_op_pass pass;
    ddp_op_args args;
    ddp_norm_state norm; /* args.norm is the caller's */
} run_payload;

_Static_assert(sizeof(run_payload) <= DDPI_TASK_BYTES, "a pass fits into a stream's slot");

static ddp_status run(const void *payload)
{
    const run_payload *task = payload;
    ddp_op_args args = task->args;
    args.norm = args.norm != NULL ? &task->norm : NULL;
    return task->plan->op->run(task->plan, task->pass, &args);
}

ddp_status ddpi_plan_run(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                         const ddp_op_args *args)
{
    run_payload task = {.plan = (ddpi_cpu_plan *)plan, .pass = pass, .args = *args};
    if (args->norm != NULL)
        task.norm = *args->norm;
    return ddpi_cpu_submit(stream, run, &task, sizeof task);
}
