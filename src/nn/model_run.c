/* model_run.c - forward, backward and inference over a plan set. Allocates nothing, except for the
 * export that tests use. One thread. */
#include <string.h>

#include "nn/model_impl.h"

static void *at(const ddp_model *model, size_t offset)
{
    return model->arena + offset;
}

static ddpi_pass pass_of(const ddp_model *model, const ddpi_plan_set *set, int index,
                         const float *inputs)
{
    const ddpi_node *node = &model->nodes[index];
    const ddpi_node_plan *plan = &set->nodes[index];
    ddpi_pass pass = {
        .stream = ddp_device_main_stream(model->device),
        .params = model->params,
        .grads = model->grads,
        .table = model->table,
        .src = node->source < 0 ? (const void *)inputs : at(model, set->nodes[node->source].dst),
        .dst = at(model, plan->dst),
        .workspace = at(model, plan->workspace),
        .scratch = at(model, set->scratch),
    };
    if (set->training) {
        pass.diff_dst = at(model, plan->diff_dst);
        if (node->need_diff_src)
            pass.diff_src = at(model, set->nodes[node->source].diff_dst);
    }
    return pass;
}

static ddp_status find_set(const ddp_model *model, const ddp_model_input *input, bool training,
                           const ddpi_plan_set **set_out)
{
    *set_out = ddpi_model_find_set(model, input->count, training);
    if (*set_out == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL, "model %s has no plan for %s %lld samples",
                        model->def->name, training ? "training on" : "inference over",
                        (long long)input->count);
    DDP_ASSERT(model->params != NULL);
    return DDP_OK;
}

static ddp_status run_layers(const ddp_model *model, const ddpi_plan_set *set, const float *inputs)
{
    for (int i = 0; i < model->node_count; i++) {
        if (set->nodes[i].plan == NULL)
            continue;
        const ddpi_pass pass = pass_of(model, set, i, inputs);
        ddpi_layer *layer = model->nodes[i].layer;
        DDP_TRY(layer->ops->forward(layer, set->nodes[i].plan, &pass));
    }
    return DDP_OK;
}

static ddp_status run_loss(const ddp_model *model, const ddpi_plan_set *set, const int32_t *labels,
                           double *loss_out)
{
    ddp_stream *stream = ddp_device_main_stream(model->device);
    DDP_ASSERT(labels != NULL);
    const ddp_op_args args = {
        .src = at(model, set->nodes[ddpi_model_last(model)].dst),
        .diff_src = at(model, set->loss_diff),
        .workspace = at(model, set->loss_workspace),
        .scratch = at(model, set->scratch),
        .labels = labels,
        .loss = model->loss,
    };
    DDP_TRY(ddp_device_zero(model->device, stream, model->loss, sizeof *model->loss));
    DDP_TRY(ddp_op_run(set->loss, DDP_PASS_FORWARD, stream, &args));
    DDP_TRY(ddp_device_copy(model->device, stream, loss_out, model->loss, sizeof *loss_out,
                            DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

ddp_status ddp_model_forward(ddp_model *model, const ddp_model_input *input, double *loss_sum_out)
{
    const ddpi_plan_set *set;
    DDP_TRY(find_set(model, input, true, &set));
    model->awaiting = NULL;
    DDP_TRY(run_layers(model, set, input->inputs));
    DDP_TRY(run_loss(model, set, input->labels, loss_sum_out));
    model->awaiting = set;
    model->awaiting_inputs = input->inputs;
    return DDP_OK;
}

ddp_status ddp_model_backward(ddp_model *model)
{
    const ddpi_plan_set *set = model->awaiting;
    if (set == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL, "model %s: a backward without a forward before it",
                        model->def->name);
    DDP_ASSERT(model->grads != NULL);
    model->awaiting = NULL;
    ddp_param_table_begin(model->table);
    for (int i = model->node_count - 1; i >= 0; i--) {
        if (set->nodes[i].plan == NULL || !model->nodes[i].backward)
            continue;
        const ddpi_pass pass = pass_of(model, set, i, model->awaiting_inputs);
        ddpi_layer *layer = model->nodes[i].layer;
        DDP_TRY(layer->ops->backward(layer, set->nodes[i].plan, &pass));
    }
    return ddp_param_table_end(model->table);
}

ddp_status ddp_model_infer(ddp_model *model, const ddp_model_input *input, const float **logits_out,
                           double *loss_sum)
{
    const ddpi_plan_set *set;
    DDP_TRY(find_set(model, input, false, &set));
    model->awaiting = NULL; /* the arena is shared */
    DDP_TRY(run_layers(model, set, input->inputs));
    if (loss_sum != NULL) {
        double loss;
        DDP_TRY(run_loss(model, set, input->labels, &loss));
        *loss_sum += loss;
    }
    const void *logits = at(model, set->nodes[ddpi_model_last(model)].dst);
    if (set->logits != NULL) {
        const ddp_op_args args = {
            .src = logits, .dst = at(model, set->plain_logits), .scratch = at(model, set->scratch)};
        DDP_TRY(ddp_op_run(set->logits, DDP_PASS_FORWARD, ddp_device_main_stream(model->device),
                           &args));
        logits = args.dst;
    }
    *logits_out = logits;
    return DDP_OK;
}

ddp_status ddp_model_export_output(ddp_model *model, const char *name, float *plain, size_t count)
{
    const ddpi_plan_set *set = model->awaiting;
    if (set == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL,
                        "model %s: outputs are there after a training forward only",
                        model->def->name);
    for (int i = 0; i < model->node_count; i++) {
        const ddpi_node *node = &model->nodes[i];
        if (strcmp(node->layer->spec.name, name) != 0)
            continue;
        const ddp_shape shape = ddpi_model_shape(model, i, set->batch);
        if (count != (size_t)ddp_shape_count(&shape))
            return DDP_FAIL(DDP_ERR_SHAPE, "layer %s: its output has %lld elements, not %zu", name,
                            (long long)ddp_shape_count(&shape), count);
        const int holder = node->absorbed ? node->source : i;
        if (holder < 0) /* the samples themselves */
            return ddp_device_copy(model->device, ddp_device_main_stream(model->device), plain,
                                   model->awaiting_inputs, count * sizeof *plain, DDP_COPY_TO_HOST);
        return ddp_layout_export(model->device, set->nodes[holder].plan->dst,
                                 at(model, set->nodes[holder].dst), plain);
    }
    return DDP_FAIL(DDP_ERR_SHAPE, "model %s has no layer %s", model->def->name, name);
}
