/* test_mixed_step.c - a training step over mixed samples has the loss that mixup defines. */
#include "harness.h"

#include <math.h>

#include "ddp/strategy.h"
#include "loopback_ranks.h"

enum { BATCH = 12, CLASSES = 10, PIXELS = 49 };

/* What the ranks share: one rank's sum by single samples, the step's as every rank reports it. */
typedef struct job {
    double want, got;
    double plain; /* the first labels alone */
} job;

typedef struct parts {
    ddp_device *device;
    ddp_dataset *data;
    ddp_model *model;
    ddp_strategy *strategy;
    ddp_loader_opts loader_opts;
} parts;

static ddp_status open_parts(ddp_comm *comm, parts *p)
{
    int world = ddp_comm_world(comm);
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    const ddp_data_opts data_opts = {.input_shape = {3, {1, 7, 7}},
                                     .synthetic_train = 3 * BATCH,
                                     .synthetic_test = 10,
                                     .synthetic_classes = CLASSES};
    const ddp_model_opts model_opts = {
        .input_shape = {3, {1, 7, 7}}, .classes = CLASSES, .mlp_widths = "20"};
    const ddp_strategy_opts opts = {.reducer = DDP_REDUCER_OPTS_DEFAULTS,
                                    .optim = DDP_OPTIM_OPTS_DEFAULTS};
    device_opts.threads = 1;
    p->loader_opts = (ddp_loader_opts){.sampler = {.size = data_opts.synthetic_train,
                                                   .batch = BATCH,
                                                   .shards = world,
                                                   .seed = 4,
                                                   .shuffle = true},
                                       .first_shard = ddp_comm_rank(comm),
                                       .shard_count = 1,
                                       .ring = 2,
                                       .mixup = 0.8};
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device_opts, &p->device));
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &data_opts, DDP_SPLIT_TRAIN, comm, &p->data));
    DDP_TRY(ddp_model_create(ddp_model_mlp(), &model_opts, p->device, &p->model));
    DDP_TRY(ddp_model_plan(p->model, BATCH / world, true));
    DDP_TRY(ddp_model_plan(p->model, 1, false));
    DDP_TRY(
        ddp_strategy_create(ddp_strategy_ddp(), &opts, p->model, p->device, comm, &p->strategy));
    return ddp_param_table_init(p->device, ddp_model_params(p->model), 1,
                                ddp_strategy_params(p->strategy));
}

static void close_parts(parts *p)
{
    ddp_strategy_destroy(p->strategy);
    ddp_model_destroy(p->model);
    ddp_dataset_close(p->data);
    ddp_device_close(p->device);
}

/* The global batch, sample by sample and label by label. */
static ddp_status sum_singles(parts *p, job *j)
{
    ddp_loader_opts opts = p->loader_opts;
    ddp_loader *loader;
    const ddp_batch *batch;
    const float *logits;
    opts.sampler.shards = 1;
    opts.first_shard = 0;
    DDP_TRY(ddp_loader_create(&opts, p->data, p->device, &loader));
    DDP_TRY(ddp_loader_next(loader, &batch));
    for (int64_t i = 0; i < batch->count; i++) {
        double one = 0, other = 0, mix = (double)batch->mix[i];
        ddp_model_input input = {.inputs = batch->inputs + i * PIXELS, .count = 1};
        input.labels = &batch->labels[i];
        DDP_TRY(ddp_model_infer(p->model, &input, &logits, &one));
        input.labels = &batch->labels2[i];
        DDP_TRY(ddp_model_infer(p->model, &input, &logits, &other));
        j->want += mix * one + (1 - mix) * other;
        j->plain += one;
    }
    ddp_loader_destroy(loader);
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    job *j = arg;
    parts p;
    ddp_loader *loader;
    ddp_step_stats stats;
    DDP_TRY(open_parts(comm, &p));
    /* Before the step binds the reducer's buffers, the strategy's are where the weights lie. */
    ddp_model_bind(p.model, ddp_strategy_params(p.strategy), NULL);
    if (ddp_comm_rank(comm) == 0)
        DDP_TRY(sum_singles(&p, j));
    DDP_TRY(ddp_comm_barrier(comm));
    DDP_TRY(ddp_loader_create(&p.loader_opts, p.data, p.device, &loader));
    DDP_TRY(ddp_strategy_step(p.strategy, loader, BATCH, 0.1, &stats));
    if (ddp_comm_rank(comm) == ddp_comm_world(comm) - 1)
        j->got = stats.loss_sum;
    DDP_TRY(ddp_comm_barrier(comm));
    ddp_loader_destroy(loader);
    close_parts(&p);
    return DDP_OK;
}

static void test_loss(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) {
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        job j = {0};
        comm.exit_on_failure = false;
        CHECK_OK(run_ranks(&comm, world, run_rank, &j));
        assert_true(fabs(j.got - j.want) < 1e-5 * j.want);
        assert_true(fabs(j.plain - j.want) > 1e-3 * j.want); /* the second labels count */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
