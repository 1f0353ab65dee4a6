/* Records, their exact keys, half lines of killed runs, failures. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/metrics.h"
#include "harness.h"

static char path[64];

static void assert_file(const char *want)
{
    char *data;
    size_t bytes;

    CHECK_OK(ddp_fs_read(path, 1 << 20, &data, &bytes));
    assert_string_equal(data, want);
    ddp_free(data);
}

static void put_file(const char *text)
{
    CHECK_OK(ddp_fs_write_atomic(path, text, strlen(text)));
}

static const ddp_step_record record = {
    .epoch = 2,
    .step = 1234567890123,
    .samples = 256,
    .loss = 0.123456789,
    .lr = 1e-5,
    .images_per_s = 12345.5,
    .grad_norm = NAN,
    .peak_share = INFINITY,
    .ms_data = 0,
    .ms_forward = 1.5,
    .ms_backward = 2.25,
    .ms_comm = 3,
    .ms_comm_exposed = 0.5,
    .ms_optim = 1.0 / 3,
    .ms_step = 1e12,
    .ms_compute = 7,
    .mean_data = 0.25,
    .mean_comm_exposed = 0.125,
    .mean_compute = 6,
    .least_comm_exposed = 0.0625,
    .comm_bytes = 4096,
};
static const char record_text[] =
    "{\"kind\":\"step\",\"epoch\":2,\"step\":1234567890123,\"samples\":256,\"loss\":0.123456789,"
    "\"lr\":1e-05,\"images_per_s\":12345.5,\"grad_norm\":null,\"peak_share\":null,"
    "\"comm_bytes\":4096,"
    "\"ms\":{\"data\":0,\"forward\":1.5,\"backward\":2.25,\"comm\":3,\"comm_exposed\":0.5,"
    "\"optim\":0.333333333,\"step\":1e+12,\"compute\":7},"
    "\"ms_mean\":{\"data\":0.25,\"comm_exposed\":0.125,\"compute\":6},\"ms_least\":{\"comm_"
    "exposed\":0.0625}}\n";

static void steps_have_exact_keys_and_allocate_nothing(void **state)
{
    ddp_metrics *metrics;
    ddp_json *loaded;

    (void)state;
    put_file("");
    CHECK_OK(ddp_metrics_open(path, &metrics));
    ddp_mem_freeze();
    CHECK_OK(ddp_metrics_step(metrics, &record));
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    CHECK_OK(ddp_metrics_flush(metrics));
    assert_file(record_text);
    ddp_metrics_close(metrics);
    CHECK_OK(ddp_json_load(record_text, strlen(record_text), "record", &loaded));
    ddp_json_destroy(loaded);
}

static void the_longest_record_fits(void **state)
{
    ddp_metrics *metrics;
    const double d = -1.23456789123456e-300;
    const ddp_step_record longest = {INT64_MIN, INT64_MIN, INT64_MIN, d, d, d, d,        -d,
                                     d,         d,         d,         d, d, d, d,        d,
                                     d,         -d,        d,         d, d, d, INT64_MAX};
    ddp_json *loaded;
    char *data;
    size_t bytes;

    (void)state;
    put_file("");
    CHECK_OK(ddp_metrics_open(path, &metrics));
    CHECK_OK(ddp_metrics_step(metrics, &longest));
    ddp_metrics_close(metrics);
    CHECK_OK(ddp_fs_read(path, 10000, &data, &bytes));
    CHECK_OK(ddp_json_load(data, bytes, "record", &loaded));
    double value = 0;
    assert_true(ddp_json_as_number(ddp_json_get(loaded, "loss_scale"), &value));
    assert_true(fabs(value / longest.loss_scale - 1) < 1e-8);
    assert_true(ddp_json_as_number(ddp_json_get(ddp_json_get(loaded, "ms"), "step"), &value));
    assert_true(fabs(value / longest.ms_step - 1) < 1e-8);
    ddp_json_destroy(loaded);
    ddp_free(data);
}

static void records_are_lines(void **state)
{
    ddp_metrics *metrics;
    ddp_json *object;

    (void)state;
    put_file("{\"old\":1}\n");
    CHECK_OK(ddp_metrics_open(path, &metrics));
    CHECK_OK(ddp_json_object(&object));
    ddp_json_set_string(object, "kind", "epoch");
    ddp_json_set_string(object, "text", "two\nlines");
    CHECK_OK(ddp_metrics_write(metrics, object));
    assert_file("{\"old\":1}\n{\"kind\":\"epoch\",\"text\":\"two\\nlines\"}\n");
    CHECK_OK(ddp_json_object(&object));
    ddp_json_set_string(object, "kind", "\xff");
    CHECK_FAILS(ddp_metrics_write(metrics, object), DDP_ERR_FORMAT, "UTF-8");
    assert_file("{\"old\":1}\n{\"kind\":\"epoch\",\"text\":\"two\\nlines\"}\n");
    ddp_metrics_close(metrics);
    ddp_metrics_close(NULL);
}

static void half_lines_are_dropped(void **state)
{
    static char text[10000];
    ddp_metrics *metrics;

    (void)state;
    put_file("{\"a\":1}\n{\"b\":");
    CHECK_OK(ddp_metrics_open(path, &metrics));
    ddp_metrics_close(metrics);
    assert_file("{\"a\":1}\n");
    put_file("{\"never finished");
    CHECK_OK(ddp_metrics_open(path, &metrics));
    ddp_metrics_close(metrics);
    assert_file("");
    /* Longer than what is read at once. */
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "{}\n", 3);
    put_file(text);
    CHECK_OK(ddp_metrics_open(path, &metrics));
    ddp_metrics_close(metrics);
    assert_file("{}\n");
}

static void what_comes_again_is_cut(void **state)
{
    static const char all[] = "{\"kind\":\"run\"}\n"
                              "{\"kind\":\"step\",\"epoch\":1,\"step\":1}\n"
                              "{\"kind\":\"step\",\"epoch\":1,\"step\":2}\n"
                              "{\"kind\":\"checkpoint\",\"step\":2}\n"
                              "{\"kind\":\"epoch\",\"epoch\":1}\n"
                              "{\"kind\":\"note\"}\n"
                              "{\"kind\":\"step\",\"epoch\":2,\"step\":3}\n"
                              "{\"kind\":\"checkpoint\",\"step\":3}\n"
                              "{\"kind\":\"epoch\",\"epoch\":2}\n"
                              "{\"kind\":\"summary\"}\n"
                              "\x01\n"
                              "{\"kind\":\"step\",\"ep";
    static const char kept[] = "{\"kind\":\"run\"}\n"
                               "{\"kind\":\"step\",\"epoch\":1,\"step\":1}\n"
                               "{\"kind\":\"step\",\"epoch\":1,\"step\":2}\n"
                               "{\"kind\":\"checkpoint\",\"step\":2}\n"
                               "{\"kind\":\"epoch\",\"epoch\":1}\n"
                               "{\"kind\":\"note\"}\n";

    (void)state;
    put_file(all);
    CHECK_OK(ddp_metrics_cut(path, 2, 1));
    assert_file(kept);
    CHECK_OK(ddp_metrics_cut(path, 2, 1)); /* nothing left to do */
    assert_file(kept);
    CHECK_OK(ddp_metrics_cut(path, 0, 0));
    assert_file("{\"kind\":\"run\"}\n{\"kind\":\"note\"}\n");
    CHECK_OK(ddp_metrics_cut("/dev/full", 0, 0)); /* not a file */
}

static void failures_name_the_path(void **state)
{
    ddp_metrics *metrics = NULL;

    (void)state;
    CHECK_FAILS(ddp_metrics_open("/no/such/metrics.jsonl", &metrics), DDP_ERR_IO,
                "/no/such/metrics.jsonl");
    assert_null(metrics);
    CHECK_OK(ddp_metrics_open("/dev/full", &metrics));
    CHECK_FAILS(ddp_metrics_step(metrics, &record), DDP_ERR_IO, "/dev/full: No space left");
    ddp_metrics_close(metrics);
}

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/ddp_test_metrics.XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_have_exact_keys_and_allocate_nothing),
        cmocka_unit_test(the_longest_record_fits),
        cmocka_unit_test(records_are_lines),
        cmocka_unit_test(half_lines_are_dropped),
        cmocka_unit_test(what_comes_again_is_cut),
        cmocka_unit_test(failures_name_the_path),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
