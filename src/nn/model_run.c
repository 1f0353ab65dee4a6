/* model_run.c - forward, backward and inference over a plan set. Allocates nothing, except for the
 * export that tests use. One thread. */
#include <string.h>

#include "ddp/spans.h"
#include "ddp/thread.h"
#include "nn/model_impl.h"

static void *at(const ddp_model *model, size_t offset)
{
    return model->arena + offset;
}

static void *buffer(const ddp_model *model, const ddpi_plan_set *set, int number)
{
    return number < 0 ? NULL : at(model, set->schedule.buffers[number].offset);
}

static ddpi_pass pass_of(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step,
                         const ddp_model_input *input)
{
    ddpi_pass pass = {
        .stream = ddp_device_main_stream(model->device),
        .params = model->params,
        .grads = model->grads,
        .table = model->table,
        .running = model->running,
        .dst = buffer(model, set, step->dst),
        .diff_dst = buffer(model, set, step->diff_dst),
        .diff_dst2 = buffer(model, set, step->diff_dst2),
        .workspace = buffer(model, set, step->workspace),
        .scratch = buffer(model, set, step->scratch),
        .input = input,
        .sync = model->sync,
        .replay = step->kind == DDPI_STEP_REPLAY,
    };
    for (int i = 0; i < DDPI_MAX_SOURCES; i++) {
        pass.src[i] = step->src[i] == DDPI_SAMPLES ? (const void *)input->inputs
                                                   : buffer(model, set, step->src[i]);
        pass.diff_src[i] = buffer(model, set, step->diff_src[i]);
    }
    return pass;
}

static ddp_status run_layer(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step,
                            const ddpi_pass *pass)
{
    ddpi_layer *layer = model->nodes[step->node].layer;
    ddpi_layer_plan *plan = set->plans[step->node];
    if (step->kind == DDPI_STEP_BACKWARD)
        return layer->ops->backward(layer, plan, pass);
    if (step->kind == DDPI_STEP_ACCUMULATE)
        return ddp_op_accumulate(model->device, pass->stream, plan->dst, pass->diff_dst,
                                 pass->diff_dst2);
    return layer->ops->forward(layer, plan, pass);
}

/* An output that is made again belongs to the backward that needs it, and so to that pass's layers.
 */
static ddp_span_kind span_kind(const ddpi_step *step)
{
    return step->kind == DDPI_STEP_FORWARD || step->kind == DDPI_STEP_REPLAY
               ? DDP_SPAN_LAYER_FORWARD
               : DDP_SPAN_LAYER_BACKWARD;
}

static ddp_status run_step(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step,
                           const ddp_model_input *input)
{
    const ddpi_pass pass = pass_of(model, set, step, input);
    const bool timed = set->training && ddp_spans_joined();
    const int64_t begin_ns = timed ? ddp_now_ns() : 0;
    DDP_TRY(run_layer(model, set, step, &pass));
    if (timed)
        ddp_spans_end(span_kind(step), step->node, begin_ns);
    return model->watch != NULL ? ddpi_model_show(model, set, step, &pass) : DDP_OK;
}

/* Steps [from, to) of a set's schedule. */
static ddp_status run_steps(const ddp_model *model, const ddpi_plan_set *set,
                            const ddp_model_input *input, ddp_range range)
{
    for (size_t i = range.lo; i < range.hi; i++)
        DDP_TRY(run_step(model, set, &set->schedule.steps[i], input));
    return DDP_OK;
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

static ddp_status run_loss(const ddp_model *model, const ddpi_plan_set *set,
                           const ddp_op_args *args, double *loss_out)
{
    ddp_stream *stream = ddp_device_main_stream(model->device);
    DDP_ASSERT(args->labels != NULL);
    DDP_TRY(ddp_device_zero(model->device, stream, model->loss, sizeof *model->loss));
    DDP_TRY(ddp_op_run(set->loss, DDP_PASS_FORWARD, stream, args));
    return ddp_device_copy(model->device, stream, loss_out, model->loss, sizeof *loss_out,
                           DDP_COPY_TO_HOST);
}

/* The loss of a training pass: its gradient is the first that backward reads. */
static ddp_status run_training_loss(const ddp_model *model, const ddpi_plan_set *set,
                                    const ddp_model_input *input, double *loss_out)
{
    const ddpi_step *step = &set->schedule.steps[set->schedule.loss];
    const ddp_op_args args = {
        .src = buffer(model, set, step->src[0]),
        .diff_src = buffer(model, set, step->diff_dst),
        .workspace = buffer(model, set, step->workspace),
        .scratch = buffer(model, set, step->scratch),
        .labels = input->labels,
        .labels2 = input->labels2,
        .mix = input->mix,
        .loss = model->loss,
        .diff_scale = input->loss_scale,
    };
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(run_loss(model, set, &args, loss_out));
    ddp_spans_end(DDP_SPAN_LAYER_FORWARD, model->node_count, begin_ns);
    return DDP_OK;
}

ddp_status ddp_model_forward(ddp_model *model, const ddp_model_input *input, double *loss_sum_out)
{
    const ddpi_plan_set *set;
    DDP_TRY(find_set(model, input, true, &set));
    const ddp_range forward = {0, (size_t)set->schedule.loss};
    model->awaiting = NULL;
    DDP_TRY(run_steps(model, set, input, forward));
    DDP_TRY(run_training_loss(model, set, input, loss_sum_out));
    model->awaiting = set;
    model->awaiting_input = *input;
    return DDP_OK;
}

/* ---- frozen parameters ---- */

static bool owns(const ddpi_layer *layer, const ddp_param *param)
{
    return param->init_number >= layer->first_init_number &&
           param->init_number < layer->first_init_number + (uint32_t)layer->param_count;
}

static bool has_trainable(const ddp_model *model, const ddpi_layer *layer)
{
    for (int i = 0; i < ddp_param_table_count(model->table); i++) {
        const ddp_param *param = ddp_param_table_at(model->table, i);
        if ((param->flags & DDP_PARAM_TRAINABLE) != 0 && owns(layer, param))
            return true;
    }
    return false;
}

/* Backward need not go on behind the first node, in forward order, that has something to train:
 * returns the step to end at, and that node. */
static size_t last_useful_step(const ddp_model *model, const ddpi_plan_set *set, int *first_out)
{
    int first = 0;
    size_t end = (size_t)set->schedule.loss + 1;
    while (first < model->node_count && !has_trainable(model, model->nodes[first].layer))
        first++;
    for (size_t i = end; i < (size_t)set->schedule.step_count; i++)
        if (set->schedule.steps[i].kind == DDPI_STEP_BACKWARD &&
            set->schedule.steps[i].node >= first)
            end = i + 1;
    *first_out = first;
    return end;
}

/* Parameters of the nodes that backward did not reach have no gradient, which is one of zeros. */
static ddp_status finish_unreached(const ddp_model *model, int first)
{
    ddp_stream *stream = ddp_device_main_stream(model->device);
    for (int n = first - 1; n >= 0; n--)
        for (int i = 0; i < ddp_param_table_count(model->table); i++) {
            const ddp_param *param = ddp_param_table_at(model->table, i);
            if (!owns(model->nodes[n].layer, param))
                continue;
            DDP_TRY(ddp_device_zero(model->device, stream, model->grads + param->offset,
                                    param->count * sizeof(float)));
            DDP_TRY(ddp_param_grad_done(model->table, i));
        }
    return DDP_OK;
}

ddp_status ddp_model_backward(ddp_model *model)
{
    const ddpi_plan_set *set = model->awaiting;
    if (set == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL, "model %s: a backward without a forward before it",
                        model->def->name);
    DDP_ASSERT(model->grads != NULL);
    int first;
    const ddp_range backward = {(size_t)set->schedule.loss + 1,
                                last_useful_step(model, set, &first)};
    model->awaiting = NULL;
    ddp_param_table_begin(model->table);
    DDP_TRY(run_steps(model, set, &model->awaiting_input, backward));
    DDP_TRY(finish_unreached(model, first));
    return ddp_param_table_end(model->table);
}

static void *last_output(const ddp_model *model, const ddpi_plan_set *set)
{
    return buffer(model, set, set->schedule.output[ddpi_model_last(model)]);
}

static ddp_status add_inference_loss(const ddp_model *model, const ddpi_plan_set *set,
                                     const int32_t *labels, double *loss_sum)
{
    const ddp_op_args args = {
        .src = last_output(model, set),
        .diff_src = at(model, set->loss_diff),
        .workspace = at(model, set->loss_workspace),
        .scratch = at(model, set->scratch),
        .labels = labels,
        .loss = model->loss,
    };
    double loss;
    DDP_TRY(run_loss(model, set, &args, &loss));
    DDP_TRY(ddp_stream_sync(ddp_device_main_stream(model->device)));
    *loss_sum += loss;
    return DDP_OK;
}

ddp_status ddp_model_infer(ddp_model *model, const ddp_model_input *input, const float **logits_out,
                           double *loss_sum)
{
    const ddpi_plan_set *set;
    DDP_TRY(find_set(model, input, false, &set));
    const ddp_range all = {0, (size_t)set->schedule.step_count};
    model->awaiting = NULL; /* the arena is shared */
    DDP_TRY(run_steps(model, set, input, all));
    if (loss_sum != NULL)
        DDP_TRY(add_inference_loss(model, set, input->labels, loss_sum));
    const void *logits = last_output(model, set);
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
        const int holder = node->absorbed ? node->source[0] : i;
        if (holder < 0) /* the samples themselves */
            return ddp_device_copy(model->device, ddp_device_main_stream(model->device), plain,
                                   model->awaiting_input.inputs, count * sizeof *plain,
                                   DDP_COPY_TO_HOST);
        return ddp_layout_export(model->device, set->plans[holder]->dst,
                                 buffer(model, set, set->schedule.output[holder]), plain);
    }
    return DDP_FAIL(DDP_ERR_SHAPE, "model %s has no layer %s", model->def->name, name);
}
