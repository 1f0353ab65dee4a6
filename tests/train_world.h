/* train_world.h - small models trained by loopback ranks, with the logical shards dealt as a test
 * likes.
 *
 * A curve has what a world's rank 0 sees: losses, the first step's gradient, and after the last
 * step parameters and combined running statistics, all in plain layouts. */
#ifndef DDP_TESTS_TRAIN_WORLD_H
#define DDP_TESTS_TRAIN_WORLD_H

#include "harness.h"

#include <math.h>

#include "ddp/eval.h"
#include "ddp/strategy.h"
#include "loopback_ranks.h"

enum { WORLD_MAX_STEPS = 16, WORLD_SIDE = 10, WORLD_CLASSES = 7, WORLD_SEED = 11 };

typedef struct world_job {
    const ddp_model_def *model;
    int64_t size, batch, shards, steps; /* samples of an epoch and a step; K; steps to train */
    int world;
    const int64_t *counts; /* shards of each rank; NULL: equal */
    double momentum;
    bool sync_norms;
    int recompute;
    bool exact, bf16;                 /* exact: the order of sums is that of the shards */
    const ddp_optim_opts *optim;      /* NULL: sgd with the momentum above */
    const ddp_device_opts *device;    /* NULL: gemm on one thread */
    const ddp_comm_opts *comm;        /* NULL: the defaults */
    const ddp_device_ops *backend;    /* NULL: the CPU; else with a lane by way of the host */
    const ddp_strategy_ops *strategy; /* NULL: ddp */
    const ddp_hook_ops *hook;         /* NULL: gradients travel as they are */
    double loss_scale;                /* to begin with; 0: none */
    int64_t tests;                    /* samples to evaluate over at the end; 0: none */
} world_job;

typedef struct world_curve {
    double losses[WORLD_MAX_STEPS];   /* mean over the step's samples */
    int64_t samples[WORLD_MAX_STEPS]; /* of the step, over all ranks */
    double grad_norms[WORLD_MAX_STEPS];
    double scales[WORLD_MAX_STEPS];
    bool overflows[WORLD_MAX_STEPS];
    float *grads, *params, *running; /* NULL: no running statistics */
    size_t count, running_count;
    ddp_eval_result test;
} world_curve;

typedef struct world_run {
    const world_job *job;
    world_curve *out; /* rank 0 writes it */
} world_run;

typedef struct world_rig {
    ddp_device *device;
    ddp_dataset *data;
    ddp_sampler sampler;
    ddp_loader *loader;
    ddp_model *model;
    ddp_strategy *strategy;
    int64_t first, shards; /* this rank's */
} world_rig;

/* ---- models ---- */

#define WORLD_DRAW(bound)                                                                          \
    .weight_init = {DDP_INIT_UNIFORM, bound}, .bias_init = {DDP_INIT_UNIFORM, 0.1}

static inline ddp_status world_add_all(ddp_model_builder *builder, const ddp_layer_spec *specs,
                                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        DDP_TRY(ddp_model_add(builder, &specs[i]));
    return DDP_OK;
}

static inline ddp_status world_build_plain(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 6, .kernel = 3, WORLD_DRAW(0.5)},
        {.type = "relu", .name = "r1"},
        {.type = "maxpool", .name = "p1", .kernel = 2},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l1", .out = 20, WORLD_DRAW(0.2)},
        {.type = "relu", .name = "r2"},
        {.type = "linear", .name = "l2", .out = opts->classes, WORLD_DRAW(0.4)},
    };
    return world_add_all(builder, specs, sizeof specs / sizeof specs[0]);
}

/* The parts of a residual network: norms with relu, with a sum and relu, and with nothing behind.
 */
static inline ddp_status world_build_norms(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 6, .kernel = 3, .pad = 1, WORLD_DRAW(0.5)},
        {.type = "batchnorm", .name = "n1"},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d", .name = "c2", .out = 6, .kernel = 3, .pad = 1, WORLD_DRAW(0.3)},
        {.type = "batchnorm", .name = "n2"},
        {.type = "add", .name = "a1", .input = "n2", .input2 = "r1"},
        {.type = "relu", .name = "r2"},
        {.type = "conv2d", .name = "c3", .out = 9, .kernel = 3, .stride = 2, WORLD_DRAW(0.3)},
        {.type = "batchnorm", .name = "n3"},
        {.type = "globalavgpool", .name = "g"},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l", .out = opts->classes, WORLD_DRAW(0.5)},
    };
    return world_add_all(builder, specs, sizeof specs / sizeof specs[0]);
}

static const ddp_model_def world_plain = {"plain", "test", world_build_plain};
static const ddp_model_def world_norms = {"norms", "test", world_build_norms};

/* ---- a rank ---- */

static inline void world_deal(world_rig *g, const world_job *j, int rank)
{
    g->shards = j->counts != NULL ? j->counts[rank] : j->shards / j->world;
    g->first = 0;
    for (int r = 0; r < rank; r++)
        g->first += j->counts != NULL ? j->counts[r] : g->shards;
}

static inline ddp_data_opts world_data_opts(const world_job *j)
{
    return (ddp_data_opts){.dataset = "synthetic",
                           .input_shape = {3, {1, WORLD_SIDE, WORLD_SIDE}},
                           .synthetic_train = j->size,
                           .synthetic_test = j->tests > 0 ? j->tests : 1,
                           .synthetic_classes = WORLD_CLASSES,
                           .seed = WORLD_SEED};
}

static inline ddp_status world_open_data(world_rig *g, const world_job *j, ddp_comm *comm)
{
    const ddp_data_opts opts = world_data_opts(j);
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &opts, DDP_SPLIT_TRAIN, comm, &g->data));
    g->sampler = (ddp_sampler){.size = j->size,
                               .batch = j->batch,
                               .shards = j->shards,
                               .seed = WORLD_SEED,
                               .shuffle = true};
    world_deal(g, j, ddp_comm_rank(comm));
    const ddp_loader_opts loader = {
        .sampler = g->sampler, .first_shard = g->first, .shard_count = g->shards, .ring = 2};
    DDP_TRY(ddp_loader_create(&loader, g->data, g->device, &g->loader));
    return ddp_loader_seek(g->loader, 0, 0);
}

static inline ddp_status world_plan(world_rig *g)
{
    for (int64_t step = 0; step < ddp_sampler_steps(&g->sampler); step++)
        for (int64_t shard = 0; shard < g->sampler.shards; shard++) {
            int64_t first, n = ddp_sampler_shard(&g->sampler, step, shard, &first);
            if (n > 0)
                DDP_TRY(ddp_model_plan(g->model, n, true));
        }
    return DDP_OK;
}

static inline ddp_status world_open_model(world_rig *g, const world_job *j, ddp_comm *comm)
{
    const ddp_model_opts opts = {.input_shape = {3, {1, WORLD_SIDE, WORLD_SIDE}},
                                 .classes = WORLD_CLASSES,
                                 .recompute = j->recompute,
                                 .compute = j->bf16 ? DDP_BF16 : DDP_F32};
    ddp_strategy_opts strategy = {.reducer = DDP_REDUCER_OPTS_DEFAULTS,
                                  .optim = DDP_OPTIM_OPTS_DEFAULTS,
                                  .sync_norms = j->sync_norms,
                                  .loss_scale = j->loss_scale};
    strategy.optim.momentum = j->momentum;
    if (j->optim != NULL)
        strategy.optim = *j->optim;
    strategy.reducer.exact = j->exact;
    strategy.reducer.shards = g->shards;
    strategy.reducer.first_bucket_mb = 0.001; /* several buckets, of models this small */
    strategy.reducer.bucket_cap_mb = 0.01;
    DDP_TRY(ddp_model_create(j->model, &opts, g->device, &g->model));
    DDP_TRY(world_plan(g));
    strategy.reducer.hook = j->hook;
    DDP_TRY(ddp_strategy_create(j->strategy != NULL ? j->strategy : ddp_strategy_ddp(), &strategy,
                                g->model, g->device, comm, &g->strategy));
    return ddp_param_table_init(g->device, ddp_model_params(g->model), WORLD_SEED,
                                ddp_strategy_params(g->strategy));
}

static inline ddp_status world_export(world_rig *g, const float *flat, float **plain_out,
                                      size_t *count_out)
{
    const ddp_param_table *table = ddp_model_params(g->model);
    size_t at = 0;
    DDP_TRY(DDP_ALLOC(*plain_out, (size_t)ddp_param_table_elements(table)));
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        DDP_TRY(ddp_param_export(g->device, p, flat, *plain_out + at));
        at += (size_t)ddp_shape_count(&p->shape);
    }
    *count_out = at;
    return DDP_OK;
}

/* The first step's gradient, before any update: those samples are taken twice, and the running
 * statistics see them twice. */
static inline ddp_status world_look(world_rig *g, ddp_comm *comm, world_curve *out)
{
    ddp_step_stats stats;
    DDP_TRY(ddp_strategy_gradients(g->strategy, g->loader, ddp_sampler_step_count(&g->sampler, 0),
                                   &stats));
    if (ddp_comm_rank(comm) == 0)
        DDP_TRY(world_export(g, ddp_strategy_grads(g->strategy), &out->grads, &out->count));
    DDP_TRY(ddp_comm_barrier(comm));
    return ddp_loader_seek(g->loader, 0, 0);
}

static inline ddp_status world_evaluate(world_rig *g, const world_job *j, ddp_comm *comm,
                                        world_curve *out)
{
    const ddp_data_opts data = world_data_opts(j);
    const ddp_eval_opts opts = {0};
    ddp_eval_result result;
    ddp_dataset *tests;
    ddp_eval *eval;
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &data, DDP_SPLIT_TEST, comm, &tests));
    ddp_status st = ddp_eval_create(&opts, g->model, g->device, tests, comm, &eval);
    if (st == DDP_OK) {
        st = ddp_eval_run(eval, &result);
        ddp_eval_destroy(eval);
    }
    ddp_dataset_close(tests);
    if (st == DDP_OK && ddp_comm_rank(comm) == 0)
        out->test = result;
    return st;
}

static inline ddp_status world_end(world_rig *g, const world_job *j, ddp_comm *comm,
                                   world_curve *out)
{
    const float *running;
    DDP_TRY(ddp_strategy_combine(g->strategy, &running));
    if (j->tests > 0)
        DDP_TRY(world_evaluate(g, j, comm, out));
    if (ddp_comm_rank(comm) != 0)
        return DDP_OK;
    DDP_TRY(world_export(g, ddp_strategy_params(g->strategy), &out->params, &out->count));
    if (running == NULL)
        return DDP_OK;
    out->running_count = ddp_buffer_table_length(ddp_model_buffers(g->model));
    DDP_TRY(DDP_ALLOC(out->running, out->running_count));
    ddp_stream *stream = ddp_device_main_stream(g->device);
    DDP_TRY(ddp_device_copy(g->device, stream, out->running, running,
                            out->running_count * sizeof(float), DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

static inline ddp_status world_train(world_rig *g, const world_job *j, ddp_comm *comm,
                                     world_curve *out)
{
    DDP_ASSERT(j->steps <= WORLD_MAX_STEPS);
    DDP_TRY(world_look(g, comm, out));
    for (int64_t step = 0; step < j->steps; step++) {
        ddp_step_stats stats;
        const int64_t in_epoch = step % ddp_sampler_steps(&g->sampler);
        DDP_TRY(ddp_strategy_step(g->strategy, g->loader,
                                  ddp_sampler_step_count(&g->sampler, in_epoch), 0.05, &stats));
        if (ddp_comm_rank(comm) != 0)
            continue;
        out->losses[step] = stats.loss_sum / (double)stats.count;
        out->samples[step] = stats.count;
        out->grad_norms[step] = stats.grad_norm;
        out->scales[step] = stats.loss_scale;
        out->overflows[step] = stats.overflow;
    }
    return world_end(g, j, comm, out);
}

static inline ddp_status world_rank(ddp_comm *comm, void *arg)
{
    const world_run *run = arg;
    world_rig g = {0};
    ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    device.conv_algo = DDP_CONV_GEMM;
    if (run->job->device != NULL)
        device = *run->job->device;
    const ddp_device_ops *backend = run->job->backend;
    DDP_TRY(ddp_device_open(backend != NULL ? backend : ddp_device_cpu(), &device, &g.device));
    const ddp_lane_opts lane = {.deterministic = true};
    ddp_status st =
        backend != NULL ? ddp_comm_attach(comm, g.device, ddp_lane_staged(), &lane) : DDP_OK;
    if (st == DDP_OK)
        st = world_open_data(&g, run->job, comm);
    if (st == DDP_OK)
        st = world_open_model(&g, run->job, comm);
    if (st == DDP_OK)
        st = world_train(&g, run->job, comm, run->out);
    ddp_strategy_destroy(g.strategy);
    ddp_model_destroy(g.model);
    ddp_loader_destroy(g.loader);
    ddp_dataset_close(g.data);
    ddp_comm_detach(comm);
    ddp_device_close(g.device);
    return st;
}

static inline ddp_status world_try(const world_job *job, world_curve *out)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    world_run run = {job, out};
    if (job->comm != NULL)
        comm = *job->comm;
    comm.exit_on_failure = false;
    *out = (world_curve){0};
    return run_ranks(&comm, job->world, world_rank, &run);
}

/* ---- curves ---- */

static inline void world_curve_of(const world_job *job, world_curve *out)
{
    CHECK_OK(world_try(job, out));
    /* The weights move: equal curves are no accident of standing still. */
    assert_true(fabs(out->losses[job->steps - 1] - out->losses[0]) > 1e-3);
}

static inline void world_curve_free(world_curve *c)
{
    ddp_free(c->grads);
    ddp_free(c->params);
    ddp_free(c->running);
}

static inline double world_distance(const float *a, const float *b, size_t count)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(diff / norm);
}

static inline void world_close_array(const char *label, const char *what, const float *a,
                                     const float *b, size_t count, double tolerance)
{
    const double distance = world_distance(a, b, count);
    if (!(distance <= tolerance))
        fail_msg("%s: %s differ by %.3g, allowed are %.3g", label, what, distance, tolerance);
}

/* Same samples in the same steps, and all that follows from them within the tolerance (relative);
 * 0: bit by bit, but for the losses, which ranks and shards add up in double in another order. */
static inline void world_same(const char *label, const world_job *job, const world_curve *a,
                              const world_curve *b, double tolerance)
{
    const double of_losses = tolerance > 1e-12 ? tolerance : 1e-12;
    for (int64_t s = 0; s < job->steps; s++) {
        assert_int_equal(a->samples[s], b->samples[s]);
        if (!(fabs(a->losses[s] - b->losses[s]) <= of_losses * fabs(b->losses[s])) ||
            !(fabs(a->grad_norms[s] - b->grad_norms[s]) <= of_losses * 10 * b->grad_norms[s]))
            fail_msg("%s, step %d: losses %.17g and %.17g, norms %.17g and %.17g", label,
                     (int)s + 1, a->losses[s], b->losses[s], a->grad_norms[s], b->grad_norms[s]);
    }
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->running_count, b->running_count);
    world_close_array(label, "gradients", a->grads, b->grads, a->count, tolerance);
    world_close_array(label, "weights", a->params, b->params, a->count, tolerance);
    if (a->running != NULL)
        world_close_array(label, "running statistics", a->running, b->running, a->running_count,
                          tolerance);
    if (tolerance > 0)
        return;
    assert_memory_equal(a->grads, b->grads, a->count * sizeof(float));
    assert_memory_equal(a->params, b->params, a->count * sizeof(float));
    if (a->running != NULL)
        assert_memory_equal(a->running, b->running, a->running_count * sizeof(float));
}

#endif
