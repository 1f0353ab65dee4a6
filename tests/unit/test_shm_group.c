/* test_shm_group.c - the shared-memory group with ranks as threads: every kind of collective inside
 * and outside windows, compared bit for bit with a scalar reduction in the documented order. */
#include "harness.h"

#include <pthread.h>
#include <time.h>

#include "comm/shm_group.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "reduce_reference.h"

#define WORLD_MAX    8
#define WINDOW_BYTES ((size_t)1 << 20)
#define BUCKETS      16
#define ROUNDS       12

typedef struct world world;

typedef struct member {
    world *world;
    int rank;
    pthread_t thread;
    ddpi_shm_group *group;
    uint64_t random;
    int completed;
    ddp_status last;
    char message[256];
    int failures;
} member;

struct world {
    int n;
    void *control;
    char *windows[WORLD_MAX];
    void (*body)(member *m);
    bool jitter;
    pthread_barrier_t barrier;
    member members[WORLD_MAX];
};

/* cmocka's checks jump, which a thread must not do across another's stack. */
#define EXPECT(m, expr)                                                                            \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "rank %d of %d, line %d: %s\n", (m)->rank, (m)->world->n, __LINE__,    \
                    #expr);                                                                        \
            (m)->failures++;                                                                       \
        }                                                                                          \
    } while (0)

static void jitter(member *m)
{
    if (m->world->jitter && next_random(&m->random) % 4 == 0)
        ddp_sleep_ns((int64_t)(next_random(&m->random) % 300000));
}

static void on_complete(void *arg, ddp_work *work, ddp_status status)
{
    member *m = arg;

    m->completed++;
    m->last = status;
    snprintf(m->message, sizeof m->message, "%s", ddp_status_message());
    work->status = status;
}

static void *member_main(void *arg)
{
    member *m = arg;
    world *w = m->world;
    ddpi_shm_group_opts opts = {.n = w->n,
                                .rank = m->rank,
                                .control = w->control,
                                .complete = on_complete,
                                .complete_arg = m};

    EXPECT(m, ddpi_shm_group_create(&opts, &m->group) == DDP_OK);
    EXPECT(m, ddpi_shm_window_add(m->group, (void *const *)w->windows, WINDOW_BYTES) == DDP_OK);
    pthread_barrier_wait(&w->barrier);
    w->body(m);
    pthread_barrier_wait(&w->barrier);
    ddpi_shm_group_destroy(m->group);
    return NULL;
}

static int run_world_once(int n, bool with_jitter, void (*body)(member *m))
{
    world *w;
    int failures = 0;

    CHECK_OK(DDP_ALLOC(w, 1));
    w->n = n;
    w->body = body;
    w->jitter = with_jitter;
    CHECK_OK(ddp_alloc_bytes(1, ddpi_shm_control_bytes(n), &w->control));
    pthread_barrier_init(&w->barrier, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        void *memory;
        CHECK_OK(ddp_alloc_bytes(1, WINDOW_BYTES, &memory));
        w->windows[r] = memory;
    }
    for (int r = 0; r < n; r++) {
        w->members[r] = (member){.world = w, .rank = r, .random = (uint64_t)(r + 1) * 7919};
        assert_int_equal(pthread_create(&w->members[r].thread, NULL, member_main, &w->members[r]),
                         0);
    }
    for (int r = 0; r < n; r++) {
        pthread_join(w->members[r].thread, NULL);
        failures += w->members[r].failures;
    }
    for (int r = 0; r < n; r++)
        ddp_free(w->windows[r]);
    pthread_barrier_destroy(&w->barrier);
    ddp_free(w->control);
    ddp_free(w);
    return failures;
}

static void run_worlds(bool with_jitter, void (*body)(member *m))
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        assert_int_equal(run_world_once(worlds[i], with_jitter, body), 0);
}

static void wait_for(member *m, ddp_work *work)
{
    EXPECT(m, ddpi_shm_wait(m->group, work, ddp_deadline_after_ms(60000), NULL, NULL) == DDP_OK);
    EXPECT(m, work->status == DDP_OK);
}

static void start(member *m, ddp_work *work, ddp_coll coll)
{
    *work = (ddp_work){.coll = coll, .status = DDP_ERR_INTERNAL};
    EXPECT(m, ddpi_shm_start(m->group, work) == DDP_OK);
}

static void collect(member *m, ddp_coll coll, ddp_range *owned_out)
{
    ddp_work work;

    jitter(m);
    start(m, &work, coll);
    jitter(m);
    wait_for(m, &work);
    if (owned_out != NULL)
        *owned_out = work.owned;
}

static const size_t lengths[] = {0, 1, 5, 63, 1000, 4099, 20011};
#define LENGTH_COUNT (sizeof lengths / sizeof *lengths)

/* A buffer at an odd place of the own window, or private memory. */
static void *buffer_for(member *m, bool in_window, void *private_memory)
{
    return in_window ? m->world->windows[m->rank] + 8 * 13 : private_memory;
}

static void reductions_at(member *m, ddp_coll coll)
{
    int n = m->world->n;
    ddp_range owned, all = {0, coll.count};
    bool in_window = ddpi_shm_in_window(m->group, coll.buf, 1);

    coll.kind = DDP_COLL_ALLREDUCE;
    fill(coll, m->rank, 1);
    collect(m, coll, &owned);
    EXPECT(m, owned.lo == 0 && owned.hi == coll.count);
    EXPECT(m, wrong_reduced(coll, n, all, 1) == 0);

    coll.kind = DDP_COLL_REDUCE;
    coll.root = n - 1;
    fill(coll, m->rank, 2);
    collect(m, coll, NULL);
    if (m->rank == coll.root)
        EXPECT(m, wrong_reduced(coll, n, all, 2) == 0);

    coll.kind = DDP_COLL_REDUCE_OWNED;
    fill(coll, m->rank, 3);
    collect(m, coll, &owned);
    ddp_range slice = ddpi_reduce_slice(coll.count, coll.dtype, coll.unit, n, m->rank);
    if (in_window && n > 1)
        EXPECT(m, owned.lo == slice.lo && owned.hi == slice.hi);
    else
        EXPECT(m, owned.lo == 0 && owned.hi == coll.count);
    EXPECT(m, wrong_reduced(coll, n, owned, 3) == 0);

    coll.kind = DDP_COLL_PUBLISH;
    collect(m, coll, NULL);
    EXPECT(m, wrong_reduced(coll, n, all, 3) == 0);
}

static void check_reductions(member *m)
{
    static const ddp_dtype dtypes[] = {DDP_F32, DDP_F64, DDP_I32, DDP_I64, DDP_U64};
    void *memory;

    EXPECT(m, ddp_alloc_bytes(1, WINDOW_BYTES, &memory) == DDP_OK);
    for (size_t l = 0; l < LENGTH_COUNT; l++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            ddp_coll coll = {.dtype = dtypes[t], .count = lengths[l], .what = "values"};
            coll.op = (ddp_reduce_op)((l + t) % 3);
            coll.buf = buffer_for(m, true, memory);
            reductions_at(m, coll);
            coll.buf = buffer_for(m, false, memory);
            reductions_at(m, coll);
        }
    }
    ddp_free(memory);
}

static void test_reductions(void **state)
{
    (void)state;
    run_worlds(false, check_reductions);
}

static void copies_at(member *m, bool in_window, size_t count, void *memory, ddp_dtype dtype)
{
    int n = m->world->n;
    ddp_coll coll = {.kind = DDP_COLL_BROADCAST, .dtype = dtype, .count = count, .what = "copy"};

    for (coll.root = 0; coll.root < n; coll.root++) {
        coll.buf = buffer_for(m, in_window, memory);
        fill(coll, m->rank, 4);
        collect(m, coll, NULL);
        EXPECT(m, wrong_copied(coll.buf, dtype, (ddp_range){0, count}, coll.root, 4) == 0);
    }
    /* Parts of parameters that each rank has updated. */
    coll.kind = DDP_COLL_PUBLISH;
    fill(coll, m->rank, 5);
    collect(m, coll, NULL);
    for (int r = 0; r < n; r++) {
        ddp_range slice = ddpi_reduce_slice(count, dtype, 0, n, r);
        EXPECT(m, wrong_copied(coll.buf, dtype, slice, r, 5) == 0);
    }
}

static void check_copies(member *m)
{
    void *memory, *all;
    int n = m->world->n;

    EXPECT(m, ddp_alloc_bytes(1, WINDOW_BYTES, &memory) == DDP_OK);
    EXPECT(m, ddp_alloc_bytes((size_t)n, WINDOW_BYTES, &all) == DDP_OK);
    for (size_t l = 0; l < LENGTH_COUNT; l++) {
        ddp_dtype dtype = l % 2 == 0 ? DDP_U8 : DDP_F64;
        copies_at(m, true, lengths[l], memory, dtype);
        copies_at(m, false, lengths[l], memory, dtype);
        ddp_coll coll = {.kind = DDP_COLL_ALLGATHER, .dtype = dtype, .count = lengths[l]};
        coll.what = "all";
        coll.buf = memory;
        fill(coll, m->rank, 6);
        coll.src = memory;
        coll.buf = all;
        collect(m, coll, NULL);
        for (int r = 0; r < n; r++) {
            const char *part = (const char *)all + (size_t)r * coll.count * ddp_dtype_bytes(dtype);
            EXPECT(m, wrong_copied(part, dtype, (ddp_range){0, coll.count}, r, 6) == 0);
        }
    }
    ddp_free(all);
    ddp_free(memory);
}

static void test_copies(void **state)
{
    (void)state;
    run_worlds(false, check_copies);
}

/* A word at the end of a rank's window, which no bucket reaches. */
static int *mark_of(member *m, int rank)
{
    return (int *)(void *)(m->world->windows[rank] + WINDOW_BYTES - sizeof(int));
}

/* Buckets in flight together, small works between them, waits in another order, ranks at random
 * speeds; and what a rank wrote before a barrier is what another reads behind it. */
static void check_pipeline(member *m)
{
    static const size_t bucket_count = 2501;
    int n = m->world->n;

    for (int round = 0; round < ROUNDS; round++) {
        ddp_work buckets[BUCKETS], flag_work, barrier;
        ddp_coll coll = {.dtype = DDP_F32, .count = bucket_count, .what = "gradients"};
        int32_t flag = m->rank == round % n ? 1 : 0;
        for (int b = 0; b < BUCKETS; b++) {
            coll.kind = b % 3 == 0 ? DDP_COLL_REDUCE_OWNED : DDP_COLL_ALLREDUCE;
            coll.bucket = b;
            coll.buf = (float *)(void *)m->world->windows[m->rank] + (size_t)b * bucket_count;
            fill(coll, m->rank, round * BUCKETS + b);
            start(m, &buckets[b], coll);
            jitter(m);
            bool done;
            if (b % 5 == 4)
                EXPECT(m, ddpi_shm_poll(m->group, &buckets[b - 1], &done) == DDP_OK);
        }
        start(m, &flag_work,
              (ddp_coll){.kind = DDP_COLL_ALLREDUCE,
                         .dtype = DDP_I32,
                         .op = DDP_REDUCE_MAX,
                         .buf = &flag,
                         .count = 1,
                         .what = "flag"});
        wait_for(m, &flag_work);
        EXPECT(m, flag == 1);
        for (int i = 0; i < BUCKETS; i++) {
            ddp_work *work = &buckets[round % 2 == 0 ? i : BUCKETS - 1 - i];
            wait_for(m, work);
            EXPECT(m, wrong_reduced(work->coll, n, work->owned,
                                    round * BUCKETS + work->coll.bucket) == 0);
        }
        EXPECT(m, ddpi_shm_inflight(m->group) == 0);
        *mark_of(m, m->rank) = round;
        start(m, &barrier, (ddp_coll){.kind = DDP_COLL_BARRIER, .what = "barrier"});
        wait_for(m, &barrier);
        for (int r = 0; r < n; r++)
            EXPECT(m, *mark_of(m, r) == round);
        start(m, &barrier, (ddp_coll){.kind = DDP_COLL_BARRIER, .what = "barrier"});
        wait_for(m, &barrier);
    }
    EXPECT(m, m->completed == ROUNDS * (BUCKETS + 3));
}

static void test_pipeline(void **state)
{
    (void)state;
    run_worlds(false, check_pipeline);
    run_worlds(true, check_pipeline);
}

/* Random kinds in one order on all ranks, each at its own pace. */
static void check_mixture(member *m)
{
    uint64_t random = 4242;
    void *memory;

    EXPECT(m, ddp_alloc_bytes(1, WINDOW_BYTES, &memory) == DDP_OK);
    for (int i = 0; i < 60; i++) {
        bool in_window = next_random(&random) % 2 == 0;
        size_t count = next_random(&random) % 9000;
        ddp_coll coll = {
            .kind = DDP_COLL_ALLREDUCE, .dtype = DDP_F32, .count = count, .what = "mixture"};
        coll.buf = buffer_for(m, in_window, memory);
        switch (next_random(&random) % 3) {
        case 0:
            fill(coll, m->rank, i);
            collect(m, coll, NULL);
            EXPECT(m, wrong_reduced(coll, m->world->n, (ddp_range){0, count}, i) == 0);
            break;
        case 1:
            collect(m, (ddp_coll){.kind = DDP_COLL_BARRIER, .what = "barrier"}, NULL);
            break;
        default:
            copies_at(m, in_window, count, memory, DDP_F32);
        }
    }
    ddp_free(memory);
}

static void test_mixture(void **state)
{
    (void)state;
    run_worlds(true, check_mixture);
}

/* Rank 1 calls something else: every rank is told, none hangs. */
static void check_other_kind(member *m)
{
    int32_t value = 1;
    ddp_work work;
    ddp_coll coll = {
        .kind = DDP_COLL_ALLREDUCE, .dtype = DDP_I32, .buf = &value, .count = 1, .what = "flag"};

    if (m->rank == 1)
        coll.kind = DDP_COLL_BROADCAST;
    start(m, &work, coll);
    EXPECT(m, ddpi_shm_wait(m->group, &work, ddp_deadline_after_ms(20000), NULL, NULL) ==
                  DDP_ERR_MISMATCH);
    EXPECT(m, m->last == DDP_ERR_MISMATCH);
    EXPECT(m, strstr(m->message, "broadcast") != NULL && strstr(m->message, "allreduce") != NULL);
    EXPECT(m, ddpi_shm_start(m->group, &work) == DDP_ERR_COMM);
}

static void check_other_count(member *m)
{
    int32_t values[2] = {1, 2};
    ddp_work work;

    start(m, &work,
          (ddp_coll){.kind = DDP_COLL_ALLREDUCE,
                     .dtype = DDP_I32,
                     .buf = values,
                     .count = m->rank == 0 ? 1 : 2,
                     .what = "flag"});
    EXPECT(m, ddpi_shm_wait(m->group, &work, ddp_deadline_after_ms(20000), NULL, NULL) ==
                  DDP_ERR_MISMATCH);
    EXPECT(m, strstr(m->message, "count") != NULL);
}

static void test_mismatch(void **state)
{
    (void)state;
    assert_int_equal(run_world_once(2, false, check_other_kind), 0);
    assert_int_equal(run_world_once(4, true, check_other_kind), 0);
    assert_int_equal(run_world_once(2, false, check_other_count), 0);
}

static bool stop_now(void *arg)
{
    return *(bool *)arg;
}

/* A rank that never comes: waits end at their deadline or when told to, and take little time of the
 * processor. */
static void check_absent_peer(member *m)
{
    ddp_work work;
    bool stop = true, done;
    struct timespec cpu;

    if (m->rank != 0)
        return;
    start(m, &work, (ddp_coll){.kind = DDP_COLL_BARRIER, .what = "barrier"});
    int64_t begin = ddp_now_ns();
    EXPECT(m, ddpi_shm_wait(m->group, &work, ddp_deadline_after_ms(300), NULL, NULL) ==
                  DDP_ERR_TIMEOUT);
    int64_t waited = ddp_now_ns() - begin;
    EXPECT(m, waited >= 299000000 && waited < 20000000000);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    EXPECT(m, cpu.tv_sec == 0 && cpu.tv_nsec < 60000000);
    EXPECT(m, ddpi_shm_wait(m->group, &work, DDP_NO_DEADLINE, stop_now, &stop) == DDP_ERR_COMM);
    EXPECT(m, ddpi_shm_inflight(m->group) == 1);
    EXPECT(m, ddpi_shm_poll(m->group, &work, &done) == DDP_OK && !done);
    ddpi_shm_abandon(m->group);
    EXPECT(m, ddpi_shm_inflight(m->group) == 0);
}

static void test_absent_peer(void **state)
{
    (void)state;
    assert_int_equal(run_world_once(3, false, check_absent_peer), 0);
}

static void check_limits(member *m)
{
    ddp_work works[DDPI_SHM_MAX_INFLIGHT + 1];
    uint8_t byte = 0;
    ddp_coll barrier = {.kind = DDP_COLL_BARRIER, .what = "barrier"};

    for (int i = 0; i < DDPI_SHM_MAX_INFLIGHT; i++)
        start(m, &works[i], barrier);
    works[DDPI_SHM_MAX_INFLIGHT] = (ddp_work){.coll = barrier};
    EXPECT(m, ddpi_shm_start(m->group, &works[DDPI_SHM_MAX_INFLIGHT]) == DDP_ERR_USAGE);
    for (int i = 0; i < DDPI_SHM_MAX_INFLIGHT; i++)
        wait_for(m, &works[i]);
    works[0] = (ddp_work){.coll = {.kind = DDP_COLL_ALLREDUCE, .dtype = DDP_U8, .buf = &byte}};
    EXPECT(m, ddpi_shm_start(m->group, &works[0]) == DDP_ERR_UNSUPPORTED);
    works[0] = (ddp_work){.coll = {.kind = DDP_COLL_BROADCAST, .root = m->world->n, .buf = &byte}};
    EXPECT(m, ddpi_shm_start(m->group, &works[0]) == DDP_ERR_UNSUPPORTED);
    const char *base = m->world->windows[m->rank];
    EXPECT(m, ddpi_shm_in_window(m->group, base, WINDOW_BYTES));
    EXPECT(m, !ddpi_shm_in_window(m->group, base + 1, WINDOW_BYTES));
    ddpi_shm_window_remove(m->group, base);
    EXPECT(m, !ddpi_shm_in_window(m->group, base, 1));
}

static void test_limits(void **state)
{
    (void)state;
    assert_int_equal(run_world_once(2, false, check_limits), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_copies),
        cmocka_unit_test(test_pipeline),   cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_mismatch),   cmocka_unit_test(test_absent_peer),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
