/* Segments of the algorithms over messages: how long they are, and that the longest ones, with
 * several partial sums of a rank, fit the memory that they arrive in. */
#include "harness.h"

#include "comm/algo.h"
#include "ddp/memory.h"
#include "ddp/sum_tree.h"
#include "loopback_ranks.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static size_t segment_of(size_t count, ddp_dtype dtype)
{
    ddp_work work = {.coll = {.dtype = dtype, .count = count}};
    const ddpi_algo algo = {.work = &work};

    return ddpi_algo_segment_bytes(&algo);
}

static void segments_are_a_sixteenth_within_bounds(void **state)
{
    (void)state;
    assert_int_equal(segment_of(0, DDP_F32), 256 * KIB);
    assert_int_equal(segment_of(1, DDP_U8), 256 * KIB);
    assert_int_equal(segment_of(4 * MIB, DDP_U8), 256 * KIB);
    assert_int_equal(segment_of(2 * MIB, DDP_F32), 512 * KIB);
    assert_int_equal(segment_of(2 * MIB, DDP_BF16), 256 * KIB);
    assert_int_equal(segment_of(2 * MIB, DDP_F64), MIB);
    assert_int_equal(segment_of(64 * MIB, DDP_F32), MIB);
    assert_true(segment_of(SIZE_MAX / 8, DDP_F64) <= DDPI_SEGMENT_BYTES);
}

/* Elements must not be cut, nor sums leave the borders of cache lines. */
static void segments_end_at_borders(void **state)
{
    static const ddp_dtype dtypes[] = {DDP_U8, DDP_BF16, DDP_F32, DDP_F64};

    (void)state;
    for (size_t count = 1; count < 64 * MIB; count = 3 * count + 1)
        for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
            assert_int_equal(segment_of(count, dtypes[i]) % DDP_ALIGN_BYTES, 0);
}

/* Long enough for the longest segments, and no multiple of anything. */
enum { LONG_COUNT = (16 << 18) + 4099, MOST_PLACES = 3 };

static float value_of(int rank, size_t place, size_t element)
{
    return (float)((element * 7 + (size_t)rank * 13 + place * 29) % 127);
}

static size_t places_of(int64_t shards, int world, int rank)
{
    ddp_sum_node nodes[DDP_SUM_MAX_NODES];

    if (shards == 0)
        return 1;
    return (size_t)ddp_sum_nodes(shards * world, rank * shards, (rank + 1) * shards, nodes);
}

static float sum_of(int64_t shards, int world, size_t element)
{
    float sum = 0;

    for (int r = 0; r < world; r++)
        for (size_t place = 0; place < places_of(shards, world, r); place++)
            sum += value_of(r, place, element);
    return sum;
}

/* shards: of a rank, whose partial sums are added in order; 0: in no order. */
static ddp_status sum_long(ddp_comm *comm, void *arg)
{
    enum { PERIOD = 127 }; /* of the values */
    const int64_t shards = *(const int64_t *)arg;
    const int world = ddp_comm_world(comm), rank = ddp_comm_rank(comm);
    const size_t places = MOST_PLACES;
    float expected[PERIOD], *buf;
    ddp_work work;

    for (size_t i = 0; i < PERIOD; i++)
        expected[i] = sum_of(shards, world, i);
    DDP_TRY(DDP_ALLOC(buf, places * LONG_COUNT));
    for (size_t i = 0; i < places * LONG_COUNT; i++)
        buf[i] = value_of(rank, i / LONG_COUNT, i % LONG_COUNT);
    const ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                           .dtype = DDP_F32,
                           .op = DDP_REDUCE_SUM,
                           .buf = buf,
                           .count = LONG_COUNT,
                           .shards = shards,
                           .part_stride = LONG_COUNT,
                           .bucket = 0,
                           .what = "a long sum"};
    ddp_status st = ddp_comm_submit(comm, &coll, &work);
    if (st == DDP_OK)
        st = ddp_work_wait(&work);
    for (size_t i = 0; i < LONG_COUNT && st == DDP_OK; i++)
        if (buf[i] != expected[i % PERIOD])
            st = DDP_FAIL(DDP_ERR_INTERNAL, "element %zu is %g, not %g", i, (double)buf[i],
                          (double)expected[i % PERIOD]);
    ddp_free(buf);
    return st;
}

static void sum_on(int world, ddp_allreduce_algo algo, int64_t shards)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;

    opts.allreduce = algo;
    opts.shared_memory = false;
    opts.exit_on_failure = false;
    if (run_ranks(&opts, world, sum_long, &shards) != DDP_OK)
        fail_msg("%d ranks, algorithm %d: %s", world, (int)algo, ddp_status_message());
}

static void longest_segments_fit(void **state)
{
    (void)state;
    sum_on(2, DDP_ALLREDUCE_RING, 0);
    sum_on(3, DDP_ALLREDUCE_RHD, 0);
}

/* Of fourteen shards the first seven are three partial sums, the others two. */
static void partial_sums_fit(void **state)
{
    (void)state;
    sum_on(2, DDP_ALLREDUCE_AUTO, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_a_sixteenth_within_bounds),
        cmocka_unit_test(segments_end_at_borders),
        cmocka_unit_test(longest_segments_fit),
        cmocka_unit_test(partial_sums_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
