/* model_watch.c - shows what the steps of a training pass make. For finding faults: everything is
 * copied to the host. One thread. */
#include "ddp/memory.h"
#include "nn/model_impl.h"

void ddp_model_watch(ddp_model *model, ddp_model_watch_fn fn, void *arg)
{
    model->watch = fn;
    model->watch_arg = arg;
}

static ddp_status show_values(const ddp_model *model, ddp_model_sight sight,
                              const ddp_layout *layout, const void *values)
{
    float *plain;
    sight.count = (size_t)ddp_shape_count(ddp_layout_shape(layout));
    DDP_TRY(DDP_ALLOC(plain, sight.count));
    ddp_status st = ddp_layout_export(model->device, layout, values, plain);
    sight.values = plain;
    if (st == DDP_OK)
        st = model->watch(model->watch_arg, &sight);
    ddp_free(plain);
    return st;
}

static ddp_status show_params(const ddp_model *model, const ddpi_layer *layer)
{
    for (int i = 0; i < ddp_param_table_count(model->table); i++) {
        const ddp_param *p = ddp_param_table_at(model->table, i);
        const ddp_model_sight sight = {.kind = "gradient", .name = p->name};
        if (p->init_number >= layer->first_init_number &&
            p->init_number < layer->first_init_number + (uint32_t)layer->param_count)
            DDP_TRY(show_values(model, sight, p->layout, model->grads + p->offset));
    }
    return DDP_OK;
}

static ddp_status show_backward(const ddp_model *model, const ddpi_plan_set *set,
                                const ddpi_step *step, const ddpi_pass *pass)
{
    const ddpi_node *node = &model->nodes[step->node];
    const int becomes = set->plans[step->node]->diff_dst_becomes;
    DDP_TRY(show_params(model, node->layer));
    for (int i = 0; i < node->sources; i++) {
        const void *values = i == becomes ? pass->diff_dst : pass->diff_src[i];
        const int source = node->source[i];
        if (values == NULL || source < 0)
            continue;
        const ddp_model_sight sight = {.kind = "gradient of the output",
                                       .name = model->nodes[source].layer->spec.name,
                                       .samples = set->batch};
        DDP_TRY(show_values(model, sight, set->plans[source]->dst, values));
    }
    return DDP_OK;
}

ddp_status ddpi_model_show(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step,
                           const ddpi_pass *pass)
{
    const ddp_model_sight sight = {
        .kind = "output", .name = model->nodes[step->node].layer->spec.name, .samples = set->batch};
    if (step->kind == DDPI_STEP_BACKWARD)
        return show_backward(model, set, step, pass);
    if (step->kind != DDPI_STEP_FORWARD || !set->training)
        return DDP_OK;
    return show_values(model, sight, set->plans[step->node]->dst, pass->dst);
}
