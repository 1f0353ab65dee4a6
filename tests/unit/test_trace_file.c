/* The timeline's file: exact text, order, lanes, names, and files that cannot be written. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/trace_file.h"
#include "harness.h"

static char dir[64], path[96];

static const char *const layers[] = {"conv\"1\\", "loss"};
static const ddp_trace_opts opts = {.origin_ns = 1000, .layers = layers, .layer_count = 2};

static char *load(void)
{
    char *data;
    size_t bytes;
    CHECK_OK(ddp_fs_read(path, 1 << 20, &data, &bytes));
    return data;
}

static void the_text_is_exact_and_sorted(void **state)
{
    (void)state;
    ddp_trace_file *file;
    ddp_span spans[] = {
        {.begin_ns = 3500, .end_ns = 4000, .kind = DDP_SPAN_LAYER_BACKWARD, .id = 0, .step = 7},
        {.begin_ns = 3500, .end_ns = 1003501, .kind = DDP_SPAN_BACKWARD, .step = 7},
        {.begin_ns = 1001, .end_ns = 1001, .kind = DDP_SPAN_STEP, .step = 7, .bytes = 12},
    };
    CHECK_OK(ddp_trace_open(&opts, path, &file));
    ddp_trace_rank(file, 3, "a\nb");
    ddp_trace_track(file, 0, "main", spans, 3);
    assert_false(ddp_fs_exists(path));
    CHECK_OK(ddp_trace_close(file));
    char *text = load();
    assert_string_equal(
        text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
              "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":3,\"tid\":0,\"args\":{\"name\":"
              "\"rank 3 on a?b\"}},\n"
              "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":3,\"tid\":0,\"args\":{\"sort_"
              "index\":3}},\n"
              "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":3,\"tid\":0,\"args\":{\"name\":"
              "\"main\"}},\n"
              "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":3,\"tid\":0,\"args\":{\"sort_"
              "index\":0}},\n"
              "{\"ph\":\"X\",\"name\":\"step 7\",\"cat\":\"step\",\"pid\":3,\"tid\":0,\"ts\":0.001,"
              "\"dur\":0.000,\"args\":{\"step\":7,\"id\":0,\"bytes\":12}},\n"
              "{\"ph\":\"X\",\"name\":\"backward\",\"cat\":\"backward\",\"pid\":3,\"tid\":0,\"ts\":"
              "2.500,\"dur\":1000.001,\"args\":{\"step\":7,\"id\":0}},\n"
              "{\"ph\":\"X\",\"name\":\"conv\\\"1\\\\\",\"cat\":\"layer backward\",\"pid\":3,"
              "\"tid\":0,\"ts\":2.500,\"dur\":0.500,\"args\":{\"step\":7,\"id\":0}}\n"
              "]}\n");
    ddp_free(text);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; *text != 0; text++)
        n += strncmp(text, what, strlen(what)) == 0;
    return n;
}

static void buckets_that_overlap_get_tracks_of_their_own(void **state)
{
    (void)state;
    ddp_trace_file *file;
    ddp_span spans[] = {
        {.begin_ns = 2000, .end_ns = 5000, .kind = DDP_SPAN_BUCKET, .id = 0},
        {.begin_ns = 4999, .end_ns = 6000, .kind = DDP_SPAN_BUCKET, .id = 1},
        {.begin_ns = 5000, .end_ns = 7000, .kind = DDP_SPAN_PUBLISH, .id = 0},
        {.begin_ns = 1000, .end_ns = 9000, .kind = DDP_SPAN_BACKWARD},
    };
    CHECK_OK(ddp_trace_open(&opts, path, &file));
    ddp_trace_rank(file, 0, "host");
    ddp_trace_track(file, 0, "main", spans, 4);
    CHECK_OK(ddp_trace_close(file));
    char *text = load();
    assert_int_equal(count(text, "\"tid\":1000,\"ts\""), 2);
    assert_int_equal(count(text, "\"tid\":1001,\"ts\""), 1);
    assert_int_equal(count(text, "\"name\":\"bucket 1\",\"cat\":\"bucket\",\"pid\":0,\"tid\":1001"),
                     1);
    assert_int_equal(count(text, "\"name\":\"communication\""), 1);
    assert_int_equal(count(text, "\"name\":\"communication 2\""), 1);
    assert_int_equal(count(text, "\"tid\":0,\"ts\""), 1);
    ddp_free(text);
}

static void nothing_is_left_of_one_that_is_given_up(void **state)
{
    (void)state;
    ddp_trace_file *file;
    ddp_fs_names names;
    CHECK_OK(ddp_fs_remove_tree(path));
    CHECK_OK(ddp_trace_open(&opts, path, &file));
    ddp_trace_rank(file, 0, "host");
    ddp_trace_abandon(file);
    CHECK_OK(ddp_fs_list(dir, &names));
    assert_int_equal(names.count, 0);
    ddp_fs_names_free(&names);
}

static void what_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    ddp_trace_file *file;
    assert_int_equal(ddp_trace_open(&opts, "/nowhere/trace.json", &file), DDP_ERR_IO);
    assert_non_null(strstr(ddp_status_message(), "/nowhere/trace.json.tmp"));
    CHECK_OK(ddp_trace_open(&opts, path, &file));
    assert_int_equal(mkdir(path, 0777), 0); /* in the way */
    assert_int_equal(ddp_trace_close(file), DDP_ERR_IO);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_exact_and_sorted),
        cmocka_unit_test(buckets_that_overlap_get_tracks_of_their_own),
        cmocka_unit_test(nothing_is_left_of_one_that_is_given_up),
        cmocka_unit_test(what_cannot_be_written_is_an_error),
    };
    snprintf(dir, sizeof dir, "/tmp/ddp_test_trace.XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/trace.json", dir);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)!ddp_fs_remove_tree(dir);
    return failed;
}
