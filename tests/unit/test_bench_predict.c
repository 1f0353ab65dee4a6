/* test_bench_predict.c - the formulas of ddp_bench predict against closed forms and simulations by
 * hand. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/rng.h"
#include "tools/bench/predict.h"

#define CHECK_NEAR(got, want, tolerance)                                                           \
    do {                                                                                           \
        const double got_ = (got), want_ = (want);                                                 \
        if (!(fabs(got_ - want_) <= (tolerance)*fabs(want_)))                                      \
            fail_msg("%s: got %.12g, want %.12g", #got, got_, want_);                              \
    } while (0)

static const double latency = 1e-5, rate = 1e9, bytes = 1 << 24;

static double sum_of(const ddpi_sum_net *net, ddpi_sum_algo algo, bool two, int64_t ranks)
{
    const ddp_cost_curve curve = ddpi_sum_curve(net, algo, two, ranks);
    return ddp_cost_seconds(&curve, bytes);
}

static void sums_take_what_the_textbook_says(void **state)
{
    (void)state;
    const ddpi_sum_net net = ddpi_sum_net_line(latency, rate);
    const double s = bytes / rate;
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, false, 8), 14 * latency + 2 * 7.0 / 8 * s, 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_TREE, false, 8), 6 * (latency + s), 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_TREE, false, 5), 6 * (latency + s), 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RHD, false, 8), 6 * latency + 2 * 7.0 / 8 * s, 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RHD, false, 6),
               4 * latency + 2 * 3.0 / 4 * s + 2 * (latency + s), 1e-9);
    for (int algo = 0; algo < DDPI_SUM_BEST; algo++)
        assert_true(sum_of(&net, (ddpi_sum_algo)algo, false, 1) == 0);
}

/* Halving and doubling, message by message: every round ends when its messages have come. */
static void halving_and_doubling_follows_from_its_messages(void **state)
{
    (void)state;
    const ddpi_sum_net net = ddpi_sum_net_line(latency, rate);
    double clock = 0;
    for (double part = bytes / 2; part >= bytes / 64; part /= 2)
        clock += 2 * (latency + part / rate);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RHD, false, 64), clock, 1e-9);
}

static void two_levels_send_least_and_wait_least(void **state)
{
    (void)state;
    ddpi_sum_net net = ddpi_sum_net_line(latency, rate);
    net.per_host = 8;
    net.local_latency = 1e-6;
    net.local_bytes_per_second = 1e10;
    const double inside = 14 * 1e-6 + 2 * 7.0 / 8 * bytes / 1e10;
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, true, 32),
               inside + 6 * latency + 2 * 3.0 / 4 * bytes / rate, 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, false, 32), 62 * latency + 2 * 31.0 / 32 * bytes / rate,
               1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RHD, false, 32),
               6 * 1e-6 + 2 * 7.0 / 8 * bytes / 1e10 + 4 * latency + 2 * 3.0 / 4 * bytes / rate,
               1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, true, 8), inside, 1e-9);
    /* A link that is faster than memory leaves a ring as fast as inside a host. */
    ddpi_sum_net fast = ddpi_sum_net_line(0, 1e11);
    fast.per_host = 8;
    fast.local_latency = 1e-6;
    fast.local_bytes_per_second = 1e10;
    CHECK_NEAR(sum_of(&fast, DDPI_SUM_RING, false, 32), 62e-6 + 2 * 31.0 / 32 * bytes / 1e10, 1e-9);
    for (int64_t ranks = 2; ranks < 100000; ranks *= 3) {
        const double best = sum_of(&net, DDPI_SUM_BEST, true, ranks);
        for (int algo = 0; algo < DDPI_SUM_BEST; algo++)
            assert_true(best <= sum_of(&net, (ddpi_sum_algo)algo, true, ranks) * (1 + 1e-9));
    }
}

static void a_measured_sum_is_met_where_it_was_measured(void **state)
{
    (void)state;
    ddpi_sum_net net = {.per_host = 1, .local_bytes_per_second = 1e10};
    ddp_cost_curve_add(&net.link, 0, 6 * latency);
    ddp_cost_curve_add(&net.link, bytes / 2, 6 * latency + 0.02);
    ddp_cost_curve_add(&net.link, bytes, 6 * latency + 0.03); /* faster when larger */
    net.reference = ddpi_sum_shape_of(DDPI_SUM_RING, 4);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, false, 4), 6 * latency + 0.03, 1e-9);
    CHECK_NEAR(sum_of(&net, DDPI_SUM_RING, false, 16), 30 * latency + 0.03 * 15 / 16 * 4 / 3, 1e-9);
}

static void the_slowest_of_many_is_the_normal_order_statistic(void **state)
{
    (void)state;
    assert_true(ddpi_slowest(1, 1, 256) == 0);
    CHECK_NEAR(ddpi_slowest(2, 1, 20000), 1 / sqrt(acos(-1)), 0.02);
    CHECK_NEAR(ddpi_slowest(3, 1, 20000), 3 / (2 * sqrt(acos(-1))), 0.02);
    CHECK_NEAR(ddpi_slowest(100, 2, 20000), 2.50759, 0.01); /* tables of normal scores */
    for (int64_t n = 2; n < 65536; n *= 2)
        assert_true(ddpi_slowest(2 * n, 1, 256) > ddpi_slowest(n, 1, 256));
    /* Against drawing all of them. */
    float values[1000];
    const ddp_rng rng = ddp_rng_make(5, DDP_RNG_TEST, 7);
    double sum = 0;
    for (int i = 0; i < 400; i++) {
        double largest = -10;
        ddp_rng_normal_fill(&rng, (uint64_t)i * 1000, 1000, values);
        for (int k = 0; k < 1000; k++)
            largest = fmax(largest, (double)values[k]);
        sum += largest / 400;
    }
    CHECK_NEAR(ddpi_slowest(1000, 3, 20000), sum, 0.02);
}

/* Two layers of 1 MiB, ready at 30 and 60 ms of a backward of 60. */
static double layer_bytes[] = {1 << 20, 1 << 20}, layer_ready[] = {0.03, 0.06};
static const ddpi_profile profile = {.model = "two",
                                     .count = 2,
                                     .bytes = layer_bytes,
                                     .ready = layer_ready,
                                     .forward = 0.03,
                                     .backward = 0.06,
                                     .update = 0.01};

static ddpi_scene scene_of(const ddpi_sum_net *net, int64_t ranks)
{
    return (ddpi_scene){.profile = &profile,
                        .net = net,
                        .algo = DDPI_SUM_RING,
                        .ranks = ranks,
                        .first_bytes = 1,
                        .cap_bytes = 1,
                        .accumulate = 1,
                        .shrink = 1};
}

static void steps_add_up(void **state)
{
    (void)state;
    const ddpi_sum_net net = ddpi_sum_net_line(0, (1 << 20) / 0.02); /* 20 ms for a layer, once */
    ddpi_scene scene = scene_of(&net, 2);
    ddpi_outlook o;
    CHECK_OK(ddpi_foresee(&scene, &o));
    assert_int_equal(o.buckets, 2);
    CHECK_NEAR(o.comm, 0.04, 1e-9); /* 2 (n-1)/n is 1 */
    CHECK_NEAR(o.exposed, 0.02, 1e-9);
    CHECK_NEAR(o.step, 0.12, 1e-9);
    CHECK_NEAR(o.efficiency, 0.1 / 0.12, 1e-9);
    scene.cap_bytes = scene.first_bytes = 1e9;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.exposed, 0.04, 1e-9);
    scene.cap_bytes = 0;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.exposed, 0.02, 1e-9);
    scene.shrink = 0.5;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.exposed, 0.01, 1e-9);
    scene.accumulate = 4;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.step, 4 * 0.09 + 0.01 + 0.01, 1e-9);
    scene.ranks = 1;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.efficiency, 1, 1e-9);
    scene = scene_of(&net, 2);
    scene.spread = 0.1;
    CHECK_OK(ddpi_foresee(&scene, &o));
    CHECK_NEAR(o.straggling, 0.09 * 0.1 / sqrt(acos(-1)), 0.05);
}

static void a_profile_is_read_with_care(void **state)
{
    (void)state;
    char path[] = "/tmp/ddp-predict-XXXXXX";
    const char *good = "{\"model\":\"m\",\"forward\":1,\"backward\":2,\"update_per_byte\":0.5,"
                       "\"layers\":[{\"bytes\":4,\"ready\":1.5},{\"bytes\":6,\"ready\":2}]}";
    const char *late = "{\"forward\":1,\"backward\":2,\"update_per_byte\":0,"
                       "\"layers\":[{\"bytes\":4,\"ready\":3}]}";
    ddpi_profile p;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    CHECK_OK(ddp_fs_write_atomic(path, good, strlen(good)));
    CHECK_OK(ddpi_profile_load(path, &p));
    assert_int_equal(p.count, 2);
    CHECK_NEAR(p.update, 5, 1e-12);
    ddpi_profile_speed_up(&p, 2);
    CHECK_NEAR(p.ready[0], 0.75, 1e-12);
    CHECK_NEAR(p.backward, 1, 1e-12);
    ddpi_profile_free(&p);
    CHECK_OK(ddp_fs_write_atomic(path, late, strlen(late)));
    CHECK_FAILS(ddpi_profile_load(path, &p), DDP_ERR_FORMAT, "layer 0 is ready at 3 s");
    CHECK_OK(ddp_fs_write_atomic(path, "{}", 2));
    CHECK_FAILS(ddpi_profile_load(path, &p), DDP_ERR_FORMAT, "\"layers\"");
    unlink(path);
}

/* Whatever is accepted gives finite times: no NaN in a table, and no infinite sum that looks like
 * none. */
static void numbers_that_no_machine_has_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *forward, *bytes, *expected;
    } cases[] = {
        {"m", "1e308", "4", "\"forward\", a number from 0 to 1e+06"},
        {"m", "-1", "4", "\"forward\""},
        {"m", "0", "4", "a forward or a backward that takes time"},
        {"m", "1", "1e308", "\"bytes\", a number from 0 to 1e+15"},
    };
    char path[] = "/tmp/ddp-predict-XXXXXX", text[512];
    ddpi_profile p;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const char *form = "{\"model\":\"%s\",\"forward\":%s,\"backward\":0,\"update_per_byte\":0,"
                       "\"layers\":[{\"bytes\":%s,\"ready\":0}]}";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, form, cases[i].model, cases[i].forward, cases[i].bytes);
        CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
        CHECK_FAILS(ddpi_profile_load(path, &p), DDP_ERR_FORMAT, cases[i].expected);
    }
    /* 31 characters of two bytes are as many as there is room for. */
    char name[81] = "";
    for (int i = 0; i < 40; i++)
        strcat(name, "\xc3\xa9");
    snprintf(text, sizeof text, form, name, "1", "4");
    CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
    CHECK_OK(ddpi_profile_load(path, &p));
    assert_int_equal(strlen(p.model), 62);
    ddpi_profile_free(&p);
    snprintf(text, sizeof text, form, "a\\u001bb", "1", "4");
    CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
    CHECK_OK(ddpi_profile_load(path, &p));
    assert_string_equal(p.model, "a?b");
    ddpi_profile_free(&p);
    ddp_cost_curve curve;
    const char *far = "{\"points\":[{\"bytes\":8,\"seconds\":1},{\"bytes\":9,\"seconds\":1e300}]}";
    CHECK_OK(ddp_fs_write_atomic(path, far, strlen(far)));
    CHECK_FAILS(ddp_cost_curve_load(path, &curve), DDP_ERR_FORMAT, "points[1]");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_take_what_the_textbook_says),
        cmocka_unit_test(halving_and_doubling_follows_from_its_messages),
        cmocka_unit_test(two_levels_send_least_and_wait_least),
        cmocka_unit_test(a_measured_sum_is_met_where_it_was_measured),
        cmocka_unit_test(the_slowest_of_many_is_the_normal_order_statistic),
        cmocka_unit_test(steps_add_up),
        cmocka_unit_test(a_profile_is_read_with_care),
        cmocka_unit_test(numbers_that_no_machine_has_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
