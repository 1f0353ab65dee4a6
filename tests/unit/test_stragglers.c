/* test_stragglers.c - the slowest rank of made-up steps, what it did, and when that is said. */
#include "harness.h"

#include "ddp/stragglers.h"

enum { WORLD = 3, MS = 1000000 };

/* 10 ms of its own, and 5 of waiting for others. */
static const ddp_rank_times usual = {.between_ns = 1 * MS,
                                     .data_ns = 1 * MS,
                                     .forward_ns = 2 * MS,
                                     .backward_ns = 4 * MS,
                                     .exposed_ns = 5 * MS,
                                     .optim_ns = 1 * MS,
                                     .step_ns = 14 * MS};

static bool step(ddp_stragglers *s, int rank, ddp_rank_times times, ddp_straggler *late)
{
    ddp_rank_times ranks[WORLD] = {usual, usual, usual};
    const ddp_step_stats stats = {.ranks = ranks, .rank_count = WORLD};
    ranks[rank] = times;
    return ddp_stragglers_step(s, &stats, late);
}

static ddp_rank_times slow_backward(int64_t more_ms)
{
    ddp_rank_times times = usual;
    times.backward_ns += more_ms * MS;
    times.exposed_ns = 0;
    times.step_ns += (more_ms - 5) * MS;
    return times;
}

static void the_longest_own_time_is_named_with_its_part(void **state)
{
    (void)state;
    ddp_stragglers *s;
    ddp_straggler found;
    CHECK_OK(ddp_stragglers_create(WORLD, &s));
    assert_false(ddp_stragglers_get(s, &found));
    assert_false(step(s, 2, slow_backward(3), &found));
    assert_false(step(s, 2, slow_backward(3), &found));
    assert_false(step(s, 1, slow_backward(1), &found));
    assert_true(ddp_stragglers_get(s, &found));
    assert_int_equal(found.rank, 2);
    assert_int_equal(found.part, DDP_PART_BACKWARD);
    assert_int_equal(found.slowest_steps, 2);
    assert_int_equal(found.steps, 3);
    assert_float_equal(found.own_ms, 12, 1e-9);
    assert_float_equal(found.mean_ms, (12 + 10 + 31.0 / 3) / 3, 1e-9);
    assert_float_equal(ddp_stragglers_own_ms(s, 0), 10, 1e-9);
    ddp_stragglers_reset(s);
    assert_false(ddp_stragglers_get(s, &found));
    ddp_stragglers_destroy(s);
}

static void waiting_for_others_is_nobodys_own_time(void **state)
{
    (void)state;
    ddp_stragglers *s;
    ddp_straggler found;
    ddp_rank_times waits = usual;
    CHECK_OK(ddp_stragglers_create(WORLD, &s));
    waits.exposed_ns += 50 * MS;
    waits.step_ns += 50 * MS;
    for (int i = 0; i < 20; i++)
        assert_false(step(s, 0, waits, &found));
    assert_float_equal(ddp_stragglers_own_ms(s, 0), 10, 1e-9);
    ddp_stragglers_destroy(s);
}

static void each_part_can_be_the_reason(void **state)
{
    (void)state;
    for (int part = 0; part < DDP_PARTS; part++) {
        ddp_stragglers *s;
        ddp_straggler found;
        ddp_rank_times times = usual;
        int64_t *const where[DDP_PARTS] = {&times.between_ns,  &times.data_ns,  &times.forward_ns,
                                           &times.backward_ns, &times.optim_ns, &times.step_ns};
        *where[part] += 7 * MS;
        if (part != DDP_PART_BETWEEN && part != DDP_PART_OTHER)
            times.step_ns += 7 * MS;
        CHECK_OK(ddp_stragglers_create(WORLD, &s));
        assert_false(step(s, 1, times, &found));
        assert_true(ddp_stragglers_get(s, &found));
        assert_int_equal(found.rank, 1);
        assert_int_equal(found.part, part);
        ddp_stragglers_destroy(s);
    }
}

static void a_rank_that_stays_late_is_said_once(void **state)
{
    (void)state;
    ddp_stragglers *s;
    ddp_straggler late;
    int said = 0;
    CHECK_OK(ddp_stragglers_create(WORLD, &s));
    for (int i = 0; i < 9; i++)
        assert_false(step(s, 1, slow_backward(40), &late));
    assert_false(step(s, 1, slow_backward(1), &late)); /* one good step: from the start */
    for (int i = 0; i < 30; i++) {
        const bool says = step(s, 1, slow_backward(40), &late);
        said += says;
        if (says)
            assert_int_equal(i, 9);
    }
    assert_int_equal(said, 1);
    assert_int_equal(late.rank, 1);
    ddp_stragglers_reset(s);
    for (int i = 0; i < 10; i++)
        said += step(s, 0, slow_backward(40), &late);
    assert_int_equal(said, 2);
    assert_int_equal(late.rank, 0);
    ddp_stragglers_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_own_time_is_named_with_its_part),
        cmocka_unit_test(waiting_for_others_is_nobodys_own_time),
        cmocka_unit_test(each_part_can_be_the_reason),
        cmocka_unit_test(a_rank_that_stays_late_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
