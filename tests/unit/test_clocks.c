/* Clocks that are ahead, run away, and answer late; and ranks of one process, which share one. */
#include "ddp/clocks.h"
#include "harness.h"
#include "loopback_ranks.h"

/* A message that takes out_ns there and back_ns back, sent at sent_ns to a clock that is ahead. */
static ddp_ping ping(int64_t sent_ns, int64_t out_ns, int64_t back_ns, int64_t ahead_ns)
{
    return (ddp_ping){.sent_ns = sent_ns,
                      .back_ns = sent_ns + out_ns + back_ns,
                      .stamp = {.monotonic_ns = sent_ns + out_ns + ahead_ns}};
}

static void the_quickest_message_counts(void **state)
{
    (void)state;
    const int64_t ahead = INT64_C(5000000000123);
    const ddp_ping pings[] = {
        ping(1000, 90000, 10, ahead),
        ping(200000, 40, 60, ahead),
        ping(300000, 10, 70000, ahead),
    };
    const ddp_clock_look look = ddp_clocks_compare(pings, 3);
    assert_true(look.ahead_ns == ahead - 10);
    assert_int_equal(look.error_ns, 51);
    assert_true(look.at_ns == 200040 + ahead);
}

static void the_error_is_never_larger_than_said(void **state)
{
    (void)state;
    for (int64_t out = 0; out <= 100; out += 7)
        for (int64_t back = 0; back <= 100; back += 9) {
            const ddp_ping one = ping(77, out, back, -5000);
            const ddp_clock_look look = ddp_clocks_compare(&one, 1);
            assert_true(look.ahead_ns + 5000 <= look.error_ns);
            assert_true(-5000 - look.ahead_ns <= look.error_ns);
        }
}

static void drift_is_a_line_through_two_looks(void **state)
{
    (void)state;
    /* 100 s apart, the other has gained 2 ms: 20 parts in a million. */
    const ddp_clock_look looks[2] = {
        {.at_ns = INT64_C(50000000000), .ahead_ns = 1000000, .error_ns = 1000},
        {.at_ns = INT64_C(150000000000), .ahead_ns = 3000000, .error_ns = 1000},
    };
    assert_true(ddp_clocks_translate(looks, looks[1].at_ns) == looks[1].at_ns - 3000000);
    assert_true(ddp_clocks_translate(looks, looks[0].at_ns) == looks[0].at_ns - 1000000);
    assert_true(ddp_clocks_translate(looks, INT64_C(100000000000)) ==
                INT64_C(100000000000) - 2000000);
}

static void looks_that_lie_too_close_say_nothing_of_drift(void **state)
{
    (void)state;
    const ddp_clock_look looks[2] = {
        {.at_ns = 1000000, .ahead_ns = 10, .error_ns = 1000},
        {.at_ns = 2000000, .ahead_ns = 510, .error_ns = 1000},
    };
    assert_int_equal(ddp_clocks_translate(looks, 0), -510);
    const ddp_clock_look same[2] = {{.at_ns = 5}, {.at_ns = INT64_C(1000000000000)}};
    assert_int_equal(ddp_clocks_translate(same, 12345), 12345);
}

static ddp_status look(ddp_comm *comm, void *arg)
{
    const bool one_node = *(bool *)arg;
    ddp_clock_look found;
    DDP_TRY(ddp_clocks_look(comm, &found));
    const bool home = ddp_comm_node(comm) == ddp_comm_node_of(comm, 0);
    if (home != (found.error_ns == 0 && found.ahead_ns == 0))
        return DDP_FAIL(DDP_ERR_INTERNAL, "rank %d: %lld ns ahead, error %lld", ddp_comm_rank(comm),
                        (long long)found.ahead_ns, (long long)found.error_ns);
    if (one_node && ddp_comm_node_count(comm) != 1)
        return DDP_FAIL(DDP_ERR_INTERNAL, "not one node");
    /* All have one clock here. */
    if (found.ahead_ns > found.error_ns || -found.ahead_ns > found.error_ns)
        return DDP_FAIL(DDP_ERR_INTERNAL, "rank %d: %lld ns ahead, error at most %lld",
                        ddp_comm_rank(comm), (long long)found.ahead_ns, (long long)found.error_ns);
    return DDP_OK;
}

static void ranks_of_a_process_find_one_clock(void **state)
{
    (void)state;
    static const int nodes[] = {0, 1, 0, 2};
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    bool one_node = true;
    opts.exit_on_failure = false;
    CHECK_OK(run_ranks(&opts, 1, look, &one_node));
    CHECK_OK(run_ranks(&opts, 3, look, &one_node));
    one_node = false;
    opts.loopback_nodes = nodes;
    CHECK_OK(run_ranks(&opts, 4, look, &one_node));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_quickest_message_counts),
        cmocka_unit_test(the_error_is_never_larger_than_said),
        cmocka_unit_test(drift_is_a_line_through_two_looks),
        cmocka_unit_test(looks_that_lie_too_close_say_nothing_of_drift),
        cmocka_unit_test(ranks_of_a_process_find_one_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
