/* norm.c - batch norm over channels (Ioffe and Szegedy, "Batch Normalization", ICML 2015), with the
 * residual add and the relu that follow taken over.
 *
 * Statistics are those of the shard, or with ddp_model_sync those of all ranks' shards: then every
 * rank gathers the others' counts, means and sums of squares centred on those means, and combines
 * them in rank order (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The
 * American Statistician 37, 1983), so that nothing is lost where a mean is large; backward adds the
 * ranks' sums of dy and dy * xhat. Parameters' gradients stay the shard's own: the reducer sums
 * them. Means and sums live behind the operation's workspace from forward to backward. Running
 * statistics take the variance over count - 1, as others do. One thread. */
#include <stdio.h>
#include <string.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "nn/op_layer.h"

static const double DEFAULT_EPS = 1e-5, DEFAULT_MOMENTUM = 0.1;

/* Arrays of a norm's state in its workspace. */
enum { MEAN, M2, SUM_DY, SUM_DY_XHAT, STATE_ARRAYS };

typedef struct norm_layer {
    ddpi_op_layer op;
    double momentum;
    int64_t channels, pixels; /* of a sample */
    double count;             /* values a channel of the forward that awaits its backward */
    size_t running_mean, running_var;
    bool warned;
    double *gathered; /* for synchronised statistics: this rank's, then all ranks' */
    size_t gathered_count;
} norm_layer;

static norm_layer *norm_of(ddpi_layer *base)
{
    return (norm_layer *)base;
}

/* ---- life ---- */

static ddp_status create(const ddp_layer_spec *spec, ddpi_layer **layer_out)
{
    const ddp_op_desc desc = {
        .kind = DDP_OP_NORM,
        .u.norm = {.eps = spec->eps == 0 ? DEFAULT_EPS : spec->eps},
    };
    if (!(spec->eps >= 0) || !(spec->momentum >= 0 && spec->momentum <= 1))
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "layer %s (batchnorm): eps %g and momentum %g, expected 0 (the default) or "
                        "more, and at most 1 for momentum",
                        spec->name, spec->eps, spec->momentum);
    ddp_layer_spec own = *spec;
    if (own.weight_init.kind == DDP_INIT_ZERO && !spec->zero_weight)
        own.weight_init = (ddp_param_init){DDP_INIT_CONSTANT, 1.0};
    norm_layer *layer;
    DDP_TRY(DDP_ALLOC(layer, 1));
    const ddp_status st =
        ddpi_op_layer_init(&layer->op, &ddpi_layer_batchnorm, &own, &desc, /*has_bias*/ true);
    if (st != DDP_OK) {
        ddp_free(layer);
        return st;
    }
    layer->op.reads_src = layer->op.cheap = true;
    layer->momentum = spec->momentum == 0 ? DEFAULT_MOMENTUM : spec->momentum;
    *layer_out = &layer->op.base;
    return DDP_OK;
}

static void destroy(ddpi_layer *base)
{
    ddp_free(norm_of(base)->gathered);
    ddpi_op_layer_destroy(base);
}

static bool absorb(ddpi_layer *base, const ddpi_layer *other, ddpi_side side)
{
    ddpi_op_layer *layer = &norm_of(base)->op;
    ddp_norm_desc *norm = &layer->desc.u.norm;
    if (norm->relu) /* what follows is behind the relu */
        return false;
    if (ddpi_op_layer_is(other, side, &ddpi_layer_relu, DDPI_AFTER)) {
        norm->relu = layer->reads_dst = true;
        return true;
    }
    if (norm->add || !ddpi_op_layer_is(other, side, &ddpi_layer_add, DDPI_AFTER))
        return false;
    norm->add = true;
    norm->relu = layer->reads_dst = ((const ddpi_op_layer *)other)->desc.u.add.relu;
    return true;
}

static ddp_status infer(ddpi_layer *base, const ddp_shape *const src[DDPI_MAX_SOURCES],
                        ddp_shape *dst_out)
{
    norm_layer *layer = norm_of(base);
    DDP_TRY(ddpi_op_layer_infer(base, src, dst_out));
    layer->channels = src[0]->dims[1];
    layer->pixels = src[0]->dims[2] * src[0]->dims[3];
    return DDP_OK;
}

static ddp_status add_buffer(const norm_layer *layer, ddp_buffer_table *table, const char *suffix,
                             ddp_buffer buffer, size_t *offset_out)
{
    int index;
    const int bytes =
        snprintf(buffer.name, sizeof buffer.name, "%s.%s", layer->op.base.spec.name, suffix);
    if (bytes < 0 || bytes >= (int)sizeof buffer.name)
        return DDP_FAIL(DDP_ERR_SHAPE, "layer %s (batchnorm): the name is too long for %s",
                        layer->op.base.spec.name, suffix);
    DDP_TRY(ddp_buffer_table_add(table, &buffer, &index));
    *offset_out = ddp_buffer_table_at(table, index)->offset;
    return DDP_OK;
}

static ddp_status add_buffers(ddpi_layer *base, ddp_buffer_table *table)
{
    norm_layer *layer = norm_of(base);
    const ddp_buffer mean = {.count = layer->channels}, var = {.count = layer->channels, .init = 1};
    const ddp_buffer tracked = {.counter = true};
    size_t none;
    DDP_TRY(add_buffer(layer, table, "running_mean", mean, &layer->running_mean));
    DDP_TRY(add_buffer(layer, table, "running_var", var, &layer->running_var));
    return add_buffer(layer, table, "num_batches_tracked", tracked, &none);
}

/* ---- plans ---- */

static size_t array_bytes(const norm_layer *layer)
{
    const size_t bytes = (size_t)layer->channels * sizeof(double);
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static size_t state_offset(const ddpi_layer_plan *plan)
{
    const size_t bytes = ddp_op_plan_workspace_bytes(ddpi_op_layer_plan_op(plan));
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static ddp_status plan(ddpi_layer *base, const ddpi_plan_opts *opts, ddpi_layer_plan **plan_out)
{
    norm_layer *layer = norm_of(base);
    DDP_TRY(ddpi_op_layer_plan(base, opts, plan_out));
    if (opts->training)
        (*plan_out)->workspace_bytes = state_offset(*plan_out) + STATE_ARRAYS * array_bytes(layer);
    (*plan_out)->sums_diff_dst = true;
    if (layer->op.desc.u.norm.add && opts->need_diff_src[1] &&
        ddp_layout_equal(opts->src[1], (*plan_out)->dst))
        (*plan_out)->diff_dst_becomes = 1;
    return DDP_OK;
}

/* ---- passes ---- */

static ddp_norm_state state_of(const norm_layer *layer, const ddpi_layer_plan *plan,
                               const ddpi_pass *pass)
{
    ddp_norm_state state = {.count = layer->count};
    if (pass->workspace == NULL) /* inference */
        return state;
    char *arrays = (char *)pass->workspace + state_offset(plan);
    const size_t bytes = array_bytes(layer);
    state.mean = (double *)(void *)(arrays + MEAN * bytes);
    state.m2 = (double *)(void *)(arrays + M2 * bytes);
    state.sum_dy = (double *)(void *)(arrays + SUM_DY * bytes);
    state.sum_dy_xhat = (double *)(void *)(arrays + SUM_DY_XHAT * bytes);
    return state;
}

/* Grows on a model's first step only. */
static ddp_status reserve(norm_layer *layer, size_t count)
{
    if (count <= layer->gathered_count)
        return DDP_OK;
    ddp_free(layer->gathered);
    layer->gathered = NULL;
    layer->gathered_count = 0;
    DDP_TRY(DDP_ALLOC(layer->gathered, count));
    layer->gathered_count = count;
    return DDP_OK;
}

/* Gathers one host value and two device arrays of every rank; *all_out has a row for each rank. */
static ddp_status gather(norm_layer *layer, const ddpi_pass *pass, const double *head,
                         double *const arrays[2], const double **all_out)
{
    const size_t c = (size_t)layer->channels, bytes = c * sizeof(double), row = 1 + 2 * c;
    DDP_TRY(reserve(layer, row * (size_t)(1 + pass->sync->world)));
    double *mine = layer->gathered, *all = mine + row;
    mine[0] = *head;
    for (size_t i = 0; i < 2; i++)
        DDP_TRY(ddp_device_copy(layer->op.device, pass->stream, mine + 1 + i * c, arrays[i], bytes,
                                DDP_COPY_TO_HOST));
    DDP_TRY(ddp_stream_sync(pass->stream));
    DDP_TRY(pass->sync->gather(pass->sync->arg, mine, row, all));
    *all_out = all;
    return DDP_OK;
}

/* The result lies in the first row's place, from where it goes back to the device. */
static ddp_status put_back(norm_layer *layer, const ddpi_pass *pass, double *const arrays[2])
{
    const size_t c = (size_t)layer->channels;
    for (size_t i = 0; i < 2; i++)
        DDP_TRY(ddp_device_copy(layer->op.device, pass->stream, arrays[i],
                                layer->gathered + 1 + i * c, c * sizeof(double),
                                DDP_COPY_TO_DEVICE));
    return DDP_OK;
}

static ddp_status combine_statistics(norm_layer *layer, const ddpi_pass *pass,
                                     ddp_norm_state *state)
{
    const size_t c = (size_t)layer->channels, row = 1 + 2 * c;
    double *const arrays[2] = {state->mean, state->m2};
    const double *all;
    DDP_TRY(gather(layer, pass, &state->count, arrays, &all));
    double *mean = layer->gathered + 1, *m2 = mean + c, count = 0;
    memset(mean, 0, 2 * c * sizeof *mean);
    for (int r = 0; r < pass->sync->world; r++) {
        const double *theirs = all + (size_t)r * row;
        const double n = theirs[0], total = count + n;
        for (size_t i = 0; n > 0 && i < c; i++) {
            const double delta = theirs[1 + i] - mean[i];
            mean[i] += delta * (n / total);
            m2[i] += theirs[1 + c + i] + delta * delta * (count * n / total);
        }
        count = total;
    }
    layer->count = state->count = count;
    return put_back(layer, pass, arrays);
}

static ddp_status combine_gradients(norm_layer *layer, const ddpi_pass *pass,
                                    const ddp_norm_state *state)
{
    const size_t c = (size_t)layer->channels, row = 1 + 2 * c;
    double *const arrays[2] = {state->sum_dy, state->sum_dy_xhat};
    const double *all;
    DDP_TRY(gather(layer, pass, &state->count, arrays, &all));
    double *sums = layer->gathered + 1;
    memset(sums, 0, 2 * c * sizeof *sums);
    for (int r = 0; r < pass->sync->world; r++)
        for (size_t i = 0; i < 2 * c; i++)
            sums[i] += all[(size_t)r * row + 1 + i];
    return put_back(layer, pass, arrays);
}

/* PyTorch refuses this; here a last batch of one sample shall not end a long run. */
static void warn_of_single(norm_layer *layer, double count)
{
    if (count > 1 || layer->warned)
        return;
    ddp_warn("layer %s (batchnorm): a shard has one value for each channel, so the layer's output "
             "is its bias alone; expected at least two (larger shards or images, --sync-bn, or "
             "--drop-last)",
             layer->op.base.spec.name);
    layer->warned = true;
}

static ddp_status find_statistics(norm_layer *layer, ddp_op_plan *op, const ddpi_pass *pass,
                                  const ddp_op_args *args, ddp_norm_state *state)
{
    DDP_TRY(ddp_op_run(op, DDP_PASS_STATISTICS, pass->stream, args));
    if (pass->sync != NULL)
        DDP_TRY(combine_statistics(layer, pass, state));
    warn_of_single(layer, state->count);
    if (pass->running == NULL)
        return DDP_OK;
    const ddp_norm_running_args running = {
        .channels = layer->channels,
        .momentum = layer->momentum,
        .count = state->count,
        .mean = state->mean,
        .m2 = state->m2,
        .running_mean = pass->running + layer->running_mean,
        .running_var = pass->running + layer->running_var,
    };
    return ddp_op_norm_running(layer->op.device, pass->stream, &running);
}

static ddp_status forward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    norm_layer *layer = norm_of(base);
    ddp_op_plan *op = ddpi_op_layer_plan_op(plan);
    ddp_op_args args = ddpi_op_layer_args(&layer->op, pass);
    const bool training = plan->training;
    if (training && !pass->replay)
        layer->count = (double)(pass->input->count * layer->pixels);
    ddp_norm_state state = state_of(layer, plan, pass);
    args.norm = &state;
    if (training && !pass->replay)
        DDP_TRY(find_statistics(layer, op, pass, &args, &state));
    if (!training) {
        if (pass->running == NULL)
            return DDP_FAIL(DDP_ERR_INTERNAL, "layer %s: inference without running statistics",
                            base->spec.name);
        state.running_mean = pass->running + layer->running_mean;
        state.running_var = pass->running + layer->running_var;
    }
    return ddp_op_run(op, DDP_PASS_FORWARD, pass->stream, &args);
}

static ddp_status backward(ddpi_layer *base, ddpi_layer_plan *plan, const ddpi_pass *pass)
{
    norm_layer *layer = norm_of(base);
    ddp_op_plan *op = ddpi_op_layer_plan_op(plan);
    ddp_op_args args = ddpi_op_layer_args(&layer->op, pass);
    ddp_norm_state state = state_of(layer, plan, pass);
    args.norm = &state;
    DDP_TRY(ddp_op_run(op, DDP_PASS_BACKWARD_WEIGHTS, pass->stream, &args));
    if (pass->sync != NULL)
        DDP_TRY(combine_gradients(layer, pass, &state));
    if (pass->diff_src[0] != NULL)
        DDP_TRY(ddp_op_run(op, DDP_PASS_BACKWARD_DATA, pass->stream, &args));
    return ddpi_op_layer_params_done(&layer->op, pass);
}

const ddpi_layer_ops ddpi_layer_batchnorm = {.type = "batchnorm",
                                             .sources = 1,
                                             .create = create,
                                             .destroy = destroy,
                                             .absorb = absorb,
                                             .infer = infer,
                                             .plan = plan,
                                             DDPI_OP_LAYER_COMMON,
                                             .add_buffers = add_buffers,
                                             .forward = forward,
                                             .backward = backward};
