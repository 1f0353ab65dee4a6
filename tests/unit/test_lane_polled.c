/* test_lane_polled.c - what the communicator makes of a lane that it polls: times, errors,
 * deadlines.
 */
#include "lane_ranks.h"

typedef struct polled_lane {
    ddpi_lane base;
    int rounds; /* polls until a work is done */
    int fail_poll, fail_join, fail_submit;
    int aborts, closes, joins;
} polled_lane;

/* One for each rank, as the table's functions get no argument of the test's. */
static polled_lane lanes[2];

static const ddp_lane_ops *polled(void);

static ddp_status polled_open(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                              ddpi_lane **lane_out)
{
    polled_lane *lane = &lanes[ddp_comm_rank(comm)];
    if (!opts->deterministic)
        return DDP_FAIL(DDP_ERR_INTERNAL, "options did not arrive");
    if (lane->rounds < 0)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "no such library");
    lane->base = (ddpi_lane){polled(), comm, device};
    *lane_out = &lane->base;
    return DDP_OK;
}

static ddp_status polled_alloc(ddpi_lane *lane, size_t bytes, void **memory_out)
{
    return ddp_device_alloc(lane->device, bytes, memory_out);
}

static void polled_free(ddpi_lane *lane, void *memory, size_t bytes)
{
    ddp_device_free(lane->device, memory, bytes);
}

static ddp_status polled_submit(ddpi_lane *base, ddp_work *work)
{
    polled_lane *lane = (polled_lane *)base;
    work->lane_slot = lane->rounds;
    return lane->fail_submit ? DDP_FAIL(DDP_ERR_INTERNAL, "cannot start") : DDP_OK;
}

static ddp_status polled_poll(ddpi_lane *base, ddp_work *work, bool *done_out)
{
    polled_lane *lane = (polled_lane *)base;
    if (lane->fail_poll > 0 && --lane->fail_poll == 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "asynchronous error");
    *done_out = --work->lane_slot == 0;
    if (*done_out) {
        work->start_ns = work->submit_ns + 7;
        work->end_ns = work->submit_ns + 18;
    }
    return DDP_OK;
}

static ddp_status polled_join(ddpi_lane *base, ddp_work *work, ddp_stream *stream)
{
    polled_lane *lane = (polled_lane *)base;
    (void)work;
    lane->joins++;
    return lane->fail_join || stream == NULL ? DDP_FAIL(DDP_ERR_INTERNAL, "cannot join") : DDP_OK;
}

static void polled_abort(ddpi_lane *lane)
{
    ((polled_lane *)lane)->aborts++;
}

static void polled_close(ddpi_lane *lane)
{
    ((polled_lane *)lane)->closes++;
}

static const ddp_lane_ops *polled(void)
{
    static const ddp_lane_ops ops = {
        .name = "polled",
        .open = polled_open,
        .mem_alloc = polled_alloc,
        .mem_free = polled_free,
        .submit = polled_submit,
        .poll = polled_poll,
        .join = polled_join,
        .abort = polled_abort,
        .close = polled_close,
    };
    return &ops;
}

typedef struct polled_case {
    ddp_status want[2]; /* of submitting, joining and waiting, per rank */
    const char *text;
} polled_case;

static ddp_status try_work(ddp_comm *comm, const place *at, ddp_work *work)
{
    float buf[2];
    const ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                           .dtype = DDP_F32,
                           .op = DDP_REDUCE_SUM,
                           .buf = buf,
                           .count = 2,
                           .stream = at->stream,
                           .bucket = -1,
                           .what = "gradients"};
    DDP_TRY(ddp_comm_submit(comm, &coll, work));
    DDP_TRY(ddp_work_join(work, at->stream));
    return ddp_work_wait(work);
}

static ddp_status do_polled(ddp_comm *comm, void *arg)
{
    const polled_case *c = arg;
    const int rank = ddp_comm_rank(comm);
    ddp_work work;
    place at;
    DDP_TRY(enter(comm, polled(), &at));
    ddp_status got = try_work(comm, &at, &work);
    if (c->want[rank] != DDP_OK)
        DDP_TRY(expect_failure(got, c->want[rank], c->text));
    else
        DDP_TRY(got);
    if (got == DDP_OK) {
        EXPECT(work.owned.lo == 0 && work.owned.hi == 2);
        EXPECT(work.start_ns == work.submit_ns + 7 && work.end_ns == work.submit_ns + 18);
        /* Once done, there is nothing to join. */
        DDP_TRY(ddp_work_join(&work, at.stream));
        EXPECT(lanes[rank].joins == 1 && lanes[rank].aborts == 0);
    } else {
        EXPECT(lanes[rank].aborts > 0);
    }
    leave(comm, &at);
    EXPECT(lanes[rank].closes == 1);
    return DDP_OK;
}

static void run_polled(polled_case *c)
{
    run_opts(2, 60000, do_polled, c);
    memset(lanes, 0, sizeof lanes);
}

static void polled_works_keep_the_lanes_times(void **state)
{
    polled_case c = {.want = {DDP_OK, DDP_OK}};
    (void)state;
    lanes[0].rounds = 1;
    lanes[1].rounds = 400; /* long enough to get to sleep */
    run_polled(&c);
}

static void a_lanes_error_is_the_communicators(void **state)
{
    polled_case c = {.want = {DDP_ERR_INTERNAL, DDP_ERR_PEER}, .text = "asynchronous error"};
    (void)state;
    lanes[0].rounds = 10;
    lanes[0].fail_poll = 3;
    lanes[1].rounds = 1 << 30; /* waits until it hears of the failure */
    run_polled(&c);
    c.text = "cannot join";
    lanes[0].rounds = 10;
    lanes[0].fail_join = 1;
    lanes[1].rounds = 1 << 30;
    run_polled(&c);
    c.text = "cannot start";
    lanes[0].rounds = 10;
    lanes[0].fail_submit = 1;
    lanes[1].rounds = 1 << 30;
    run_polled(&c);
}

static ddp_status do_late(ddp_comm *comm, void *arg)
{
    ddp_work work;
    place at;
    (void)arg;
    DDP_TRY(enter(comm, polled(), &at));
    DDP_TRY(expect_failure(try_work(comm, &at, &work), DDP_ERR_TIMEOUT, "(gradients)"));
    EXPECT(lanes[ddp_comm_rank(comm)].aborts > 0);
    leave(comm, &at);
    return DDP_OK;
}

static void polled_works_have_a_deadline(void **state)
{
    (void)state;
    lanes[0].rounds = lanes[1].rounds = 1 << 30;
    run_opts(2, 200, do_late, NULL);
    memset(lanes, 0, sizeof lanes);
}

static ddp_status do_no_library(ddp_comm *comm, void *arg)
{
    place at;
    (void)arg;
    DDP_TRY(expect_failure(enter(comm, polled(), &at), DDP_ERR_UNSUPPORTED, "no such library"));
    EXPECT(!ddp_comm_has_lane(comm));
    ddp_device_close(at.device);
    return ddp_comm_barrier(comm);
}

static void a_rank_without_the_library_is_everybodys_failure(void **state)
{
    (void)state;
    lanes[1].rounds = -1;
    run_opts(2, 60000, do_no_library, NULL);
    assert_int_equal(lanes[0].closes, 1);
    assert_int_equal(lanes[1].closes, 0);
    memset(lanes, 0, sizeof lanes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polled_works_keep_the_lanes_times),
        cmocka_unit_test(a_lanes_error_is_the_communicators),
        cmocka_unit_test(polled_works_have_a_deadline),
        cmocka_unit_test(a_rank_without_the_library_is_everybodys_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
