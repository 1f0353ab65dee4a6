/* model_summary.c - a model in words: the table for people, and the lines for the start-up
 * fingerprint. Set-up only. One thread. */
#include <stdarg.h>
#include <stdio.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

enum { LINE_BYTES = 256, EXTRA_LINES = 8, SHAPE_BYTES = 64 };

/* Text that is cut where its buffer ends; the buffers here have LINE_BYTES for every line. */
typedef struct text {
    char *start;
    size_t bytes, used;
} text;

static ddp_status text_create(text *out, int lines)
{
    out->bytes = (size_t)lines * LINE_BYTES;
    out->used = 0;
    return ddp_alloc_bytes(out->bytes, 1, (void **)(void *)&out->start);
}

static void append(text *out, const char *fmt, ...) DDP_PRINTF(2, 3);
static void append(text *out, const char *fmt, ...)
{
    if (out->used >= out->bytes)
        return;
    va_list args;
    va_start(args, fmt);
    out->used += (size_t)vsnprintf(out->start + out->used, out->bytes - out->used, fmt, args);
    va_end(args);
}

/* Sets that exist, for lines that list them. */
static int set_count(const ddp_model *model)
{
    int count = 0;
    for (const ddpi_plan_set *set = model->sets; set != NULL; set = set->next)
        count++;
    return count;
}

static const char *impl_of(const ddp_model *model, int index)
{
    if (model->nodes[index].absorbed)
        return "(fused)";
    return model->sets == NULL ? "-" : model->sets->plans[index]->impl;
}

/* Operations of all steps over those of a pass that keeps everything. */
static double repeated_share(const ddp_model *model, const ddpi_plan_set *set)
{
    double replayed = 0, all = 0;
    for (int i = 0; i < model->node_count; i++)
        all += model->nodes[i].flops[0] + model->nodes[i].flops[1];
    for (int i = 0; i < set->schedule.step_count; i++)
        if (set->schedule.steps[i].kind == DDPI_STEP_REPLAY)
            replayed += model->nodes[set->schedule.steps[i].node].flops[0];
    return all > 0 ? replayed / all : 0;
}

static void append_memory(text *out, const ddp_model *model, const ddpi_plan_set *set)
{
    append(out, "activations for %lld samples (%s): %.2f MiB", (long long)set->batch,
           set->training ? "training" : "inference", (double)set->bytes / (1 << 20));
    if (set->training && model->opts.recompute != DDP_RECOMPUTE_NONE)
        append(out, ", with %.1f%% more operations", 100 * repeated_share(model, set));
    if (set->segments > 0)
        append(out, " in %d segments", set->segments);
    append(out, "\n");
}

ddp_status ddp_model_summary(const ddp_model *model, char **text_out)
{
    text out;
    char shape[SHAPE_BYTES];
    DDP_TRY(text_create(&out, model->node_count + set_count(model) + EXTRA_LINES));
    append(&out, "model %s, input %s, %lld classes\n", model->def->name,
           ddp_shape_format(&model->opts.input_shape, shape, sizeof shape),
           (long long)model->opts.classes);
    append(&out, "%-22s %-13s %-12s %12s %10s  %s\n", "layer", "type", "output", "parameters",
           "MFLOP", "implementation");
    int64_t elements = 0;
    for (int i = 0; i < model->node_count; i++) {
        const ddpi_node *node = &model->nodes[i];
        elements += node->layer->param_elements;
        append(&out, "%-22.40s %-13s %-12s %12lld %10.3f  %.80s\n", node->layer->spec.name,
               node->layer->spec.type, ddpi_model_format_sample(&node->dst, shape, sizeof shape),
               (long long)node->layer->param_elements, node->flops[0] / 1e6, impl_of(model, i));
    }
    append(&out, "%lld parameters, %.3f MFLOP a sample forward, %.3f in training\n",
           (long long)elements, ddp_model_forward_flops(model) / 1e6,
           ddp_model_train_flops(model) / 1e6);
    for (const ddpi_plan_set *set = model->sets; set != NULL; set = set->next)
        append_memory(&out, model, set);
    *text_out = out.start;
    return DDP_OK;
}

/* Batch sizes do not enter: ranks may have shards of different sizes. Implementations are those of
 * the first plan. */
ddp_status ddp_model_fingerprint(const ddp_model *model, char **text_out)
{
    text out;
    char shape[SHAPE_BYTES];
    const int params = model->table == NULL ? 0 : ddp_param_table_count(model->table);
    DDP_TRY(text_create(&out, model->node_count + params + EXTRA_LINES));
    append(&out, "model=%s\nmodel.input=%s\nmodel.classes=%lld\nmodel.label_smoothing=%.17g\n",
           model->def->name, ddp_shape_format(&model->opts.input_shape, shape, sizeof shape),
           (long long)model->opts.classes, model->opts.label_smoothing);
    append(&out, "model.compute=%s\n", ddp_dtype_name((ddp_dtype)model->opts.compute));
    for (int i = 0; i < model->node_count; i++) {
        const ddpi_node *node = &model->nodes[i];
        append(&out, "layer.%.60s=%s %s %.80s\n", node->layer->spec.name, node->layer->spec.type,
               ddpi_model_format_sample(&node->dst, shape, sizeof shape), impl_of(model, i));
    }
    for (int i = 0; i < params; i++) {
        const ddp_param *param = ddp_param_table_at(model->table, i);
        append(&out, "param.%s=%s %.40s %zu+%zu\n", param->name,
               ddp_shape_format(&param->shape, shape, sizeof shape), ddp_layout_name(param->layout),
               param->offset, param->count);
    }
    *text_out = out.start;
    return DDP_OK;
}
