/* Messages, prefixes, rank contexts and the fatal path (in child processes). */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static void message_is_the_last_one(void **state)
{
    (void)state;
    assert_int_equal(DDP_FAIL(DDP_ERR_IO, "open %s: %d", "x", 7), DDP_ERR_IO);
    assert_string_equal(ddp_status_message(), "open x: 7");
    assert_int_equal(ddp_status_prefix(DDP_ERR_IO, "layer %d", 3), DDP_ERR_IO);
    assert_string_equal(ddp_status_message(), "layer 3: open x: 7");
    /* The old message may be an argument of the new one. */
    (void)DDP_FAIL(DDP_ERR_PEER, "rank 2: %s", ddp_status_message());
    assert_string_equal(ddp_status_message(), "rank 2: layer 3: open x: 7");
}

static void internal_errors_name_the_source(void **state)
{
    (void)state;
    (void)ddp_status_set(DDP_ERR_INTERNAL, "/some/where/file.c", 12, "odd");
    assert_string_equal(ddp_status_message(), "file.c:12: odd");
}

static void long_messages_are_cut(void **state)
{
    char text[5000];

    (void)state;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)DDP_FAIL(DDP_ERR_IO, "%s", text);
    size_t bytes = strlen(ddp_status_message());
    assert_true(bytes > 1000 && bytes < sizeof text - 1);
    (void)ddp_status_prefix(DDP_ERR_IO, "%s", text);
    assert_int_equal(strlen(ddp_status_message()), bytes);
}

static void names_and_exit_codes(void **state)
{
    (void)state;
    for (int i = 0; i < DDP_STATUS_COUNT; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(ddp_status_name((ddp_status)i), ddp_status_name((ddp_status)j));
    assert_string_equal(ddp_status_name(DDP_STATUS_COUNT), "unknown");
    assert_int_equal(ddp_status_exit_code(DDP_OK), 0);
    assert_int_equal(ddp_status_exit_code(DDP_ERR_USAGE), 2);
    assert_int_equal(ddp_status_exit_code(DDP_ERR_PEER), 1);
}

static void *fail_elsewhere(void *arg)
{
    (void)DDP_FAIL(DDP_ERR_IO, "of the other thread");
    return arg;
}

static void messages_belong_to_threads(void **state)
{
    pthread_t thread;

    (void)state;
    (void)DDP_FAIL(DDP_ERR_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(ddp_status_message(), "mine");
}

static void context_is_copied_and_reset(void **state)
{
    (void)state;
    ddp_rank_ctx ctx = {.rank = 3, .world = 8, .host = "node3"};
    ddp_rank_ctx_set(&ctx);
    ctx.rank = 4;
    assert_int_equal(ddp_rank_ctx_get()->rank, 3);
    ddp_rank_ctx_set(NULL);
    assert_int_equal(ddp_rank_ctx_get()->rank, 0);
    assert_int_equal(ddp_rank_ctx_get()->world, 1);
}

/* Runs fn in a child; its stderr into text, its exit status as the result. */
static int run_child(void (*fn)(void), char *text, size_t text_bytes)
{
    int pipes[2];
    int status;
    size_t used = 0;
    ssize_t got;

    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        fn();
        _exit(99);
    }
    close(pipes[1]);
    while (used + 1 < text_bytes && (got = read(pipes[0], text + used, text_bytes - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void record_cause(void *arg, const char *cause)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%s<%s>\n", (const char *)arg, cause);

    assert_true(write(STDERR_FILENO, line, (size_t)n) == n);
}

static void set_ctx(void (*on_fatal)(void *, const char *))
{
    static char arg[] = "hook";
    ddp_rank_ctx ctx = {
        .rank = 5, .world = 8, .host = "node5", .on_fatal = on_fatal, .on_fatal_arg = arg};
    ddp_rank_ctx_set(&ctx);
}

static void die(void)
{
    set_ctx(record_cause);
    ddp_fatal("peer %d lost", 2);
}

static void die_quietly(void)
{
    set_ctx(record_cause);
    (void)DDP_FAIL(DDP_ERR_PEER, "said before");
    ddp_fatal_quiet();
}

static void die_again(void *arg, const char *cause)
{
    (void)arg;
    ddp_fatal("second cause after %s", cause);
}

static void die_in_hook(void)
{
    set_ctx(die_again);
    ddp_fatal("first cause");
}

static void block(void *arg, const char *cause)
{
    (void)arg;
    (void)cause;
    for (;;)
        pause();
}

/* As a file system that is gone blocks the hook. */
static void *block_in_hook(void *arg)
{
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    set_ctx(block);
    ddp_fatal("cause before a hook that blocks");
    return arg;
}

static void die_in_blocked_hook(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, block_in_hook, NULL);
    pthread_join(thread, NULL);
}

static void *die_in_thread(void *arg)
{
    ddp_fatal("cause of thread");
    return arg;
}

static void die_in_many_threads(void)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, die_in_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

static void break_assertion(void)
{
    int one = 1;
    DDP_ASSERT(one == 2);
}

static void fatal_path(void **state)
{
    char text[1024];

    (void)state;
    assert_int_equal(run_child(die, text, sizeof text), 1);
    assert_string_equal(text, "ddp_train: rank 5 on node5: peer 2 lost\nhook<peer 2 lost>\n");
    assert_int_equal(run_child(die_quietly, text, sizeof text), 1);
    assert_string_equal(text, "hook<said before>\n");
    assert_int_equal(run_child(die_in_hook, text, sizeof text), 1);
    assert_string_equal(text, "ddp_train: rank 5 on node5: first cause\n");
    assert_int_equal(run_child(break_assertion, text, sizeof text), 1);
    assert_non_null(strstr(text, "internal error: test_status.c:"));
    assert_non_null(strstr(text, "one == 2 does not hold"));
}

static void a_hook_that_blocks_does_not_keep_the_process(void **state)
{
    char text[1024];

    (void)state;
    assert_int_equal(run_child(die_in_blocked_hook, text, sizeof text), 1);
    assert_non_null(strstr(text, "cause before a hook that blocks\n"));
}

static void one_cause_is_printed(void **state)
{
    char text[1024];

    (void)state;
    assert_int_equal(run_child(die_in_many_threads, text, sizeof text), 1);
    const char *first = strstr(text, "cause of thread\n");
    assert_non_null(first);
    assert_null(strstr(first + 1, "cause of thread"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_is_the_last_one),
        cmocka_unit_test(internal_errors_name_the_source),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(names_and_exit_codes),
        cmocka_unit_test(messages_belong_to_threads),
        cmocka_unit_test(context_is_copied_and_reset),
        cmocka_unit_test(fatal_path),
        cmocka_unit_test(one_cause_is_printed),
        cmocka_unit_test(a_hook_that_blocks_does_not_keep_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
