/* test_device.c - memory, copies, streams and events of the CUDA device. */
#include <stdatomic.h>

#include "ddp/thread.h"
#include "gpu/gpu_fixture.h"

enum { COUNT = 1 << 16 };

static void opens_a_device_that_says_what_it_is(void **state)
{
    (void)state;
    ddp_device *device = gpu_open();
    assert_string_equal(ddp_device_name(device), "cuda");
    assert_non_null(strstr(ddp_device_describe(device), "CUDA 13"));
    assert_non_null(strstr(ddp_device_describe(device), "cuDNN 9."));
    assert_true(ddp_device_computes(device, DDP_BF16));
    assert_false(ddp_device_is_host(device));
    ddp_device_close(device);
}

static void refuses_a_device_that_is_not_there(void **state)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    (void)state;
    opts.index = 1000;
    CHECK_FAILS(ddp_device_open(&ddpi_device_cuda, &opts, &device), DDP_ERR_USAGE, "GPU 1000");
}

static void memory_begins_as_zeros(void **state)
{
    float *host;
    void *memory;
    (void)state;
    ddp_device *device = gpu_open();
    CHECK_OK(ddp_device_alloc(device, COUNT * sizeof *host, &memory));
    assert_int_equal((uintptr_t)memory % DDP_ALIGN_BYTES, 0);
    CHECK_OK(DDP_ALLOC(host, COUNT));
    memset(host, 0x7f, COUNT * sizeof *host);
    device_get(device, host, memory, COUNT * sizeof *host);
    for (int i = 0; i < COUNT; i++)
        assert_true(host[i] == 0);
    ddp_free(host);
    ddp_device_free(device, memory, COUNT * sizeof *host);
    ddp_device_close(device);
}

static void says_how_much_memory_is_missing(void **state)
{
    void *memory;
    (void)state;
    ddp_device *device = gpu_open();
    CHECK_FAILS(ddp_device_alloc(device, (size_t)1 << 50, &memory), DDP_ERR_NOMEM, "MiB");
    /* The failure is over: what comes next is not blamed for it. */
    CHECK_OK(ddp_device_alloc(device, 64, &memory));
    ddp_device_free(device, memory, 64);
    ddp_device_close(device);
}

static void copies_keep_their_order_on_a_stream(void **state)
{
    const size_t bytes = COUNT * sizeof(float);
    void *pinned, *from, *to;
    (void)state;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_device_host_alloc(device, 2 * bytes, &pinned));
    float *in = pinned, *out = in + COUNT;
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    CHECK_OK(ddp_device_alloc(device, bytes, &from));
    CHECK_OK(ddp_device_alloc(device, bytes, &to));
    CHECK_OK(ddp_device_copy(device, stream, from, in, bytes, DDP_COPY_TO_DEVICE));
    CHECK_OK(ddp_device_copy(device, stream, to, from, bytes, DDP_COPY_ON_DEVICE));
    CHECK_OK(ddp_device_zero(device, stream, to, 4 * sizeof(float)));
    CHECK_OK(ddp_device_copy(device, stream, out, to, bytes, DDP_COPY_TO_HOST));
    CHECK_OK(ddp_stream_sync(stream));
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] == (i < 4 ? 0.0f : (float)i));
    ddp_device_free(device, to, bytes);
    ddp_device_free(device, from, bytes);
    ddp_device_host_free(device, pinned, 2 * bytes);
    ddp_device_close(device);
}

/* ---- streams and events ---- */

typedef struct gate {
    atomic_bool open;
    atomic_int passed;
} gate;

static void wait_for_gate(void *arg)
{
    gate *g = arg;
    while (!atomic_load(&g->open))
        ddp_sleep_ns(100000);
    atomic_fetch_add(&g->passed, 1);
}

static void count_up(void *arg)
{
    atomic_fetch_add(&((gate *)arg)->passed, 1);
}

static void an_event_is_complete_when_the_stream_got_there(void **state)
{
    gate g = {0};
    ddp_stream *stream;
    ddp_event *event;
    bool done;
    (void)state;
    ddp_device *device = gpu_open();
    CHECK_OK(ddp_stream_create(device, "comm", &stream));
    CHECK_OK(ddp_event_create(device, &event));
    CHECK_OK(ddp_event_query(event, &done));
    assert_true(done); /* never recorded */
    CHECK_OK(ddp_stream_call(stream, wait_for_gate, &g));
    CHECK_OK(ddp_event_record(event, stream));
    CHECK_OK(ddp_event_query(event, &done));
    assert_false(done);
    CHECK_FAILS(ddp_event_sync(event, ddp_now_ns() + 20000000), DDP_ERR_TIMEOUT, "event");
    atomic_store(&g.open, true);
    CHECK_OK(ddp_event_sync(event, DDP_NO_DEADLINE));
    assert_int_equal(atomic_load(&g.passed), 1);
    ddp_event_destroy(event);
    ddp_stream_destroy(stream);
    ddp_device_close(device);
}

static void a_stream_waits_for_another_streams_event(void **state)
{
    gate g = {0};
    ddp_stream *other;
    ddp_event *event, *end;
    bool done;
    (void)state;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_stream_create(device, "copy", &other));
    CHECK_OK(ddp_event_create(device, &event));
    CHECK_OK(ddp_event_create(device, &end));
    CHECK_OK(ddp_stream_wait_event(stream, event)); /* never recorded: goes on */
    CHECK_OK(ddp_stream_sync(stream));
    CHECK_OK(ddp_stream_call(other, wait_for_gate, &g));
    CHECK_OK(ddp_event_record(event, other));
    CHECK_OK(ddp_stream_wait_event(stream, event));
    CHECK_OK(ddp_stream_call(stream, count_up, &g));
    CHECK_OK(ddp_event_record(end, stream));
    ddp_sleep_ns(5000000);
    CHECK_OK(ddp_event_query(end, &done));
    assert_false(done);
    assert_int_equal(atomic_load(&g.passed), 0);
    atomic_store(&g.open, true);
    CHECK_OK(ddp_stream_sync(stream));
    assert_int_equal(atomic_load(&g.passed), 2);
    ddp_event_destroy(end);
    ddp_event_destroy(event);
    ddp_stream_destroy(other);
    ddp_device_close(device);
}

static void sleep_a_while(void *arg)
{
    ddp_sleep_ns(*(const int64_t *)arg);
}

static void tells_the_time_between_two_events(void **state)
{
    int64_t pause_ns = 20000000, elapsed_ns;
    ddp_event *from, *to;
    (void)state;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_event_create(device, &from));
    CHECK_OK(ddp_event_create(device, &to));
    CHECK_OK(ddp_event_record(from, stream));
    CHECK_OK(ddp_stream_call(stream, sleep_a_while, &pause_ns));
    CHECK_OK(ddp_event_record(to, stream));
    CHECK_OK(ddp_event_sync(to, DDP_NO_DEADLINE));
    CHECK_OK(ddp_event_elapsed(from, to, &elapsed_ns));
    assert_true(elapsed_ns >= pause_ns * 9 / 10 && elapsed_ns < 5000000000);
    ddp_event_destroy(to);
    ddp_event_destroy(from);
    ddp_device_close(device);
}

/* ---- layouts ---- */

static void layouts_give_back_what_they_took(void **state)
{
    const ddp_shape shape = {4, {3, 5, 2, 7}};
    const size_t count = 3 * 5 * 2 * 7;
    (void)state;
    ddp_device *device = gpu_open();
    for (int kind = 0; kind < 2 * FLOAT_TYPES; kind++) {
        const bool nhwc = kind % 2 == 1;
        const ddp_dtype dtype = float_types[kind / 2];
        ddp_layout *layout;
        CHECK_OK(ddpi_cuda_layout_create(device, &shape, nhwc, dtype, &layout));
        assert_int_equal(ddp_layout_is_plain(layout), kind == 0);
        float *in = random_floats(count, 7, dtype != DDP_F32),
              *out = random_floats(count, 8, false);
        void *memory = device_room(device, ddp_layout_bytes(layout));
        CHECK_OK(ddp_layout_import(device, layout, in, memory));
        CHECK_OK(ddp_layout_export(device, layout, memory, out));
        assert_memory_equal(in, out, count * sizeof *in);
        /* Where the element of image 1, channel 2, row 1, column 3 lies. */
        unsigned char raw[4];
        const size_t at = nhwc ? ((1 * 2 + 1) * 7 + 3) * 5 + 2 : ((1 * 5 + 2) * 2 + 1) * 7 + 3;
        const size_t bytes = ddp_dtype_bytes(dtype);
        device_get(device, raw, (char *)memory + at * bytes, bytes);
        const float value = in[((1 * 5 + 2) * 2 + 1) * 7 + 3];
        uint16_t half = narrowed(value, dtype);
        assert_memory_equal(raw, dtype != DDP_F32 ? (void *)&half : (void *)&value, bytes);
        ddp_device_free(device, memory, ddp_layout_bytes(layout));
        ddp_layout_unref(layout);
        free(in);
        free(out);
    }
    ddp_device_close(device);
}

static void orders_that_are_the_same_are_one_layout(void **state)
{
    const ddp_shape pixels = {4, {3, 1, 4, 4}}, channels = {4, {3, 6, 1, 1}},
                    both = {4, {3, 6, 4, 4}};
    const ddp_shape *const shapes[] = {&pixels, &channels, &both};
    (void)state;
    ddp_device *device = gpu_open();
    for (int i = 0; i < 3; i++) {
        ddp_layout *rows, *last;
        CHECK_OK(ddp_layout_plain(device, shapes[i], &rows));
        CHECK_OK(ddpi_cuda_layout_create(device, shapes[i], true, DDP_F32, &last));
        assert_int_equal(ddp_layout_equal(rows, last), i < 2);
        assert_int_equal(ddp_layout_is_plain(last), i < 2);
        ddp_layout_unref(rows);
        ddp_layout_unref(last);
    }
    ddp_device_close(device);
}

static void measures_a_rate(void **state)
{
    double flops = 0;
    (void)state;
    ddp_device *device = gpu_open();
    CHECK_OK(ddp_device_measure_peak(device, &flops));
    assert_true(flops > 1e6 && isfinite(flops));
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_a_device_that_says_what_it_is),
        cmocka_unit_test(refuses_a_device_that_is_not_there),
        cmocka_unit_test(memory_begins_as_zeros),
        cmocka_unit_test(says_how_much_memory_is_missing),
        cmocka_unit_test(copies_keep_their_order_on_a_stream),
        cmocka_unit_test(an_event_is_complete_when_the_stream_got_there),
        cmocka_unit_test(a_stream_waits_for_another_streams_event),
        cmocka_unit_test(tells_the_time_between_two_events),
        cmocka_unit_test(layouts_give_back_what_they_took),
        cmocka_unit_test(orders_that_are_the_same_are_one_layout),
        cmocka_unit_test(measures_a_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
