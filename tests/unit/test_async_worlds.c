/* test_async_worlds.c - training on devices that run behind their callers, with gradients that a
 * lane carries, is training on the CPU: whatever strategy, optimizer and number of ranks. */
#include "async_device.h"
#include "train_world.h"

static const world_job base_job = {.model = &world_plain,
                                   .size = 48,
                                   .batch = 12,
                                   .shards = 6,
                                   .steps = 6,
                                   .world = 1,
                                   .momentum = 0.9};

/* Bit by bit with one rank, whose sums nobody else takes part in. */
static void check_same(const char *label, const world_job *job, double tolerance)
{
    world_job async = *job;
    world_curve here, there;
    async.backend = async_device();
    world_curve_of(job, &here);
    world_curve_of(&async, &there);
    world_same(label, job, &here, &there, tolerance);
    assert_int_equal(here.test.count, job->tests);
    assert_int_equal(here.test.top1, there.test.top1);
    assert_int_equal(here.test.top5, there.test.top5);
    assert_true(fabs(here.test.loss - there.test.loss) <= tolerance * here.test.loss);
    world_curve_free(&here);
    world_curve_free(&there);
}

static void one_rank_gets_the_cpus_bits(void **state)
{
    world_job job = base_job;
    (void)state;
    check_same("plain", &job, 0);
    job.tests = 2 * DDP_EVAL_BLOCK + 5;
    job.model = &world_norms;
    check_same("norms", &job, 0);
    job.hook = ddp_hook_bf16();
    check_same("gradients in bf16", &job, 0);
}

static void every_world_size_gives_the_cpus_curve(void **state)
{
    world_job job = base_job;
    (void)state;
    job.model = &world_norms;
    for (job.world = 2; job.world <= 3; job.world++)
        check_same("norms", &job, 1e-5);
    job.world = 2;
    job.hook = ddp_hook_bf16();
    check_same("gradients in bf16", &job, 3e-2);
    job.hook = NULL;
    job.shards = 2;
    job.sync_norms = true;
    check_same("synchronised norms", &job, 1e-5);
}

static void every_strategy_gives_the_cpus_curve(void **state)
{
    const ddp_strategy_ops *strategies[] = {ddp_strategy_sync(), ddp_strategy_naive()};
    world_job job = base_job;
    (void)state;
    job.world = 2;
    for (int i = 0; i < 2; i++) {
        job.strategy = strategies[i];
        check_same(ddp_strategy_name(strategies[i]), &job, 1e-5);
    }
}

/* Gates: rounds of measuring before the update, of one kind and of two. */
static void every_optimizer_gives_the_cpus_curve(void **state)
{
    const ddp_optim_opts optims[] = {
        {.kind = DDP_OPTIM_SGD, .lr = 0.2, .momentum = 0.9, .clip_grad_norm = 0.5, .ema = 0.9},
        {.kind = DDP_OPTIM_SGD, .lr = 0.2, .skip_nonfinite = true},
        {.kind = DDP_OPTIM_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6},
        {.kind = DDP_OPTIM_LARS, .lr = 1, .momentum = 0.9, .trust = 0.02, .weight_decay = 1e-3},
        {.kind = DDP_OPTIM_LAMB,
         .lr = 0.02,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-6,
         .clip_grad_norm = 0.3},
    };
    world_job job = base_job;
    (void)state;
    for (size_t i = 0; i < sizeof optims / sizeof *optims; i++)
        for (job.world = 1; job.world <= 2; job.world++) {
            char label[32];
            snprintf(label, sizeof label, "optimizer %zu, %d ranks", i, job.world);
            job.optim = &optims[i];
            job.strategy = i == 0 && job.world == 2 ? ddp_strategy_naive() : NULL;
            check_same(label, &job, job.world == 1 ? 1e-6 : 1e-4);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_gets_the_cpus_bits),
        cmocka_unit_test(every_world_size_gives_the_cpus_curve),
        cmocka_unit_test(every_strategy_gives_the_cpus_curve),
        cmocka_unit_test(every_optimizer_gives_the_cpus_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
