/* test_marks.c - intervals of streams, of a device that runs with its caller and of one behind it.
 */
#include "async_device.h"
#include "ddp/marks.h"
#include "ddp/thread.h"
#include "harness.h"

#define MS ((int64_t)1000000)

static void sleep_a_little(void *arg)
{
    ddp_sleep_ns(*(const int64_t *)arg);
}

static void check_intervals(const ddp_device_ops *ops)
{
    const ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    int64_t naps[] = {3 * MS, 20 * MS, 40 * MS};
    int64_t ns[3] = {5 * MS, 0, 0};
    ddp_device *device;
    ddp_marks *marks;
    CHECK_OK(ddp_device_open(ops, &opts, &device));
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_marks_create(device, 4, &marks));
    for (int round = 0; round < 2; round++) {
        const int64_t start_ns = ddp_now_ns();
        ddp_marks_clear(marks);
        /* What comes before the first mark counts for nothing. */
        CHECK_OK(ddp_stream_call(stream, sleep_a_little, &naps[2]));
        CHECK_OK(ddp_marks_set(marks, stream, 2));
        CHECK_OK(ddp_stream_call(stream, sleep_a_little, &naps[0]));
        CHECK_OK(ddp_marks_set(marks, stream, 0));
        CHECK_OK(ddp_stream_call(stream, sleep_a_little, &naps[1]));
        CHECK_OK(ddp_marks_set(marks, stream, 1));
        CHECK_OK(ddp_stream_call(stream, sleep_a_little, &naps[0]));
        CHECK_OK(ddp_marks_set(marks, stream, 0));
        CHECK_OK(ddp_stream_sync(stream));
        const int64_t all_ns = ddp_now_ns() - start_ns;
        const int64_t before[2] = {ns[0], ns[1]};
        CHECK_OK(ddp_marks_add(marks, ns, 3));
        assert_true(ns[0] - before[0] >= 2 * naps[0] && ns[1] - before[1] >= naps[1]);
        assert_true(ns[0] - before[0] + ns[1] - before[1] <= all_ns - naps[2]);
        assert_int_equal(ns[2], 0);
    }
    ddp_marks_destroy(marks);
    ddp_marks_destroy(NULL);
    ddp_device_close(device);
}

static void intervals_add_up_by_kind(void **state)
{
    (void)state;
    check_intervals(ddp_device_cpu());
    check_intervals(async_device());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(intervals_add_up_by_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
