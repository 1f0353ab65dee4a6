/* test_loss_scale.c - the loss scale: how it moves, that a power of 2 changes no bit of what is
 * trained, and that too much of it costs steps, on all ranks the same ones, and nothing else. */
#include "strategy/scale.h"
#include "train_world.h"

static void grows_after_many_good_steps(void **state)
{
    ddp_loss_scale scale = {65536, 0}, fixed = {65536, 0}, last = {0x1p24, 0};
    (void)state;
    for (int step = 0; step < 1999; step++)
        CHECK_OK(ddpi_scale_next(&scale, true, true));
    assert_true(scale.value == 65536 && scale.good_steps == 1999);
    CHECK_OK(ddpi_scale_next(&scale, true, true));
    assert_true(scale.value == 131072 && scale.good_steps == 0);
    for (int step = 0; step < 5000; step++) {
        CHECK_OK(ddpi_scale_next(&fixed, false, true));
        CHECK_OK(ddpi_scale_next(&last, true, true));
    }
    assert_true(fixed.value == 65536 && last.value == 0x1p24);
}

static void halves_and_begins_to_count_again(void **state)
{
    ddp_loss_scale scale = {65536, 1999};
    (void)state;
    CHECK_OK(ddpi_scale_next(&scale, true, false));
    assert_true(scale.value == 32768 && scale.good_steps == 0);
    CHECK_OK(ddpi_scale_next(&scale, true, true));
    assert_true(scale.value == 32768 && scale.good_steps == 1);
}

static void gives_up_where_halving_does_not_help(void **state)
{
    ddp_loss_scale scale = {0x1p-12, 0};
    (void)state;
    CHECK_OK(ddpi_scale_next(&scale, false, false));
    CHECK_OK(ddpi_scale_next(&scale, false, false));
    assert_true(scale.value == 0x1p-14);
    CHECK_FAILS(ddpi_scale_next(&scale, false, false), DDP_ERR_NONFINITE, "however small");
}

/* ---- in steps ---- */

static const ddp_optim_opts sgd = {
    .kind = DDP_OPTIM_SGD, .lr = 0.2, .momentum = 0.9, .clip_grad_norm = 0.5};
static const world_job base_job = {.model = &world_norms,
                                   .size = 48,
                                   .batch = 12,
                                   .shards = 2,
                                   .steps = 12,
                                   .world = 1,
                                   .optim = &sgd};

static void same_bits(const world_curve *a, const world_curve *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->grad_norms, b->grad_norms, sizeof a->grad_norms);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->params, b->params, a->count * sizeof *a->params);
}

static void powers_of_two_change_no_bit(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        world_job job = base_job;
        world_curve without, with;
        job.world = world;
        world_curve_of(&job, &without);
        job.loss_scale = 65536;
        world_curve_of(&job, &with);
        same_bits(&without, &with);
        for (int64_t step = 0; step < job.steps; step++)
            assert_true(without.scales[step] == 0 && with.scales[step] == 65536 &&
                        !with.overflows[step]);
        /* The gradient that nothing has divided yet. */
        for (size_t i = 0; i < with.count; i++)
            assert_true(with.grads[i] == 65536 * without.grads[i]);
        world_curve_free(&without);
        world_curve_free(&with);
    }
}

/* f32 ends at 2^128. */
static void too_much_costs_the_same_steps_on_all_ranks(void **state)
{
    world_job job = base_job;
    world_curve one, two;
    int lost = 0;
    (void)state;
    job.loss_scale = 0x1p127;
    world_curve_of(&job, &one);
    job.world = 2;
    world_curve_of(&job, &two);
    assert_true(one.overflows[0]);
    for (int64_t step = 0; step < job.steps; step++) {
        assert_int_equal(one.overflows[step], two.overflows[step]);
        assert_true(one.scales[step] == ldexp(1, 127 - lost) &&
                    two.scales[step] == one.scales[step]);
        assert_true(isfinite(one.losses[step]));
        assert_true(fabs(one.losses[step] - two.losses[step]) < 1e-5);
        lost += one.overflows[step];
    }
    assert_true(lost < job.steps - 2 && !one.overflows[job.steps - 1]);
    assert_true(world_distance(one.params, two.params, one.count) < 1e-5);
    world_curve_free(&one);
    world_curve_free(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_after_many_good_steps),
        cmocka_unit_test(halves_and_begins_to_count_again),
        cmocka_unit_test(gives_up_where_halving_does_not_help),
        cmocka_unit_test(powers_of_two_change_no_bit),
        cmocka_unit_test(too_much_costs_the_same_steps_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
