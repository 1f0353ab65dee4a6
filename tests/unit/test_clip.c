/* test_clip.c - what is decided between reduction and update is the same for every world: clipping,
 * norms of whole parameters that slices and buckets cut, steps that are skipped, averages.
 *
 * A small mlp trains on synthetic data over loopback ranks; buckets are so small that every larger
 * parameter is cut into slices. */
#include "harness.h"

#include <math.h>

#include "ddp/strategy.h"
#include "loopback_ranks.h"

enum { BATCH = 60, STEPS = 6, MAX_LENGTH = 16384 };
static const double RATE = 0.05;

/* What all ranks must agree on. */
typedef struct outcome {
    double losses[STEPS], norms[STEPS];
    float params[MAX_LENGTH], average[MAX_LENGTH];
    size_t length;
} outcome;

typedef struct job {
    ddp_optim_opts optim;
    const ddp_strategy_ops *strategy;
    int poisoned_rank; /* its first step starts from parameters that are not finite; -1: none */
    outcome *out;      /* rank 0 writes it */
} job;

typedef struct rig {
    ddp_device *device;
    ddp_dataset *data;
    ddp_loader *loader;
    ddp_model *model;
    ddp_strategy *strategy;
} rig;

static ddp_status open_data(rig *g, ddp_comm *comm)
{
    ddp_data_opts opts = {.input_shape = {3, {1, 8, 8}},
                          .synthetic_train = BATCH * STEPS,
                          .synthetic_test = 10,
                          .synthetic_classes = 10,
                          .seed = 5};
    ddp_loader_opts loader = {.sampler = {.size = BATCH * STEPS,
                                          .batch = BATCH,
                                          .shards = ddp_comm_world(comm),
                                          .seed = 5,
                                          .shuffle = true},
                              .first_shard = ddp_comm_rank(comm),
                              .shard_count = 1,
                              .ring = 2};
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &opts, DDP_SPLIT_TRAIN, comm, &g->data));
    DDP_TRY(ddp_loader_create(&loader, g->data, g->device, &g->loader));
    return ddp_loader_seek(g->loader, 0, 0);
}

static ddp_status open_rig(rig *g, const job *j, ddp_comm *comm)
{
    ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_model_opts model = {.input_shape = {3, {1, 8, 8}}, .classes = 10, .mlp_widths = "40,30"};
    ddp_strategy_opts opts = {.reducer = DDP_REDUCER_OPTS_DEFAULTS, .optim = j->optim};
    opts.reducer.first_bucket_mb = 0.001;
    opts.reducer.bucket_cap_mb = 0.002;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device, &g->device));
    DDP_TRY(open_data(g, comm));
    DDP_TRY(ddp_model_create(ddp_model_mlp(), &model, g->device, &g->model));
    DDP_TRY(ddp_model_plan(g->model, BATCH / ddp_comm_world(comm), true));
    DDP_TRY(ddp_strategy_create(j->strategy, &opts, g->model, g->device, comm, &g->strategy));
    return ddp_param_table_init(g->device, ddp_model_params(g->model), 1,
                                ddp_strategy_params(g->strategy));
}

static void close_rig(rig *g)
{
    ddp_strategy_destroy(g->strategy);
    ddp_model_destroy(g->model);
    ddp_loader_destroy(g->loader);
    ddp_dataset_close(g->data);
    ddp_device_close(g->device);
}

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return DDP_FAIL(DDP_ERR_INTERNAL, "line %d: %s is not so", __LINE__, #condition);      \
    } while (0)

/* One rank alone has a number that is not finite: all leave the step out. */
static ddp_status poisoned_step(const rig *g, const job *j, ddp_comm *comm)
{
    float *params = ddp_strategy_params(g->strategy), saved = params[0];
    ddp_step_stats stats;
    if (ddp_comm_rank(comm) == j->poisoned_rank)
        params[0] = NAN;
    DDP_TRY(ddp_comm_barrier(comm));
    DDP_TRY(ddp_strategy_step(g->strategy, g->loader, BATCH, RATE, &stats));
    EXPECT(stats.skipped);
    EXPECT(stats.nonfinite_rank == j->poisoned_rank);
    DDP_TRY(ddp_comm_barrier(comm));
    params[0] = saved;
    DDP_TRY(ddp_comm_barrier(comm));
    return ddp_loader_seek(g->loader, 0, 0);
}

static ddp_status train(const rig *g, const job *j, ddp_comm *comm)
{
    bool writes = ddp_comm_rank(comm) == 0;
    if (j->poisoned_rank >= 0)
        DDP_TRY(poisoned_step(g, j, comm));
    for (int s = 0; s < STEPS; s++) {
        ddp_step_stats stats;
        DDP_TRY(ddp_strategy_step(g->strategy, g->loader, BATCH, RATE, &stats));
        EXPECT(!stats.skipped && stats.nonfinite_rank < 0);
        if (writes) {
            j->out->losses[s] = stats.loss_sum / (double)stats.count;
            j->out->norms[s] = stats.grad_norm;
        }
    }
    float *average;
    DDP_TRY(ddp_strategy_average(g->strategy, &average));
    const size_t length = ddp_param_table_length(ddp_model_params(g->model));
    EXPECT(length <= MAX_LENGTH);
    if (writes) {
        j->out->length = length;
        memcpy(j->out->params, ddp_strategy_params(g->strategy), length * sizeof(float));
        memcpy(j->out->average, average, length * sizeof(float));
    }
    DDP_TRY(ddp_comm_barrier(comm));
    /* Other ranks have what rank 0 has, bit for bit. */
    EXPECT(memcmp(j->out->params, ddp_strategy_params(g->strategy), length * sizeof(float)) == 0);
    EXPECT(memcmp(j->out->average, average, length * sizeof(float)) == 0);
    return ddp_comm_barrier(comm);
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    rig g = {0};
    DDP_TRY(open_rig(&g, arg, comm));
    DDP_TRY(train(&g, arg, comm));
    close_rig(&g);
    return DDP_OK;
}

static void run(const job *j, int world, ddp_allreduce_algo algo, outcome *out)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    job copy = *j;
    comm.exit_on_failure = false;
    comm.allreduce = algo;
    copy.out = out;
    CHECK_OK(run_ranks(&comm, world, run_rank, &copy));
}

static void near(double got, double want, const char *label, const char *what, int index)
{
    if (!(fabs(got - want) <= 2e-5 * (fabs(want) + 0.01)))
        fail_msg("%s: %s %d is %.9g, on one rank %.9g", label, what, index, got, want);
}

static void compare(const outcome *got, const outcome *want, const char *label)
{
    for (int s = 0; s < STEPS; s++) {
        near(got->losses[s], want->losses[s], label, "loss", s);
        near(got->norms[s], want->norms[s], label, "norm", s);
    }
    for (size_t i = 0; i < want->length; i++) {
        near(got->params[i], want->params[i], label, "parameter", (int)i);
        near(got->average[i], want->average[i], label, "average", (int)i);
    }
}

static const ddp_strategy_ops *strategy_at(int index)
{
    return index == 0   ? ddp_strategy_ddp()
           : index == 1 ? ddp_strategy_sync()
                        : ddp_strategy_naive();
}

static job make_job(int kind)
{
    job j = {.optim = DDP_OPTIM_OPTS_DEFAULTS, .poisoned_rank = -1};
    j.optim.kind = kind;
    j.optim.weight_decay = 0.01;
    j.optim.eps = 1e-3; /* directions are not signs of gradients that are only rounding */
    j.optim.trust = 0.1;
    j.optim.momentum = kind == DDP_OPTIM_LARS || kind == DDP_OPTIM_SGD ? 0.9 : 0;
    j.strategy = ddp_strategy_ddp();
    return j;
}

static outcome one, many;

/* Every strategy and 1 to 4 ranks, in windows and by messages. */
static void compare_worlds(job *j, const char *label)
{
    char text[80];
    j->strategy = ddp_strategy_ddp();
    run(j, 1, DDP_ALLREDUCE_AUTO, &one);
    assert_true(fabs(one.losses[STEPS - 1] - one.losses[0]) > 1e-3); /* something moves */
    for (int world = 2; world <= 4; world++)
        for (int s = 0; s < 3; s++) {
            j->strategy = strategy_at(s);
            snprintf(text, sizeof text, "%s, %s, %d ranks", label, ddp_strategy_name(j->strategy),
                     world);
            run(j, world, s == 0 && world == 3 ? DDP_ALLREDUCE_RING : DDP_ALLREDUCE_AUTO, &many);
            compare(&many, &one, text);
        }
}

static void lars_and_lamb_have_norms_of_whole_parameters(void **state)
{
    (void)state;
    job j = make_job(DDP_OPTIM_LARS);
    compare_worlds(&j, "lars");
    j = make_job(DDP_OPTIM_LAMB);
    compare_worlds(&j, "lamb");
}

static void clipping_and_averages_are_the_same_everywhere(void **state)
{
    (void)state;
    job j = make_job(DDP_OPTIM_LAMB);
    j.optim.clip_grad_norm = 0.3;
    j.optim.ema = 0.8;
    compare_worlds(&j, "lamb, clipped");
    j.optim.kind = DDP_OPTIM_ADAMW;
    compare_worlds(&j, "adamw, clipped");
    bool differs = false;
    for (size_t i = 0; i < one.length; i++)
        differs |= fabsf(one.average[i] - one.params[i]) > 1e-3f;
    assert_true(differs);
}

static void a_step_that_is_not_finite_is_as_if_it_had_not_been(void **state)
{
    (void)state;
    for (int kind = DDP_OPTIM_SGD; kind <= DDP_OPTIM_LAMB; kind++)
        for (int s = 0; s < 3; s++) {
            job j = make_job(kind);
            char text[80];
            j.optim.skip_nonfinite = true;
            j.optim.ema = 0.5;
            j.strategy = strategy_at(s);
            run(&j, 3, DDP_ALLREDUCE_AUTO, &one);
            j.poisoned_rank = 1;
            run(&j, 3, DDP_ALLREDUCE_AUTO, &many);
            snprintf(text, sizeof text, "optimizer %d, strategy %d", kind, s);
            compare(&many, &one, text);
        }
}

/* ---- the size of a clipped step ---- */

static ddp_status check_clipping(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    ddp_step_stats stats;
    static float before[MAX_LENGTH], grads[MAX_LENGTH]; /* rank 0's */
    DDP_TRY(open_rig(&g, j, comm));
    const size_t length = ddp_param_table_length(ddp_model_params(g.model));
    DDP_TRY(ddp_strategy_gradients(g.strategy, g.loader, BATCH, &stats));
    double square = 0;
    if (ddp_comm_rank(comm) == 0) {
        memcpy(before, ddp_strategy_params(g.strategy), length * sizeof(float));
        memcpy(grads, ddp_strategy_grads(g.strategy), length * sizeof(float));
        for (size_t i = 0; i < length; i++)
            square += pow((double)grads[i] / BATCH, 2);
    }
    DDP_TRY(ddp_comm_barrier(comm));
    DDP_TRY(ddp_loader_seek(g.loader, 0, 0));
    DDP_TRY(ddp_strategy_step(g.strategy, g.loader, BATCH, RATE, &stats));
    if (ddp_comm_rank(comm) == 0) {
        const double norm = sqrt(square), limit = j->optim.clip_grad_norm;
        const double factor = limit / (norm + 1e-6) < 1 ? limit / (norm + 1e-6) : 1;
        EXPECT(fabs(stats.grad_norm - norm) <= 1e-5 * norm); /* the unclipped one is told */
        for (size_t i = 0; i < length; i++) {
            const double want = before[i] - RATE * factor * grads[i] / BATCH;
            EXPECT(fabs(ddp_strategy_params(g.strategy)[i] - want) <= 1e-6);
        }
        EXPECT((factor < 1) == (limit < 1));
    }
    DDP_TRY(ddp_comm_barrier(comm));
    close_rig(&g);
    return DDP_OK;
}

static void only_longer_gradients_are_clipped_and_to_the_limit(void **state)
{
    (void)state;
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    const double limits[] = {0.01, 1e6};
    for (int l = 0; l < 2; l++)
        for (int s = 0; s < 3; s++)
            for (int world = 1; world <= 3; world += 2) {
                job j = {.optim = DDP_OPTIM_OPTS_DEFAULTS, .strategy = strategy_at(s)};
                j.optim.clip_grad_norm = limits[l];
                CHECK_OK(run_ranks(&comm, world, check_clipping, &j));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_longer_gradients_are_clipped_and_to_the_limit),
        cmocka_unit_test(lars_and_lamb_have_norms_of_whole_parameters),
        cmocka_unit_test(clipping_and_averages_are_the_same_everywhere),
        cmocka_unit_test(a_step_that_is_not_finite_is_as_if_it_had_not_been),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
