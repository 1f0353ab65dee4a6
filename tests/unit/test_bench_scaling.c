/* test_bench_scaling.c - how ddp_bench scaling divides lost time, on made-up times, and how it
 * reads the records of runs. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/scaling.h"

static void near(double found, double want, double slack)
{
    if (!(fabs(found - want) <= slack))
        fail_msg("found %.15g, want %.15g", found, want);
}
#define NEAR(found, want) near(found, want, 1e-12)

static double sum_of(const ddpi_scaling_split *s)
{
    return s->latency + s->bandwidth + s->stragglers + s->data + s->batch + s->compute + s->rest;
}

/* Base: 80 ms, 60 of them backward. On 4 ranks: 100 ms. */
static ddpi_scaling_case made_up(ddpi_scaling_mode mode)
{
    return (ddpi_scaling_case){
        .mode = mode,
        .ranks = 4,
        .base = {.wall = 0.080, .backward = 0.060, .mean_data = 0.001, .mean_compute = 0.079},
        .full = {.wall = 0.300},
        .run = {.wall = 0.100,
                .mean_data = 0.003,
                .mean_compute = 0.082,
                .mean_exposed = 0.014,
                .least_exposed = 0.010,
                .gradient_bytes = 40e6,
                .first_bucket_bytes = 10e6,
                .bucket_bytes = 10e6,
                .hides = true}};
}

static void weak_scaling_is_divided_exactly(void **state)
{
    (void)state;
    ddpi_scaling_case c = made_up(DDPI_SCALING_WEAK);
    c.curve = ddp_cost_curve_line(0.002, 2e9); /* four buckets of 10 MB: 7 ms each, 2 of latency */
    ddpi_scaling_divide(&c);
    NEAR(c.split.efficiency, 0.8);
    NEAR(c.split.lost, 0.2);
    NEAR(c.split.stragglers, 0.04);
    NEAR(c.split.data, 0.02);
    NEAR(c.split.batch, 0);
    NEAR(c.split.compute, 0.03);
    NEAR(c.split.latency + c.split.bandwidth, 0.1);
    assert_float_equal(c.split.latency, 0.1 * 2 / 7,
                       1e-6); /* a curve's 8 bytes are no latency alone */
    NEAR(c.split.rest, 0.01);
    NEAR(sum_of(&c.split), c.split.lost);
    /* Ready every 15 ms, 7 ms each: what backward cannot hide is the last one. */
    NEAR(c.split.ceiling, 0.080 / 0.087);
}

static void strong_scaling_has_the_smaller_batch_as_a_part(void **state)
{
    (void)state;
    ddpi_scaling_case c = made_up(DDPI_SCALING_STRONG);
    c.curve = ddp_cost_curve_line(0.002, 2e9);
    ddpi_scaling_divide(&c);
    NEAR(c.split.efficiency, 0.75); /* 300 ms / 4 of 100 */
    NEAR(c.split.batch, 0.05);      /* 80 - 75 ms */
    NEAR(c.split.stragglers, 0.04);
    NEAR(c.split.rest, 0.01);
    NEAR(sum_of(&c.split), c.split.lost);
    NEAR(c.split.ceiling, 0.075 / 0.087);
}

static void ranks_that_reduce_themselves_hide_nothing(void **state)
{
    (void)state;
    ddpi_scaling_case c = made_up(DDPI_SCALING_WEAK);
    c.curve = ddp_cost_curve_line(0.002, 2e9);
    c.run.hides = false;
    ddpi_scaling_divide(&c);
    NEAR(c.split.ceiling, 0.080 / (0.080 + 4 * 0.007));
}

static void without_a_link_there_is_no_communication(void **state)
{
    (void)state;
    ddpi_scaling_case c = made_up(DDPI_SCALING_WEAK);
    c.ranks = 1;
    c.run = c.base;
    ddpi_scaling_divide(&c);
    NEAR(c.split.efficiency, 1);
    NEAR(c.split.ceiling, 1);
    NEAR(sum_of(&c.split), 0);
}

/* ---- records ---- */

static void write_metrics(const char *dir, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
}

static const char run_record[] =
    "{\"kind\":\"run\",\"world_size\":2,\"hosts\":[\"a\",\"b\"],\"parameters\":1000,\"options\":{"
    "\"grad-dtype\":\"bf16\",\"bucket-cap-mb\":\"2\",\"first-bucket-mb\":\"0.5\",\"allreduce\":"
    "\"auto\",\"device\":\"auto\"}}\n";

/* A step with these times; every other time is twice wall. */
static void add_step(char *text, size_t bytes, int step, double wall, double least)
{
    size_t used = strlen(text);
    double other = 2 * wall;
    snprintf(text + used, bytes - used,
             "{\"kind\":\"step\",\"step\":%d,\"samples\":64,\"ms\":{\"data\":%g,\"forward\":%g,"
             "\"backward\":%g,\"comm\":%g,\"comm_exposed\":%g,\"optim\":%g,\"step\":%g,"
             "\"compute\":%g,\"wall\":%g},\"ms_mean\":{\"data\":%g,\"comm_exposed\":%g,\"compute\":"
             "%g},\"ms_least\":{\"comm_exposed\":%g}}\n",
             step, other, other, other, other, other, other, other, other, wall, other, other,
             other, least);
}

static void records_give_medians_without_the_first_steps(void **state)
{
    (void)state;
    char dir[] = "/tmp/ddp_test_bench_scaling_XXXXXX", text[4096];
    ddpi_run_times t;
    assert_non_null(mkdtemp(dir));
    snprintf(text, sizeof text, "%s", run_record);
    add_step(text, sizeof text, 1, 1000, 1000);
    add_step(text, sizeof text, 2, 10, 1);
    add_step(text, sizeof text, 3, 30, 3);
    add_step(text, sizeof text, 4, 20, 2);
    strcat(text, "{\"kind\":\"summary\"}\n{\"kind\":\"ste");
    write_metrics(dir, text);
    CHECK_OK(ddpi_run_read(dir, 1, &t));
    assert_true(t.steps == 3 && t.ranks == 2 && t.hosts == 2 && t.hides);
    NEAR(t.wall, 0.020);
    NEAR(t.least_exposed, 0.002);
    for (int f = 1; f < DDPI_RUN_FIELDS - 1; f++)
        NEAR(*ddpi_run_field(&t, f), 0.040);
    assert_true(t.samples == 64 && t.gradient_bytes == 2000);
    assert_true(t.first_bucket_bytes == 524288 && t.bucket_bytes == 2097152);
    CHECK_FAILS(ddpi_run_read(dir, 4, &t), DDP_ERR_FORMAT, "4 steps, of which the first 4");
    /* What a step says of its bytes is better than what follows from the model. */
    char *end = strstr(text, "{\"kind\":\"summary\"}");
    assert_non_null(end);
    snprintf(end, (size_t)(text + sizeof text - end), "%s", "");
    add_step(text, sizeof text, 5, 40, 4);
    end = strrchr(text, '}');
    assert_non_null(end);
    snprintf(end, (size_t)(text + sizeof text - end), ",\"comm_bytes\":123}\n");
    write_metrics(dir, text);
    CHECK_OK(ddpi_run_read(dir, 1, &t));
    assert_true(t.gradient_bytes == 123);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

static void damaged_records_are_named(void **state)
{
    (void)state;
    char dir[] = "/tmp/ddp_test_bench_scaling_XXXXXX";
    ddpi_run_times t;
    assert_non_null(mkdtemp(dir));
    CHECK_FAILS(ddpi_run_read(dir, 1, &t), DDP_ERR_IO, "metrics.jsonl");
    write_metrics(dir, "{\"kind\":\"step\",\"samples\":1}\n{\"kind\":\"step\",\"samples\":1}\n");
    CHECK_FAILS(ddpi_run_read(dir, 1, &t), DDP_ERR_FORMAT, "step 2 of the file has no ms.wall");
    write_metrics(dir, "no json\n");
    CHECK_FAILS(ddpi_run_read(dir, 1, &t), DDP_ERR_FORMAT, "metrics.jsonl");
    CHECK_OK(ddp_fs_remove_tree(dir));
}

/* As many cases as options allow, with names as long as datasets have. */
static void the_picture_of_many_cases_is_whole(void **state)
{
    (void)state;
    enum { CASES = 128 };
    static ddpi_scaling_case cases[CASES];
    char dir[] = "/tmp/ddp_test_bench_scaling_XXXXXX", path[256], *text;
    ddpi_bench_out out = {.dir = dir, .gnuplot = "no-such-gnuplot"};
    size_t bytes;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < CASES; i++) {
        cases[i] = made_up(i % 32 < 16 ? DDPI_SCALING_WEAK : DDPI_SCALING_STRONG);
        cases[i].data = "a-dataset-of-20-chars";
        cases[i].ranks = 65536;
        ddpi_scaling_divide(&cases[i]);
    }
    CHECK_OK(ddpi_bench_out_open(&out, "scaling"));
    CHECK_OK(ddpi_scaling_report(cases, CASES, true, &out));
    CHECK_OK(ddpi_bench_out_close(&out));
    snprintf(path, sizeof path, "%s/scaling-loss.gp", dir);
    CHECK_OK(ddp_fs_read(path, 1 << 20, &text, &bytes));
    assert_non_null(memmem(text, bytes, "set xrange [-0.7:128-0.3]\n", 25));
    ddp_free(text);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weak_scaling_is_divided_exactly),
        cmocka_unit_test(strong_scaling_has_the_smaller_batch_as_a_part),
        cmocka_unit_test(ranks_that_reduce_themselves_hide_nothing),
        cmocka_unit_test(without_a_link_there_is_no_communication),
        cmocka_unit_test(records_give_medians_without_the_first_steps),
        cmocka_unit_test(damaged_records_are_named),
        cmocka_unit_test(the_picture_of_many_cases_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
