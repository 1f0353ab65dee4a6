/* run_model.c - device, model with all its plans, and what training or evaluation puts around it.
 *
 * Plans are made for every number of samples that a shard of this run can have, on all ranks alike
 * and largest first: planning may time candidates, and then rank 0's choice goes to everybody. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "app/run.h"
#include "ddp/memory.h"

enum { RING_WITH_WORKERS = 4, RING_WITHOUT = 2 };

/* ---- device and plans ---- */

/* Device callback: rank 0's choice. A failure of the communicator comes up again at once. */
static int choose(void *arg, int mine, int count)
{
    ddpi_run *run = arg;
    int32_t index = mine;

    if (ddp_comm_broadcast(run->comm, 0, &index, sizeof index) != DDP_OK || index < 0 ||
        index >= count)
        return mine;
    return index;
}

static void add_size(int64_t *sizes, int *count, int64_t size)
{
    int at = 0;

    while (at < *count && sizes[at] > size)
        at++;
    if (size < 1 || (at < *count && sizes[at] == size))
        return;
    for (int i = *count; i > at; i--)
        sizes[i] = sizes[i - 1];
    sizes[at] = size;
    (*count)++;
}

/* Shards of a step differ by at most one sample. */
static void add_step(const ddp_sampler *sampler, int64_t step, int64_t *sizes, int *count)
{
    int64_t samples = ddp_sampler_step_count(sampler, step);

    add_size(sizes, count, samples / sampler->shards);
    if (samples % sampler->shards != 0)
        add_size(sizes, count, samples / sampler->shards + 1);
}

static ddp_status plan_training(ddpi_run *run)
{
    const ddp_sampler *sampler = &run->data.sampler;
    int64_t sizes[4], last = ddp_sampler_steps(sampler) - 1;
    int64_t limit = run->config.trainer.max_steps;
    int count = 0;

    add_step(sampler, 0, sizes, &count);
    if (limit == 0 || limit > last)
        add_step(sampler, last, sizes, &count);
    for (int i = 0; i < count; i++)
        DDP_TRY(ddp_model_plan(run->net.model, sizes[i], true));
    return DDP_OK;
}

static ddp_status freeze(ddpi_run *run)
{
    const char *patterns = run->config.run.freeze;

    if (patterns == NULL)
        return DDP_OK;
    return ddp_param_table_freeze(ddp_model_params(run->net.model), patterns);
}

ddp_status ddpi_run_create_model(ddpi_run *run)
{
    const ddp_device_ops *ops =
        run->place.cuda != NULL ? run->place.cuda->device : ddp_device_cpu();
    const ddp_model_def *def;

    DDP_TRY(ddpi_registry_model(run->app->registry, run->config.run.model, &def));
    run->config.device.choose = choose;
    run->config.device.choose_arg = run;
    DDP_TRY(ddp_device_open(ops, &run->config.device, &run->net.device));
    DDP_TRY(ddpi_run_attach_lane(run));
    return ddp_model_create(def, &run->config.model, run->net.device, &run->net.model);
}

ddp_status ddpi_run_open_model(ddpi_run *run)
{
    DDP_TRY(ddpi_run_create_model(run));
    if (run->config.run.eval_only || run->config.run.replay != NULL)
        return DDP_OK;
    DDP_TRY(plan_training(run));
    return freeze(run);
}

/* ---- what is around it ---- */

static ddp_status open_loader(ddpi_run *run)
{
    ddp_loader_opts opts = {.sampler = run->data.sampler,
                            .first_shard = ddpi_run_first_shard(run),
                            .shard_count = run->config.reducer.shards,
                            .workers = run->config.workers,
                            .ring = run->config.workers > 0 ? RING_WITH_WORKERS : RING_WITHOUT,
                            .transform = run->data.train_transform,
                            .mixup = run->config.run.mixup};

    return ddp_loader_create(&opts, run->data.train, run->net.device, &run->net.loader);
}

static ddp_status open_eval(ddpi_run *run, ddp_dataset *dataset, ddp_eval **eval_out)
{
    ddp_eval_opts opts = {.transform = run->data.eval_transform};

    if (dataset == run->data.test)
        DDP_TRY(ddpi_run_keep_logits(run, &opts));
    return ddp_eval_create(&opts, run->net.model, run->net.device, dataset, run->comm, eval_out);
}

/* Without a strategy, somebody else must own the parameters, and the running statistics behind
 * them. */
static ddp_status own_params(ddpi_run *run)
{
    const ddp_buffer_table *buffers = ddp_model_buffers(run->net.model);
    size_t params = ddp_param_table_length(ddp_model_params(run->net.model));
    size_t running = ddp_buffer_table_length(buffers), bytes = (params + running) * sizeof(float);
    float *first;
    void *memory;

    DDP_TRY(ddp_device_alloc(run->net.device, bytes, &memory));
    run->net.params = memory;
    run->net.eval_only_bytes = bytes;
    ddp_model_bind(run->net.model, run->net.params, NULL);
    if (running == 0)
        return DDP_OK;
    run->net.running = run->net.params + params;
    DDP_TRY(DDP_ALLOC(first, running));
    ddp_buffer_table_init(buffers, first);
    ddp_status st =
        ddp_device_copy(run->net.device, ddp_device_main_stream(run->net.device), run->net.running,
                        first, running * sizeof(float), DDP_COPY_TO_DEVICE);
    if (st == DDP_OK)
        st = ddp_stream_sync(ddp_device_main_stream(run->net.device));
    ddp_free(first);
    ddp_model_bind_running(run->net.model, run->net.running);
    return st;
}

static ddp_status open_strategy(ddpi_run *run)
{
    ddp_strategy_opts opts = {.reducer = run->config.reducer,
                              .optim = run->config.optim,
                              .seed = run->config.data.seed,
                              .sync_norms = run->config.run.sync_bn,
                              .seals = run->config.trainer.check_replicas > 0,
                              .loss_scale = run->config.loss_scale,
                              .loss_scale_grows = run->config.loss_scale_grows,
                              .graph = run->config.run.cuda_graph};

    opts.reducer.hook = ddpi_wiring_hook(&run->config.run);
    DDP_TRY(ddp_strategy_create(ddpi_wiring_strategy(run->config.run.strategy), &opts,
                                run->net.model, run->net.device, run->comm, &run->net.strategy));
    run->net.params = ddp_strategy_params(run->net.strategy);
    return DDP_OK;
}

ddp_status ddpi_run_open_training(ddpi_run *run)
{
    ddp_status st = open_eval(run, run->data.test, &run->net.test);

    if (st == DDP_OK && run->data.val != NULL)
        st = open_eval(run, run->data.val, &run->net.val);
    if (st == DDP_OK && run->config.run.eval_only)
        return own_params(run);
    if (st == DDP_OK)
        st = open_loader(run);
    DDP_TRY(ddpi_run_agree(run, st, "open loader and evaluation"));
    DDP_TRY(ddpi_run_choose_buckets(run));
    return open_strategy(run);
}

ddp_status ddpi_run_restart(ddpi_run *run)
{
    ddp_saver_destroy(run->net.saver);
    run->net.saver = NULL;
    ddp_strategy_destroy(run->net.strategy);
    run->net.strategy = NULL;
    run->net.params = NULL;
    ddp_loader_destroy(run->net.loader);
    run->net.loader = NULL;
    DDP_TRY(ddpi_run_agree(run, open_loader(run), "open the loader"));
    return open_strategy(run);
}

/* Kernels follow the processor or GPU and the library, and with them the last bits of a sum. */
static ddp_status compare_devices(ddpi_run *run)
{
    char text[512];

    if (!run->config.run.exact)
        return DDP_OK;
    snprintf(text, sizeof text, "device=%s\n", ddp_device_describe(run->net.device));
    return ddp_comm_fingerprint(run->comm, text, "devices with --exact");
}

/* Parameters' values are compared by the trainer; here what decides their places in memory. */
ddp_status ddpi_run_compare_models(ddpi_run *run)
{
    char *text = NULL;
    ddp_status st =
        ddpi_run_agree(run, ddp_model_fingerprint(run->net.model, &text), "describe the model");

    if (st == DDP_OK)
        st = ddp_comm_fingerprint(run->comm, text, "model");
    ddp_free(text);
    DDP_TRY(st);
    DDP_TRY(compare_devices(run));
    DDP_TRY(ddpi_run_compare_running(run));
    if (!run->config.run.eval_only)
        return DDP_OK;
    const ddp_replica_check check = {.comm = run->comm,
                                     .device = run->net.device,
                                     .table = ddp_model_params(run->net.model),
                                     .params = run->net.params};
    return ddp_check_replicas(&check);
}

/* Rank 0 measures alone. Ranks that share cores do not add up. */
ddp_status ddpi_run_measure_peak(ddpi_run *run)
{
    double flops = 0;
    ddp_status st = run->rank == 0 ? ddp_device_measure_peak(run->net.device, &flops) : DDP_OK;
    double fit = (double)ddpi_run_core_count(run) / run->ranks[0].threads;

    DDP_TRY(ddpi_run_agree(run, st, "measure the peak"));
    DDP_TRY(ddp_comm_broadcast(run->comm, 0, &flops, sizeof flops));
    run->net.peak_flops = flops * (run->world < fit ? run->world : fit);
    return DDP_OK;
}

void ddpi_run_close_model(ddpi_run *run)
{
    ddpi_run_net *net = &run->net;

    ddp_timeline_destroy(net->timeline);
    ddp_saver_destroy(net->saver);
    ddp_eval_destroy(net->val);
    ddp_eval_destroy(net->test);
    ddp_free(net->logits);
    ddp_free(net->labels);
    ddp_strategy_destroy(net->strategy);
    if (net->eval_only_bytes > 0)
        ddp_device_free(net->device, net->params, net->eval_only_bytes);
    ddp_model_destroy(net->model);
    ddp_loader_destroy(net->loader);
    ddp_comm_detach(run->comm);
    ddp_device_close(net->device);
}
