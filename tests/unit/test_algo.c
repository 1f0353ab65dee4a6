/* Segments of the algorithms over messages: sums of all lengths around theirs, and that the longest
 * ones, with several partial sums of a rank, fit the memory that they arrive in. */
#include "harness.h"

#include "comm/algo.h"
#include "ddp/memory.h"
#include "ddp/sum_tree.h"
#include "loopback_ranks.h"

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

typedef struct sum {
    size_t count;
    int64_t shards;
} sum;

/* shards: of a rank, whose partial sums are added in order; 0: in no order. */
static ddp_status sum_long(ddp_comm *comm, void *arg)
{
    enum { PERIOD = 127 }; /* of the values */
    const size_t count = ((const sum *)arg)->count;
    const int64_t shards = ((const sum *)arg)->shards;
    const int world = ddp_comm_world(comm), rank = ddp_comm_rank(comm);
    const size_t places = MOST_PLACES;
    float expected[PERIOD], *buf;
    ddp_work work;

    for (size_t i = 0; i < PERIOD; i++)
        expected[i] = sum_of(shards, world, i);
    DDP_TRY(DDP_ALLOC(buf, places * count));
    for (size_t i = 0; i < places * count; i++)
        buf[i] = value_of(rank, i / count, i % count);
    const ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                           .dtype = DDP_F32,
                           .op = DDP_REDUCE_SUM,
                           .buf = buf,
                           .count = count,
                           .shards = shards,
                           .part_stride = count,
                           .bucket = 0,
                           .what = "a long sum"};
    ddp_status st = ddp_comm_submit(comm, &coll, &work);
    if (st == DDP_OK)
        st = ddp_work_wait(&work);
    for (size_t i = 0; i < count && st == DDP_OK; i++)
        if (buf[i] != expected[i % PERIOD])
            st = DDP_FAIL(DDP_ERR_INTERNAL, "element %zu is %g, not %g", i, (double)buf[i],
                          (double)expected[i % PERIOD]);
    ddp_free(buf);
    return st;
}

static void sum_on(int world, ddp_allreduce_algo algo, sum what)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;

    opts.allreduce = algo;
    opts.shared_memory = false;
    opts.exit_on_failure = false;
    if (run_ranks(&opts, world, sum_long, &what) != DDP_OK)
        fail_msg("%d ranks, algorithm %d, %zu elements: %s", world, (int)algo, what.count,
                 ddp_status_message());
}

/* Of two ranks' shares, one to forty segments of 60 KiB, and a little less or more. */
static void lengths_around_segments_are_summed(void **state)
{
    static const size_t segments[] = {1, 2, 15, 16, 17, 18, 33, 40};
    const size_t segment = 61440 / sizeof(float);

    (void)state;
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++)
        for (int more = -1; more <= 1; more++) {
            const size_t share = segments[i] * segment + (size_t)(more + 1) - 1;
            sum_on(2, DDP_ALLREDUCE_RING, (sum){2 * share, 0});
            sum_on(3, DDP_ALLREDUCE_RING, (sum){3 * share + 1, 0});
        }
}

static void longest_segments_fit(void **state)
{
    (void)state;
    sum_on(2, DDP_ALLREDUCE_RING, (sum){LONG_COUNT, 0});
    sum_on(3, DDP_ALLREDUCE_RHD, (sum){LONG_COUNT, 0});
}

/* Of fourteen shards the first seven are three partial sums, the others two. */
static void partial_sums_fit(void **state)
{
    (void)state;
    sum_on(2, DDP_ALLREDUCE_AUTO, (sum){LONG_COUNT, 7});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_around_segments_are_summed),
        cmocka_unit_test(longest_segments_fit),
        cmocka_unit_test(partial_sums_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
