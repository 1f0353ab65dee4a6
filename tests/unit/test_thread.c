/* Threads, monitors with deadlines, the bounded queue. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "harness.h"

#define MS INT64_C(1000000)

typedef struct seen {
    ddp_rank_ctx ctx;
    char name[32];
    sigset_t blocked;
} seen;

static void *look_around(void *arg)
{
    seen *here = arg;

    here->ctx = *ddp_rank_ctx_get();
    pthread_getname_np(pthread_self(), here->name, sizeof here->name);
    pthread_sigmask(SIG_SETMASK, NULL, &here->blocked);
    return NULL;
}

static void threads_inherit_context(void **state)
{
    ddp_thread thread = {0};
    seen here = {0};
    sigset_t before;
    sigset_t after;
    ddp_rank_ctx ctx = {.rank = 6, .world = 7, .host = "node6"};

    (void)state;
    ddp_rank_ctx_set(&ctx);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK_OK(ddp_thread_start(&thread, "a-name-that-is-too-long", look_around, &here));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ddp_rank_ctx_set(NULL);
    ddp_thread_join(&thread);
    assert_int_equal(here.ctx.rank, 6);
    assert_int_equal(here.ctx.world, 7);
    assert_string_equal(here.ctx.host, "node6");
    assert_string_equal(here.name, "a-name-that-is-");
    for (int i = 0; i < 3; i++)
        assert_true(sigismember(&here.blocked, (int[]){SIGTERM, SIGINT, SIGUSR1}[i]));
    for (int signal = 1; signal < 32; signal++)
        assert_int_equal(sigismember(&before, signal), sigismember(&after, signal));
    assert_false(thread.running);
    ddp_thread_join(&thread); /* a second join has no effect */
}

/* ---- short turns ---- */

/* The kernel's struct sched_attr. */
typedef struct turns {
    uint32_t size, policy;
    uint64_t flags;
    int32_t niceness;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} turns;

typedef struct shortened {
    int policy; /* to take before; so is the niceness */
    int niceness;
    bool prepared;
    turns before, after;
    long slack_ns;
} shortened;

static bool get_turns(turns *out)
{
    *out = (turns){.size = sizeof *out};
    return syscall(SYS_sched_getattr, 0, out, sizeof *out, 0) == 0;
}

/* All of it is this thread's alone. */
static void *shorten(void *arg)
{
    shortened *s = arg;
    const struct sched_param none = {0};

    s->prepared = sched_setscheduler(0, s->policy, &none) == 0 &&
                  setpriority(PRIO_PROCESS, (id_t)gettid(), s->niceness) == 0 &&
                  get_turns(&s->before);
    ddp_thread_short_turns();
    s->prepared = s->prepared && get_turns(&s->after);
    s->slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    return NULL;
}

static void run_shorten(shortened *s)
{
    ddp_thread thread = {0};

    CHECK_OK(ddp_thread_start(&thread, "short", shorten, s));
    ddp_thread_join(&thread);
    assert_int_equal(s->slack_ns, 1000);
    if (!s->prepared)
        skip(); /* no such policy here, or no such call */
}

static void short_turns_keep_niceness(void **state)
{
    shortened s = {.policy = SCHED_OTHER, .niceness = 7};
    turns here;

    (void)state;
    run_shorten(&s);
    assert_int_equal(s.after.policy, SCHED_OTHER);
    assert_int_equal(s.after.niceness, 7);
    /* Where the kernel knows lengths of turns, it tells them. */
    assert_int_equal(s.after.runtime, s.before.runtime > 0 ? 100000 : 0);
    /* Nobody else's turns became shorter. */
    assert_true(get_turns(&here));
    assert_int_equal(here.runtime, s.before.runtime);
}

static void short_turns_leave_other_policies(void **state)
{
    static const int policies[] = {SCHED_BATCH, SCHED_IDLE};

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        shortened s = {.policy = policies[i], .niceness = 3};
        run_shorten(&s);
        assert_int_equal(s.after.policy, policies[i]);
        assert_int_equal(s.after.niceness, 3);
        assert_int_equal(s.after.runtime, s.before.runtime);
    }
}

static void deadlines(void **state)
{
    ddp_monitor monitor;

    (void)state;
    assert_true(ddp_deadline_after_ms(0) == DDP_NO_DEADLINE);
    assert_true(ddp_deadline_after_ms(INT64_MAX) == DDP_NO_DEADLINE);
    int64_t before = ddp_now_ns();
    int64_t deadline = ddp_deadline_after_ms(30);
    assert_true(deadline >= before + 30 * MS);
    CHECK_OK(ddp_monitor_init(&monitor));
    ddp_monitor_lock(&monitor);
    while (ddp_monitor_wait(&monitor, deadline)) {
    }
    assert_true(ddp_now_ns() >= deadline);
    assert_false(ddp_monitor_wait(&monitor, before)); /* already over */
    ddp_monitor_unlock(&monitor);
    ddp_monitor_destroy(&monitor);
    before = ddp_now_ns();
    ddp_sleep_ns(5 * MS);
    assert_true(ddp_now_ns() - before >= 5 * MS);
}

static void queue_keeps_order_and_bounds(void **state)
{
    ddp_queue *queue;
    int items[3];
    void *item = NULL;

    (void)state;
    CHECK_OK(ddp_queue_create(2, &queue));
    for (int round = 0; round < 5; round++) {
        assert_int_equal(ddp_queue_push(queue, &items[0], DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_int_equal(ddp_queue_push(queue, &items[1], DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_int_equal(ddp_queue_push(queue, &items[2], ddp_deadline_after_ms(2)),
                         DDP_QUEUE_TIMEOUT);
        assert_int_equal(ddp_queue_length(queue), 2);
        assert_int_equal(ddp_queue_pop(queue, &item, DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_ptr_equal(item, &items[0]);
        assert_int_equal(ddp_queue_push(queue, &items[2], DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_int_equal(ddp_queue_pop(queue, &item, DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_ptr_equal(item, &items[1]);
        assert_int_equal(ddp_queue_pop(queue, &item, DDP_NO_DEADLINE), DDP_QUEUE_OK);
        assert_ptr_equal(item, &items[2]);
        assert_int_equal(ddp_queue_pop(queue, &item, ddp_deadline_after_ms(2)), DDP_QUEUE_TIMEOUT);
    }
    assert_int_equal(ddp_queue_push(queue, &items[1], DDP_NO_DEADLINE), DDP_QUEUE_OK);
    ddp_queue_close(queue);
    assert_int_equal(ddp_queue_push(queue, &items[2], DDP_NO_DEADLINE), DDP_QUEUE_CLOSED);
    assert_int_equal(ddp_queue_pop(queue, &item, DDP_NO_DEADLINE), DDP_QUEUE_OK);
    assert_ptr_equal(item, &items[1]);
    assert_int_equal(ddp_queue_pop(queue, &item, DDP_NO_DEADLINE), DDP_QUEUE_CLOSED);
    ddp_queue_destroy(queue);
    ddp_queue_destroy(NULL);
}

enum { WORKERS = 3, ITEMS = 2000 };

typedef struct traffic {
    ddp_queue *queue;
    _Atomic int64_t sum;
    _Atomic int popped;
} traffic;

static int numbers[ITEMS];

static void *produce(void *arg)
{
    traffic *shared = arg;

    for (int i = 0; i < ITEMS; i++)
        if (ddp_queue_push(shared->queue, &numbers[i], DDP_NO_DEADLINE) != DDP_QUEUE_OK)
            return NULL;
    return NULL;
}

static void *consume(void *arg)
{
    traffic *shared = arg;
    void *item;

    while (ddp_queue_pop(shared->queue, &item, DDP_NO_DEADLINE) == DDP_QUEUE_OK) {
        shared->sum += *(int *)item;
        shared->popped++;
    }
    return NULL;
}

static void queue_between_threads(void **state)
{
    ddp_thread producers[WORKERS] = {0};
    ddp_thread consumers[WORKERS] = {0};
    traffic shared = {0};

    (void)state;
    CHECK_OK(ddp_queue_create(3, &shared.queue));
    for (int i = 0; i < ITEMS; i++)
        numbers[i] = i;
    for (int i = 0; i < WORKERS; i++) {
        CHECK_OK(ddp_thread_start(&producers[i], "producer", produce, &shared));
        CHECK_OK(ddp_thread_start(&consumers[i], "consumer", consume, &shared));
    }
    for (int i = 0; i < WORKERS; i++)
        ddp_thread_join(&producers[i]);
    ddp_queue_close(shared.queue);
    for (int i = 0; i < WORKERS; i++)
        ddp_thread_join(&consumers[i]);
    assert_int_equal(shared.popped, WORKERS * ITEMS);
    assert_int_equal(shared.sum, (int64_t)WORKERS * ITEMS * (ITEMS - 1) / 2);
    ddp_queue_destroy(shared.queue);
}

static void close_wakes_everybody(void **state)
{
    ddp_thread waiting[2] = {0};
    traffic full = {0};
    traffic empty = {0};

    (void)state;
    CHECK_OK(ddp_queue_create(1, &full.queue));
    CHECK_OK(ddp_queue_create(1, &empty.queue));
    CHECK_OK(ddp_thread_start(&waiting[0], "producer", produce, &full));
    CHECK_OK(ddp_thread_start(&waiting[1], "consumer", consume, &empty));
    for (int i = 0; i < 30000 && ddp_queue_length(full.queue) == 0; i++)
        ddp_sleep_ns(1 * MS);
    ddp_sleep_ns(10 * MS); /* most often both wait by then */
    ddp_queue_close(full.queue);
    ddp_queue_close(empty.queue);
    ddp_thread_join(&waiting[0]);
    ddp_thread_join(&waiting[1]);
    assert_int_equal(ddp_queue_length(full.queue), 1);
    assert_int_equal(empty.popped, 0);
    ddp_queue_destroy(full.queue);
    ddp_queue_destroy(empty.queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_inherit_context),
        cmocka_unit_test(short_turns_keep_niceness),
        cmocka_unit_test(short_turns_leave_other_policies),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(queue_keeps_order_and_bounds),
        cmocka_unit_test(queue_between_threads),
        cmocka_unit_test(close_wakes_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
