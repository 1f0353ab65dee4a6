/* op_layer.c - everything that layers of one operation share: shapes, plans, passes, parameters.
 *
 * The first plan chooses the layout of the weights, which the layer keeps and gives to every later
 * plan. In a backward the weights' pass comes first, since a fused relu masks diff_dst there; the
 * parameters are announced after the last pass that reads them. One thread. */
#include "nn/op_layer.h"

#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"

typedef struct op_layer_plan {
    ddpi_layer_plan base;
    ddp_op_plan *op;
} op_layer_plan;

ddp_status ddpi_op_layer_init(ddpi_op_layer *layer, const ddpi_layer_ops *ops,
                              const ddp_layer_spec *spec, const ddp_op_desc *desc, bool has_bias)
{
    char *name;
    DDP_TRY(ddp_strdup(spec->name, &name));
    layer->base.ops = ops;
    layer->base.spec = *spec;
    layer->base.spec.type = ops->type;
    layer->base.spec.name = name;
    layer->desc = *desc;
    layer->has_bias = has_bias;
    return DDP_OK;
}

ddp_status ddpi_op_layer_create(const ddpi_layer_ops *ops, const ddp_layer_spec *spec,
                                const ddp_op_desc *desc, bool has_bias, ddpi_layer **layer_out)
{
    ddpi_op_layer *layer;
    DDP_TRY(DDP_ALLOC(layer, 1));
    const ddp_status st = ddpi_op_layer_init(layer, ops, spec, desc, has_bias);
    if (st != DDP_OK) {
        ddp_free(layer);
        return st;
    }
    *layer_out = &layer->base;
    return DDP_OK;
}

bool ddpi_op_layer_is(const ddpi_layer *other, ddpi_side side, const ddpi_layer_ops *want_ops,
                      ddpi_side want_side)
{
    return side == want_side && other->ops == want_ops;
}

bool ddpi_op_layer_absorb_none(ddpi_layer *layer, const ddpi_layer *other, ddpi_side side)
{
    (void)layer, (void)other, (void)side;
    return false;
}

void ddpi_op_layer_destroy(ddpi_layer *base)
{
    ddpi_op_layer *layer = (ddpi_op_layer *)base;
    ddp_layout_unref(layer->weight_layout);
    ddp_layout_unref(layer->bias_layout);
    ddp_free((char *)layer->base.spec.name);
    ddp_free(layer);
}

ddp_status ddpi_op_layer_infer(ddpi_layer *base, const ddp_shape *const src[DDPI_MAX_SOURCES],
                               ddp_shape *dst_out)
{
    ddpi_op_layer *layer = (ddpi_op_layer *)base;
    DDP_TRY(ddp_op_infer(&layer->desc, src[0], dst_out, &layer->weight_shape));
    base->param_count = 0;
    base->param_elements = 0;
    if (layer->weight_shape.ndim == 0)
        return DDP_OK;
    base->param_count = layer->has_bias ? 2 : 1;
    base->param_elements = ddp_shape_count(&layer->weight_shape);
    if (layer->has_bias)
        base->param_elements += layer->weight_shape.dims[0];
    return DDP_OK;
}

ddp_status ddpi_op_layer_flops(const ddpi_layer *base, const ddp_shape *src, bool need_diff_src,
                               double flops_out[2])
{
    const ddpi_op_layer *layer = (const ddpi_op_layer *)base;
    double pass;
    DDP_TRY(ddp_op_flops(&layer->desc, src, &pass));
    flops_out[0] = pass;
    flops_out[1] = (base->param_count > 0 ? pass : 0) + (need_diff_src ? pass : 0);
    return DDP_OK;
}

/* ---- plans ---- */

static ddp_status fix_layouts(ddpi_op_layer *layer, ddp_device *device, const ddp_op_plan *op)
{
    if (layer->base.param_count == 0 || layer->weight_layout != NULL)
        return DDP_OK;
    if (layer->has_bias && layer->bias_layout == NULL) {
        const ddp_shape shape = {1, {layer->weight_shape.dims[0]}};
        DDP_TRY(ddp_layout_plain(device, &shape, &layer->bias_layout));
    }
    layer->weight_layout = ddp_layout_ref(ddp_op_plan_weights(op));
    return DDP_OK;
}

ddp_status ddpi_op_layer_plan(ddpi_layer *base, const ddpi_plan_opts *opts,
                              ddpi_layer_plan **plan_out)
{
    ddpi_op_layer *layer = (ddpi_op_layer *)base;
    op_layer_plan *plan;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(plan, 1));
    layer->device = opts->device;
    ddp_op_desc desc = layer->desc;
    desc.training = opts->training;
    desc.need_diff_src = opts->need_diff_src[0];
    desc.compute = opts->compute;
    desc.src2 = opts->src[1];
    DDP_TRY_GOTO(
        st, ddp_op_plan_create(opts->device, &desc, opts->src[0], layer->weight_layout, &plan->op),
        err_free);
    DDP_TRY_GOTO(st, fix_layouts(layer, opts->device, plan->op), err_plan);
    plan->base.dst = ddp_op_plan_dst(plan->op);
    plan->base.workspace_bytes = ddp_op_plan_workspace_bytes(plan->op);
    plan->base.scratch_bytes = ddp_op_plan_scratch_bytes(plan->op);
    plan->base.impl = ddp_op_plan_impl(plan->op);
    plan->base.training = opts->training;
    plan->base.reads_src[0] = layer->reads_src;
    plan->base.reads_dst = layer->reads_dst;
    plan->base.diff_dst_becomes = DDPI_NO_SOURCE;
    plan->base.cheap = layer->cheap;
    *plan_out = &plan->base;
    return DDP_OK;
err_plan:
    ddp_op_plan_destroy(plan->op);
err_free:
    ddp_free(plan);
    return st;
}

void ddpi_op_layer_plan_destroy(ddpi_layer_plan *base)
{
    op_layer_plan *plan = (op_layer_plan *)base;
    ddp_op_plan_destroy(plan->op);
    ddp_free(plan);
}

/* ---- parameters ---- */

static ddp_status add_param(const ddpi_op_layer *layer, ddp_param_table *table, bool bias,
                            int *index_out)
{
    ddp_param param = {.use_count = 1};
    const char *suffix = bias ? "bias" : "weight";
    const int bytes =
        snprintf(param.name, sizeof param.name, "%s.%s", layer->base.spec.name, suffix);
    DDP_ASSERT(bytes > 0 && bytes < (int)sizeof param.name); /* checked when the layer was added */
    if (bias) {
        param.shape = (ddp_shape){1, {layer->weight_shape.dims[0]}};
        param.layout = layer->bias_layout;
        param.flags = DDP_PARAM_TRAINABLE;
        param.init_number = layer->base.first_init_number + 1;
        param.init = layer->base.spec.bias_init;
    } else {
        param.shape = layer->weight_shape;
        param.layout = layer->weight_layout;
        /* A norm's weights are scales around 1: decay would pull them to 0. */
        param.flags =
            DDP_PARAM_TRAINABLE | (layer->weight_shape.ndim > 1 ? (unsigned)DDP_PARAM_DECAY : 0);
        param.init_number = layer->base.first_init_number;
        param.init = layer->base.spec.weight_init;
    }
    return ddp_param_table_add(table, &param, index_out);
}

ddp_status ddpi_op_layer_add_params(ddpi_layer *base, ddp_param_table *table)
{
    ddpi_op_layer *layer = (ddpi_op_layer *)base;
    if (base->param_count == 0)
        return DDP_OK;
    DDP_TRY(add_param(layer, table, false, &layer->weight_index));
    layer->weight_offset = ddp_param_table_at(table, layer->weight_index)->offset;
    if (!layer->has_bias)
        return DDP_OK;
    DDP_TRY(add_param(layer, table, true, &layer->bias_index));
    layer->bias_offset = ddp_param_table_at(table, layer->bias_index)->offset;
    return DDP_OK;
}

/* ---- passes ---- */

ddp_op_plan *ddpi_op_layer_plan_op(const ddpi_layer_plan *plan)
{
    return ((const op_layer_plan *)plan)->op;
}

ddp_op_args ddpi_op_layer_args(const ddpi_op_layer *layer, const ddpi_pass *pass)
{
    ddp_op_args args = {
        .src = pass->src[0],
        .src2 = pass->src[1],
        .dst = pass->dst,
        .diff_src = pass->diff_src[0],
        .diff_src2 = pass->diff_src[1],
        .diff_dst = pass->diff_dst,
        .diff_dst2 = pass->diff_dst2,
        .workspace = pass->workspace,
        .scratch = pass->scratch,
    };
    if (layer->base.param_count == 0)
        return args;
    args.weights = pass->params + layer->weight_offset;
    if (pass->grads != NULL)
        args.diff_weights = pass->grads + layer->weight_offset;
    if (layer->has_bias) {
        args.bias = pass->params + layer->bias_offset;
        if (pass->grads != NULL)
            args.diff_bias = pass->grads + layer->bias_offset;
    }
    return args;
}

ddp_status ddpi_op_layer_forward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    const ddp_op_args args = ddpi_op_layer_args((ddpi_op_layer *)base, pass);
    return ddp_op_run(((op_layer_plan *)plan)->op, DDP_PASS_FORWARD, pass->stream, &args);
}

static bool is_trainable(const ddpi_pass *pass, int index)
{
    return (ddp_param_table_at(pass->table, index)->flags & DDP_PARAM_TRAINABLE) != 0;
}

/* A layer whose parameters are all frozen: no work for their gradients, which are zeros. */
static ddp_status skip_weights(const ddpi_op_layer *layer, const ddpi_pass *pass)
{
    const int indices[2] = {layer->weight_index, layer->bias_index};
    for (int i = 0; i < (layer->has_bias ? 2 : 1); i++) {
        const ddp_param *param = ddp_param_table_at(pass->table, indices[i]);
        DDP_TRY(ddp_device_zero(layer->device, pass->stream, pass->grads + param->offset,
                                param->count * sizeof(float)));
    }
    return DDP_OK;
}

ddp_status ddpi_op_layer_backward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    const ddpi_op_layer *layer = (ddpi_op_layer *)base;
    ddp_op_plan *op = ((op_layer_plan *)plan)->op;
    const ddp_op_args args = ddpi_op_layer_args(layer, pass);
    const bool trains =
        base->param_count > 0 && (is_trainable(pass, layer->weight_index) ||
                                  (layer->has_bias && is_trainable(pass, layer->bias_index)));
    if (trains)
        DDP_TRY(ddp_op_run(op, DDP_PASS_BACKWARD_WEIGHTS, pass->stream, &args));
    else if (base->param_count > 0)
        DDP_TRY(skip_weights(layer, pass));
    if (pass->diff_src[0] != NULL)
        DDP_TRY(ddp_op_run(op, DDP_PASS_BACKWARD_DATA, pass->stream, &args));
    return ddpi_op_layer_params_done(layer, pass);
}

ddp_status ddpi_op_layer_params_done(const ddpi_op_layer *layer, const ddpi_pass *pass)
{
    if (layer->base.param_count == 0)
        return DDP_OK;
    DDP_TRY(ddp_param_grad_done(pass->table, layer->weight_index));
    return layer->has_bias ? ddp_param_grad_done(pass->table, layer->bias_index) : DDP_OK;
}
