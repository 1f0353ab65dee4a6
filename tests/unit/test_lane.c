/* test_lane.c - works on device memory by way of the host, on a device that runs behind its caller.
 */
#include "ddp/bf16.h"
#include "ddp/thread.h"
#include "lane_ranks.h"

#define MS ((int64_t)1000000)

/* ---- values ---- */

/* Small whole numbers, so that sums are exact in any order and in bf16, too. */
static float value_of(int rank, size_t i)
{
    return (float)(((size_t)rank * 5 + i * 3 + i / 1000) % 7);
}

typedef struct fill {
    void *buf;
    size_t count;
    ddp_dtype dtype;
    int rank;
    int64_t late_ns;
} fill;

/* Runs on the stream, late, so that who does not wait for the stream takes what was there before.
 */
static void write_values(void *arg)
{
    const fill *f = arg;
    ddp_sleep_ns(f->late_ns);
    for (size_t i = 0; i < f->count; i++) {
        const float value = value_of(f->rank, i);
        if (f->dtype == DDP_BF16)
            ((uint16_t *)f->buf)[i] = ddp_bf16_of_f32(value);
        else
            ((float *)f->buf)[i] = value;
    }
}

static float read_value(const fill *f, size_t i)
{
    return f->dtype == DDP_BF16 ? ddp_f32_of_bf16(((const uint16_t *)f->buf)[i])
                                : ((const float *)f->buf)[i];
}

static ddp_status check_result(const ddp_comm *comm, const ddp_coll *coll, const fill *f)
{
    const int world = ddp_comm_world(comm);
    if (coll->kind == DDP_COLL_REDUCE && ddp_comm_rank(comm) != coll->root)
        return DDP_OK;
    for (size_t i = 0; i < coll->count; i++) {
        float want = 0;
        for (int r = 0; r < world; r++)
            if (coll->kind != DDP_COLL_BROADCAST || r == coll->root)
                want += value_of(r, i);
        if (read_value(f, i) != want)
            return DDP_FAIL(DDP_ERR_INTERNAL, "kind %d, %s: element %zu of %zu is %g, want %g",
                            (int)coll->kind, ddp_dtype_name(coll->dtype), i, coll->count,
                            (double)read_value(f, i), (double)want);
    }
    return DDP_OK;
}

/* ---- the staged lane ---- */

static ddp_status run_one(ddp_comm *comm, const place *at, ddp_coll coll)
{
    ddp_work work;
    DDP_TRY(ddp_comm_mem_alloc(comm, coll.count * ddp_dtype_bytes(coll.dtype), &coll.buf));
    fill f = {coll.buf, coll.count, coll.dtype, ddp_comm_rank(comm), 2 * MS};
    coll.stream = at->stream;
    coll.bucket = -1;
    coll.what = "values";
    DDP_TRY(ddp_stream_call(at->stream, write_values, &f));
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    DDP_TRY(ddp_stream_sync(at->stream)); /* alone in its world a rank has nothing to wait for */
    EXPECT(work.owned.lo == 0 && work.owned.hi == coll.count);
    EXPECT(work.submit_ns <= work.start_ns && work.start_ns <= work.end_ns);
    DDP_TRY(check_result(comm, &coll, &f));
    ddp_comm_mem_free(comm, coll.buf);
    return DDP_OK;
}

static ddp_status do_all_kinds(ddp_comm *comm, void *arg)
{
    const ddp_coll_kind kinds[] = {DDP_COLL_ALLREDUCE, DDP_COLL_REDUCE_OWNED, DDP_COLL_REDUCE,
                                   DDP_COLL_BROADCAST};
    /* One chunk is 1 Mi of f32 or 2 Mi of bf16. */
    const size_t counts[] = {0, 1, 1000, (1 << 20) + 1, 4 * (1 << 20) + 77};
    const ddp_dtype types[] = {DDP_F32, DDP_BF16};
    const int world = ddp_comm_world(comm);
    place at;
    const char *name = arg;
    const bool direct = strcmp(name, "direct") == 0;
    DDP_TRY(enter(comm, direct ? ddp_lane_direct() : ddp_lane_staged(), &at));
    EXPECT(ddp_comm_has_lane(comm) && strcmp(ddp_comm_lane_name(comm), name) == 0);
    DDP_TRY(ddp_comm_probe_lane(comm));
    for (size_t k = 0; k < 4; k++)
        for (size_t c = 0; c < (world == 2 ? 5 : 4); c++)
            for (size_t t = 0; t < (c < 4 ? 2 : 1); t++) /* the largest once */
                DDP_TRY(run_one(comm, &at,
                                (ddp_coll){.kind = kinds[k],
                                           .dtype = types[t],
                                           .op = DDP_REDUCE_SUM,
                                           .root = (int)(k + c) % world,
                                           .count = counts[c]}));
    leave(comm, &at);
    EXPECT(!ddp_comm_has_lane(comm) && ddp_comm_lane_name(comm) == NULL);
    return DDP_OK;
}

static void staged_works_give_every_rank_its_result(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        run_opts(world, 60000, do_all_kinds, (void *)"staged");
}

/* Messages of this transport may lie in the device's memory, as it is the host's. */
static void direct_works_give_every_rank_its_result(void **state)
{
    const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_AUTO, DDP_ALLREDUCE_RING, DDP_ALLREDUCE_TREE,
                                        DDP_ALLREDUCE_RHD, DDP_ALLREDUCE_ROOT};
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (size_t i = 0; i < (world < 3 ? 1 : sizeof algos / sizeof *algos); i++) {
            ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
            opts.exit_on_failure = false;
            opts.allreduce = algos[i];
            CHECK_OK(run_ranks(&opts, world, do_all_kinds, (void *)"direct"));
        }
}

/* Chunks in host memory go on two levels; the group cannot reach the device's memory. */
static void lanes_over_several_nodes_give_every_rank_its_result(void **state)
{
    static const int nodes[] = {0, 0, 1, 1};
    const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_AUTO, DDP_ALLREDUCE_HIER};
    (void)state;
    for (int world = 3; world <= 4; world++)
        for (int direct = 0; direct < 2; direct++) {
            ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
            opts.exit_on_failure = false;
            opts.allreduce = algos[world % 2];
            opts.loopback_nodes = nodes;
            CHECK_OK(run_ranks(&opts, world, do_all_kinds,
                               (void *)(uintptr_t)(direct != 0 ? "direct" : "staged")));
        }
}

/* One partial sum a rank goes through host memory in order; what has several is refused, and so is
 * any order of messages from device memory. */
static ddp_status do_ordered(ddp_comm *comm, void *arg)
{
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED, .dtype = DDP_F32, .count = 1000};
    place at;
    ddp_work work;
    (void)arg;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    coll.shards = 4;
    DDP_TRY(run_one(comm, &at, coll));
    coll.stream = at.stream;
    coll.shards = 3; /* 0-1 and 2; 3 and 4-5 */
    coll.part_stride = 1000;
    DDP_TRY(expect_failure(ddp_comm_submit(comm, &coll, &work), DDP_ERR_UNSUPPORTED,
                           "staged lane does not keep the order of sums over 3 shards"));
    leave(comm, &at);
    DDP_TRY(enter(comm, ddp_lane_direct(), &at));
    coll.stream = at.stream;
    coll.shards = 4;
    DDP_TRY(expect_failure(ddp_comm_submit(comm, &coll, &work), DDP_ERR_UNSUPPORTED,
                           "direct lane does not keep the order"));
    leave(comm, &at);
    return DDP_OK;
}

static void lanes_keep_an_order_or_refuse(void **state)
{
    (void)state;
    run_opts(2, 60000, do_ordered, NULL);
}

/* More at a time than the lane has events, each behind its own value on the stream. */
static ddp_status do_many(ddp_comm *comm, void *arg)
{
    enum { WORKS = 150, COUNT = 50 };
    static ddp_work works[2][WORKS];
    static fill fills[2][WORKS];
    const int rank = ddp_comm_rank(comm);
    void *memory;
    place at;
    (void)arg;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    DDP_TRY(ddp_comm_mem_alloc(comm, WORKS * COUNT * sizeof(float), &memory));
    for (int i = 0; i < WORKS; i++) {
        float *buf = (float *)memory + (size_t)i * COUNT;
        fills[rank][i] = (fill){buf, COUNT, DDP_F32, rank, i < 10 ? 3 * MS * (1 - rank) : 0};
        DDP_TRY(ddp_stream_call(at.stream, write_values, &fills[rank][i]));
        DDP_TRY(ddp_comm_submit(comm,
                                &(ddp_coll){.kind = DDP_COLL_REDUCE_OWNED,
                                            .dtype = DDP_F32,
                                            .op = DDP_REDUCE_SUM,
                                            .buf = buf,
                                            .count = COUNT,
                                            .stream = at.stream,
                                            .bucket = i,
                                            .what = "values"},
                                &works[rank][i]));
    }
    for (int i = 0; i < WORKS; i++) {
        DDP_TRY(ddp_work_wait(&works[rank][i]));
        DDP_TRY(check_result(comm, &works[rank][i].coll, &fills[rank][i]));
    }
    leave(comm, &at);
    return DDP_OK;
}

static void many_works_keep_their_order(void **state)
{
    (void)state;
    run_opts(2, 60000, do_many, NULL);
}

/* What is given to the stream behind a join sees the sums. */
static ddp_status do_join(ddp_comm *comm, void *arg)
{
    enum { COUNT = 3000 };
    ddp_work work;
    void *sums, *copy;
    place at;
    (void)arg;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    DDP_TRY(ddp_comm_mem_alloc(comm, COUNT * sizeof(float), &sums));
    DDP_TRY(ddp_device_alloc(at.device, COUNT * sizeof(float), &copy));
    fill f = {sums, COUNT, DDP_F32, ddp_comm_rank(comm), 5 * MS}, result = f;
    const ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                           .dtype = DDP_F32,
                           .op = DDP_REDUCE_SUM,
                           .buf = sums,
                           .count = COUNT,
                           .stream = at.stream,
                           .bucket = -1,
                           .what = "values"};
    DDP_TRY(ddp_stream_call(at.stream, write_values, &f));
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_join(&work, at.stream));
    DDP_TRY(ddp_device_copy(at.device, at.stream, copy, sums, COUNT * sizeof(float),
                            DDP_COPY_ON_DEVICE));
    DDP_TRY(ddp_stream_sync(at.stream));
    result.buf = copy;
    DDP_TRY(check_result(comm, &coll, &result));
    DDP_TRY(ddp_work_wait(&work));
    ddp_device_free(at.device, copy, COUNT * sizeof(float));
    leave(comm, &at);
    return DDP_OK;
}

static void joined_streams_see_the_result(void **state)
{
    (void)state;
    run_opts(3, 60000, do_join, NULL);
}

static ddp_status do_refused(ddp_comm *comm, void *arg)
{
    float buf[4] = {0};
    ddp_work work;
    place at;
    ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                     .dtype = DDP_F32,
                     .op = DDP_REDUCE_SUM,
                     .buf = buf,
                     .count = 2,
                     .bucket = -1,
                     .what = "odd one"};
    (void)arg;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    coll.stream = at.stream;
    const struct {
        ddp_coll_kind kind;
        ddp_dtype dtype;
        ddp_reduce_op op;
    } refused[] = {{DDP_COLL_ALLREDUCE, DDP_F64, DDP_REDUCE_SUM},
                   {DDP_COLL_ALLREDUCE, DDP_F32, DDP_REDUCE_MAX},
                   {DDP_COLL_BROADCAST, DDP_U8, DDP_REDUCE_SUM},
                   {DDP_COLL_PUBLISH, DDP_F32, DDP_REDUCE_SUM},
                   {DDP_COLL_ALLGATHER, DDP_F32, DDP_REDUCE_SUM}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        coll.kind = refused[i].kind;
        coll.dtype = refused[i].dtype;
        coll.op = refused[i].op;
        DDP_TRY(expect_failure(ddp_comm_submit(comm, &coll, &work), DDP_ERR_UNSUPPORTED,
                               "odd one: no such collective on device memory"));
    }
    ddp_comm_detach(comm);
    coll.kind = DDP_COLL_ALLREDUCE;
    coll.dtype = DDP_F32;
    coll.op = DDP_REDUCE_SUM;
    DDP_TRY(expect_failure(ddp_comm_submit(comm, &coll, &work), DDP_ERR_UNSUPPORTED, "odd one"));
    ddp_device_close(at.device);
    return DDP_OK;
}

static void other_works_are_refused(void **state)
{
    (void)state;
    run_opts(2, 60000, do_refused, NULL);
}

/* ---- failures ---- */

typedef struct gate {
    ddp_monitor monitor;
    bool open;
} gate;

static void wait_at_gate(void *arg)
{
    gate *g = arg;
    ddp_monitor_lock(&g->monitor);
    while (!g->open)
        (void)ddp_monitor_wait(&g->monitor, DDP_NO_DEADLINE);
    ddp_monitor_unlock(&g->monitor);
}

static void open_gate(gate *g)
{
    ddp_monitor_lock(&g->monitor);
    g->open = true;
    ddp_monitor_wake_all(&g->monitor);
    ddp_monitor_unlock(&g->monitor);
}

typedef struct failure {
    gate gates[2];
    bool tell;          /* rank 1 says that it fails; else it is late */
    ddp_status want[2]; /* per rank */
    const char *text;
} failure;

/* Rank 1's stream never gets to the work. */
static ddp_status do_stuck(ddp_comm *comm, void *arg)
{
    failure *f = arg;
    const int rank = ddp_comm_rank(comm);
    void *memory;
    ddp_work work;
    ddp_event *event;
    place at;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    DDP_TRY(ddp_comm_mem_alloc(comm, 1000 * sizeof(float), &memory));
    DDP_TRY(ddp_event_create(at.device, &event));
    if (rank == 1)
        DDP_TRY(ddp_stream_call(at.stream, wait_at_gate, &f->gates[1]));
    const ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                           .dtype = DDP_F32,
                           .op = DDP_REDUCE_SUM,
                           .buf = memory,
                           .count = 1000,
                           .stream = at.stream,
                           .bucket = 3,
                           .what = "gradients"};
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    if (rank == 1 && f->tell)
        ddp_comm_fail(comm, "rank 1 gives up");
    DDP_TRY(expect_failure(ddp_work_wait(&work), f->want[rank], f->text));
    DDP_TRY(ddp_event_record(event, at.stream));
    if (rank == 1)
        DDP_TRY(
            expect_failure(ddp_comm_sync_event(comm, event, "the step"), f->want[rank], f->text));
    if (rank == 1)
        open_gate(&f->gates[1]);
    DDP_TRY(ddp_event_sync(event, DDP_NO_DEADLINE));
    ddp_event_destroy(event);
    leave(comm, &at);
    return DDP_OK;
}

static void run_stuck(failure *f, int64_t timeout_ms)
{
    CHECK_OK(ddp_monitor_init(&f->gates[1].monitor));
    const int64_t start_ns = ddp_now_ns();
    run_opts(2, timeout_ms, do_stuck, f);
    assert_true(ddp_now_ns() - start_ns < 30000 * MS);
    ddp_monitor_destroy(&f->gates[1].monitor);
}

static void a_late_stream_is_found_at_the_deadline(void **state)
{
    failure f = {.want = {DDP_ERR_TIMEOUT, DDP_ERR_TIMEOUT}, .text = "(gradients, bucket 3)"};
    (void)state;
    run_stuck(&f, 1000);
}

static void a_failure_ends_works_at_once(void **state)
{
    failure f = {.tell = true, .want = {DDP_ERR_PEER, DDP_ERR_COMM}, .text = "rank 1 gives up"};
    (void)state;
    run_stuck(&f, 60000);
}

static ddp_status do_late_event(ddp_comm *comm, void *arg)
{
    failure *f = arg;
    const int rank = ddp_comm_rank(comm);
    ddp_event *event;
    place at;
    DDP_TRY(enter(comm, ddp_lane_staged(), &at));
    DDP_TRY(ddp_event_create(at.device, &event));
    DDP_TRY(ddp_event_record(event, at.stream));
    DDP_TRY(ddp_comm_sync_event(comm, event, "the step"));
    DDP_TRY(ddp_stream_call(at.stream, wait_at_gate, &f->gates[rank]));
    DDP_TRY(ddp_event_record(event, at.stream));
    DDP_TRY(expect_failure(ddp_comm_sync_event(comm, event, "the step"), f->want[rank], f->text));
    open_gate(&f->gates[rank]);
    DDP_TRY(ddp_stream_sync(at.stream));
    ddp_event_destroy(event);
    leave(comm, &at);
    return DDP_OK;
}

static void events_are_waited_for_until_the_deadline(void **state)
{
    failure f = {.want = {DDP_ERR_TIMEOUT, DDP_ERR_TIMEOUT},
                 .text = "the step is not complete after "};
    (void)state;
    for (int i = 0; i < 2; i++)
        CHECK_OK(ddp_monitor_init(&f.gates[i].monitor));
    run_opts(2, 1000, do_late_event, &f);
    for (int i = 0; i < 2; i++)
        ddp_monitor_destroy(&f.gates[i].monitor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staged_works_give_every_rank_its_result),
        cmocka_unit_test(direct_works_give_every_rank_its_result),
        cmocka_unit_test(lanes_over_several_nodes_give_every_rank_its_result),
        cmocka_unit_test(lanes_keep_an_order_or_refuse),
        cmocka_unit_test(many_works_keep_their_order),
        cmocka_unit_test(joined_streams_see_the_result),
        cmocka_unit_test(other_works_are_refused),
        cmocka_unit_test(a_late_stream_is_found_at_the_deadline),
        cmocka_unit_test(a_failure_ends_works_at_once),
        cmocka_unit_test(events_are_waited_for_until_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
