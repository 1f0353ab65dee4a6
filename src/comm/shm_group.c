/* shm_group.c - collectives among ranks that share memory, advanced by their callers.
 *
 * Ranks meet only through counters that grow: each rank has a record with the number of works that
 * it has entered, the last work whose own part it has done, and the pieces that it has put into and
 * taken out of slots. A condition is always "that rank's counter has reached this value", so a rank
 * may be far ahead without anybody resetting anything. Counters are stored after, and loaded
 * before, the plain data that they speak of; that is all the ordering there is, and no lock.
 *
 * Own parts are done in the order of the works (the counters would otherwise not be monotone);
 * waiting for the others' parts does not hold up later works. Works in windows: all entered, own
 * part, all done. Works through slots: per piece, fill the own slot (each rank has two halves, used
 * in turn, so the piece before the last must have been drained by all), wait for the others'
 * halves, take what is needed.
 *
 * Who has nothing to do sleeps on the record of the rank that it waits for; a rank that moves a
 * counter wakes only those that sleep on it, and makes no system call if nobody does. */
#include "comm/parts.h"
#include "comm/shm_group_impl.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

#define KIND_SHIFT 60

/* Rounds of ddpi_shm_idle(): pauses of the processor, then yields, then sleeps. */
#define SPIN_ROUNDS          1000
#define YIELD_ROUNDS         200
#define YIELD_ROUNDS_CROWDED 2
#define SLEEP_NS             1000000
#define CHECK_EVERY          64 /* rounds of spinning between looks at the clock */

size_t ddpi_shm_control_bytes(int n)
{
    return (size_t)n * sizeof(ddpi_shm_rank);
}

ddp_status ddpi_shm_group_create(const ddpi_shm_group_opts *opts, ddpi_shm_group **group_out)
{
    ddpi_shm_group *group;

    if (opts->n < 1 || opts->n > DDPI_REDUCE_MAX_SOURCES || opts->rank < 0 || opts->rank >= opts->n)
        return DDP_FAIL(DDP_ERR_USAGE, "rank %d of %d cannot share memory (at most %d ranks can)",
                        opts->rank, opts->n, DDPI_REDUCE_MAX_SOURCES);
    DDP_TRY(DDP_ALLOC(group, 1));
    ddp_status status = DDP_ALLOC(group->pointers, (size_t)opts->n + DDPI_REDUCE_MAX_SOURCES);
    if (status != DDP_OK) {
        ddp_free(group);
        return status;
    }
    group->opts = *opts;
    group->ranks = opts->control;
    group->own = &group->ranks[opts->rank];
    /* The first touch of a page is expensive. Nobody reads a slot that has not been filled. */
    memset(group->own->slot, 0, sizeof group->own->slot);
    group->crowded = opts->crowded || opts->n > sysconf(_SC_NPROCESSORS_ONLN);
    *group_out = group;
    return DDP_OK;
}

static void window_free(ddpi_shm_window *w)
{
    ddp_free(w->bases);
    ddp_free(w);
}

void ddpi_shm_group_destroy(ddpi_shm_group *group)
{
    if (group == NULL)
        return;
    while (group->windows != NULL) {
        ddpi_shm_window *next = group->windows->next;
        window_free(group->windows);
        group->windows = next;
    }
    ddp_free(group->pointers);
    ddp_free(group);
}

/* ---- windows ---- */

ddp_status ddpi_shm_window_add(ddpi_shm_group *group, void *const *bases, size_t bytes)
{
    ddpi_shm_window *w;

    DDP_TRY(DDP_ALLOC(w, 1));
    ddp_status status = DDP_ALLOC(w->bases, (size_t)group->opts.n);
    if (status != DDP_OK) {
        ddp_free(w);
        return status;
    }
    memcpy(w->bases, bases, (size_t)group->opts.n * sizeof *bases);
    w->bytes = bytes;
    w->id = ++group->next_window;
    w->next = group->windows;
    group->windows = w;
    return DDP_OK;
}

void ddpi_shm_window_remove(ddpi_shm_group *group, const void *own_base)
{
    for (ddpi_shm_window **at = &group->windows; *at != NULL; at = &(*at)->next) {
        ddpi_shm_window *w = *at;
        if (w->bases[group->opts.rank] != own_base)
            continue;
        *at = w->next;
        window_free(w);
        return;
    }
}

static const ddpi_shm_window *window_find(const ddpi_shm_group *group, const void *buf,
                                          size_t bytes, size_t *offset_out)
{
    uintptr_t lo = (uintptr_t)buf;

    for (const ddpi_shm_window *w = group->windows; w != NULL; w = w->next) {
        uintptr_t base = (uintptr_t)w->bases[group->opts.rank];
        if (lo < base || lo - base > w->bytes || w->bytes - (lo - base) < bytes)
            continue;
        *offset_out = lo - base;
        return w;
    }
    return NULL;
}

bool ddpi_shm_in_window(const ddpi_shm_group *group, const void *buf, size_t bytes)
{
    size_t offset;

    return window_find(group, buf, bytes, &offset) != NULL;
}

/* ---- counters ---- */

/* Sequentially consistent, like the sleepers' accesses: either the sleeper sees the new value, or
 * the waker sees the sleeper. */
void ddpi_shm_publish(ddpi_shm_group *group, _Atomic uint64_t *counter, uint64_t value)
{
    ddpi_shm_rank *own = group->own;

    atomic_store(counter, value);
    group->moves++;
    if (atomic_load(&own->sleepers) == 0)
        return;
    atomic_fetch_add(&own->bell, 1);
    syscall(SYS_futex, &own->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool ddpi_shm_reached(ddpi_shm_group *group, int rank, const _Atomic uint64_t *counter,
                      uint64_t value)
{
    if (atomic_load_explicit(counter, memory_order_acquire) >= value)
        return true;
    if (group->awaited == NULL) {
        group->awaited = counter;
        group->awaited_value = value;
        group->awaited_rank = rank;
    }
    return false;
}

bool ddpi_shm_all_reached(ddpi_shm_group *group, size_t field_offset, uint64_t value)
{
    /* Starting behind the own rank spreads the sleepers over the records. */
    for (int i = 1; i < group->opts.n; i++) {
        int rank = (group->opts.rank + i) % group->opts.n;
        const char *record = (const char *)&group->ranks[rank];
        const _Atomic uint64_t *counter = (const void *)(record + field_offset);
        if (!ddpi_shm_reached(group, rank, counter, value))
            return false;
    }
    return true;
}

/* ---- descriptions ---- */

bool ddpi_shm_is_reduction(ddp_coll_kind kind)
{
    return kind == DDP_COLL_REDUCE || kind == DDP_COLL_ALLREDUCE || kind == DDP_COLL_REDUCE_OWNED;
}

static const char *kind_name(uint64_t kind)
{
    static const char *const names[] = {
        [DDP_COLL_BARRIER] = "barrier",     [DDP_COLL_BROADCAST] = "broadcast",
        [DDP_COLL_REDUCE] = "reduce",       [DDP_COLL_ALLREDUCE] = "allreduce",
        [DDP_COLL_PUBLISH] = "publish",     [DDP_COLL_REDUCE_OWNED] = "reduce_owned",
        [DDP_COLL_ALLGATHER] = "allgather", [DDP_COLL_PING] = "ping",
    };
    return kind < sizeof names / sizeof *names ? names[kind] : "unknown work";
}

bool ddpi_shm_takes(const ddpi_shm_group *group, const ddp_coll *coll)
{
    if (coll->kind == DDP_COLL_PING)
        return false;
    if (ddpi_shm_is_reduction(coll->kind) && !ddpi_reduce_supports(coll->dtype, coll->op))
        return false;
    bool rooted = coll->kind == DDP_COLL_BROADCAST || coll->kind == DDP_COLL_REDUCE;
    return !rooted || (coll->root >= 0 && coll->root < group->opts.n);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

/* What must be equal on all ranks: the kind in the highest bits, a hash of the rest below. */
static uint64_t signature_of(const ddpi_shm_flight *f, const ddp_coll *coll)
{
    bool rooted = coll->kind == DDP_COLL_BROADCAST || coll->kind == DDP_COLL_REDUCE;
    uint64_t hash = mix((uint64_t)coll->dtype, coll->count);

    hash = mix(hash, ddpi_shm_is_reduction(coll->kind) ? (uint64_t)coll->op : 0);
    hash = mix(hash, rooted ? (uint64_t)coll->root : 0);
    hash = mix(hash, f->window != NULL ? f->window->id : 0);
    hash = mix(hash, f->offset);
    hash = mix(mix(mix(hash, (uint64_t)coll->shards), coll->part_stride), coll->unit);
    return (uint64_t)coll->kind << KIND_SHIFT | hash >> (64 - KIND_SHIFT);
}

static ddp_status check_signatures(const ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;

    for (int i = 0; i < group->opts.n; i++) {
        uint64_t theirs = atomic_load_explicit(
            &group->ranks[i].signature[f->number % DDPI_SHM_SIGNATURES], memory_order_relaxed);
        if (theirs == f->signature)
            continue;
        uint64_t kind = theirs >> KIND_SHIFT;
        if (kind != (uint64_t)coll->kind)
            return DDP_FAIL(
                DDP_ERR_MISMATCH,
                "ranks %d and %d of the node differ: one is in %s (%s), the other in %s",
                group->opts.rank, i, kind_name((uint64_t)coll->kind), coll->what, kind_name(kind));
        return DDP_FAIL(DDP_ERR_MISMATCH,
                        "ranks %d and %d of the node differ: %s (%s) of %zu %s has another count, "
                        "type, operation, root or place in its window on the other",
                        group->opts.rank, i, kind_name(kind), coll->what, coll->count,
                        ddp_dtype_name(coll->dtype));
    }
    return DDP_OK;
}

static void describe(ddpi_shm_group *group, ddpi_shm_flight *f, ddp_work *work)
{
    const ddp_coll *coll = &work->coll;
    size_t piece_bytes = coll->count * ddp_dtype_bytes(coll->dtype);

    *f = (ddpi_shm_flight){.work = work, .number = group->started + 1, .bytes = piece_bytes};
    f->first_piece = group->pieces;
    if (coll->kind == DDP_COLL_BARRIER || group->opts.n == 1) {
        f->path = DDPI_PATH_LOCAL;
        return;
    }
    if (coll->kind != DDP_COLL_ALLGATHER)
        f->window =
            window_find(group, coll->buf, ddpi_parts_bytes(coll, group->opts.n), &f->offset);
    if (f->window != NULL) {
        f->path = DDPI_PATH_WINDOW;
        return;
    }
    f->path = DDPI_PATH_SLOTS;
    if (coll->kind == DDP_COLL_PUBLISH)
        piece_bytes = ddpi_reduce_slice(coll->count, coll->dtype, coll->unit, group->opts.n, 0).hi *
                      ddp_dtype_bytes(coll->dtype);
    f->pieces = (piece_bytes + DDPI_SHM_SLOT_BYTES - 1) / DDPI_SHM_SLOT_BYTES;
}

ddp_status ddpi_shm_start(ddpi_shm_group *group, ddp_work *work)
{
    if (group->failed || group->abandoned)
        return DDP_FAIL(DDP_ERR_COMM, "the node's shared-memory group has failed before");
    if (!ddpi_shm_takes(group, &work->coll))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "no %s of %s with root %d in shared memory",
                        kind_name((uint64_t)work->coll.kind), ddp_dtype_name(work->coll.dtype),
                        work->coll.root);
    if (group->count == DDPI_SHM_MAX_INFLIGHT)
        return DDP_FAIL(DDP_ERR_USAGE, "%d works are in flight already", DDPI_SHM_MAX_INFLIGHT);
    ddpi_shm_flight *f = &group->flights[(group->head + group->count) % DDPI_SHM_MAX_INFLIGHT];
    describe(group, f, work);
    f->signature = signature_of(f, &work->coll);
    group->started++;
    group->count++;
    group->pieces += f->pieces;
    atomic_store_explicit(&group->own->signature[f->number % DDPI_SHM_SIGNATURES], f->signature,
                          memory_order_relaxed);
    ddpi_shm_publish(group, &group->own->entered, f->number);
    return DDP_OK;
}

/* ---- progress ---- */

static ddp_status try_enter(ddpi_shm_group *group, ddpi_shm_flight *f)
{
    if (f->all_entered || !DDPI_ALL_REACHED(group, entered, f->number))
        return DDP_OK;
    DDP_TRY(check_signatures(group, f));
    f->all_entered = true;
    f->work->start_ns = ddp_now_ns();
    group->moves++;
    return DDP_OK;
}

static void local_part(const ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;

    if (group->opts.n == 1 && coll->kind == DDP_COLL_ALLGATHER && coll->src != coll->buf)
        memcpy(coll->buf, coll->src, f->bytes);
}

/* Does as much of the own part as is possible; f->own_done says whether all of it is done. */
static ddp_status try_own_part(ddpi_shm_group *group, ddpi_shm_flight *f)
{
    if (f->path == DDPI_PATH_SLOTS && f->filled == f->drained && f->filled < f->pieces)
        (void)ddpi_shm_try_fill(group, f);
    DDP_TRY(try_enter(group, f));
    if (!f->all_entered)
        return DDP_OK;
    if (f->path == DDPI_PATH_LOCAL)
        local_part(group, f);
    else if (f->path == DDPI_PATH_WINDOW)
        ddpi_shm_window_part(group, f);
    while (f->drained < f->pieces) {
        /* One piece ahead: the others may drain it while this rank drains the one before. */
        while (f->filled < f->pieces && f->filled < f->drained + 2 && ddpi_shm_try_fill(group, f)) {
        }
        if (f->filled == f->drained || !ddpi_shm_try_drain(group, f))
            return DDP_OK;
    }
    f->own_done = true;
    return DDP_OK;
}

static ddp_range owned_of(const ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;

    if (f->path == DDPI_PATH_WINDOW && coll->kind == DDP_COLL_REDUCE_OWNED)
        return ddpi_shm_own_slice(group, coll);
    return (ddp_range){0, coll->count};
}

static void complete(ddpi_shm_group *group, ddpi_shm_flight *f, ddp_status status)
{
    ddp_work *work = f->work;

    work->owned = owned_of(group, f);
    if (f->path == DDPI_PATH_WINDOW && work->coll.kind == DDP_COLL_REDUCE_OWNED)
        work->counts = true;
    f->work = NULL;
    group->moves++;
    group->opts.complete(group->opts.complete_arg, work, status);
}

static void drop_completed(ddpi_shm_group *group)
{
    while (group->count > 0 && group->flights[group->head].work == NULL) {
        group->head = (group->head + 1) % DDPI_SHM_MAX_INFLIGHT;
        group->count--;
    }
}

static ddp_status advance(ddpi_shm_group *group)
{
    ddp_status status = DDP_OK;

    group->awaited = NULL;
    for (unsigned i = 0; i < group->count && status == DDP_OK; i++) {
        ddpi_shm_flight *f = &group->flights[(group->head + i) % DDPI_SHM_MAX_INFLIGHT];
        if (f->work == NULL)
            continue;
        if (!f->own_done)
            status = try_own_part(group, f);
        if (status == DDP_OK && !f->own_done)
            break;
        /* In a window the others may still read this rank's buffer, or write into it. */
        if (status == DDP_OK && f->path == DDPI_PATH_WINDOW &&
            !DDPI_ALL_REACHED(group, done, f->number))
            continue;
        group->failed = status != DDP_OK;
        complete(group, f, status);
    }
    drop_completed(group);
    return status;
}

static bool is_inflight(const ddpi_shm_group *group, const ddp_work *work)
{
    for (unsigned i = 0; i < group->count; i++) {
        if (group->flights[(group->head + i) % DDPI_SHM_MAX_INFLIGHT].work == work)
            return true;
    }
    return false;
}

ddp_status ddpi_shm_poll(ddpi_shm_group *group, ddp_work *work, bool *done_out)
{
    if (group->failed || group->abandoned)
        return DDP_FAIL(DDP_ERR_COMM, "the node's shared-memory group has failed before");
    ddp_status status = advance(group);
    *done_out = !is_inflight(group, work);
    return status;
}

int ddpi_shm_inflight(const ddpi_shm_group *group)
{
    return (int)group->count;
}

void ddpi_shm_abandon(ddpi_shm_group *group)
{
    group->abandoned = true;
    group->count = 0;
    group->awaited = NULL;
}

/* ---- waiting ---- */

static void pause_processor(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps until the awaited rank moves one of its counters, or SLEEP_NS. */
static void sleep_on_awaited(ddpi_shm_group *group)
{
    const struct timespec limit = {.tv_nsec = SLEEP_NS};

    if (group->awaited == NULL)
        return;
    ddpi_shm_rank *record = &group->ranks[group->awaited_rank];
    atomic_fetch_add(&record->sleepers, 1);
    uint32_t bell = atomic_load(&record->bell);
    if (atomic_load(group->awaited) < group->awaited_value)
        syscall(SYS_futex, &record->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    atomic_fetch_sub(&record->sleepers, 1);
}

/* True if it slept, or could have. */
static bool idle(ddpi_shm_group *group, unsigned *round)
{
    unsigned spins = group->crowded ? 0 : SPIN_ROUNDS;
    unsigned yields = group->crowded ? YIELD_ROUNDS_CROWDED : YIELD_ROUNDS;
    unsigned now = *round;

    if (now < spins + yields) {
        ++*round;
        if (now < spins)
            pause_processor();
        else
            sched_yield();
        return false;
    }
    sleep_on_awaited(group);
    return true;
}

void ddpi_shm_idle(ddpi_shm_group *group, unsigned *round)
{
    (void)idle(group, round);
}

ddp_status ddpi_shm_wait(ddpi_shm_group *group, ddp_work *work, int64_t deadline_ns,
                         bool (*stopped)(void *arg), void *arg)
{
    unsigned round = 0;

    for (unsigned turn = 1;; turn++) {
        bool done;
        uint64_t moves = group->moves;
        DDP_TRY(ddpi_shm_poll(group, work, &done));
        if (done)
            return DDP_OK;
        if (group->moves != moves)
            round = 0;
        if (!idle(group, &round) && turn % CHECK_EVERY != 0)
            continue;
        if (stopped != NULL && stopped(arg))
            return DDP_FAIL(DDP_ERR_COMM, "the communicator has failed");
        if (ddp_now_ns() >= deadline_ns)
            return DDP_FAIL(DDP_ERR_TIMEOUT, "the deadline has passed");
    }
}
