/* test_accumulate.c - a batch computed in several shards, one after the other, is the same batch.
 *
 * Every run has incomplete last batches, and shards that differ by a sample. */
#include "harness.h"

#include "ddp/config.h"
#include "train_world.h"

enum { STEPS = 8 };

static world_job make_job(const ddp_model_def *model, int world, int64_t shards)
{
    return (world_job){.model = model,
                       .size = 37, /* steps of 16, 16 and 5 */
                       .batch = 16,
                       .shards = shards,
                       .steps = STEPS,
                       .world = world,
                       .momentum = 0.9};
}

static void without_norms_the_accumulated_run_equals_the_unaccumulated_one(void **state)
{
    (void)state;
    world_curve whole;
    world_job job = make_job(&world_plain, 1, 1);
    world_curve_of(&job, &whole);
    assert_int_equal(whole.samples[1], 16);
    assert_int_equal(whole.samples[2], 5);
    const int64_t accumulate[] = {2, 3, 5, 8, 16}; /* 8, 16: shards without samples at the end */
    for (size_t i = 0; i < sizeof accumulate / sizeof accumulate[0]; i++) {
        world_curve parts;
        char label[32];
        snprintf(label, sizeof label, "accumulate %d", (int)accumulate[i]);
        job.shards = accumulate[i];
        world_curve_of(&job, &parts);
        world_same(label, &job, &parts, &whole, 1e-5);
        world_curve_free(&parts);
    }
    world_curve_free(&whole);
}

static void compare_with_one_rank(const ddp_model_def *model, int world, int64_t accumulate,
                                  double tolerance)
{
    world_curve one, many;
    char label[64];
    world_job job = make_job(model, 1, world * accumulate);
    world_curve_of(&job, &one);
    job.world = world;
    world_curve_of(&job, &many);
    snprintf(label, sizeof label, "%s, %d ranks of %d shards", model->name, world, (int)accumulate);
    world_same(label, &job, &many, &one, tolerance);
    world_curve_free(&one);
    world_curve_free(&many);
}

/* Where a rank's number of shards is a power of two, its sum is a branch of the tree. */
static void n_times_on_w_ranks_is_w_times_n_shards_bit_by_bit(void **state)
{
    (void)state;
    const struct {
        int world;
        int64_t accumulate;
    } cases[] = {{2, 1}, {4, 1}, {2, 2}, {4, 2}, {2, 4}, {3, 1}, {3, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        compare_with_one_rank(&world_plain, cases[i].world, cases[i].accumulate, 0);
        compare_with_one_rank(&world_norms, cases[i].world, cases[i].accumulate, 0);
    }
}

static void any_number_of_shards_on_w_ranks_is_the_same_run(void **state)
{
    (void)state;
    compare_with_one_rank(&world_plain, 2, 3, 1e-5);
    compare_with_one_rank(&world_norms, 2, 3, 1e-5);
    compare_with_one_rank(&world_plain, 3, 3, 1e-5);
    compare_with_one_rank(&world_norms, 5, 1, 1e-5);
}

/* Norms see a shard at a time, so that with them the number of shards does matter. */
static void norms_tell_shards_apart(void **state)
{
    (void)state;
    world_curve whole, parts;
    world_job job = make_job(&world_norms, 1, 1);
    world_curve_of(&job, &whole);
    job.shards = 2;
    world_curve_of(&job, &parts);
    assert_true(world_distance(parts.grads, whole.grads, whole.count) > 1e-2);
    world_curve_free(&whole);
    world_curve_free(&parts);
}

/* ---- --micro-batch ---- */

static ddp_config *resolved(const char *batch, const char *micro, int world)
{
    char *argv[] = {"ddp_train", "--batch-size", (char *)batch, "--micro-batch", (char *)micro};
    char *envp[] = {NULL};
    ddp_options_verdict verdict;
    ddp_config *c;
    CHECK_OK(ddp_config_create("test", &c));
    CHECK_OK(ddp_config_parse(c, 5, argv, envp, &verdict));
    CHECK_OK(ddp_config_resolve(c, world));
    return c;
}

static void micro_batch_gives_the_fewest_shards_that_are_small_enough(void **state)
{
    (void)state;
    const struct {
        const char *batch, *micro;
        int world;
        int64_t accumulate, largest;
    } cases[] = {
        {"256", "64", 2, 2, 64},   {"256", "64", 1, 4, 64}, {"256", "256", 1, 1, 256},
        {"256", "300", 2, 1, 128}, {"256", "50", 2, 3, 43}, /* 128 a rank: 43, 43, 42 */
        {"100", "7", 3, 5, 7},                              /* 34 a rank at most */
        {"101", "17", 2, 3, 17},   {"10", "1", 2, 5, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp_config *c = resolved(cases[i].batch, cases[i].micro, cases[i].world);
        const ddp_sampler sampler = {
            .size = 1000, .batch = c->global_batch, .shards = c->shards, .seed = 1};
        int64_t first, largest = ddp_sampler_shard(&sampler, 0, 0, &first);
        if (c->reducer.shards != cases[i].accumulate || largest != cases[i].largest)
            fail_msg("batch %s, micro-batch %s on %d ranks: %d shards a rank of %d samples, "
                     "expected %d of %d",
                     cases[i].batch, cases[i].micro, cases[i].world, (int)c->reducer.shards,
                     (int)largest, (int)cases[i].accumulate, (int)cases[i].largest);
        assert_int_equal(c->shards, cases[i].world * cases[i].accumulate);
        /* What config.ini will say gives the same run. */
        assert_int_equal(c->run.micro_batch, 0);
        assert_int_equal(c->run.accumulate, cases[i].accumulate);
        ddp_config_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_norms_the_accumulated_run_equals_the_unaccumulated_one),
        cmocka_unit_test(n_times_on_w_ranks_is_w_times_n_shards_bit_by_bit),
        cmocka_unit_test(any_number_of_shards_on_w_ranks_is_the_same_run),
        cmocka_unit_test(norms_tell_shards_apart),
        cmocka_unit_test(micro_batch_gives_the_fewest_shards_that_are_small_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
