/* What goes to the console and what to the file, early lines, progress on and off a terminal. */
#include <ctype.h>
#include <fcntl.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "harness.h"

static char folder[64];
static char path[96];

/* The two streams while they are caught in files. */
typedef struct caught {
    int saved[2];
    FILE *files[2];
    char *text[2]; /* stdout, stderr */
} caught;

static void catch_begin(caught *c)
{
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        c->saved[i] = dup(i + 1);
        c->files[i] = tmpfile();
        dup2(fileno(c->files[i]), i + 1);
    }
}

static void catch_end(caught *c)
{
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        dup2(c->saved[i], i + 1);
        close(c->saved[i]);
        off_t bytes = lseek(fileno(c->files[i]), 0, SEEK_END);
        c->text[i] = calloc(1, (size_t)bytes + 1);
        if (pread(fileno(c->files[i]), c->text[i], (size_t)bytes, 0) != bytes)
            c->text[i][0] = 0;
        fclose(c->files[i]);
    }
}

static void catch_free(caught *c)
{
    free(c->text[0]);
    free(c->text[1]);
}

static ddp_log *use_log(int rank, ddp_log_level console, ddp_log_level file)
{
    ddp_log_opts opts = DDP_LOG_OPTS_DEFAULTS;
    ddp_log *log;

    opts.rank = rank;
    opts.console_level = console;
    opts.file_level = file;
    CHECK_OK(ddp_log_create(&opts, &log));
    ddp_rank_ctx_set(&(ddp_rank_ctx){.rank = rank, .world = 4, .host = "nodeA", .log = log});
    return log;
}

static void drop_log(ddp_log *log)
{
    ddp_rank_ctx_set(NULL);
    ddp_log_destroy(log);
}

/* Compares with digits replaced by 'd', so that times can be written down. */
static void assert_pattern(const char *text, const char *want)
{
    char plain[4096];
    size_t used = 0;

    for (; *text != 0 && used + 1 < sizeof plain; text++)
        plain[used++] = isdigit((unsigned char)*text) ? 'd' : *text;
    plain[used] = 0;
    assert_string_equal(plain, want);
}

static char *file_text(void)
{
    char *data;
    size_t bytes;

    CHECK_OK(ddp_fs_read(path, 1 << 20, &data, &bytes));
    return data;
}

static void log_all_levels(void)
{
    ddp_error("an error: %s", "E");
    ddp_warn("a warning");
    ddp_info("a note");
    ddp_debug("a detail");
    ddp_log_print("a result");
}

static void rank_0_speaks(void **state)
{
    caught c;

    (void)state;
    ddp_log *log = use_log(0, DDP_LOG_INFO, DDP_LOG_DEBUG);
    catch_begin(&c);
    log_all_levels();
    catch_end(&c);
    drop_log(log);
    assert_string_equal(c.text[0], "a result\n");
    assert_pattern(c.text[1], "ddp_train: rank d on nodeA: an error: E\n"
                              "[dd:dd:dd] warning: a warning\n[dd:dd:dd] a note\n");
    catch_free(&c);
}

static void other_ranks_only_fail(void **state)
{
    caught c;

    (void)state;
    ddp_log *log = use_log(3, DDP_LOG_DEBUG, DDP_LOG_DEBUG);
    catch_begin(&c);
    log_all_levels();
    ddp_log_progress(&(ddp_progress){.epoch = 1});
    catch_end(&c);
    drop_log(log);
    assert_string_equal(c.text[0], "");
    assert_string_equal(c.text[1], "ddp_train: rank 3 on nodeA: an error: E\n");
    catch_free(&c);
}

static void without_a_log(void **state)
{
    caught c;

    (void)state;
    ddp_rank_ctx_set(&(ddp_rank_ctx){.rank = 2, .world = 4, .host = "nodeB"});
    catch_begin(&c);
    log_all_levels();
    catch_end(&c);
    ddp_rank_ctx_set(NULL);
    assert_string_equal(c.text[0], "");
    assert_pattern(c.text[1],
                   "ddp_train: rank d on nodeB: an error: E\n[dd:dd:dd] warning: a warning\n");
    catch_free(&c);
}

static void file_has_early_lines(void **state)
{
    caught c;

    (void)state;
    unlink(path);
    ddp_log *log = use_log(1, DDP_LOG_INFO, DDP_LOG_INFO);
    catch_begin(&c);
    log_all_levels();
    ddp_info("two\nlines\n");
    CHECK_OK(ddp_log_open_file(log, path));
    ddp_info("steers \x1b[2J nothing");
    catch_end(&c);
    catch_free(&c);
    drop_log(log);
    char *text = file_text();
    assert_pattern(text, "dddd-dd-ddTdd:dd:dd.dddZ error rank d: an error: E\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ warning rank d: a warning\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ info rank d: a note\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ output rank d: a result\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ info rank d: two\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ info rank d: lines\n"
                         "dddd-dd-ddTdd:dd:dd.dddZ info rank d: steers ?[dJ nothing\n");
    ddp_free(text);
}

static void early_lines_are_bounded(void **state)
{
    enum { LINES = 3000 };
    char filler[100];
    int lines = 0;

    (void)state;
    unlink(path);
    ddp_log *log = use_log(1, DDP_LOG_INFO, DDP_LOG_DEBUG);
    memset(filler, 'x', sizeof filler - 1);
    filler[sizeof filler - 1] = 0;
    for (int i = 0; i < LINES; i++)
        ddp_debug("line %d %s", i, filler);
    CHECK_OK(ddp_log_open_file(log, path));
    ddp_debug("after");
    drop_log(log);
    char *text = file_text();
    assert_true(strlen(text) < 70000);
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    char want[64];
    snprintf(want, sizeof want, ": %d lines before this one were dropped\n", LINES - (lines - 2));
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "line 0 x"));
    assert_non_null(strstr(text, ": after\n"));
    ddp_free(text);
}

static void logging_does_not_allocate(void **state)
{
    caught c;

    (void)state;
    unlink(path);
    ddp_log *log = use_log(0, DDP_LOG_INFO, DDP_LOG_DEBUG);
    CHECK_OK(ddp_log_open_file(log, path));
    catch_begin(&c);
    ddp_mem_freeze();
    log_all_levels();
    ddp_log_progress(&(ddp_progress){.epoch = 1});
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    catch_end(&c);
    catch_free(&c);
    drop_log(log);
}

static void unwritable_file(void **state)
{
    caught c;

    (void)state;
    ddp_log *log = use_log(1, DDP_LOG_INFO, DDP_LOG_INFO);
    CHECK_FAILS(ddp_log_open_file(log, "/no/such/log"), DDP_ERR_IO, "/no/such/log");
    CHECK_OK(ddp_log_open_file(log, "/dev/full"));
    catch_begin(&c);
    ddp_info("lost");
    ddp_info("lost too");
    catch_end(&c);
    drop_log(log);
    assert_string_equal(c.text[1], "ddp_train: warning: the log file takes no more lines\n");
    catch_free(&c);
}

enum { THREADS = 4, LINES_EACH = 200 };

static void *log_lines(void *arg)
{
    for (int i = 0; i < LINES_EACH; i++)
        ddp_info("thread %s says a line of its own", (const char *)arg);
    return NULL;
}

static void threads_do_not_mix_lines(void **state)
{
    static char *const names[THREADS] = {"a", "b", "c", "d"};
    ddp_thread threads[THREADS] = {0};
    int lines = 0;

    (void)state;
    unlink(path);
    ddp_log *log = use_log(1, DDP_LOG_INFO, DDP_LOG_INFO);
    for (int i = 0; i < THREADS; i++) {
        CHECK_OK(ddp_thread_start(&threads[i], names[i], log_lines, names[i]));
        if (i == 1)
            CHECK_OK(ddp_log_open_file(log, path)); /* in the middle of it */
    }
    for (int i = 0; i < THREADS; i++)
        ddp_thread_join(&threads[i]);
    drop_log(log);
    char *text = file_text();
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++) {
        *end = 0;
        const char *message = strstr(at, ": thread ");
        assert_non_null(message);
        assert_string_equal(message + strlen(": thread x"), " says a line of its own");
    }
    assert_int_equal(lines, THREADS * LINES_EACH);
    ddp_free(text);
}

/* Reads what a terminal shows after `writer`; the pseudo-terminal has 60 columns. */
static void on_terminal(void (*writer)(void), char *text, size_t text_bytes)
{
    struct winsize size = {.ws_row = 24, .ws_col = 60};
    int master;
    int slave;
    int saved = dup(STDERR_FILENO);

    if (openpty(&master, &slave, NULL, NULL, &size) != 0)
        skip(); /* a bare chroot has no terminals to give */
    dup2(slave, STDERR_FILENO);
    writer();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(slave);
    /* The terminal hands its text over in pieces, and an error once all slaves are closed. */
    size_t used = 0;
    for (ssize_t got; (got = read(master, text + used, text_bytes - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = 0;
    close(master);
}

static const ddp_progress progress = {3, 10, 120, 235, 0.4321, 0.2, 12345, 83};

static void draw_progress(void)
{
    ddp_sleep_ns(INT64_C(150000000)); /* beyond the pace of earlier tests */
    ddp_log_progress(&progress);
    ddp_info("note");
    ddp_sleep_ns(INT64_C(150000000));
    ddp_log_progress(&progress);
    ddp_log_progress_end();
    ddp_log_progress_end();
}

static void progress_is_redrawn(void **state)
{
    char text[1024];

    (void)state;
    ddp_log *log = use_log(0, DDP_LOG_INFO, DDP_LOG_INFO);
    on_terminal(draw_progress, text, sizeof text);
    drop_log(log);
    /* Cut before the last column, so that the terminal does not wrap. */
    assert_pattern(text, "\r\x1b[Kepoch d/dd  step ddd/ddd  loss d.dddd  lr d.d  ddddd images"
                         "\r\x1b[K[dd:dd:dd] note\r\n"
                         "\r\x1b[Kepoch d/dd  step ddd/ddd  loss d.dddd  lr d.d  ddddd images\r\n");
}

static void progress_without_terminal(void **state)
{
    caught c;

    (void)state;
    ddp_log *log = use_log(0, DDP_LOG_INFO, DDP_LOG_INFO);
    catch_begin(&c);
    /* The first at once, the next only after seconds: the pace of a terminal would show three. */
    for (int i = 0; i < 3; i++) {
        ddp_log_progress(&progress);
        ddp_sleep_ns(INT64_C(110000000));
    }
    ddp_log_progress_end();
    catch_end(&c);
    drop_log(log);
    const char *line =
        "epoch 3/10  step 120/235  loss 0.4321  lr 0.2  12345 images/s  1m23s left\n";
    assert_string_equal(c.text[1], line);
    catch_free(&c);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ddp_test_log.XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/rank.log", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First, since the progress line's pace is the process's. */
        cmocka_unit_test(progress_without_terminal), cmocka_unit_test(rank_0_speaks),
        cmocka_unit_test(other_ranks_only_fail),     cmocka_unit_test(without_a_log),
        cmocka_unit_test(file_has_early_lines),      cmocka_unit_test(early_lines_are_bounded),
        cmocka_unit_test(logging_does_not_allocate), cmocka_unit_test(unwritable_file),
        cmocka_unit_test(threads_do_not_mix_lines),  cmocka_unit_test(progress_is_redrawn),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
