/* test_sync_bn.c - norms whose statistics go over all ranks: the ranks together see what one rank
 * with the whole batch sees. */
#include "harness.h"

#include "train_world.h"

enum { BATCH = 10, STEPS = 6 };

static world_job make_job(int world, bool sync)
{
    return (world_job){.model = &world_norms,
                       .size = 24, /* steps of 10, 10 and 4; on 3 ranks shards of 4, 3, 3 */
                       .batch = BATCH,
                       .shards = world,
                       .steps = STEPS,
                       .world = world,
                       .momentum = 0.9,
                       .sync_norms = sync};
}

static void synchronised_norms_equal_one_rank_with_the_whole_batch(void **state)
{
    (void)state;
    world_curve one;
    world_job job = make_job(1, false);
    world_curve_of(&job, &one);
    assert_non_null(one.running);
    for (int world = 1; world <= 4; world++) {
        world_curve many;
        char label[32];
        snprintf(label, sizeof label, "%d ranks", world);
        job = make_job(world, true);
        world_curve_of(&job, &many);
        world_same(label, &job, &many, &one, 2e-5);
        world_curve_free(&many);
    }
    /* Local norms do not. */
    world_curve local;
    job = make_job(3, false);
    world_curve_of(&job, &local);
    assert_true(world_distance(local.grads, one.grads, one.count) > 1e-2);
    assert_true(world_distance(local.running, one.running, one.running_count) > 1e-3);
    world_curve_free(&local);
    world_curve_free(&one);
}

/* Statistics are gathered in the forward pass only, whatever is computed again. */
static void recomputation_changes_no_bit(void **state)
{
    (void)state;
    world_curve plain;
    world_job job = make_job(3, true);
    world_curve_of(&job, &plain);
    const int kinds[] = {DDP_RECOMPUTE_CHEAP, DDP_RECOMPUTE_SEGMENTS};
    for (int i = 0; i < 2; i++) {
        world_curve again;
        char label[32];
        snprintf(label, sizeof label, "recomputation %d", kinds[i]);
        job.recompute = kinds[i];
        world_curve_of(&job, &again);
        world_same(label, &job, &again, &plain, 0);
        world_curve_free(&again);
    }
    world_curve_free(&plain);
}

static void ranks_with_several_shards_are_refused(void **state)
{
    (void)state;
    const int64_t unequal[] = {1, 2};
    world_curve none;
    world_job job = make_job(2, true);
    job.shards = 4;
    CHECK_FAILS(world_try(&job, &none), DDP_ERR_USAGE, "one logical shard for each rank");
    job.shards = 3;
    job.counts = unequal;
    CHECK_FAILS(world_try(&job, &none), DDP_ERR_USAGE, "a rank has 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synchronised_norms_equal_one_rank_with_the_whole_batch),
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(ranks_with_several_shards_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
