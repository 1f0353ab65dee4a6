/* model.c - a model's graph: building it from layer specifications, and its life.
 *
 * The graph is an ordered list of nodes; each reads one or two earlier nodes' outputs. When all
 * layers are added, neighbours may take over each other's work: what is absorbed stays in the list,
 * for its name and the summary, but has no plans and no buffers. This file and
 * its siblings know no layer types, only the table in layer_impl.h. One thread. */
#include "ddp/model.h"

#include <string.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

enum {
    SHAPE_BYTES = 64,
    TYPES_BYTES = 192,
    NO_NODE = -2,
    LAYER_NAME_MAX = DDP_PARAM_NAME_BYTES - 16 /* leaves room for ".weight" and its like */
};

struct ddp_model_builder {
    ddp_model *model;
};

int ddpi_model_last(const ddp_model *model)
{
    const int last = model->node_count - 1;
    return model->nodes[last].absorbed ? model->nodes[last].source[0] : last;
}

ddp_shape ddpi_model_shape(const ddp_model *model, int node, int64_t batch)
{
    ddp_shape shape;
    if (node == DDPI_MODEL_INPUT) {
        shape = (ddp_shape){.ndim = model->opts.input_shape.ndim + 1};
        memcpy(shape.dims + 1, model->opts.input_shape.dims,
               (size_t)model->opts.input_shape.ndim * sizeof shape.dims[0]);
    } else {
        shape = model->nodes[node].dst;
    }
    shape.dims[0] = batch;
    return shape;
}

char *ddpi_model_format_sample(const ddp_shape *shape, char *text, size_t text_bytes)
{
    ddp_shape sample = {.ndim = shape->ndim - 1};
    memcpy(sample.dims, shape->dims + 1, (size_t)sample.ndim * sizeof sample.dims[0]);
    return ddp_shape_format(&sample, text, text_bytes);
}

/* ---- building ---- */

static ddp_status check_spec(const ddp_model *model, const ddp_layer_spec *spec)
{
    if (spec->name == NULL || spec->name[0] == '\0')
        return DDP_FAIL(DDP_ERR_SHAPE, "model %s: layer number %d has no name", model->def->name,
                        model->node_count + 1);
    if (strlen(spec->name) > LAYER_NAME_MAX)
        return DDP_FAIL(DDP_ERR_SHAPE, "layer %.*s...: the name is longer than %d bytes",
                        LAYER_NAME_MAX, spec->name, LAYER_NAME_MAX);
    for (int i = 0; i < model->node_count; i++)
        if (strcmp(model->nodes[i].layer->spec.name, spec->name) == 0)
            return DDP_FAIL(DDP_ERR_SHAPE, "model %s has two layers of the name %s",
                            model->def->name, spec->name);
    if (spec->type == NULL || ddpi_layer_find(spec->type) == NULL) {
        char types[TYPES_BYTES];
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "layer %s: there is no layer type '%s' (there are: %s)", spec->name,
                        spec->type == NULL ? "" : spec->type,
                        ddpi_layer_types(types, sizeof types));
    }
    return DDP_OK;
}

static int find_node(const ddp_model *model, const char *name)
{
    for (int i = 0; i < model->node_count; i++)
        if (strcmp(model->nodes[i].layer->spec.name, name) == 0)
            return i;
    return NO_NODE;
}

/* The nodes that a layer reads; the one before unless it names another. */
static ddp_status resolve_inputs(const ddp_model *model, const ddp_layer_spec *spec,
                                 ddpi_node *node)
{
    const char *const names[DDPI_MAX_SOURCES] = {spec->input, spec->input2};
    node->inputs = ddpi_layer_find(spec->type)->sources;
    node->sources = node->inputs;
    node->input[1] = node->source[1] = NO_NODE;
    for (int i = 0; i < node->inputs; i++) {
        const bool before = i == 0 && names[i] == NULL;
        if (!before && names[i] == NULL)
            return DDP_FAIL(DDP_ERR_SHAPE,
                            "layer %s (%s): it reads two layers, the second is not "
                            "named",
                            spec->name, spec->type);
        node->input[i] = before ? model->node_count - 1 /* DDPI_MODEL_INPUT for the first */
                                : find_node(model, names[i]);
        if (node->input[i] == NO_NODE)
            return DDP_FAIL(DDP_ERR_SHAPE, "layer %s (%s): there is no layer %s before it",
                            spec->name, spec->type, names[i]);
        node->source[i] = node->input[i];
    }
    return DDP_OK;
}

static ddp_status infer_node(const ddp_model *model, ddpi_node *node)
{
    ddp_shape shapes[DDPI_MAX_SOURCES];
    const ddp_shape *src[DDPI_MAX_SOURCES] = {NULL, NULL};
    for (int i = 0; i < node->inputs; i++) {
        shapes[i] = ddpi_model_shape(model, node->input[i], 1);
        src[i] = &shapes[i];
    }
    node->src = shapes[0];
    const ddp_status st = node->layer->ops->infer(node->layer, src, &node->dst);
    if (st == DDP_OK)
        return DDP_OK;
    char text[SHAPE_BYTES];
    return ddp_status_prefix(st, "layer %s (%s) on %s", node->layer->spec.name,
                             node->layer->spec.type,
                             ddpi_model_format_sample(&node->src, text, sizeof text));
}

ddp_status ddp_model_add(ddp_model_builder *builder, const ddp_layer_spec *spec)
{
    ddp_model *model = builder->model;
    ddpi_node node = {0};
    DDP_TRY(check_spec(model, spec));
    DDP_TRY(DDP_GROW(model->nodes, model->node_capacity, model->node_count));
    DDP_TRY(resolve_inputs(model, spec, &node));
    DDP_TRY(ddpi_layer_find(spec->type)->create(spec, &node.layer));
    node.layer->number = (uint32_t)model->node_count;
    node.layer->spec.input = node.layer->spec.input2 = NULL; /* the caller's memory */
    const ddp_status st = infer_node(model, &node);
    if (st != DDP_OK) {
        node.layer->ops->destroy(node.layer);
        return st;
    }
    model->nodes[model->node_count++] = node;
    return DDP_OK;
}

static bool reads(const ddpi_node *node, int index)
{
    return node->input[0] == index || (node->inputs == 2 && node->input[1] == index);
}

/* The one node that reads `index`, or NO_NODE if there are none or several. */
static int only_reader(const ddp_model *model, int index)
{
    int reader = NO_NODE;
    for (int i = index + 1; i < model->node_count; i++) {
        if (!reads(&model->nodes[i], index))
            continue;
        if (reader != NO_NODE)
            return NO_NODE;
        reader = i;
    }
    return reader;
}

/* Whether what makes input number `which` takes over the node. It runs at its own place in the
 * order, so the other input must be there by then. */
static bool is_taken_by_source(ddp_model *model, int index, int which)
{
    ddpi_node *node = &model->nodes[index];
    const int source = node->source[which], other = node->source[1 - which];
    if (source < 0 || only_reader(model, node->input[which]) != index)
        return false;
    ddpi_node *before = &model->nodes[source];
    if (node->sources == 2 && (before->sources == 2 || other >= source))
        return false;
    if (!before->layer->ops->absorb(before->layer, node->layer, DDPI_AFTER))
        return false;
    if (node->sources == 2) {
        before->source[before->sources++] = other;
        node->source[0] = source;
        node->sources = 1;
    }
    return true;
}

static bool is_absorbed(ddp_model *model, int index)
{
    const ddpi_node *node = &model->nodes[index];
    /* The later of two sources first: the other is there when it runs. */
    const int later = node->sources == 2 && node->source[1] > node->source[0];
    if (is_taken_by_source(model, index, later) ||
        (node->sources == 2 && is_taken_by_source(model, index, 1 - later)))
        return true;
    const int reader = only_reader(model, index);
    if (reader == NO_NODE || node->sources == 2)
        return false;
    ddpi_layer *behind = model->nodes[reader].layer;
    return behind->ops->absorb(behind, node->layer, DDPI_BEFORE);
}

/* Sources lie before their nodes, so one pass in order sees final sources. */
static void absorb_neighbours(ddp_model *model)
{
    for (int i = 0; i < model->node_count; i++) {
        ddpi_node *node = &model->nodes[i];
        for (int k = 0; k < node->sources; k++)
            if (node->input[k] >= 0 && model->nodes[node->input[k]].absorbed)
                node->source[k] = model->nodes[node->input[k]].source[0];
        node->absorbed = is_absorbed(model, i);
    }
}

/* Backward ends at the first layer that has parameters: what lies before needs no gradients. */
static ddp_status settle_backward(ddp_model *model)
{
    uint32_t init_number = 0;
    for (int i = 0; i < model->node_count; i++) {
        ddpi_node *node = &model->nodes[i];
        node->backward = node->layer->param_count > 0;
        for (int k = 0; k < node->sources; k++) {
            const int source = node->source[k];
            node->need_diff_src[k] = source >= 0 && model->nodes[source].backward;
            node->backward = node->backward || node->need_diff_src[k];
        }
        node->layer->first_init_number = init_number;
        init_number += (uint32_t)node->layer->param_count;
        if (!node->absorbed)
            DDP_TRY(node->layer->ops->flops(node->layer, &node->src, node->need_diff_src[0],
                                            node->flops));
    }
    return DDP_OK;
}

static ddp_status check_readers(const ddp_model *model)
{
    for (int i = 0; i + 1 < model->node_count; i++) {
        bool read = false;
        for (int k = i + 1; k < model->node_count && !read; k++)
            read = reads(&model->nodes[k], i);
        if (!read)
            return DDP_FAIL(DDP_ERR_SHAPE, "layer %s (%s): no layer reads its output",
                            model->nodes[i].layer->spec.name, model->nodes[i].layer->spec.type);
    }
    return DDP_OK;
}

static ddp_status check_output(const ddp_model *model)
{
    if (model->node_count == 0)
        return DDP_FAIL(DDP_ERR_SHAPE, "model %s has no layers", model->def->name);
    const ddpi_node *last = &model->nodes[model->node_count - 1];
    if (last->dst.ndim == 2 && last->dst.dims[1] == model->opts.classes)
        return DDP_OK;
    char text[SHAPE_BYTES];
    return DDP_FAIL(DDP_ERR_SHAPE,
                    "layer %s (%s): the last layer's output for a sample is %s, but %lld classes "
                    "need %lld values",
                    last->layer->spec.name, last->layer->spec.type,
                    ddpi_model_format_sample(&last->dst, text, sizeof text),
                    (long long)model->opts.classes, (long long)model->opts.classes);
}

static ddp_status check_opts(const ddp_model_def *def, const ddp_model_opts *opts)
{
    const ddp_shape *shape = &opts->input_shape;
    bool positive = shape->ndim == 3;
    for (int i = 0; positive && i < shape->ndim; i++)
        positive = shape->dims[i] > 0;
    if (!positive) {
        char text[SHAPE_BYTES];
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "model %s: a sample must be channels x height x width, not %s", def->name,
                        ddp_shape_format(shape, text, sizeof text));
    }
    if (opts->classes < 1 || opts->classes > INT32_MAX)
        return DDP_FAIL(DDP_ERR_SHAPE, "model %s: %lld classes", def->name,
                        (long long)opts->classes);
    if (!(opts->label_smoothing >= 0.0 && opts->label_smoothing < 1.0))
        return DDP_FAIL(DDP_ERR_USAGE, "label smoothing is %g, must be at least 0 and below 1",
                        opts->label_smoothing);
    return DDP_OK;
}

ddp_status ddp_model_create(const ddp_model_def *def, const ddp_model_opts *opts,
                            ddp_device *device, ddp_model **model_out)
{
    ddp_model *model;
    ddp_status st;
    DDP_TRY(check_opts(def, opts));
    DDP_TRY(DDP_ALLOC(model, 1));
    model->def = def;
    model->opts = *opts;
    model->opts.mlp_widths = NULL;
    model->device = device;
    ddp_model_builder builder = {model};
    DDP_TRY_GOTO(st, def->build(&builder, opts), err_destroy);
    DDP_TRY_GOTO(st, check_output(model), err_destroy);
    DDP_TRY_GOTO(st, check_readers(model), err_destroy);
    absorb_neighbours(model);
    model->nodes[ddpi_model_last(model)].layer->f32 = true;
    DDP_TRY_GOTO(st, settle_backward(model), err_destroy);
    DDP_TRY_GOTO(st, ddp_device_alloc(device, DDP_ALIGN_BYTES, (void **)(void *)&model->loss),
                 err_destroy);
    *model_out = model;
    return DDP_OK;
err_destroy:
    ddp_model_destroy(model);
    return st;
}

void ddp_model_destroy(ddp_model *model)
{
    if (model == NULL)
        return;
    while (model->sets != NULL) {
        ddpi_plan_set *set = model->sets;
        model->sets = set->next;
        ddpi_plan_set_destroy(model, set);
    }
    ddp_param_table_destroy(model->table);
    ddp_buffer_table_destroy(model->buffers);
    for (int i = 0; i < model->node_count; i++)
        model->nodes[i].layer->ops->destroy(model->nodes[i].layer);
    if (model->arena != NULL)
        ddp_device_free(model->device, model->arena, model->arena_bytes);
    if (model->loss != NULL)
        ddp_device_free(model->device, model->loss, DDP_ALIGN_BYTES);
    ddp_free(model->nodes);
    ddp_free(model);
}

void ddp_model_bind(ddp_model *model, float *params, float *grads)
{
    model->params = params;
    model->grads = grads;
}

void ddp_model_bind_running(ddp_model *model, float *running)
{
    model->running = running;
}

ddp_status ddp_model_sync_norms(ddp_model *model, const ddp_model_sync *sync)
{
    if (model->awaiting != NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL,
                        "model %s: norms cannot change between a forward and its backward",
                        model->def->name);
    model->sync = sync;
    return DDP_OK;
}

/* ---- queries ---- */

const ddp_buffer_table *ddp_model_buffers(ddp_model *model)
{
    return model->buffers;
}

ddp_param_table *ddp_model_params(ddp_model *model)
{
    return model->table;
}

int ddp_model_layer_count(const ddp_model *model)
{
    return model->node_count;
}

const char *ddp_model_layer_name(const ddp_model *model, int layer)
{
    DDP_ASSERT(layer >= 0 && layer < model->node_count);
    return model->nodes[layer].layer->spec.name;
}

const char *ddp_model_name(const ddp_model *model)
{
    return model->def->name;
}

int64_t ddp_model_classes(const ddp_model *model)
{
    return model->opts.classes;
}

ddp_shape ddp_model_input_shape(const ddp_model *model)
{
    return model->opts.input_shape;
}

double ddp_model_forward_flops(const ddp_model *model)
{
    double flops = 0;
    for (int i = 0; i < model->node_count; i++)
        flops += model->nodes[i].flops[0];
    return flops;
}

double ddp_model_train_flops(const ddp_model *model)
{
    double flops = ddp_model_forward_flops(model);
    for (int i = 0; i < model->node_count; i++)
        flops += model->nodes[i].flops[1];
    return flops;
}

size_t ddp_model_activation_bytes(const ddp_model *model)
{
    return model->arena_bytes;
}
