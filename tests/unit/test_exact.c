/* Exact sums: with as many logical shards, every number of ranks gives the same bits, in losses,
 * norms, gradients, weights and running statistics, over shared memory and over messages. */
#include "harness.h"

#include "train_world.h"

enum { SHARDS = 8, SIZE = 82 };

/* Norms, dropout, a pooled plane, a linear layer: everything whose values depend on the shard. */
static ddp_status build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 8, .kernel = 3, .pad = 1, WORLD_DRAW(0.5)},
        {.type = "batchnorm", .name = "n1"},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d", .name = "c2", .out = 8, .kernel = 3, .pad = 1, WORLD_DRAW(0.3)},
        {.type = "batchnorm", .name = "n2"},
        {.type = "add", .name = "a1", .input = "n2", .input2 = "r1"},
        {.type = "relu", .name = "r2"},
        {.type = "maxpool", .name = "p", .kernel = 2},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l1", .out = 24, WORLD_DRAW(0.2)},
        {.type = "relu", .name = "r3"},
        {.type = "dropout", .name = "d", .rate = 0.3},
        {.type = "linear", .name = "l2", .out = opts->classes, WORLD_DRAW(0.5)},
    };
    return world_add_all(builder, specs, sizeof specs / sizeof specs[0]);
}

static const ddp_model_def all_layers = {"all", "test", build};

/* The last step of an epoch has fewer samples than the others, and with 12 shards empty ones. */
static world_job job_of(int64_t shards)
{
    return (world_job){.model = &all_layers,
                       .size = SIZE,
                       .batch = 36,
                       .shards = shards,
                       .steps = 4,
                       .world = 1,
                       .momentum = 0.9,
                       .exact = true};
}

static void expect_same(const char *label, const world_job *job, const world_curve *a,
                        const world_curve *b)
{
    world_same(label, job, a, b, 0);
    for (int64_t s = 0; s < job->steps; s++)
        if (a->losses[s] != b->losses[s] || a->grad_norms[s] != b->grad_norms[s])
            fail_msg("%s, step %d: losses %a and %a, norms %a and %a", label, (int)s + 1,
                     a->losses[s], b->losses[s], a->grad_norms[s], b->grad_norms[s]);
}

/* Every world that divides the shards against one rank. */
static void expect_exact(const char *what, world_job job, const int *worlds, int count)
{
    world_curve one, many;
    job.world = 1;
    world_curve_of(&job, &one);
    for (int i = 0; i < count; i++) {
        char label[96];
        snprintf(label, sizeof label, "%s on %d ranks", what, worlds[i]);
        job.world = worlds[i];
        world_curve_of(&job, &many);
        expect_same(label, &job, &one, &many);
        world_curve_free(&many);
    }
    world_curve_free(&one);
}

static void test_worlds(void **state)
{
    static const int powers[] = {2, 4, 8}, thirds[] = {2, 3, 6}, twelfths[] = {3, 4, 12};
    static const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_AUTO, DDP_ALLREDUCE_RHD};
    (void)state;
    expect_exact("8 shards", job_of(8), powers, 3);
    expect_exact("6 shards", job_of(6), thirds, 3);
    expect_exact("12 shards", job_of(12), twelfths, 3);
    for (int i = 0; i < 3; i++) {
        /* In runs of two and four; and not in runs, where sums are made flat. */
        static const int nodes[3][8] = {
            {0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 1, 0, 1, 0, 0, 1}};
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        world_job job = job_of(8);
        comm.loopback_nodes = nodes[i];
        job.comm = &comm;
        expect_exact("8 shards on nodes", job, powers, 3);
        job.shards = 6;
        expect_exact("6 shards on nodes", job, thirds, 3);
    }
    for (int a = 0; a < 2; a++) {
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        world_job job = job_of(6);
        comm.shared_memory = false;
        comm.allreduce = algos[a];
        job.comm = &comm;
        expect_exact("6 shards by messages", job, thirds, 3);
        job.shards = 8;
        expect_exact("8 shards by messages", job, powers, 3);
    }
}

static void test_optimizers(void **state)
{
    static const int worlds[] = {4};
    (void)state;
    for (int kind = DDP_OPTIM_SGD; kind <= DDP_OPTIM_LAMB; kind++)
        for (int clip = 0; clip < 2; clip++) {
            ddp_optim_opts optim = DDP_OPTIM_OPTS_DEFAULTS;
            world_job job = job_of(SHARDS);
            optim.kind = kind;
            optim.weight_decay = 1e-4;
            optim.momentum = kind == DDP_OPTIM_SGD || kind == DDP_OPTIM_LARS ? 0.9 : 0;
            optim.trust = 0.5;
            optim.clip_grad_norm = clip != 0 ? 0.5 : 0;
            optim.skip_nonfinite = clip != 0;
            optim.ema = 0.9;
            job.optim = &optim;
            expect_exact(clip != 0 ? "clipped" : "not clipped", job, worlds, 1);
        }
}

/* Blocks that ranks do not change are what makes norms equal: they are sums of the same pieces. */
static void test_norms_are_true(void **state)
{
    world_job job = job_of(SHARDS);
    world_curve exact, plain;
    (void)state;
    world_curve_of(&job, &exact);
    job.exact = false;
    world_curve_of(&job, &plain);
    for (int64_t s = 0; s < job.steps; s++) {
        assert_true(fabs(exact.grad_norms[s] - plain.grad_norms[s]) <= 1e-5 * plain.grad_norms[s]);
        assert_true(fabs(exact.losses[s] - plain.losses[s]) <= 1e-5 * plain.losses[s]);
    }
    world_curve_free(&exact);
    world_curve_free(&plain);
}

static void test_kernels(void **state)
{
    static const int worlds[] = {4};
    (void)state;
    for (int algo = DDP_CONV_AUTO; algo < DDP_CONV_ALGO_COUNT; algo++) {
        ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
        world_job job = job_of(SHARDS);
        device.conv_algo = (ddp_conv_algo)algo;
        device.deterministic = true;
        job.device = &device;
        expect_exact("another convolution", job, worlds, 1);
    }
}

static void test_bf16(void **state)
{
    static const int worlds[] = {2, 8};
    ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    world_job job = job_of(SHARDS);
    (void)state;
    device.emulate_bf16 = true;
    device.deterministic = true;
    job.device = &device;
    job.bf16 = true;
    expect_exact("bf16", job, worlds, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worlds),         cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_norms_are_true), cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
