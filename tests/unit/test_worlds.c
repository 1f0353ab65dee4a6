/* test_worlds.c - the step is the same for every world size, strategy and allreduce algorithm.
 *
 * From the golden files' weights (lenet and mlp) each world trains with the same global batch;
 * every parameter's gradient at steps 1 and 10, and the losses on the way, are compared with one
 * rank's. */
#include "harness.h"

#include <math.h>

#include "ddp/json.h"
#include "ddp/strategy.h"
#include "golden.h"
#include "loopback_ranks.h"

enum { BATCH = 60, STEPS = 10, MAX_PARAMS = 16 };

typedef struct curve {
    double losses[STEPS];
    float *grads[2][MAX_PARAMS]; /* plain, at the first and the last step */
    size_t counts[MAX_PARAMS];
    int params;
} curve;

typedef struct job {
    const ddp_model_def *model;
    const char *golden, *widths;
    const ddp_strategy_ops *strategy;
    int64_t shards_per_rank;
    curve *out;       /* rank 0 writes it */
    const int *nodes; /* of the ranks; NULL: one */
} job;

typedef struct rig {
    ddp_device *device;
    ddp_dataset *data;
    ddp_sampler sampler;
    ddp_loader *loader;
    ddp_model *model;
    ddp_strategy *strategy;
} rig;

static ddp_status open_data(rig *g, const job *j, ddp_comm *comm)
{
    int world = ddp_comm_world(comm);
    ddp_data_opts opts = {.dataset = "synthetic",
                          .input_shape = {3, {1, 28, 28}},
                          .synthetic_train = BATCH * STEPS,
                          .synthetic_test = 10,
                          .synthetic_classes = 10,
                          .seed = 5};
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &opts, DDP_SPLIT_TRAIN, comm, &g->data));
    g->sampler = (ddp_sampler){.size = BATCH * STEPS,
                               .batch = BATCH,
                               .shards = world * j->shards_per_rank,
                               .seed = 5,
                               .shuffle = true};
    ddp_loader_opts loader = {.sampler = g->sampler,
                              .first_shard = ddp_comm_rank(comm) * j->shards_per_rank,
                              .shard_count = j->shards_per_rank,
                              .ring = 2};
    DDP_TRY(ddp_loader_create(&loader, g->data, g->device, &g->loader));
    return ddp_loader_seek(g->loader, 0, 0);
}

static ddp_status open_model(rig *g, const job *j, ddp_comm *comm)
{
    ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}}, .classes = 10, .mlp_widths = j->widths};
    ddp_strategy_opts strategy = {.reducer = DDP_REDUCER_OPTS_DEFAULTS,
                                  .optim = DDP_OPTIM_OPTS_DEFAULTS};
    strategy.reducer.shards = j->shards_per_rank;
    strategy.reducer.first_bucket_mb = 0.01;
    strategy.reducer.bucket_cap_mb = 0.2;
    DDP_TRY(ddp_model_create(j->model, &opts, g->device, &g->model));
    for (int64_t shard = 0; shard < g->sampler.shards; shard++) {
        int64_t first, n = ddp_sampler_shard(&g->sampler, 0, shard, &first);
        DDP_TRY(ddp_model_plan(g->model, n, true));
    }
    DDP_TRY(ddp_strategy_create(j->strategy, &strategy, g->model, g->device, comm, &g->strategy));
    return golden_set_params(j->golden, g->device, ddp_model_params(g->model),
                             ddp_strategy_params(g->strategy));
}

static ddp_status save_grads(const rig *g, curve *out, int which)
{
    const ddp_param_table *table = ddp_model_params(g->model);
    out->params = ddp_param_table_count(table);
    DDP_ASSERT(out->params <= MAX_PARAMS);
    for (int i = 0; i < out->params; i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        out->counts[i] = (size_t)ddp_shape_count(&p->shape);
        DDP_TRY(DDP_ALLOC(out->grads[which][i], out->counts[i]));
        DDP_TRY(
            ddp_param_export(g->device, p, ddp_strategy_grads(g->strategy), out->grads[which][i]));
    }
    return DDP_OK;
}

/* Gradients at the first and last step are looked at before an update, so those samples are taken
 * twice. */
static ddp_status look(rig *g, const job *j, ddp_comm *comm, int64_t step, int which)
{
    ddp_step_stats stats;
    DDP_TRY(ddp_loader_seek(g->loader, 0, step));
    DDP_TRY(ddp_strategy_gradients(g->strategy, g->loader, BATCH, &stats));
    if (ddp_comm_rank(comm) == 0)
        DDP_TRY(save_grads(g, j->out, which));
    DDP_TRY(ddp_comm_barrier(comm));
    return ddp_loader_seek(g->loader, 0, step);
}

static ddp_status train(rig *g, const job *j, ddp_comm *comm)
{
    for (int64_t step = 0; step < STEPS; step++) {
        ddp_step_stats stats;
        if (step == 0 || step == STEPS - 1)
            DDP_TRY(look(g, j, comm, step, step != 0));
        DDP_TRY(ddp_strategy_step(g->strategy, g->loader, BATCH, 0.05, &stats));
        if (ddp_comm_rank(comm) == 0)
            j->out->losses[step] = stats.loss_sum / (double)stats.count;
    }
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    device.conv_algo = DDP_CONV_GEMM;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device, &g.device));
    ddp_status st = open_data(&g, j, comm);
    if (st == DDP_OK)
        st = open_model(&g, j, comm);
    if (st == DDP_OK)
        st = train(&g, j, comm);
    if (st == DDP_OK) {
        ddp_strategy_destroy(g.strategy);
        ddp_model_destroy(g.model);
        ddp_loader_destroy(g.loader);
        ddp_dataset_close(g.data);
        ddp_device_close(g.device);
    }
    return st;
}

static void run_world(const job *j, int world, ddp_allreduce_algo algo, curve *out)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    comm.allreduce = algo;
    comm.loopback_nodes = j->nodes;
    job copy = *j;
    copy.out = out;
    CHECK_OK(run_ranks(&comm, world, run_rank, &copy));
}

static void free_curve(curve *c)
{
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < c->params; i++)
            ddp_free(c->grads[which][i]);
}

static void compare(const curve *one, const curve *many, const char *label)
{
    for (int s = 0; s < STEPS; s++)
        if (!(fabs(one->losses[s] - many->losses[s]) <= 1e-5 * fabs(one->losses[s])))
            fail_msg("%s: loss of step %d: %.9g, one rank %.9g", label, s + 1, many->losses[s],
                     one->losses[s]);
    assert_int_equal(one->params, many->params);
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < one->params; i++) {
            double diff = 0, norm = 0;
            for (size_t e = 0; e < one->counts[i]; e++) {
                double a = one->grads[which][i][e], b = many->grads[which][i][e];
                diff += (a - b) * (a - b);
                norm += a * a;
            }
            assert_true(norm > 0);
            if (!(sqrt(diff) <= 1e-5 * sqrt(norm)))
                fail_msg("%s: parameter %d, look %d: relative error %.3g", label, i, which,
                         sqrt(diff / norm));
        }
}

static const job lenet_job = {.golden = "golden_lenet.json", .shards_per_rank = 1};

static job make_job(bool mlp, const ddp_strategy_ops *strategy)
{
    job j = lenet_job;
    j.model = mlp ? ddp_model_mlp() : ddp_model_lenet();
    j.golden = mlp ? "golden_mlp.json" : "golden_lenet.json";
    j.widths = "256,128";
    j.strategy = strategy;
    return j;
}

static void every_world_size_gives_one_ranks_gradients(void **state)
{
    (void)state;
    for (int mlp = 0; mlp < 2; mlp++) {
        job j = make_job(mlp, ddp_strategy_ddp());
        curve one = {0};
        run_world(&j, 1, DDP_ALLREDUCE_AUTO, &one);
        /* The weights move: equal curves are no accident of standing still. */
        assert_true(fabs(one.losses[STEPS - 1] - one.losses[0]) > 1e-3);
        const int worlds[] = {2, 3, 4, 5, 8};
        for (int w = 0; w < 5; w++) {
            curve many = {0};
            char label[64];
            snprintf(label, sizeof label, "%s, %d ranks", j.golden, worlds[w]);
            run_world(&j, worlds[w], DDP_ALLREDUCE_AUTO, &many);
            compare(&one, &many, label);
            free_curve(&many);
        }
        free_curve(&one);
    }
}

static void every_strategy_and_algorithm_gives_the_same_curve(void **state)
{
    (void)state;
    const ddp_strategy_ops *strategies[] = {ddp_strategy_ddp(), ddp_strategy_sync(),
                                            ddp_strategy_naive()};
    const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_SHM, DDP_ALLREDUCE_ROOT, DDP_ALLREDUCE_RING,
                                        DDP_ALLREDUCE_TREE, DDP_ALLREDUCE_RHD};
    job reference = make_job(true, ddp_strategy_ddp());
    curve one = {0};
    run_world(&reference, 1, DDP_ALLREDUCE_AUTO, &one);
    for (int s = 0; s < 3; s++)
        for (int a = 0; a < 5; a++) {
            job j = make_job(true, strategies[s]);
            curve many = {0};
            char label[64];
            snprintf(label, sizeof label, "%s, algorithm %d", ddp_strategy_name(j.strategy),
                     (int)algos[a]);
            run_world(&j, 3, algos[a], &many);
            compare(&one, &many, label);
            free_curve(&many);
        }
    free_curve(&one);
}

static void several_nodes_give_one_ranks_gradients(void **state)
{
    (void)state;
    static const int nodes[3][5] = {{0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1, 1}};
    static const int worlds[] = {4, 4, 5};
    job j = make_job(false, ddp_strategy_ddp());
    curve one = {0};
    run_world(&j, 1, DDP_ALLREDUCE_AUTO, &one);
    for (int w = 0; w < 3; w++) {
        curve many = {0};
        char label[64];
        snprintf(label, sizeof label, "world %d of several nodes", w);
        j.nodes = nodes[w];
        run_world(&j, worlds[w], w == 0 ? DDP_ALLREDUCE_AUTO : DDP_ALLREDUCE_HIER, &many);
        compare(&one, &many, label);
        free_curve(&many);
    }
    free_curve(&one);
}

static void accumulated_shards_equal_one_shard(void **state)
{
    (void)state;
    job j = make_job(false, ddp_strategy_ddp());
    curve one = {0}, many = {0};
    run_world(&j, 1, DDP_ALLREDUCE_AUTO, &one);
    j.shards_per_rank = 3;
    run_world(&j, 2, DDP_ALLREDUCE_AUTO, &many);
    compare(&one, &many, "2 ranks of 3 shards");
    free_curve(&one);
    free_curve(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_size_gives_one_ranks_gradients),
        cmocka_unit_test(every_strategy_and_algorithm_gives_the_same_curve),
        cmocka_unit_test(several_nodes_give_one_ranks_gradients),
        cmocka_unit_test(accumulated_shards_equal_one_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
