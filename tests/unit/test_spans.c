/* Rings of spans: who writes where, what stays, and readers beside a writer. */
#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"
#include "harness.h"

enum { RING = 64 };

static ddp_spans *enter(void)
{
    ddp_spans *spans;
    CHECK_OK(ddp_spans_create(&spans));
    ddp_rank_ctx_set(&(ddp_rank_ctx){.world = 1, .spans = spans});
    return spans;
}

static void leave(ddp_spans *spans)
{
    ddp_spans_leave();
    ddp_rank_ctx_set(NULL);
    ddp_spans_destroy(spans);
}

static void a_span_comes_back_as_it_was(void **state)
{
    (void)state;
    ddp_span found[RING];
    ddp_spans *spans = enter();
    assert_false(ddp_spans_joined());
    ddp_spans_add(DDP_SPAN_DATA, 1, 1, 1, 2, 3); /* goes nowhere */
    assert_int_equal(ddp_spans_tracks(spans), 0);
    ddp_spans_join("main", RING);
    assert_true(ddp_spans_joined());
    ddp_spans_set_step(7);
    ddp_spans_add(DDP_SPAN_BUCKET, -1, -1, 100, 200, INT64_C(1) << 40);
    ddp_spans_add(DDP_SPAN_LOAD, INT32_MAX, 9, INT64_C(1) << 60, (INT64_C(1) << 60) + 1, 0);
    assert_int_equal(ddp_spans_tracks(spans), 1);
    assert_string_equal(ddp_spans_track_name(spans, 0), "main");
    assert_int_equal(ddp_spans_read(spans, 0, 0, found, RING), 2);
    assert_int_equal(found[0].kind, DDP_SPAN_BUCKET);
    assert_int_equal(found[0].id, -1);
    assert_int_equal(found[0].step, 7);
    assert_int_equal(found[0].begin_ns, 100);
    assert_int_equal(found[0].end_ns, 200);
    assert_true(found[0].bytes == INT64_C(1) << 40);
    assert_int_equal(found[1].kind, DDP_SPAN_LOAD);
    assert_int_equal(found[1].id, INT32_MAX);
    assert_int_equal(found[1].step, 9);
    assert_true(found[1].begin_ns == INT64_C(1) << 60);
    leave(spans);
}

static void the_newest_stay_and_are_filtered_by_end(void **state)
{
    (void)state;
    ddp_span found[2 * RING];
    ddp_spans *spans = enter();
    ddp_spans_join("main", RING);
    for (int i = 0; i < 3 * RING; i++)
        ddp_spans_add(DDP_SPAN_OPTIM, i, i, i, i + 1, 0);
    size_t count = ddp_spans_read(spans, 0, 0, found, 2 * RING);
    assert_int_equal(count, RING - 1); /* the oldest place is the writer's */
    for (size_t i = 0; i < count; i++)
        assert_int_equal(found[i].id, 2 * RING + 1 + (int)i);
    count = ddp_spans_read(spans, 0, 3 * RING - 5, found, 2 * RING);
    assert_int_equal(count, 5);
    assert_int_equal(found[0].id, 3 * RING - 5);
    count = ddp_spans_read(spans, 0, 0, found, 3);
    assert_int_equal(count, 3);
    assert_int_equal(found[2].id, 3 * RING - 1);
    leave(spans);
}

typedef struct worker {
    ddp_thread thread;
    int spans;
    _Atomic bool done;
} worker;

/* A reader must never see one span's begin with another's end. */
static void *write_spans(void *arg)
{
    worker *w = arg;
    ddp_spans_join("worker", RING);
    for (int64_t i = 1; i <= w->spans; i++)
        ddp_spans_add(DDP_SPAN_LOAD, (int32_t)i, i, i, 2 * i, 3 * i);
    ddp_spans_leave();
    w->done = true;
    return NULL;
}

static void readers_see_whole_spans_in_order(void **state)
{
    (void)state;
    ddp_span found[RING];
    worker w = {.spans = 3000000};
    size_t seen = 0;
    ddp_spans *spans = enter();
    ddp_spans_join("main", RING);
    CHECK_OK(ddp_thread_start(&w.thread, "worker", write_spans, &w));
    while (!w.done) {
        if (ddp_spans_tracks(spans) < 2)
            continue;
        const size_t count = ddp_spans_read(spans, 1, 0, found, RING);
        seen += count;
        for (size_t i = 0; i < count; i++) {
            const ddp_span s = found[i];
            assert_true(s.end_ns == 2 * s.begin_ns && s.bytes == 3 * s.begin_ns &&
                        s.id == s.begin_ns && s.step == s.begin_ns);
            assert_true(i == 0 || s.begin_ns == found[i - 1].begin_ns + 1);
        }
    }
    ddp_thread_join(&w.thread);
    assert_int_equal(ddp_spans_read(spans, 1, 0, found, RING), RING - 1);
    assert_int_equal(found[RING - 2].id, w.spans);
    assert_true(seen > 0);
    leave(spans);
}

static void a_track_is_taken_over_by_the_next_thread_of_its_name(void **state)
{
    (void)state;
    ddp_span found[RING];
    worker first = {.spans = 3}, second = {.spans = 2};
    ddp_spans *spans = enter();
    CHECK_OK(ddp_thread_start(&first.thread, "worker", write_spans, &first));
    ddp_thread_join(&first.thread);
    CHECK_OK(ddp_thread_start(&second.thread, "worker", write_spans, &second));
    ddp_thread_join(&second.thread);
    assert_int_equal(ddp_spans_tracks(spans), 1);
    assert_int_equal(ddp_spans_read(spans, 0, 0, found, RING), 5);
    assert_int_equal(found[4].id, 2);
    ddp_spans_join("other", RING);
    assert_int_equal(ddp_spans_tracks(spans), 2);
    leave(spans);
}

static void ranks_of_a_process_have_their_own(void **state)
{
    (void)state;
    ddp_span found[RING];
    worker w = {.spans = 4};
    ddp_spans *one = enter(), *two;
    CHECK_OK(ddp_spans_create(&two));
    ddp_spans_join("main", RING);
    ddp_rank_ctx_set(&(ddp_rank_ctx){.rank = 1, .world = 2, .spans = two});
    CHECK_OK(ddp_thread_start(&w.thread, "worker", write_spans, &w));
    ddp_thread_join(&w.thread);
    ddp_spans_add(DDP_SPAN_DATA, 0, 1, 1, 2, 0); /* this thread has joined the first */
    assert_int_equal(ddp_spans_read(one, 0, 0, found, RING), 1);
    assert_int_equal(ddp_spans_tracks(two), 1);
    assert_int_equal(ddp_spans_read(two, 0, 0, found, RING), 4);
    leave(one);
    ddp_spans_destroy(two);
}

static void adding_allocates_nothing(void **state)
{
    (void)state;
    ddp_spans *spans = enter();
    ddp_spans_join("main", RING);
    ddp_mem_freeze();
    for (int i = 0; i < 3 * RING; i++)
        ddp_spans_add(DDP_SPAN_WAIT, i, -1, i, i, 0);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    leave(spans);
}

static void every_kind_has_a_name(void **state)
{
    (void)state;
    for (int kind = 0; kind < DDP_SPAN_KINDS; kind++) {
        assert_non_null(ddp_span_kind_name((ddp_span_kind)kind));
        for (int other = 0; other < kind; other++)
            assert_string_not_equal(ddp_span_kind_name((ddp_span_kind)kind),
                                    ddp_span_kind_name((ddp_span_kind)other));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_span_comes_back_as_it_was),
        cmocka_unit_test(the_newest_stay_and_are_filtered_by_end),
        cmocka_unit_test(readers_see_whole_spans_in_order),
        cmocka_unit_test(a_track_is_taken_over_by_the_next_thread_of_its_name),
        cmocka_unit_test(ranks_of_a_process_have_their_own),
        cmocka_unit_test(adding_allocates_nothing),
        cmocka_unit_test(every_kind_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
