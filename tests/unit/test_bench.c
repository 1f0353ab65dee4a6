/* test_bench.c - what the subcommands of ddp_bench share: command lines, statistics, tables, and
 * pictures with and without gnuplot. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/bench_util.h"

static char *read_file(const char *dir, const char *name)
{
    char path[256], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(ddp_fs_read(path, 1 << 20, &text, &bytes));
    char *copy = strndup(text, bytes);
    assert_non_null(copy);
    ddp_free(text);
    return copy;
}

static int run(const char *a, const char *b)
{
    char program[] = "ddp_bench", first[64] = "", second[64] = "";
    char *argv[] = {program, first, second, NULL}, *envp[] = {NULL};
    int argc = 1 + (a != NULL) + (b != NULL);
    if (a != NULL)
        snprintf(first, sizeof first, "%s", a);
    if (b != NULL)
        snprintf(second, sizeof second, "%s", b);
    argv[argc] = NULL;
    return ddpi_bench_main(argc, argv, envp);
}

static void exit_status_says_whether_the_command_line_was_right(void **state)
{
    (void)state;
    assert_int_equal(run(NULL, NULL), 2);
    assert_int_equal(run("no-such-command", NULL), 2);
    assert_int_equal(run("--help", NULL), 0);
    assert_int_equal(run("--version", NULL), 0);
}

static void quantiles_lie_between_neighbours(void **state)
{
    (void)state;
    double odd[] = {5, 1, 3, 2, 4}, even[] = {4, 1, 2, 3}, one[] = {7};
    ddpi_bench_stats s = ddpi_bench_measure(odd, 5);
    assert_true(s.count == 5 && s.min == 1 && s.max == 5 && s.median == 3 && s.mean == 3);
    assert_true(s.p25 == 2 && s.p75 == 4);
    assert_true(fabs(s.p90 - 4.6) < 1e-12);
    s = ddpi_bench_measure(even, 4);
    assert_true(s.median == 2.5 && s.p25 == 1.75 && s.p75 == 3.25 && s.mean == 2.5);
    s = ddpi_bench_measure(one, 1);
    assert_true(s.min == 7 && s.median == 7 && s.p90 == 7 && s.max == 7);
    assert_int_equal(ddpi_bench_measure(NULL, 0).count, 0);
}

static void lists_of_numbers_are_read_or_refused(void **state)
{
    (void)state;
    int64_t values[4];
    int count = 0;
    ddpi_bench_list ranks = {.option = "ranks", .min = 1, .max = 100, .limit = 4};
    CHECK_OK(ddpi_bench_numbers(&ranks, "1,2,40", values, &count));
    assert_true(count == 3 && values[0] == 1 && values[1] == 2 && values[2] == 40);
    static const char *const bad[] = {"", "1,", ",1", "0", "101", "2x", "1,2,3,4,5", "1 2", "4K"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_FAILS(ddpi_bench_numbers(&ranks, bad[i], values, &count), DDP_ERR_USAGE,
                    "option --ranks: found \"");
    CHECK_FAILS(ddpi_bench_numbers(&ranks, NULL, values, &count), DDP_ERR_USAGE, "--ranks");
    ddpi_bench_list sizes = {
        .option = "sizes", .min = 8, .max = INT64_C(1) << 40, .sizes = true, .limit = 4};
    CHECK_OK(ddpi_bench_numbers(&sizes, "8,64K,25M,1G", values, &count));
    assert_true(count == 4 && values[0] == 8 && values[1] == 65536 && values[2] == 26214400 &&
                values[3] == INT64_C(1) << 30);
    CHECK_FAILS(ddpi_bench_numbers(&sizes, "9999999999G", values, &count), DDP_ERR_USAGE,
                "--sizes");
}

/* A folder for --out, and the same for the others. */
static void make_dir(char dir[64])
{
    snprintf(dir, 64, "/tmp/ddp_test_bench_XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void tables_are_aligned_and_markdown(void **state)
{
    (void)state;
    static const char *const heads[] = {"ranks", "ms", NULL};
    char dir[64];
    ddpi_bench_table *table;
    make_dir(dir);
    ddpi_bench_out out = {.dir = dir};
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_OK(ddpi_bench_table_create(heads, &table));
    ddpi_bench_table_add(table, "%d", 1);
    ddpi_bench_table_add(table, "%.2f", 1234.5);
    ddpi_bench_table_add(table, "%d", 16);
    ddpi_bench_table_add(table, "-");
    CHECK_OK(ddpi_bench_table_print(table, &out));
    CHECK_OK(ddpi_bench_out_close(&out));
    ddpi_bench_table_destroy(table);
    char *text = read_file(dir, "numbers.txt");
    assert_string_equal(text, "| ranks |      ms |\n"
                              "|------:|--------:|\n"
                              "|     1 | 1234.50 |\n"
                              "|    16 |       - |\n");
    free(text);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

static const double curve[] = {1, 2, 10, NAN, 100, 3};
static const ddpi_bench_series series[] = {
    {.title = "ring", .style = "using 1:2 with lines", .values = curve, .rows = 3, .columns = 2},
};
static const ddpi_bench_plot plot = {.name = "picture",
                                     .title = "Time",
                                     .x = "bytes",
                                     .y = "seconds",
                                     .setup = "set logscale x\n",
                                     .series = series,
                                     .series_count = 1};

static void a_picture_without_gnuplot_is_a_script(void **state)
{
    (void)state;
    char dir[64];
    make_dir(dir);
    ddpi_bench_out out = {.dir = dir, .gnuplot = "no-such-gnuplot"};
    char earlier[256];
    snprintf(earlier, sizeof earlier, "%s/picture.svg", dir);
    CHECK_OK(ddp_fs_write_atomic(earlier, "<svg/>", 6));
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_OK(ddpi_bench_draw(&out, &plot));
    CHECK_OK(ddpi_bench_out_close(&out));
    char *said = read_file(dir, "numbers.txt"), *script = read_file(dir, "picture.gp");
    assert_non_null(strstr(said, "no-such-gnuplot is not here"));
    assert_false(ddp_fs_exists(earlier)); /* of other numbers */
    assert_non_null(strstr(script, "$data0 << EOD\n1 2\n10 NaN\n100 3\nEOD\n"));
    assert_non_null(strstr(script, "set logscale x\n"));
    assert_non_null(strstr(script, "plot $data0 using 1:2 with lines title 'ring'\n"));
    free(said);
    free(script);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

/* Names of models come from files, and gnuplot runs what it finds between backquotes. */
static void no_text_is_a_command_of_gnuplots(void **state)
{
    (void)state;
    char dir[] = "/tmp/ddp-bench-XXXXXX", ran[256], title[600];
    assert_non_null(mkdtemp(dir));
    snprintf(ran, sizeof ran, "%s/ran", dir);
    snprintf(title, sizeof title, "`touch %s`\"; system('touch %s')\nit's \\", ran, ran);
    ddpi_bench_series line = *plot.series;
    ddpi_bench_plot hostile = plot;
    line.title = hostile.title = hostile.x = hostile.y = title;
    hostile.series = &line;
    hostile.series_count = 1;
    ddpi_bench_out out = {.dir = dir, .gnuplot = "gnuplot"};
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_OK(ddpi_bench_draw(&out, &hostile));
    CHECK_OK(ddpi_bench_out_close(&out));
    assert_false(ddp_fs_exists(ran));
    char *script = read_file(dir, "picture.gp");
    assert_non_null(strstr(script, "') it''s \\'\n"));
    free(script);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

static void gnuplot_draws_or_its_failure_is_told(void **state)
{
    (void)state;
    char dir[64], path[96];
    make_dir(dir);
    ddpi_bench_out out = {.dir = dir, .gnuplot = "false"};
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_FAILS(ddpi_bench_draw(&out, &plot), DDP_ERR_IO, "picture.gp");
    out.gnuplot = "gnuplot";
    CHECK_OK(ddpi_bench_draw(&out, &plot));
    CHECK_OK(ddpi_bench_out_close(&out));
    char *said = read_file(dir, "numbers.txt");
    snprintf(path, sizeof path, "%s/picture.svg", dir);
    assert_true(ddp_fs_exists(path) || strstr(said, "gnuplot is not here") != NULL);
    free(said);
    CHECK_OK(ddp_fs_remove_tree(dir));
}

/* As a full disk leaves it, which gnuplot does not mind. */
static void a_picture_that_is_not_whole_is_no_picture(void **state)
{
    (void)state;
    char dir[] = "/tmp/ddp-bench-XXXXXX", program[256], path[256];
    const char *script = "#!/bin/sh\nhead -c 3000 /dev/zero >picture.svg\n";
    assert_non_null(mkdtemp(dir));
    snprintf(program, sizeof program, "%s/draw", dir);
    snprintf(path, sizeof path, "%s/picture.svg", dir);
    CHECK_OK(ddp_fs_write_atomic(program, script, strlen(script)));
    assert_int_equal(chmod(program, 0700), 0);
    ddpi_bench_out out = {.dir = dir, .gnuplot = program};
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_FAILS(ddpi_bench_draw(&out, &plot), DDP_ERR_IO, "picture.svg: the picture is not whole");
    assert_false(ddp_fs_exists(path));
    CHECK_OK(ddpi_bench_out_close(&out));
    CHECK_OK(ddp_fs_remove_tree(dir));
}

static void without_out_nothing_is_written(void **state)
{
    (void)state;
    ddpi_bench_out out = {.gnuplot = "false"};
    CHECK_OK(ddpi_bench_out_open(&out, "numbers"));
    CHECK_OK(ddpi_bench_draw(&out, &plot));
    CHECK_OK(ddpi_bench_out_json(&out, NULL));
    CHECK_OK(ddpi_bench_out_close(&out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_status_says_whether_the_command_line_was_right),
        cmocka_unit_test(quantiles_lie_between_neighbours),
        cmocka_unit_test(lists_of_numbers_are_read_or_refused),
        cmocka_unit_test(tables_are_aligned_and_markdown),
        cmocka_unit_test(a_picture_without_gnuplot_is_a_script),
        cmocka_unit_test(no_text_is_a_command_of_gnuplots),
        cmocka_unit_test(gnuplot_draws_or_its_failure_is_told),
        cmocka_unit_test(a_picture_that_is_not_whole_is_no_picture),
        cmocka_unit_test(without_out_nothing_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
