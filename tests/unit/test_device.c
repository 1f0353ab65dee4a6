/* test_device.c - the CPU device: opening, memory, copies, streams and events across threads. */
#include "ddp/thread.h"
#include "op_fixture.h"

typedef struct log_of_calls {
    int values[1000];
    int count;
    int64_t sleep_ns;
} log_of_calls;

typedef struct call {
    log_of_calls *log;
    int value;
} call;

static void append(void *arg)
{
    const call *c = arg;
    if (c->log->sleep_ns > 0)
        ddp_sleep_ns(c->log->sleep_ns);
    c->log->values[c->log->count++] = c->value;
}

static void open_checks_its_options(void **state)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    (void)state;
    opts.threads = 0;
    CHECK_FAILS(ddp_device_open(ddp_device_cpu(), &opts, &device), DDP_ERR_USAGE, "threads");
    opts.threads = 1;
    const int wrong[] = {-1, DDP_CONV_ALGO_COUNT};
    for (int i = 0; i < 2; i++) {
        opts.conv_algo = (ddp_conv_algo)wrong[i];
        CHECK_FAILS(ddp_device_open(ddp_device_cpu(), &opts, &device), DDP_ERR_USAGE, "algorithm");
    }
    device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    assert_string_equal(ddp_device_name(device), "cpu");
    assert_non_null(strstr(ddp_device_describe(device), "oneDNN"));
    ddp_device_close(device);
    ddp_device_close(NULL);
}

static void peak_is_measured(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    double flops = 0;
    (void)state;
    CHECK_OK(ddp_device_measure_peak(device, &flops));
    assert_true(flops > 1e8 && flops < 1e13);
    ddp_device_close(device);
}

static void memory_is_zeroed_and_aligned(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const size_t bytes = (size_t)3 << 20;
    void *memory, *host;
    (void)state;
    CHECK_OK(ddp_device_alloc(device, bytes, &memory));
    CHECK_OK(ddp_device_host_alloc(device, bytes, &host));
    assert_int_equal((uintptr_t)memory % DDP_ALIGN_BYTES, 0);
    for (size_t i = 0; i < bytes; i++)
        assert_true(((char *)memory)[i] == 0 && ((char *)host)[i] == 0);
    ddp_device_free(device, memory, bytes);
    ddp_device_free(device, NULL, 0);
    ddp_device_host_free(device, host, bytes);
    ddp_device_close(device);
}

static void copies_and_zeroing_run_in_order(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    ddp_stream *streams[2] = {ddp_device_main_stream(device), NULL};
    (void)state;
    CHECK_OK(ddp_stream_create(device, "copies", &streams[1]));
    for (int s = 0; s < 2; s++) {
        int host[4] = {1, 2, 3, 4}, there[4], back[4];
        CHECK_OK(ddp_device_copy(device, streams[s], there, host, sizeof host, DDP_COPY_TO_DEVICE));
        CHECK_OK(ddp_device_zero(device, streams[s], there + 1, 2 * sizeof *there));
        CHECK_OK(ddp_device_copy(device, streams[s], back, there, sizeof back, DDP_COPY_TO_HOST));
        CHECK_OK(ddp_device_copy(device, streams[s], back, NULL, 0, DDP_COPY_TO_HOST));
        CHECK_OK(ddp_stream_sync(streams[s]));
        assert_memory_equal(back, ((int[4]){1, 0, 0, 4}), sizeof back);
    }
    ddp_stream_destroy(streams[1]);
    ddp_device_close(device);
}

static void main_stream_runs_in_its_caller(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    static log_of_calls calls;
    call c = {&calls, 3};
    (void)state;
    CHECK_OK(ddp_stream_call(ddp_device_main_stream(device), append, &c));
    assert_int_equal(calls.count, 1);
    CHECK_OK(ddp_stream_sync(ddp_device_main_stream(device)));
    ddp_device_close(device);
}

/* More calls than the stream has slots for, so that the giver must wait in between. */
static void created_stream_keeps_the_order_and_allocates_nothing(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    static log_of_calls calls;
    static call given[1000];
    ddp_stream *stream;
    (void)state;
    CHECK_OK(ddp_stream_create(device, "ordered", &stream));
    ddp_mem_freeze();
    for (int i = 0; i < 1000; i++) {
        given[i] = (call){&calls, i};
        CHECK_OK(ddp_stream_call(stream, append, &given[i]));
    }
    CHECK_OK(ddp_stream_sync(stream));
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    assert_int_equal(calls.count, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(calls.values[i], i);
    ddp_stream_destroy(stream);
    ddp_device_close(device);
}

static void destroying_a_stream_finishes_its_work(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    static log_of_calls calls = {.sleep_ns = 1000000};
    call c = {&calls, 1};
    ddp_stream *stream;
    (void)state;
    CHECK_OK(ddp_stream_create(device, "ending", &stream));
    for (int i = 0; i < 5; i++)
        CHECK_OK(ddp_stream_call(stream, append, &c));
    ddp_stream_destroy(stream);
    assert_int_equal(calls.count, 5);
    ddp_stream_destroy(NULL);
    ddp_device_close(device);
}

/* A gate that a task on a stream waits at. */
typedef struct gate {
    ddp_monitor monitor;
    bool open;
} gate;

static void wait_at_gate(void *arg)
{
    gate *g = arg;
    ddp_monitor_lock(&g->monitor);
    while (!g->open)
        (void)ddp_monitor_wait(&g->monitor, DDP_NO_DEADLINE);
    ddp_monitor_unlock(&g->monitor);
}

static void open_gate(gate *g)
{
    ddp_monitor_lock(&g->monitor);
    g->open = true;
    ddp_monitor_wake_all(&g->monitor);
    ddp_monitor_unlock(&g->monitor);
}

static void events_complete_when_the_stream_gets_there(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    ddp_stream *stream;
    ddp_event *event;
    gate g = {.open = false};
    bool done = false;
    (void)state;
    CHECK_OK(ddp_monitor_init(&g.monitor));
    CHECK_OK(ddp_stream_create(device, "gated", &stream));
    CHECK_OK(ddp_event_create(device, &event));
    CHECK_OK(ddp_event_query(event, &done));
    assert_true(done); /* never recorded */
    CHECK_OK(ddp_event_sync(event, ddp_now_ns()));
    for (int round = 0; round < 2; round++) {
        g.open = false;
        CHECK_OK(ddp_stream_call(stream, wait_at_gate, &g));
        CHECK_OK(ddp_event_record(event, stream));
        CHECK_OK(ddp_event_query(event, &done));
        assert_false(done);
        CHECK_FAILS(ddp_event_sync(event, ddp_deadline_after_ms(20)), DDP_ERR_TIMEOUT, "deadline");
        open_gate(&g);
        CHECK_OK(ddp_event_sync(event, ddp_deadline_after_ms(10000)));
        CHECK_OK(ddp_event_query(event, &done));
        assert_true(done);
    }
    CHECK_OK(ddp_event_record(event, ddp_device_main_stream(device)));
    CHECK_OK(ddp_event_query(event, &done));
    assert_true(done); /* the main stream has nothing left to do */
    ddp_event_destroy(event);
    ddp_event_destroy(NULL);
    ddp_stream_destroy(stream);
    ddp_monitor_destroy(&g.monitor);
    ddp_device_close(device);
}

static void streams_wait_for_events_of_others(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    static log_of_calls calls;
    call first = {&calls, 1}, second = {&calls, 2}, third = {&calls, 3};
    ddp_stream *a, *b;
    ddp_event *event, *after;
    gate g = {.open = false};
    (void)state;
    CHECK_OK(ddp_monitor_init(&g.monitor));
    CHECK_OK(ddp_stream_create(device, "a", &a));
    CHECK_OK(ddp_stream_create(device, "b", &b));
    CHECK_OK(ddp_event_create(device, &event));
    CHECK_OK(ddp_event_create(device, &after));
    CHECK_OK(ddp_stream_call(a, wait_at_gate, &g));
    CHECK_OK(ddp_stream_call(a, append, &first));
    CHECK_OK(ddp_event_record(event, a));
    CHECK_OK(ddp_stream_wait_event(b, event));
    CHECK_OK(ddp_stream_call(b, append, &second));
    CHECK_OK(ddp_event_record(after, b));
    open_gate(&g);
    CHECK_OK(ddp_stream_wait_event(ddp_device_main_stream(device), after));
    CHECK_OK(ddp_stream_call(ddp_device_main_stream(device), append, &third));
    assert_int_equal(calls.count, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(calls.values[i], i + 1);
    ddp_stream_destroy(a);
    ddp_stream_destroy(b);
    ddp_event_destroy(event);
    ddp_event_destroy(after);
    ddp_monitor_destroy(&g.monitor);
    ddp_device_close(device);
}

static void sleep_a_little(void *arg)
{
    ddp_sleep_ns(*(const int64_t *)arg);
}

static void events_tell_the_time_between_them(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const int64_t nap_ns = 20000000;
    ddp_stream *stream;
    ddp_event *from, *to;
    int64_t ns;
    (void)state;
    assert_true(ddp_device_is_host(device));
    CHECK_OK(ddp_stream_create(device, "timed", &stream));
    CHECK_OK(ddp_event_create(device, &from));
    CHECK_OK(ddp_event_create(device, &to));
    const int64_t start_ns = ddp_now_ns();
    CHECK_OK(ddp_event_record(from, stream));
    CHECK_OK(ddp_stream_call(stream, sleep_a_little, (void *)&nap_ns));
    CHECK_OK(ddp_event_record(to, stream));
    CHECK_OK(ddp_event_sync(to, DDP_NO_DEADLINE));
    CHECK_OK(ddp_event_elapsed(from, to, &ns));
    assert_true(ns >= nap_ns && ns <= ddp_now_ns() - start_ns);
    CHECK_OK(ddp_event_elapsed(to, from, &ns));
    assert_true(ns <= -nap_ns);
    /* Recorded again, an event tells the new time; the main stream's is complete at once. */
    CHECK_OK(ddp_event_record(from, ddp_device_main_stream(device)));
    CHECK_OK(ddp_event_elapsed(to, from, &ns));
    assert_true(ns >= 0);
    ddp_stream_destroy(stream);
    ddp_event_destroy(from);
    ddp_event_destroy(to);
    ddp_device_close(device);
}

/* Ranks as threads: each with a device and a convolution of its own, at the same time. */
static void *train_a_little(void *arg)
{
    int kind = *(const int *)arg;
    ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
    const ddp_shape src = {4, {16, 3, 8, 8}};
    const ddp_op_desc desc = {.kind = DDP_OP_CONV2D,
                              .training = true,
                              .need_diff_src = true,
                              .u.conv2d = {5, 3, 3, 1, 1, 1, 1, true, true}};
    op_case c;
    case_open(&c, device, &desc, &src, NULL, NULL);
    for (int i = 0; i < 3; i++)
        case_run_all(&c, NULL);
    double sum = 0;
    for (size_t i = 0; i < c.dst.count; i++)
        sum += (double)c.dst.f[i];
    case_close(&c);
    ddp_device_close(device);
    return sum > 0 ? arg : NULL;
}

static void devices_of_several_threads_do_not_meet(void **state)
{
    pthread_t threads[6];
    int kinds[6];
    (void)state;
    for (int i = 0; i < 6; i++) {
        kinds[i] = i % 3;
        assert_int_equal(pthread_create(&threads[i], NULL, train_a_little, &kinds[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, &kinds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_checks_its_options),
        cmocka_unit_test(peak_is_measured),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(copies_and_zeroing_run_in_order),
        cmocka_unit_test(main_stream_runs_in_its_caller),
        cmocka_unit_test(created_stream_keeps_the_order_and_allocates_nothing),
        cmocka_unit_test(destroying_a_stream_finishes_its_work),
        cmocka_unit_test(events_complete_when_the_stream_gets_there),
        cmocka_unit_test(streams_wait_for_events_of_others),
        cmocka_unit_test(events_tell_the_time_between_them),
        cmocka_unit_test(devices_of_several_threads_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
