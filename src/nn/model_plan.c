/* model_plan.c - plan sets: plans of all layers for one batch size, and the arena they share.
 *
 * All sets share one arena, as large as the largest of them; a set's buffers are offsets into it
 * (model_schedule.c, model_place.c). The first set fixes the layouts of the weights, and with them
 * the parameter table. One thread. */
#include <stdio.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

static size_t aligned(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static size_t take(size_t *end, size_t bytes)
{
    const size_t offset = *end;
    *end += aligned(bytes);
    return offset;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

ddpi_plan_set *ddpi_model_find_set(const ddp_model *model, int64_t batch, bool training)
{
    for (ddpi_plan_set *set = model->sets; set != NULL; set = set->next)
        if (set->batch == batch && set->training == training)
            return set;
    return NULL;
}

void ddpi_plan_set_destroy(const ddp_model *model, ddpi_plan_set *set)
{
    if (set == NULL)
        return;
    if (set->plans != NULL)
        for (int i = 0; i < model->node_count; i++)
            if (set->plans[i] != NULL)
                model->nodes[i].layer->ops->plan_destroy(set->plans[i]);
    ddp_op_plan_destroy(set->loss);
    ddp_op_plan_destroy(set->logits);
    ddpi_schedule_free(&set->schedule);
    ddp_free(set->plans);
    ddp_free(set);
}

/* ---- making plans ---- */

static ddp_status plan_layers(const ddp_model *model, ddpi_plan_set *set, ddp_layout *input)
{
    for (int i = 0; i < model->node_count; i++) {
        const ddpi_node *node = &model->nodes[i];
        if (node->absorbed)
            continue;
        ddpi_plan_opts opts = {
            .device = model->device,
            .training = set->training,
            .compute = node->layer->f32 ? DDP_F32 : (ddp_dtype)model->opts.compute,
        };
        for (int k = 0; k < node->sources; k++) {
            const int source = node->source[k];
            opts.src[k] = source < 0 ? input : set->plans[source]->dst;
            opts.need_diff_src[k] = set->training && node->need_diff_src[k];
        }
        const ddp_status st = node->layer->ops->plan(node->layer, &opts, &set->plans[i]);
        if (st != DDP_OK)
            return ddp_status_prefix(st, "layer %s (%s)", node->layer->spec.name,
                                     node->layer->spec.type);
    }
    return DDP_OK;
}

static ddp_status plan_loss(const ddp_model *model, ddpi_plan_set *set)
{
    ddp_layout *logits = set->plans[ddpi_model_last(model)]->dst;
    const ddp_op_desc loss = {
        .kind = DDP_OP_SOFTMAX_XENT,
        .training = set->training,
        .need_diff_src = set->training,
        .u.xent = {.label_smoothing = model->opts.label_smoothing},
    };
    DDP_TRY(ddp_op_plan_create(model->device, &loss, logits, NULL, &set->loss));
    if (set->training || ddp_layout_is_plain(logits))
        return DDP_OK;
    const ddp_op_desc to_plain = {.kind = DDP_OP_RESHAPE};
    return ddp_op_plan_create(model->device, &to_plain, logits, NULL, &set->logits);
}

static ddp_status plan_all(const ddp_model *model, ddpi_plan_set *set)
{
    const ddp_shape shape = ddpi_model_shape(model, DDPI_MODEL_INPUT, set->batch);
    ddp_layout *input;
    DDP_TRY(ddp_layout_plain(model->device, &shape, &input));
    ddp_status st = plan_layers(model, set, input);
    if (st == DDP_OK)
        st = plan_loss(model, set);
    ddp_layout_unref(input);
    return st;
}

/* ---- memory ---- */

/* The schedule's buffers, and behind them what only inference uses. */
static ddp_status place(const ddp_model *model, ddpi_plan_set *set)
{
    DDP_TRY(ddpi_schedule_make(model, set));
    set->bytes = set->schedule.bytes;
    if (set->training)
        return DDP_OK;
    size_t scratch_bytes = ddp_op_plan_scratch_bytes(set->loss);
    set->loss_diff = take(&set->bytes, ddp_layout_bytes(set->plans[ddpi_model_last(model)]->dst));
    if (set->logits != NULL) {
        scratch_bytes = max_size(scratch_bytes, ddp_op_plan_scratch_bytes(set->logits));
        set->plain_logits = take(&set->bytes, ddp_layout_bytes(ddp_op_plan_dst(set->logits)));
    }
    set->loss_workspace = take(&set->bytes, ddp_op_plan_workspace_bytes(set->loss));
    set->scratch = take(&set->bytes, scratch_bytes);
    return DDP_OK;
}

/* Takes the new arena before it gives up the old one, so that a failure leaves the model as it was.
 */
static ddp_status grow_arena(ddp_model *model, size_t bytes)
{
    if (bytes <= model->arena_bytes)
        return DDP_OK;
    if (model->awaiting != NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL,
                        "model %s: a plan that needs more memory was asked for between a forward "
                        "and its backward",
                        model->def->name);
    void *arena;
    DDP_TRY(ddp_device_alloc(model->device, bytes, &arena));
    if (model->arena != NULL)
        ddp_device_free(model->device, model->arena, model->arena_bytes);
    model->arena = arena;
    model->arena_bytes = bytes;
    return DDP_OK;
}

/* ---- parameters and running statistics ---- */

/* Backward visits the nodes from last to first; buffers lie in forward order. */
static ddp_status fill_tables(ddp_model *model, ddp_param_table *params, ddp_buffer_table *buffers)
{
    for (int i = model->node_count - 1; i >= 0; i--) {
        ddpi_layer *layer = model->nodes[i].layer;
        const ddp_status st = layer->ops->add_params(layer, params);
        if (st != DDP_OK)
            return ddp_status_prefix(st, "layer %s (%s)", layer->spec.name, layer->spec.type);
    }
    for (int i = 0; i < model->node_count; i++) {
        ddpi_layer *layer = model->nodes[i].layer;
        if (layer->ops->add_buffers != NULL)
            DDP_TRY(layer->ops->add_buffers(layer, buffers));
    }
    return DDP_OK;
}

static ddp_status make_tables(ddp_model *model)
{
    ddp_param_table *params = NULL;
    ddp_buffer_table *buffers = NULL;
    ddp_status st;
    DDP_TRY_GOTO(st, ddp_param_table_create(&params), err);
    DDP_TRY_GOTO(st, ddp_buffer_table_create(&buffers), err);
    DDP_TRY_GOTO(st, fill_tables(model, params, buffers), err);
    model->table = params;
    model->buffers = buffers;
    return DDP_OK;
err:
    ddp_param_table_destroy(params);
    ddp_buffer_table_destroy(buffers);
    return st;
}

ddp_status ddp_model_plan(ddp_model *model, int64_t batch, bool training)
{
    if (batch < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "model %s: a plan for %lld samples", model->def->name,
                        (long long)batch);
    if (ddpi_model_find_set(model, batch, training) != NULL)
        return DDP_OK;
    ddpi_plan_set *set;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(set, 1));
    set->batch = batch;
    set->training = training;
    DDP_TRY_GOTO(st, DDP_ALLOC(set->plans, (size_t)model->node_count), err_set);
    DDP_TRY_GOTO(st, plan_all(model, set), err_set);
    DDP_TRY_GOTO(st, place(model, set), err_set);
    if (model->table == NULL)
        DDP_TRY_GOTO(st, make_tables(model), err_set);
    DDP_TRY_GOTO(st, grow_arena(model, set->bytes), err_set);
    ddpi_plan_set **tail = &model->sets;
    while (*tail != NULL)
        tail = &(*tail)->next;
    *tail = set;
    return DDP_OK;
err_set:
    ddpi_plan_set_destroy(model, set);
    return st;
}
