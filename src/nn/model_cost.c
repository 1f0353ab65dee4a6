/* model_cost.c - what a training pass would take at a machine's two limits.
 *
 * The roofline model (Williams, Waterman and Patterson, "Roofline: an insightful visual performance
 * model for multicore architectures", CACM 52, 2009), step by step: no step can be faster than its
 * arithmetic at the processor's peak, nor than its operands through memory once. Set-up only. */
#include "nn/model_impl.h"

static double bytes_of(const ddp_model *model, const ddpi_schedule *schedule, int number)
{
    if (number == DDPI_SAMPLES) {
        const ddp_shape shape = ddpi_model_shape(model, DDPI_MODEL_INPUT, 1);
        return (double)ddp_shape_count(&shape) * sizeof(float);
    }
    return number < 0 ? 0 : (double)schedule->buffers[number].bytes;
}

/* Operands of a step, each once; scratch memory may stay in caches. Parameters are read, in
 * backward by each of two passes, and their gradient is written. */
static double traffic_of(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step)
{
    const ddpi_schedule *s = &set->schedule;
    const double params =
        (double)model->nodes[step->node].layer->param_elements * (double)sizeof(float);
    double bytes = bytes_of(model, s, step->dst) + bytes_of(model, s, step->diff_dst) +
                   bytes_of(model, s, step->diff_dst2);
    for (int i = 0; i < DDPI_MAX_SOURCES; i++) {
        const double samples = step->src[i] == DDPI_SAMPLES ? (double)set->batch : 1;
        bytes += samples * bytes_of(model, s, step->src[i]) + bytes_of(model, s, step->diff_src[i]);
    }
    if (step->kind == DDPI_STEP_FORWARD || step->kind == DDPI_STEP_REPLAY)
        bytes += params;
    if (step->kind == DDPI_STEP_BACKWARD)
        bytes += 2 * params;
    return bytes;
}

static double flops_of(const ddp_model *model, const ddpi_plan_set *set, const ddpi_step *step)
{
    const ddpi_node *node = &model->nodes[step->node];
    if (step->kind == DDPI_STEP_FORWARD || step->kind == DDPI_STEP_REPLAY)
        return node->flops[0] * (double)set->batch;
    return step->kind == DDPI_STEP_BACKWARD ? node->flops[1] * (double)set->batch : 0;
}

ddp_status ddp_model_cost(const ddp_model *model, int64_t batch, const ddp_model_limits *limits,
                          ddp_model_bound *bound_out)
{
    const ddpi_plan_set *set = ddpi_model_find_set(model, batch, true);
    if (set == NULL)
        return DDP_FAIL(DDP_ERR_INTERNAL, "model %s has no plan for training on %lld samples",
                        model->def->name, (long long)batch);
    DDP_ASSERT(limits->flops > 0 && limits->bytes > 0);
    ddp_model_bound bound = {0};
    for (int i = 0; i < set->schedule.step_count; i++) {
        const ddpi_step *step = &set->schedule.steps[i];
        const double flops = flops_of(model, set, step), bytes = traffic_of(model, set, step);
        const double compute = flops / limits->flops, memory = bytes / limits->bytes;
        bound.flops += flops;
        bound.bytes += bytes;
        bound.seconds += compute > memory ? compute : memory;
    }
    *bound_out = bound;
    return DDP_OK;
}
