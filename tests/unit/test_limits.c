/* test_limits.c - the time that ranks wait for each other: given, learned, and none. */
#include "harness.h"

#include "ddp/limits.h"

#define MS 1000000

static void a_given_limit_stays(void **state)
{
    (void)state;
    ddp_limits limits;

    ddp_limits_init(&limits, &(ddp_limits_opts){.seconds = {[DDP_PHASE_STEP] = 2.5}, .least = 60});
    for (int i = 0; i < 100; i++)
        ddp_limits_learn(&limits, DDP_PHASE_STEP, 100000ll * MS);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 2500);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_EVAL), 60000);
}

static void limits_follow_the_median_above_the_least(void **state)
{
    (void)state;
    ddp_limits limits;

    ddp_limits_init(&limits, &(ddp_limits_opts){.least = 10});
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 10000);
    ddp_limits_learn(&limits, DDP_PHASE_STEP, 100ll * MS);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 10000);
    /* One that is out of the ordinary does not count, nor do those of long ago. */
    for (int i = 0; i < DDP_LIMITS_KEPT - 1; i++)
        ddp_limits_learn(&limits, DDP_PHASE_STEP,
                         i == 7 ? 900000ll * MS : (1000 + i) * (int64_t)MS);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 20 * 1031);
    for (int i = 0; i < DDP_LIMITS_KEPT; i++)
        ddp_limits_learn(&limits, DDP_PHASE_STEP, 2000ll * MS);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 40000);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_EVAL), 10000);
}

static void a_checkpoint_may_take_what_the_longest_took(void **state)
{
    (void)state;
    ddp_limits limits;

    ddp_limits_init(&limits, &(ddp_limits_opts){.least = 10});
    ddp_limits_learn(&limits, DDP_PHASE_CHECKPOINT, 3000ll * MS);
    for (int i = 0; i < 1000; i++)
        ddp_limits_learn(&limits, DDP_PHASE_CHECKPOINT, 0);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_CHECKPOINT), 60000);
}

static void without_a_least_nothing_is_limited(void **state)
{
    (void)state;
    ddp_limits limits;

    ddp_limits_init(&limits, &(ddp_limits_opts){.seconds = {[DDP_PHASE_START] = 1}});
    ddp_limits_learn(&limits, DDP_PHASE_STEP, 1000ll * MS);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_STEP), 0);
    assert_int_equal(ddp_limits_ms(&limits, DDP_PHASE_START), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_given_limit_stays),
        cmocka_unit_test(limits_follow_the_median_above_the_least),
        cmocka_unit_test(a_checkpoint_may_take_what_the_longest_took),
        cmocka_unit_test(without_a_least_nothing_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
