/* watchdog.c - the thread that notices that a communicator will not get on.
 *
 * Pending works are entries of a small table of atomics, filled by the threads that submit and
 * emptied by those that complete: no lock, so that neither side can hold up the other. An entry is
 * published by its key (number + 1; 0: free) and its other fields may be read torn only while the
 * entry changes hands, which a second look at the key finds.
 *
 * Three things are looked at in this order, since the first explains the others best: a cause that
 * somebody has recorded, dead or departed ranks, deadlines. A rank that dies on purpose records its
 * cause first, so a death is believed only after a short wait for one. All watchdogs of a node may
 * find the same thing at once; the claim of the cause decides who prints it. */
#include "comm/watchdog.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/proc.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define PENDING_MAX         64
#define DEFAULT_INTERVAL_MS 50
#define NS_PER_MS           1000000
#define CAUSE_WAIT_NS       ((int64_t)150 * NS_PER_MS) /* for the cause of a rank that died */
#define CLAIM_WAIT_NS       ((int64_t)500 * NS_PER_MS) /* for a text that somebody has begun */
#define SILENCE_NS          ((int64_t)3000 * NS_PER_MS)
#define NAMED_RANKS         4 /* in one message; the others are counted */

typedef struct pending {
    _Atomic uint64_t key;
    _Atomic int64_t submit_ns, deadline_ns;
    _Atomic(const char *) what;
    _Atomic int32_t kind, bucket;
} pending;

/* A consistent copy of an entry. */
typedef struct pending_work {
    uint64_t seq;
    int64_t submit_ns, deadline_ns;
    const char *what;
    int kind, bucket;
} pending_work;

struct ddpi_watchdog {
    ddpi_watchdog_opts opts;
    pending pending[PENDING_MAX];
    ddp_thread thread;
    ddp_monitor monitor;
    bool stop;              /* under the monitor */
    _Atomic bool hears_all; /* other nodes, too */
    /* The thread's own. */
    int64_t death_seen_ns, claim_seen_ns;
};

typedef struct message {
    char text[DDPI_SIDE_CAUSE_BYTES];
    size_t used;
} message;

static void append(message *m, const char *fmt, ...) DDP_PRINTF(2, 3);

static void append(message *m, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int wanted = vsnprintf(m->text + m->used, sizeof m->text - m->used, fmt, args);
    va_end(args);
    size_t room = sizeof m->text - 1 - m->used;
    m->used += wanted > 0 && (size_t)wanted < room ? (size_t)wanted : wanted > 0 ? room : 0;
}

/* ---- pending works ---- */

void ddpi_watchdog_begin(ddpi_watchdog *watchdog, const ddp_work *work)
{
    pending *entry = &watchdog->pending[work->seq % PENDING_MAX];

    ddpi_side_entered(watchdog->opts.side, work);
    if (atomic_load_explicit(&entry->key, memory_order_acquire) != 0)
        return;
    int64_t deadline_ns = work->deadline_ns > 0 ? work->deadline_ns : DDP_NO_DEADLINE;
    atomic_store_explicit(&entry->submit_ns, work->submit_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->deadline_ns, deadline_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->what, work->coll.what, memory_order_relaxed);
    atomic_store_explicit(&entry->kind, (int32_t)work->coll.kind, memory_order_relaxed);
    atomic_store_explicit(&entry->bucket, work->coll.bucket, memory_order_relaxed);
    atomic_store_explicit(&entry->key, work->seq + 1, memory_order_release);
}

void ddpi_watchdog_end(ddpi_watchdog *watchdog, const ddp_work *work)
{
    pending *entry = &watchdog->pending[work->seq % PENDING_MAX];
    uint64_t key = work->seq + 1;

    ddpi_side_finished(watchdog->opts.side, work);
    atomic_compare_exchange_strong_explicit(&entry->key, &key, 0, memory_order_release,
                                            memory_order_relaxed);
}

static bool pending_read(const pending *entry, pending_work *copy_out)
{
    uint64_t key = atomic_load_explicit(&entry->key, memory_order_acquire);

    if (key == 0)
        return false;
    *copy_out = (pending_work){
        .seq = key - 1,
        .submit_ns = atomic_load_explicit(&entry->submit_ns, memory_order_acquire),
        .deadline_ns = atomic_load_explicit(&entry->deadline_ns, memory_order_acquire),
        .what = atomic_load_explicit(&entry->what, memory_order_acquire),
        .kind = atomic_load_explicit(&entry->kind, memory_order_acquire),
        .bucket = atomic_load_explicit(&entry->bucket, memory_order_acquire),
    };
    return atomic_load_explicit(&entry->key, memory_order_acquire) == key;
}

/* The oldest pending work; false if there is none. */
static bool oldest_pending(const ddpi_watchdog *watchdog, pending_work *oldest_out)
{
    bool found = false;

    for (int i = 0; i < PENDING_MAX; i++) {
        pending_work work;
        if (!pending_read(&watchdog->pending[i], &work) || (found && work.seq > oldest_out->seq))
            continue;
        *oldest_out = work;
        found = true;
    }
    return found;
}

/* ---- messages ---- */

static double seconds_since(int64_t then_ns, int64_t now_ns)
{
    return (double)(now_ns - then_ns) / 1e9;
}

static void append_last_seen(message *m, const ddpi_side_view *view)
{
    if (view->phase[0] != '\0')
        append(m, "; last seen at step %lld in %s", (long long)view->step, view->phase);
}

/* ---- who is there: this node's ranks, and those of others, as far as this rank is told ---- */

static int view_count(const ddpi_watchdog *w)
{
    return ddpi_side_count(w->opts.side) + (w->opts.net != NULL ? ddpi_net_count(w->opts.net) : 0);
}

static void view_get(const ddpi_watchdog *w, int i, ddpi_side_view *view_out)
{
    const int local = ddpi_side_count(w->opts.side);

    if (i < local)
        ddpi_side_view_get(w->opts.side, i, view_out);
    else
        ddpi_net_view_get(w->opts.net, i - local, view_out);
}

static void append_silence(message *m, const ddpi_watchdog *w, int i)
{
    const int local = ddpi_side_count(w->opts.side);
    const int64_t silence_ns = i < local ? 0 : ddpi_net_silence_ns(w->opts.net, i - local);

    if (silence_ns > SILENCE_NS)
        append(m, ", nothing heard for %.1f s", (double)silence_ns / 1e9);
}

static const char *describe(const pending_work *work, char *text, size_t text_bytes)
{
    return ddpi_side_work_format(work->kind, work->seq, work->what, work->bucket, text, text_bytes);
}

/* Which side of the late work a rank is on. */
static bool keeps_waiting(const ddpi_side_view *view, const pending_work *work, bool entered)
{
    if (!view->present)
        return false;
    if (!entered)
        return view->entered <= work->seq;
    return view->entered > work->seq && view->finished <= work->seq;
}

/* In another name space the pid means another process. */
static bool is_stopped(const ddpi_side_view *view, uint64_t own_space)
{
    ddpi_proc_info proc;

    return view->pid_space == own_space && ddpi_proc_read(view->pid, &proc) == DDPI_PROC_ALIVE &&
           proc.stopped;
}

/* Has somebody stopped the process of a rank that the work waits for? */
static bool any_stopped(const ddpi_watchdog *watchdog, const pending_work *work, bool entered,
                        uint64_t own_space)
{
    for (int i = 0; i < view_count(watchdog); i++) {
        ddpi_side_view view;
        view_get(watchdog, i, &view);
        if (keeps_waiting(&view, work, entered) && is_stopped(&view, own_space))
            return true;
    }
    return false;
}

/* Names the ranks that have not entered the work, or those that are stuck in it, and returns how
 * many there are. Where some of them are stopped, the others only wait for those, and are left out.
 */
static int append_ranks(const ddpi_watchdog *watchdog, const pending_work *work, bool entered,
                        message *m)
{
    const ddpi_side *side = watchdog->opts.side;
    ddpi_side_view view;
    char work_text[128];
    int found = 0;

    ddpi_side_view_get(side, ddpi_side_index(side), &view);
    uint64_t space = view.pid_space;
    bool stopped = any_stopped(watchdog, work, entered, space);
    const char *verb = entered ? "is stuck in" : "has not entered";
    describe(work, work_text, sizeof work_text);
    for (int i = 0; i < view_count(watchdog); i++) {
        view_get(watchdog, i, &view);
        if (!keeps_waiting(&view, work, entered) || (stopped && !is_stopped(&view, space)) ||
            ++found > NAMED_RANKS)
            continue;
        if (found == 1)
            append(m, "rank %d on %s %s%s %s for %.1f s", view.rank, view.host,
                   stopped ? "is a stopped process and " : "", verb, work_text,
                   seconds_since(work->submit_ns, ddp_now_ns()));
        else
            append(m, "; rank %d on %s %s", view.rank, view.host, entered ? "too" : "neither");
        append_last_seen(m, &view);
        append_silence(m, watchdog, i);
    }
    if (found > NAMED_RANKS)
        append(m, "; and %d more", found - NAMED_RANKS);
    return found;
}

/* ---- what may be wrong ---- */

/* Another rank has recorded a cause. A rank that dies while it writes one must not keep the others
 * waiting, so an unfinished claim counts as a cause of its own after a while. */
static ddp_status find_cause(ddpi_watchdog *watchdog, int64_t now_ns, message *m)
{
    if (ddpi_side_cause(watchdog->opts.side, m->text, NULL))
        return DDP_ERR_PEER;
    if (!ddpi_side_claimed(watchdog->opts.side))
        return DDP_OK;
    if (watchdog->claim_seen_ns == 0)
        watchdog->claim_seen_ns = now_ns;
    if (now_ns - watchdog->claim_seen_ns < CLAIM_WAIT_NS)
        return DDP_OK;
    append(m, "another rank failed before it could say why");
    return DDP_ERR_PEER;
}

static bool is_dead(const ddpi_side_view *view, uint64_t own_space)
{
    ddpi_proc_info proc;

    /* In another name space the pid means another process. */
    if (!view->present || view->left || view->pid_space != own_space)
        return false;
    ddpi_proc_state state = ddpi_proc_read(view->pid, &proc);
    if (state != DDPI_PROC_ALIVE)
        return state == DDPI_PROC_DEAD;
    return view->start_time != 0 && proc.start_time != view->start_time;
}

/* Another rank's process that is dead, or can no longer be reached. */
static bool find_dead(const ddpi_watchdog *w, uint64_t own_space, ddpi_side_view *view_out)
{
    for (int i = 0; w->opts.watch_processes && i < view_count(w); i++) {
        view_get(w, i, view_out);
        if (i == ddpi_side_index(w->opts.side) || !is_dead(view_out, own_space))
            continue;
        /* It may have left in order between the two looks. */
        view_get(w, i, view_out);
        if (!view_out->left)
            return true;
    }
    return w->opts.net != NULL && ddpi_net_lost(w->opts.net, view_out);
}

static ddp_status find_death(ddpi_watchdog *watchdog, int64_t now_ns, message *m)
{
    ddpi_side_view view, own;

    ddpi_side_view_get(watchdog->opts.side, ddpi_side_index(watchdog->opts.side), &own);
    if (!find_dead(watchdog, own.pid_space, &view)) {
        watchdog->death_seen_ns = 0;
        return DDP_OK;
    }
    if (watchdog->death_seen_ns == 0)
        watchdog->death_seen_ns = now_ns;
    if (now_ns - watchdog->death_seen_ns < CAUSE_WAIT_NS)
        return DDP_OK;
    append(m, "rank %d (pid %lld) on %s %s", view.rank, (long long)view.pid, view.host,
           is_dead(&view, own.pid_space) ? "died" : "is gone: its connection has ended");
    append_last_seen(m, &view);
    return DDP_ERR_PEER;
}

/* A rank has closed its communicator in order, but this rank waits for it. */
static ddp_status find_departure(const ddpi_watchdog *watchdog, message *m)
{
    pending_work work;
    char text[128];

    if (!oldest_pending(watchdog, &work))
        return DDP_OK;
    for (int i = 0; i < view_count(watchdog); i++) {
        ddpi_side_view view;
        view_get(watchdog, i, &view);
        if (!view.left || view.entered > work.seq)
            continue;
        append(m, "rank %d on %s has left without entering %s", view.rank, view.host,
               describe(&work, text, sizeof text));
        return DDP_ERR_PEER;
    }
    return DDP_OK;
}

/* Several other hosts are silent, and none is heard: the link of this one is the likely cause. */
static bool hears_nobody(const ddpi_watchdog *watchdog)
{
    const int local = ddpi_side_count(watchdog->opts.side);
    ddpi_side_view first = {.present = false}, view;
    bool several = false;

    for (int i = local; i < view_count(watchdog); i++) {
        view_get(watchdog, i, &view);
        if (!view.present || view.left)
            continue;
        if (ddpi_net_silence_ns(watchdog->opts.net, i - local) <= SILENCE_NS)
            return false;
        several |= first.present && strcmp(first.host, view.host) != 0;
        if (!first.present)
            first = view;
    }
    return several;
}

static ddp_status find_late_work(const ddpi_watchdog *watchdog, int64_t now_ns, message *m)
{
    pending_work work;
    char text[128];

    if (!oldest_pending(watchdog, &work) || now_ns < work.deadline_ns)
        return DDP_OK;
    if (hears_nobody(watchdog))
        append(m, "no other host is heard, is the link of this one cut? ");
    if (append_ranks(watchdog, &work, false, m) == 0 && append_ranks(watchdog, &work, true, m) == 0)
        append(m, "%s is not complete after %.1f s", describe(&work, text, sizeof text),
               seconds_since(work.submit_ns, now_ns));
    return DDP_ERR_TIMEOUT;
}

static void listen_to_nodes(ddpi_watchdog *watchdog)
{
    ddpi_net_cause cause;

    if (watchdog->opts.net == NULL)
        return;
    if (ddpi_net_poll(watchdog->opts.net, &cause))
        watchdog->opts.hear(watchdog->opts.fail_arg, &cause);
    atomic_store_explicit(&watchdog->hears_all, ddpi_net_hears_all(watchdog->opts.net),
                          memory_order_relaxed);
}

/* True once the communicator has failed and its owner knows. */
static bool look(ddpi_watchdog *watchdog)
{
    listen_to_nodes(watchdog);
    int64_t now_ns = ddp_now_ns();
    message m = {.used = 0};
    ddp_status status = find_cause(watchdog, now_ns, &m);
    bool recorded = status != DDP_OK;
    /* Who began a cause and died cannot print it either, so all the others do. */
    bool unfinished = recorded && m.used > 0;

    if (status == DDP_OK)
        status = find_death(watchdog, now_ns, &m);
    if (status == DDP_OK)
        status = find_departure(watchdog, &m);
    if (status == DDP_OK)
        status = find_late_work(watchdog, now_ns, &m);
    if (status == DDP_OK)
        return false;
    bool first = unfinished || (!recorded && ddpi_side_claim(watchdog->opts.side, m.text));
    /* Somebody was faster: its cause is the one to report, as soon as it can be read. */
    if (!recorded && !first)
        return false;
    watchdog->opts.fail(watchdog->opts.fail_arg, status, m.text, first);
    return true;
}

/* ---- the thread ---- */

static void *watch(void *arg)
{
    ddpi_watchdog *watchdog = arg;
    bool over = false;

    ddp_monitor_lock(&watchdog->monitor);
    while (!watchdog->stop && !over) {
        ddp_monitor_unlock(&watchdog->monitor);
        over = look(watchdog);
        int64_t next_ns = ddp_deadline_after_ms(watchdog->opts.interval_ms);
        ddp_monitor_lock(&watchdog->monitor);
        while (!watchdog->stop && ddp_monitor_wait(&watchdog->monitor, next_ns)) {
        }
    }
    ddp_monitor_unlock(&watchdog->monitor);
    return NULL;
}

ddp_status ddpi_watchdog_start(const ddpi_watchdog_opts *opts, ddpi_watchdog **watchdog_out)
{
    ddpi_watchdog *watchdog;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(watchdog, 1));
    watchdog->opts = *opts;
    if (watchdog->opts.interval_ms <= 0)
        watchdog->opts.interval_ms = DEFAULT_INTERVAL_MS;
    DDP_TRY_GOTO(st, ddp_monitor_init(&watchdog->monitor), err_free);
    DDP_TRY_GOTO(st, ddp_thread_start(&watchdog->thread, "ddp-watch", watch, watchdog),
                 err_monitor);
    *watchdog_out = watchdog;
    return DDP_OK;
err_monitor:
    ddp_monitor_destroy(&watchdog->monitor);
err_free:
    ddp_free(watchdog);
    return st;
}

bool ddpi_watchdog_sees(const ddpi_watchdog *watchdog, int world)
{
    return ddpi_side_count(watchdog->opts.side) == world ||
           atomic_load_explicit(&watchdog->hears_all, memory_order_relaxed);
}

void ddpi_watchdog_stop(ddpi_watchdog *watchdog)
{
    if (watchdog == NULL)
        return;
    ddp_monitor_lock(&watchdog->monitor);
    watchdog->stop = true;
    ddp_monitor_wake_all(&watchdog->monitor);
    ddp_monitor_unlock(&watchdog->monitor);
    ddp_thread_join(&watchdog->thread);
    ddp_monitor_destroy(&watchdog->monitor);
    ddp_free(watchdog);
}
