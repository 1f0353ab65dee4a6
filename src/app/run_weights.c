/* run_weights.c - files of a run's weights, and of what they make of the test set.
 *
 * Every rank reads the file that it starts from: on shared storage that is one read a node, the
 * rest comes out of the page cache, and nothing has to be sent. The ranks agree on the verdict, and
 * their values are compared before the first step. */
#include <inttypes.h>
#include <stdio.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/weights.h"

static ddp_weights weights_of(const ddpi_run *run)
{
    return (ddp_weights){.device = run->net.device,
                         .table = ddp_model_params(run->net.model),
                         .params = run->net.params,
                         .buffers = ddp_model_buffers(run->net.model),
                         .running = run->net.running,
                         .counter = run->net.batches};
}

static size_t running_bytes(const ddpi_run *run)
{
    return ddp_buffer_table_length(ddp_model_buffers(run->net.model)) * sizeof(float);
}

/* ---- loading ---- */

/* Files may differ where ranks do not share storage. Parameters are compared before the first step
 * anyway. */
static ddp_status hash_running(ddpi_run *run, const float *running)
{
    ddp_stream *stream = ddp_device_main_stream(run->net.device);
    size_t bytes = running_bytes(run);
    float *host;

    DDP_TRY(ddp_alloc_bytes(bytes, 1, (void **)(void *)&host));
    ddp_status st =
        ddp_device_copy(run->net.device, stream, host, running, bytes, DDP_COPY_TO_HOST);
    if (st == DDP_OK)
        st = ddp_stream_sync(stream);
    if (st == DDP_OK)
        run->net.running_hash = ddp_hash64(host, bytes);
    ddp_free(host);
    return st;
}

static ddp_status load(ddpi_run *run, ddp_weights *weights)
{
    const ddp_run_opts *opts = &run->config.run;

    DDP_TRY(ddp_weights_load(opts->init_weights, opts->init_partial, weights));
    run->net.batches = weights->counter;
    if (running_bytes(run) == 0)
        return DDP_OK;
    DDP_TRY(hash_running(run, weights->running));
    if (run->net.strategy == NULL)
        return DDP_OK;
    return ddp_strategy_set_running(run->net.strategy, weights->running);
}

/* Statistics that the file has not, with --init-partial, start as they always do. */
static ddp_status init_running(const ddpi_run *run, float *running)
{
    ddp_stream *stream = ddp_device_main_stream(run->net.device);
    size_t bytes = running_bytes(run);
    float *host;

    DDP_TRY(ddp_alloc_bytes(bytes, 1, (void **)(void *)&host));
    ddp_buffer_table_init(ddp_model_buffers(run->net.model), host);
    ddp_status st =
        ddp_device_copy(run->net.device, stream, running, host, bytes, DDP_COPY_TO_DEVICE);
    if (st == DDP_OK)
        st = ddp_stream_sync(stream);
    ddp_free(host);
    return st;
}

/* A strategy has a set of statistics for each shard and takes over one for all. */
static ddp_status load_for_strategy(ddpi_run *run, ddp_weights *weights)
{
    size_t bytes = running_bytes(run);
    void *memory;

    if (bytes == 0)
        return load(run, weights);
    DDP_TRY(ddp_device_alloc(run->net.device, bytes, &memory));
    weights->running = memory;
    ddp_status st = init_running(run, memory);
    if (st == DDP_OK)
        st = load(run, weights);
    ddp_device_free(run->net.device, memory, bytes);
    return st;
}

ddp_status ddpi_run_load_weights(ddpi_run *run)
{
    const ddp_run_opts *opts = &run->config.run;
    ddp_weights weights = weights_of(run);

    if (ddpi_run_resumes(run))
        return ddpi_run_load_checkpoint(run);
    if (opts->init_weights == NULL || opts->init_partial)
        DDP_TRY(ddp_param_table_init(run->net.device, weights.table, run->config.data.seed,
                                     run->net.params));
    if (opts->init_weights == NULL)
        return DDP_OK;
    return run->net.strategy != NULL ? load_for_strategy(run, &weights) : load(run, &weights);
}

ddp_status ddpi_run_compare_running(const ddpi_run *run)
{
    char text[64];

    if (run->config.run.init_weights == NULL || ddpi_run_resumes(run) || running_bytes(run) == 0)
        return DDP_OK;
    snprintf(text, sizeof text, "running_statistics=%016" PRIx64 "\n", run->net.running_hash);
    return ddp_comm_fingerprint(run->comm, text, "initial weights");
}

/* ---- saving ---- */

/* Collective: the ranks' running statistics become one. */
ddp_status ddpi_run_save_weights(ddpi_run *run)
{
    ddp_weights weights = weights_of(run);
    const float *combined = NULL;

    if (run->config.run.save_weights == NULL)
        return DDP_OK;
    if (run->net.strategy != NULL) {
        DDP_TRY(ddp_strategy_combine(run->net.strategy, &combined));
        weights.running = (float *)combined; /* only read */
    }
    weights.counter += run->summary.steps;
    return run->rank == 0 ? ddp_weights_save(run->config.run.save_weights, &weights) : DDP_OK;
}

/* ---- logits ---- */

ddp_status ddpi_run_keep_logits(ddpi_run *run, ddp_eval_opts *opts)
{
    ddpi_run_net *net = &run->net;
    size_t count = (size_t)ddp_dataset_get_info(run->data.test)->count;

    if (run->config.run.dump_logits == NULL)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(net->logits, count * (size_t)ddp_model_classes(net->model)));
    DDP_TRY(DDP_ALLOC(net->labels, count));
    opts->logits = net->logits;
    opts->labels = net->labels;
    return DDP_OK;
}

ddp_status ddpi_run_save_logits(const ddpi_run *run)
{
    const ddpi_run_net *net = &run->net;

    if (run->rank != 0 || run->config.run.dump_logits == NULL)
        return DDP_OK;
    return ddp_logits_save(run->config.run.dump_logits, net->logits, net->labels,
                           ddp_dataset_get_info(run->data.test)->count,
                           ddp_model_classes(net->model));
}
