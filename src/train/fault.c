/* fault.c - which of a micro-batch's numbers are the first that are not finite. See replay.h. */
#include <math.h>
#include <stdio.h>

#include "ddp/memory.h"
#include "ddp/replay.h"

typedef struct search {
    const ddp_replay_parts *parts;
    ddp_model_watch_fn also;
    void *arg;
    ddp_fault *fault;
} search;

static void add_place(ddp_fault *fault, int64_t place)
{
    if (fault->samples > 0 && fault->samples <= DDP_FAULT_SAMPLES &&
        fault->places[fault->samples - 1] == place)
        return;
    if (fault->samples < DDP_FAULT_SAMPLES)
        fault->places[fault->samples++] = place;
}

/* Notes the values if they are the first that are not finite. */
static void look(ddp_fault *fault, const ddp_model_sight *sight, const char *article)
{
    const size_t each = sight->samples > 0 ? sight->count / (size_t)sight->samples : 0;

    if (fault->what[0] != 0)
        return;
    for (size_t i = 0; i < sight->count; i++) {
        if (isfinite(sight->values[i]))
            continue;
        fault->bad++;
        if (each > 0)
            add_place(fault, (int64_t)(i / each));
    }
    if (fault->bad == 0)
        return;
    fault->count = sight->count;
    snprintf(fault->what, sizeof fault->what, "%s%s%s", sight->kind, article, sight->name);
}

static ddp_status watch(void *arg, const ddp_model_sight *sight)
{
    search *s = arg;

    look(s->fault, sight, sight->samples > 0 ? " of layer " : " of parameter ");
    return s->also != NULL ? s->also(s->arg, sight) : DDP_OK;
}

/* ---- what a step starts from ---- */

static ddp_status look_at_inputs(const search *s, const float *host, size_t count)
{
    const ddp_model_sight sight = {.kind = "inputs",
                                   .name = "",
                                   .values = host,
                                   .count = count,
                                   .samples = s->parts->input.count};

    look(s->fault, &sight, "");
    return DDP_OK;
}

static ddp_status check_inputs(const search *s, int64_t sample)
{
    const size_t count = (size_t)(s->parts->input.count * sample);
    ddp_stream *stream = ddp_device_main_stream(s->parts->device);
    float *host;

    DDP_TRY(DDP_ALLOC(host, count));
    ddp_status st = ddp_device_copy(s->parts->device, stream, host, s->parts->input.inputs,
                                    count * sizeof *host, DDP_COPY_TO_HOST);
    if (st == DDP_OK)
        st = ddp_stream_sync(stream);
    if (st == DDP_OK)
        st = look_at_inputs(s, host, count);
    ddp_free(host);
    return st;
}

static ddp_status check_params(const search *s)
{
    const ddp_param_table *table = ddp_model_params(s->parts->model);

    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        ddp_model_sight sight = {
            .kind = "parameter ", .name = p->name, .count = (size_t)ddp_shape_count(&p->shape)};
        float *plain;
        DDP_TRY(DDP_ALLOC(plain, sight.count));
        const ddp_status st = ddp_param_export(s->parts->device, p, s->parts->params, plain);
        sight.values = plain;
        if (st == DDP_OK)
            look(s->fault, &sight, "");
        ddp_free(plain);
        DDP_TRY(st);
    }
    return DDP_OK;
}

/* ---- the step ---- */

static ddp_status compute(const search *s, double *loss_out)
{
    ddp_model *model = s->parts->model;
    double loss = 0;

    DDP_TRY(ddp_model_forward(model, &s->parts->input, &loss));
    DDP_TRY(ddp_stream_sync(ddp_device_main_stream(s->parts->device)));
    *loss_out = loss;
    if (!isfinite(loss) && s->fault->what[0] == 0) {
        s->fault->bad = s->fault->count = 1;
        snprintf(s->fault->what, sizeof s->fault->what, "loss");
    }
    return ddp_model_backward(model);
}

ddp_status ddp_find_fault(const ddp_replay_parts *parts, ddp_model_watch_fn also, void *arg,
                          double *loss_out, ddp_fault *fault_out)
{
    ddp_fault fault = {0};
    search s = {.parts = parts, .also = also, .arg = arg, .fault = &fault};
    ddp_param_table *table = ddp_model_params(parts->model);
    const ddp_shape shape = ddp_model_input_shape(parts->model);
    ddp_param_ready_fn ready;
    void *ready_arg;

    DDP_TRY(check_inputs(&s, ddp_shape_count(&shape)));
    DDP_TRY(check_params(&s));
    ddp_param_table_get_ready(table, &ready, &ready_arg);
    ddp_param_table_on_ready(table, NULL, NULL);
    ddp_model_bind_running(parts->model, NULL);
    ddp_model_watch(parts->model, watch, &s);
    ddp_status st = compute(&s, loss_out);
    ddp_model_watch(parts->model, NULL, NULL);
    ddp_param_table_on_ready(table, ready, ready_arg);
    if (st == DDP_OK)
        *fault_out = fault;
    return st;
}
