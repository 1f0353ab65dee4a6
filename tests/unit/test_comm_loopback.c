/* Collectives of the loopback communicator: all of them, by all algorithms, on worlds of 1 to 8
 * ranks, exactly; under delays, reordering, loss and death. */
#include "harness.h"

#include "comm_checks.h"
#include "loopback_ranks.h"

static const size_t lengths[] = {0, 1, 7, 1000, 100003};
static const int worlds[] = {1, 2, 3, 4, 5, 8};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- ranks that each have their own verdict ---- */

typedef struct verdict {
    ddp_status status;
    int64_t ns;
    char message[512];
} verdict;

typedef struct job {
    ddp_status (*body)(ddp_comm *comm, size_t count);
    size_t count;
    verdict verdicts[8];
} job;

typedef struct job_thread {
    ddp_thread thread;
    ddp_comm *comm;
    job *job;
} job_thread;

static void *job_main(void *arg)
{
    job_thread *t = arg;
    verdict *v = &t->job->verdicts[ddp_comm_rank(t->comm)];
    ddp_rank_ctx ctx = {
        .rank = ddp_comm_rank(t->comm), .world = ddp_comm_world(t->comm), .host = "test"};
    ddp_rank_ctx_set(&ctx);
    int64_t start = ddp_now_ns();
    v->status = t->job->body(t->comm, t->job->count);
    v->ns = ddp_now_ns() - start;
    if (v->status != DDP_OK)
        snprintf(v->message, sizeof v->message, "%s", ddp_status_message());
    ddp_comm_close(t->comm);
    return NULL;
}

static void run_job(const ddp_comm_opts *opts, int world, const ddp_loopback_faults *faults, job *j)
{
    ddp_comm *comms[8];
    job_thread threads[8] = {0};
    CHECK_OK(ddp_comm_loopback_open(opts, world, faults, comms));
    for (int r = 0; r < world; r++) {
        threads[r] = (job_thread){.comm = comms[r], .job = j};
        CHECK_OK(ddp_thread_start(&threads[r].thread, "rank", job_main, &threads[r]));
    }
    for (int r = 0; r < world; r++)
        ddp_thread_join(&threads[r].thread);
}

static void expect_ok(const job *j, int world)
{
    for (int r = 0; r < world; r++)
        if (j->verdicts[r].status != DDP_OK)
            fail_msg("world %d, rank %d: %s: %s", world, r, ddp_status_name(j->verdicts[r].status),
                     j->verdicts[r].message);
}

static ddp_comm_opts options(ddp_allreduce_algo algo, bool shared)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.allreduce = algo;
    opts.shared_memory = shared;
    opts.timeout_ms = 60000;
    opts.exit_on_failure = false;
    return opts;
}

static const ddp_loopback_faults no_faults = DDP_LOOPBACK_FAULTS_NONE;

/* ---- what the ranks do ---- */

static ddp_status with_memory(ddp_comm *comm, size_t count, bool window,
                              ddp_status (*body)(ddp_comm *comm, void *memory, size_t count))
{
    size_t bytes = (count * 8 + 64) * (size_t)ddp_comm_world(comm);
    void *memory = NULL;
    if (window)
        DDP_TRY(ddp_comm_mem_alloc(comm, bytes, &memory));
    else
        DDP_TRY(ddp_alloc_bytes(bytes, 1, &memory));
    ddp_status st = body(comm, memory, count);
    if (window)
        ddp_comm_mem_free(comm, memory);
    else
        ddp_free(memory);
    return st;
}

static ddp_status everything(ddp_comm *comm, size_t count)
{
    (void)count;
    for (int window = 0; window < 2; window++)
        for (size_t i = 0; i < COUNT_OF(lengths); i++)
            DDP_TRY(with_memory(comm, lengths[i], window != 0, check_all));
    return with_memory(comm, 1003, false, check_types);
}

static ddp_status many_body(ddp_comm *comm, void *memory, size_t count)
{
    for (int i = 0; i < 20; i++)
        DDP_TRY(check_many(comm, memory, count));
    return DDP_OK;
}

static ddp_status many(ddp_comm *comm, size_t count)
{
    DDP_TRY(with_memory(comm, count, true, many_body));
    return with_memory(comm, count, false, many_body);
}

/* ---- correct results ---- */

static void run_everything(ddp_allreduce_algo algo, bool shared)
{
    ddp_comm_opts opts = options(algo, shared);
    for (size_t i = 0; i < COUNT_OF(worlds); i++) {
        job j = {.body = everything};
        run_job(&opts, worlds[i], &no_faults, &j);
        expect_ok(&j, worlds[i]);
    }
}

static void shared_memory_gives_exact_results(void **state)
{
    (void)state;
    run_everything(DDP_ALLREDUCE_AUTO, true);
    run_everything(DDP_ALLREDUCE_SHM, true);
}

static void messages_give_exact_results(void **state)
{
    (void)state;
    run_everything(DDP_ALLREDUCE_AUTO, false);
}

static void each_algorithm_gives_exact_results(void **state)
{
    (void)state;
    run_everything(DDP_ALLREDUCE_ROOT, true);
    run_everything(DDP_ALLREDUCE_RING, true);
    run_everything(DDP_ALLREDUCE_TREE, false);
    run_everything(DDP_ALLREDUCE_RHD, true);
}

/* Bytes that this rank sends for one sum of count f32 in a window. */
static ddp_status send_sum(ddp_comm *comm, float *window, size_t count, uint64_t *bytes_out)
{
    DDP_TRY(ddp_comm_barrier(comm));
    uint64_t before = ddp_comm_bytes_sent(comm);
    DDP_TRY(ddp_comm_allreduce(comm, window, count, DDP_F32, DDP_REDUCE_SUM, "test"));
    *bytes_out = ddp_comm_bytes_sent(comm) - before;
    return DDP_OK;
}

/* A ring's and a root's ranks send different numbers of bytes, and through shared memory goes none.
 */
static ddp_status change_algorithms(ddp_comm *comm, size_t count)
{
    const int world = ddp_comm_world(comm), rank = ddp_comm_rank(comm);
    const uint64_t bytes = count * sizeof(float);
    uint64_t by_shm, by_ring, by_root;
    void *window;
    DDP_TRY(ddp_comm_mem_alloc(comm, bytes, &window));
    DDP_TRY(send_sum(comm, window, count, &by_shm));
    DDP_TRY(ddp_comm_set_allreduce(comm, DDP_ALLREDUCE_RING));
    DDP_TRY(send_sum(comm, window, count, &by_ring));
    DDP_TRY(ddp_comm_set_allreduce(comm, DDP_ALLREDUCE_ROOT));
    DDP_TRY(send_sum(comm, window, count, &by_root));
    DDP_TRY(ddp_comm_barrier(comm));
    bool fine = by_shm == 0 && by_ring == 2 * bytes * (uint64_t)(world - 1) / (uint64_t)world &&
                by_root == (rank == 0 ? bytes * (uint64_t)(world - 1) : bytes);
    if (ddp_comm_set_allreduce(comm, DDP_ALLREDUCE_MPI) != DDP_ERR_UNSUPPORTED)
        fine = false;
    ddp_comm_mem_free(comm, window);
    return fine ? DDP_OK
                : DDP_FAIL(DDP_ERR_INTERNAL, "sent %llu, %llu, %llu", (unsigned long long)by_shm,
                           (unsigned long long)by_ring, (unsigned long long)by_root);
}

static ddp_status refuse_shm(ddp_comm *comm, size_t count)
{
    (void)count;
    if (ddp_comm_set_allreduce(comm, DDP_ALLREDUCE_SHM) != DDP_ERR_UNSUPPORTED)
        return DDP_FAIL(DDP_ERR_INTERNAL, "shm was taken without shared memory");
    return ddp_comm_barrier(comm);
}

static void algorithm_can_be_changed_between_works(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, true);
    job change = {.body = change_algorithms, .count = 4096}, refuse = {.body = refuse_shm};
    run_job(&opts, 4, &no_faults, &change);
    expect_ok(&change, 4);
    opts.shared_memory = false;
    run_job(&opts, 2, &no_faults, &refuse);
    expect_ok(&refuse, 2);
}

static void pending_works_complete_in_any_order_of_waiting(void **state)
{
    (void)state;
    static const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_AUTO, DDP_ALLREDUCE_RING};
    for (size_t a = 0; a < COUNT_OF(algos); a++)
        for (size_t i = 0; i < COUNT_OF(worlds); i++) {
            ddp_comm_opts opts = options(algos[a], true);
            job j = {.body = many, .count = 60000};
            run_job(&opts, worlds[i], &no_faults, &j);
            expect_ok(&j, worlds[i]);
        }
}

/* Sums of numbers that round: the same bits on every rank, and again in another run. */
static float rounded[8][1000];

static ddp_status sum_rounded(ddp_comm *comm, size_t count)
{
    float *mine = rounded[ddp_comm_rank(comm)];
    for (size_t i = 0; i < count; i++)
        mine[i] = 1.0f / (float)(i * 3 + (size_t)ddp_comm_rank(comm) * 7 + 1);
    return ddp_comm_allreduce(comm, mine, count, DDP_F32, DDP_REDUCE_SUM, "rounding sums");
}

static void sums_have_the_same_bits_everywhere_and_always(void **state)
{
    (void)state;
    static float before[1000];
    for (int algo = DDP_ALLREDUCE_AUTO; algo <= DDP_ALLREDUCE_RHD; algo++)
        for (int run = 0; run < 3 && algo != DDP_ALLREDUCE_MPI; run++) {
            ddp_comm_opts opts = options((ddp_allreduce_algo)algo, true);
            ddp_loopback_faults faults = {.seed = (uint64_t)run + 1,
                                          .max_delay_us = 300,
                                          .reorder = true,
                                          .lose_rank = -1,
                                          .die_rank = -1};
            job j = {.body = sum_rounded, .count = 1000};
            run_job(&opts, 5, &faults, &j);
            expect_ok(&j, 5);
            for (int r = 1; r < 5; r++)
                assert_memory_equal(rounded[0], rounded[r], sizeof rounded[0]);
            if (run > 0)
                assert_memory_equal(rounded[0], before, sizeof before);
            memcpy(before, rounded[0], sizeof before);
        }
}

/* ---- faults ---- */

static ddp_status many_once(ddp_comm *comm, void *memory, size_t count)
{
    return check_many(comm, memory, count);
}

static ddp_status under_delay(ddp_comm *comm, size_t count)
{
    DDP_TRY(with_memory(comm, count, false, check_all));
    return with_memory(comm, 5000, false, many_once);
}

static void delays_and_reordering_change_nothing(void **state)
{
    (void)state;
    static const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_ROOT, DDP_ALLREDUCE_RING,
                                               DDP_ALLREDUCE_TREE, DDP_ALLREDUCE_RHD};
    for (size_t a = 0; a < COUNT_OF(algos); a++)
        for (int world = 2; world <= 5; world += 3) {
            ddp_comm_opts opts = options(algos[a], false);
            ddp_loopback_faults faults = {.seed = a * 10 + (size_t)world,
                                          .max_delay_us = 2000,
                                          .reorder = true,
                                          .lose_rank = -1,
                                          .die_rank = -1};
            job j = {.body = under_delay, .count = 1000};
            run_job(&opts, world, &faults, &j);
            expect_ok(&j, world);
        }
}

static ddp_status keep_reducing(ddp_comm *comm, size_t count)
{
    float *buf;
    DDP_TRY(DDP_ALLOC(buf, count));
    ddp_comm_note(comm, 87, "forward");
    ddp_status st = DDP_OK;
    for (int i = 0; i < 100 && st == DDP_OK; i++)
        st = ddp_comm_allreduce(comm, buf, count, DDP_F32, DDP_REDUCE_SUM, "gradients");
    if (st != DDP_OK) {
        /* The first cause, for ever, and without another wait. */
        int64_t start = ddp_now_ns();
        ddp_status again = ddp_comm_barrier(comm);
        if (again != st || ddp_now_ns() - start > 10000000000)
            st = DDP_FAIL(DDP_ERR_INTERNAL, "a later work gave %s", ddp_status_name(again));
    }
    ddp_free(buf);
    return st;
}

static void lost_messages_time_out_on_all_ranks(void **state)
{
    (void)state;
    for (int algo = DDP_ALLREDUCE_ROOT; algo <= DDP_ALLREDUCE_RHD; algo++) {
        ddp_comm_opts opts = options((ddp_allreduce_algo)algo, true);
        opts.timeout_ms = 400;
        ddp_loopback_faults faults = {.lose_rank = 1, .lose_after = 10, .die_rank = -1};
        job j = {.body = keep_reducing, .count = 500};
        run_job(&opts, 4, &faults, &j);
        for (int r = 0; r < 4; r++) {
            if (j.verdicts[r].status != DDP_ERR_TIMEOUT)
                fail_msg("algorithm %d, rank %d: %s: %s", algo, r,
                         ddp_status_name(j.verdicts[r].status), j.verdicts[r].message);
            assert_string_equal(j.verdicts[r].message, j.verdicts[0].message);
            assert_non_null(strstr(j.verdicts[r].message, "gradients"));
            assert_true(j.verdicts[r].ns < 20000000000);
        }
    }
}

static void death_reaches_the_others_in_time(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, shared != 0);
        opts.timeout_ms = 30000;
        ddp_loopback_faults faults = {.lose_rank = -1, .die_rank = 2, .die_at = 20};
        job j = {.body = keep_reducing, .count = 50000};
        run_job(&opts, 5, &faults, &j);
        for (int r = 0; r < 5; r++) {
            ddp_status want = r == 2 ? DDP_ERR_COMM : DDP_ERR_PEER;
            if (j.verdicts[r].status != want)
                fail_msg("rank %d: %s: %s", r, ddp_status_name(j.verdicts[r].status),
                         j.verdicts[r].message);
            assert_non_null(strstr(j.verdicts[r].message, "rank 2 died at work 20"));
            assert_true(j.verdicts[r].ns < 20000000000);
        }
    }
}

static ddp_status rank_1_hangs(ddp_comm *comm, size_t count)
{
    if (ddp_comm_rank(comm) == 1) {
        ddp_comm_note(comm, 87, "forward");
        ddp_sleep_ns(2500000000);
        return ddp_comm_barrier(comm);
    }
    return keep_reducing(comm, count);
}

static void hanging_rank_is_named(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, shared != 0);
        opts.timeout_ms = 1200; /* in which the others get there, however busy the machine is */
        job j = {.body = rank_1_hangs, .count = 100};
        run_job(&opts, 3, &no_faults, &j);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(j.verdicts[r].status, DDP_ERR_TIMEOUT);
            assert_non_null(strstr(j.verdicts[r].message, "rank 1 on "));
            assert_non_null(
                strstr(j.verdicts[r].message, "has not entered allreduce 0 (gradients)"));
            assert_non_null(strstr(j.verdicts[r].message, "last seen at step 87 in forward"));
        }
    }
}

static ddp_status fail_from_rank_1(ddp_comm *comm, size_t count)
{
    if (ddp_comm_rank(comm) != 1)
        return keep_reducing(comm, count);
    ddp_comm_fail(comm, "the loader found nonsense");
    return ddp_comm_barrier(comm);
}

static void comm_fail_ends_all_with_its_cause(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, true);
    job j = {.body = fail_from_rank_1, .count = 100};
    run_job(&opts, 4, &no_faults, &j);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(j.verdicts[r].status, r == 1 ? DDP_ERR_COMM : DDP_ERR_PEER);
        assert_string_equal(j.verdicts[r].message, "the loader found nonsense");
    }
}

static ddp_status differing_lengths(ddp_comm *comm, size_t count)
{
    float buf[16] = {0};
    return ddp_comm_allreduce(comm, buf, ddp_comm_rank(comm) == 2 ? count - 1 : count, DDP_F32,
                              DDP_REDUCE_SUM, "gradients");
}

static void differing_lengths_are_a_mismatch(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, shared != 0);
        opts.timeout_ms = 2000;
        job j = {.body = differing_lengths, .count = 16};
        run_job(&opts, 4, &no_faults, &j);
        bool found = false;
        for (int r = 0; r < 4; r++)
            found = found || j.verdicts[r].status == DDP_ERR_MISMATCH;
        assert_true(found);
    }
}

/* ---- the rest ---- */

static ddp_status fill_node_memory(ddp_comm *comm, size_t count)
{
    void *memory;
    DDP_TRY(ddp_comm_node_alloc(comm, ddp_comm_node_rank(comm) == 0 ? count : 0, &memory));
    if (ddp_comm_node_rank(comm) == 0)
        memset(memory, 42, count);
    DDP_TRY(ddp_comm_agree(comm, DDP_OK, "fill"));
    for (size_t i = 0; i < count; i++)
        if (((uint8_t *)memory)[i] != 42)
            return DDP_FAIL(DDP_ERR_INTERNAL, "byte %zu is not rank 0's", i);
    ddp_comm_node_free(comm, memory);
    return DDP_OK;
}

static void node_memory_is_one_for_all(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, true);
    job j = {.body = fill_node_memory, .count = 100000};
    run_job(&opts, 4, &no_faults, &j);
    expect_ok(&j, 4);
}

static void wrong_options_are_usage_errors(void **state)
{
    (void)state;
    ddp_comm *comms[2];
    ddp_comm_opts opts = options(DDP_ALLREDUCE_SHM, false);
    CHECK_FAILS(ddp_comm_loopback_open(&opts, 2, &no_faults, comms), DDP_ERR_USAGE,
                "shared memory is switched off");
    opts.allreduce = DDP_ALLREDUCE_MPI;
    CHECK_FAILS(ddp_comm_loopback_open(&opts, 2, &no_faults, comms), DDP_ERR_USAGE, "mpi");
    CHECK_FAILS(ddp_comm_loopback_open(&opts, 0, &no_faults, comms), DDP_ERR_USAGE, "");
}

static ddp_status steady(ddp_comm *comm, size_t count)
{
    void *memory;
    DDP_TRY(ddp_comm_mem_alloc(comm, count * 4, &memory));
    for (int i = 0; i < 60; i++) {
        DDP_TRY(check_owned(comm, memory, count));
        if (i == 20) {
            DDP_TRY(ddp_comm_barrier(comm));
            ddp_mem_freeze();
        }
    }
    DDP_TRY(ddp_comm_barrier(comm));
    ddp_comm_mem_free(comm, memory);
    return DDP_OK;
}

static void reductions_in_windows_allocate_nothing(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(DDP_ALLREDUCE_AUTO, true);
    job j = {.body = steady, .count = 50000};
    run_job(&opts, 3, &no_faults, &j);
    expect_ok(&j, 3);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_memory_gives_exact_results),
        cmocka_unit_test(messages_give_exact_results),
        cmocka_unit_test(each_algorithm_gives_exact_results),
        cmocka_unit_test(algorithm_can_be_changed_between_works),
        cmocka_unit_test(pending_works_complete_in_any_order_of_waiting),
        cmocka_unit_test(sums_have_the_same_bits_everywhere_and_always),
        cmocka_unit_test(delays_and_reordering_change_nothing),
        cmocka_unit_test(lost_messages_time_out_on_all_ranks),
        cmocka_unit_test(death_reaches_the_others_in_time),
        cmocka_unit_test(hanging_rank_is_named),
        cmocka_unit_test(comm_fail_ends_all_with_its_cause),
        cmocka_unit_test(differing_lengths_are_a_mismatch),
        cmocka_unit_test(node_memory_is_one_for_all),
        cmocka_unit_test(wrong_options_are_usage_errors),
        cmocka_unit_test(reductions_in_windows_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
