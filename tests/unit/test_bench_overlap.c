/* test_bench_overlap.c - what ddp_bench overlap makes of made-up spans. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/overlap.h"

static void near(double found, double want)
{
    if (!(fabs(found - want) <= 1e-12))
        fail_msg("found %.15g, want %.15g", found, want);
}

static void add(ddpi_overlap_trace *t, int rank, ddp_span_kind kind, int id, int64_t step,
                double begin, double end)
{
    CHECK_OK(DDP_GROW(t->spans, t->capacity, t->count));
    t->spans[t->count++] =
        (ddpi_overlap_span){.rank = rank,
                            .main = kind != DDP_SPAN_BUCKET,
                            .kind = kind,
                            .id = id,
                            .step = step,
                            .begin = begin,
                            .end = end,
                            .bytes = kind == DDP_SPAN_BUCKET ? 1000 * (id + 1) : 0};
}

/* Forward 0-10, backward 10-30, two buckets: ready at 15 and 30, on their way 16-24 and 31-36. The
 * main thread gives them away in 0.1, and waits for the second to 36, with an update of 1 in
 * between. late: this rank waits that much longer for the second. */
static void add_rank(ddpi_overlap_trace *t, int rank, int64_t step, double from, double late)
{
    add(t, rank, DDP_SPAN_STEP, 0, step, from, from + 40 + late);
    add(t, rank, DDP_SPAN_FORWARD, 0, step, from, from + 10);
    add(t, rank, DDP_SPAN_BACKWARD, 0, step, from + 10, from + 30);
    add(t, rank, DDP_SPAN_WAIT, 0, step, from + 15, from + 15.1);
    add(t, rank, DDP_SPAN_BUCKET, 0, step, from + 16, from + 24);
    add(t, rank, DDP_SPAN_WAIT, 1, step, from + 29.9, from + 30);
    add(t, rank, DDP_SPAN_WAIT, 1, step, from + 30, from + 36 + late);
    add(t, rank, DDP_SPAN_OPTIM, 0, step, from + 30.5, from + 31.5);
    add(t, rank, DDP_SPAN_BUCKET, 1, step, from + 31 + late, from + 36 + late);
    add(t, rank, DDP_SPAN_WAIT, -1, step, from + 37 + late, from + 39 + late); /* control word */
}

static void spans_become_times_of_buckets(void **state)
{
    (void)state;
    ddpi_overlap_trace t = {0};
    ddpi_overlap o;
    add_rank(&t, 1, 7, 1000, 3);
    add_rank(&t, 0, 7, 1000, 0);
    CHECK_OK(ddpi_overlap_measure(&t, 1, &o));
    assert_true(o.ranks == 2 && o.steps == 1 && o.bucket_count == 2 && o.median_step == 7);
    near(o.step, 41.5);
    near(o.backward, 20);
    near(o.comm, 13);
    near(o.exposed, 0.1 + 6.1 - 1);
    near(o.exposed_mean, 0.1 + 6.1 - 1 + 1.5);
    near(o.buckets[0].bytes, 1000);
    near(o.buckets[0].ready, 5);
    near(o.buckets[0].start, 6);
    near(o.buckets[0].end, 14);
    near(o.buckets[0].took, 8);
    near(o.buckets[0].hidden, 8);
    near(o.buckets[0].waited, 0.1);
    near(o.buckets[1].bytes, 2000);
    near(o.buckets[1].ready, 19.9);
    near(o.buckets[1].hidden, 0);
    near(o.buckets[1].start, 21 + 1.5); /* between the two ranks */
    near(ddpi_overlap_allowed(&o), 1.3);
    near(ddpi_overlap_share(&o), (13 - 5.2) / 13);
    ddpi_overlap_free(&o);
    ddp_free(t.spans);
}

static void waiting_while_a_bucket_travels_hides_nothing(void **state)
{
    (void)state;
    ddpi_overlap_trace t = {0};
    ddpi_overlap o;
    add(&t, 0, DDP_SPAN_STEP, 0, 1, 0, 40);
    add(&t, 0, DDP_SPAN_BACKWARD, 0, 1, 10, 30);
    add(&t, 0, DDP_SPAN_WAIT, 0, 1, 15, 20);
    add(&t, 0, DDP_SPAN_BUCKET, 0, 1, 16, 24);
    CHECK_OK(ddpi_overlap_measure(&t, 1, &o));
    near(o.buckets[0].hidden, 4);
    near(o.exposed, 5);
    ddpi_overlap_free(&o);
    ddp_free(t.spans);
}

static void more_communication_than_backward_may_be_exposed(void **state)
{
    (void)state;
    ddpi_overlap o = {.backward = 10, .comm = 30, .exposed = 21};
    near(ddpi_overlap_allowed(&o), 23);
    near(ddpi_overlap_share(&o), 0.9);
    o.comm = 0;
    near(ddpi_overlap_share(&o), 1);
}

static void steps_that_lack_something_do_not_count(void **state)
{
    (void)state;
    ddpi_overlap_trace t = {0};
    ddpi_overlap o;
    CHECK_FAILS(ddpi_overlap_measure(&t, 1, &o), DDP_ERR_FORMAT, "no spans of buckets");
    for (int step = 1; step <= 5; step++)
        for (int rank = 0; rank < 2; rank++)
            if (step != 4 || rank == 0) /* a rank's ring has lost that step */
                add_rank(&t, rank, step, 100 * step, step == 5 ? 2 : 0);
    CHECK_OK(ddpi_overlap_measure(&t, 2, &o));
    assert_int_equal(o.steps, 3); /* 2, 3, 5 */
    near(o.step, 40);
    assert_true(o.median_step == 2 || o.median_step == 3);
    ddpi_overlap_free(&o);
    CHECK_FAILS(ddpi_overlap_measure(&t, 6, &o), DDP_ERR_FORMAT, "no complete step from step 6 on");
    ddp_free(t.spans);
}

/* ---- files ---- */

static void write_trace(const char *path, const char *events)
{
    char text[2048];
    snprintf(text, sizeof text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[%s]}", events);
    CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
}

static void spans_are_read_from_trace_events(void **state)
{
    (void)state;
    char dir[] = "/tmp/ddp_test_bench_overlap_XXXXXX", path[96];
    ddpi_overlap_trace t;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/trace.json", dir);
    write_trace(
        path,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"x\"}},"
        "{\"ph\":\"X\",\"name\":\"bucket 3\",\"cat\":\"bucket\",\"pid\":2,\"tid\":1000,\"ts\":1500."
        "250,\"dur\":10.500,\"args\":{\"step\":7,\"id\":3,\"bytes\":400}},"
        "{\"ph\":\"X\",\"name\":\"?\",\"cat\":\"a kind of tomorrow\",\"pid\":0,\"tid\":0,\"ts\":1,"
        "\"dur\":1,\"args\":{\"step\":1,\"id\":0}},"
        "{\"ph\":\"X\",\"name\":\"wait\",\"cat\":\"wait\",\"pid\":0,\"tid\":0,\"ts\":5,\"dur\":1,"
        "\"args\":{\"step\":1,\"id\":-1}}");
    CHECK_OK(ddpi_overlap_read(path, &t));
    assert_int_equal(t.count, 2);
    assert_true(t.spans[0].rank == 2 && !t.spans[0].main && t.spans[0].kind == DDP_SPAN_BUCKET);
    assert_true(t.spans[0].id == 3 && t.spans[0].step == 7 && t.spans[0].bytes == 400);
    near(t.spans[0].begin, 1500.25e-6);
    near(t.spans[0].end, 1510.75e-6);
    assert_true(t.spans[1].main && t.spans[1].kind == DDP_SPAN_WAIT && t.spans[1].id == -1);
    ddp_free(t.spans);
    static const char *const impossible[] = {
        "\"pid\":65536,\"ts\":5,\"dur\":1,\"args\":{\"step\":1,\"id\":1}",
        "\"pid\":0,\"ts\":5,\"dur\":-1,\"args\":{\"step\":1,\"id\":1}",
        "\"pid\":0,\"ts\":5,\"dur\":1e300,\"args\":{\"step\":1,\"id\":1}",
        "\"pid\":0,\"ts\":-1e300,\"dur\":1,\"args\":{\"step\":1,\"id\":1}",
        "\"pid\":0,\"ts\":5,\"dur\":1,\"args\":{\"step\":1,\"id\":-2}",
        "\"pid\":0,\"ts\":5,\"dur\":1,\"args\":{\"step\":1,\"id\":4294967297}",
        "\"pid\":0,\"ts\":5,\"dur\":1,\"args\":{\"step\":1,\"id\":1,\"bytes\":-1}"};
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        char event[256];
        snprintf(event, sizeof event, "{\"ph\":\"X\",\"cat\":\"bucket\",\"tid\":0,%s}",
                 impossible[i]);
        write_trace(path, event);
        CHECK_FAILS(ddpi_overlap_read(path, &t), DDP_ERR_FORMAT, "is not one of ddp_train's");
    }
    write_trace(path, "{\"ph\":\"X\",\"name\":\"alien\",\"ts\":1,\"dur\":1}");
    CHECK_FAILS(ddpi_overlap_read(path, &t), DDP_ERR_FORMAT, "event 0 is not one of ddp_train's");
    CHECK_OK(ddp_fs_write_atomic(path, "{}", 2));
    CHECK_FAILS(ddpi_overlap_read(path, &t), DDP_ERR_FORMAT, "there are no traceEvents");
    CHECK_OK(ddp_fs_remove_tree(dir));
    CHECK_FAILS(ddpi_overlap_read(path, &t), DDP_ERR_IO, "trace.json");
}

static void numbers_that_do_not_fit_the_trace_are_refused(void **state)
{
    (void)state;
    ddpi_overlap_trace t = {0};
    ddpi_overlap o;
    add(&t, 0, DDP_SPAN_STEP, 0, 1, 0, 40);
    add(&t, 0, DDP_SPAN_BACKWARD, -1, 1, 10, 30); /* of no shard */
    add(&t, 0, DDP_SPAN_BUCKET, 0, 1, 16, 24);
    CHECK_FAILS(ddpi_overlap_measure(&t, 1, &o), DDP_ERR_FORMAT, "no complete step");
    add(&t, 0, DDP_SPAN_BUCKET, 1 << 20, 1, 16, 24);
    CHECK_FAILS(ddpi_overlap_measure(&t, 1, &o), DDP_ERR_FORMAT,
                "a bucket 1048576, but 4 spans in all");
    ddp_free(t.spans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_become_times_of_buckets),
        cmocka_unit_test(waiting_while_a_bucket_travels_hides_nothing),
        cmocka_unit_test(more_communication_than_backward_may_be_exposed),
        cmocka_unit_test(numbers_that_do_not_fit_the_trace_are_refused),
        cmocka_unit_test(spans_are_read_from_trace_events),
        cmocka_unit_test(steps_that_lack_something_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
