/* test_watchdog.c - side records and the watchdog: dead processes, late works, recorded causes, and
 * the silence that a healthy world must get. */
#include "harness.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/watchdog.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define RANKS 3
#define MS    1000000ll
/* What comes, comes within this time on a busy machine; deadlines are long enough for it to do what
 * is to be done before them. */
#define ARRIVES_MS 30000

typedef struct report {
    atomic_int calls;
    ddp_status status;
    bool first;
    char cause[DDPI_SIDE_CAUSE_BYTES];
} report;

static void on_fail(void *arg, ddp_status status, const char *cause, bool first)
{
    report *r = arg;

    r->status = status;
    r->first = first;
    snprintf(r->cause, sizeof r->cause, "%s", cause);
    atomic_fetch_add(&r->calls, 1);
}

/* True if the report arrives within the time. */
static bool arrives(report *r, int64_t ms)
{
    int64_t end = ddp_deadline_after_ms(ms);

    while (atomic_load(&r->calls) == 0 && ddp_now_ns() < end)
        ddp_sleep_ns(2 * MS);
    return atomic_load(&r->calls) > 0;
}

static void *shared_memory(void)
{
    void *memory = mmap(NULL, ddpi_side_bytes(RANKS), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(memory != MAP_FAILED);
    return memory;
}

static ddpi_side *open_side(void *memory, int index)
{
    ddpi_side_opts opts = {memory, RANKS, index, index, index == 0 ? "alpha" : "beta"};
    ddpi_side *side;

    CHECK_OK(ddpi_side_open(&opts, &side));
    return side;
}

static ddpi_watchdog *start_watchdog(ddpi_side *side, bool processes, report *r)
{
    ddpi_watchdog_opts opts = {.side = side,
                               .interval_ms = 10,
                               .watch_processes = processes,
                               .fail = on_fail,
                               .fail_arg = r};
    ddpi_watchdog *watchdog;

    CHECK_OK(ddpi_watchdog_start(&opts, &watchdog));
    return watchdog;
}

static ddp_work gradient_work(uint64_t seq, int64_t deadline_ms)
{
    return (ddp_work){
        .coll = {.kind = DDP_COLL_ALLREDUCE, .what = "gradients", .bucket = 2},
        .seq = seq,
        .submit_ns = ddp_now_ns(),
        .deadline_ns = ddp_deadline_after_ms(deadline_ms),
    };
}

/* Rank 1 as a process that says what it does and then stays until it is killed or told to go. */
static pid_t fork_rank(void *memory, const char *cause, bool leave)
{
    int ready[2];
    char byte;

    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ddpi_side_opts opts = {memory, RANKS, 1, 1, "beta"};
        ddpi_side *side;
        if (ddpi_side_open(&opts, &side) != DDP_OK)
            _exit(1);
        ddpi_side_note(side, 87, "forward");
        if (cause != NULL)
            ddpi_side_claim(side, cause);
        if (leave)
            ddpi_side_leave(side);
        if (write(ready[1], "x", 1) == 1 && cause == NULL && !leave)
            pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void test_killed_rank(void **state)
{
    (void)state;
    void *memory = shared_memory();
    report r = {.calls = 0};
    ddpi_side *side = open_side(memory, 0);
    pid_t child = fork_rank(memory, NULL, false);
    ddpi_watchdog *watchdog = start_watchdog(side, true, &r);
    char want[64];

    assert_false(arrives(&r, 300));
    kill(child, SIGKILL);
    /* Not waited for: a zombie is dead, too. */
    assert_true(arrives(&r, ARRIVES_MS));
    snprintf(want, sizeof want, "rank 1 (pid %d) on beta died", (int)child);
    assert_non_null(strstr(r.cause, want));
    assert_non_null(strstr(r.cause, "step 87 in forward"));
    assert_int_equal(r.status, DDP_ERR_PEER);
    assert_true(r.first);
    char text[DDPI_SIDE_CAUSE_BYTES];
    int rank = -1;
    assert_true(ddpi_side_cause(side, text, &rank));
    assert_string_equal(text, r.cause);
    assert_int_equal(rank, 0);
    ddpi_watchdog_stop(watchdog);
    assert_int_equal(atomic_load(&r.calls), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    ddpi_side_close(side, false);
    munmap(memory, ddpi_side_bytes(RANKS));
}

/* The cause that a dying rank has recorded is better than the fact that it is dead. */
static void test_recorded_cause(void **state)
{
    (void)state;
    void *memory = shared_memory();
    report r = {.calls = 0};
    ddpi_side *side = open_side(memory, 0);
    ddpi_watchdog *watchdog = start_watchdog(side, true, &r);
    pid_t child = fork_rank(memory, "rank 1 on beta: disk full", false);

    assert_true(arrives(&r, ARRIVES_MS));
    assert_string_equal(r.cause, "rank 1 on beta: disk full");
    assert_int_equal(r.status, DDP_ERR_PEER);
    assert_false(r.first);
    assert_false(ddpi_side_claim(side, "too late"));
    ddpi_watchdog_stop(watchdog);
    assert_int_equal(waitpid(child, NULL, 0), child);
    ddpi_side_close(side, false);
    munmap(memory, ddpi_side_bytes(RANKS));
}

static void test_orderly_end(void **state)
{
    (void)state;
    void *memory = shared_memory();
    report r = {.calls = 0};
    ddpi_side *side = open_side(memory, 0);
    ddpi_watchdog *watchdog = start_watchdog(side, true, &r);
    pid_t child = fork_rank(memory, NULL, true);

    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(arrives(&r, 400));
    /* But a work that needs it can never end. */
    ddp_work work = gradient_work(7, 60000);
    ddpi_watchdog_begin(watchdog, &work);
    assert_true(arrives(&r, ARRIVES_MS));
    assert_string_equal(
        r.cause, "rank 1 on beta has left without entering allreduce 7 (gradients, bucket 2)");
    ddpi_watchdog_stop(watchdog);
    ddpi_side_close(side, true);
    munmap(memory, ddpi_side_bytes(RANKS));
}

/* Three ranks of this process; only some of them enter. */
typedef struct trio {
    void *memory;
    ddpi_side *sides[RANKS];
    ddpi_watchdog *watchdogs[RANKS];
    report reports[RANKS];
} trio;

static void trio_open(trio *t)
{
    *t = (trio){.memory = shared_memory()};
    for (int i = 0; i < RANKS; i++)
        t->sides[i] = open_side(t->memory, i);
    for (int i = 0; i < RANKS; i++)
        t->watchdogs[i] = start_watchdog(t->sides[i], false, &t->reports[i]);
}

static void trio_close(trio *t)
{
    for (int i = 0; i < RANKS; i++)
        ddpi_watchdog_stop(t->watchdogs[i]);
    for (int i = 0; i < RANKS; i++)
        ddpi_side_close(t->sides[i], false);
    munmap(t->memory, ddpi_side_bytes(RANKS));
}

static void test_laggard(void **state)
{
    (void)state;
    trio t;

    trio_open(&t);
    ddpi_side_note(t.sides[1], 87, "forward");
    ddp_work work = gradient_work(1042, 700);
    ddpi_watchdog_begin(t.watchdogs[0], &work);
    ddpi_watchdog_begin(t.watchdogs[2], &work);
    ddp_work later = gradient_work(1043, 600);
    ddpi_watchdog_begin(t.watchdogs[0], &later);
    int firsts = 0;
    for (int i = 0; i < RANKS; i++) {
        assert_true(arrives(&t.reports[i], ARRIVES_MS));
        assert_non_null(strstr(t.reports[i].cause,
                               "rank 1 on beta has not entered allreduce 1042 (gradients, "
                               "bucket 2) for "));
        assert_non_null(strstr(t.reports[i].cause, "last seen at step 87 in forward"));
        assert_null(strstr(t.reports[i].cause, "rank 0"));
        assert_null(strstr(t.reports[i].cause, "rank 2"));
        firsts += t.reports[i].first;
    }
    /* Exactly one rank prints. */
    assert_int_equal(firsts, 1);
    assert_int_equal(t.reports[1].status, DDP_ERR_PEER);
    trio_close(&t);
}

static void test_stuck(void **state)
{
    (void)state;
    trio t;

    trio_open(&t);
    ddp_work work = gradient_work(5, 700);
    for (int i = 0; i < RANKS; i++)
        ddpi_watchdog_begin(t.watchdogs[i], &work);
    ddpi_watchdog_end(t.watchdogs[0], &work);
    assert_true(arrives(&t.reports[1], ARRIVES_MS));
    assert_non_null(
        strstr(t.reports[1].cause, "rank 1 on beta is stuck in allreduce 5 (gradients, bucket 2)"));
    assert_non_null(strstr(t.reports[1].cause, "rank 2 on beta"));
    assert_null(strstr(t.reports[1].cause, "alpha"));
    trio_close(&t);
}

/* A rank that was stopped inside a work keeps the others in it: it alone is named. */
static void test_stopped_rank(void **state)
{
    (void)state;
    void *memory = shared_memory();
    report r = {.calls = 0};
    ddpi_side *side = open_side(memory, 0);
    ddp_work work = gradient_work(5, 200);
    pid_t child = fork();
    if (child == 0) {
        ddpi_side_opts opts = {memory, RANKS, 1, 1, "beta"};
        ddpi_side *own;
        if (ddpi_side_open(&opts, &own) != DDP_OK)
            _exit(1);
        ddpi_side_entered(own, &work);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child);
    ddpi_watchdog *watchdog = start_watchdog(side, true, &r);
    ddpi_watchdog_begin(watchdog, &work);
    assert_true(arrives(&r, ARRIVES_MS));
    assert_non_null(
        strstr(r.cause, "rank 1 on beta is a stopped process and is stuck in allreduce 5"));
    assert_null(strstr(r.cause, "rank 0"));
    assert_int_equal(r.status, DDP_ERR_TIMEOUT);
    ddpi_watchdog_stop(watchdog);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    ddpi_side_close(side, false);
    munmap(memory, ddpi_side_bytes(RANKS));
}

/* Works that end in time, in any order, and works without a deadline alarm nobody. */
static void test_healthy(void **state)
{
    (void)state;
    trio t;
    ddp_work works[200];

    trio_open(&t);
    for (uint64_t seq = 0; seq < 200; seq++) {
        works[seq] = gradient_work(seq, seq % 2 == 0 ? 1000 : 0);
        for (int i = 0; i < RANKS; i++)
            ddpi_watchdog_begin(t.watchdogs[i], &works[seq]);
        if (seq % 3 == 2) {
            ddp_sleep_ns(1 * MS);
            for (uint64_t k = 0; k < 3; k++) {
                for (int i = 0; i < RANKS; i++)
                    ddpi_watchdog_end(t.watchdogs[i], &works[seq - k]);
            }
        }
    }
    /* The last two: even ones have a deadline. */
    for (int i = 0; i < RANKS; i++)
        ddpi_watchdog_end(t.watchdogs[i], &works[198]);
    assert_false(arrives(&t.reports[0], 1300));
    assert_int_equal(atomic_load(&t.reports[1].calls), 0);
    ddpi_side_view view;
    ddpi_side_view_get(t.sides[2], 1, &view);
    assert_true(view.present && !view.left);
    assert_int_equal(view.entered, 200);
    assert_int_equal(view.finished, 199);
    assert_string_equal(view.what, "gradients");
    assert_string_equal(view.host, "beta");
    trio_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_rank), cmocka_unit_test(test_recorded_cause),
        cmocka_unit_test(test_orderly_end), cmocka_unit_test(test_laggard),
        cmocka_unit_test(test_stuck),       cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
