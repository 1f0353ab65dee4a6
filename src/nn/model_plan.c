/* model_plan.c - plan sets: plans of all layers for one batch size, and where their buffers lie.
 *
 * All sets share one arena, as large as the largest of them; a set's buffers are offsets into it. A
 * training set keeps every output until backward. Gradients of outputs, and in a set for inference
 * the outputs too, are dead as soon as the next layer has run, so two buffers take turns. Scratch
 * memory is shared by all passes. The first set fixes the layouts of the weights, and with them the
 * parameter table. One thread. */
#include <stdio.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

/* Two buffers that take turns; each is as large as what it ever holds. */
typedef struct turns {
    size_t bytes[2];
    int next;
} turns;

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

static int turn(turns *buffers, size_t bytes)
{
    const int mine = buffers->next;
    buffers->next = 1 - mine;
    if (bytes > buffers->bytes[mine])
        buffers->bytes[mine] = bytes;
    return mine;
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
    if (set->nodes != NULL)
        for (int i = 0; i < model->node_count; i++)
            if (set->nodes[i].plan != NULL)
                model->nodes[i].layer->ops->plan_destroy(set->nodes[i].plan);
    ddp_op_plan_destroy(set->loss);
    ddp_op_plan_destroy(set->logits);
    ddp_free(set->nodes);
    ddp_free(set);
}

/* ---- making plans ---- */

static ddp_status plan_layers(const ddp_model *model, ddpi_plan_set *set, ddp_layout *input)
{
    for (int i = 0; i < model->node_count; i++) {
        const ddpi_node *node = &model->nodes[i];
        if (node->absorbed)
            continue;
        const ddpi_plan_opts opts = {
            .device = model->device,
            .src = node->source < 0 ? input : set->nodes[node->source].plan->dst,
            .training = set->training,
            .need_diff_src = set->training && node->need_diff_src,
        };
        const ddp_status st = node->layer->ops->plan(node->layer, &opts, &set->nodes[i].plan);
        if (st != DDP_OK)
            return ddp_status_prefix(st, "layer %s (%s)", node->layer->spec.name,
                                     node->layer->spec.type);
    }
    return DDP_OK;
}

static ddp_status plan_loss(const ddp_model *model, ddpi_plan_set *set)
{
    ddp_layout *logits = set->nodes[ddpi_model_last(model)].plan->dst;
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

/* ---- placing buffers ---- */

static void place_kept_outputs(const ddp_model *model, ddpi_plan_set *set)
{
    for (int i = 0; i < model->node_count; i++) {
        ddpi_node_plan *node = &set->nodes[i];
        if (node->plan == NULL)
            continue;
        node->dst = take(&set->bytes, ddp_layout_bytes(node->plan->dst));
        node->workspace = take(&set->bytes, node->plan->workspace_bytes);
    }
}

/* Valid for a chain: a node reads only the output of the node before. */
static void place_passing_outputs(const ddp_model *model, ddpi_plan_set *set)
{
    turns buffers = {0};
    size_t workspace_bytes = 0;
    for (int i = 0; i < model->node_count; i++) {
        ddpi_node_plan *node = &set->nodes[i];
        if (node->plan == NULL)
            continue;
        node->dst = (size_t)turn(&buffers, ddp_layout_bytes(node->plan->dst));
        workspace_bytes = max_size(workspace_bytes, node->plan->workspace_bytes);
    }
    const size_t starts[2] = {take(&set->bytes, buffers.bytes[0]),
                              take(&set->bytes, buffers.bytes[1])};
    const size_t workspace = take(&set->bytes, workspace_bytes);
    for (int i = 0; i < model->node_count; i++) {
        set->nodes[i].dst = starts[set->nodes[i].dst];
        set->nodes[i].workspace = workspace;
    }
}

/* In backward order: the loss writes the first gradient, each node the one of its source. */
static void place_gradients(const ddp_model *model, ddpi_plan_set *set)
{
    turns buffers = {0};
    for (int i = model->node_count - 1; i >= 0; i--) {
        ddpi_node_plan *node = &set->nodes[i];
        if (node->plan != NULL)
            node->diff_dst = (size_t)turn(&buffers, ddp_layout_bytes(node->plan->dst));
        if (!model->nodes[i].need_diff_src && !model->nodes[i].absorbed)
            break;
    }
    const size_t starts[2] = {take(&set->bytes, buffers.bytes[0]),
                              take(&set->bytes, buffers.bytes[1])};
    for (int i = 0; i < model->node_count; i++)
        set->nodes[i].diff_dst = starts[set->nodes[i].diff_dst];
    set->loss_diff = set->nodes[ddpi_model_last(model)].diff_dst;
}

static void place(const ddp_model *model, ddpi_plan_set *set)
{
    size_t scratch_bytes = ddp_op_plan_scratch_bytes(set->loss);
    for (int i = 0; i < model->node_count; i++)
        if (set->nodes[i].plan != NULL)
            scratch_bytes = max_size(scratch_bytes, set->nodes[i].plan->scratch_bytes);
    if (set->training) {
        place_kept_outputs(model, set);
        place_gradients(model, set);
    } else {
        place_passing_outputs(model, set);
        ddp_layout *logits = set->nodes[ddpi_model_last(model)].plan->dst;
        set->loss_diff = take(&set->bytes, ddp_layout_bytes(logits));
    }
    set->loss_workspace = take(&set->bytes, ddp_op_plan_workspace_bytes(set->loss));
    if (set->logits != NULL) {
        scratch_bytes = max_size(scratch_bytes, ddp_op_plan_scratch_bytes(set->logits));
        set->plain_logits = take(&set->bytes, ddp_layout_bytes(ddp_op_plan_dst(set->logits)));
    }
    set->scratch = take(&set->bytes, scratch_bytes);
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

/* ---- the parameter table ---- */

/* Backward visits the nodes from last to first. */
static ddp_status make_table(ddp_model *model)
{
    ddp_param_table *table;
    DDP_TRY(ddp_param_table_create(&table));
    for (int i = model->node_count - 1; i >= 0; i--) {
        ddpi_layer *layer = model->nodes[i].layer;
        const ddp_status st = layer->ops->add_params(layer, table);
        if (st != DDP_OK) {
            ddp_param_table_destroy(table);
            return ddp_status_prefix(st, "layer %s (%s)", layer->spec.name, layer->spec.type);
        }
    }
    model->table = table;
    return DDP_OK;
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
    DDP_TRY_GOTO(st, DDP_ALLOC(set->nodes, (size_t)model->node_count), err_set);
    DDP_TRY_GOTO(st, plan_all(model, set), err_set);
    place(model, set);
    if (model->table == NULL)
        DDP_TRY_GOTO(st, make_table(model), err_set);
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
