/* thread.c - threads with inherited rank contexts, monitors and the monotonic clock.
 *
 * Errors of the pthread calls on a valid mutex or condition can only come from misuse, so they are
 * asserted and not returned. */
#include "ddp/thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ddp/memory.h"

#define NS_PER_S       1000000000
#define NS_PER_MS      1000000
#define NAME_MAX_BYTES 16 /* of the kernel, with the final 0 */

#define TIMER_SLACK_NS 1000ul /* the default of 50 us would double a short sleep */
#define SHORT_TURN_NS  100000 /* the least that the kernel takes */

/* The kernel's struct sched_attr in its first size, whose header cannot stand beside <sched.h>. */
typedef struct sched_values {
    uint32_t size, policy;
    uint64_t flags;
    int32_t niceness;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} sched_values;

_Static_assert(sizeof(sched_values) == 48, "as the kernel has it");

typedef struct thread_start {
    void *(*fn)(void *);
    void *arg;
    ddp_rank_ctx ctx;
    char name[NAME_MAX_BYTES];
} thread_start;

int64_t ddp_now_ns(void)
{
    struct timespec now;

    DDP_ASSERT(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t ddp_deadline_after_ms(int64_t ms)
{
    int64_t now = ddp_now_ns();

    if (ms <= 0 || ms > (DDP_NO_DEADLINE - now) / NS_PER_MS)
        return DDP_NO_DEADLINE;
    return now + ms * NS_PER_MS;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

void ddp_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    struct timespec left = timespec_of(ns);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

void ddp_thread_short_turns(void)
{
    sched_values values = {0};

    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    /* Its niceness is kept, and so is a policy that somebody chose for the whole process. */
    if (syscall(SYS_sched_getattr, 0, &values, sizeof values, 0) != 0 ||
        values.policy != SCHED_OTHER)
        return;
    values.runtime = SHORT_TURN_NS;
    (void)syscall(SYS_sched_setattr, 0, &values, 0);
}

static void *thread_main(void *start_arg)
{
    thread_start start = *(thread_start *)start_arg;

    ddp_free(start_arg);
    ddp_rank_ctx_set(&start.ctx);
    (void)pthread_setname_np(pthread_self(), start.name);
    return start.fn(start.arg);
}

/* Everything but the signals that a thread's own instruction raises: blocking those would not stop
 * them, only hide them from sanitizers and debuggers. */
static void fill_blocked(sigset_t *set)
{
    static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};

    sigfillset(set);
    for (size_t i = 0; i < sizeof own_faults / sizeof own_faults[0]; i++)
        sigdelset(set, own_faults[i]);
}

ddp_status ddp_thread_start(ddp_thread *thread, const char *name, void *(*fn)(void *), void *arg)
{
    thread_start *start;
    sigset_t blocked;
    sigset_t before;

    DDP_TRY(DDP_ALLOC(start, 1));
    start->fn = fn;
    start->arg = arg;
    start->ctx = *ddp_rank_ctx_get();
    memcpy(start->name, name, strnlen(name, NAME_MAX_BYTES - 1));
    /* The new thread takes over the mask, so that it cannot get a signal before it has its own. */
    fill_blocked(&blocked);
    DDP_ASSERT(pthread_sigmask(SIG_SETMASK, &blocked, &before) == 0);
    int error = pthread_create(&thread->handle, NULL, thread_main, start);
    DDP_ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    if (error != 0) {
        ddp_free(start);
        return DDP_FAIL(DDP_ERR_NOMEM, "start thread %s: %s", name, strerror(error));
    }
    thread->running = true;
    return DDP_OK;
}

void ddp_thread_join(ddp_thread *thread)
{
    if (!thread->running)
        return;
    DDP_ASSERT(pthread_join(thread->handle, NULL) == 0);
    thread->running = false;
}

ddp_status ddp_monitor_init(ddp_monitor *monitor)
{
    pthread_condattr_t attr;
    int error = pthread_condattr_init(&attr);

    if (error == 0) {
        error = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        if (error == 0)
            error = pthread_cond_init(&monitor->cond, &attr);
        pthread_condattr_destroy(&attr);
    }
    if (error != 0)
        return DDP_FAIL(DDP_ERR_NOMEM, "make a condition: %s", strerror(error));
    error = pthread_mutex_init(&monitor->mutex, NULL);
    if (error != 0) {
        pthread_cond_destroy(&monitor->cond);
        return DDP_FAIL(DDP_ERR_NOMEM, "make a mutex: %s", strerror(error));
    }
    return DDP_OK;
}

void ddp_monitor_destroy(ddp_monitor *monitor)
{
    DDP_ASSERT(pthread_cond_destroy(&monitor->cond) == 0);
    DDP_ASSERT(pthread_mutex_destroy(&monitor->mutex) == 0);
}

void ddp_monitor_lock(ddp_monitor *monitor)
{
    DDP_ASSERT(pthread_mutex_lock(&monitor->mutex) == 0);
}

void ddp_monitor_unlock(ddp_monitor *monitor)
{
    DDP_ASSERT(pthread_mutex_unlock(&monitor->mutex) == 0);
}

bool ddp_monitor_wait(ddp_monitor *monitor, int64_t deadline_ns)
{
    int error;

    if (deadline_ns == DDP_NO_DEADLINE) {
        error = pthread_cond_wait(&monitor->cond, &monitor->mutex);
    } else {
        struct timespec deadline = timespec_of(deadline_ns > 0 ? deadline_ns : 0);
        error = pthread_cond_timedwait(&monitor->cond, &monitor->mutex, &deadline);
    }
    DDP_ASSERT(error == 0 || error == ETIMEDOUT);
    return error == 0;
}

void ddp_monitor_wake_all(ddp_monitor *monitor)
{
    DDP_ASSERT(pthread_cond_broadcast(&monitor->cond) == 0);
}
