/* Signals set flags, on a stack of their own: the products that they interrupt keep values below
 * the stack pointer. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/stop.h"
#include "harness.h"

static void handlers_have_their_own_stack(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
    stack_t stack;

    (void)state;
    assert_int_equal(sigaltstack(NULL, &stack), 0);
    assert_int_equal(stack.ss_flags & SS_DISABLE, 0);
    assert_true(stack.ss_size >= (size_t)4 * 1024 + (size_t)sysconf(_SC_MINSIGSTKSZ));
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action;
        assert_int_equal(sigaction(signals[i], NULL, &action), 0);
        assert_int_equal(action.sa_flags & SA_ONSTACK, SA_ONSTACK);
    }
}

static void timelines_are_counted(void **state)
{
    (void)state;
    assert_int_equal(ddp_stop_timelines(), 0);
    raise(SIGUSR2);
    raise(SIGUSR2);
    assert_int_equal(ddp_stop_timelines(), 2);
    assert_int_equal(ddp_stop_asked(), 0);
}

static void the_second_request_ends_the_process(void **state)
{
    int status;
    pid_t child;

    (void)state;
    child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        if (ddp_stop_asked() != SIGUSR1)
            _exit(9);
        raise(SIGTERM);
        _exit(8);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(handlers_have_their_own_stack),
        cmocka_unit_test(timelines_are_counted),
        cmocka_unit_test(the_second_request_ends_the_process),
    };

    ddp_stop_catch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
